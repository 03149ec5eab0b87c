"""A model on the bench: what a task says of it intact, and of the same tokens while something is switched off.

    bench = AblationBench(loaded, make_task(loaded, texts, options.task), seed=0)
    with bench.resumed(rows, bench.identity(texts, options.task)):          # finished conditions are not measured again
        chosen = bench.condition("chosen", plan, lambda: ablation.off(plan))
    chosen.change                                                           # against intact, paired by text

A condition has a name in row files; whatever enters and leaves it puts the model back as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.ablation.controls import Plan, plan_key
from outlierlens.ablation.damage import Condition, Score
from outlierlens.architectures import neurons_of
from outlierlens.data.texts import Data
from outlierlens.models.load import LoadedModel, fingerprint
from outlierlens.results.row_store import RowStore
from outlierlens.tasks.base import Task, TaskOptions, begins, check_intact, scored, weighted_mean
from outlierlens.tasks.forecast import forecast
from outlierlens.tasks.metrics import paired_interval

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TextValues:
    """What a task says under one condition.

    Attributes:
        per_text: value of each text [text].
        also: further numbers by name, see `Task.also`.
        touched: values of the model that the condition has set.
    """

    per_text: np.ndarray
    also: dict[str, float]
    touched: int = 0


class AblationBench:
    """A model, a task, and the task's values of every condition that was measured.

    With `by_neuron`, what is off are neurons of an MLP axis.
    `scores` are the values and the weights of the intact model [text], where they are known; else they are measured.

    Attributes:
        intact: the intact model's values.
        weights: tokens that count of each text, [text].
        fingerprint: of the intact model.
        known: values of the conditions so far, by name.

    Raises:
        BadInput: the intact model's value of a text is no number.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        *,
        seed: int = 0,
        by_neuron: bool = False,
        scores: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.loaded, self.task, self.seed, self.by_neuron = loaded, task, seed, by_neuron
        self.fingerprint = fingerprint(loaded.model)
        values, self.weights = scores or task.per_text()
        check_intact(loaded, task, values)
        self.intact = TextValues(values, task.also())
        self.known: dict[str, TextValues] = {}
        self._rows: RowStore | None = None

    def identity(self, texts: Data, task: TaskOptions, **more: Any) -> dict[str, Any]:
        """What must be equal for measured conditions to be reusable; `more` is what the experiment adds."""
        return {
            "model": self.fingerprint,
            "data": texts.digest,
            "task": asdict(task),
            **more,
            **begins(self.task),
        }

    @contextmanager
    def resumed(self, rows: Path | None, identity: dict[str, Any]) -> Iterator[None]:
        """Inside the block every finished condition is appended to `rows`, and those found there are not measured again.

        Raises:
            BadInput, BadFile: see `RowStore.open`.
        """
        with ExitStack() as files:
            self._rows = files.enter_context(RowStore.open(rows, identity)) if rows else None
            yield

    def announce(
        self,
        n_times: int,
        *,
        share: float = 1.0,
        inputs: str = "texts",
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
        most: bool = False,
    ) -> None:
        """Tell `loaded.notice` how often the texts are read and how long that takes; see `forecast`.

        Inside `resumed`, each row found there is one measurement less, and where all are there nothing is said. A measurement
        reads the texts `share` times.
        """
        rows = self._rows
        left = max(0, n_times - len(rows.done)) if rows else n_times
        if not left:
            return
        said = forecast(
            self.task, left, share=share, inputs=inputs, rows=rows.path if rows else None, inside=inside, most=most,
        )  # fmt: skip
        self.loaded.notice(f"{self.loaded.name}: {said}")

    def row(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What row files hold under `key`, plain data: from there, or measured now and appended."""
        found: dict[str, Any] | None = self._rows.get(key) if self._rows else None
        if found is None:
            found = measure()
            if self._rows:
                self._rows.append(key, found)
        return found

    def values(self, key: str, measure: Callable[[], TextValues]) -> TextValues:
        """The values of the condition that row files call `key`: known, from the rows, or measured now."""

        def measured() -> dict[str, Any]:
            now = measure()
            return {"per_text": now.per_text.tolist(), "also": now.also, "touched": now.touched}

        if key not in self.known:
            row = self.row(key, measured)
            self.known[key] = TextValues(np.array(row["per_text"]), row.get("also", {}), row.get("touched", 0))
        return self.known[key]

    def condition(self, label: str, plan: Plan, off: Callable[[], AbstractContextManager[int]]) -> Condition:
        """Enter `off`, which switches `plan` off and yields the number of values set; score every text; leave."""

        def measure() -> TextValues:
            with off() as touched:
                values, _ = self.task.per_text()
                return TextValues(values, self.task.also(), touched)

        return self._condition(label, plan, self.values(plan_key(plan), measure))

    def intact_condition(self) -> Condition:
        """The intact model as a condition among others: nothing is off."""
        return self._condition("intact", {}, self.intact)

    def _condition(self, label: str, plan: Plan, found: TextValues) -> Condition:
        value, low, high, change, change_low, change_high = self._figures(found.per_text)
        uniform = not self.by_neuron and len(set(plan.values())) <= 1
        loss = self.task.unit == "nats per token"
        return Condition(
            label=label,
            dims=tuple(sorted({dim for dims in plan.values() for dim in dims})),
            by_layer={} if uniform else plan,
            score=Score(
                value=value,
                low=low,
                high=high,
                perplexity=float(np.exp(np.minimum(value, 700.0))) if loss else None,
                per_text=tuple(found.per_text.tolist()),
                also=found.also,
            ),
            change=change,
            change_low=change_low,
            change_high=change_high,
            n_parameters=found.touched,
            layers=tuple(sorted(plan)),
            neurons=tuple(map(str, neurons_of(plan))) if self.by_neuron else (),
        )

    def _figures(self, values: np.ndarray) -> tuple[float, float, float, float, float, float]:
        """(value, low, high, change, low, high) with 95 % intervals over texts; values [text]."""
        seed, statistic, intact = self.seed, self.task.statistic, self.intact.per_text
        own = scored(values, self.weights, statistic, seed=seed)
        if statistic is None and self.task.smallest:
            between = paired_interval(intact, values, seed=seed, weights=self.weights)
            return (*own, weighted_mean(values - intact, self.weights), *between)
        if statistic is None:
            return (*own, *scored(values - intact, self.weights, None, seed=seed))
        change = own[0] - statistic.value(intact)
        return (*own, change, *statistic.interval(intact, values, seed=seed))


class Steps:
    """Tells `progress`, where there is one, what begins; each call is one step further of `total`."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.total, self.n_begun = progress, total, 0

    def __call__(self, what: str) -> None:
        if self.progress:
            self.progress(what, self.n_begun, self.total)
        self.n_begun += 1
