"""The loop over conditions: numbers by hand, conditions measured once, rows read back, and other work refused.

Control sets: different, fair, as large as the tested one; ranks among them are p-values.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlierlens.ablation.controls import Plan, matched_sets, random_sets
from outlierlens.ablation.study import Condition, Study
from outlierlens.errors import BadInput
from outlierlens.statistics.means import mean_interval
from outlierlens.statistics.ranks import rank_p
from outlierlens.tasks.base import Task
from planted import model_of, some_texts

WEIGHTS = np.array([1.0, 3.0, 2.0])
INTACT = np.array([1.0, 2.0, 3.0])


class Counted(Task):
    """A task of three texts whose values grow by what is off; it counts how often it is asked."""

    name, unit, n_texts, n_tokens, weights = "counted", "nats per token", 3, 6, WEIGHTS
    feeds = sums = None
    lengths = np.array([2, 2, 2])

    def __init__(self) -> None:
        self.n_asked, self.n_off = 0, 0

    def per_text(self) -> tuple[np.ndarray, np.ndarray]:
        self.n_asked += 1
        return INTACT + np.array([0.5 * self.n_off, 0.0, self.n_off]), WEIGHTS

    def also(self) -> dict[str, float]:
        return {"off": float(self.n_off)}

    @contextmanager
    def off(self, plan: Plan, add: float = 0.0) -> Iterator[int]:
        self.n_off = add or sum(map(len, plan.values()))
        yield 10 * int(np.nan_to_num(self.n_off, posinf=0))
        self.n_off = 0


@pytest.fixture
def task() -> Counted:
    return Counted()


@pytest.fixture
def study(words: Any, task: Any, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr("outlierlens.ablation.study.forecast", lambda *_, **__: "soon")
    return Study(model_of("bert", "MaskedLM", words), task, some_texts(3), {"seed": 3})


def condition(task: Counted, family: str, plan: Plan, add: float = 0.0) -> Condition:
    return Condition(family, family, plan, partial(task.off, plan, add), f"{plan} {add}")


def test_a_condition_is_compared_with_the_intact_model_text_by_text(study: Study, task: Counted) -> None:
    plan = {0: (4, 2), 2: (4, 2)}
    (done,) = study.measure([Condition("chosen", "chosen", plan, partial(task.off, plan))])
    row, moved = study.row(done), 4 * np.array([0.5, 0.0, 1.0])
    assert (row.label, row.dims, row.plan) == ("chosen", "2, 4", plan)
    assert row.per_text == tuple(INTACT + moved)
    assert row.value.value == pytest.approx((3 + 3 * 2 + 2 * 7) / 6)
    assert row.perplexity == pytest.approx(np.exp(row.value.value))
    assert row.change.value == pytest.approx((1 * 2 + 2 * 4) / 6)
    np.testing.assert_equal((row.change.low, row.change.high), mean_interval(moved, WEIGHTS))
    assert (row.n_set, row.also) == (40, {"off": 4.0})
    intact = study.row(study.intact)
    assert (intact.change.value, intact.n_set, intact.also) == (0, None, {"off": 0.0})
    assert study.words({0: (1,), 1: (2,), 2: (1,)}) == "0,2: 1; 1: 2"
    about = study.about(plan, named_by="given")
    assert (about.dims, about.layers, about.n_texts, about.named_by) == (("2", "4"), (0, 2), 3, "given")


def test_a_condition_is_measured_once(study: Study, task: Counted) -> None:
    first, again = study.measure([condition(task, "a", {0: (1,)}), condition(task, "a", {0: (1,)})])
    assert task.n_asked == 2  # with the intact model
    assert first.values.tolist() == again.values.tolist()


def test_what_touches_no_position_is_not_the_intact_model(study: Study, task: Counted) -> None:
    (done,) = study.measure([Condition("magnitude", "magnitude", {}, partial(task.off, {0: (1,)}))])
    assert study.change(done).value == pytest.approx((1 * 0.5 + 2 * 1.0) / 6)
    assert study.change(study.intact).value == 0


def test_the_chosen_condition_beside_each_family(study: Study, task: Counted) -> None:
    changes = {"random": (1.0, 2.0, 3.0, 5.0), "matched": (4.0, 0.5)}
    wanted = [condition(task, kind, {0: (1,)}, add) for kind, adds in changes.items() for add in adds]
    done = study.measure([condition(task, "chosen", {0: (1,)}, 3.0), *wanted])
    random, matched = study.families(done, closeness=0.9)
    one = (1 * 0.5 + 2 * 1.0) / 6  # of each that is off
    assert (random.family, random.n, random.closeness) == ("random", 4, None)
    assert random.sets == pytest.approx([add * one for add in changes["random"]])
    assert random.median == pytest.approx(2.5 * one)
    assert random.times_median == pytest.approx(3 / 2.5)
    assert random.p == (1 + 2) / 5
    assert (matched.p, matched.closeness) == (None, 0.9)
    assert matched.change == study.change(done[0])


def test_a_loss_that_is_no_number_counts_as_the_worst_and_has_no_p_of_its_own(study: Study, task: Counted) -> None:
    def p(chosen: float, *others: float) -> float | None:
        numbers = enumerate((chosen, *others))
        found = study.measure([condition(task, "random", {number: (1,)}, add) for number, add in numbers])
        return study.families([replace(found[0], condition=replace(found[0].condition, family="chosen")), *found[1:]])[
            0
        ].p

    assert p(1.0, float("nan"), 0.5, 2.0) == 3 / 4
    assert p(float("inf"), *[0.5] * 9) == 1 / 10
    assert p(float("nan"), *[0.5] * 9) is None


def test_rows_are_read_back_and_other_work_is_refused(study: Study, task: Counted, tmp_path: Path) -> None:
    rows, lines = tmp_path / "rows.jsonl", list[str]()

    def again(**identity: Any) -> Study:
        loaded = replace(study.loaded, notice=lines.append)
        return Study(loaded, task, study.texts, {"seed": 3} | identity, rows=rows)  # type: ignore[arg-type]

    wanted = [condition(task, "chosen", {0: (1,)}), condition(task, "random", {0: (2,)})]
    with again() as one:
        first = one.measure(wanted)
    identity, *kept = map(json.loads, rows.read_text().splitlines())
    assert list(identity["identity"]) == ["model", "reader", "data", "seed"]
    assert kept[0]["value"] == {"per_text": [1.5, 2.0, 4.0], "also": {"off": 1.0}, "touched": 10}
    task.n_asked = 0
    with again() as other:
        second = other.measure(wanted)
    assert task.n_asked == 1  # the intact model
    assert [one.values.tolist() for one in second] == [one.values.tolist() for one in first]
    assert lines == [f"{one.loaded.name}: soon", f"{rows}: every measurement is taken from there"]
    with pytest.raises(BadInput, match="seed was 3, is 4"), again(seed=4):
        pass


@given(st.integers(0, 999), st.integers(1, 4))
def test_random_sets_are_different_sets_of_any_dimensions_but_the_tested_one(seed: int, size: int) -> None:
    tested = set(range(3, 3 + size))
    sets = random_sets(20, size, n=19, seed=seed, other_than=tested)
    assert len(set(sets)) == len(sets) == 19
    assert all(len(set(dims)) == size and list(dims) == sorted(dims) and set(dims) != tested for dims in sets)
    assert set(random_sets(20, size, n=20, seed=seed)) >= set(sets)  # the tested set itself takes one place at most
    spared = random_sets(20, size, n=15, seed=seed, avoid={3, 7})
    assert len(spared) == 15
    assert not any(set(dims) & {3, 7} for dims in spared)


def test_there_are_no_more_random_sets_than_exist() -> None:
    assert sorted(random_sets(4, 2, n=99, seed=0, other_than=(1, 2))) == [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]
    assert sorted(random_sets(5, 1, n=99, seed=0, other_than=(2,), avoid=(2, 4))) == [(0,), (1,), (3,)]
    with pytest.raises(BadInput, match="no other set of 2 can be drawn from 1 of 4 dimensions"):
        random_sets(4, 2, avoid={0, 1, 2}, n=1, seed=0)
    with pytest.raises(BadInput, match="no other set of 2"):
        random_sets(2, 2, n=1, seed=0, other_than=(0, 1))


def test_random_sets_reach_every_dimension_equally() -> None:
    sets = [dims for seed in range(300) for dims in random_sets(10, 2, n=15, seed=seed, avoid={0})]
    counts = np.bincount([dim for dims in sets for dim in dims], minlength=10)
    assert counts[0] == 0
    assert counts[1:] == pytest.approx(np.full(9, 1000), abs=150)


@pytest.mark.parametrize(("avoids", "holds"), [(False, True), (True, False)])
def test_the_rank_of_a_random_set_among_random_sets_is_a_p_value(avoids: bool, holds: bool) -> None:
    """As in mini-planted: eight of 128 dimensions carry nearly all damage, and what is tested is any eight of them.

    Among 24 sets p <= 0.04 at a rate of 0.04; among sets that avoid the tested dimensions more often.
    """
    random, n, hits = np.random.default_rng(1), 2000, 0
    for seed in range(n):
        damage = random.exponential(0.005, 128)
        damage[random.choice(128, 8, replace=False)] = random.exponential(0.2, 8)
        tested = random.choice(128, 8, replace=False)
        sets = random_sets(128, 8, n=24, seed=seed, other_than=tested, avoid=tested if avoids else ())
        hits += rank_p(damage[tested].sum(), damage[np.array(sets)].sum(axis=1)) <= 0.04
    error = np.sqrt(0.04 * 0.96 / n)
    assert bool(hits / n <= 0.04 + 2 * error) is holds
    if holds:
        assert hits / n >= 0.04 - 3 * error  # a p-value that never falls says nothing


def test_matched_sets_are_as_large_and_elsewhere() -> None:
    random = np.random.default_rng(0)
    strength = random.uniform(0, 1, (6, 200))
    strength[:, 9] = 8
    decoys = {layer: 20 + 3 * np.arange(8) + layer for layer in range(6)}
    for layer, dims in decoys.items():
        strength[layer, dims] = 7.5
    for found in matched_sets(strength, dict.fromkeys(range(6), (9,)), avoid={5}, n=10, seed=1):
        chosen = found.plan
        assert 0.7 < found.closeness < 1
        assert set(chosen) == set(range(6))
        picked = [chosen[layer][0] for layer in range(6)]
        assert not set(picked) & {5, 9}
        assert len(set(picked)) == 6  # never the same position twice while fresh ones are left
        # Positions at 7.5 that an earlier layer used are blocked, so at most a few layers fall back to lesser ones.
        assert sum(strength[layer, dim] == 7.5 for layer, dim in enumerate(picked)) >= 4
