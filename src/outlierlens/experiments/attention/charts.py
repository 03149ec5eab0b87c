"""Attention that keys receive and outlier dimensions, after Puccetti et al. (2022).

attention(found)                               # all below as one picture
attention_correlation(found, "all")            # r of the named dimensions by layer, over the band of all other dimensions
attention_sinks(found)                         # shares of attention by layer: intact, outliers off, random dimensions off
attention_heads(found)                         # correlations by head, head × layer, a panel per named dimension
attention_example(found)                       # one text's maps, query × key, a panel per head; intact above, off below
"""

import math
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.attention.result import KEYS, METRICS, Attention, ExampleMaps, Keys
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    BAND,
    COLOURED,
    DIM_COLOURS,
    FAINT,
    INK,
    MUTED,
    Chart,
    Spec,
    begun,
    chart,
    field,
    label,
    looks,
    place,
    round_to,
    rounded,
    strongest_first,
    visible,
)
from outlierlens.view.charts.draw import (
    MOST,
    above,
    beside,
    composed,
    heading,
    heat,
    inner,
    names_at_ends,
    panel,
    strength,
)
from outlierlens.view.section import number

DIMS = 4  # panels of named dimensions
HEADS = 12  # panels of heads
COLUMNS = 4
CELL = 7  # pixels of a token
FAINTEST = 0.004  # weights below are not drawn
HEIGHT, PANEL, SMALL = 270, 400, 178
INTACT, OFF, RANDOM, UNIFORM = "intact", "outliers off", "random dimensions off", "all keys alike"
SHOWN = ("first", "special", "delimiter", "relative_entropy")
TITLES = {
    "first": "first token",
    "special": "special tokens",
    "delimiter": "delimiters",
    "relative_entropy": "entropy / log keys",
}
SIGNS = {"seen": "queries that see it", "all": "all queries", "padded": "all queries, padding too"}


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
    """One text's attention maps in one layer, a panel per head: intact above, with the outliers off below.

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


def attention_correlation(
    found: Attention, keys: Keys = "without_first", mean: str | None = None, *, name: str = "attention-correlation"
) -> Chart:
    """r of attention received with |h_d| by layer, mean over heads: named dimensions over the band of all others."""
    one = found.correlation(keys, mean)
    band = one.band(found.dims)
    others = [
        {"layer": layer}
        | dict(zip(("least", "low", "median", "high", "most"), map(round_to, band[row].tolist()), strict=True))
        for row, layer in enumerate(found.layers)
    ]
    shown = looks(ranked(found), found.dims)
    points = [
        {"layer": layer, "name": label(dim), "rank": int(one.rank[row, column])}
        | rounded(value=one.every[row, dim], low=one.low[row, column], high=one.high[row, column])
        | rounded(p=one.p[row, column], off=one.off[row, column])
        for row, layer in enumerate(found.layers)
        for column, dim in enumerate(found.dims)
    ]
    drawn = [point for point in points if point["value"] is not None]
    x = _layers(found)
    y = field("value", "r with attention received", axis={"tickCount": 7})
    what = draw.columns(
        layer="layer:O", name="dimension:N", value="r, mean over heads", **draw.ENDS, rank="rank of |r|", p="rank p",
        off="r with it off",
    )  # fmt: skip
    layers: list[Spec] = [
        _area(others, x, y, "least", "most", 0.45),
        _area(others, x, y, "low", "high", 1.0),
        draw.line(others, x=x, y=y | {"field": "median"}, color=FAINT, strokeWidth=1.5),
        draw.level(0, y=y, strokeWidth=1),
        draw.rule(drawn, x=x, **draw.between(y=y), color=draw.dim_colour(shown), strokeWidth=1.5),
        draw.line(drawn, x=x, y=y, color=draw.dim_colour(shown), strokeWidth=2),
        draw.points(drawn, x=x, y=y, **draw.dim_look(shown), tooltip=what[:-1], size=70),
        *names_at_ends(drawn, shown, x, y, span=(-0.5, 0.5)),
    ]
    title = begun(KEYS[keys])
    return chart(
        name=name,
        title=f"{title}: attention received and |h|",
        reading=_correlation_says(found, keys, mean),
        layers=layers,
        height=HEIGHT,
        **what.table(points),
    )


def attention_sinks(found: Attention, *, name: str = "attention-sinks") -> Chart:
    """Share of attention on the first token, special tokens and delimiters, and its entropy, by layer and condition."""
    metrics = [metric for metric in SHOWN if metric != "special" or found.n_special]
    panels, numbers = [], []
    for metric in metrics:
        panel, rows = _sink_panel(found, metric)
        panels.append(panel)
        numbers += rows
    columns = ("what", "layer", "intact", "95 % from", "to", "outliers off", "change", "95 % from", "to", "random off")
    return composed(
        name=name,
        title="Where attention goes, by layer",
        reading=_sinks_say(found),
        body=beside(panels, 26),
        columns=columns,
        rows=numbers,
    )


def attention(found: Attention, *, name: str = "attention") -> Chart:
    """Correlations over both choices of keys, sinks, heads, and the example's maps, one below the other."""
    shown = {one.n_keys: one.keys for one in (found.different[0], found.different[-1])}
    top = [attention_correlation(found, keys, name=f"attention-{keys}") for keys in shown.values()]
    rest = [attention_sinks(found), attention_heads(found, found.different[0].keys)]
    if found.example is not None:
        rest.append(attention_example(found))
    wide = PANEL if len(top) > 1 else 2 * PANEL
    upper = beside([inner(one, width=wide, height=HEIGHT) for one in top], 40)
    return composed(
        name=name,
        title=f"{found.provenance.model}: attention received and outlier dimensions",
        reading=" ".join(part.reading for part in (*top, *rest)),
        body=above([upper, *map(inner, rest)], 34, apart=("color", "shape", "x", "opacity")),
        **top[0].numbers,
    )


def _sink_panel(found: Attention, metric: str) -> tuple[Spec, list[tuple[Any, ...]]]:
    at = METRICS.index(metric)
    rows: list[Spec] = []
    numbers = []
    random = np.array([condition.of(metric) for condition in found.randoms])  # [draw, layer]
    for row, layer in enumerate(found.layers):
        intact, off = found.intact, found.off
        for line, condition in ((INTACT, intact), (OFF, off)):
            value, low, high = condition.of(metric)[row], condition.low[at, row], condition.high[at, row]
            rows.append(_point(layer, line, value, low, high))
        if len(random):
            rows.append(_point(layer, RANDOM, random[:, row].mean(), random[:, row].min(), random[:, row].max()))
        if metric in TITLES and at < len(found.uniform):
            rows.append(_point(layer, UNIFORM, found.uniform[at, row], math.nan, math.nan))
        cells = (
            *(intact.of(metric)[row], intact.low[at, row], intact.high[at, row], off.of(metric)[row]),
            *(off.change[at, row], off.change_low[at, row], off.change_high[at, row]),
            random[:, row].mean() if len(random) else math.nan,
        )
        numbers.append((TITLES[metric], layer, *(round_to(float(cell)) for cell in cells)))
    drawn = [line for line in (INTACT, OFF, RANDOM, UNIFORM) if any(one["line"] == line for one in rows)]
    rows = [one for one in rows if one["value"] is not None]
    order = (INTACT, OFF, RANDOM, UNIFORM)
    colour, shape = draw.both(
        "line", order, (INK, ALARM, MUTED, FAINT), ("circle", "diamond", "square", "cross"), columns=4
    )
    dash = draw.by("line", dict(zip(order, ([1, 0], [1, 0], [5, 3], [2, 3]), strict=True))) | {"legend": None}
    x = _layers(found)
    axis = {"tickCount": 6} | ({"format": ".0%"} if metric != "relative_entropy" else {})
    y = field("value", TITLES[metric], axis=axis, scale={"zero": True})
    what = draw.columns(layer="layer:O", line="condition:N", value=TITLES[metric], low="from", high="to")
    ranged = [one for one in rows if one["low"] is not None]
    marked = [one for one in rows if one["line"] in drawn[:2]]
    layers: list[Spec] = [
        draw.area(ranged, x=x, **draw.between(y=y), color=colour, opacity=0.2),
        draw.line(rows, x=x, y=y, color=colour, strokeDash=dash, strokeWidth=1.8),
        draw.points(marked, x=x, y=y, color=colour, shape=shape | {"legend": None}, tooltip=what, size=40),
    ]
    return panel(layers, SMALL if found.n_special else SMALL + 70, 190), numbers


def _point(layer: str, line: str, value: float, low: float, high: float) -> Spec:
    return {"layer": layer, "line": line} | rounded(value=value, low=low, high=high)


def _area(rows: list[Spec], x: Spec, y: Spec, low: str, high: str, opacity: float) -> Spec:
    return draw.area(rows, x=x, y=y | {"field": low}, y2={"field": high}, color=BAND, opacity=opacity)


def _layers(found: Attention) -> Spec:
    return draw.layer_axis(found.layers, values=ticks(found))


def _correlation_says(found: Attention, keys: Keys, mean: str | None) -> str:
    one = found.correlation(keys, mean)
    text = (
        f"Pearson's r of the attention a key receives (mean over {SIGNS[one.mean]}) with |h| at that key, mean over heads, "
        f"over {one.n_keys:,} ({KEYS[keys]}). The band holds 90 % of all "
        "other dimensions, the faint one all of them. "
    )
    for column, dim in list(enumerate(found.dims))[:MOST]:
        if not np.isfinite(one.overall[column]):
            continue
        best = int(np.nanargmax(np.abs(one.every[:, dim])))
        text += (
            f"Dimension {dim} has {number(float(one.every[best, dim]))} at most ({place(found.layers[best])}, rank "
            f"{one.rank[best, column]}); over all layers mean |r| {number(float(one.overall[column]))}, rank p "
            f"{float(one.overall_p[column]):.2g}. "
        )
    return text.strip()


def _sinks_say(found: Attention) -> str:
    threshold = found.threshold
    text = (
        f"Share of a query's attention by layer, mean over heads and queries; bands are 95 % intervals over texts, of random "
        f"dimensions the range of {len(found.randoms)} draws. On the first token fall {found.intact.of('first').mean():.0%} "
        f"intact and {found.off.of('first').mean():.0%} with the outliers off; "
        f"{found.intact.sink_rate(threshold):.0%} and {found.off.sink_rate(threshold):.0%} of the heads give it more than "
        f"{threshold:g}"
    )
    if found.randoms:
        rates = [one.sink_rate(threshold) for one in found.randoms]
        text += f", with random dimensions off {min(rates):.0%} to {max(rates):.0%}"
    return text + "."
