"""What a model says with dimensions off: which tokens, how frequent in a corpus, and which parts of speech.

predictions(found)                       # shifts, and the curves and parts of speech of `prediction_panels`, as one picture
prediction_shifts(found)                 # change of the predicted tokens' log frequency, beside random dimensions
"""

import math

from outlierlens.charts.base import CONFIG, SCHEMA, TABLE_ROWS, Chart, Spec, bar, chart, field, number, round_to
from outlierlens.charts.palette import ALARM, INK, MUTED, SURFACE
from outlierlens.charts.prediction_panels import KINDS, OFF, parts_of_speech, prediction_curves
from outlierlens.errors import BadInput
from outlierlens.predicted import MEASURES, Change, Predictions, Shift, prediction_rows

SHORT = {"masked": "masked", "unmasked": "unmasked", "next": "next token"}
GOLDEN = 0.6180339887  # multiples of it, modulo 1, spread dots evenly whatever their number
ROW = 46  # pixels of a row of the chart of shifts
PANEL = 370  # pixels of a panel of two side by side
HEADINGS = {"log_frequency": "ln frequency of the predicted token", "expected_log_frequency": "expected ln frequency"}


def predictions(found: Predictions, *, name: str = "predictions") -> Chart:
    """Shifts on top; below them both curves of every input, and parts of speech where they were tagged."""
    shifts = prediction_shifts(found)
    curves = [[prediction_curves(found, heard.input, by) for heard in found.heard] for by in KINDS]
    # One input: its curves side by side. Two: a column each.
    grid = curves if len(found.heard) > 1 else [[row[0] for row in curves]]
    below = [parts_of_speech(found)] if found.speech else []
    wide = PANEL * 2 + 60
    parts: list[Spec] = [_panel(shifts, wide - 150)]
    parts += [{"hconcat": [_panel(one, PANEL) for one in row], "spacing": 60, "bounds": "flush"} for row in grid]
    parts += [_panel(one, wide - 150) for one in below]
    reading = " ".join(one.reading for one in (shifts, *(one for row in curves for one in row), *below))
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": parts,
        "spacing": 34,
        "resolve": {"scale": {"color": "independent", "shape": "independent", "x": "independent", "y": "independent"}},
    }
    columns = ("input", "off", "measure", "intact", "ablated", "change", "95 % from", "to", "random median", "p")
    keys = ("input", "intervention", "measure", "intact", "ablated", "change", "low", "high", "random_median", "p")
    rows = tuple(
        tuple(round_to(row[key]) if isinstance(row[key], float) else row[key] for key in keys)
        for row in prediction_rows(found)
    )
    title = f"{found.provenance.model}: what it says with dimensions off"
    return Chart(name, title, reading, spec, columns, rows[:TABLE_ROWS], len(rows))


def prediction_shifts(found: Predictions, measure: str = "log_frequency", *, name: str = "prediction-shifts") -> Chart:
    """Change of `measure`, a row an intervention and input: the chosen dimensions with their interval, random sets as dots.

    Raises:
        BadInput: no such measure.
    """
    if measure not in MEASURES:
        raise BadInput(f"unknown measure {measure!r}; measures are {', '.join(MEASURES)}")
    rows = [_row(shift, shift.changes[measure]) for shift in found.shifts]
    labels = [row["label"] for row in rows]
    dots = [
        {"label": row["label"], "change": round_to(change), "spread": round((0.5 + i * GOLDEN) % 1, 3)}
        for row, shift in zip(rows, found.shifts, strict=True)
        for i, change in enumerate(shift.changes[measure].random)
        if math.isfinite(change)
    ]
    drawn = [row for row in rows if row["change"] is not None]
    x: Spec = field("change", _axis_title(measure), scale={"zero": True, "padding": 20}, axis={"tickCount": 7})
    y: Spec = {
        "field": "label", "type": "nominal", "title": None, "sort": labels,
        "axis": {"labelLimit": 240, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
        "scale": {"domain": labels, "paddingInner": 0.3, "paddingOuter": 0.2},
    }  # fmt: skip
    jitter = {"field": "spread", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": None, "legend": None}
    tooltip = [
        field("label", "off", "nominal"),
        field("change", "change"),
        field("low", "95 % from"),
        field("high", "to"),
        field("p", "rank p"),
    ]
    layers: list[Spec] = [
        {
            "data": {"values": [{"change": 0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": x},
        },
        {
            "data": {"values": dots},
            "mark": {"type": "point", "shape": "circle", "size": 40, "color": MUTED, "filled": True, "opacity": 0.55},
            "encoding": {"x": x, "y": y, "yOffset": jitter},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "rule", "color": ALARM, "strokeWidth": 2},
            "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "tooltip": tooltip},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "point", "shape": "diamond", "size": 150, "color": ALARM, "filled": True, "opacity": 1},
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "text", "dy": -14, "fontWeight": 700, "color": ALARM},
            "encoding": {"x": x, "y": y, "text": {"field": "says", "type": "nominal"}},
        },
    ]
    return chart(
        name=name,
        title="Frequent tokens, or rare ones?"
        if measure == "log_frequency"
        else f"Change of {measure.replace('_', ' ')}",
        reading=_shifts_reading(found, measure),
        layers=layers,
        height=40 + ROW * len(rows),
        columns=("input and what is off", "change", "95 % from", "to", "random median", "p"),
        rows=([row[key] for key in ("label", "change", "low", "high", "random", "p")] for row in rows),
    )


def _panel(one: Chart, width: int) -> Spec:
    title = {"text": one.title, "color": INK, "fontSize": 13, "anchor": "start", "frame": "group"}
    return {"layer": one.spec["layer"], "width": width, "height": one.spec["height"], "title": title}


def _row(shift: Shift, change: Change) -> Spec:
    return {
        "label": f"{SHORT[shift.input]}: {OFF[shift.intervention]}",
        "change": round_to(change.change),
        **bar(change.low, change.high),
        "random": round_to(change.random_median),
        "p": None if change.p is None else round_to(change.p),
        "says": f"{'+' if change.change > 0 else '−' if change.change < 0 else ''}{number(abs(change.change))}",
    }


def _axis_title(measure: str) -> str | list[str]:
    if measure in HEADINGS:
        return f"change of the {HEADINGS[measure]} (nats); right of 0: more frequent tokens"
    return f"change of {measure.replace('_', ' ')}"


def _shifts_reading(found: Predictions, measure: str) -> str:
    text = (
        f"Change of the {HEADINGS.get(measure, measure.replace('_', ' '))}, ablated less intact; the bar "
        f"is the 95 % interval over texts, grey dots are random sets of as many dimensions. "
    )
    for shift in found.shifts:
        change = shift.changes[measure]
        if math.isfinite(change.change):
            text += f"{_row(shift, change)['label'].capitalize()} {change.change:+.2f}"
            text += f" ({found.interval(shift, measure)})"
            text += f", random {change.random_median:+.2f}. " if change.random else ". "
    return text.strip()
