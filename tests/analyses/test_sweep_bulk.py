"""The bulk of a sweep: its estimates by refitting, its bound over many orders, and what it says of itself."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.analyses.sweep import schedule
from outlierlens.analyses.sweep.estimate import estimate
from outlierlens.analyses.sweep.gradients import look_sizes, widened
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.schedule import Bulk, SweepState, adaptive, most_off
from outlierlens.analyses.sweep.units import Differences, Unit
from outlierlens.tasks.base import TaskOptions
from planted import model_of, some_texts

STRONG = {3: 2.0, 40: 0.6, 77: 0.3}


def heavy_tails(seed: int, n_units: int = 120, n_texts: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """Changes and gradients [unit, text] of units that are alike but for `STRONG`, log-normal over texts."""
    random = np.random.default_rng(seed)
    means = random.normal(0.012, 0.01, n_units)
    means[list(STRONG)] = list(STRONG.values())
    noise = random.lognormal(0, 1, (n_units, n_texts)) - np.exp(0.5)
    spread = (0.006 + 0.1 * np.abs(means))[:, None]
    gradients = 0.7 * means[:, None] + spread * (noise + random.normal(0, 1, noise.shape))
    return means[:, None] + spread * noise, gradients


def swept(values: np.ndarray, gradients: np.ndarray, **options: Any) -> SweepState:
    units = [Unit(str(dim), "all layers", {0: (dim,)}) for dim in range(len(values))]
    looks, asked = look_sizes(values.shape[1]), SweepOptions(top=3, **options)
    ones = np.ones(values.shape[1])
    state = SweepState(units, asked, looks, Differences(ones), gradients[:, :64].T)
    state.find_bulk(())
    for _, works in adaptive(state):
        for work in works:
            state.measured.add(work.unit.key, work.start, values[work.unit.dims[0], work.start : work.stop])
    return state


def evaluations(state: SweepState) -> int:
    return sum(state.measured.n(unit.key) for unit in state.units)


def test_the_bound_of_what_is_further_off_holds_and_texts_are_saved() -> None:
    values, gradients = heavy_tails(0)
    truth, off, held, cost = values.mean(1), [], [], []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(values.shape[1])
        state = swept(values[:, order], gradients[:, order], seed=seed, tolerance=0.006)
        together = state.together
        assert together
        assert state.bulk
        assert not set(STRONG) & set(state.bulk.members)
        assert together.furthest <= together.reach == 0.006
        missed = np.mean([abs(state.change(n) - truth[n]) > together.reach for n in state.bulk.members])
        off.append(missed)
        held.append(missed <= together.bound)
        assert min(state.measured.n(state.units[n].key) for n in state.bulk.members) == together.texts
        cost.append(evaluations(state))
    assert np.mean(off) <= 0.05
    assert np.mean(held) >= 0.95
    assert np.mean(cost) < evaluations(swept(values, gradients, bulk=False, tolerance=0.006)) / 2


def test_where_few_texts_say_too_little_every_unit_has_its_own_interval() -> None:
    values, gradients = heavy_tails(1)
    state = swept(values, gradients, tolerance=0.001)
    assert state.together is None
    assert not any(map(state.is_bulk, range(len(values))))
    assert min(state.measured.n(unit.key) for unit in state.units) >= state.looks[0]


def test_what_stands_out_is_no_member() -> None:
    values, gradients = heavy_tails(2)
    values[9, 0], gradients[20] = np.inf, gradients[20] * 40
    bulk = Bulk.of(list(range(len(values))), 0.95, 0.01, seed=0)
    bulk.divide(values[bulk.candidates, :4], gradients[bulk.candidates])
    assert not {9, 20, *STRONG} & set(bulk.members)
    assert len(bulk.members) > 100
    for may_be_off, size in enumerate((36, 54, 72)):
        bulk.audit(may_be_off)
        assert bulk.audited == list(bulk.members)[:size]
    assert Bulk.of([*range(200)], 0.99, 0.01, seed=0).candidates != [*range(200)]


@pytest.mark.parametrize("n", [1, 3])
def test_the_furthest_is_the_largest_error_of_a_fit_without_the_unit(n: int) -> None:
    random = np.random.default_rng(5)
    weights = random.uniform(1, 2, 20)
    means = random.normal(0, 0.02, 60)
    values = means[:, None] + random.normal(0, 0.01, (60, 20))
    few, further = values[:, :n], values[:36, n:]

    def bulk_of(tolerance: float) -> Bulk:
        bulk = Bulk([], 0.95, tolerance, members=dict.fromkeys(range(60)))
        bulk.audit(0)
        return bulk

    bulk = bulk_of(0.1)
    found = bulk.fit(few, further, weights, None)
    x, y = np.average(few, axis=1, weights=weights[:n]), np.average(further, axis=1, weights=weights[n:])
    errors = []
    for unit in range(36):
        others = [other for other in range(36) if other != unit]
        slope, start = np.polyfit(x[others], y[others], 1)
        errors.append(abs(y[unit] - start - slope * x[unit]))
    slope, start = np.polyfit(x[:36], y, 1)
    assert found
    assert found[50].change == pytest.approx(start + slope * x[50])
    assert found[50].half_width == pytest.approx(0.1)
    assert bulk.furthest == pytest.approx(max(errors))
    assert bulk.off == []
    assert bulk.bound == pytest.approx(most_off((36, 54, 72)))
    bulk = bulk_of(0.1)
    bulk.audited = bulk.audited[:4]
    assert bulk.fit(few, further[:4], weights, None) is None  # too few to learn from
    second = sorted(errors)[-2]
    bulk = bulk_of((max(errors) + second) / 2)
    assert bulk.fit(few, further, weights, None) is None
    assert bulk.off == [int(np.argmax(errors))]
    assert bulk.furthest == pytest.approx(second)


def test_one_that_is_off_leaves_where_enough_were_audited() -> None:
    random = np.random.default_rng(7)
    means = random.normal(0, 0.002, 100)
    values = means[:, None] + random.normal(0, 0.002, (100, 20))
    few, further = values[:, :2], values[:54, 2:].copy()
    further[40] += 0.02
    few[80] += 0.3  # its estimate will be
    bulk = Bulk([], 0.95, 0.01, members=dict.fromkeys(range(100)))
    bulk.audit(0)
    found = bulk.fit(few, further[:36], np.ones(20), None)
    assert found
    assert set(found) == {*range(100)} - {80}
    bulk.audit(1)
    found = bulk.fit(few, further, np.ones(20), None)
    assert found
    assert bulk.off == [40]
    assert set(found) == {*range(100)} - {40, 80}
    bulk.members = dict.fromkeys(found)
    assert bulk.bound == pytest.approx((100 * most_off((36, 54, 72)) - 1) / 98)
    further[[3, 5]] += 0.03
    assert bulk_again(further, few) is None, "three of 54 are too many"


def bulk_again(further: np.ndarray, few: np.ndarray) -> Any:
    """The fit of a new bulk, as many audited as there are."""
    bulk = Bulk([], 0.95, 0.01, members=dict.fromkeys(range(len(few))))
    bulk.audit(1)
    return bulk.fit(few, further, np.ones(20), None)


def test_few_are_off_by_a_chance_of_5_percent_where_the_bound_is_the_share() -> None:
    assert most_off((29,)) == pytest.approx(1 - 0.05 ** (1 / 29), abs=1e-5)  # Wilks
    assert most_off((36, 54, 72)) < 0.098
    share, random, accepted = most_off((36, 54, 72)), np.random.default_rng(0), 0
    for off in (random.random((20_000, 72)) < share).cumsum(1):
        seen = 0
        for may_be, size in enumerate((36, 54, 72)):
            seen = off[size - 1]
            if seen <= may_be:
                break
        accepted += seen <= may_be
    assert accepted / 20_000 == pytest.approx(0.05, abs=0.006)
    assert Bulk([], 0.99, 0.01).sizes == (99,)


def test_a_model_s_bulk_is_told_kept_and_resumed(words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FEWEST_UNITS", 16)
    loaded, texts = model_of("llama", "CausalLM", words, kind="causal"), some_texts(120, shortest=6)
    options = SweepOptions(
        windows="single",
        tolerance=0.05,
        n_random=0,
        n_matched=0,
        gradients=24,
        top=2,
        task=TaskOptions(blocks=True, max_length=8),
    )
    rows = tmp_path / "rows.jsonl"
    found = sweep(loaded, texts, options, rows=rows)
    assert found.together
    members = [effect for effect in found.effects if effect.stopped == "bulk"]
    assert len(members) == found.together.n
    assert {round(effect.change.high - effect.change.value, 6) for effect in members} == {
        round(found.together.reach, 6)
    }
    assert all(effect.stopped != "bulk" for effect in found.top(2))
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    again = sweep(loaded, texts, options, rows=rows)
    same = dataclasses.replace(again, provenance=found.provenance, cost=found.cost)
    assert same.together == found.together
    assert [e.change.value for e in same.effects] == pytest.approx([e.change.value for e in found.effects])


def test_intervals_are_as_wide_as_all_units_together_are_skewed_or_one_is() -> None:
    random = np.random.default_rng(5)
    normal, skewed = random.normal(size=(40, 64)), random.lognormal(size=(40, 64))

    def widths(values: np.ndarray, first: int) -> np.ndarray:
        units = [Unit(str(dim), "all layers", {0: (dim,)}) for dim in range(len(values))]
        state = SweepState(units, SweepOptions(), look_sizes(2000), Differences(np.ones(2000)))
        for unit, one in zip(units, values, strict=True):
            state.measured.add(unit.key, 0, one[:first])
        state.look(range(len(units)))
        rule = state.widening
        shares = [rule.share(one[:first]) for one in values]
        together = 1.0 if len(values) < 16 else np.mean(shares) + 2 * np.std(shares, ddof=1) / np.sqrt(len(values))
        for one, found, share in zip(values, state.estimates, shares, strict=True):
            assert found
            level = widened(first, 0.95, rule.of(max(together, share)))
            expected = estimate(one[:first], np.ones(64), level)
            expected = state.rare.allowed_for(expected, one[:first]) if state.rare else expected
            assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        return np.array([found.half_width / found.spread for found in state.estimates if found])

    plain = widths(normal, 32)
    assert np.median(widths(skewed, 32)) > 1.2 * np.median(plain)
    both = widths(np.concatenate([normal, skewed[:2]]), 32)
    assert np.median(both[:40]) < 1.1 * np.median(plain)
    assert both[40:].min() > 1.1 * np.median(plain)
    assert np.median(widths(normal[:10], 32)) > 1.2 * np.median(plain)  # too few to tell
