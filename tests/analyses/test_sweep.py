"""The sweep as a whole: against a plain loop of `ablate`, its windows, sets, nulls, rows and decisions."""

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlierlens.ablation.controls import random_families
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.sweep.gradients import first_order
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.runner import Runner, make_runner
from outlierlens.analyses.sweep.units import LocalEngine, Unit, Work, planned
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import from_json, to_json
from outlierlens.tasks import language_model
from outlierlens.tasks.base import TaskOptions
from planted import model_of
from row_files import assert_same_table

MANY = Texts("test", tuple(" ".join(f"w{(5 * i + j * j) % 35}" for j in range(3 + i % 17)) for i in range(60)))
BLOCKS = TaskOptions(blocks=True, max_length=8)
LINES = TaskOptions(max_length=32)
TOLERANCE = 0.08


@pytest.fixture(scope="module")
def bert(words: Any) -> LoadedModel:
    loaded = model_of("bert", "MaskedLM", words)
    spread(loaded, {5: 6.0, 9: 3.0})
    return loaded


@pytest.fixture(scope="module")
def llama(words: Any) -> LoadedModel:
    return model_of("llama", "CausalLM", words, kind="causal")


@pytest.fixture(scope="module")
def begun(words: Any) -> LoadedModel:
    """A Llama whose tokenizer puts [CLS] before a text."""
    return model_of("llama", "CausalLM", words, kind="begun")


def spread(loaded: LoadedModel, factors: dict[int, float]) -> None:
    """Make some dimensions matter more: their scale in every block's last norm is multiplied."""
    parameters = dict(loaded.model.named_parameters())
    with torch.no_grad():
        for layer in loaded.stacks[0].scale:
            for dim, factor in factors.items():
                parameters[layer[0].name][dim] *= factor


def small(**changes: Any) -> SweepOptions:
    return SweepOptions(**{"task": LINES, "n_random": 0, "n_matched": 0, "with_found": False, **changes})


@pytest.mark.parametrize("mode", ["weights", "zero", "writes"])
@pytest.mark.parametrize("name", ["bert", "llama", "begun"])
def test_exact_is_a_plain_loop_of_ablate(name: str, mode: Any, request: pytest.FixtureRequest) -> None:
    loaded, task = request.getfixturevalue(name), LINES if name == "bert" else BLOCKS
    dims = (0, 5, 9)
    swept = sweep(loaded, MANY, small(exact=True, mode=mode, dims=dims, sets=((1, 5),), task=task))
    options = AblateOptions(modes=(mode,), n_random=0, n_matched=0, avoid=(), task=task)
    for effect in swept.effects:
        plain = ablate(loaded, MANY, effect.dims, options)
        assert effect.change.value == pytest.approx(plain.chosen.change.value, rel=1e-4, abs=1e-6)
        assert effect.n_texts == plain.about.n_texts == swept.about.n_texts
        assert effect.n_parameters == (plain.chosen.n_set or 0)
        assert effect.stopped == "all texts"
    assert swept.intact.value == pytest.approx(plain.intact.value.value, rel=1e-5)
    assert swept.text == ("line of at most 32 tokens" if name == "bert" else "block of 8 tokens")
    assert [effect.label for effect in swept.effects] == ["0", "5", "9", "1, 5"]


def test_windows_by_the_plain_loop(bert: LoadedModel) -> None:
    n_layers = bert.stacks[0].n_layers
    layers = {
        "single": [(layer,) for layer in range(n_layers)],
        "from": [tuple(range(layer, n_layers)) for layer in range(n_layers)],
        "upto": [tuple(range(layer + 1)) for layer in range(n_layers)],
    }
    for windows, expected in layers.items():
        swept = sweep(bert, MANY, small(exact=True, windows=windows, dims=(5,)))
        assert [effect.layers for effect in swept.effects] == expected
        for effect in swept.effects:
            options = AblateOptions(n_random=0, n_matched=0, avoid=(), layers=effect.layers, task=LINES)
            plain = ablate(bert, MANY, (5,), options)
            assert effect.change.value == pytest.approx(plain.chosen.change.value, rel=1e-4, abs=1e-6)


def test_a_plan_layer_by_layer_and_its_controls(bert: LoadedModel) -> None:
    plan = {0: (5, 9), 1: (5,)}
    swept = sweep(bert, MANY, small(exact=True, dims=(), plans=(plan,), n_random=4))
    (effect,) = swept.effects
    assert effect.by_layer == plan
    assert effect.label == "layers 0: 5, 9; layers 1: 5"
    plain = ablate(bert, MANY, plan, AblateOptions(n_random=0, n_matched=0, avoid=(), task=LINES))
    assert effect.change.value == pytest.approx(plain.chosen.change.value, rel=1e-4)
    null = swept.nulls[0]
    assert (null.kind, null.window) == ("random", "layer by layer")
    assert len(null.changes) == 4
    assert swept.windows_swept == ()


def test_adaptive_intervals_hold_the_exhaustive_values(bert: LoadedModel) -> None:
    exact = sweep(bert, MANY, small(exact=True))
    for gradients in (0, 24):
        adaptive = sweep(bert, MANY, small(tolerance=TOLERANCE, gradients=gradients, top=0, level=0.99))
        assert adaptive.cost.effects < 0.9 * exact.cost.effects
        inside = [
            a.low <= e.change.value <= a.change.high for a, e in zip(adaptive.effects, exact.effects, strict=True)
        ]
        assert np.mean(inside) >= 0.93
        for effect in adaptive.effects:
            goal = max(TOLERANCE, 0.1 * abs(effect.change.value))
            assert effect.stopped != "precise" or effect.change.high - effect.low <= 2.0001 * goal
        assert adaptive.effects[0].n_texts in adaptive.looks
        assert (adaptive.effects[3].first_order is None) == (gradients == 0)


def test_the_strongest_are_told_apart_or_measured_on_all_texts(bert: LoadedModel) -> None:
    exact = sweep(bert, MANY, small(exact=True))
    adaptive = sweep(bert, MANY, small(tolerance=TOLERANCE, top=3))
    for place, (one, other) in enumerate(zip(adaptive.top(3), exact.top(3), strict=True)):
        swapped = abs(exact.effect(one.dims[0]).change.value - other.change.value)
        assert swapped <= TOLERANCE, f"place {place}: {one.label} for {other.label}"
    assert adaptive.separated or all(e.stopped == "all texts" for e in adaptive.top(3))


def test_ranks_and_their_adjustment_by_hand(bert: LoadedModel) -> None:
    swept = sweep(bert, MANY, small(exact=True))
    changes = np.array([effect.change.value for effect in swept.effects])
    for effect in swept.effects:
        others = np.delete(changes, effect.dims[0])
        assert effect.p == pytest.approx((1 + np.sum(others >= effect.change.value)) / (1 + len(others)))
        assert (effect.q_found is not None) == (effect.dims[0] in swept.found)
    rest = np.mean([effect.change.value for effect in swept.effects if effect.dims[0] not in swept.found])
    assert swept.effect(5).times_random == (pytest.approx(swept.effect(5).change.value / rest) if rest > 0 else None)


def test_sets_stand_beside_random_and_matched_sets_on_the_same_texts(bert: LoadedModel) -> None:
    options = small(dims=(), sets=((5, 9),), n_random=20, n_matched=5, random_texts=10)
    swept = sweep(bert, MANY, options)
    random_null, ordinary, matched = swept.nulls
    assert (random_null.kind, ordinary.kind, matched.kind) == ("random", "ordinary", "matched")
    assert len(random_null.changes) == len(ordinary.changes) == 20
    assert random_null.n_texts == matched.n_texts == 16  # the next look
    assert random_null.changes == tuple(sorted(random_null.changes))
    assert random_null.p == (1 + sum(c >= random_null.change for c in random_null.changes)) / (
        1 + len(random_null.changes)
    )
    assert (random_null.q, ordinary.p, matched.p) == (random_null.p, None, None)
    assert swept.effects[0].times_random == ordinary.times_mean
    named = {5, 9, *swept.found}
    drawn = [dims for sets in random_families(swept.width, (5, 9), avoid=named, n=20, seed=0).values() for dims in sets]
    assert swept.cost.nulls == 16 * (
        len(set(drawn)) + len(matched.changes)
    )  # most are of both kinds, and measured once


def test_a_listed_dimension_is_no_control_of_its_own(bert: LoadedModel) -> None:
    swept = sweep(bert, MANY, small(dims=(5, 9), n_random=99, exact=True))
    for effect in swept.effects:
        null = next(n for n in swept.nulls if n.kind == "random" and n.label == effect.label)
        assert len(null.changes) == swept.width - 1
        other = next(one for one in swept.effects if one is not effect)
        assert any(change == pytest.approx(other.change.value, rel=1e-6) for change in null.changes)
        ordinary = next(n for n in swept.nulls if n.kind == "ordinary" and n.label == effect.label)
        assert len(ordinary.changes) == swept.width - len({5, 9, *swept.found})
    assert (
        swept.cost.nulls == (swept.width - 2) * swept.about.n_texts
    )  # each dimension once, swept ones among the effects
    assert f"{swept.width - 1} random sets of 1 instead of 99: there are no more" in swept.notes


def test_another_sweep_uses_the_rows_that_fit_and_refuses_others(bert: LoadedModel, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    options = small(tolerance=0.02, gradients=24, n_random=3, sets=((1, 2),))
    sweep(bert, MANY, options, rows=rows)
    keys = [json.loads(line)["key"] for line in rows.read_text().splitlines()[1:]]
    assert len(set(keys)) == len(keys)
    before, measured = rows.read_text(), list[str]()
    wider = dataclasses.replace(options, tolerance=0.5, top=0)
    sweep(bert, MANY, wider, rows=rows, progress=lambda phase, *_: measured.append(phase))
    assert rows.read_text() == before, "a wider tolerance needs nothing new"
    assert set(measured) <= {"gradients"}  # which are told of before the rows are asked
    for change, what in (
        ({"seed": 1}, "seed was 0, is 1"),
        ({"mode": "zero"}, "mode was 'zeroed_weights', is 'edited_hidden zero'"),
        ({"task": dataclasses.replace(LINES, mask_fraction=0.3)}, "task mask_fraction was 0.15, is 0.3"),
    ):
        with pytest.raises(BadInput, match=what):
            sweep(bert, MANY, dataclasses.replace(options, **change), rows=rows)
    with pytest.raises(BadInput, match="data was"):
        sweep(bert, Texts("other", MANY.texts[1:]), options, rows=rows)


class Disorderly(LocalEngine):
    """Does everything, last things first and one unit at a time."""

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        shuffled = list(works)
        random.Random(3).shuffle(shuffled)
        for work in shuffled:
            yield work, self.runner.values([work.unit.plan], (work.start, work.stop))[0]


def test_the_order_of_answers_does_not_matter(bert: LoadedModel) -> None:
    options = small(tolerance=0.02, gradients=24, n_random=3, sets=((1, 2),))
    assert_same_table(sweep(bert, MANY, options, engine=Disorderly), sweep(bert, MANY, options))


def test_first_order_is_the_limit_of_small_changes(bert: LoadedModel, llama: LoadedModel) -> None:
    for loaded, task in ((bert, LINES), (llama, BLOCKS)):
        runner = make_runner(loaded, MANY, small(mode="scale", factor=0.999, task=task))
        units = planned(small(dims=(0, 5), sets=((1, 2),)), runner.stack.n_layers, runner.width, ())
        units += [Unit("by layer", "", {0: (3,), 1: (4, 5)})]
        span = (0, 8)
        values = runner.values([{}, *(unit.plan for unit in units)], span)
        np.testing.assert_allclose(
            first_order(runner, units, span).T, values[1:] - values[0], rtol=0.1, atol=2e-5 if loaded is bert else 5e-6
        )
        assert all(parameter.requires_grad for parameter in loaded.model.parameters())


def test_blocks_before_the_first_touched_layer_run_once(bert: LoadedModel) -> None:
    runner = make_runner(bert, MANY, small())
    last = runner.stack.n_layers - 1
    plans = [{last: (dim,)} for dim in range(12)]
    rows = {0: 0, last: 0}
    hooks = [
        bert.model.get_submodule(runner.stack.blocks[layer]).intermediate.register_forward_hook(
            lambda _, args, output, layer=layer: rows.__setitem__(layer, rows[layer] + len(output))
        )
        for layer in rows
    ]
    values = runner.values(plans, (0, 8))
    for hook in hooks:
        hook.remove()
    assert rows[0] == 8
    assert rows[last] == 16  # once as it is, once with its last operation off
    plain = np.stack([runner.alone(plan, (0, 8)) for plan in plans])
    np.testing.assert_allclose(values, plain, rtol=1e-5)


def test_batches_shrink_when_memory_runs_out(bert: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(bert, MANY, small())
    whole = runner.values([{}, {0: (5,)}], (0, 16))
    before, sums = runner.tokens, runner.task.sums

    def scarce(feed: Any) -> Any:
        if feed.inputs["input_ids"].numel() > 64:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return sums(feed)

    monkeypatch.setattr(runner.task, "sums", scarce)
    np.testing.assert_allclose(runner.values([{}, {0: (5,)}], (0, 16)), whole, rtol=1e-5)
    assert runner.tokens <= 64 < before
    monkeypatch.setattr(runner.task, "sums", lambda feed: (_ for _ in ()).throw(RuntimeError("shape mismatch")))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        runner.values([{}], (0, 16))


def test_a_way_that_gives_other_numbers_is_given_up(bert: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "_resumed", lambda self, plans, span: self._mixed(plans, span, None) + 1)
    runner = make_runner(bert, MANY, small())
    assert (runner.mixes, runner.reuses) == (True, False)
    assert "reusing the part before the first touched layer gives other numbers" in runner.notes[0]
    mixed = Runner._mixed
    monkeypatch.setattr(Runner, "_mixed", lambda self, plans, span, kept: mixed(self, plans, span, kept) * 2)
    runner = make_runner(bert, MANY, small())
    assert (runner.mixes, runner.reuses) == (False, False)
    assert "mixing several ablations in a batch gives other numbers" in runner.notes[0]


def test_reduced_precision_is_measured_and_the_model_comes_back(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words)
    loaded.model.bfloat16()
    before = {name: value.clone() for name, value in loaded.model.named_parameters()}
    swept = sweep(loaded, MANY, small(exact=True, dims=(1, 2, 3)))
    assert swept.precision.dtype == "bfloat16"
    assert 0 < swept.precision.deviation < 0.1
    assert swept.precision.n_sets == 3
    runner = make_runner(loaded, MANY, small(exact=True))
    span = (0, swept.precision.n_texts)
    reduced = runner.values([{}], span)[0]
    loaded.model.float()
    moved = np.average(reduced - runner.values([{}], span)[0], weights=runner.weights[: span[1]])
    assert swept.precision.intact == pytest.approx(moved, rel=1e-4)
    assert abs(moved) > 1e-6
    loaded.model.bfloat16()
    for name, value in loaded.model.named_parameters():
        assert value.dtype is torch.bfloat16
        assert torch.equal(value, before[name])


def test_headless_encoders_are_swept_by_the_change_of_their_output(words: Any) -> None:
    loaded = model_of("bert", "", words)
    swept = sweep(loaded, MANY, small(exact=True, dims=(0, 1)))
    assert (swept.about.task, swept.about.unit) == ("output change", "cosine distance")
    assert all(effect.change.value > 0 and effect.first_order is None for effect in swept.effects)
    assert swept.intact.value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": ()}, "nothing to sweep"),
        ({"layers": (99,)}, "not all layers of this stream"),
        ({"plans": ({0: (10_000,)},)}, "does not fit this stream"),
    ],
)
def test_wrong_options_are_told(bert: LoadedModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        sweep(bert, MANY, small(**options))


def test_rows_of_windows_that_began_otherwise_are_not_gone_on_with(
    begun: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        bare.setattr(language_model, "added_ends", lambda *_: ((), ()))
        sweep(begun, MANY, small(), rows=tmp_path / "sweep.jsonl")
        ablate(begun, MANY, (5,), AblateOptions(task=LINES, n_random=1, n_matched=0), rows=tmp_path / "one.jsonl")
    refused = r"holds rows of other work \(begins with was None, is \[\d+\]\)"
    with pytest.raises(BadInput, match=refused):
        sweep(begun, MANY, small(), rows=tmp_path / "sweep.jsonl")
    with pytest.raises(BadInput, match=refused):
        ablate(begun, MANY, (5,), AblateOptions(task=LINES, n_random=1, n_matched=0), rows=tmp_path / "one.jsonl")


def test_a_loss_that_is_no_number_is_said_to_be_none(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was shown as +∞: a number that nobody measured. It still ranks above every number."""
    measure = Runner.values

    def values(runner: Runner, plans: Sequence[dict[int, tuple[int, ...]]], *rest: Any) -> np.ndarray:
        found = measure(runner, plans, *rest)
        found[[plan.get(0) == (5,) for plan in plans], 1] = np.nan
        return found

    monkeypatch.setattr(Runner, "values", values)
    found = sweep(llama, MANY, small(dims="all", n_random=3))
    lost, *others = found.top(3)
    assert (lost.label, lost.p, lost.times_random) == ("5", 1 / found.width, None)
    assert np.isnan([lost.change.value, lost.low, lost.change.high]).all()
    assert all(effect.finite for effect in others)
    assert np.isnan(from_json(to_json(found)).top(1)[0].change.value)
    (section,) = found.sections()
    assert section.tables[0].rows[0][:3] == ("5", None, None)
    assert "∞" not in str(section.tables)
    assert found.heavy[0] == lost
    assert "With 5 ablated, each alone, the causal loss is infinite or undefined." in section.sentences[0]


def test_neurons_of_a_block_are_swept_as_disable_switches_them_off(llama: LoadedModel) -> None:
    texts = MANY.first(16)
    found = sweep(
        llama, texts, SweepOptions(stack="mlp", windows="single", layers=(1,), exact=True, task=LINES, n_matched=0)
    )
    assert (found.about.kind, found.width, len(found.effects)) == (
        "neuron",
        llama.config["intermediate_size"],
        found.width,
    )
    assert found.effects[3].label == "1:3"
    damage = ablate(llama, texts, {1: (3,)}, AblateOptions(stack="mlp", n_random=0, n_matched=0, task=LINES))
    assert found.effects[3].change.value == pytest.approx(damage.chosen.change.value, abs=1e-6)
    assert to_json(from_json(to_json(found))) == to_json(found)


def test_a_neuron_stands_beside_random_and_matched_ones_of_its_block(llama: LoadedModel) -> None:
    options = SweepOptions(
        stack="mlp", dims=(), plans=({1: (3,)},), exact=True, n_random=6, n_matched=4, task=LINES, random_texts=16
    )
    found = sweep(llama, MANY.first(16), options)
    assert [effect.label for effect in found.effects] == ["1:3"]
    assert {null.kind for null in found.nulls} == {"random", "ordinary", "matched"}
    with pytest.raises(BadInput, match="a neuron belongs to one block"):
        sweep(llama, MANY.first(4), dataclasses.replace(options, dims=(3,)))
