"""A passage filled in and continued: blanks answered from the same text, fills judged by rule."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outlierlens.ablation.fill import Filling, continuation, exercise, fill, filled, judge
from planted import tiny


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
def test_blanks_are_answered_from_the_same_text_in_every_condition(family: str, head: str, kind: str) -> None:
    loaded = tiny(family, head, kind)
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


SENTENCE = (
    "He climbed the iron stairs with a can of oil. Then he lit the lamp, and it was good: \u201cfine\u201d, he said."
)


def tokenizer_of(kind: str) -> Any:
    """A tokenizer of whole words, each with the space before it: as bytes (GPT-2), or as SentencePiece marks it (Llama)."""
    if kind == "bytes":
        before, decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        before, decoder = pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first")
    pieces = dict.fromkeys(piece for piece, _ in before.pre_tokenize_str(SENTENCE))
    special = ("[PAD]", "[UNK]", "[MASK]")
    vocabulary = {piece: number for number, piece in enumerate((*special, *pieces))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = before, decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", model_max_length=64
    )


@pytest.mark.parametrize("kind", ["bytes", "marks"])
@pytest.mark.parametrize(("family", "head"), [("gpt2", "CausalLM"), ("bert", "MaskedLM")])
def test_no_space_of_a_passage_is_lost(kind: str, family: str, head: str) -> None:
    loaded = replace(tiny(family, head), tokenizer=tokenizer_of(kind))
    for seed in range(7):  # blanks begin at each of the first seven words
        work = exercise(loaded, SENTENCE, seed=seed)
        assert work is not None
        now = fill(loaded, work)
        shown = filled(loaded, work, now, now, label="", dims=())
        whole = "".join(piece + blank.original for piece, blank in zip(shown.pieces, shown.blanks, strict=False))
        assert whole + shown.pieces[-1] == SENTENCE
        assert all(blank.original == blank.original.strip() != "" for blank in shown.blanks)


def test_a_word_that_is_shown_and_not_repeated_is_changed() -> None:
    loaded = tiny("bert", "MaskedLM")
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
    work = exercise(replace(tiny("bert", "MaskedLM"), tokenizer=words), "seen [SEP] seen unseen [MASK]")
    assert work is not None
    assert sorted(work.spans) == [0, 2]
    known = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "[MASK]"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(known)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]")
    work = exercise(
        replace(tiny("bert", "MaskedLM"), tokenizer=words), "ab é!"
    )  # tokens: ab, a space, two bytes of é, !
    assert work is not None
    assert work.spans == {0: (0, 2), 2: (3, 4), 4: (4, 5)}


def test_a_token_that_the_tokenizer_lacks_is_nonsense() -> None:
    loaded = tiny("bert", "MaskedLM")
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


def test_continuation_is_greedy() -> None:
    loaded = tiny("llama", "CausalLM", "causal")
    prompt, said = continuation(loaded, "w1 w2 w3")  # type: ignore[misc]
    assert prompt == "w1 w2 w3"
    ids = loaded.tokenizer(prompt)["input_ids"]
    start = len(ids)
    for _ in said.split():
        with torch.no_grad():
            ids.append(int(loaded.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert loaded.tokenizer.decode(ids[start:]) == said


def test_a_continuation_begins_as_a_text_and_does_not_go_on_behind_its_end() -> None:
    begun, both = (tiny("llama", "CausalLM", kind) for kind in ("begun", "masked"))
    assert continuation(begun, "w1 w2 w3") == continuation(both, "w1 w2 w3")
    assert continuation(begun, "w1 w2 w3") != continuation(tiny("llama", "CausalLM", "causal"), "w1 w2 w3")
