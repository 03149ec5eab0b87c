"""Attacks on tiny models: planted values found first, bits by hand, restored bit for bit, budgets kept, every edit caught."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlierlens.analyses.attack import Attack, AttackOptions, Watch, attack, cut_texts
from outlierlens.analyses.attack_edits import (
    KINDS,
    EditSearch,
    ValueChange,
    Values,
    edited_values,
    gather,
    moves_of,
    random_changes,
)
from outlierlens.architectures import live_parameters
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny

PLANTED = 5
TEXTS = Texts("test", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(9)) for i in range(8)))
QUICK: dict[str, Any] = {"n_single": 4, "n_sets": 4}


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    """A small Llama."""
    return tiny("llama", "CausalLM", "causal")


@pytest.fixture(scope="module")
def found(llama: LoadedModel) -> Attack:
    options = AttackOptions(budget=3, n_search=3, n_random=2, dims=(1, PLANTED), **QUICK)
    return attack(llama, TEXTS, options)


def bits(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same_bits(model: Any, before: dict[str, torch.Tensor]) -> bool:
    return all(
        torch.equal(value.view(torch.int32), before[name].view(torch.int32)) for name, value in model.named_parameters()
    )


def values_of(before: list[float], dtype: str = "float32") -> Values:
    return gather(
        {"w": torch.tensor(before, dtype=getattr(torch, dtype))}, {"w": dict.fromkeys(range(len(before)), -1)}, {}
    )


def edits_of(found: Attack, kind: str, budget: int) -> list[Any]:
    return [edit for edit in found.edits if (edit.kind, edit.budget) == (kind, budget)]


def test_a_planted_value_is_found_first() -> None:
    """One dimension alone says that every word is w1: the sign of its weight in the head's norm turns that around."""
    loaded = tiny("bert", "MaskedLM")
    texts = Texts("test", ("w1 w1 w1 w1 w1 w1",) * 8)
    w1, name = loaded.tokenizer("w1")["input_ids"][1], "cls.predictions.transform.LayerNorm.weight"  # type: ignore[misc]
    with torch.no_grad():
        loaded.model.get_parameter("bert.encoder.layer.2.output.LayerNorm.bias")[PLANTED] = 30.0
        loaded.model.get_parameter("cls.predictions.transform.dense.weight").copy_(torch.eye(16))
        loaded.model.get_parameter(name)[PLANTED] = 1.0
        decoder = loaded.model.get_parameter("cls.predictions.decoder.weight")
        decoder[:, PLANTED] = -1.0
        decoder[w1, PLANTED] = 1.0
    before = bits(loaded.model)
    options = AttackOptions(budget=1, kinds=("sign-flip",), n_search=2, n_random=1, **QUICK)
    one = attack(loaded, texts, options)
    (edit,) = edits_of(one, "sign-flip", 1)
    assert (edit.tensor, edit.index, edit.before, edit.after) == (name, (PLANTED,), 1.0, -1.0)
    assert one.intact < 0.1
    assert one.kind("sign-flip").change.value > 6
    assert same_bits(loaded.model, before)
    with pytest.raises(BadInput, match="has no language head"):
        attack(tiny("bert"), texts, options)


def test_a_run_leaves_every_bit_as_it_was(llama: LoadedModel) -> None:
    before = bits(llama.model)
    flags = [parameter.requires_grad for parameter in llama.model.parameters()]
    attack(llama, TEXTS, AttackOptions(budget=1, kinds=("zero",), n_search=2, n_random=0, **QUICK))
    assert same_bits(llama.model, before)
    assert [parameter.requires_grad for parameter in llama.model.parameters()] == flags


def test_budgets_are_kept_and_spent(found: Attack) -> None:
    assert [one.budget for one in found.points] == [1, 2, 3] * len(KINDS)
    for point in found.points:
        edits = edits_of(found, point.kind, point.budget)
        places = {(edit.tensor, edit.index) for edit in edits}
        assert len(places) == len(edits) == point.n_edits <= point.budget, point.kind
    assert found.points[3].n_edits == 0  # one value alone cannot trade places
    assert found.points[3].change.value == 0
    assert found.kind("sign-flip").n_edits == 3


def test_the_search_never_gets_weaker_on_its_own_texts(found: Attack) -> None:
    for kind in KINDS:
        searched = [point.searched for point in found.points if point.kind == kind]
        assert searched == sorted(searched)


def test_every_edit_is_caught(found: Attack) -> None:
    assert all(one.caught == one.n_edits > 0 for one in found.kinds)
    assert {edit.caught for edit in found.edits} == {True, None}


def test_a_verify_of_the_intact_model_finds_nothing(llama: LoadedModel) -> None:
    watch = Watch(llama, AttackOptions(dims=(1, PLANTED)))
    outside = [ValueChange("model.layers.0.mlp.up_proj.weight", 3, 9.0)]
    assert not watch.caught([])
    assert not watch.caught(outside)


def test_swaps_trade_places(found: Attack) -> None:
    edits = edits_of(found, "swap", 3)
    assert len(edits) == 2
    assert (edits[0].before, edits[0].after) == (edits[1].after, edits[1].before)
    assert edits[0].tensor == edits[1].tensor
    assert edits[0].move == edits[1].move


def test_the_fewest_edits_are_of_the_first_budget_that_is_enough(llama: LoadedModel, found: Attack) -> None:
    one = found.kind("exponent-flip")
    assert one.enough is None  # of the factor 2
    factor = (1 + one.times) / 2
    options = AttackOptions(
        budget=3, kinds=("exponent-flip",), n_search=3, n_random=0, dims=(1, PLANTED), factor=factor, **QUICK
    )
    again = attack(llama, TEXTS, options)
    assert [point.change for point in again.points] == [p.change for p in found.points if p.kind == "exponent-flip"]
    enough = [point.n_edits for point in again.points if point.times >= factor]
    assert again.kind("exponent-flip").enough == enough[0]


def test_exponent_flips_by_hand() -> None:
    # 1.5 is 0 01111111 100…0: flipping bit 23 gives exponent 126, 0.75; bit 30 gives 255, no number.
    flipped = moves_of("exponent-flip", values_of([1.5]), bound=10)
    by_bit = dict(zip(flipped.bit.tolist(), flipped.after.tolist(), strict=True))
    assert by_bit == {23: 0.75} | {23 + i: 1.5 * 2.0 ** -(2**i) for i in range(1, 7)}
    half = moves_of("exponent-flip", values_of([1.5], "float16"), bound=10)
    assert half.bit.tolist() == [10, 11, 12, 13]
    assert half.after[0] == 0.75
    assert moves_of("exponent-flip", values_of([1.5], "bfloat16"), bound=10).bit.tolist() == list(range(7, 14))


@given(
    values=st.lists(st.floats(-1e4, 1e4, width=16), min_size=2, max_size=6),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    bound=st.sampled_from([0.5, 1.0, 10.0]),
)
def test_exponent_flips_are_finite_bounded_and_one_bit_away(values: list[float], dtype: str, bound: float) -> None:
    mine = values_of(values, dtype)
    moves = moves_of("exponent-flip", mine, bound=bound)
    assert np.isfinite(moves.after).all()
    assert (np.abs(moves.after) <= bound * mine.largest[moves.place]).all()
    integers = {"float16": np.uint16, "float32": np.uint32, "float64": np.uint64}
    if dtype in integers:
        held, new = (side.astype(dtype).view(integers[dtype]) for side in (mine.before[moves.place], moves.after))
        assert ((held ^ new) == (integers[dtype](1) << moves.bit.astype(integers[dtype]))).all()


def test_moves_by_hand() -> None:
    values = values_of([2.0, -1.0, 0.0])
    zero = moves_of("zero", values, bound=1)
    assert (zero.place.tolist(), zero.after.tolist()) == ([0, 1], [0.0, 0.0])  # 0 cannot become 0
    sign = moves_of("sign-flip", values, bound=1)
    assert (sign.place.tolist(), sign.after.tolist()) == ([0, 1], [-2.0, 1.0])
    swap = moves_of("swap", values, bound=1)
    pairs = {frozenset(pair) for pair in zip(swap.place.tolist(), swap.partner.tolist(), strict=True)}
    assert len(swap.place) == len(pairs) == 3
    at = next(i for i in range(3) if {swap.place[i], swap.partner[i]} == {0, 1})
    assert {change.flat: change.after for change in swap.changes([at])} == {0: -1.0, 1: 2.0}


def test_norms_that_add_one_are_off_at_minus_one() -> None:
    values = Watch(tiny("gemma2", "CausalLM", "causal"), AttackOptions()).values
    of = {name: float(values.off[values.tensor == i][0]) for i, name in enumerate(values.names)}
    assert of["model.norm.weight"] == -1.0
    assert of["model.layers.0.mlp.down_proj.weight"] == 0.0


def test_edits_that_a_half_precision_copy_could_hide_are_no_edits() -> None:
    moves = moves_of("swap", values_of([1.0, 1.0 + 2**-12, 5.0]), bound=1)
    assert all({p, q} != {0, 1} for p, q in zip(moves.place.tolist(), moves.partner.tolist(), strict=True))
    assert len(moves.place) == 2


@pytest.fixture
def weights() -> torch.nn.ParameterDict:
    values = {"w": torch.tensor([[1.0, -0.0], [float("nan"), 3.0]]).T, "tokens": torch.tensor([1, 2])}
    return torch.nn.ParameterDict({name: torch.nn.Parameter(one, requires_grad=False) for name, one in values.items()})


def test_restored_bit_for_bit_after_an_error(weights: torch.nn.ParameterDict) -> None:
    held = weights["w"].contiguous().view(torch.int32).clone()

    def fail() -> None:
        with edited_values(weights, [ValueChange("w", 0, 7.0), ValueChange("w", 1, 8.0)]) as n_values:
            assert (n_values, weights["w"].tolist()[0]) == (2, [7.0, 8.0])  # however the tensor lies in memory
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(weights["w"].contiguous().view(torch.int32), held)


def test_what_cannot_be_edited_is_refused_and_nothing_stays(weights: torch.nn.ParameterDict) -> None:
    held = weights["w"].contiguous().view(torch.int32).clone()
    changes = [ValueChange("w", 0, 7.0), ValueChange("tokens", 0, 1.0)]
    with pytest.raises(BadInput, match=r"of type torch.int64"), edited_values(weights, changes):
        raise AssertionError("entered")
    assert torch.equal(weights["w"].contiguous().view(torch.int32), held)


def test_random_edits_touch_each_value_once() -> None:
    values = values_of([float(i + 1) for i in range(20)])
    for kind in KINDS:
        n = 4 if kind == "swap" else 8
        changes = random_changes(values, kind, n=n, bound=10, seed=1)
        assert len({change.flat for change in changes}) == len(changes) == 8
        assert random_changes(values, kind, n=n, bound=10, seed=1) == changes


def test_slopes_are_those_of_finite_differences(llama: LoadedModel) -> None:
    name, place, step = "model.layers.0.input_layernorm.weight", 3, 1e-2
    values = gather(live_parameters(llama.model), {name: {place: place}}, {})
    task = make_task(llama, TEXTS.first(3), TaskOptions(max_length=8))
    search = EditSearch(llama, task, values, (), AttackOptions())
    ends = [search.value([ValueChange(name, place, values.before[0] + sign * step)]) for sign in (1, -1)]
    assert search.intact_slopes[0] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02, abs=1e-4)


def test_texts_are_cut_at_the_end_of_a_token(llama: LoadedModel) -> None:
    assert cut_texts(llama, TEXTS, 3).texts == tuple(" ".join(text.split()[:3]) for text in TEXTS.texts)


def test_a_swap_needs_two_values() -> None:
    with pytest.raises(BadInput, match="a swap changes two values"):
        AttackOptions(kinds=("swap",), budget=1)


def test_too_few_texts_are_refused(llama: LoadedModel) -> None:
    with pytest.raises(BadInput, match="4 choose the edits and at least one more must judge"):
        attack(llama, TEXTS.first(4))
