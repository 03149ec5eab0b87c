"""The bulk of a sweep: its estimates by refitting, its bound over many orders, and what it says of itself."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.experiments.sweep import schedule
from outlierlens.experiments.sweep.bulk import Bulk
from outlierlens.experiments.sweep.levels import look_sizes
from outlierlens.experiments.sweep.measure import sweep
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.experiments.sweep.schedule import State, adaptive
from outlierlens.experiments.sweep.units import Differences, Unit
from outlierlens.experiments.sweep.view import sections
from outlierlens.results.document import from_json, to_json
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


def swept(values: np.ndarray, gradients: np.ndarray, **options: Any) -> State:
    units = [Unit(str(dim), "all layers", {0: (dim,)}) for dim in range(len(values))]
    looks, asked = look_sizes(values.shape[1]), SweepOptions(top=3, **options)
    ones = np.ones(values.shape[1])
    state = State(units, asked, looks, Differences(ones), gradients[:, :64].T)
    state.find_bulk(())
    for _, works in adaptive(state):
        for work in works:
            state.measured.add(work.unit.key, work.start, values[work.unit.dims[0], work.start : work.stop])
    return state


def evaluations(state: State) -> int:
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
        assert np.median([state.measured.n(state.units[n].key) for n in state.bulk.members]) == together.texts
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
    assert bulk.audited == list(bulk.members)[:29]
    assert Bulk.of([*range(200)], 0.99, 0.01, seed=0).candidates != [*range(200)]


@pytest.mark.parametrize("n", [1, 3])
def test_the_furthest_is_the_largest_error_of_a_fit_without_the_unit(n: int) -> None:
    random = np.random.default_rng(5)
    weights = random.uniform(1, 2, 20)
    means = random.normal(0, 0.02, 60)
    values = means[:, None] + random.normal(0, 0.01, (60, 20))
    few, further = values[:, :n], values[:25, n:]
    bulk = Bulk([], 0.95, tolerance=0.1)
    found = bulk.fit(few, further, weights, None)
    x, y = np.average(few, axis=1, weights=weights[:n]), np.average(further, axis=1, weights=weights[n:])
    errors = []
    for unit in range(25):
        others = [other for other in range(25) if other != unit]
        slope, start = np.polyfit(x[others], y[others], 1)
        errors.append(abs(y[unit] - start - slope * x[unit]))
    slope, start = np.polyfit(x[:25], y, 1)
    assert found
    assert found[50].change == pytest.approx(start + slope * x[50])
    assert found[50].half_width == pytest.approx(0.1)
    assert bulk.furthest == pytest.approx(max(errors))
    assert bulk.fit(few, further[:4], weights, None) is None  # too few to learn from
    assert Bulk([], 0.95, tolerance=0.9 * max(errors)).fit(few, further, weights, None) is None


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
    assert {round(effect.high - effect.change, 6) for effect in members} == {round(found.together.reach, 6)}
    assert all(effect.stopped != "bulk" for effect in found.top(2))
    assert to_json(from_json(to_json(found))) == to_json(found)
    (said,) = [text for text in next(iter(sections(found))).sentences if text.startswith("The bulk")]
    assert f"{found.together.n} effects" in said
    assert f"± {found.together.reach:g}" in said
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    again = sweep(loaded, texts, options, rows=rows)
    same = dataclasses.replace(again, provenance=found.provenance, cost=found.cost)
    assert same.together == found.together
    assert [effect.change for effect in same.effects] == pytest.approx([effect.change for effect in found.effects])


def test_the_strongest_are_measured_again_only_where_their_order_is_not_sure() -> None:
    values, gradients = heavy_tails(3)
    assert swept(values, gradients, tolerance=0.006).again == {3: 0, 40: 0, 77: 0}
    values[77] = values[40] + np.random.default_rng(0).permutation(np.tile([0.003, -0.003], 120))  # as strong as 40
    state = swept(values, gradients, tolerance=0.006)
    assert state.strongest()[0] == 3
    assert [state.again[number] > 0 for number in (3, 40, 77)] == [False, True, True]
    for number, chosen_by in state.again.items():
        found = state.estimates[number]
        assert found
        assert found.n_texts == state.measured.n(state.units[number].key) - chosen_by
