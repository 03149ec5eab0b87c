"""The run: each treatment of the found dimensions, and of random ones, on every text.

    found = beyond_zero(load_model("smollm2-135m"), read_texts("excerpt"), [507])
    found.treated[0].verdict                     # "fixed", "by position", "information", …

The loop is in `beyond_zero`; means are those of other texts than the ones they are put into, part by part (`_Bench`).
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import Plan, plan_key, random_sets, relabelled
from outlierlens.ablation.position_means import PositionSums, collected
from outlierlens.ablation.switches import Dims, EditSettings, edited_hidden, plan_dims
from outlierlens.data.texts import Data, Texts
from outlierlens.detection.targets import Named, named_dims
from outlierlens.errors import BadInput
from outlierlens.experiments.beyond_zero.dims import choose
from outlierlens.experiments.beyond_zero.options import Asked, BeyondOptions, How, treatments
from outlierlens.experiments.beyond_zero.result import BeyondZero, Treated, Treatment
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.results.row_store import RowStore
from outlierlens.statistics.means import mean_interval, ratio_interval
from outlierlens.statistics.p_values import rank_p
from outlierlens.tasks.base import Task, begins, check_intact, weighted_mean
from outlierlens.tasks.choice import make_task
from outlierlens.tasks.options import OF_TEXTS

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack
    from outlierlens.session import Session

Progress = Callable[[str, int, int], None]
FEW_MEANS = 0.05  # share of tokens without a mean of their position, above which it is said


def beyond_zero(
    loaded: LoadedModel,
    texts: Data,
    dims: Dims | None = None,
    options: BeyondOptions | None = None,
    *,
    progress: Progress | None = None,
    rows: Path | None = None,
) -> BeyondZero:
    """Measure `loaded` intact and with `dims` zeroed, set to means, shuffled, scaled and restored, beside random dimensions.

    `dims` is a sequence, or {layer: dims} where layers differ; None is what `options.find` names. With `rows`, every finished
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
    with ExitStack() as files:
        bench = _Bench(loaded, texts, stack, options, columns)
        if rows:
            bench.rows = files.enter_context(RowStore.open(rows, bench.identity(texts)))
        treated = []
        for one, drawn in zip(plans, random, strict=True):
            controls = [relabelled(one, chosen) for chosen in drawn]
            done: list[Treatment] = []
            zero: np.ndarray | None = None
            for how in hows:
                report(how.name, len(bench.known), total)
                values, also = bench.measure(how, one)
                others = []
                for control in controls:
                    report(f"{how.name}, random", len(bench.known), total)
                    others.append(bench.measure(how, control)[0])
                zero = values if zero is None else zero
                done.append(_treatment(how, bench, (values, zero), others, also))
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
        n_tokens=bench.n_tokens,
        n_folds=len(bench.folds),
        no_mean=bench.no_mean,
        named_by=named.by,
        intact=weighted_mean(bench.intact, bench.weights),
        intact_per_text=tuple(bench.intact.tolist()),
        texts=bench.numbers,
        weights=tuple(bench.weights.tolist()),
        treated=tuple(treated),
        inputs=texts.plural,
        notes=(*loaded.notes, *named.notes, *bench.notes),
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


class _Bench:
    """The model on the bench: its texts in parts, what they score intact, and how a treatment is measured."""

    def __init__(
        self, loaded: LoadedModel, texts: Data, stack: "BoundStack", options: BeyondOptions, columns: Sequence[int]
    ):
        self.loaded, self.stack, self.options = loaded, stack, options
        self.fingerprint = fingerprint(loaded.model)
        self.rows: RowStore | None = None
        self.known: dict[str, Any] = {}
        self.notes: list[str] = []
        tasks, numbers = self._tasks(texts)
        sums: list[PositionSums] = []
        values, weights = [], []
        for task in tasks:
            with collected(loaded, stack, columns) as collecting:
                now, counted = task.per_text()
            sums.append(collecting.finish())
            values.append(now)
            weights.append(counted)
        self.task, self.numbers = tasks[0], numbers
        self.intact, self.weights = np.concatenate(values), np.concatenate(weights)
        check_intact(loaded, self.task, self.intact)
        self.n_tokens = sum(task.n_tokens for task in tasks)
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

    def identity(self, texts: Data) -> dict[str, Any]:
        """What must be equal for measured conditions to be reusable."""
        options = self.options
        return {
            "model": self.fingerprint,
            "data": texts.digest,
            "task": asdict(options.task),
            "stack": self.stack.name,
            "folds": options.n_folds,
            "seed": options.seed,
            "what": "beyond zero, scaled once",
            **begins(self.task),
        }

    def measure(self, how: How, plan: Plan) -> tuple[np.ndarray, dict[str, float]]:
        """(value of every text, further numbers) with `plan` under a treatment: known, from the rows, or measured now."""
        key = f"{how.name} {plan_key(plan)}"
        found = self.known.get(key) or (self.rows.get(key) if self.rows else None)
        if found is None:
            values, also = [], []
            for fold in self.folds:
                settings = how.settings(fold.settings)
                with edited_hidden(self.loaded, plan, how.mode, stack=self.stack.name, settings=settings):
                    now, weights = fold.task.per_text()
                values += now.tolist()
                also.append((float(weights.sum()), fold.task.also()))
            found = {"per_text": values, "also": _pooled(also)}
            if self.rows:
                self.rows.append(key, found)
        self.known[key] = found
        return np.array(found["per_text"], dtype=np.float64), found["also"]


def _pooled(parts: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Further numbers of all parts, weighted."""
    whole = sum(weight for weight, _ in parts)
    return {name: sum(weight * also[name] for weight, also in parts) / whole for name in parts[0][1]}


def _treatment(
    how: How,
    bench: _Bench,
    measured: tuple[np.ndarray, np.ndarray],
    others: list[np.ndarray],
    also: dict[str, float],
) -> Treatment:
    """The numbers of one treatment; `measured` are its values and those of zero."""
    values, zero = measured
    intact, weights = bench.intact, bench.weights

    def change(of: np.ndarray) -> tuple[float, float, float]:
        with np.errstate(invalid="ignore"):
            interval = mean_interval(of - intact, weights)
        return weighted_mean(of, weights) - weighted_mean(intact, weights), *interval

    moved, low, high = change(values)
    does_damage = change(zero)[1] > 0
    nothing = (math.nan, math.nan, math.nan)
    share = recovered(bench.intact, zero, values, weights) if does_damage else nothing
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
        also=also or None,
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
    loaded: LoadedModel, texts: Data, stream: tuple["BoundStack", int], dims: Dims | None, options: BeyondOptions
) -> tuple[Named, Plan]:
    """The dimensions, with who names them, and the layers they are treated in."""
    stack, width = stream
    if dims is None:
        named = choose(loaded, stack, texts, options)
        return named, plan_dims(stack, width, named.dims, options.layers)
    plan = plan_dims(stack, width, dims, options.layers)
    return named_dims(loaded, stack, _all(plan)), plan


def _only(plan: Plan, dim: int) -> Plan:
    return {layer: (dim,) for layer, dims in plan.items() if dim in dims}


def _all(plan: Plan) -> tuple[int, ...]:
    return tuple(sorted({dim for dims in plan.values() for dim in dims}))


def _random(dims: tuple[int, ...], width: int, options: BeyondOptions) -> tuple[tuple[int, ...], ...]:
    """Random sets of as many dimensions; those of several tested sets are the same as far as they can be."""
    if not options.n_random:
        return ()
    return random_sets(width, len(dims), n=options.n_random, seed=options.seed, other_than=dims)
