"""Super weights: where the MLP's last linear spikes, and what single weights are for: `super_weights(found)`."""

import math
from typing import Any

import numpy as np

from outlierlens.charts.base import CONFIG, SCHEMA, Chart, Spec, bar, begun, field, number, round_to, symmetric
from outlierlens.charts.palette import ALARM, DIM_COLOURS, INK, MUTED, SURFACE
from outlierlens.defined import Detectors
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.super_weights import SuperWeights

WIDTH, HEIGHT, ROW = 700, 230, 24
READ, WRITTEN, AFTER = "largest |input|", "largest |output|", "largest |output|, super weights removed"
LINES = {READ: (MUTED, "circle"), WRITTEN: (DIM_COLOURS[1], "square"), AFTER: (DIM_COLOURS[0], "diamond")}


def super_weights(found: Detectors, *, name: str = "super-weights") -> Chart:
    """Spikes by layer, and below them the tests where they were made.

    Raises:
        BadInput: no search was made.
    """
    searched = found.super_weights
    if searched is None:
        raise BadInput(
            f"{found.provenance.model}: no search for super weights was made: {found.of('super-weight').why_not}"
        )
    panels = [_spikes(searched)]
    if searched.trials:
        panels.append(_trials(searched))
    spec: Spec = {
        "$schema": SCHEMA, "description": reading(searched), "background": SURFACE, "config": CONFIG, "vconcat": panels,
        "spacing": 24, "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }  # fmt: skip
    rows = tuple(
        (one.name, round_to(one.value), round_to(one.change), round_to(one.low), round_to(one.high))
        for one in searched.trials
    ) or tuple(
        (one.place, round_to(one.weight), round_to(one.read), round_to(one.written), round_to(one.share))
        for one in searched.weights
    )
    columns = (
        ("weights", "value", "change", "95 % from", "to")
        if searched.trials
        else ("weight", "value", "input", "output", "share")
    )
    title = f"Single weights behind the largest activations: {found.provenance.model}"
    return Chart(name, title, reading(searched), spec, columns, rows, len(rows))


def reading(found: SuperWeights) -> str:
    """What one sees, in sentences."""
    if not found.weights:
        return (
            f"No super weight: {found.stopped}. The largest output of a last linear on the prompt is "
            f"{number(float(found.before.written.max()))}."
        )
    said = [
        f"{one.place}: weight {one.weight:.2f}, {'the largest' if one.rank == 1 else f'number {one.rank} by size'} of its "
        f"matrix, makes {one.share:.0%} of an output of {number(one.written)}; without it the layer's largest is "
        f"{number(one.remaining)}."
        for one in found.weights[:4]
    ]
    if found.trials:
        zeroed, restored = found.trial("zeroed"), found.trial("restored")
        said.append(
            f"Without {'it' if len(found.weights) == 1 else 'them'} the {found.task} goes from "
            f"{number(found.trial('intact').value)} to {number(zeroed.value)} {found.unit} "
            f"({interval_text(zeroed.low, zeroed.high)}), with the activation put back to {number(restored.value)}."
        )
    return " ".join(said)


def _spikes(found: SuperWeights) -> Spec:
    lines = {READ: found.before.read, WRITTEN: found.before.written, AFTER: found.after.written}
    if not found.weights:
        del lines[AFTER]
    rows = [
        {"layer": layer, "line": line, "value": round_to(float(value))}
        for line, values in lines.items()
        for layer, value in enumerate(values)
    ]
    places: dict[int, list[str]] = {}
    for one in found.weights:
        places.setdefault(one.layer, []).append(f"[{one.row}, {one.column}]")
    marks = [
        {"layer": layer, "value": round_to(float(found.before.written[layer])), "said": " ".join(said)}
        for layer, said in places.items()
    ]
    scale = symmetric(np.concatenate([*lines.values(), [found.spike]]))
    x = field("layer", "layer (blocks from 0)", "ordinal", axis={"labelAngle": 0, "grid": False})
    y = field("value", ["last linear of the MLP,", "one prompt"], scale=scale.scale, axis=scale.axis)
    tooltip = [field("layer", "layer", "ordinal"), field("line", "what", "nominal"), field("value", "value")]
    looks: dict[str, Any] = {
        channel: field("line", "", "nominal", scale={"domain": list(lines), "range": [LINES[line][place] for line in lines]},
                       legend={"title": None, "labelLimit": 320})
        for place, channel in enumerate(("color", "shape"))
    }  # fmt: skip
    return {
        "title": _title("What the last linear of each MLP reads and writes"),
        "width": WIDTH,
        "height": HEIGHT,
        "layer": [
            {"data": {"values": [{"value": found.spike}]}, "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
             "encoding": {"y": y}},
            {"data": {"values": rows}, "mark": {"type": "line", "strokeWidth": 1.8},
             "encoding": {"x": x, "y": y, "color": looks["color"]}},
            {"data": {"values": rows}, "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
             "encoding": {"x": x, "y": y, "tooltip": tooltip} | looks},
            {"data": {"values": marks}, "mark": {"type": "text", "dy": -12, "color": INK, "fontSize": 11.5},
             "encoding": {"x": x, "y": y, "text": field("said", "", "nominal")}},
        ],
    }  # fmt: skip


def _trials(found: SuperWeights) -> Spec:
    shown = [one for one in found.trials if one.kind != "intact" and math.isfinite(one.change)]
    rows = [
        {"name": one.name, "change": round_to(one.change), **bar(one.low, one.high),
         "alarm": one.kind in ("zeroed", "restored")}
        for one in shown
    ]  # fmt: skip
    scale = symmetric(np.array([abs(one.change) for one in shown]))
    ends = [value for one in shown for value in (one.change, one.low, one.high) if math.isfinite(value)]
    if scale.log:
        scale.scale["domain"] = [min(0.0, round_to(min(ends)) or 0.0), round_to(1.3 * max(ends))]
    unit = f"{found.task if 'change' in found.task else f'change of the {found.task}'}, {found.unit}"
    x = field("change", begun(unit), scale=scale.scale | {"zero": True}, axis={"tickCount": 7} | scale.axis)
    y = field(
        "name",
        "",
        "nominal",
        sort=None,
        scale={"domain": [one.name for one in shown]},
        axis={"labelLimit": 160, "grid": True},
    )
    colour = {"condition": {"test": "datum.alarm", "value": ALARM}, "value": INK}
    tooltip = [
        field("name", "weights", "nominal"),
        field("change", "change"),
        field("low", "95 % from"),
        field("high", "to"),
    ]
    return {
        "title": _title(f"What they are for: {found.n_texts} texts, 95 % intervals over texts"),
        "width": WIDTH,
        "height": ROW * len(shown),
        "layer": [
            {"data": {"values": [{"change": 0}]}, "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
             "encoding": {"x": x}},
            {"data": {"values": [row for row in rows if row["low"] is not None]}, "mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour}},
            {"data": {"values": rows}, "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip}},
        ],
    }  # fmt: skip


def _title(text: str) -> Spec:
    return {"text": text, "anchor": "start", "color": INK, "fontSize": 13}
