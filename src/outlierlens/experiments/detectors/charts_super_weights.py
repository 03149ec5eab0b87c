"""Super weights: where the MLP's last linear spikes, and what single weights are for: `super_weights(found)`."""

import math

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.result import Detectors
from outlierlens.experiments.detectors.super_weights import SuperWeights
from outlierlens.statistics.words import interval_text
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, field, round_to, symmetric
from outlierlens.view.charts.forms import interval_dots, lines
from outlierlens.view.charts.palette import ALARM, DIM_COLOURS, INK, MUTED
from outlierlens.view.charts.panels import above, composed, panel
from outlierlens.view.words import number

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
    return composed(
        name=name,
        title=f"Single weights behind the largest activations: {found.provenance.model}",
        reading=reading(searched),
        body=above(panels, 24, apart=("x", "y")),
        columns=columns,
        rows=rows,
    )


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
    drawn = {READ: found.before.read, WRITTEN: found.before.written, AFTER: found.after.written}
    if not found.weights:
        del drawn[AFTER]
    rows = [
        {"layer": layer, "line": line, "value": round_to(float(value))}
        for line, values in drawn.items()
        for layer, value in enumerate(values)
    ]
    places: dict[int, list[str]] = {}
    for one in found.weights:
        places.setdefault(one.layer, []).append(f"[{one.row}, {one.column}]")
    marks = [
        {"layer": layer, "value": round_to(float(found.before.written[layer])), "said": " ".join(said)}
        for layer, said in places.items()
    ]
    scale = symmetric(np.concatenate([*drawn.values(), [found.spike]]))
    x = field("layer", "layer (blocks from 0)", "ordinal", axis={"labelAngle": 0, "grid": False})
    y = field("value", ["last linear of the MLP,", "one prompt"], scale=scale.scale, axis=scale.axis)
    what = draw.columns(layer="layer:O", line="what:N", value="value")
    colour, shape = (draw.by("line", {line: LINES[line][i] for line in drawn}, labelLimit=320) for i in range(2))
    layers = [
        draw.level(found.spike, y=y, strokeDash=draw.DASHED),
        *lines(rows, x, y, (colour, shape), what, width=1.8, size=45),
        draw.text(marks, "said", x=x, y=y, dy=-12, color=INK, fontSize=11.5),
    ]
    return panel(layers, WIDTH, HEIGHT, "What the last linear of each MLP reads and writes")


def _trials(found: SuperWeights) -> Spec:
    shown = [one for one in found.trials if one.kind != "intact" and math.isfinite(one.change)]
    rows = [
        {"name": one.name, "change": round_to(one.change), "alarm": one.kind in ("zeroed", "restored")}
        | bar(one.low, one.high)
        for one in shown
    ]
    scale = symmetric(np.array([abs(one.change) for one in shown]))
    ends = [value for one in shown for value in (one.change, one.low, one.high) if math.isfinite(value)]
    if scale.log:
        scale.scale["domain"] = [min(0.0, round_to(min(ends)) or 0.0), round_to(1.3 * max(ends))]
    unit = f"{found.task if 'change' in found.task else f'change of the {found.task}'}, {found.unit}"
    x = field("change", begun(unit), scale=scale.scale | {"zero": True}, axis={"tickCount": 7} | scale.axis)
    names = {"domain": [one.name for one in shown]}
    y = field("name", "", "nominal", sort=None, scale=names, axis={"labelLimit": 160, "grid": True})
    colour = {"condition": {"test": "datum.alarm", "value": ALARM}, "value": INK}
    what = draw.columns(name="weights:N", change="change", **draw.ENDS)
    layers = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        *interval_dots(rows, x, y, what, color=colour, shape="circle", size=70),
    ]
    title = f"What they are for: {found.n_texts} texts, 95 % intervals over texts"
    return panel(layers, WIDTH, ROW * len(shown), title)
