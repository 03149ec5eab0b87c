"""The whole `ablate`: controls of its result, resume, saving."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from every_command import FEW, QUIET, M, call, fill
from moments import contents
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.study import Control
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.ablate_sets import size_alone
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.detection.activations import magnitude
from outlierlens.errors import BadInput
from outlierlens.models.load import load_model
from outlierlens.results.document import from_json, to_json
from outlierlens.results.rows import Estimate
from planted import tiny, turning_texts

TEXTS = turning_texts(8 + i % 6 for i in range(18))


@pytest.mark.parametrize(
    ("family", "head", "kind", "mode"),
    [
        ("bert", "MaskedLM", "masked", "weights"),
        ("gpt2", "CausalLM", "causal", "zero"),
        ("llama", "CausalLM", "causal", "writes"),
        ("bert", "", "masked", "resample"),
        ("gpt2", "CausalLM", "causal", "mean"),
        ("bert", "TokenClassification", "masked", "scale:0.5"),
    ],
)
def test_ablate_end_to_end(family: str, head: str, kind: str, mode: Any, tmp_path: Path) -> None:
    loaded = tiny(family, head, kind)
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    options = AblateOptions(modes=(mode,), n_random=9, n_matched=3)
    damage = ablate(loaded, TEXTS, [2, 5], options)
    assert all(torch.equal(before[key], value) for key, value in loaded.model.state_dict().items())
    random, matched = damage.family("random"), damage.family("matched")
    sets = {kind: [one for one in damage.controls if one.family == kind] for kind in ("random", "matched")}
    assert len({one.dims for one in sets["random"]} - {"2, 5"}) == 9
    assert matched.p is None  # weights elsewhere are not what the chosen ones could as well be
    assert all(set(one.plan) == {0, 1, 2} for one in sets["matched"])
    changes, chosen = [one.change.value for one in sets["random"]], damage.chosen.change
    assert list(random.sets) == changes
    assert random.p == (1 + sum(change >= chosen.value for change in changes)) / 10
    assert random.median == pytest.approx(np.median(changes))
    assert chosen.value == pytest.approx(damage.chosen.value.value - damage.intact.value.value, abs=1e-9)
    assert chosen.low <= chosen.value <= chosen.high
    again = from_json(to_json(damage))
    assert to_json(again) == to_json(damage)
    # A fresh ablation measured alone gives the number in the table.
    alone = ablate(loaded, TEXTS, sets["random"][0].plan, AblateOptions(modes=(mode,), n_random=0, n_matched=0))
    if mode != "resample":  # its permutations depend on how many passes came before
        assert alone.chosen.change.value == pytest.approx(changes[0], abs=1e-9)
    assert alone.controls == alone.families == ()


def test_per_layer_sets_and_layer_ranges() -> None:
    loaded = tiny("bert", "MaskedLM")
    damage = ablate(loaded, TEXTS, {0: [1], 1: [1, 2]}, AblateOptions(n_random=3, n_matched=3))
    assert damage.about.layers == (0, 1)
    assert damage.chosen.n_set == 6
    for condition in damage.controls[:3]:
        # One dimension stays one dimension: what is off in layer 0 is off in layer 1 too.
        assert {layer: len(dims) for layer, dims in condition.plan.items()} == {0: 1, 1: 2}
        assert set(condition.plan[0]) < set(condition.plan[1])
    for condition in damage.controls[-3:]:
        assert not set(condition.plan[0]) & set(condition.plan[1])
    part = ablate(loaded, TEXTS, [1], AblateOptions(layers=(2,), n_random=3, n_matched=2))
    assert part.about.layers == (2,)
    assert part.chosen.n_set == 2


def test_a_map_of_some_layers_leaves_the_others_on() -> None:
    loaded = tiny("bert", "MaskedLM")
    options = AblateOptions(n_random=2, n_matched=1)
    as_map = ablate(loaded, TEXTS, {1: [3]}, options)
    as_range = ablate(loaded, TEXTS, [3], AblateOptions(layers=(1,), n_random=2, n_matched=1))
    assert as_map.chosen.n_set == as_range.chosen.n_set == 2
    assert as_map.about.layers == (1,)
    assert as_map.chosen.per_text == as_range.chosen.per_text
    assert [one.change for one in as_map.controls] == [one.change for one in as_range.controls]
    everywhere = ablate(loaded, TEXTS, [3], options)
    assert everywhere.chosen.per_text != as_map.chosen.per_text


def test_random_sets_hold_what_the_rule_finds_and_ordinary_ones_do_not() -> None:
    loaded = tiny("bert", "MaskedLM")
    with torch.no_grad():
        for layer in range(3):
            for param in (*loaded.stack().scale[layer], *loaded.stack().bias[layer]):
                loaded.model.get_parameter(param.name)[6] = 40.0
    found = ablate(loaded, TEXTS, [2], AblateOptions(n_random=14, n_matched=2))
    random, ordinary, matched = found.families
    assert (random.family, ordinary.family, matched.family) == ("random", "ordinary", "matched")
    assert (random.n, ordinary.n) == (14, 14)
    off = {
        kind: [{dim for dims in one.plan.values() for dim in dims} for one in found.controls if one.family == kind]
        for kind in ("random", "ordinary", "matched")
    }
    assert any(6 in dims for dims in off["random"])
    assert not any({2, 6} & dims for dims in off["ordinary"])
    drawn = {kind: {frozenset(dims) for dims in sets} for kind, sets in off.items()}
    assert drawn["random"] - {frozenset({6})} < drawn["ordinary"]  # the same draws
    assert not any({2, 6} & dims for dims in off["matched"])
    # Only a set that the chosen one is exchangeable with says what chance would do.
    assert random.p is not None
    assert ordinary.p is matched.p is None
    assert ordinary.median == pytest.approx(np.median(ordinary.sets))
    told = ablate(loaded, TEXTS, [2], AblateOptions(n_random=5, n_matched=0, avoid=()))
    assert told.family("ordinary") is None  # the same sets: said once
    assert told.family("ordinary", "random") is told.families[0]


def test_an_intact_model_that_gives_no_numbers_is_refused_and_says_where_they_are_lost() -> None:
    loaded = tiny("bert", "MaskedLM")
    with torch.no_grad():
        loaded.model.cls.predictions.bias[4] = math.nan  # type: ignore[union-attr,operator,index]
    few = AblateOptions(n_random=3, n_matched=0)
    lost = (
        "no number .* on 1[68] of 1[68] texts: so is 1 of the values of cls.predictions.bias; fetch or train it again"
    )
    for measure in (lambda: ablate(loaded, TEXTS, [2], few), lambda: sweep(loaded, TEXTS)):
        with pytest.raises(BadInput, match=lost):
            measure()
    with torch.no_grad():
        loaded.model.cls.predictions.bias[4] = 0.0  # type: ignore[union-attr,operator,index]
        loaded.model.cls.predictions.transform.dense.weight.fill_(3e38)  # type: ignore[union-attr]
    with pytest.raises(
        BadInput, match="every weight is a number: the pass overflows float32; `outlierlens observe` names"
    ):
        ablate(loaded, TEXTS, [2], few)


def test_a_set_that_leaves_no_number_is_reported_without_a_p() -> None:
    loaded = tiny("bert", "MaskedLM")
    found = ablate(loaded, TEXTS, [2], AblateOptions(modes=("scale:1e38",), n_random=3, n_matched=0))
    assert math.isnan(found.chosen.change.value)
    assert found.families[0].p is None
    assert "with these dimensions ablated the masked loss is NaN on 18 of 18 texts" in found.notes[-1]


def test_saved_model_has_the_dimensions_off(tmp_path: Path) -> None:
    loaded = tiny("bert", "MaskedLM")
    folder = tmp_path / "off"
    plan = dict.fromkeys(range(3), (2, 5))
    switch = Switch(loaded, loaded.stack())
    assert switch.save(plan, folder) == 12
    again = load_model(str(folder))
    weight = again.model.get_parameter(again.stack().scale[1][0].name)
    assert weight[[2, 5]].tolist() == [0, 0]
    assert loaded.model.get_parameter(loaded.stack().scale[1][0].name)[2] != 0
    with pytest.raises(BadInput, match="is not empty"):
        switch.save(plan, folder)
    with pytest.raises(BadInput, match="--modes weights or norms or writes; zero is not one of them"):
        Switch(loaded, loaded.stack(), "zero").save(plan, tmp_path / "x")


def test_magnitude_marks_planted_weights() -> None:
    loaded = tiny("bert", "MaskedLM")
    with torch.no_grad():
        loaded.model.get_parameter(loaded.stack().scale[1][0].name)[4] = 50
    strength = magnitude(loaded, loaded.stack())
    assert strength.shape == (3, 16)
    assert strength[1].argmax() == 4


def test_rows_that_are_to_be_replaced_stay_where_the_command_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    monkeypatch.setenv("OUTLIERLENS_RUNS", "runs")
    words = ("ablate", M, *FEW, "--random", "1", "--matched", "1", *QUIET)
    assert call(*words).code == 0
    before = contents(tmp_path)
    for wrong in (("--save", "full"), ("--model-args", "arch=none.toml")):
        said = call(*words, *wrong, "--overwrite")
        assert (said.code, contents(tmp_path)) == (1, before), said.err
    assert "is taken from there" in call(*words).err
    assert call(*words, "--seed", "1").code == 0  # rows of its own
    assert len(list((tmp_path / "runs").rglob("*.jsonl"))) == 2
    again = call(*words, "--overwrite")
    assert "what an earlier run measured is dropped (--overwrite)" in again.err
    assert (again.code, "is taken from there" in again.err) == (0, False)


def test_what_matched_sets_tell_of_size() -> None:
    def told(family: str = "matched", judged: str = "damaging", closeness: float = 1.0, change: float = 2.0) -> str:
        numbers = dict.fromkeys(
            ("median", "percentile_95", "mean", "times_median", "times_percentile_95", "times_mean"), 1.0
        )
        beside = Control(
            family=family, n=2, **numbers, p=None, closeness=closeness, change=Estimate(change), sets=(0.5, 1.5)
        )  # fmt: skip
        return size_alone(beside, change, judged)

    assert told(family="random") == told(judged="harmless") == ""
    assert told() == "; none does this damage: size alone does not explain it"
    assert told(change=1.5) == "; some do at least this damage: size alone may explain it"
    assert told(closeness=0.79).startswith("; their weights reach 79% of these, so whether size alone explains")
