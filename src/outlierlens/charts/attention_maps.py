"""Heat maps of attention: correlations by head, and one text's maps, intact beside ablated.

attention_heads(found)             # head × layer, a panel a named dimension
attention_example(found)           # query × key, a panel a head; intact above, outliers off below
"""

import numpy as np

from outlierlens.attended import KEYS, Attention, ExampleMaps, Keys
from outlierlens.charts.base import (
    CONFIG,
    SCHEMA,
    TABLE_ROWS,
    Chart,
    Spec,
    field,
    number,
    place,
    round_to,
    strongest_first,
    visible,
)
from outlierlens.charts.palette import ALARM, COLOURED, DIM_COLOURS, INK, SURFACE
from outlierlens.errors import BadInput

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
    spec = _spec(reading, {"hconcat": panels, "spacing": 22})
    columns = ("dimension", "layer", "head", "r")
    return Chart(name, "Correlation by head", reading, spec, columns, tuple(rows[:TABLE_ROWS]), len(rows))


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
            {"hconcat": [_map_panel(example, head, off=off, left=head == part[0]) for head in part], "spacing": 12}
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
    spec = _spec(reading, {"vconcat": lines, "spacing": 12})
    rows = tuple((head, round_to(float(change[head]))) for head in range(len(change)))
    title = f"Attention maps of one text, layer {example.layer}"
    return Chart(name, title, reading, spec, ("head", "attention that moves elsewhere"), rows[:TABLE_ROWS], len(rows))


def ranked(found: Attention, room: int = COLOURED) -> tuple[int, ...]:
    """The named dimensions, for `looks`: of more than there is room for those of largest mean |r| over layers first."""
    overall = dict(zip(found.dims, np.asarray(found.correlation("without_first").overall).tolist(), strict=True))
    return strongest_first(found.dims, lambda dim: overall[dim], room)


def ticks(found: Attention) -> list[str]:
    """Layers that an axis names: all, or of more than 16 every second, third, …"""
    return list(found.layers[:: 1 + (len(found.layers) - 1) // 16])


def _spec(reading: str, panels: Spec) -> Spec:
    head: Spec = {"$schema": SCHEMA, "description": reading, "background": SURFACE, "config": CONFIG}
    return head | panels


def _head_panel(found: Attention, dim: int, cells: list[Spec], top: float) -> Spec:
    axis = {"labelAngle": 0, "values": ticks(found)}
    x = field("layer", "layer", "ordinal", sort=list(found.layers), axis=axis)
    y = field("head", "head", "ordinal")
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": ["positive r", "negative r"], "range": [DIM_COLOURS[0], DIM_COLOURS[1]]},
        "legend": {"title": None, "symbolType": "square", "orient": "top"},
    }
    strength = {
        "field": "size",
        "type": "quantitative",
        "scale": {"domain": [0, round_to(top, 2)], "range": [0.02, 1.0]},
        "legend": {"title": "|r|", "orient": "bottom", "symbolType": "square", "symbolFillColor": INK, "tickCount": 4},
    }
    tooltip = [field("layer", "layer", "ordinal"), field("head", "head", "ordinal"), field("value", "r")]
    panels = min(DIMS, len(found.dims))
    return {
        "data": {"values": cells},
        "transform": [{"calculate": "abs(datum.value)", "as": "size"}],
        "title": {"text": f"dim {dim}", "color": INK, "fontSize": 12, "anchor": "start"},
        "mark": {"type": "rect"},
        "width": max(120, 820 // panels - 50),
        "height": min(330, max(90, 17 * found.n_heads)),
        "encoding": {"x": x, "y": y, "color": colour, "opacity": strength, "tooltip": tooltip},
    }


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
    small = {
        "labelFontSize": 6,
        "labelExpr": short,
        "ticks": False,
        "domain": False,
        "labelOverlap": False,
        "title": None,
    }
    scale = {"domain": names}
    x = field("key", "", "ordinal", scale=scale, axis=small | {"labelAngle": -90} if off else None)
    y = field("query", "", "ordinal", scale=scale, axis=small if left else None)
    strength = {
        "field": "weight",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": [0.03, 1]},
        "legend": None,
    }
    tooltip = [field("query", "query", "nominal"), field("key", "key", "nominal"), field("weight", "weight")]
    said = f"head {head}, outliers off" if off else f"head {head}"
    return {
        "data": {"values": rows},
        "transform": [{"flatten": ["key", "weight"]}],
        "title": {"text": said, "color": INK, "fontSize": 11, "fontWeight": 500, "anchor": "start", "offset": 3},
        "mark": {"type": "rect", "color": ALARM if off else INK},
        "width": side,
        "height": side,
        "encoding": {"x": x, "y": y, "opacity": strength, "tooltip": tooltip},
    }


def _strongest(found: Attention, heads: np.ndarray) -> str:
    """Where the named dimensions go with attention most."""
    size = np.abs(np.nan_to_num(heads))
    if not size.max(initial=0.0) > 0:
        return "No named dimension varies."
    row, head, column = np.unravel_index(int(size.argmax()), size.shape)
    r = number(float(heads[row, head, column]))
    return f"Strongest is head {head} of {place(found.layers[row])} with dimension {found.dims[column]}, {r}."
