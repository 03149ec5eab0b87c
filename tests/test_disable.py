"""Controls and the whole `disable`: ranks by hand, fair sets, resume, saving."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import FAMILIES, build
from outlierlens.bench import DisableOptions, disable, magnitude, save_disabled
from outlierlens.controls import compare_with, matched_sets, random_sets, rank_p
from outlierlens.damage import Condition, Score
from outlierlens.data import Texts
from outlierlens.errors import BadInput
from outlierlens.fill import continuation, exercise, fill, judge
from outlierlens.models import LoadedModel, from_objects, load_model
from outlierlens.results import from_json, to_json

TEXTS = Texts("inline", tuple(" ".join(f"w{(7 * i + j) % 35}" for j in range(8 + i)) for i in range(6)))


def model_of(family: str, head: str, words: Any, kind: str) -> LoadedModel:
    loaded = from_objects(build(FAMILIES[family], head), name=family)
    return LoadedModel(family, loaded.model, words(kind=kind), loaded.head, loaded.stacks, loaded.config)


def test_rank_p_by_hand() -> None:
    assert rank_p(5.0, np.array([1.0, 2.0, 3.0])) == 1 / 4
    assert rank_p(2.0, np.array([1.0, 2.0, 3.0])) == 3 / 4
    assert rank_p(0.0, np.array([1.0, 2.0, 3.0])) == 1.0


@given(st.integers(0, 999), st.integers(1, 4))
def test_random_sets_are_fair(seed: int, size: int) -> None:
    sets = random_sets(20, size, avoid={3, 7}, n=30, seed=seed)
    assert len(sets.free) == len(sets.anywhere) == 30
    assert all(len(set(dims)) == size and not set(dims) & {3, 7} for dims in sets.free)
    shared = [dims for dims in sets.anywhere if not set(dims) & {3, 7}]
    assert list(sets.free[: len(shared)]) == shared
    assert sets == random_sets(20, size, avoid={3, 7}, n=30, seed=seed)


def test_random_sets_reach_every_free_dimension_equally() -> None:
    sets = random_sets(10, 2, avoid={0}, n=4500, seed=1)
    counts = np.bincount([dim for dims in sets.free for dim in dims], minlength=10)
    assert counts[0] == 0
    assert counts[1:] == pytest.approx(np.full(9, 1000), abs=150)


def test_too_few_dimensions_for_a_control() -> None:
    with pytest.raises(BadInput, match="only 1 of 4 dimensions are free: too few for a random set of 2"):
        random_sets(4, 2, avoid={0, 1, 2}, n=1, seed=0)


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
def test_disable_end_to_end(family: str, head: str, kind: str, mode: Any, words: Any, tmp_path: Path) -> None:
    loaded = model_of(family, head, words, kind)
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    options = DisableOptions(mode=mode, n_random=9, n_matched=3, avoid=(2,))
    damage = disable(loaded, TEXTS, [2, 5], options)
    assert all(torch.equal(before[key], value) for key, value in loaded.model.state_dict().items())
    assert [control.kind for control in damage.controls] == ["random", "random, all", "matched"]
    random, _, matched = damage.controls
    assert len(random.conditions) == 9
    assert not any(set(c.dims) & {2, 5} for c in random.conditions)
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


def test_per_layer_sets_and_layer_ranges(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    damage = disable(loaded, TEXTS, {0: [1], 1: [1, 2]}, DisableOptions(n_random=3, n_matched=3))
    assert damage.layers == damage.chosen.layers == (0, 1)
    assert damage.chosen.n_parameters == 6
    for condition in damage.controls[0].conditions:
        # One dimension stays one dimension: what is off in layer 0 is off in layer 1 too.
        assert {layer: len(dims) for layer, dims in condition.by_layer.items()} == {0: 1, 1: 2}
        assert set(condition.by_layer[0]) < set(condition.by_layer[1])
    for condition in damage.controls[2].conditions:
        assert not set(condition.by_layer[0]) & set(condition.by_layer[1])
    part = disable(loaded, TEXTS, [1], DisableOptions(layers=(2,), n_random=3, n_matched=2))
    assert part.layers == (2,)
    assert part.chosen.n_parameters == 2


def test_a_map_of_some_layers_leaves_the_others_on(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    options = DisableOptions(n_random=2, n_matched=1)
    as_map = disable(loaded, TEXTS, {1: [3]}, options)
    as_range = disable(loaded, TEXTS, [3], DisableOptions(layers=(1,), n_random=2, n_matched=1))
    assert as_map.chosen.n_parameters == as_range.chosen.n_parameters == 2
    assert as_map.layers == (1,)
    assert as_map.chosen.score.per_text == as_range.chosen.score.per_text
    assert [c.change for c in as_map.controls[0].conditions] == [c.change for c in as_range.controls[0].conditions]
    everywhere = disable(loaded, TEXTS, [3], options)
    assert everywhere.chosen.score.per_text != as_map.chosen.score.per_text


def test_controls_avoid_what_the_rule_finds_unless_told(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    with torch.no_grad():
        for layer in range(3):
            for param in (*loaded.stack().scale[layer], *loaded.stack().bias[layer]):
                loaded.model.get_parameter(param.name)[6] = 40.0
    found = disable(loaded, TEXTS, [2], DisableOptions(n_random=60, n_matched=0, also_all=False))
    assert not any(6 in c.dims for c in found.controls[0].conditions)
    told = disable(loaded, TEXTS, [2], DisableOptions(n_random=60, n_matched=0, also_all=False, avoid=()))
    assert any(6 in c.dims for c in told.controls[0].conditions)


def test_a_loss_that_is_no_number_counts_as_the_worst() -> None:
    def condition(change: float) -> Condition:
        score = Score(change, change, change, None, (change,), {})
        return Condition("x", (1,), {}, score, change, change, change, 0)

    control = compare_with("random", condition(1.0), [condition(float("nan")), condition(0.5), condition(2.0)])
    assert control.p == 3 / 4
    assert compare_with("random", condition(float("nan")), [condition(0.5)] * 9).p == 1 / 10


def test_rows_resume_and_refuse_other_work(words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    rows = tmp_path / "rows.jsonl"
    options = DisableOptions(n_random=5, n_matched=0, also_all=False)
    whole = disable(loaded, TEXTS, [2, 3, 4], options, rows=rows)
    lines = rows.read_text().splitlines()
    assert len(lines) == 1 + 1 + 5
    rows.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])  # killed while writing the fourth unit
    from outlierlens import modes as module

    calls = []
    original = module.zeroed_weights
    monkeypatch.setattr(module, "zeroed_weights", lambda *a, **k: calls.append(1) or original(*a, **k))
    resumed = disable(loaded, TEXTS, [2, 3, 4], options, rows=rows)
    measured_again = len(calls) - 2  # two fills of the passage are not kept
    assert measured_again == 3
    assert [c.change for c in resumed.controls[0].conditions] == [c.change for c in whole.controls[0].conditions]
    assert [json.loads(line)["key"] for line in rows.read_text().splitlines()[1:]] == [
        json.loads(line)["key"] for line in lines[1:]
    ]
    with pytest.raises(
        BadInput, match=r"holds rows of other work \(mode was 'zeroed_weights', is 'edited_hidden zero'\)"
    ):
        disable(loaded, TEXTS, [2], DisableOptions(mode="zero", n_random=1), rows=rows)


def test_saved_model_has_the_dimensions_off(words: Any, tmp_path: Path) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
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


def test_magnitude_marks_planted_weights(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    with torch.no_grad():
        loaded.model.get_parameter(loaded.stack().scale[1][0].name)[4] = 50
    strength = magnitude(loaded, loaded.stack())
    assert strength.shape == (3, 16)
    assert strength[1].argmax() == 4


@pytest.mark.parametrize(
    ("word", "intact", "before", "expected"),
    [
        ("river", "river", (), "same"),
        ("lake", "river", (), "other"),
        ("##ing", "river", (), "nonsense"),
        (".", "river", (), "nonsense"),
        ("[SEP]", "river", (), "nonsense"),
        ("[unused12]", "river", (), "nonsense"),
        ("\ufffd", "river", (), "nonsense"),
        ("the", "river", ("the", "the"), "nonsense"),
        ("the", "river", ("a", "the"), "other"),
    ],
)
def test_fills_are_judged_by_rule(word: str, intact: str, before: tuple[str, ...], expected: str) -> None:
    assert judge(word, intact, before, special={"[SEP]"}, whole_words=True, probability=0.01) == expected


def test_a_fill_that_the_intact_model_rules_out_is_nonsense() -> None:
    assert judge("lake", "river", (), special=set(), whole_words=True, probability=2e-4) == "other"
    assert judge("lake", "river", (), special=set(), whole_words=True, probability=5e-5) == "nonsense"
    assert judge("river", "river", (), special=set(), whole_words=True, probability=0.0) == "same"


def test_a_decoder_may_predict_a_stop_where_a_masked_blank_may_not() -> None:
    assert judge(",", " river", (), special=set(), whole_words=False, probability=0.01) == "other"
    assert judge(",", " river", (), special=set(), whole_words=True, probability=0.01) == "nonsense"


@pytest.mark.parametrize(("family", "head", "kind"), [("gpt2", "CausalLM", "causal"), ("bert", "MaskedLM", "masked")])
def test_blanks_are_answered_from_the_same_text_in_every_condition(
    family: str, head: str, kind: str, words: Any
) -> None:
    loaded = model_of(family, head, words, kind)
    text = " ".join(f"w{(3 * i) % 35}" for i in range(28))
    work = exercise(loaded, text, seed=1)
    assert work is not None
    ids = loaded.tokenizer(text)["input_ids"]
    filled_in = fill(loaded, work).words
    assert len(filled_in) == len(work.blanks) == len(work.pieces) - 1 > 1
    assert [f"w{ids[i] - 5}" for i in work.blanks] == [word.strip() for word in work.originals]
    assert (
        " ".join(" ".join((p, o)) for p, o in zip(work.pieces, (*work.originals, ""), strict=True)).split()
        == text.split()
    )
    for position, word in zip(work.blanks, filled_in, strict=True):
        shown = torch.tensor([ids[:position] if kind == "causal" else work.ids])
        with torch.no_grad():
            logits = loaded.model(input_ids=shown).logits[0, -1 if kind == "causal" else position]
        assert word.strip() == loaded.tokenizer.decode([int(logits.argmax())])


def test_continuation_is_greedy(words: Any) -> None:
    loaded = model_of("llama", "CausalLM", words, "causal")
    prompt, said = continuation(loaded, "w1 w2 w3")  # type: ignore[misc]
    assert prompt == "w1 w2 w3"
    ids = loaded.tokenizer(prompt)["input_ids"]
    start = len(ids)
    for _ in said.split():
        with torch.no_grad():
            ids.append(int(loaded.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert loaded.tokenizer.decode(ids[start:]) == said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_says_what_it_was_computed_in(words: Any, dtype: torch.dtype) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    loaded.model.to(dtype)
    damage = disable(loaded, TEXTS, (3,), DisableOptions(n_random=1, n_matched=0, also_all=False))
    text = to_json(damage)
    assert from_json(text).provenance.dtype == str(dtype).removeprefix("torch.")
    older = json.loads(text)
    del older["provenance"]["dtype"]  # a file of before that was written down
    assert from_json(json.dumps(older)).provenance.dtype == ""
