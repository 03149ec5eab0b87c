"""Rounding to few bits: `quantization_losses` (cost by scheme and what helps), `quantization_errors` (layer by layer), both.

charts.quantization(found)                    # one picture
"""

import math

import numpy as np

from outlierlens.charts.base import CONFIG, SCHEMA, Chart, Spec, bar, begun, chart, field, number, round_to, symmetric
from outlierlens.charts.palette import DIM_COLOURS, INK, MUTED, SURFACE
from outlierlens.quantized import Quantized, Rounding, Setting, named

WIDTH, PANEL, HEIGHT = 720, 330, 230
# What a setting is called, its colour and its shape, from top to bottom of a scheme.
LOOKS = {
    "rounded": ("all rounded", INK, "circle"),
    "random": ("random dimensions kept", MUTED, "cross"),
    "kept": ("outliers kept", DIM_COLOURS[0], "diamond"),
    "mixed": ("mixed (LLM.int8)", DIM_COLOURS[1], "triangle-up"),
    "smoothed": ("smoothed (SmoothQuant)", DIM_COLOURS[2], "square"),
}
LINES = ("rounded", "random", "kept")


def quantization_losses(found: Quantized, *, name: str = "quantization-losses") -> Chart:
    """Change of the task's value by scheme: all rounded, with random dimensions or the outliers kept, mixed, smoothed."""
    rows = [_row(one, setting) for one in found.roundings for setting in one.settings]
    drawn = [row for row in rows if row["change"] is not None]
    ends = [row[key] for row in drawn for key in ("change", "low", "high") if row[key] is not None]
    scale = symmetric(np.array([*ends, 0.0]), factor=30.0)
    x: Spec = field(
        "change",
        f"change of the {found.task}, {found.unit}{' (symmetric log scale)' if scale.log else ''}",
        scale=scale.scale,
        axis=scale.axis,
    )
    shown = [key for key in LOOKS if any(row["what"] == LOOKS[key][0] for row in rows)]
    colour, shape = _look(shown, 1), _look(shown, 2)
    y: Spec = {
        "field": "scheme", "type": "nominal", "title": None, "sort": [one.scheme for one in found.roundings],
        "axis": {"labelLimit": 230, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8, "grid": True},
        "scale": {"paddingInner": 0.3, "paddingOuter": 0.15},
    }  # fmt: skip
    offset = {
        "field": "what",
        "type": "nominal",
        "sort": [LOOKS[key][0] for key in shown],
        "scale": {"paddingOuter": 0.4},
    }
    tooltip = [
        field("scheme", "weights / inputs", "nominal"),
        field("what", "setting", "nominal"),
        field("dims", "kept", "nominal"),
        field("change", "change"),
        field("low", "95 % from"),
        field("high", "to"),
        field("noise", "noise"),
        field("value", found.task),
    ]
    known = [row for row in drawn if row["low"] is not None and row["high"] is not None and row["single"]]
    layers: list[Spec] = [
        {
            "data": {"values": [{"change": 0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": x},
        },
        {
            "data": {"values": known},
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "x": x | {"field": "low"},
                "x2": {"field": "high"},
                "y": y,
                "yOffset": offset,
                "color": colour,
            },
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
            "encoding": {"x": x, "y": y, "yOffset": offset, "color": colour, "shape": shape, "tooltip": tooltip},
        },
    ]
    return chart(
        name=name,
        title=f"{begun(found.task)} when rounded, and what helps",
        reading=_losses_reading(found),
        layers=layers,
        height=40 + 22 * len(shown) * len(found.roundings),
        columns=("weights / inputs", "setting", "kept", "change", "95 % from", "to", "noise", found.task),
        rows=(
            [row[key] for key in ("scheme", "what", "dims", "change", "low", "high", "noise", "value")] for row in rows
        ),
    )


def quantization_errors(found: Quantized, scheme: str | None = None, *, name: str = "quantization-errors") -> Chart:
    """Relative squared error of every block's output, of all dimensions and of all but the outliers; of the costliest scheme.

    Raises:
        BadInput: no such scheme in the result.
    """
    one = found.worst if scheme is None else found.rounding(scheme)
    rows = [*_error_rows(found, one, "all dimensions"), *_error_rows(found, one, "all but the outliers")]
    shown = [key for key in LINES if any(row["what"] == LOOKS[key][0] for row in rows)]
    wheres = list(dict.fromkeys(row["where"] for row in rows))
    values = [row["error"] for row in rows]
    ends = [10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))] if values else [0.1, 1]
    panels: list[Spec] = []
    for where in wheres or ["all dimensions"]:
        x = {
            "field": "layer", "type": "ordinal", "title": "layer (blocks from 0)", "sort": list(found.layers),
            "scale": {"type": "point", "padding": 0.4}, "axis": {"labelAngle": 0, "grid": False},
        }  # fmt: skip
        y = field(
            "error",
            "relative squared error",
            scale={"type": "log", "domain": ends},
            axis={"format": ".0e", "tickCount": 6},
        )
        tooltip = [field("layer", "layer", "nominal"), field("what", "setting", "nominal"), field("error", "error")]
        mine = [row for row in rows if row["where"] == where]
        panels.append(
            {
                "width": PANEL,
                "height": HEIGHT,
                "title": {"text": where, "color": INK, "fontSize": 13, "anchor": "start", "frame": "group"},
                "layer": [
                    {
                        "data": {"values": mine},
                        "mark": {"type": "line", "strokeWidth": 2},
                        "encoding": {"x": x, "y": y, "color": _look(shown, 1)},
                    },
                    {
                        "data": {"values": mine},
                        "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
                        "encoding": {
                            "x": x,
                            "y": y,
                            "color": _look(shown, 1),
                            "shape": _look(shown, 2),
                            "tooltip": tooltip,
                        },
                    },
                ],
            }
        )
    reading = _errors_reading(found, one)
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "hconcat": panels,
        "spacing": 40,
    }
    numbers = tuple((row["where"], row["layer"], row["what"], row["error"]) for row in rows)
    title = f"Error of every block's output, {one.scheme}"
    return Chart(
        name, title, reading, spec, ("of", "layer", "setting", "relative squared error"), numbers, len(numbers)
    )


def quantization(found: Quantized, *, name: str = "quantization") -> Chart:
    """Cost by scheme above, error by layer of the costliest scheme below."""
    above, below = quantization_losses(found), quantization_errors(found)
    reading = f"{above.reading} {below.reading}"
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": [
            {"width": WIDTH, "height": above.spec["height"], "layer": above.spec["layer"]},
            {"hconcat": below.spec["hconcat"], "spacing": below.spec["spacing"]},
        ],
        "spacing": 35,
        "resolve": {"scale": {"color": "independent", "shape": "independent"}},
    }
    title = f"{found.provenance.model}: {above.title[:1].lower()}{above.title[1:]}; {below.title[:1].lower()}{below.title[1:]}"
    return Chart(name, title, reading, spec, above.columns, above.rows, above.total)


def _row(one: Rounding, setting: Setting) -> Spec:
    return {
        "scheme": one.scheme,
        "what": LOOKS[setting.what][0],
        "dims": ", ".join(map(str, setting.dims)),
        "change": round_to(setting.change),
        **bar(setting.change_low, setting.change_high),
        "noise": round_to(setting.noise),
        "value": round_to(setting.value),
        "single": setting.what != "random",  # intervals of several draws would lie on one another
    }


def _error_rows(found: Quantized, one: Rounding, where: str) -> list[Spec]:
    errors = one.errors
    kinds = {"rounded": errors.output, "random": errors.output_random, "kept": errors.output_kept}
    if where != "all dimensions":
        kinds = {"rounded": errors.others, "random": errors.others_random, "kept": errors.others_kept}
    return [
        {"where": where, "layer": layer, "what": LOOKS[what][0], "error": round_to(float(value))}
        for what, values in kinds.items()
        for layer, value in zip(found.layers, values, strict=False)
        if math.isfinite(value) and value > 0  # of a log scale
    ]


def _look(shown: list[str], which: int) -> Spec:
    """Colour (1) or shape (2) by setting."""
    return {
        "field": "what",
        "type": "nominal",
        "scale": {"domain": [LOOKS[key][0] for key in shown], "range": [LOOKS[key][which] for key in shown]},
        "legend": {"title": None, "columns": 5},
    }


def _losses_reading(found: Quantized) -> str:
    text = (
        f"Change of the {found.task} ({found.unit}) against the intact model, by scheme of weights / inputs; bars are 95 % "
        f"intervals over texts, each cross is one draw of random dimensions. "
    )
    for one in found.roundings:
        text += f"{one.scheme}: {number(one.rounded.change)} all rounded, {number(one.kept.change)} with outliers kept"
        if one.random:
            text += f", {number(one.random_change)} with random ones"
        text += ". "
    return text + found.noise_note


def _errors_reading(found: Quantized, one: Rounding) -> str:
    errors = one.errors
    row = int(np.argmax(errors.output))
    return (
        f"Squared error of every block's output over its square, {one.scheme}: at most {number(float(errors.output[row]))} in "
        f"layer {found.layers[row]}, {number(float(errors.output_kept[row]))} there with {named(found.dims)} kept; "
        f"{errors.share[row]:.0%} of it lies in them."
    )
