"""What a model says with dimensions off: which tokens, and how frequent in a corpus.

predictions(found)                       # shifts and curves as one picture
prediction_shifts(found)                 # change of the predicted tokens' log frequency, beside random dimensions

How predictions spread over tokens, intact and with dimensions off.

prediction_curves(found, "unmasked")                 # share of predictions by rank of the token among the predicted
prediction_curves(found, "unmasked", by="corpus")    # share of predictions that the most frequent tokens of the corpus make up
"""

import math
from collections.abc import Iterable

from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.result import (
    INPUTS,
    MEASURES,
    Curve,
    MeasureChange,
    Predictions,
    Shift,
    prediction_rows,
)
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, chart, field, log_ticks, round_to
from outlierlens.view.charts.forms import interval_dots, null_dots
from outlierlens.view.charts.palette import ALARM, DIM_COLOURS, FAINT, INK, MUTED, SHAPES
from outlierlens.view.charts.panels import above, beside, composed, heading, inner
from outlierlens.view.words import number

OFF = {"layers": "all layers", "last_hidden": "last hidden state", "logits": "logits"}
CURVE_HEIGHT = 300
KINDS = {"rank": "rank and frequency", "corpus": "the corpus' frequent tokens"}
SHORT = {"masked": "masked", "unmasked": "unmasked", "next": "next token"}
ROW = 46  # pixels of a row of the chart of shifts
PANEL = 370  # pixels of a panel of two side by side
HEADINGS = {"log_frequency": "ln frequency of the predicted token", "expected_log_frequency": "expected ln frequency"}


def prediction_curves(found: Predictions, input: str, by: str = "rank", *, name: str = "prediction-curves") -> Chart:
    """Intact, with the dimensions off, with random ones off, and the corpus: a line each over ranks of tokens.

    By "rank": the share of predictions of the token of that rank, by how often it is predicted. By "corpus": the share of
    predictions that are among so many of the corpus' most frequent tokens.

    Raises:
        BadInput: the result has no such input, or no such kind of curve.
    """
    heard = found.of(input)
    if by not in KINDS:
        raise BadInput(f"curves are drawn by {' or '.join(KINDS)}, not by {by!r}")
    curves: list[tuple[str, str, Curve]] = [
        ("corpus", "corpus", found.corpus),
        ("intact", "intact", heard.intact.curve),
    ]
    curves += [(OFF[shift.intervention], OFF[shift.intervention], shift.chosen.curve) for shift in heard.shifts]
    random = [
        ("random", f"{shift.intervention} {one.label}", one.curve) for shift in heard.shifts for one in shift.random
    ]
    named, behind = _points(curves, by), _points(random, by)
    own = [point for point in named if point["kind"] != "corpus"]
    kinds = list(dict.fromkeys([kind for kind, _, _ in curves] + [kind for kind, _, _ in random]))
    looks = {"corpus": (MUTED, "stroke"), "intact": (INK, "circle"), "random": (FAINT, "stroke")}
    looks |= dict(zip(OFF.values(), zip(DIM_COLOURS, SHAPES, strict=True), strict=False))
    colour, shape = (draw.by("kind", {kind: looks[kind][i] for kind in kinds}, columns=3) for i in range(2))
    x, y = _axes(named, own, by)
    line: Spec = {"x": x, "y": y, "detail": draw.nominal("line"), "clip": True}
    dash = {"condition": {"test": "datum.kind === 'corpus'", "value": [5, 4]}, "value": [1, 0]}
    tooltip = draw.columns(kind="off:N", rank="rank", share=field("share", "share", format=".2%"))
    layers: list[Spec] = [
        draw.line(behind, **line, color=colour, strokeWidth=1, opacity=0.5),
        draw.line(named, **line, color=colour, strokeDash=dash, strokeWidth=2),
        draw.points(own, **line, color=colour, shape=shape, tooltip=tooltip, size=35),
    ]
    return chart(
        name=name,
        title=f"{begun(KINDS[by])}: {INPUTS[input]}",
        reading=_curves_reading(found, input, by),
        layers=layers,
        height=CURVE_HEIGHT,
        columns=("line", "rank", "share of predictions"),
        rows=([point["line"], point["rank"], point["share"]] for point in named),
    )


def _points(lines: Iterable[tuple[str, str, Curve]], by: str) -> list[Spec]:
    return [
        {"kind": kind, "line": line, "rank": int(rank), "share": round_to(float(share))}
        for kind, line, curve in lines
        for rank, share in zip(curve.ranks, curve.said if by == "rank" else curve.covered, strict=True)
        if share > 0
    ]


def _axes(named: list[Spec], own: list[Spec], by: str) -> tuple[Spec, Spec]:
    """Rank and share; the corpus has more tokens than are predicted, and its tail is not drawn by rank."""
    last = max(point["rank"] for point in (own if by == "rank" else named))
    scale = {"type": "log", "domain": [1, last * 1.3], "nice": False}
    title = "rank of the token among the predicted" if by == "rank" else "most frequent tokens of the corpus"
    x = field("rank", title, scale=scale, axis=_log_axis(1, last))
    if by == "corpus":
        share = {"domain": [0, 1], "nice": False}
        return x, field("share", "share of predictions among them", scale=share, axis={"format": "%", "tickCount": 6})
    low, high = min(point["share"] for point in own) / 1.5, max(point["share"] for point in named) * 1.3
    scale = {"type": "log", "domain": [low, high], "nice": False}
    return x, field("share", "share of predictions", scale=scale, axis=_log_axis(low, high))


def _log_axis(low: float, high: float) -> Spec:
    return {
        "values": [tick for tick in log_ticks(low, high) if low <= tick <= high * 1.3],
        "format": "~g",
        "grid": True,
    }


def _curves_reading(found: Predictions, input: str, by: str) -> str:
    heard = found.of(input)
    said = [("intact", heard.intact), *((OFF[shift.intervention], shift.chosen) for shift in heard.shifts)]
    if by == "rank":
        parts = [
            f"{name} {one.n_types:,} different tokens, the commonest {one.curve.said[0]:.1%}" for name, one in said
        ]
        return (
            f"Tokens by how often they are predicted ({INPUTS[input]}, {heard.n_positions:,} predictions), both axes "
            f"logarithmic; dashed: the corpus' own tokens. A line that starts higher and ends sooner says fewer tokens more "
            f"often. {'; '.join(parts)}."
        )
    place = int(abs(found.corpus.covered - 0.5).argmin())
    parts = [f"{name} {one.curve.covered[place]:.0%}" for name, one in said]
    return (
        f"The share of predictions ({INPUTS[input]}) that are among the corpus' most frequent tokens; dashed: of the corpus "
        f"itself. A higher line says frequent tokens more. Of the {int(found.corpus.ranks[place]):,} most frequent, which are "
        f"{found.corpus.covered[place]:.0%} of the corpus: {', '.join(parts)}."
    )


def predictions(found: Predictions, *, name: str = "predictions") -> Chart:
    """Shifts on top; below them both curves of every input."""
    shifts = prediction_shifts(found)
    curves = [[prediction_curves(found, heard.input, by) for heard in found.heard] for by in KINDS]
    # One input: its curves side by side. Two: a column each.
    grid = curves if len(found.heard) > 1 else [[row[0] for row in curves]]
    wide = PANEL * 2 + 60
    parts: list[Spec] = [_panel(shifts, wide - 150)]
    parts += [beside([_panel(one, PANEL) for one in row], 60, bounds="flush") for row in grid]
    what = draw.columns(
        input="input", intervention="off", measure="measure", intact="intact", ablated="ablated", change="change",
        **draw.ENDS, random_median="random median", p="p",
    )  # fmt: skip
    return composed(
        name=name,
        title=f"{found.provenance.model}: what it says with dimensions off",
        reading=" ".join(one.reading for one in (shifts, *(one for row in curves for one in row))),
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


def _row(shift: Shift, change: MeasureChange) -> Spec:
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
