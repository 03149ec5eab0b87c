"""What a report says, by rule from its numbers: `finding(data)`, in sentences.

The rules are plain: nothing found is said first and plainly; a set that does no more than random sets is called
harmless; an interval that holds zero is no damage; a p-value that random sets cannot reach is not claimed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.ablation.study import Control
from outlierlens.analyses.ablate import Ablation
from outlierlens.analyses.trace import Trace
from outlierlens.detection.observe.result import StackObservation
from outlierlens.detection.rules import Outlier
from outlierlens.detection.scan.result import StackScan
from outlierlens.experiments.sweep.view import sentences
from outlierlens.experiments.track.view import track_sentences
from outlierlens.report.result import ReportData
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.means import no_interval
from outlierlens.view.charts.base import place
from outlierlens.view.section import TASKS, factor, listed, number, these

SMALL = 0.05  # nats per token (a factor of 1.05 in perplexity), or cosine distance
CLOSE = 0.8  # matched weights below this share of the wanted magnitude are no match
MODES = {
    "zeroed_weights": "Switching {them} off",
    "zeroed_norms": "Zeroing {them} in every norm",
    "edited_hidden zero": "Setting {values} to zero",
    "edited_hidden mean": "Setting {values} to their mean",
    "edited_hidden scale": "Scaling {values}",
    "removed_writes with embeddings": "Removing all that writes to {them}, embeddings too,",
    "edited_hidden resample": "Resampling {values}",
    "removed_writes": "Removing all that writes to {them}",
}


def finding(data: ReportData) -> tuple[str, ...]:
    """The result in sentences, most important first; the first one stands alone."""
    said = [_found(data)]
    said += list(_doubts(data))
    if data.damages:
        said += [sentence for damage in data.damages for sentence in _damage(data, damage)]
    elif significant_dims(data) and not data.sweeps:
        said.append("What switching them off does was not measured.")
    said += [sentence for sweep in data.sweeps for sentence in sentences(sweep)[:2]]
    said += [sentence for track in data.tracks for sentence in track_sentences(track)]
    said += list(_activations(data))
    return tuple(said)


def counted(stack: StackScan, rule: str) -> tuple[Outlier, ...]:
    """The outliers that count as found: all of a thresholded rule, of a rank rule those that chance does not explain."""
    return tuple(o for o in stack.outliers if rule != "luo" or o.p_holm < SIGNIFICANT)


def significant_dims(data: ReportData) -> set[tuple[str, int]]:
    """Stream and dimension of everything found in weights."""
    return {(s.stack, o.dim) for s in data.scan.stacks for o in counted(s, data.scan.rule.name)}


def _found(data: ReportData) -> str:
    stacks, rule = data.scan.stacks, data.scan.rule
    lists = [sorted(o.dim for o in counted(stack, rule.name)) for stack in stacks]
    if not any(lists):
        return f"{data.model} has no outlier dimension in its weights: {_asked(data)}."
    if len(stacks) == 1:
        return f"{data.model} has {_dimensions(lists[0])}."
    sites = len({stack.stack for stack in stacks}) < len(stacks)
    parts = [
        f"the {stack.stack}{f' ({stack.site})' if sites else ''} has {_dimensions(dims)}"
        for stack, dims in zip(stacks, lists, strict=True)
    ]
    return f"{data.model}: {'; '.join(parts)}."


def _asked(data: ReportData) -> str:
    rule, stack = data.scan.rule, data.scan.stacks[0]
    used = rule if rule.name == "puccetti" else rule.at(stack.n_sigma)
    return f"none {used.asks(stack.n_layers, stack.counted, has_bias=bool(stack.z_bias.size))}"


def _dimensions(dims: Sequence[int]) -> str:
    if not dims:
        return "none"
    return f"{len(dims)} outlier dimension{'s' if len(dims) > 1 else ''}: {listed(dims)}"


def _doubts(data: ReportData) -> Iterator[str]:
    for stack in data.scan.stacks:
        if stack.outliers and stack.n_sigma < data.scan.rule.n_sigma:
            yield (
                f"They pass only at a relaxed threshold of {stack.threshold.deviations}; "
                f"at {data.scan.rule.n_sigma:g} there is none."
            )
        weak = [o for o in counted(stack, data.scan.rule.name) if o.p_holm >= SIGNIFICANT]
        if weak:
            yield (
                f"Chance is not excluded for {listed(sorted(o.dim for o in weak))}: "
                f"corrected p up to {max(o.p_holm for o in weak):.2g}."
            )


def random_control(damage: Ablation) -> Control | None:
    """The random sets a damage is judged against."""
    return damage.family("random")


def verdict(damage: Ablation) -> str:
    """ "damaging", "harmless" or "unclear" (no interval, no random sets to compare with, or too few for p <= 0.05).

    Harmless: the 95 % interval of the change holds zero or lies below it, or the change is no more than the 95th
    percentile of the random sets'. Damaging: neither, and rank p <= 0.05.
    """
    control = random_control(damage)
    if _no_interval(damage):
        return "unclear"
    if damage.chosen.change.low <= 0:
        return "harmless"
    if control is None or not control.n:
        return "unclear"
    if damage.chosen.change.value <= control.percentile_95:
        return "harmless"
    return "damaging" if control.p is not None and control.p <= SIGNIFICANT + 1e-12 else "unclear"


def _no_interval(damage: Ablation) -> bool:
    """Whether the change has a value and no interval."""
    return math.isfinite(damage.chosen.change.value) and math.isnan(damage.chosen.change.low)


def _damage(data: ReportData, damage: Ablation) -> Iterator[str]:
    control, found = random_control(damage), verdict(damage)
    dims = sorted(damage.dims)
    all_found = sorted(dim for stack, dim in significant_dims(data) if stack == damage.about.stack)
    them, values = these(dims), f"the hidden values of {these(dims)}"
    if dims == all_found:
        them, values = ("it", "its hidden values") if len(dims) == 1 else ("them", "their hidden values")
    mode = damage.chosen.mode.partition(" × ")[0]  # a scale's factor stands behind its name
    act = MODES.get(mode, MODES["zeroed_weights"]).format(them=them, values=values)
    if found == "harmless":
        yield f"{act} does no more than chance: {_effect(damage)}{_beside(damage, control)}."
    else:
        yield f"{act} {_verb(damage)}{_beside(damage, control)}."
        if abs(damage.chosen.change.value) < SMALL:
            yield f"The change is small all the same: {damage.chosen.change.value:+.3g} {damage.about.of_change}."
    if _no_interval(damage):
        yield f"There is no verdict, for {no_interval(damage.about.n_texts)}."
    elif found == "unclear" and not math.isnan(damage.chosen.change.value):
        n = control.n if control else 0
        yield f"With {n} random sets this cannot be told from chance at p ≤ {SIGNIFICANT:g}."
    yield from _matched(damage, found)


def _verb(damage: Ablation) -> str:
    chosen, intact, change = damage.chosen, damage.intact.perplexity, damage.chosen.change.value
    if not math.isfinite(change):
        return f"makes the {damage.about.measured} infinite or undefined"
    if damage.about.task in TASKS and intact is not None:
        verb = "multiplies" if change >= 0 else "changes"
        after = f"{number(intact)} → {number(chosen.perplexity or math.inf)}"
        return f"{verb} {TASKS[damage.about.task]} by {factor(change)} ({after})"
    if damage.about.metric:
        before, after = (number(1 - condition.value.value) for condition in (damage.intact, chosen))
        return f"takes the {damage.about.measured} from {before} to {after}"
    return f"moves the model's outputs by a {damage.about.of_change} of {change:.3g}"


def _effect(damage: Ablation) -> str:
    if damage.about.task in TASKS:
        return f"{TASKS[damage.about.task]} ×{factor(damage.chosen.change.value)}"
    return f"{damage.about.of_change} {damage.chosen.change.value:.3g}"


def _beside(damage: Ablation, control: Control | None) -> str:
    if control is None or not control.n:
        return ""
    n, size = control.n, len(damage.dims)
    what = sets_of(size)
    if damage.about.task in TASKS:
        middle = f"×{factor(control.median)} in the median, ×{factor(control.percentile_95)} at the 95th percentile"
    else:
        middle = f"{control.median:.2g} in the median, {control.percentile_95:.2g} at the 95th percentile"
    return f"; {n} random {what}: {middle}" + ("" if control.p is None else f" (rank p = {control.p:.2g})")


def sets_of(size: int) -> str:
    """What sets of that many dimensions are called."""
    return {1: "single dimensions", 2: "pairs", 3: "triples"}.get(size, f"sets of {size}")


def _matched(damage: Ablation, found: str) -> Iterator[str]:
    control = damage.family("matched")
    if control is None or found != "damaging":
        return
    n = control.n
    effect = (
        f"×{factor(control.median)}" if damage.about.task in TASKS else f"{control.median:.2g} {damage.about.of_change}"
    ) + " in the median"
    worst = max(control.sets)
    if control.closeness is not None and control.closeness < CLOSE:
        yield (
            f"No weights elsewhere are as extreme: the nearest in each layer reach {control.closeness:.0%} of these "
            f"({n} sets of them: {effect}), so whether size alone explains the damage stays open."
        )
    elif damage.chosen.change.value > worst:
        yield (
            f"All {n} sets of weights as large at other positions in each layer do less ({effect}): "
            "size alone does not explain the damage."
        )
    else:
        yield (
            f"Of {n} sets of weights as large at other positions in each layer some do as much ({effect}): "
            "size alone may explain the damage."
        )


def _activations(data: ReportData) -> Iterator[str]:
    if data.observation is None:
        return
    for stack in data.observation.stacks:
        peak = largest(stack)
        massive = {o.dim for o in stack.outliers if o.rule == "massive"}
        if peak is None or peak.dim not in massive:
            continue
        where = "" if len(data.observation.stacks) == 1 else f" of the {stack.stack}"
        at = "first token" if peak.position == 0 else f"token “{peak.token}” at position {peak.position}"
        known = (stack.stack, peak.dim) in significant_dims(data)
        rule = "" if known else "; the rule on weights does not name this dimension"
        traced = any((one.about.stack, one.dim) == (stack.stack, peak.dim) for one in data.joined.of(Trace))
        see = f" “The life of a dimension: {peak.dim}” below says who writes and who reads it." if traced else ""
        yield (
            f"Running{where or ' it'} shows massive activations: |h| reaches {number(peak.value)} in dimension {peak.dim} "
            f"after {place(peak.layer)}, at the {at}, {number(peak.ratio)} × the layer's median{rule}.{see}"
        )


@dataclass(frozen=True)
class Peak:
    """The largest |h| of a stream and where it stands; `ratio` is to the layer's median |h|."""

    dim: int
    layer: str
    value: float
    ratio: float
    token: str
    position: int


def largest(stack: StackObservation) -> Peak | None:
    """The largest |h| over layers and dimensions, None where nothing was measured."""
    statistics = stack.view("all")
    values = np.asarray(statistics.abs_max, dtype=float)
    if not values.size or not np.isfinite(values).any():
        return None
    row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    median = float(statistics.median_abs[row])
    return Peak(
        dim=stack.dims[column],
        layer=stack.layers[row],
        value=float(values[row, column]),
        ratio=float(values[row, column]) / median if median > 0 else math.inf,
        token=statistics.abs_max_token[row][column],
        position=int(statistics.abs_max_position[row, column]),
    )
