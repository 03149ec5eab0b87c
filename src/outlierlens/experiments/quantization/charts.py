"""Rounding to few bits: `quantization_losses` (cost by scheme and what helps), `quantization_errors` (layer by layer), both.

charts.quantization(found)                    # one picture
"""

import math

import numpy as np

from outlierlens.experiments.quantization.result import Quantized, Rounding, Setting
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, chart, field, round_to, symmetric
from outlierlens.view.charts.forms import lines
from outlierlens.view.charts.palette import DIM_COLOURS, INK, MUTED
from outlierlens.view.charts.panels import above, beside, composed, heading, inner, panel
from outlierlens.view.words import number, these

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
    x = scale.encoding("change", f"change of the {found.task}, {found.unit}")
    shown = [key for key in LOOKS if any(row["what"] == LOOKS[key][0] for row in rows)]
    colour, shape = _look(shown, 1), _look(shown, 2)
    y = draw.strips("scheme", [one.scheme for one in found.roundings], 230, inner=0.3, outer=0.15)
    y["axis"] |= {"grid": True}
    offset = draw.nominal("what") | {"sort": [LOOKS[key][0] for key in shown], "scale": {"paddingOuter": 0.4}}
    what = draw.columns(
        scheme="weights / inputs:N", what="setting:N", dims="kept:N", change="change", **draw.ENDS, noise="noise",
        value=found.task,
    )  # fmt: skip
    known = [row for row in draw.known(drawn) if row["single"]]
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        draw.rule(known, **draw.between(x=x), y=y, yOffset=offset, color=colour, strokeWidth=2),
        draw.points(drawn, x=x, y=y, yOffset=offset, color=colour, shape=shape, tooltip=what, size=75),
    ]
    return chart(
        name=name,
        title=f"{begun(found.task)} when rounded, and what helps",
        reading=_losses_reading(found),
        layers=layers,
        height=40 + 22 * len(shown) * len(found.roundings),
        **what.table(rows),
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
    x = draw.layer_axis(found.layers, "layer (blocks from 0)")
    scale = {"type": "log", "domain": ends}
    y = field("error", "relative squared error", scale=scale, axis={"format": ".0e", "tickCount": 6})
    what = draw.columns(where="of:N", layer="layer:N", what="setting:N", error="relative squared error")
    look = _look(shown, 1), _look(shown, 2)
    panels = []
    for where in wheres or ["all dimensions"]:
        mine = [row for row in rows if row["where"] == where]
        panels.append(panel(lines(mine, x, y, look, what[1:], size=45), PANEL, HEIGHT, heading(where, frame="group")))
    return composed(
        name=name,
        title=f"Error of every block's output, {one.scheme}",
        reading=_errors_reading(found, one),
        body=beside(panels, 40),
        **what.table(rows),
    )


def quantization(found: Quantized, *, name: str = "quantization") -> Chart:
    """Cost by scheme above, error by layer of the costliest scheme below."""
    upper, lower = quantization_losses(found), quantization_errors(found)
    title = f"{found.provenance.model}: {upper.title[:1].lower()}{upper.title[1:]}; {lower.title[:1].lower()}{lower.title[1:]}"
    return composed(
        name=name,
        title=title,
        reading=f"{upper.reading} {lower.reading}",
        body=above([inner(upper, width=WIDTH), inner(lower)], 35, apart=("color", "shape")),
        **upper.numbers,
    )


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
    return draw.by("what", {LOOKS[key][0]: LOOKS[key][which] for key in shown}, columns=5)


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
        f"layer {found.layers[row]}, {number(float(errors.output_kept[row]))} there with {these(found.dims)} kept; "
        f"{errors.share[row]:.0%} of it lies in them."
    )
