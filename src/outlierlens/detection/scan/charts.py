"""The layers × dimensions picture of the weights, outliers named.

charts = weight_maps(scan.stacks[0])         # one chart for the scale and, where there is one, one for the bias
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from outlierlens.detection.scan.result import StackScan
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    FAINT,
    Chart,
    Spec,
    chart,
    drawable,
    field,
    label,
    looks,
    round_to,
    strongest_first,
)
from outlierlens.view.charts.draw import names_above

MAX_DOTS = 2500
LOWEST_Z = 2.0


def weight_maps(stack: StackScan, named: Sequence[int] | None = None, prefix: str = "") -> tuple[Chart, ...]:
    """One map of z for the scale and one for the bias where the stack has one.

    `named` are the dimensions with a name, the strongest first (the outliers found, unless given); `prefix` goes before the
    file names.
    """
    named = found_first(stack) if named is None else tuple(named)
    parts: tuple[Literal["scale", "bias"], ...] = ("scale", "bias") if stack.z_bias.size else ("scale",)
    return tuple(_map(stack, part, named, prefix) for part in parts)


def _map(stack: StackScan, part: Literal["scale", "bias"], named: tuple[int, ...], prefix: str) -> Chart:
    z = np.asarray(stack.z_scale if part == "scale" else stack.z_bias, dtype=float)  # [layer, column]
    other = np.asarray(stack.z_bias, dtype=float) if part == "scale" and stack.z_bias.size else None
    if part == "bias":
        other = np.asarray(stack.z_scale, dtype=float)
    dims = np.array(stack.map_dims)
    shown = np.isin(dims, named)
    floor = dot_threshold(np.abs(z[:, ~shown]))
    names = {"scale": "z", "bias": "z_bias"} if part == "scale" else {"bias": "z", "scale": "z_scale"}

    def row(layer: int, column: int) -> Spec:
        value = round_to(z[layer, column], 3)
        values: Spec = {"layer": layer, "dim": int(dims[column]), "z": value, "size": abs(value or 0.0)}
        return values if other is None else values | {"other": round_to(other[layer, column], 3)}

    dots = [row(*cell) for cell in np.argwhere((np.abs(z) >= floor) & ~shown[None, :]).tolist()]
    marks = [
        row(layer, column)
        | {"name": label(int(dims[column])), "passes": bool(stack.threshold.passes(z[layer, column]))}
        for column in np.flatnonzero(shown).tolist()
        for layer in range(len(z))
    ]
    what = part if part == "bias" or stack.measure.startswith("scale") else "row norm"
    other_name = "z of the bias" if part == "scale" else "z of the scale"
    tooltip = draw.columns(layer="layer", dim="dimension", z=f"z of the {what}")
    tooltip += [field("other", other_name)] if other is not None else []
    layers = _layers(stack, {"dots": dots, "marks": marks}, named, tooltip)
    counts = {dim: int(stack.threshold.passes(z[:, dims == dim]).sum()) for dim in sorted(named) if dim in dims}
    reading = (
        f"Every dot is a dimension (across) whose {what} in a layer (down, layer 0 on top) is {floor:.2g} or more "
    )
    reading += "standard deviations from the layer's mean; larger dots are further away. "
    reading += _named_sentence(counts, stack)
    columns = ("layer", "dimension", f"z of the {what}") + ((other_name,) if other is not None else ())
    ordered = sorted(dots + marks, key=lambda r: -float(r["size"] or 0.0))
    return chart(
        name=f"{prefix}weights-{part}",
        title=f"{'Scale' if names.get('scale') == 'z' else 'Bias'} of every layer and dimension: {stack.site}"
        if what == part
        else f"Writes of every layer to every dimension: {stack.site}",
        reading=reading,
        layers=layers,
        height=min(560, max(200, 14 * len(z))),
        columns=columns,
        rows=([r["layer"], r["dim"], r["z"]] + ([r["other"]] if other is not None else []) for r in ordered),
    )


def dot_threshold(size: np.ndarray) -> float:
    """The least |z| that is drawn: 2, or what keeps the number of dots within `MAX_DOTS` rounded up to a tenth."""
    flat = size.ravel()
    if (flat >= LOWEST_Z).sum() <= MAX_DOTS:
        return LOWEST_Z
    return math.ceil(float(np.partition(flat, -MAX_DOTS)[-MAX_DOTS]) * 10 + 1e-9) / 10


def mean_size(stack: StackScan) -> np.ndarray:
    """Mean |z| over layers, and over scale and bias, of each column of the map [column]."""
    size = np.abs(drawable(stack.z_scale)).mean(axis=0)
    return (size + np.abs(drawable(stack.z_bias)).mean(axis=0)) / 2 if stack.z_bias.size else size


def found_first(stack: StackScan) -> tuple[int, ...]:
    """The dimensions found, for `looks`: of more than there are colours those of largest mean |z| first."""
    size = dict(zip(stack.map_dims, mean_size(stack).tolist(), strict=True))
    return strongest_first(stack.dims, lambda dim: size[dim])


def _named_sentence(counts: dict[int, int], stack: StackScan) -> str:
    if not counts:
        return "No dimension stands out in the same place in enough layers."
    listed = ", ".join(f"{dim} in {n} of {stack.n_layers}" for dim, n in counts.items())
    return f"Columns of marks are the named dimensions; layers at {stack.threshold.sigmas} or more (filled): {listed}."


def _layers(stack: StackScan, values: dict[str, list], named: tuple[int, ...], tooltip: list[Spec]) -> list[Spec]:
    scale = {"domain": [-0.7, stack.n_layers - 0.3], "reverse": True, "nice": False}
    y = field("layer", "layer", scale=scale, axis={"tickMinStep": 1, "format": "d", "grid": False})
    x = draw.dim_axis(stack.hidden_size)
    areas = {"type": "sqrt", "domain": [2, 20], "range": [10, 150], "clamp": True}
    size = {"field": "size", "type": "quantitative", "scale": areas, "legend": None}
    drawn = [dim for dim in named if any(mark["dim"] == dim for mark in values["marks"])]
    shown = looks(named, drawn)
    colour, shape = draw.dim_colour(shown, legend=False), draw.dim_shape(shown, legend=False)
    at: Spec = {"x": x, "y": y, "size": size, "tooltip": tooltip}
    layers = [draw.circle(values["dots"], **at, color=FAINT, opacity=0.75)]
    if not drawn:
        return layers
    fill = {"condition": colour | {"test": "datum.passes"}, "value": "transparent"}
    layers.append(draw.mark("point", values["marks"], **at, shape=shape, stroke=colour, fill=fill, opacity=1))
    return layers + names_above(drawn, stack.hidden_size, x)
