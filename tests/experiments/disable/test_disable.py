"""The whole `disable`: controls of its result, resume, saving."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from every_command import FEW, QUIET, M, call, fill
from moments import contents
from outlierlens.cli.experiment import print_sections
from outlierlens.detection.observe.measure import magnitude
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.disable.measure import DisableOptions, disable, save_disabled
from outlierlens.experiments.sweep.measure import sweep
from outlierlens.models.load import load_model
from outlierlens.results.document import from_json, to_json
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
        ("bert", "TokenClassification", "masked", "scale"),
    ],
)
def test_disable_end_to_end(family: str, head: str, kind: str, mode: Any, tmp_path: Path) -> None:
    loaded = tiny(family, head, kind)
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    options = DisableOptions(mode=mode, n_random=9, n_matched=3)
    damage = disable(loaded, TEXTS, [2, 5], options)
    assert all(torch.equal(before[key], value) for key, value in loaded.model.state_dict().items())
    random, matched = damage.control("random"), damage.control("matched")
    assert random is not None
    assert matched is not None
    assert len({c.dims for c in random.conditions} - {(2, 5)}) == 9
    assert matched.p is None  # weights elsewhere are not what the chosen ones could as well be
    assert all(set(c.by_layer) == {0, 1, 2} for c in matched.conditions)
    changes = [c.change for c in random.conditions]
    assert random.p == (1 + sum(change >= damage.chosen.change for change in changes)) / 10
    assert random.median == pytest.approx(np.median(changes))
    assert damage.chosen.change == pytest.approx(damage.chosen.score.value - damage.intact.score.value, abs=1e-9)
    assert damage.chosen.change_low <= damage.chosen.change <= damage.chosen.change_high
    again = from_json(to_json(damage))
    assert to_json(again) == to_json(damage)
    # A fresh ablation measured alone gives the number in the table.
    alone = disable(loaded, TEXTS, list(random.conditions[0].dims), DisableOptions(mode=mode, n_random=0, n_matched=0))
    if mode != "resample":  # its permutations depend on how many passes came before
        assert alone.chosen.change == pytest.approx(changes[0], abs=1e-9)
    assert alone.controls == ()


def test_per_layer_sets_and_layer_ranges() -> None:
    loaded = tiny("bert", "MaskedLM")
    damage = disable(loaded, TEXTS, {0: [1], 1: [1, 2]}, DisableOptions(n_random=3, n_matched=3))
    assert damage.layers == damage.chosen.layers == (0, 1)
    assert damage.chosen.n_parameters == 6
    for condition in damage.controls[0].conditions:
        # One dimension stays one dimension: what is off in layer 0 is off in layer 1 too.
        assert {layer: len(dims) for layer, dims in condition.by_layer.items()} == {0: 1, 1: 2}
        assert set(condition.by_layer[0]) < set(condition.by_layer[1])
    for condition in damage.controls[-1].conditions:
        assert not set(condition.by_layer[0]) & set(condition.by_layer[1])
    part = disable(loaded, TEXTS, [1], DisableOptions(layers=(2,), n_random=3, n_matched=2))
    assert part.layers == (2,)
    assert part.chosen.n_parameters == 2


def test_a_map_of_some_layers_leaves_the_others_on() -> None:
    loaded = tiny("bert", "MaskedLM")
    options = DisableOptions(n_random=2, n_matched=1)
    as_map = disable(loaded, TEXTS, {1: [3]}, options)
    as_range = disable(loaded, TEXTS, [3], DisableOptions(layers=(1,), n_random=2, n_matched=1))
    assert as_map.chosen.n_parameters == as_range.chosen.n_parameters == 2
    assert as_map.layers == (1,)
    assert as_map.chosen.score.per_text == as_range.chosen.score.per_text
    assert [c.change for c in as_map.controls[0].conditions] == [c.change for c in as_range.controls[0].conditions]
    everywhere = disable(loaded, TEXTS, [3], options)
    assert everywhere.chosen.score.per_text != as_map.chosen.score.per_text


def test_random_sets_hold_what_the_rule_finds_and_ordinary_ones_do_not() -> None:
    loaded = tiny("bert", "MaskedLM")
    with torch.no_grad():
        for layer in range(3):
            for param in (*loaded.stack().scale[layer], *loaded.stack().bias[layer]):
                loaded.model.get_parameter(param.name)[6] = 40.0
    random, ordinary, matched = disable(loaded, TEXTS, [2], DisableOptions(n_random=14, n_matched=2)).controls
    assert (random.kind, ordinary.kind, matched.kind) == ("random", "ordinary", "matched")
    assert (len(random.conditions), len(ordinary.conditions)) == (14, 14)
    assert any(6 in c.dims for c in random.conditions)
    assert not any({2, 6} & set(c.dims) for c in ordinary.conditions)
    assert {c.dims for c in random.conditions} - {(6,)} < {c.dims for c in ordinary.conditions}  # the same draws
    assert not any({2, 6} & set(dims) for c in matched.conditions for dims in c.by_layer.values())
    # Only a set that the chosen one is exchangeable with says what chance would do.
    assert random.p is not None
    assert ordinary.p is matched.p is None
    assert ordinary.median == pytest.approx(np.median([c.change for c in ordinary.conditions]))
    told = disable(loaded, TEXTS, [2], DisableOptions(n_random=5, n_matched=0, avoid=()))
    assert told.control("ordinary") is None  # the same sets: said once
    assert told.control("ordinary", "random") is told.controls[0]


def test_an_intact_model_that_gives_no_numbers_is_refused_and_says_where_they_are_lost() -> None:
    loaded = tiny("bert", "MaskedLM")
    with torch.no_grad():
        loaded.model.cls.predictions.bias[4] = math.nan  # type: ignore[union-attr,operator,index]
    few = DisableOptions(n_random=3, n_matched=0)
    lost = (
        "no number .* on 1[68] of 1[68] texts: so is 1 of the values of cls.predictions.bias; fetch or train it again"
    )
    for measure in (lambda: disable(loaded, TEXTS, [2], few), lambda: sweep(loaded, TEXTS)):
        with pytest.raises(BadInput, match=lost):
            measure()
    with torch.no_grad():
        loaded.model.cls.predictions.bias[4] = 0.0  # type: ignore[union-attr,operator,index]
        loaded.model.cls.predictions.transform.dense.weight.fill_(3e38)  # type: ignore[union-attr]
    with pytest.raises(
        BadInput, match="every weight is a number: the pass overflows float32; `outlierlens observe` names"
    ):
        disable(loaded, TEXTS, [2], few)


def test_a_set_that_leaves_no_number_is_reported_without_a_p(capsys: Any) -> None:
    loaded = tiny("bert", "MaskedLM")
    found = disable(loaded, TEXTS, [2], DisableOptions(mode="scale", factor=1e38, n_random=3, n_matched=0))
    assert math.isnan(found.chosen.change)
    assert found.controls[0].p is None
    assert "with these dimensions off the masked loss is no number (NaN) on 18 of 18 texts" in found.notes[-1]
    print_sections(BY_NAME["disable"], found)
    out = capsys.readouterr().out
    assert "the masked loss is infinite or undefined" in out
    row = next(line for line in out.splitlines() if line.startswith("random "))
    assert row.split() == ["random", "3", *row.split()[2:5], "–", "–", "–", "–"]


def test_rows_resume_and_refuse_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("bert", "MaskedLM")
    rows = tmp_path / "rows.jsonl"
    options = DisableOptions(n_random=5, n_matched=0)
    whole = disable(loaded, TEXTS, [2, 3, 4], options, rows=rows)
    lines = rows.read_text().splitlines()
    assert len(lines) == 1 + 1 + len({c.dims for control in whole.controls for c in control.conditions})
    rows.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])  # killed while writing the fourth unit
    from outlierlens.ablation import modes as module

    calls = []
    original = module.zeroed_weights
    monkeypatch.setattr(module, "zeroed_weights", lambda *a, **k: calls.append(1) or original(*a, **k))
    resumed = disable(loaded, TEXTS, [2, 3, 4], options, rows=rows)
    measured_again = len(calls) - 2  # two fills of the passage are not kept
    assert measured_again == len(lines) - 4
    assert [c.change for c in resumed.controls[0].conditions] == [c.change for c in whole.controls[0].conditions]
    assert [json.loads(line)["key"] for line in rows.read_text().splitlines()[1:]] == [
        json.loads(line)["key"] for line in lines[1:]
    ]
    with pytest.raises(
        BadInput, match=r"holds rows of other work \(mode was 'zeroed_weights', is 'edited_hidden zero'\)"
    ):
        disable(loaded, TEXTS, [2], DisableOptions(mode="zero", n_random=1), rows=rows)


def test_saved_model_has_the_dimensions_off(tmp_path: Path) -> None:
    loaded = tiny("bert", "MaskedLM")
    folder = tmp_path / "off"
    assert save_disabled(loaded, [2, 5], folder, DisableOptions()) == 12
    again = load_model(str(folder))
    weight = again.model.get_parameter(again.stack().scale[1][0].name)
    assert weight[[2, 5]].tolist() == [0, 0]
    assert loaded.model.get_parameter(loaded.stack().scale[1][0].name)[2] != 0
    with pytest.raises(BadInput, match="is not empty"):
        save_disabled(loaded, [2], folder, DisableOptions())
    with pytest.raises(BadInput, match="needs --mode weights, norms or writes"):
        save_disabled(loaded, [2], tmp_path / "x", DisableOptions(mode="zero"))


def test_magnitude_marks_planted_weights() -> None:
    loaded = tiny("bert", "MaskedLM")
    with torch.no_grad():
        loaded.model.get_parameter(loaded.stack().scale[1][0].name)[4] = 50
    strength = magnitude(loaded, loaded.stack())
    assert strength.shape == (3, 16)
    assert strength[1].argmax() == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_says_what_it_was_computed_in(dtype: torch.dtype) -> None:
    loaded = tiny("bert", "MaskedLM")
    loaded.model.to(dtype)
    damage = disable(loaded, TEXTS, (3,), DisableOptions(n_random=1, n_matched=0))
    text = to_json(damage)
    assert from_json(text).provenance.dtype == str(dtype).removeprefix("torch.")
    older = json.loads(text)
    del older["provenance"]["dtype"]  # a file of before that was written down
    assert from_json(json.dumps(older)).provenance.dtype == ""


def test_rows_that_are_to_be_replaced_stay_where_the_command_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    words = ("disable", M, *FEW, "--random", "1", "--matched", "1", "--rows", "rows.jsonl", *QUIET)
    assert call(*words).code == 0
    before = contents(tmp_path)
    for wrong in (("--save", "full"), ("--arch", "none.toml")):
        said = call(*words, *wrong, "--overwrite")
        assert (said.code, contents(tmp_path)) == (1, before), said.err
    assert "rows of other work" in call(*words, "--seed", "1").err
    assert call(*words, "--seed", "1", "--overwrite").code == 0
    assert contents(tmp_path).keys() == before.keys()
    assert b'"seed":1' in (tmp_path / "rows.jsonl").read_bytes().partition(b"\n")[0]
