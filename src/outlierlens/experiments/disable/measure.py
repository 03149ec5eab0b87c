"""Switch dimensions off beside fair controls and measure what breaks.

    damage = disable(load_model("smollm2-135m"), read_texts("excerpt"), [100, 247, 507])
    damage.chosen.change                        # nats per token
    damage.controls[0].p                        # rank p among random sets of the same size

The loop is `_measure`: enter an ablation, score, leave; every condition reads the same tokens and masks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import Plan, compared, matched_sets, plan_key, random_families, relabelled
from outlierlens.ablation.damage import Condition, Continuation, Damage, Filled, Score
from outlierlens.ablation.fill import Exercise, Filling, continuation, exercise, fill, filled
from outlierlens.ablation.mode_names import ON_WEIGHTS
from outlierlens.ablation.modes import Ablation, means_over, task_for, tokens_read
from outlierlens.ablation.switches import Dims, EditSettings, plan_dims
from outlierlens.data.texts import Data
from outlierlens.detection.observe.measure import magnitude
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.errors import BadInput
from outlierlens.experiments.disable.options import Asked, DisableOptions
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.results.row_store import RowStore
from outlierlens.results.safe_files import new_folder
from outlierlens.statistics.words import unseen_note
from outlierlens.tasks.base import Task, begins, check_intact, scored, weighted_mean
from outlierlens.tasks.choice import make_task
from outlierlens.tasks.metrics import paired_interval

if TYPE_CHECKING:
    from outlierlens.architectures import BoundStack
    from outlierlens.session import Session

Progress = Callable[[str, int, int], None]
TEXTS = 64  # of the command, where no number is given


def disable(
    loaded: LoadedModel,
    texts: Data,
    dims: Dims,
    options: DisableOptions | None = None,
    *,
    command: str = "",
    progress: Progress | None = None,
    rows: Path | None = None,
) -> Damage:
    """Measure `loaded` intact, with `dims` off, and with control sets off.

    With `rows`, every finished condition is appended to that file, and conditions found there are not measured again.

    `dims` is a sequence, or {layer: dims} where layers differ (a random set then replaces each dimension by one other in
    every layer it is off in).

    Raises:
        BadInput: unknown dimension, layer or mode; no usable text; a mode the model does not allow.
    """
    options = options or DisableOptions()
    with ExitStack() as files:
        bench = _Bench(loaded, texts, options)
        plan = plan_dims(bench.stack, bench.width, dims, options.layers)
        bench.ablation.check(plan)
        work = bench.exercise(texts)
        controls = _control_sets(bench, plan)
        if rows:
            bench.rows = files.enter_context(RowStore.open(rows, bench.identity(texts)))
        total = 2 + len({plan_key(item) for family in controls.values() for _, item in family})
        report = progress or (lambda *_: None)
        report("intact", 0, total)
        intact = bench.measure("intact", None)
        report("chosen", 1, total)
        chosen = bench.measure("chosen", plan)
        done: dict[str, Condition] = {}
        measured: dict[str, list[Condition]] = {}
        for kind, family in controls.items():
            for label, item in family:
                key = plan_key(item)
                if key not in done:
                    report(f"{kind} control", 2 + len(done), total)
                    done[key] = bench.measure(label, item)
                measured.setdefault(kind, []).append(done[key])
        if n_lost := sum(map(math.isnan, chosen.score.per_text)):
            bench.notes.append(
                f"with these dimensions off the {bench.task.name} is no number (NaN) on {n_lost:,} of {bench.task.n_texts:,} "
                f"{texts.plural}: there is no change to give, and no p"
            )
        said = list(bench.say(work, chosen, measured.get("ordinary", measured.get("random", []))))
        report("done", total, total)
    return Damage(
        provenance=loaded.provenance(command=command, seed=options.seed, digest=bench.fingerprint),
        data=texts.source,
        data_digest=texts.digest,
        task=bench.task.name,
        unit=bench.task.unit,
        mode=bench.ablation.name,
        stack=bench.stack.name,
        layers=tuple(sorted(plan)),
        n_texts=bench.task.n_texts,
        n_tokens=bench.task.n_tokens,
        intact=intact,
        chosen=chosen,
        controls=compared(measured, chosen, ranked="random", closeness=bench.closeness),
        fills=tuple(item for item in said if isinstance(item, Filled)),
        continuations=tuple(item for item in said if isinstance(item, Continuation)),
        notes=(*loaded.notes, *bench.notes),
        metric=bench.task.metric,
        inputs=texts.plural,
    )


def run(session: "Session", asked: Asked) -> Damage:
    """What the command finds; a copy of the model is written once that is shown."""
    reading, options = session.task_reading, asked.options
    if reading.limit is None and not reading.is_labelled:
        reading = replace(reading, limit=TEXTS)
    if reading.is_labelled and asked.stride is not None:
        raise BadInput(f"--stride belongs to causal-loss, not to --task {reading.task}")
    size, seed = options.task.batch_size, options.seed
    task = reading.options(max_length=asked.max_length, stride=asked.stride, batch_size=size, seed=seed)
    rows, options = session.rows.rows, replace(options, task=task)
    texts = reading.read(offline=session.load.offline)
    if asked.save:
        check_save(asked.save, options.mode)
        session.then = partial(_save, session, asked)
    return disable(session.loaded, texts, asked.dims, options, progress=session.progress, rows=rows)


def _save(session: "Session", asked: Asked) -> None:
    assert asked.save is not None
    n_values = save_disabled(session.loaded, asked.dims, asked.save, asked.options)
    session.notice(f"{asked.save}: model with {n_values:,} values off")


class _Bench:
    """A model on the bench: its task, what it scores intact, and how to switch things off."""

    def __init__(self, loaded: LoadedModel, texts: Data, options: DisableOptions):
        self.loaded, self.options = loaded, options
        self.stack: BoundStack = loaded.stack(options.stack)
        self.width = stream_width(loaded.model, self.stack)
        self.fingerprint = fingerprint(loaded.model)
        self.task: Task = make_task(loaded, texts, task_for(options.mode, options.task))
        self.intact_values, self.weights = self.task.per_text()
        check_intact(loaded, self.task, self.intact_values)
        self.rows: RowStore | None = None
        self.notes: list[str] = list(self.task.notes)
        self.notes.append(unseen_note(self.task.n_texts, texts.plural))
        self.closeness: float | None = None
        settings = EditSettings(factor=options.factor, seed=options.seed)
        if options.mode == "mean":
            length = row_limit(loaded, texts, options.task.max_length)
            means = means_over(loaded, self.stack, texts, length=length, batch_size=options.task.batch_size)
            settings = EditSettings(means=means)
            self.notes.append(
                f"the mean that replaces a value is taken over {tokens_read(length)} of each of these {texts.plural}"
            )
        self.ablation = Ablation(loaded, self.stack, options.mode, options.embeddings, settings)

    def identity(self, texts: Data) -> dict[str, Any]:
        """What must be equal for measured conditions to be reusable."""
        options = self.options
        return {
            "model": self.fingerprint,
            "data": texts.digest,
            "task": asdict(options.task),
            "mode": self.ablation.name,
            "stack": self.stack.name,
            "seed": options.seed,
            **begins(self.task),
        }

    def _per_text(self, plan: Plan) -> tuple[np.ndarray, dict[str, float], int]:
        """(value of every text, further numbers, values set) with `plan` off: from the rows, or measured now."""
        key = plan_key(plan)
        found = self.rows.get(key) if self.rows else None
        if found is None:
            with self.ablation.off(plan) as touched:
                values, _ = self.task.per_text()
                found = {"per_text": values.tolist(), "also": self.task.also(), "touched": touched}
            if self.rows:
                self.rows.append(key, found)
        return np.array(found["per_text"]), found["also"], found["touched"]

    def measure(self, label: str, plan: Plan | None) -> Condition:
        """Switch `plan` off, score every text, switch back on."""
        if plan is None:
            values, also, touched = self.intact_values, self.task.also(), 0
        else:
            values, also, touched = self._per_text(plan)
        value, low, high, change, change_low, change_high = self._figures(values)
        plan = plan or {}
        uniform = len(set(plan.values())) <= 1
        return Condition(
            label=label,
            dims=tuple(sorted({dim for dims in plan.values() for dim in dims})),
            by_layer={} if uniform else plan,
            score=Score(
                value=value,
                low=low,
                high=high,
                perplexity=_exp(value) if self.task.unit == "nats per token" else None,
                per_text=tuple(values.tolist()),
                also=also,
            ),
            change=change,
            change_low=change_low,
            change_high=change_high,
            n_parameters=touched,
            layers=tuple(sorted(plan)),
        )

    def _figures(self, values: np.ndarray) -> tuple[float, float, float, float, float, float]:
        """(value, low, high, change, low, high) with 95 % intervals over texts."""
        seed, statistic = self.options.seed, self.task.statistic
        own = scored(values, self.weights, statistic, seed=seed)
        if statistic is None and self.task.smallest:
            between = paired_interval(self.intact_values, values, seed=seed, weights=self.weights)
            return (*own, weighted_mean(values - self.intact_values, self.weights), *between)
        if statistic is None:
            return (*own, *scored(values - self.intact_values, self.weights, None, seed=seed))
        change = own[0] - statistic.value(self.intact_values)
        return (*own, change, *statistic.interval(self.intact_values, values, seed=seed))

    def exercise(self, texts: Data) -> tuple[str, Exercise | None]:
        """The passage that every condition fills in, and its blanks."""
        passage = self.options.passage or texts.passage
        return passage, exercise(self.loaded, passage, seed=self.options.seed)

    def say(
        self, work: tuple[str, Exercise | None], chosen: Condition, random: Sequence[Condition]
    ) -> Iterator[Filled | Continuation]:
        """The passage filled in (and continued) intact, with the median ordinary set off, and with the chosen set off."""
        passage, blanks = work
        typical = sorted(random, key=lambda condition: condition.change)[len(random) // 2 : len(random) // 2 + 1]
        intact: Filling | None = None
        for label, condition in (("intact", None), *(("random", c) for c in typical), ("chosen", chosen)):
            dims = condition.dims if condition else ()
            with self.ablation.off(self._plan(condition)):
                now = fill(self.loaded, blanks) if blanks else None
                said = continuation(self.loaded, passage)
            intact = intact or now
            if blanks and now and intact:
                yield filled(self.loaded, blanks, now, intact, label=label, dims=dims)
            if said:
                yield Continuation(label, dims, *said)

    def _plan(self, condition: Condition | None) -> Plan | None:
        if condition is None:
            return None
        return condition.by_layer or plan_dims(self.stack, self.width, condition.dims, condition.layers)


def _exp(value: float) -> float:
    return float(np.exp(np.minimum(value, 700.0)))


def _control_sets(bench: _Bench, plan: Plan) -> dict[str, list[tuple[str, Plan]]]:
    options = bench.options
    tested = {dim for dims in plan.values() for dim in dims}
    if options.avoid:
        plan_dims(bench.stack, bench.width, options.avoid)
    found = scan_stream(bench.loaded, bench.stack.name).dims if options.avoid is None else options.avoid
    families: dict[str, list[tuple[str, Plan]]] = {}
    if options.n_random:
        for kind, sets in random_families(
            bench.width, tested, avoid=found, n=options.n_random, seed=options.seed
        ).items():
            families[kind] = [(f"{kind} {i + 1}", relabelled(plan, dims)) for i, dims in enumerate(sets)]
    if options.n_matched:
        strength = magnitude(bench.loaded, bench.stack)
        matched = matched_sets(
            strength, plan, avoid=found, n=options.n_matched, seed=options.seed, blocks=bench.stack.blocks
        )
        families["matched"] = [(f"matched {i + 1}", item.plan) for i, item in enumerate(matched)]
        bench.closeness = float(np.median([item.closeness for item in matched]))
    return families


def check_save(directory: Path, mode: str) -> None:
    """Raise BadInput where `save_disabled` could not write; ask before measuring."""
    if mode not in ON_WEIGHTS:
        raise BadInput(f"--save needs --mode weights, norms or writes: mode {mode!r} lives in the running network only")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory} is not empty; name a new folder")


def save_disabled(loaded: LoadedModel, dims: Dims, directory: Path, options: DisableOptions) -> int:
    """Write a loadable copy of the model with `dims` off in its weights; returns the number of values set.

    Raises:
        BadInput: the mode edits hidden states, which no weights file can hold; or the folder is not empty.
    """
    check_save(directory, options.mode)
    stack = loaded.stack(options.stack)
    plan = plan_dims(
        stack, stream_width(loaded.model, stack), dims, None if isinstance(dims, Mapping) else options.layers
    )
    with new_folder(directory) as making:
        with Ablation(loaded, stack, options.mode, options.embeddings).off(plan) as touched:
            loaded.model.save_pretrained(making)  # type: ignore[operator]
        for part in (loaded.tokenizer, loaded.processor):
            if part is not None:
                part.save_pretrained(making)
    return touched
