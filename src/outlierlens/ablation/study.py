"""THE loop: conditions × texts -> a value for each text, kept as it is made; changes are paired with the intact model.

    with Study(loaded, task, texts, {"mode": "weights", "seed": 0}, rows=rows, progress=progress) as study:
        done = study.measure([Condition("chosen", "chosen", plan, off), *(Condition("random", f"random {i}", …))])
    study.change(done[0])                          # Estimate: paired by text, 95 % interval
    study.families(done)                           # the chosen one beside each family of controls, with its rank p
    tuple(map(study.row, done))                    # rows of a table

A condition is anything that can be entered and left: dimensions off, weights rounded or pruned, values edited.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np

from outlierlens.ablation.controls import Plan, figures_of, plan_key, times
from outlierlens.architectures import neurons_of
from outlierlens.data.texts import Data
from outlierlens.models.inputs import Progress as Progress  # noqa: PLC0414 -- analyses take it from here
from outlierlens.models.inputs import reader_digest
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.results.finding import About
from outlierlens.results.row_store import Keep, RowStore, UnitCache, kept_rows
from outlierlens.results.rows import Estimate, More, Quiet, Row
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import Task, begins, check_intact
from outlierlens.tasks.choice import forecast
from outlierlens.view.section import Change, Count, P


@dataclass(frozen=True)
class Condition:
    """A change of a model while it reads; its context yields the number of values that it sets.

    Attributes:
        family: "chosen", "random", "ordinary", "matched", or a name of its own. label: "random 3".
        plan: {layer: positions} that it touches. key: its name in files of rows; that of the plan where none is given.
        more: measures inside what else rows hold, plain data; it gets what was entered. beside: likewise, while the task reads.
    """

    family: str
    label: str
    plan: Plan
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext
    key: str = ""
    more: Callable[[Any], dict[str, Any]] | None = None
    beside: Callable[[Any], dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """In files of rows."""
        return self.key or plan_key(self.plan)


@dataclass(frozen=True)
class Outcome:
    """A condition with the value of each text [text], further numbers of the task by name, and how many values it set.

    `more` is what the condition's own `more` measured.
    """

    condition: Condition
    values: np.ndarray
    also: dict[str, float] = field(default_factory=dict)
    n_set: int = 0
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measurement(Row):
    """One condition, and what the task says under it."""

    family: Annotated[str, Quiet]
    label: str
    """condition"""
    dims: str
    """ablated: positions, layer by layer where layers differ"""
    value: Estimate
    """{score}: mean over texts, weighted by tokens"""
    perplexity: float | None = None
    """perplexity: exp of a loss"""
    change: Annotated[Estimate, Change]
    """change ({of_change}): minus the intact model's, paired by text"""
    n_set: Annotated[int | None, Count]
    """values set: parameters; none where hidden states are edited"""
    plan: Annotated[Plan, Quiet]
    """positions by layer"""
    also: Annotated[dict[str, float], Quiet]
    """further numbers of the task by name"""
    per_text: Annotated[tuple[float, ...], "text", Quiet]
    """value of each text, in the order of the data; of a metric that is not a mean, its predictions"""


M = TypeVar("M", bound=Measurement)


@dataclass(frozen=True, kw_only=True)
class Control(Row):
    """The chosen condition against a family of controls of the same size."""

    family: str
    """control"""
    n: Annotated[int, Count]
    median: Annotated[float, Change]
    percentile_95: Annotated[float, Change]
    """95th percentile"""
    mean: Annotated[float, Change]
    times_median: float | None
    """× median: the chosen change as a multiple; none where the reference is not positive"""
    times_percentile_95: float | None
    """× 95th percentile"""
    times_mean: float | None
    """× mean"""
    p: Annotated[float | None, P]
    """rank p: (1 + number of controls that do at least this) / (1 + n), of the family that a random set is exchangeable with"""
    closeness: Annotated[float | None, More] = None
    """closeness: of matched sets, median of their magnitudes over the wanted ones"""
    change: Annotated[Estimate, Change, Quiet]
    """change of the {measured} ({of_change}): of the chosen condition"""
    sets: Annotated[tuple[float, ...], Change, Quiet]
    """change of the {measured}: of each control"""


class Study:
    """A model and its task; measures conditions, or reads back what `rows` hold.

    Args:
        texts: what the task reads.
        identity: what must be equal for measured conditions to be used again, beside the model and the texts; its "seed" is
            that of intervals, 0 where it has none, its "stack" the stream that is touched (or the MLPs' neurons).
        rows: the file, or the folder, that keeps finished conditions.

    Raises:
        BadInput: the intact model's value of a text is no number.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        texts: Data,
        identity: dict[str, Any],
        *,
        rows: Path | Keep | None = None,
        progress: Progress | None = None,
    ):
        self.loaded, self.task, self.texts = loaded, task, texts
        self.stack = loaded.axis(identity.get("stack"), experts=True)
        self.by_layer = self.stack.kind != "dimension"  # a position means something in its own layer only
        self.progress, self.files = progress or (lambda *_: None), ExitStack()
        self.place = rows
        self.fingerprint, self.seed = fingerprint(loaded.model), int(identity.get("seed", 0))
        self.identity = {
            "model": self.fingerprint,
            "reader": reader_digest(loaded),
            "data": texts.digest,
            **identity,
            **begins(task),
        }
        self.weights = task.weights
        self.known: dict[str, Outcome] = {}
        self._changes: dict[str, Estimate] = {}
        self.keep = UnitCache(None, {})
        self.rows: RowStore | None = None
        self.total = 0
        if loaded.blocks is None:
            _ = self.intact  # else together with the first conditions
        else:
            loaded.blocks.progress = self.progress

    def __enter__(self) -> "Study":
        self.keep = self.files.enter_context(kept_rows(self.place, self.identity, self.loaded.notice))
        self.rows = self.keep.rows
        return self

    def __exit__(self, *error: Any) -> None:
        self.files.close()

    @cached_property
    def intact(self) -> Outcome:
        """The intact model; raises BadInput where its value of a text is no number."""
        self.progress("intact", 0, 1)
        values, also = self._values()
        check_intact(self.loaded, self.task, values)
        return Outcome(Condition("intact", "intact", {}, key="intact"), values, also)

    def announce(self, names: Sequence[str], **how: Any) -> None:
        """Tell `loaded.notice` how often the texts are read for the conditions of these names, and about how long that takes.

        `how` is for `forecast`. Nothing is said of what the rows hold.
        """
        self.total = len(set(names))
        if left := len({*names} - {*self.keep.done}):
            rows = self.rows.path if self.rows else None
            said = forecast(self.task, left, inputs=self.texts.plural, rows=rows, **how)
            self.loaded.notice(f"{self.loaded.name}: {said}")

    def measure(self, conditions: Sequence[Condition]) -> list[Outcome]:
        """THE loop: what the rows do not hold is measured and kept, through a block together where weights are read so; each
        name is measured once."""
        if not self.total:
            self.announce([one.name for one in conditions])
        calls: Any = {one.name: partial(self._one, one) for one in conditions[::-1] if one.name not in self.keep.done}
        self.loaded.run([lambda: self.intact, *[*calls.values()][::-1]], int(self.task.lengths.sum()))
        return [self._one(one) for one in conditions]

    def _one(self, one: Condition) -> Outcome:
        if one.name not in self.known:
            self.progress(one.label, len(self.known), self.total)
            self.known[one.name] = self._measured(one)
        kept = self.known[one.name]
        return Outcome(one, kept.values, kept.also, kept.n_set, kept.more)

    def _measured(self, one: Condition) -> Outcome:
        def now() -> dict[str, Any]:
            with one.enter() as entered:
                both: Any = [self._values, partial(one.beside, entered)] if one.beside else None
                # Alone it is read right here: `more` may ask the task about this very reading.
                (values, also), more = self.loaded.run(both) if both else (self._values(), {})
                more |= one.more(entered) if one.more else {}
                touched = entered if isinstance(entered, int) else 0
                row = {"per_text": values.tolist(), "also": also, "touched": touched}
                return row | {"more": more} if more else row

        row = self.kept(one.name, now)
        return Outcome(one, np.array(row["per_text"]), row["also"], row["touched"], row.get("more", {}))

    def _values(self) -> Any:
        values, _ = self.task.per_text()
        return values, self.task.also()

    def kept(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the rows hold under a name, plain data: from there, or measured now and appended."""
        found: dict[str, Any] = self.keep(name, measure)
        return found

    def value(self, one: Outcome) -> Estimate:
        """The score of an outcome, with its interval over texts."""
        return self.task.score(one.values, seed=self.seed)

    def change(self, one: Outcome, base: Outcome | None = None) -> Estimate:
        """Its score minus the intact model's, or another outcome's, paired by text."""
        if base is None:  # asked for by rows, families and what orders them
            if one.condition.name not in self._changes:
                self._changes[one.condition.name] = self.change(one, self.intact)
            return self._changes[one.condition.name]
        return self.task.change(base.values, one.values, seed=self.seed)

    def row(self, one: Outcome, kind: type[M] = Measurement, **more: Any) -> M:  # type: ignore[assignment]
        """A row of the table of conditions; `more` are what its kind has beside the fields of `Measurement`."""
        value, loss = self.value(one), self.task.unit == "nats per token"
        return kind(
            family=one.condition.family, label=one.condition.label, dims=self.words(one.condition.plan), value=value,
            perplexity=float(np.exp(min(value.value, 700.0))) if loss else None, change=self.change(one),
            n_set=one.n_set or None, plan=one.condition.plan, also=one.also, per_text=tuple(one.values.tolist()), **more,
        )  # fmt: skip

    def families(
        self, done: Sequence[Outcome], ranked: str = "random", closeness: float | None = None
    ) -> tuple[Control, ...]:
        """The first outcome beside each family among the others; `ranked` names the family that has a p.

        A loss that is no number any more counts as infinite.
        """
        chosen, found = self.change(done[0]).value, []
        top = float(np.nan_to_num(chosen, nan=np.inf, posinf=np.inf))
        for family in dict.fromkeys(one.condition.family for one in done[1:]):
            changes = [self.change(one).value for one in done[1:] if one.condition.family == family]
            changed = np.nan_to_num(np.array(changes), nan=np.inf, posinf=np.inf)
            median, high, mean = figures_of(changed)
            found.append(Control(
                family=family, n=len(changes), median=median, percentile_95=high, mean=mean,
                times_median=times(top, median), times_percentile_95=times(top, high), times_mean=times(top, mean),
                p=rank_p(chosen, changed) if family == ranked else None,
                closeness=closeness if family == "matched" else None, change=self.change(done[0]), sets=tuple(changes),
            ))  # fmt: skip
        return tuple(found)

    def about(self, plan: Plan, **more: Any) -> About:
        """What a finding says of what was measured; `plan` are the positions that it is about."""
        task, texts = self.task, self.texts
        names = map(str, neurons_of(plan)) if self.by_layer else map(str, dims_of(plan))
        return About(
            data=texts.source, data_digest=texts.digest, inputs=texts.plural, task=task.name, unit=task.unit,
            metric=task.metric, stack=self.stack.name, layers=tuple(sorted(plan)), dims=tuple(names),
            kind=self.stack.kind,
            **{"n_texts": task.n_texts, "n_tokens": task.n_tokens, **more},
        )  # fmt: skip

    def words(self, plan: Plan) -> str:
        """ "308, 381", or layer by layer where layers differ: "0,1: 896; 2: 678"; neurons as "11:1229"."""
        if self.by_layer:
            return ", ".join(map(str, neurons_of(plan)))
        groups: dict[tuple[int, ...], list[int]] = {}
        for layer, dims in sorted(plan.items()):
            groups.setdefault(tuple(sorted(dims)), []).append(layer)
        if len(groups) < 2:
            return ", ".join(map(str, dims_of(plan)))
        return "; ".join(
            f"{','.join(map(str, layers))}: {', '.join(map(str, dims))}" for dims, layers in groups.items()
        )


def dims_of(plan: Plan) -> tuple[int, ...]:
    """Dimensions of any layer, ascending."""
    return tuple(sorted({dim for dims in plan.values() for dim in dims}))
