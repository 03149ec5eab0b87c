"""Attention that keys receive and outlier dimensions, after Puccetti et al. (2022).

attention(found)                               # all below as one picture
attention_correlation(found, "all")            # r of the named dimensions by layer, over the band of all other dimensions
attention_sinks(found)                         # shares of attention by layer: intact, outliers off, random dimensions off
attention_heads(found), attention_example(found)      # charts.attention_maps
"""

import math
from typing import Any

import numpy as np

from outlierlens.attended import KEYS, METRICS, Attention, Keys
from outlierlens.charts.attention_maps import attention_example, attention_heads, ranked, ticks
from outlierlens.charts.base import (
    CONFIG,
    SCHEMA,
    Chart,
    Spec,
    begun,
    chart,
    dim_colour,
    dim_shape,
    field,
    label,
    looks,
    number,
    place,
    round_to,
)
from outlierlens.charts.dim_names import MOST, names_at_ends
from outlierlens.charts.palette import ALARM, BAND, FAINT, INK, MUTED, SURFACE

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
        {
            "layer": layer,
            "name": label(dim),
            "value": round_to(float(one.every[row, dim])),
            "low": round_to(float(one.low[row, column])),
            "high": round_to(float(one.high[row, column])),
            "rank": int(one.rank[row, column]),
            "p": round_to(float(one.p[row, column])),
            "off": round_to(float(one.off[row, column])),
        }
        for row, layer in enumerate(found.layers)
        for column, dim in enumerate(found.dims)
    ]
    drawn = [point for point in points if point["value"] is not None]
    x = _layers(found)
    y = field("value", "r with attention received", axis={"tickCount": 7})
    tooltip = [
        field("layer", "layer", "ordinal"),
        field("name", "dimension", "nominal"),
        field("value", "r, mean over heads"),
        field("low", "95 % from"),
        field("high", "to"),
        field("rank", "rank of |r|"),
        field("p", "rank p"),
    ]
    layers: list[Spec] = [
        _area(others, x, y, "least", "most", 0.45),
        _area(others, x, y, "low", "high", 1.0),
        {
            "data": {"values": others},
            "mark": {"type": "line", "color": FAINT, "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y | {"field": "median"}},
        },
        {
            "data": {"values": [{"value": 0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeWidth": 1},
            "encoding": {"y": y},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": dim_colour(shown)},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": dim_colour(shown)},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": dim_colour(shown), "shape": dim_shape(shown), "tooltip": tooltip},
        },
        *names_at_ends(drawn, shown, x, y, span=(-0.5, 0.5)),
    ]
    title = begun(KEYS[keys])
    return chart(
        name=name,
        title=f"{title}: attention received and |h|",
        reading=_correlation_says(found, keys, mean),
        layers=layers,
        height=HEIGHT,
        columns=(
            "layer",
            "dimension",
            "r, mean over heads",
            "95 % from",
            "to",
            "rank of |r|",
            "rank p",
            "r with it off",
        ),
        rows=(point.values() for point in points),
    )


def attention_sinks(found: Attention, *, name: str = "attention-sinks") -> Chart:
    """Share of attention on the first token, special tokens and delimiters, and its entropy, by layer and condition."""
    metrics = [metric for metric in SHOWN if metric != "special" or found.n_special]
    panels, numbers = [], []
    for metric in metrics:
        panel, rows = _sink_panel(found, metric)
        panels.append(panel)
        numbers += rows
    reading = _sinks_say(found)
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "hconcat": panels,
        "spacing": 26,
    }
    columns = ("what", "layer", "intact", "95 % from", "to", "outliers off", "change", "95 % from", "to", "random off")
    return Chart(name, "Where attention goes, by layer", reading, spec, columns, tuple(numbers), len(numbers))


def attention(found: Attention, *, name: str = "attention") -> Chart:
    """Correlations over both choices of keys, sinks, heads, and the example's maps, one below the other."""
    shown = {one.n_keys: one.keys for one in (found.different[0], found.different[-1])}
    top = [attention_correlation(found, keys, name=f"attention-{keys}") for keys in shown.values()]
    rest = [attention_sinks(found), attention_heads(found, found.different[0].keys)]
    if found.example is not None:
        rest.append(attention_example(found))
    reading = " ".join(part.reading for part in (*top, *rest))
    wide = PANEL if len(top) > 1 else 2 * PANEL
    upper = [{"layer": one.spec["layer"], "width": wide, "height": HEIGHT, "title": _title(one.title)} for one in top]
    below = [_inner(one) for one in rest]
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": [{"hconcat": upper, "spacing": 40}, *below],
        "spacing": 34,
        "resolve": {
            "scale": {"color": "independent", "shape": "independent", "x": "independent", "opacity": "independent"}
        },
    }
    title = f"{found.provenance.model}: attention received and outlier dimensions"
    return Chart(name, title, reading, spec, top[0].columns, top[0].rows, top[0].total)


def _inner(one: Chart) -> Spec:
    """A chart of several panels as a part of another."""
    kept = {
        key: value for key, value in one.spec.items() if key not in ("$schema", "description", "background", "config")
    }
    return kept | {"title": _title(one.title)}


def _title(text: str) -> Spec:
    return {"text": text, "color": INK, "fontSize": 13, "anchor": "start"}


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
            intact.of(metric)[row], intact.low[at, row], intact.high[at, row], off.of(metric)[row], off.change[at, row],
            off.change_low[at, row], off.change_high[at, row], random[:, row].mean() if len(random) else math.nan,
        )  # fmt: skip
        numbers.append((TITLES[metric], layer, *(round_to(float(cell)) for cell in cells)))
    drawn = [line for line in (INTACT, OFF, RANDOM, UNIFORM) if any(one["line"] == line for one in rows)]
    rows = [one for one in rows if one["value"] is not None]
    domain = {"domain": [INTACT, OFF, RANDOM, UNIFORM]}
    legend = {"title": None, "columns": 4}
    colour = {"field": "line", "type": "nominal", "legend": legend}
    colour["scale"] = domain | {"range": [INK, ALARM, MUTED, FAINT]}
    shape = colour | {"scale": domain | {"range": ["circle", "diamond", "square", "cross"]}}
    dash = colour | {"scale": domain | {"range": [[1, 0], [1, 0], [5, 3], [2, 3]]}, "legend": None}
    x = _layers(found)
    axis = {"tickCount": 6} | ({"format": ".0%"} if metric != "relative_entropy" else {})
    y = field("value", TITLES[metric], axis=axis, scale={"zero": True})
    tooltip = [
        field("layer", "layer", "ordinal"),
        field("line", "condition", "nominal"),
        field("value", TITLES[metric]),
        field("low", "from"),
        field("high", "to"),
    ]
    ranged = [one for one in rows if one["low"] is not None]
    layers: list[Spec] = [
        {
            "data": {"values": ranged},
            "mark": {"type": "area", "opacity": 0.2},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.8},
            "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
        },
        {
            "data": {"values": [one for one in rows if one["line"] in drawn[:2]]},
            "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "shape": shape | {"legend": None}, "tooltip": tooltip},
        },
    ]
    width = SMALL if found.n_special else SMALL + 70
    return {"layer": layers, "width": width, "height": 190}, numbers


def _point(layer: str, line: str, value: float, low: float, high: float) -> Spec:
    numbers = (("value", value), ("low", low), ("high", high))
    return {"layer": layer, "line": line} | {key: round_to(float(one)) for key, one in numbers}


def _area(rows: list[Spec], x: Spec, y: Spec, low: str, high: str, opacity: float) -> Spec:
    return {
        "data": {"values": rows},
        "mark": {"type": "area", "color": BAND, "opacity": opacity},
        "encoding": {"x": x, "y": y | {"field": low}, "y2": {"field": high}},
    }


def _layers(found: Attention) -> Spec:
    return {
        "field": "layer", "type": "ordinal", "title": "layer", "sort": list(found.layers),
        "scale": {"type": "point", "padding": 0.4}, "axis": {"labelAngle": 0, "grid": False, "values": ticks(found)},
    }  # fmt: skip


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
