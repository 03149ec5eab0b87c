"""Controls and the whole `disable`: ranks by hand, fair sets, resume, saving."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import FAMILIES, build
from outlierlens.ablation.controls import compare_with, matched_sets, random_sets
from outlierlens.ablation.damage import Condition, Score
from outlierlens.ablation.fill import Filling, continuation, exercise, fill, filled, judge
from outlierlens.cli.experiment import print_sections
from outlierlens.data.texts import Texts
from outlierlens.detection.observe.measure import magnitude
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.disable.measure import DisableOptions, disable, save_disabled
from outlierlens.experiments.sweep.measure import sweep
from outlierlens.models.load import LoadedModel, from_objects, load_model
from outlierlens.results.document import from_json, to_json
from outlierlens.statistics.p_values import rank_p

TEXTS = Texts("inline", tuple(" ".join(f"w{(7 * i + j) % 35}" for j in range(8 + i % 6)) for i in range(18)))


def model_of(family: str, head: str, words: Any, kind: str) -> LoadedModel:
    return replace(from_objects(build(FAMILIES[family], head), name=family), tokenizer=words(kind=kind))


def masked_with(tokenizer: Any) -> LoadedModel:
    return model_of("bert", "MaskedLM", lambda kind: tokenizer, "masked")


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


def test_per_layer_sets_and_layer_ranges(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
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


def test_random_sets_hold_what_the_rule_finds_and_ordinary_ones_do_not(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
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


def test_a_loss_that_is_no_number_counts_as_the_worst_and_has_no_p_of_its_own() -> None:
    def condition(change: float) -> Condition:
        score = Score(change, change, change, None, (change,), {})
        return Condition("x", (1,), {}, score, change, change, change, 0)

    def p(chosen: float, *others: float) -> float | None:
        return compare_with("random", condition(chosen), [condition(one) for one in others], ranked=True).p

    assert p(1.0, float("nan"), 0.5, 2.0) == 3 / 4
    assert p(float("inf"), *[0.5] * 9) == 1 / 10
    assert p(float("nan"), *[0.5] * 9) is None


def test_an_intact_model_that_gives_no_numbers_is_refused_and_says_where_they_are_lost(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
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


def test_a_set_that_leaves_no_number_is_reported_without_a_p(words: Any, capsys: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    found = disable(loaded, TEXTS, [2], DisableOptions(mode="scale", factor=1e38, n_random=3, n_matched=0))
    assert math.isnan(found.chosen.change)
    assert found.controls[0].p is None
    assert "with these dimensions off the masked loss is no number (NaN) on 18 of 18 texts" in found.notes[-1]
    print_sections(BY_NAME["disable"], found)
    out = capsys.readouterr().out
    assert "the masked loss is infinite or undefined" in out
    row = next(line for line in out.splitlines() if line.startswith("random "))
    assert row.split() == ["random", "3", *row.split()[2:5], "–", "–", "–", "–"]


def test_rows_resume_and_refuse_other_work(words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
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


def test_a_word_that_is_shown_and_not_repeated_is_changed(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    text = "w1 w2 w3 w4 w5 w6 w7 w8 w9"
    work = exercise(loaded, text)
    assert work is not None
    ids = list(work.ids)
    assert len(work.spans) == 9
    w30 = loaded.tokenizer.convert_tokens_to_ids("w30")

    def says(*others: int) -> Filling:
        """Repeats what it is shown, w2 in the blanks, and w30 at `others`."""
        everywhere = [w30 if i in others else token for i, token in enumerate(ids)]
        n = len(work.blanks)
        return Filling(("w2",) * n, (7,) * n, np.full((n, 64), 0.5), tuple(everywhere))

    first, second = [i for i in work.spans if i not in work.blanks][:2]
    intact = says(first)  # does not repeat the first word itself: nothing can be said of it
    assert {blank.kind for blank in filled(loaded, work, intact, intact, label="", dims=()).blanks} == {"same"}
    edges = (0, len(ids) - 1)  # [CLS] and [SEP] are no words
    now = filled(loaded, work, says(first, second, *edges), intact, label="", dims=())
    (changed,) = [blank for blank in now.blanks if blank.kind == "changed"]
    assert (changed.position, changed.filled, changed.original) == (second, "w30", text[slice(*work.spans[second])])
    assert [blank.position for blank in now.blanks] == sorted([*work.blanks, second])
    whole = "".join(piece + blank.original for piece, blank in zip(now.pieces, now.blanks, strict=False))
    assert whole + now.pieces[-1] == text
    assert "[!w30]" in now.line
    assert "[w2]" in now.line


def test_what_is_written_like_a_special_token_and_half_a_letter_are_no_words() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = {"unk_token": "[UNK]", "mask_token": "[MASK]", "sep_token": "[SEP]"}
    table = {word: number for number, word in enumerate([*marks.values(), "seen"])}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    work = exercise(masked_with(words), "seen [SEP] seen unseen [MASK]")
    assert work is not None
    assert sorted(work.spans) == [0, 2]
    known = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "[MASK]"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(known)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]")
    work = exercise(masked_with(words), "ab é!")  # tokens: ab, a space, two bytes of é, !
    assert work is not None
    assert work.spans == {0: (0, 2), 2: (3, 4), 4: (4, 5)}


def test_a_token_that_the_tokenizer_lacks_is_nonsense(words: Any) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    work = exercise(loaded, "w1 w2 w3 w4")
    assert work is not None
    intact = fill(loaded, work)
    head: Any = loaded.model
    head.resize_token_embeddings(48)  # padded for speed: eight rows more than the tokenizer has words
    head.cls.predictions.bias.data[-1] = 1e4
    now = replace(fill(loaded, work), tokens=intact.tokens)  # plausible, were it a word
    (asked,) = (
        blank for blank in filled(loaded, work, now, intact, label="", dims=()).blanks if blank.kind != "changed"
    )
    assert (asked.kind, asked.filled) == ("nonsense", "\ufffd")


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


def test_a_continuation_begins_as_a_text_and_does_not_go_on_behind_its_end(words: Any) -> None:
    begun, both = (model_of("llama", "CausalLM", words, kind) for kind in ("begun", "masked"))
    assert continuation(begun, "w1 w2 w3") == continuation(both, "w1 w2 w3")
    assert continuation(begun, "w1 w2 w3") != continuation(model_of("llama", "CausalLM", words, "causal"), "w1 w2 w3")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_says_what_it_was_computed_in(words: Any, dtype: torch.dtype) -> None:
    loaded = model_of("bert", "MaskedLM", words, "masked")
    loaded.model.to(dtype)
    damage = disable(loaded, TEXTS, (3,), DisableOptions(n_random=1, n_matched=0))
    text = to_json(damage)
    assert from_json(text).provenance.dtype == str(dtype).removeprefix("torch.")
    older = json.loads(text)
    del older["provenance"]["dtype"]  # a file of before that was written down
    assert from_json(json.dumps(older)).provenance.dtype == ""
