"""How closely dimensions follow token frequency, outliers beside all others.

frequency(found)                       # the three below as one picture
frequency_layers(found, view="all")    # correlation by layer: a line an outlier, all other dimensions as a band
frequency_types(found, dim=308)        # types by frequency and by mean |h| of one dimension
"""

import math
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.frequency.result import BLOCKS, VIEWS, Cloud, Frequency
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    BAND,
    COLOURED,
    DIM_COLOURS,
    INK,
    MUTED,
    Chart,
    Spec,
    chart,
    field,
    label,
    looks,
    place,
    round_to,
    rounded,
    strongest_first,
)
from outlierlens.view.charts.draw import MOST, above, beside, composed, heading, inner, names_at_ends
from outlierlens.view.section import number

HEIGHT = 280
PANEL = 370
COUNTS = {"raw": "the count", "log": "the log count", "partial": "the log count, given the position"}
SAYS = {"without_special": "without special tokens", "all": "special tokens counted"}
INSIDE = (5, 95)  # percentiles of the other dimensions that the band spans


def frequency_layers(
    found: Frequency, view: str = "without_special", measure: str = "log", *, name: str = "frequency-layers"
) -> Chart:
    """Correlation of |h_d| with token frequency by layer: named dimensions with 95 % intervals, all others as a band.

    Where no dimension is named, the one that follows frequency most is drawn.

    Raises:
        BadInput: an unknown view or measure.
    """
    values = found.view(view).measure(measure)
    low, high = values.interval(found.reach)
    dims = _named(found)
    shown = looks(dims, dims)
    others = np.delete(np.asarray(values.value, dtype=float), list(dims), axis=1)
    band = []
    for row, layer in enumerate(found.layers):
        known = others[row][np.isfinite(others[row])]
        if len(known):
            ends = np.percentile(known, (INSIDE[0], 50, INSIDE[1]))
            band.append({"layer": layer, **dict(zip(("low", "middle", "high"), map(round_to, ends), strict=True))})
    points = [
        {"layer": layer, "name": label(dim)}
        | rounded(value=values.value[row, dim], low=low[row, dim], high=high[row, dim])
        for dim in dims
        for row, layer in enumerate(found.layers)
        if np.isfinite(values.value[row, dim])
    ]
    x = draw.layer_axis(found.layers)
    y = field("value", f"r of |h| with {COUNTS[measure]}", axis={"tickCount": 6})
    what = draw.columns(layer="layer:O", name="dimension:N", value="r", **draw.ENDS)
    colour, shape = draw.dim_colour(shown), draw.dim_shape(shown)
    layers: list[Spec] = [
        draw.level(0, y=y, strokeWidth=1),
        draw.area(band, x=x, **draw.between(y=y), color=BAND, opacity=0.75),
        draw.line(band, x=x, y=y | {"field": "middle"}, color=MUTED, strokeWidth=1.5, strokeDash=draw.DASHED),
        draw.rule(points, x=x, **draw.between(y=y), color=colour, strokeWidth=1.5),
        draw.line(points, x=x, y=y, color=colour, strokeWidth=2),
        draw.points(points, x=x, y=y, color=colour, shape=shape, tooltip=what, size=60),
        *names_at_ends(points, shown, x, y, span=(-0.5, 0.5)),
    ]
    return chart(
        name=name,
        title=f"r with {COUNTS[measure]}, {SAYS[view]}",
        reading=_layers_reading(found, view, measure),
        layers=layers,
        height=HEIGHT,
        **what.table(points),
    )


def frequency_types(found: Frequency, dim: int | None = None, *, name: str = "frequency-types") -> Chart:
    """Types by log frequency and mean |h| of a dimension in the layer where it follows frequency most; darker is more types.

    `dim` is the first of the result unless named.

    Raises:
        BadInput: the result has no types, or none for this dimension.
    """
    if not found.clouds:
        raise BadInput("fewer than 4 types occurred, so there are none to draw; give more text")
    clouds = {one.dim: one for one in found.clouds}
    one = clouds.get(found.clouds[0].dim if dim is None else dim)
    if one is None:
        raise BadInput(f"no types are kept for dimension {dim}; there are {', '.join(map(str, clouds))}")
    boxes = _boxes(one)
    middle = (one.x[:-1] + one.x[1:]) / 2
    means = [
        {"x": round_to(float(x)), "y": round_to(float(mean))}
        for x, mean in zip(middle, one.mean, strict=True)
        if np.isfinite(mean)
    ]
    x = field("x", "log10(1 + count) of a type", scale={"zero": False, "nice": False})
    y = field("y", f"mean |h| of {label(one.dim)}", scale={"zero": False, "nice": False})
    what = draw.columns(x="log10 count from", x2="to", y="|h| from", y2="to", n="types")
    dims = _named(found)
    turn = looks(dims, dims).get(one.dim)
    scale = {"type": "sqrt", "range": [0.12, 1], "domain": [0, max(box["n"] for box in boxes)]}
    shade = {"field": "n", "type": "quantitative", "legend": None, "scale": scale}
    box = draw.between("x", "x2", x=x) | draw.between("y", "y2", y=y)
    layers: list[Spec] = [
        draw.rect(boxes, **box, tooltip=what, opacity=shade, color=MUTED if turn is None else DIM_COLOURS[turn]),
        draw.line(means, x=x, y=y, color=INK, strokeWidth=2),
        draw.points(means, x=x, y=y, color=INK, size=18),
    ]
    return chart(
        name=name,
        title=f"{label(one.dim).capitalize()}, {place(one.layer)}: types",
        reading=_types_reading(found, one),
        layers=layers,
        height=HEIGHT,
        **what.table(boxes),
    )


def frequency(found: Frequency, *, name: str = "frequency") -> Chart:
    """Correlation by layer in both views side by side, and below them the paper's raw counts and the types of one dimension."""
    upper = [frequency_layers(found, view) for view in VIEWS]
    lower = [frequency_layers(found, "all", "raw")]
    _one_scale([*upper, *lower])
    if found.clouds:
        lower.append(frequency_types(found))
    rows = [
        beside([inner(one, width=PANEL, height=HEIGHT, title=heading(one.title, frame="group")) for one in row], 75,
               bounds="flush")
        for row in (upper, lower)
    ]  # fmt: skip
    scales = {"color": "shared", "shape": "shared", "x": "independent", "y": "independent"}
    what = draw.columns(
        layer="layer", measure="correlation", view="tokens", named="mean |r| of outliers", others="of all others",
        difference="difference", **draw.ENDS, p="rank p",
    )  # fmt: skip
    return composed(
        name=name,
        title=f"{found.provenance.model}: dimensions and token frequency",
        reading=" ".join(dict.fromkeys(part.reading for part in (*upper, *lower))),
        body=above(rows, 30, resolve={"scale": scales}),
        **what.table(found.contrasts),
    )


def _one_scale(panels: list[Chart]) -> None:
    """Give panels of correlations the same y axis, from the lowest to the highest of what they draw."""
    drawn = [
        value
        for one in panels
        for layer in one.spec["layer"]
        for point in layer["data"]["values"]
        for key, value in point.items()
        if key in ("value", "low", "high") and value is not None
    ]
    ends = [math.floor(min(drawn) * 10) / 10, math.ceil(max(drawn) * 10) / 10]
    for one in panels:
        for layer in one.spec["layer"]:
            layer["encoding"]["y"]["scale"] = {"domain": ends, "nice": False}


def _named(found: Frequency) -> tuple[int, ...]:
    """Dimensions with a name: those of the result; where there are none, the few that follow frequency most."""
    return _strongest(found) or tuple(one.dim for one in found.clouds)[:COLOURED]


def _strongest(found: Frequency) -> tuple[int, ...]:
    """Those of the result, for `looks`: of more than there are colours those whose |r| is largest in any layer first."""
    values = np.abs(np.asarray(found.view("without_special").measure("log").value, dtype=float))
    return strongest_first(found.dims, lambda dim: float(np.nan_to_num(values[:, dim], nan=-1.0).max()))


def _boxes(one: Cloud) -> list[dict[str, Any]]:
    return [
        rounded(x=one.x[i], x2=one.x[i + 1], y=one.y[j], y2=one.y[j + 1]) | {"n": int(one.n[i, j])}
        for i, j in np.argwhere(one.n)
    ]


def _layers_reading(found: Frequency, view: str, measure: str) -> str:
    values = found.view(view).measure(measure).value
    text = (
        f"Correlation of |h| with {COUNTS[measure]} over {found.view(view).n_tokens:,} tokens, {SAYS[view]}, by layer; bars "
        f"are 95 % intervals over texts, the band holds the middle 90 % of all other dimensions, the dashed line their median. "
    )
    said = []
    for dim in _named(found)[:MOST]:
        sizes = np.nan_to_num(np.abs(values[:, dim]), nan=-1.0)
        row = int(sizes.argmax())
        if sizes[row] >= 0:
            said.append(f"dimension {dim} reaches {number(float(values[row, dim]))} in {place(found.layers[row])}")
    if said:
        text += f"{'; '.join(said)[:1].upper()}{'; '.join(said)[1:]}. "
    together = [one for one in found.contrasts if (one.view, one.measure, one.layer) == (view, measure, BLOCKS)]
    for one in together:
        words = {"more": "more closely than", "less": "less closely than"}.get(one.verdict, "no more clearly than")
        text += (
            f"Over all blocks outliers follow frequency {words} other dimensions: mean |r| {number(one.named)} against "
            f"{number(one.others)}, rank p {one.p:.3g}."
        )
    return text.strip()


def _types_reading(found: Frequency, one: Cloud) -> str:
    return (
        f"{int(one.n.sum()):,} types by how frequent they are and by their mean |h| of dimension {one.dim} in "
        f"{place(one.layer)}; darker boxes hold more types, the line is their mean. Over types the correlation is "
        f"{number(one.value)}."
    )
