"""What a model says with dimensions off: which tokens, how frequent in a corpus, and which parts of speech.

predictions(found)                       # shifts, and the curves and parts of speech of `prediction_panels`, as one picture
prediction_shifts(found)                 # change of the predicted tokens' log frequency, beside random dimensions
"""

import math

from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.charts_panels import KINDS, OFF, parts_of_speech, prediction_curves
from outlierlens.experiments.predictions.result import MEASURES, Change, Predictions, Shift, prediction_rows
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, chart, field, round_to
from outlierlens.view.charts.forms import interval_dots, null_dots
from outlierlens.view.charts.palette import ALARM
from outlierlens.view.charts.panels import above, beside, composed, heading, inner
from outlierlens.view.words import number

SHORT = {"masked": "masked", "unmasked": "unmasked", "next": "next token"}
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
    parts += [beside([_panel(one, PANEL) for one in row], 60, bounds="flush") for row in grid]
    parts += [_panel(one, wide - 150) for one in below]
    what = draw.columns(
        input="input", intervention="off", measure="measure", intact="intact", ablated="ablated", change="change",
        **draw.ENDS, random_median="random median", p="p",
    )  # fmt: skip
    return composed(
        name=name,
        title=f"{found.provenance.model}: what it says with dimensions off",
        reading=" ".join(one.reading for one in (shifts, *(one for row in curves for one in row), *below)),
        body=above(parts, 34, apart=("color", "shape", "x", "y")),
        **what.table(prediction_rows(found)),
    )


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
        {"label": row["label"], "change": round_to(change), "spread": draw.spread(i)}
        for row, shift in zip(rows, found.shifts, strict=True)
        for i, change in enumerate(shift.changes[measure].random)
        if math.isfinite(change)
    ]
    drawn = [row for row in rows if row["change"] is not None]
    x: Spec = field("change", _axis_title(measure), scale={"zero": True, "padding": 20}, axis={"tickCount": 7})
    y = draw.strips("label", labels, inner=0.3)
    what = draw.columns(label="input and what is off:N", change="change", **draw.ENDS, random="random median", p="p")
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        null_dots(dots, x, y, size=40, opacity=0.55),
        *interval_dots(drawn, x, y, what, size=150),
        draw.text(drawn, "says", x=x, y=y, dy=-14, fontWeight=700, color=ALARM),
    ]
    return chart(
        name=name,
        title="Frequent tokens, or rare ones?"
        if measure == "log_frequency"
        else f"Change of {measure.replace('_', ' ')}",
        reading=_shifts_reading(found, measure),
        layers=layers,
        height=40 + ROW * len(rows),
        **what.table(rows),
    )


def _panel(one: Chart, width: int) -> Spec:
    return inner(one, width=width, title=heading(one.title, frame="group"))


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
