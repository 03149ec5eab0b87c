"""Marks, axes and sentences that the panels of `charts.emergence` share."""

import math
from collections.abc import Sequence

import numpy as np

from outlierlens.experiments.track.result import Track
from outlierlens.training.run_files import Curve
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    COLOURED,
    INK,
    MUTED,
    PLAIN_NUMBER,
    Spec,
    field,
    label,
    looks,
    round_numbers,
)
from outlierlens.view.charts.draw import MOST
from outlierlens.view.section import number

MAX_POINTS = 9000  # of the lines of ordinary dimensions, together
CURVE_POINTS = 300
CURVES = {"loss": "training loss", "eval_loss": "evaluation loss"}


def named_dims(track: Track) -> tuple[int, ...]:
    """Dimensions that get a name: those that pass at the end, the strongest first; else the first that are followed."""
    passing = tuple(one.dim for one in track.emergences if one.passes != "neither")
    return passing or track.followed[:COLOURED]


def step_axis(track: Track) -> Spec:
    last = max([int(track.steps[-1]), *(int(curve.steps[-1]) for curve in losses_of(track).values())])
    first = min([int(track.steps[0]), *(int(curve.steps[0]) for curve in losses_of(track).values())])
    axis = {"grid": False, "labelExpr": PLAIN_NUMBER, "tickCount": 6}
    return field("step", "training step", scale={"domain": [first, last], "nice": False}, axis=axis)


def curve_names(points: list[Spec], x: Spec, y: Spec) -> list[Spec]:
    """The names of the curves where the first has two thirds of its points, one above the other."""
    made: list[Spec] = []
    first = [point for point in points if point["curve"] == points[0]["curve"]]
    for place, curve in enumerate(dict.fromkeys(point["curve"] for point in points)):
        at = first[2 * len(first) // 3] | {"curve": curve}
        colour = MUTED if curve == CURVES["loss"] else INK
        made.append(draw.text([at], "curve", x=x, y=y, dy=-12 - 15 * place, align="left", color=colour))
    return made


def round_values(ends: Sequence[float | None]) -> list[float]:
    """1, 2 and 5 times powers of ten between two perplexities; only powers of ten where that would be many."""
    low, high = (end or 1.0 for end in ends)
    many = math.ceil(math.log10(high)) - math.floor(math.log10(low)) > 3
    return round_numbers(low, high, (1,) if many else (1, 2, 5))


def events(track: Track, named: Sequence[int], x: Spec, *, legend: bool = False) -> list[Spec]:
    """Upright lines where a dimension emerged, and where the loss starts its last fall and reaches its plateau.

    `legend`: the panel has one of lines by dimension, which these lines then share.
    """
    shown = looks(named, track.followed)
    emerged = [
        {"step": one.step, "name": label(one.dim), "what": f"dimension {one.dim} emerged"}
        for one in track.emergences
        if one.step is not None and one.dim in shown
    ]
    loss = [{"step": track.fall.step, "what": "the loss starts its last steep fall"}] if track.fall else []
    if track.plateau and track.plateau.settled:
        loss.append(
            {"step": track.plateau.step, "what": f"the loss is within {100 * track.plateau.share:g} % of its fall"}
        )
    tooltip = draw.columns(step="step", what="what:N")
    made: list[Spec] = []
    if loss:
        made.append(draw.rule(loss, x=x, tooltip=tooltip, color=ALARM, strokeDash=[2, 3], strokeWidth=1.4))
    if emerged:
        colour = draw.dim_strokes(shown) if legend else draw.dim_colour(shown, legend=False)
        made.append(draw.rule(emerged, x=x, color=colour, tooltip=tooltip, strokeDash=[6, 3], strokeWidth=1.4))
    return made


def losses_of(track: Track) -> dict[str, Curve]:
    """Training and evaluation loss; the latter from the logged perplexity where no loss was."""
    found = {name: track.curves[name] for name in CURVES if name in track.curves}
    if "eval_loss" not in found and "eval_perplexity" in track.curves:
        curve = track.curves["eval_perplexity"]
        positive = curve.values > 0
        found["eval_loss"] = Curve(curve.steps[positive], np.log(curve.values[positive]))
    return {name: curve for name, curve in found.items() if len(curve.steps)}


def thinned(curve: Curve) -> tuple[list[int], list[float]]:
    groups = np.array_split(np.arange(len(curve.steps)), min(CURVE_POINTS, len(curve.steps)))
    return [round(curve.steps[g].mean()) for g in groups], [float(curve.values[g].mean()) for g in groups]


def loss_words(track: Track) -> str:
    said = ""
    for name, curve in losses_of(track).items():
        said += f"The {CURVES[name]} goes from {number(curve.values[0])} to {number(curve.values[-1])} nats per token. "
    if track.fall:
        interval = f"95 % interval {track.fall.low:,} to {track.fall.high:,}"
        said += f"Its last steep fall starts at step {track.fall.step:,} ({interval}). "
    if track.plateau and track.plateau.settled:
        share = f"{100 * track.plateau.share:g} %"
        said += f"From step {track.plateau.step:,} on it is within {share} of its total fall of the final level. "
    elif track.plateau:
        said += "It is still falling in the last quarter of the run. "
    return said + emerged_words(track)


def emerged_words(track: Track) -> str:
    passing = [one for one in track.emergences if one.step is not None]
    if not passing:
        return "No dimension stands out for good in enough layers."
    said = "; ".join(f"{one.dim} ({one.passes}) from step {one.step:,}" for one in passing[:MOST])
    more = f"; and {len(passing) - MOST} more" if len(passing) > MOST else ""
    return f"Dashed lines are where dimensions stand out for good: {said}{more}."


def choice_words(track: Track, named: Sequence[int]) -> str:
    drawn = max(MAX_POINTS // max(len(track.steps), 1), 8)
    if min(len(track.dims) - len(named), drawn) + len(named) >= track.width:
        return ""
    return f" (an even choice by rank of the {track.width:,}; the band is the range of all)"


def named_words(track: Track, values: np.ndarray, named: Sequence[int], what: str) -> str:
    columns = [(dim, track.dims.index(dim)) for dim in named if dim in track.dims]
    if not columns:
        return "none is named."
    last = values[-1]
    said = ", ".join(f"{dim} at {number(float(last[column]))}" for dim, column in columns)
    others = np.delete(last, [column for _, column in columns])
    quarters = [number(float(np.quantile(others, q))) for q in (0.25, 0.75)] if len(others) else []
    middle = f"; the middle half of the others lies between {' and '.join(quarters)}" if quarters else ""
    inks = " or ink" if len(named) > COLOURED else ""
    return f"in colour{inks}, with the {what} at the last step: {said}{middle}."
