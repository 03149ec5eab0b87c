"""The bench: numbers by hand, conditions measured once, rows read back, and other work refused."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.ablation.bench import AblationBench, Steps, TextValues
from outlierlens.ablation.controls import Plan
from outlierlens.errors import BadInput
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import TaskOptions
from planted import model_of, some_texts

WEIGHTS = np.array([1.0, 3.0, 2.0])
INTACT = np.array([1.0, 2.0, 3.0])


class Counted:
    """A task of three texts whose values grow by what is off; it counts how often it is asked."""

    name, unit, statistic, smallest = "counted", "nats per token", None, 0.0

    def __init__(self) -> None:
        self.n_asked, self.n_off = 0, 0

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        self.n_asked += 1
        return INTACT + self.n_off * np.array([0.5, 0.0, 1.0]), WEIGHTS

    def also(self) -> dict[str, float]:
        return {"off": float(self.n_off)}

    @contextmanager
    def off(self, plan: Plan) -> Iterator[int]:
        self.n_off = sum(map(len, plan.values()))
        yield 10 * self.n_off
        self.n_off = 0


@pytest.fixture
def task() -> Counted:
    return Counted()


@pytest.fixture
def bench(words: Any, task: Any) -> AblationBench:
    return AblationBench(model_of("bert", "MaskedLM", words), task)


def test_a_condition_is_compared_with_the_intact_model_text_by_text(bench: AblationBench, task: Counted) -> None:
    found = bench.condition("chosen", {0: (4, 2), 2: (4, 2)}, lambda: task.off({0: (4, 2), 2: (4, 2)}))
    assert (found.label, found.dims, found.layers, found.by_layer) == ("chosen", (2, 4), (0, 2), {})
    moved = 4 * np.array([0.5, 0.0, 1.0])
    assert found.score.per_text == tuple(INTACT + moved)
    assert found.score.value == pytest.approx((3 + 3 * 2 + 2 * 7) / 6)
    assert found.score.perplexity == pytest.approx(np.exp(found.score.value))
    assert found.change == pytest.approx((1 * 2 + 2 * 4) / 6)
    np.testing.assert_equal((found.change_low, found.change_high), mean_interval(moved, WEIGHTS))
    assert (found.n_parameters, found.score.also) == (40, {"off": 4.0})
    intact = bench.intact_condition()
    assert (intact.change, intact.n_parameters, intact.score.also) == (0, 0, {"off": 0.0})
    assert bench.condition("one", {0: (1,), 1: (2,)}, lambda: task.off({0: (1, 2)})).by_layer == {0: (1,), 1: (2,)}


def test_values_that_are_known_are_not_measured_again(bench: AblationBench, task: Counted) -> None:
    first = bench.condition("a", {0: (1,)}, lambda: task.off({0: (1,)}))
    again = bench.condition("b", {0: (1,)}, lambda: task.off({0: (1,)}))
    assert (task.n_asked, first.score) == (2, again.score)
    given = AblationBench(bench.loaded, task, scores=(INTACT + 1, WEIGHTS))  # type: ignore[arg-type]
    assert (task.n_asked, given.intact.per_text.tolist()) == (2, [2.0, 3.0, 4.0])


def test_rows_are_read_back_and_other_work_is_refused(words: Any, bench: AblationBench, tmp_path: Path) -> None:
    rows, texts = tmp_path / "rows.jsonl", some_texts(3)
    identity = bench.identity(texts, TaskOptions(), seed=3)
    with bench.resumed(rows, identity):
        bench.values("zero [1]", lambda: TextValues(np.array([1.0, 2.0]), {"kl": 0.5}, 7))
    first, row = map(json.loads, rows.read_text().splitlines())
    assert list(first["identity"]) == ["model", "data", "task", "seed"]
    assert row["key"] == "zero [1]"
    assert row["value"] == {"per_text": [1.0, 2.0], "also": {"kl": 0.5}, "touched": 7}
    with bench.resumed(rows, identity):
        bench.known.clear()
        found = bench.values("zero [1]", lambda: pytest.fail("measured again"))
    assert (found.per_text.tolist(), found.also, found.touched) == ([1.0, 2.0], {"kl": 0.5}, 7)
    with pytest.raises(BadInput, match="seed was 3, is 4"), bench.resumed(rows, {**identity, "seed": 4}):
        pass


def test_steps_are_told_in_order() -> None:
    told: list[Any] = []
    report = Steps(lambda *step: told.append(step), 2)
    for what in ("intact", "chosen", "done"):
        report(what)
    assert told == [("intact", 0, 2), ("chosen", 1, 2), ("done", 2, 2)]
    Steps(None, 1)("nobody listens")
