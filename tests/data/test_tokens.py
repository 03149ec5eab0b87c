"""Texts as sentences, with markup or without, and tokenizers that are trained or reused."""

from pathlib import Path
from typing import Any

import pytest

from outlierlens.errors import BadInput, UnknownModel
from outlierlens.training.pretrain.corpus import load_tokenizer, sentences_of, train_tokenizer
from outlierlens.training.pretrain.recipe import DataRecipe, TokenizerRecipe

SENTENCES = DataRecipe(min_characters=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ('He said "no." She left.', ['He said "no."', "She left."]),
        ("(Really?) Yes (no.)  Why", ["(Really?)", "Yes (no.)", "Why"]),
        ("“So it goes.” I know.", ["“So it goes.”", "I know."]),
        ("Version 2.5 costs $3.99 a.b", ["Version 2.5 costs $3.99 a.b"]),
        ("Wait... what?!  Yes.\nNext\tline", ["Wait...", "what?!", "Yes.", "Next line"]),
        ("", []),
        (" . ", ["."]),
    ],
)
def test_sentences_by_hand(text: str, expected: list[str]) -> None:
    assert sentences_of(text, SENTENCES) == expected


def test_short_sentences_are_dropped_by_characters() -> None:
    text = "Ten chars. Eleven cha. Twelve chars. No."
    assert sentences_of(text, DataRecipe(min_characters=11)) == ["Eleven cha.", "Twelve chars."]
    assert sentences_of(text, DataRecipe(min_characters=12)) == ["Twelve chars."]


def test_a_text_may_be_one_sentence() -> None:
    assert sentences_of("One. Two.", DataRecipe(sentences="lines", min_characters=1)) == ["One. Two."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Good.<br /><br />Bad.", ["Good.", "Bad."]),
        ("I <b>love</b> it", ["I love it"]),
        ("a &amp; b &lt;3 &quot;x&quot;", ['a & b <3 "x"']),
        ("&lt;br&gt; stays", ["<br> stays"]),  # escaped: the writer meant the characters
        ("3 < 4 and 5 > 4", ["3 < 4 and 5 > 4"]),
        ("x <3 y> z", ["x <3 y> z"]),
        ("<!-- no --> yes", ["yes"]),
    ],
)
def test_markup_by_hand(text: str, expected: list[str]) -> None:
    data = DataRecipe(min_characters=1, strip_markup=True)
    assert sentences_of(text, data) == expected


def test_markup_stays_unless_it_is_to_go() -> None:
    assert sentences_of("a<br />b &amp; c", SENTENCES) == ["a<br />b &amp; c"]


@pytest.mark.parametrize(
    ("kind", "special", "marks"),
    [("wordpiece", "[PAD] [UNK] [CLS] [SEP] [MASK]", (2, 3)), ("byte-bpe", "<s> <pad> </s> <unk> <mask>", (0, 2))],
)
def test_trained_tokenizers(kind: Any, special: str, marks: tuple[int, int], tmp_path: Path) -> None:
    text = ["The quick brown fox", "jumps over The lazy dog"] * 20
    made = train_tokenizer(text, TokenizerRecipe(kind=kind, vocabulary=300, lowercase=kind == "wordpiece"), 32)
    assert len(made) <= 300
    assert made.convert_ids_to_tokens(list(range(5))) == special.split()
    ids = made("The fox")["input_ids"]
    assert (ids[0], ids[-1]) == marks
    assert made.decode(ids, skip_special_tokens=True).strip() == ("the fox" if kind == "wordpiece" else "The fox")
    made.save_pretrained(tmp_path)
    again = load_tokenizer(str(tmp_path))
    assert again("The lazy fox")["input_ids"] == made("The lazy fox")["input_ids"]
    assert sorted(set(again.all_special_ids)) == [0, 1, 2, 3, 4]
    assert again.mask_token_id == 4


def test_tokenizers_that_will_not_do(tmp_path: Path, words: Any) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownModel, match="empty: no tokenizer there"):
        load_tokenizer(str(tmp_path / "empty"), offline=True)
    causal = words(kind="causal")
    causal.mask_token = None
    causal.save_pretrained(tmp_path / "causal")
    with pytest.raises(BadInput, match="causal: its tokenizer has no mask token; a masked language model needs one"):
        load_tokenizer(str(tmp_path / "causal"))
