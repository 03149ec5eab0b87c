"""Dimensions zeroed, set to means, shuffled, scaled and restored: `beyond_zero(found)`, one picture.

Above a row a treatment: what it changes, with its interval, and random dimensions treated alike as grey dots. Below the scale
sweep from 0 (zero) over 1 (nothing done) to the largest factor, random dimensions as grey lines.
"""

import math

from outlierlens.charts.base import CONFIG, SCHEMA, TABLE_ROWS, Chart, Spec, bar, field, round_to
from outlierlens.charts.losses import few
from outlierlens.charts.palette import COLOURED, DIM_COLOURS, INK, MUTED, SHAPES, SURFACE
from outlierlens.treated import BeyondZero, Treated, Treatment, treatment_rows

WIDTH = 640
ROW = 44  # pixels of a treatment; more where several sets share it
SWEEP = 240
GOLDEN = 0.6180339887  # multiples of it, modulo 1, spread dots evenly whatever their number
SETS = 4  # sets of dimensions drawn, the first ones


def beyond_zero(found: BeyondZero, *, name: str = "beyond-zero") -> Chart:
    """The picture of all treatments and of the scale sweep."""
    drawn = found.treated[: min(SETS, COLOURED)]
    labels = [one.label for one in drawn]
    legend = {"title": None} if len(drawn) > 1 else None
    colour, shape = (
        field("set", "", "nominal", scale={"domain": labels, "range": list(looks[: len(labels)])}, legend=legend)
        for looks in (DIM_COLOURS, SHAPES)
    )
    spec: Spec = {
        "$schema": SCHEMA,
        "description": _reading(found),
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": [_treatments(found, drawn, colour, shape), _sweep(found, drawn, colour, shape)],
        "spacing": 30,
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }
    rows = [*treatment_rows(found)]
    numbers = [tuple(round_to(v) if isinstance(v, float) else v for v in row.values()) for row in rows]
    title = f"{found.provenance.model}: beyond zero"
    return Chart(name, title, _reading(found), spec, tuple(rows[0]), tuple(numbers[:TABLE_ROWS]), len(numbers))


def _treatments(found: BeyondZero, drawn: tuple[Treated, ...], colour: Spec, shape: Spec) -> Spec:
    order = [one.name for one in drawn[0].treatments if math.isnan(one.factor)]
    rows = [
        {"set": treated.label, "treatment": one.name, **_ends(one), "says": _says(one)}
        for treated in drawn
        for one in treated.treatments
        if math.isnan(one.factor)
    ]
    dots = [
        {"treatment": one.name, "change": round_to(change), "spread": round((0.5 + i * GOLDEN) % 1, 3)}
        for one in drawn[0].treatments
        if math.isnan(one.factor)
        for i, change in enumerate(one.random)
        if math.isfinite(change)
    ]
    x = field("change", f"change of the {found.task} ({found.unit})", scale={"zero": True, "padding": 24})
    y: Spec = {
        "field": "treatment",
        "type": "nominal",
        "title": None,
        "sort": order,
        "axis": {"labelLimit": 240, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
        "scale": {"domain": order, "paddingInner": 0.25, "paddingOuter": 0.2},
    }
    jitter = {"field": "spread", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": None, "legend": None}
    apart: Spec = {}
    if len(drawn) > 1:
        apart = {"yOffset": {"field": "set", "type": "nominal", "scale": {"domain": [one.label for one in drawn]}}}
    tooltip = [
        field("set", "dimensions", "nominal"),
        field("treatment", "treatment", "nominal"),
        field("change", "change"),
    ]
    tooltip += [field("low", "95 % from"), field("high", "to"), field("says", "recovers", "nominal")]
    known = [row for row in rows if row["low"] is not None and row["high"] is not None]
    shown = [row for row in rows if row["change"] is not None]
    layers: list[Spec] = [
        {"data": {"values": [{"change": 0}]}, "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
         "encoding": {"x": x}},
        {"data": {"values": dots}, "mark": {"type": "point", "size": 36, "color": MUTED, "filled": True, "opacity": 0.55},
         "encoding": {"x": x, "y": y, "yOffset": jitter}} if len(drawn) == 1 else
        {"data": {"values": dots}, "mark": {"type": "tick", "color": MUTED, "thickness": 2, "opacity": 0.55},
         "encoding": {"x": x, "y": y}},
        {"data": {"values": known}, "mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour, **apart}},
        {"data": {"values": shown}, "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
         "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip, **apart}},
    ]  # fmt: skip
    if len(drawn) == 1:
        layers.append(
            {
                "data": {"values": [row for row in shown if row["says"]]},
                "mark": {"type": "text", "dy": -14, "color": INK},
                "encoding": {"x": x, "y": y, "text": {"field": "says", "type": "nominal"}},
            }
        )
    what = "how much of zero's damage they do not do"
    title = {"text": f"Treatments of {few(drawn[0].dims)}, and {what}", "color": INK, "anchor": "start"}
    height = 40 + max(ROW, 20 * len(drawn)) * len(order)
    return {"width": WIDTH, "height": height, "title": title, "layer": layers}


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
    tooltip = [field("set", "dimensions", "nominal"), field("factor", "factor"), field("change", "change")]
    tooltip += [field("low", "95 % from"), field("high", "to")]
    shown = [row for row in rows if row["change"] is not None]
    known = [row for row in shown if row["low"] is not None and row["high"] is not None]
    layers: list[Spec] = [
        {"data": {"values": [row for row in random if row["change"] is not None]},
         "mark": {"type": "line", "color": MUTED, "strokeWidth": 1, "opacity": 0.6},
         "encoding": {"x": x, "y": y, "detail": {"field": "which", "type": "nominal"}}},
        {"data": {"values": known}, "mark": {"type": "rule", "strokeWidth": 1.5},
         "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour}},
        {"data": {"values": shown}, "mark": {"type": "line", "strokeWidth": 2},
         "encoding": {"x": x, "y": y, "color": colour}},
        {"data": {"values": shown}, "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
         "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip}},
    ]  # fmt: skip
    title = {"text": "Scale sweep", "color": INK, "anchor": "start"}
    return {"width": WIDTH, "height": SWEEP, "title": title, "layer": layers}


def _ends(one: Treatment) -> dict[str, float | None]:
    return {"change": round_to(one.change), **bar(one.low, one.high)}


def _says(one: Treatment) -> str:
    if one.name == "zero" or not math.isfinite(one.recovered):
        return ""
    return f"recovers {round(100 * one.recovered)} %"


def _reading(found: BeyondZero) -> str:
    text = (
        f"Change of the {found.task} ({found.unit}) with dimensions treated in {len(found.layers)} layers; bars are 95 % "
        f"intervals over {len(found.texts)} {found.inputs}, grey is random dimensions treated alike. "
    )
    return text + " ".join(found.says(treated) for treated in found.treated[:SETS])
