"""Dimensions zeroed, set to means, shuffled, scaled and restored: `beyond_zero(found)`, one picture.

Above a row a treatment: what it changes, with its interval, and random dimensions treated alike as grey dots. Below the scale
sweep from 0 (zero) over 1 (nothing done) to the largest factor, random dimensions as grey lines.
"""

import math

from outlierlens.experiments.beyond_zero.result import BeyondZero, Treated, Treatment, treatment_rows
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, field, round_to
from outlierlens.view.charts.forms import interval_dots, lines, null_dots
from outlierlens.view.charts.palette import COLOURED, INK, MUTED
from outlierlens.view.charts.panels import above, composed, panel
from outlierlens.view.words import few, number_of_layers

WIDTH = 640
ROW = 44  # pixels of a treatment; more where several sets share it
SWEEP = 240
GOLDEN = 0.6180339887  # multiples of it, modulo 1, spread dots evenly whatever their number
SETS = 4  # sets of dimensions drawn, the first ones


def beyond_zero(found: BeyondZero, *, name: str = "beyond-zero") -> Chart:
    """The picture of all treatments and of the scale sweep."""
    drawn = found.treated[: min(SETS, COLOURED)]
    labels = [one.label for one in drawn]
    colour, shape = draw.both("set", labels)
    if len(drawn) == 1:
        colour["legend"] = shape["legend"] = None
    rows = [*treatment_rows(found)]
    return composed(
        name=name,
        title=f"{found.provenance.model}: beyond zero",
        reading=_reading(found),
        body=above(
            [_treatments(found, drawn, colour, shape), _sweep(found, drawn, colour, shape)], 30, apart=("x", "y")
        ),
        **draw.columns(**{key: key for key in rows[0]}).table(rows),
    )


def _treatments(found: BeyondZero, drawn: tuple[Treated, ...], colour: Spec, shape: Spec) -> Spec:
    order = [one.name for one in drawn[0].treatments if math.isnan(one.factor)]
    rows = [
        {"set": treated.label, "treatment": one.name, **_ends(one), "says": _says(one)}
        for treated in drawn
        for one in treated.treatments
        if math.isnan(one.factor)
    ]
    dots = [
        {"treatment": one.name, "change": round_to(change), "spread": draw.spread(i)}
        for one in drawn[0].treatments
        if math.isnan(one.factor)
        for i, change in enumerate(one.random)
        if math.isfinite(change)
    ]
    x = field("change", f"change of the {found.task} ({found.unit})", scale={"zero": True, "padding": 24})
    y = draw.strips("treatment", order)
    apart: Spec = {}
    if len(drawn) > 1:
        apart = {"yOffset": draw.nominal("set") | {"scale": {"domain": [one.label for one in drawn]}}}
    what = draw.columns(set="dimensions:N", treatment="treatment:N", change="change", **draw.ENDS, says="recovers:N")
    shown = draw.known(rows, "change")
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        null_dots(dots, x, y, size=36, opacity=0.55)
        if len(drawn) == 1
        else draw.tick(dots, x=x, y=y, color=MUTED, thickness=2, opacity=0.55),
        *interval_dots(shown, x, y, what, color=colour, shape=shape, **apart),
    ]
    if len(drawn) == 1:
        layers.append(draw.text([row for row in shown if row["says"]], "says", x=x, y=y, dy=-14, color=INK))
    title = f"Treatments of {few(drawn[0].dims)}, and how much of zero's damage they do not do"
    return panel(layers, WIDTH, 40 + max(ROW, 20 * len(drawn)) * len(order), title)


def _sweep(found: BeyondZero, drawn: tuple[Treated, ...], colour: Spec, shape: Spec) -> Spec:
    rows, random = [], []
    for treated in drawn:
        for factor, one in treated.scales:
            ends = _ends(one) if one is not None else {"change": 0.0, "low": None, "high": None}
            rows.append({"set": treated.label, "factor": factor, **ends})
    for number in range(len(drawn[0].random_dims)):
        for factor, one in drawn[0].scales:
            change = one.random[number] if one is not None else 0.0
            random.append({"which": number, "factor": factor, "change": round_to(change)})
    x = field("factor", "values multiplied by (0: zero, 1: nothing done)", axis={"tickCount": 7})
    y = field("change", ["change of the", f"{found.task}"], axis={"tickCount": 5})
    what = draw.columns(set="dimensions:N", factor="factor", change="change", **draw.ENDS)
    shown, others = draw.known(rows, "change"), draw.known(random, "change")
    grey: Spec = {"color": MUTED, "strokeWidth": 1, "opacity": 0.6}
    layers: list[Spec] = [
        draw.line(others, x=x, y=y, detail=draw.nominal("which"), **grey),
        draw.rule(draw.known(shown), x=x, **draw.between(y=y), color=colour, strokeWidth=1.5),
        *lines(shown, x, y, (colour, shape), what, size=80),
    ]
    return panel(layers, WIDTH, SWEEP, "Scale sweep")


def _ends(one: Treatment) -> dict[str, float | None]:
    return {"change": round_to(one.change), **bar(one.low, one.high)}


def _says(one: Treatment) -> str:
    if one.name == "zero" or not math.isfinite(one.recovered):
        return ""
    return f"recovers {round(100 * one.recovered)} %"


def _reading(found: BeyondZero) -> str:
    text = (
        f"Change of the {found.task} ({found.unit}) with dimensions treated in {number_of_layers(len(found.layers))}; bars "
        f"are 95 % intervals over {len(found.texts)} {found.inputs}, grey is random dimensions treated alike. "
    )
    return text + " ".join(found.says(treated) for treated in found.treated[:SETS])
