"""The run: each treatment of the found dimensions, and of random ones, on every text.

    found = beyond_zero(load_model("smollm2-135m"), read_texts("excerpt"), [507])
    found.treated[0].verdict                     # "fixed", "by position", "information", …

The loop is in `beyond_zero`; means are those of other texts than the ones they are put into, part by part (`_Parts`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.bench import AblationBench, Progress, TextValues
from outlierlens.ablation.controls import Plan, plan_key, random_sets, relabelled
from outlierlens.ablation.position_means import PositionSums, collected
from outlierlens.ablation.switches import Dims, EditSettings, edited_hidden, plan_dims
from outlierlens.data.texts import Data, Texts
from outlierlens.detection.observe.measure import ObserveOptions
from outlierlens.detection.targets import Named, active_dims, named_dims
from outlierlens.errors import BadInput
from outlierlens.experiments.beyond_zero.options import Asked, BeyondOptions, How, treatments
from outlierlens.experiments.beyond_zero.result import BeyondZero, Treated, Treatment
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND, Find
from outlierlens.statistics.means import mean_interval, ratio_interval
from outlierlens.statistics.p_values import rank_p
from outlierlens.tasks.base import Task, weighted_mean
from outlierlens.tasks.choice import make_task
from outlierlens.tasks.options import OF_TEXTS

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack
    from outlierlens.session import Session

MOST = 4  # dimensions that are taken of those a rule on activations names, the strongest first
FEW_MEANS = 0.05  # share of tokens without a mean of their position, above which it is said


def beyond_zero(
    loaded: LoadedModel,
    texts: Data,
    dims: Dims | Find = FIND,
    options: BeyondOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Path | None = None,
) -> BeyondZero:
    """Measure `loaded` intact and with `dims` zeroed, set to means, shuffled, scaled and restored, beside random dimensions.

    `dims` is a sequence, or {layer: dims} where layers differ; "find" is what `options.find` names. With `rows`, every finished
    condition is appended to that file, and conditions found there are not measured again.

    Raises:
        BadInput: unknown dimension, layer or stream; fewer than two usable texts; a metric that is no mean over texts.
    """
    options = options or BeyondOptions()
    report = progress or (lambda *_: None)
    stack = loaded.stack(options.stack)
    width = stream_width(loaded.model, stack)
    named, plan = _plan(loaded, texts, (stack, width), dims, options)
    alone = [_only(plan, dim) for dim in named.dims] if options.each and len(named.dims) > 1 else []
    plans = [plan, *alone]
    random = [_random(_all(one), width, options) for one in plans]
    columns = sorted({dim for one in plans for dim in _all(one)} | {d for sets in random for s in sets for d in s})
    hows = treatments(options)
    everything = [*plans, *(relabelled(one, dims) for one, sets in zip(plans, random, strict=True) for dims in sets)]
    total = len(hows) * len({plan_key(one) for one in everything})
    report("intact", 0, total)
    parts = _Parts(loaded, texts, stack, options, columns)
    bench = parts.bench
    more = {"folds": options.n_folds, "seed": options.seed, "what": "beyond zero, scaled once"}
    with bench.resumed(rows, bench.identity(texts, options.task, stack=stack.name, **more)):
        bench.announce(total, inputs=texts.plural)
        treated = []
        for one, drawn in zip(plans, random, strict=True):
            controls = [relabelled(one, chosen) for chosen in drawn]
            done: list[Treatment] = []
            zero: np.ndarray | None = None
            for how in hows:
                report(how.name, len(bench.known), total)
                now = parts.measure(how, one)
                others = []
                for control in controls:
                    report(f"{how.name}, random", len(bench.known), total)
                    others.append(parts.measure(how, control).per_text)
                zero = now.per_text if zero is None else zero
                done.append(_treatment(how, bench, now, zero, others))
            layers_differ = len(set(one.values())) > 1
            treated.append(Treated(_all(one), one if layers_differ else {}, tuple(done), drawn))
    report("done", total, total)
    return BeyondZero(
        provenance=loaded.provenance(seed=options.seed, digest=bench.fingerprint),
        data=texts.source,
        data_digest=texts.digest,
        task=bench.task.name,
        unit=bench.task.unit,
        stack=stack.name,
        layers=tuple(sorted(plan)),
        max_length=row_limit(loaded, texts, options.task.max_length),
        n_tokens=parts.n_tokens,
        n_folds=len(parts.folds),
        no_mean=parts.no_mean,
        named_by=named.by,
        intact=weighted_mean(bench.intact.per_text, bench.weights),
        intact_per_text=tuple(bench.intact.per_text.tolist()),
        texts=parts.numbers,
        weights=tuple(bench.weights.tolist()),
        treated=tuple(treated),
        inputs=texts.plural,
        notes=(*loaded.notes, *named.notes, *parts.notes),
    )


def run(session: "Session", asked: Asked) -> BeyondZero:
    """What the command finds."""
    reading, options = session.task_reading, asked.options
    if reading.is_labelled:
        raise BadInput(f"--task is {reading.task!r}; use {', '.join(OF_TEXTS)}")
    task = reading.options(
        max_length=asked.max_length,
        batch_size=options.task.batch_size,
        mask_fraction=options.task.mask_fraction,
        seed=options.seed,
    )
    rows, texts = session.rows.rows, reading.read(offline=session.load.offline)
    options = replace(options, task=task)
    return beyond_zero(session.loaded, texts, asked.dims, options, progress=session.progress, rows=rows)


@dataclass(frozen=True)
class _Fold:
    """One part of the texts: its task, and the means of the other parts."""

    task: Task
    settings: EditSettings


class _Parts:
    """The texts in parts, each with the means of the others; the values of all parts are measured on one `bench`."""

    def __init__(
        self, loaded: LoadedModel, texts: Data, stack: "BoundStack", options: BeyondOptions, columns: Sequence[int]
    ):
        self.loaded, self.stack, self.options = loaded, stack, options
        tasks, self.numbers = self._tasks(texts)
        sums: list[PositionSums] = []
        values, weights = [], []
        for task in tasks:
            with collected(loaded, stack, columns) as collecting:
                now, counted = task.per_text()
            sums.append(collecting.finish())
            values.append(now)
            weights.append(counted)
        self.bench = AblationBench(loaded, tasks[0], scores=(np.concatenate(values), np.concatenate(weights)))
        self.n_tokens = sum(task.n_tokens for task in tasks)
        self.notes: list[str] = []
        self.folds = self._folds(tasks, sums)
        self.notes += dict.fromkeys(note for task in tasks for note in task.notes)

    def _tasks(self, texts: Data) -> tuple[list[Task], tuple[int, ...]]:
        """The task of each part that has a usable text, and the texts' numbers in the order of the tasks' values."""
        options = self.options.task
        if options.name == "auto" and self.loaded.head == "none" and isinstance(texts, Texts):
            options = replace(options, name="sentence change")
        # Shuffling draws from all tokens, and the mean of a position needs it to be where the model has it.
        options = replace(options, every_token=True)
        n_folds = min(self.options.n_folds, len(texts))
        tasks: list[Task] = []
        numbers: list[int] = []
        refused: BadInput | None = None
        for fold in range(n_folds):
            mine = range(fold, len(texts), n_folds)
            try:
                task = make_task(self.loaded, texts.some(mine), options)
            except BadInput as error:  # no text of this part has a token that counts
                refused = error
                continue
            if task.statistic is not None:
                raise BadInput(
                    f"{task.metric} is no mean over texts, so what a treatment recovers is undefined; measure the loss "
                    f"(TaskOptions(measure='loss'))"
                )
            tasks.append(task)
            numbers += [mine[place] for place in getattr(task, "texts", range(task.n_texts))]
        if len(tasks) < 2:
            raise refused or BadInput(f"{len(texts)} {texts.plural}: the mean of others needs at least two; give more")
        return tasks, tuple(numbers)

    def _folds(self, tasks: list[Task], sums: list[PositionSums]) -> list[_Fold]:
        whole = sums[0]
        for part in sums[1:]:
            whole = whole.plus(part)
        width = stream_width(self.loaded.model, self.stack)
        folds, unmatched = [], 0
        for task, own in zip(tasks, sums, strict=True):
            others = whole.plus(own, -1)
            unmatched += int(own.counts[others.counts[: len(own.counts)] == 0].sum())
            means, by_position = others.means(width), others.position_means()
            folds.append(_Fold(task, EditSettings(means=means, position_means=by_position, seed=self.options.seed)))
        self.no_mean = unmatched / whole.n_tokens
        if self.no_mean > FEW_MEANS:
            self.notes.append(
                f"{self.no_mean:.0%} of the tokens stand where no text of the other parts has a token, and get the mean over "
                f"all positions: give more texts, or cut them shorter"
            )
        return folds

    def measure(self, how: How, plan: Plan) -> TextValues:
        """What the tasks say with `plan` under a treatment."""

        def treated() -> TextValues:
            values, also = [], []
            for fold in self.folds:
                settings = how.settings(fold.settings)
                with edited_hidden(self.loaded, plan, how.mode, stack=self.stack.name, settings=settings):
                    now, weights = fold.task.per_text()
                values.append(now)
                also.append((float(weights.sum()), fold.task.also()))
            return TextValues(np.concatenate(values), _pooled(also))

        return self.bench.values(f"{how.name} {plan_key(plan)}", treated)


def _pooled(parts: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Further numbers of all parts, weighted."""
    whole = sum(weight for weight, _ in parts)
    return {name: sum(weight * also[name] for weight, also in parts) / whole for name in parts[0][1]}


def _treatment(
    how: How,
    bench: AblationBench,
    measured: TextValues,
    zero: np.ndarray,
    others: list[np.ndarray],
) -> Treatment:
    """The numbers of one treatment beside the values of zero [text] and of random dimensions under it."""
    values, intact, weights = measured.per_text, bench.intact.per_text, bench.weights

    def change(of: np.ndarray) -> tuple[float, float, float]:
        with np.errstate(invalid="ignore"):
            interval = mean_interval(of - intact, weights)
        return weighted_mean(of, weights) - weighted_mean(intact, weights), *interval

    moved, low, high = change(values)
    does_damage = change(zero)[1] > 0
    nothing = (math.nan, math.nan, math.nan)
    share = recovered(intact, zero, values, weights) if does_damage else nothing
    random = tuple(weighted_mean(one, weights) - weighted_mean(intact, weights) for one in others)
    return Treatment(
        name=how.name,
        factor=how.factor,
        value=weighted_mean(values, weights),
        per_text=tuple(values.tolist()),
        change=moved,
        low=low,
        high=high,
        recovered=share[0],
        recovered_low=share[1],
        recovered_high=share[2],
        random=random,
        p=rank_p(moved, np.array(random)) if others else None,
        also=measured.also or None,
    )


def recovered(
    intact: np.ndarray, zero: np.ndarray, other: np.ndarray, weights: np.ndarray
) -> tuple[float, float, float]:
    """(share, low, high) of zero's damage that `other` does not do, values [text] each, with its 95 % interval.

    1 − Σ w (other − intact) / Σ w (zero − intact), whose three values of a text go together. NaN where a value is not finite.
    """
    with np.errstate(invalid="ignore"):
        above, below = weights * (zero - other), weights * (zero - intact)
    if not np.isfinite([above, below]).all():
        return math.nan, math.nan, math.nan
    return float(above.sum() / below.sum()), *ratio_interval(above, below)


def _plan(
    loaded: LoadedModel, texts: Data, stream: tuple["BoundStack", int], dims: Dims | Find, options: BeyondOptions
) -> tuple[Named, Plan]:
    """The dimensions, with who names them, and the layers they are treated in."""
    stack, width = stream
    if dims == FIND:
        named = _choose(loaded, stack, texts, options)
        return named, plan_dims(stack, width, named.dims, options.layers)
    plan = plan_dims(stack, width, dims, options.layers)
    return named_dims(loaded, stack, _all(plan)), plan


def _choose(loaded: LoadedModel, stack: "BoundStack", texts: Data, options: BeyondOptions) -> Named:
    """The dimensions that `options.find` names, or the strongest in the weights where it names none."""
    scanned = named_dims(loaded, stack)
    if options.find == "scan" or (options.find == "auto" and scanned.found):
        return scanned
    length = row_limit(loaded, texts, options.task.max_length)
    settings = ObserveOptions(max_length=length, batch_size=options.task.batch_size, passage_tokens=0)
    dims, rule = active_dims(loaded, stack, texts, settings)
    if dims:
        more = f"; the strongest {MOST} of {len(dims)}" if len(dims) > MOST else ""
        return Named(tuple(sorted(dims[:MOST])), f"the rule {rule} on activations{more}", scanned.found + dims)
    if scanned.found:
        note = "the rules on activations name no dimension, so those of the scan of the weights are taken"
        return replace(scanned, notes=(*scanned.notes, note))
    return replace(scanned, by=f"{scanned.by}, and the rules on activations neither")


def _only(plan: Plan, dim: int) -> Plan:
    return {layer: (dim,) for layer, dims in plan.items() if dim in dims}


def _all(plan: Plan) -> tuple[int, ...]:
    return tuple(sorted({dim for dims in plan.values() for dim in dims}))


def _random(dims: tuple[int, ...], width: int, options: BeyondOptions) -> tuple[tuple[int, ...], ...]:
    """Random sets of as many dimensions; those of several tested sets are the same as far as they can be."""
    if not options.n_random:
        return ()
    return random_sets(width, len(dims), n=options.n_random, seed=options.seed, other_than=dims)
