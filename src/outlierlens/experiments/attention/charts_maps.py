"""Heat maps of attention: correlations by head, and one text's maps, intact beside ablated.

attention_heads(found)             # head × layer, a panel a named dimension
attention_example(found)           # query × key, a panel a head; intact above, outliers off below
"""

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.attention.result import KEYS, Attention, ExampleMaps, Keys
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, field, place, round_to, strongest_first, visible
from outlierlens.view.charts.forms import heat, strength
from outlierlens.view.charts.palette import ALARM, COLOURED, DIM_COLOURS, INK
from outlierlens.view.charts.panels import above, beside, composed, heading
from outlierlens.view.words import number

DIMS = 4  # panels of named dimensions
HEADS = 12  # panels of heads
COLUMNS = 4
CELL = 7  # pixels of a token
FAINTEST = 0.004  # weights below are not drawn


def attention_heads(found: Attention, keys: Keys = "without_first", *, name: str = "attention-heads") -> Chart:
    """r of attention received with |h_d| by head and layer, a panel for each of the strongest four named dimensions."""
    one = found.correlation(keys)
    top = max(0.1, float(np.nanmax(np.abs(one.heads), initial=0.0)))
    panels: list[Spec] = []
    rows = []
    drawn = ranked(found, DIMS)[:DIMS]
    for column, dim in enumerate(found.dims):
        cells = [
            {"layer": layer, "head": head, "value": value, "kind": "negative r" if value < 0 else "positive r"}
            for row, layer in enumerate(found.layers)
            for head in range(found.n_heads)
            if (value := round_to(float(one.heads[row, head, column]), 3)) is not None
        ]
        rows += [(dim, cell["layer"], cell["head"], cell["value"]) for cell in cells]
        if dim in drawn:
            panels.append(_head_panel(found, dim, cells, top))
    best = _strongest(found, one.heads)
    reading = (
        f"r of the attention a key receives in a head with |h| of the layer's output at that key, {KEYS[keys]}. {best}"
    )
    return composed(
        name=name,
        title="Correlation by head",
        reading=reading,
        body=beside(panels, 22),
        columns=("dimension", "layer", "head", "r"),
        rows=rows,
    )


def attention_example(found: Attention, *, name: str = "attention-example") -> Chart:
    """One text's attention maps in one layer, a panel a head: intact above, with the outliers off below.

    Of more than a dozen heads those that change most.

    Raises:
        BadInput: no example was kept.
    """
    example = found.example
    if example is None:
        raise BadInput("no example was kept; name one with --example")
    change = np.abs(np.asarray(example.off) - np.asarray(example.intact)).sum(axis=-1).mean(axis=-1) / 2  # [head]
    heads = sorted(np.argsort(-change, kind="stable")[:HEADS].tolist())
    lines: list[Spec] = []
    for start in range(0, len(heads), COLUMNS):
        part = heads[start : start + COLUMNS]
        lines += [
            beside([_map_panel(example, head, off=off, left=head == part[0]) for head in part], 12)
            for off in (False, True)
        ]
    most = int(change.argmax())
    off = ", ".join(map(str, found.dims))
    reading = (
        f"Attention in {place(example.layer)} on the first {len(example.tokens)} tokens of text {example.number}, queries "
        f"downwards, keys to the right, a darker cell is more attention; each head intact and, below it, with {off} off. "
        f"Head {most} changes most: {change[most]:.0%} of its attention moves elsewhere, {change.mean():.0%} in the mean head."
    )
    if len(heads) < len(change):
        reading += f" Drawn are the {len(heads)} of {len(change)} heads that change most."
    return composed(
        name=name,
        title=f"Attention maps of one text, layer {example.layer}",
        reading=reading,
        body=above(lines, 12),
        columns=("head", "attention that moves elsewhere"),
        rows=((head, round_to(float(change[head]))) for head in range(len(change))),
    )


def ranked(found: Attention, room: int = COLOURED) -> tuple[int, ...]:
    """The named dimensions, for `looks`: of more than there is room for those of largest mean |r| over layers first."""
    overall = dict(zip(found.dims, np.asarray(found.correlation("without_first").overall).tolist(), strict=True))
    return strongest_first(found.dims, lambda dim: overall[dim], room)


def ticks(found: Attention) -> list[str]:
    """Layers that an axis names: all, or of more than 16 every second, third, …"""
    return list(found.layers[:: 1 + (len(found.layers) - 1) // 16])


def _head_panel(found: Attention, dim: int, cells: list[Spec], top: float) -> Spec:
    axis = {"labelAngle": 0, "values": ticks(found)}
    x = field("layer", "layer", "ordinal", sort=list(found.layers), axis=axis)
    y = field("head", "head", "ordinal")
    signs = {"positive r": DIM_COLOURS[0], "negative r": DIM_COLOURS[1]}
    colour = draw.by("kind", signs, symbolType="square", orient="top")
    legend: Spec = {"title": "|r|", "orient": "bottom", "symbolType": "square", "symbolFillColor": INK, "tickCount": 4}
    shade = strength("size", round_to(top, 2) or top, **legend)
    what = draw.columns(layer="layer:O", head="head:O", value="r")
    size = {"width": max(120, 820 // min(DIMS, len(found.dims)) - 50), "height": min(330, max(90, 17 * found.n_heads))}
    absolute = [{"calculate": "abs(datum.value)", "as": "size"}]
    drawn = heat(cells, x, y, shade, what, transform=absolute, color=colour)
    return drawn | size | {"title": heading(f"dim {dim}", fontSize=12)}


def _map_panel(example: ExampleMaps, head: int, *, off: bool, left: bool) -> Spec:
    maps = np.asarray(example.off if off else example.intact)[head]  # [query, key]
    names = [f"{i} {visible(token)}" for i, token in enumerate(example.tokens)]
    rows = []
    for query, line in enumerate(maps):
        keys = np.flatnonzero(line >= FAINTEST).tolist()
        weights = [round_to(float(line[key]), 2) for key in keys]
        rows.append({"query": names[query], "key": [names[key] for key in keys], "weight": weights})
    side = CELL * len(names)
    short = "slice(datum.value, indexof(datum.value, ' ') + 1)"
    small = {"labelFontSize": 6, "labelExpr": short, "title": None}
    small |= dict.fromkeys(("ticks", "domain", "labelOverlap"), False)
    scale = {"domain": names}
    x = field("key", "", "ordinal", scale=scale, axis=small | {"labelAngle": -90} if off else None)
    y = field("query", "", "ordinal", scale=scale, axis=small if left else None)
    what = draw.columns(query="query:N", key="key:N", weight="weight")
    unpacked = [{"flatten": ["key", "weight"]}]
    shade = strength("weight", 1, faintest=0.03)
    drawn = heat(rows, x, y, shade, what, transform=unpacked, color=ALARM if off else INK)
    title = heading(f"head {head}" + (", outliers off" if off else ""), fontSize=11, fontWeight=500, offset=3)
    return drawn | {"width": side, "height": side, "title": title}


def _strongest(found: Attention, heads: np.ndarray) -> str:
    """Where the named dimensions go with attention most."""
    size = np.abs(np.nan_to_num(heads))
    if not size.max(initial=0.0) > 0:
        return "No named dimension varies."
    row, head, column = np.unravel_index(int(size.argmax()), size.shape)
    r = number(float(heads[row, head, column]))
    return f"Strongest is head {head} of {place(found.layers[row])} with dimension {found.dims[column]}, {r}."
