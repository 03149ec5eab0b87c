"""Attacks on tiny models: planted values found first, bits by hand, restored bit for bit, budgets kept, every edit caught."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attack_results
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.attack.edits import ValueChange, Values, changes_of, edited_values, flips, gather, moves_of
from outlierlens.experiments.attack.measure import attack, cut_texts
from outlierlens.experiments.attack.options import AttackOptions, SearchOptions
from outlierlens.experiments.attack.places import drawn, found_dims, tolerances, widest
from outlierlens.experiments.attack.result import KINDS, Attack
from outlierlens.experiments.attack.saving import check_save, mark_safetensors, save_attacked
from outlierlens.experiments.integrity.fingerprint import fingerprint
from outlierlens.experiments.integrity.options import FingerprintOptions
from outlierlens.experiments.integrity.verify import verify
from outlierlens.models.load import LoadedModel
from outlierlens.results.document import from_json, to_json
from outlierlens.tasks.base import TaskOptions
from planted import tiny

PLANTED = 5
TEXTS = Texts("test", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(9)) for i in range(8)))
QUICK = SearchOptions(n_single=4, n_sets=4)


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    """A small Llama."""
    return tiny("llama", "CausalLM", "causal")


@pytest.fixture(scope="module")
def found(llama: LoadedModel) -> Attack:
    options = AttackOptions(budget=3, search=QUICK, n_search=3, n_random=2, anywhere=True, dims=(1, PLANTED))
    return attack(llama, TEXTS, options)


def bits(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same_bits(model: Any, before: dict[str, torch.Tensor]) -> bool:
    return all(
        torch.equal(value.view(torch.int32), before[name].view(torch.int32)) for name, value in model.named_parameters()
    )


def values_of(before: list[float], dtype: str = "float32") -> Values:
    return replace(gather({"w": torch.tensor(before, dtype=getattr(torch, dtype))}, [("w", np.arange(len(before)))]))


def test_planted_value_of_a_headless_model_is_found_first() -> None:
    """The last norm adds 30 to one dimension, so that all sentence vectors point there: its sign turns them around."""
    loaded = tiny("bert")
    name = "encoder.layer.2.output.LayerNorm.bias"
    with torch.no_grad():
        loaded.model.get_parameter(name)[PLANTED] = 30.0
    before = bits(loaded.model)
    options = AttackOptions(budget=1, kinds=("zero", "sign flip"), search=QUICK, n_search=2, n_random=1)
    one = attack(loaded, TEXTS, options)
    for kind, after, distance in (("zero", 0.0, 0.5), ("sign flip", -30.0, 1.8)):
        (edit,) = one.kind(kind).full.edits
        assert (edit.tensor, edit.index, edit.before, edit.after) == (name, (PLANTED,), 30.0, after)
        assert one.kind(kind).full.change > distance
        assert all(control.median < 0.1 for control in one.kind(kind).controls)
    assert (one.task, one.factor, one.intact) == ("sentence change", 0.0, pytest.approx(0.0, abs=1e-6))
    assert one.kind("zero").smallest is None
    assert "move the sentence change by" in one.verdict
    assert same_bits(loaded.model, before)


def test_a_run_leaves_every_bit_as_it_was(llama: LoadedModel) -> None:
    before = bits(llama.model)
    flags = [parameter.requires_grad for parameter in llama.model.parameters()]
    attack(llama, TEXTS, AttackOptions(budget=1, kinds=("zero",), search=QUICK, n_search=2, n_random=0))
    assert same_bits(llama.model, before)
    assert [parameter.requires_grad for parameter in llama.model.parameters()] == flags


def test_budgets_are_kept_and_spent(found: Attack) -> None:
    assert found.budgets == (1, 2, 3)
    for one in (*found.kinds, *found.anywhere):
        cost = 2 if one.kind == "swap" else 1
        for point in one.points:
            places = {(edit.tensor, edit.index) for edit in point.edits}
            assert len(places) == len(point.edits) == point.n_edits <= point.budget, (one.kind, one.among)
        assert one.full.n_edits <= found.budget // cost * cost
    assert found.kind("swap").points[0].n_edits == 0  # one value alone cannot trade places
    assert found.kind("sign flip").full.n_edits == 3
    assert all(control.n_edits <= 3 for one in found.kinds for control in one.controls)


def test_the_search_never_gets_weaker_on_its_own_texts(found: Attack) -> None:
    for one in found.kinds:
        searched = [point.searched for point in one.points]
        assert searched == sorted(searched)


def test_every_edit_of_a_sensitive_value_is_caught(found: Attack) -> None:
    assert found.caught == found.n_edits == sum(one.full.n_edits for one in found.kinds) > 0
    for one in found.anywhere:
        assert found.detected(one, deep=True) == (one.full.n_edits, one.full.n_edits)


def test_a_verify_of_the_intact_model_finds_nothing(llama: LoadedModel) -> None:
    from outlierlens.experiments.attack.measure import Watch

    watch = Watch(llama, (1, PLANTED))
    outside = [ValueChange("model.layers.0.mlp.up_proj.weight", 3, 9.0)]
    assert not watch.caught([])
    assert not watch.caught_deep([])
    assert not watch.caught(outside)
    assert watch.caught_deep(outside)


def test_swaps_trade_places(found: Attack) -> None:
    edits = found.kind("swap").full.edits
    assert len(edits) == 2
    assert (edits[0].before, edits[0].after) == (edits[1].after, edits[1].before)
    assert edits[0].tensor == edits[1].tensor
    assert edits[0].move == edits[1].move


def test_smallest_is_the_first_that_is_enough(llama: LoadedModel, found: Attack) -> None:
    # A factor between what one edit and what three do: at most three are needed, and one fewer is not enough.
    one = found.kind("exponent flip")
    factor = (1 + one.full.times) / 2
    options = AttackOptions(
        budget=3, kinds=("exponent flip",), search=QUICK, n_search=3, n_random=0, dims=(1, PLANTED), factor=factor
    )
    again = attack(llama, TEXTS, options).kinds[0]
    assert again.points == tuple(
        replace(new, edits=old.edits) for new, old in zip(one.points, again.points, strict=True)
    )
    assert again.smallest is not None
    assert again.smallest.times >= factor
    fewer = [point for point in again.points if point.n_edits < again.smallest.n_edits]
    assert all(point.times < factor for point in fewer)


def test_exponent_flips_by_hand() -> None:
    # 1.5 is 0 01111111 100…0: flipping bit 23 gives exponent 126, 0.75; bit 30 gives 255, no number.
    flipped = {bit: float(tensor[0]) for bit, tensor in flips(torch.tensor([1.5]))}
    assert flipped[23] == 0.75
    assert np.isnan(flipped[30])
    assert flipped[29] == 1.5 * 2.0**-64
    half = {bit: float(tensor[0]) for bit, tensor in flips(torch.tensor([1.5], dtype=torch.float16))}
    assert sorted(half) == [10, 11, 12, 13, 14]
    assert half[10] == 0.75
    assert sorted(dict(flips(torch.tensor([1.5], dtype=torch.bfloat16)))) == list(range(7, 15))


@given(
    values=st.lists(st.floats(-1e4, 1e4, width=16), min_size=2, max_size=6),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    bound=st.sampled_from([0.5, 1.0, 10.0]),
)
def test_exponent_flips_are_finite_bounded_and_one_bit_away(values: list[float], dtype: str, bound: float) -> None:
    mine = values_of(values, dtype)
    moves = moves_of("exponent flip", mine, bound=bound)
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
    sign = moves_of("sign flip", values, bound=1)
    assert (sign.place.tolist(), sign.after.tolist()) == ([0, 1], [-2.0, 1.0])
    swap = moves_of("swap", values, bound=1)
    pairs = {frozenset(pair) for pair in zip(swap.place.tolist(), swap.partner.tolist(), strict=True)}
    assert len(swap) == len(pairs) == 3
    # slopes 1, 10, 100: trading values 0 and 1 changes −3 · 1 and +3 · 10
    at = next(i for i in range(3) if {swap.place[i], swap.partner[i]} == {0, 1})
    assert swap.effects(values, np.array([[1.0, 10.0, 100.0]]))[0, at] == pytest.approx(27.0)
    assert [change.after for change in swap.changes(values, [at])] == [
        values.before[swap.partner[at]],
        values.before[swap.place[at]],
    ]


def test_norms_that_add_one_are_off_at_minus_one() -> None:
    from outlierlens.experiments.attack.places import entries_of, sensitive_values

    loaded = tiny("gemma2", "CausalLM", "causal")
    parameters = dict(loaded.model.named_parameters(remove_duplicate=False))
    values = sensitive_values(loaded, parameters, entries_of(loaded, found_dims(loaded)))
    of = {name: float(values.off[values.tensor == i][0]) for i, name in enumerate(values.names)}
    assert of["model.norm.weight"] == -1.0
    assert of["model.layers.0.mlp.down_proj.weight"] == 0.0


def test_edits_that_a_half_precision_copy_could_hide_are_no_edits() -> None:
    values = values_of([1.0, 1.0 + 2**-12, 5.0])
    fine = replace(values, tolerance=tolerances(values.before))
    moves = moves_of("swap", fine, bound=1)
    assert all({p, q} != {0, 1} for p, q in zip(moves.place.tolist(), moves.partner.tolist(), strict=True))
    assert len(moves) == 2


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ValueChange("v", 0, 1.0), "no tensor 'v'"),
        (ValueChange("w", 4, 1.0), "w has no value 4; it has 4 values"),
        (ValueChange("w", 0, 1.0), "edited twice"),
        (ValueChange("tokens", 0, 1.0), "of type torch.int64"),
    ],
)
def test_what_cannot_be_edited_is_refused_and_nothing_stays(
    weights: torch.nn.ParameterDict, change: ValueChange, message: str
) -> None:
    held = weights["w"].contiguous().view(torch.int32).clone()
    with pytest.raises(BadInput, match=message), edited_values(weights, [ValueChange("w", 0, 7.0), change]):
        raise AssertionError("entered")
    assert torch.equal(weights["w"].contiguous().view(torch.int32), held)


def test_random_edits_touch_each_value_once() -> None:
    values = values_of([float(i + 1) for i in range(20)])
    for kind in KINDS:
        cost = 2 if kind == "swap" else 1
        moves, which = drawn(values, kind, n=8 // cost, bound=10, seed=1)
        changes = moves.changes(values, which)
        assert len({change.flat for change in changes}) == len(changes) == 8
        again = drawn(values, kind, n=8 // cost, bound=10, seed=1)[1]
        assert again == which


def test_widest_finds_the_largest_slope_times_change(llama: LoadedModel) -> None:
    from outlierlens.experiments.attack.losses import Target

    target = Target(llama, TEXTS.first(3), TaskOptions(max_length=8), n_probes=1, seed=0)
    names = ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"]
    slopes = target.slopes(names)
    values = widest(target, slopes, "zero", n=2, bound=10)
    for number, name in enumerate(names):
        gain = (slopes[name][0] * -target.parameters[name]).flatten()
        assert values.flat[values.tensor == number][0] == int(gain.argmax())


def test_slopes_are_those_of_finite_differences(llama: LoadedModel) -> None:
    from outlierlens.experiments.attack.losses import Target

    target = Target(llama, TEXTS.first(3), TaskOptions(max_length=8), n_probes=1, seed=0)
    name, place, step = "model.layers.0.input_layernorm.weight", 3, 1e-2
    slope = float(target.slopes([name])[name][0, place])
    value = float(target.parameters[name].detach()[place])
    ends = []
    for sign in (1, -1):
        with edited_values(llama.model, [ValueChange(name, place, value + sign * step)]):
            ends.append(target.value())
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02, abs=1e-4)


def test_texts_are_cut_at_the_end_of_a_token(llama: LoadedModel) -> None:
    assert cut_texts(llama, TEXTS, 3).texts == tuple(" ".join(text.split()[:3]) for text in TEXTS.texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ("melt",)}, "no kind of edit is called 'melt'; kinds are zero, swap"),
        ({"kinds": ("swap",), "budget": 1}, "a swap changes two values"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        AttackOptions(**options)


def test_too_few_texts_are_refused(llama: LoadedModel) -> None:
    with pytest.raises(BadInput, match="4 choose the edits and at least one more must judge"):
        attack(llama, TEXTS.first(4))


def test_a_saved_copy_is_marked_and_caught(llama: LoadedModel, found: Attack, tmp_path: Path) -> None:
    before = bits(llama.model)
    llama.model.save_pretrained(tmp_path / "intact")
    one = found.kind("sign flip")
    assert save_attacked(llama, found, one, tmp_path / "damaged") == 3
    assert same_bits(llama.model, before)
    config = json.loads((tmp_path / "damaged" / "config.json").read_text("utf-8"))
    assert config["outlierlens_deliberately_damaged"]["tensors"] == sorted({edit.tensor for edit in one.edits})
    assert "Do not use this model" in (tmp_path / "damaged" / "README.md").read_text("utf-8")
    from safetensors import safe_open

    with safe_open(tmp_path / "damaged" / "model.safetensors", "pt") as file:
        assert "3 values changed on purpose" in file.metadata()["outlierlens_deliberately_damaged"]
        assert file.metadata()["format"] == "pt"
    with open_checkpoint(str(tmp_path / "damaged")) as damaged, open_checkpoint(str(tmp_path / "intact")) as intact:
        differ = 0
        for (name, new), (_, old) in zip(damaged.read(damaged.tensors), intact.read(damaged.tensors), strict=True):
            where = {tuple(index) for index in np.argwhere(new != old).tolist()}
            assert where == {edit.index for edit in one.edits if edit.tensor == name}
            differ += len(where)
    assert differ == 3
    print_of = fingerprint(str(tmp_path / "intact"), FingerprintOptions(dims=(1, PLANTED)))
    checked = verify(str(tmp_path / "damaged"), print_of)
    assert (checked.matches, checked.n_moved) == (False, 3)


def test_saving_is_refused_without_a_yes_or_over_something(tmp_path: Path, run: Any) -> None:
    with pytest.raises(BadInput, match="deliberately damaged copy of the model; add --yes"):
        check_save(tmp_path / "new", yes=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(BadInput, match="is not empty"):
        check_save(tmp_path / "full", yes=True)
    code, _, error = run("attack", "mini-bert", "--data", "excerpt", "--save", str(tmp_path / "new"))
    assert (code, "add --yes" in error, (tmp_path / "new").exists()) == (1, True, False)


def test_a_header_that_is_no_header_is_not_marked(tmp_path: Path) -> None:
    from outlierlens.errors import BadFile

    (tmp_path / "x.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(BadFile, match="its header cannot be read"):
        mark_safetensors(tmp_path / "x.safetensors", {"a": "b"})
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_edits_survive_json(found: Attack, llama: LoadedModel) -> None:
    same = from_json(to_json(found))
    assert same.kind("swap").full.edits == found.kind("swap").full.edits
    parameters = dict(llama.model.named_parameters(remove_duplicate=False))
    assert changes_of(same.kind("zero").full.edits, parameters) == changes_of(found.kind("zero").full.edits, parameters)


def test_views_of_a_result() -> None:
    from outlierlens import charts
    from outlierlens.experiments.attack.view import sections

    result = attack_results.attack()
    assert result.verdict == (
        "2 sign flip edits of 1,000 values multiply the causal loss by 2.5; 2 edits are enough for × 2; verify finds 2 of 2 "
        "edits of sensitive values"
    )
    drawn = charts.attack(result)
    assert drawn.rows[1][:4] == ("sign flip", "sensitive", 2, 3.0)
    assert "2 edits multiply it by 2.50" in drawn.reading
    (section,) = sections(result, verbose=True)
    assert section.sentences[0].startswith("2 sign flip edits")
    assert section.sentences[2] == "Sign flip: +3; as many random edits: median +0.01 sensitive, +0 anywhere."
    edits, sensitive, _ = section.tables
    assert edits.columns[5:7] == ("times", "edits for × 2")
    assert edits.rows[0][2:7] == (2, 3.0, (2.5, 3.5), 2.5, 2)
    assert [row[-2:] for row in edits.rows] == [("2 of 2", None), ("0 of 2", "2 of 2")]
    assert sensitive.title == "Sign flip (sensitive): 2 of 2"
    assert sensitive.rows[0] == ("norm.weight", "0", 0, 1.0, -1.0, None)
    (updates,) = sections(attack_results.update_check())
    assert updates.sentences[2] == "a: too much."
    assert [row[:2] for row in updates.tables[0].rows] == [("a", True), ("b", False), ("c", False)]
