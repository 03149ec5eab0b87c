"""Counts of tokens: published ones by id, the released mapping, our own file; numbers by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.data import token_counts
from outlierlens.data.token_counts import TokenCounts, by_id, compat_counts, read_counts, write_counts
from outlierlens.data.token_texts import added_around, kind_of, texts_of, vocabulary_of
from outlierlens.errors import BadFile, BadInput
from tiny_tokenizers import BYTES, PIECES, byte_level, word_pieces

PUBLISHED = {"the": 90, "[CLS]": 40, "[SEP]": 40, "##s": 25, ".": 20, "#": 7, "##gy": 5, "cat": 4, "[UNK]": 3, "dog": 1}


@pytest.fixture(scope="module")
def pieces() -> Any:
    return word_pieces()


@pytest.fixture(scope="module")
def byte_pieces() -> Any:
    return byte_level()


def published(path: Path, keyed: dict[str, int]) -> Path:
    return table(path, {"token": list(keyed), "count": list(keyed.values())})


def table(path: Path, columns: dict[str, list[Any]]) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def counted(by_token: dict[str, int], tokens: tuple[str, ...] = PIECES) -> list[int]:
    return [by_token.get(token, 0) for token in tokens]


def ours(tokens: tuple[str, ...] = PIECES, **changed: Any) -> TokenCounts:
    counts = np.arange(len(tokens), dtype=np.int64)
    special = np.where(np.isin(tokens, ("[CLS]", "[SEP]")), 6, 0).astype(np.int64)
    return TokenCounts(
        **{"counts": counts, "special": special, "tokens": tokens, "n_texts": 6, "source": "x", **changed}
    )


def test_every_word_piece_carries_its_own_count(pieces: Any, tmp_path: Path) -> None:
    found = read_counts(published(tmp_path / "bert.parquet", PUBLISHED), pieces)
    plain = {token: count for token, count in PUBLISHED.items() if token not in ("[CLS]", "[SEP]")}
    assert found.counts.tolist() == counted(plain)
    assert found.counts[PIECES.index("##s")] == 25
    assert found.counts[PIECES.index("#")] == 7
    assert found.special.tolist() == counted({"[CLS]": 40, "[SEP]": 40})
    assert found.n_texts == 40
    assert found.n_tokens == 155
    assert found.frequency(special=False)[PIECES.index("[CLS]")] == 0
    assert found.frequency(special=True)[PIECES.index("[CLS]")] == 40
    assert found.frequency(special=True).dtype == np.float64
    # of the 9 ids that are not special, s and a have no key
    assert "10 of 10 keys and 100.00 % of the counted tokens" in found.notes[0]
    assert "2 of 9 ordinary ids have no key" in found.notes[0]


def test_another_vocabulary_is_matched_by_text_and_role(tmp_path: Path) -> None:
    """As MPNet's: the same pieces in other places, <s> and </s> in the roles of [CLS] and [SEP]."""
    tokens = ("<s>", "<pad>", "</s>", "[UNK]", "##s", "the", ".", "cat", "bird", "<mask>")
    tokenizer = word_pieces(tokens, cls="<s>", sep="</s>", pad_token="<pad>", mask_token="<mask>")
    found = read_counts(published(tmp_path / "bert.parquet", PUBLISHED), tokenizer)
    assert found.counts.tolist() == counted({"##s": 25, "the": 90, ".": 20, "cat": 4, "[UNK]": 3}, tokens)
    assert found.special.tolist() == counted({"<s>": 40, "</s>": 40}, tokens)
    # lost: # 7, ##gy 5, dog 1 of the 152 ordinary occurrences
    assert "7 of 10 keys and 91.45 % of the counted tokens" in found.notes[0]
    assert "1 of 5 ordinary ids have no key" in found.notes[0]


def test_a_tokenizer_that_puts_nothing_around_texts_has_no_place_for_cls(words: Any, tmp_path: Path) -> None:
    tokenizer = words(5, kind="causal")
    found = read_counts(published(tmp_path / "w.parquet", {"w0": 8, "w4": 2, "[CLS]": 3, "[SEP]": 3}), tokenizer)
    assert found.special.sum() == 0
    assert found.n_tokens == 10
    assert "no token of this tokenizer has the role of [CLS], [SEP]" in found.notes[1]


def test_byte_level_keys_are_texts_and_shared_keys_are_named(byte_pieces: Any, tmp_path: Path) -> None:
    keyed = {" the": 30, "<s>": 9, "</s>": 9, ".": 11, "\ufffd": 7, "a": 4, " ": 2}
    found = read_counts(published(tmp_path / "roberta.parquet", keyed), byte_pieces)
    # '.' is `.` or `Ġ.`, for spaces before punctuation were cleaned away; U+FFFD is either half of é
    expected = {"Ġthe": 30, ".": 6, "Ġ.": 5, "Ã": 4, "©": 3, "a": 4, "Ġ": 2}
    assert found.counts.tolist() == counted(expected, BYTES)
    assert found.special.tolist() == counted({"<s>": 9, "</s>": 9}, BYTES)
    assert found.ambiguous == tuple(BYTES.index(token) for token in (".", "Ġ.", "Ã", "©"))
    assert found.notes[1] == (
        "roberta.parquet: 2 keys stand for several ids ('.' (2 ids), '\ufffd' (2 ids)); their counts, 33.33 % of the "
        "counted tokens, are shared evenly"
    )
    assert found.n_tokens == sum(keyed.values()) - 18


def test_uncleaned_byte_level_keys_stay_apart(byte_pieces: Any, tmp_path: Path) -> None:
    found = read_counts(published(tmp_path / "r.parquet", {" the": 9, ".": 5, " .": 3}), byte_pieces)
    assert found.counts.tolist() == counted({"Ġthe": 9, ".": 5, "Ġ.": 3}, BYTES)
    assert found.ambiguous == ()


def test_texts_of_byte_level_tokens_are_what_the_library_decodes(byte_pieces: Any) -> None:
    from tokenizers.decoders import ByteLevel

    ordinary = [token for token in BYTES if not token.startswith("<")]
    assert [ByteLevel().decode([token]) for token in ordinary] == list(texts_of(BYTES))[5:]
    assert kind_of(BYTES) == "byte-level"
    assert texts_of(("▁the", "s", "▁a")) == (" the", "s", " a")


def test_the_released_mapping_by_hand(pieces: Any, tmp_path: Path) -> None:
    """`##s` and `##gy` begin with the token #, and the last text that does decides its count."""
    first = published(tmp_path / "wiki.parquet", {"the": 90, "[CLS]": 40, "#": 7, "##s": 25, "cat": 4, "##gy": 5})
    second = published(tmp_path / "books.parquet", {"#": 2, "dog": 1, "##s": 3, "cat": 6})
    assert pieces("##s").input_ids == [PIECES.index(token) for token in ("[CLS]", "#", "#", "s", "[SEP]")]
    # added up by text first, in order: # 9, ##s 28, cat 10, ##gy 5; the last of # , ##s, ##gy is ##gy
    found = compat_counts(f"{first},{second}", pieces)
    assert found.counts.tolist() == counted({"the": 90, "#": 5, "cat": 10, "dog": 1})
    assert found.special.tolist() == counted({"[CLS]": 40})
    # 2 of the 7 keys; 9 + 28 of 183 occurrences
    assert "2 of 7 keys (20.22 % of the counted tokens)" in found.notes[0]


def test_the_released_mapping_of_our_own_counts(pieces: Any, tmp_path: Path) -> None:
    counts = counted({"##s": 4, "#": 9, "##gy": 2, "the": 3})
    path = write_counts(ours(counts=np.array(counts, dtype=np.int64)), tmp_path / "own.parquet")
    # the most frequent first: # 9, ##s 4, the 3, ##gy 2
    assert compat_counts(path, pieces).counts.tolist() == counted({"#": 2, "the": 3})


def test_the_released_mapping_needs_a_token_in_front(words: Any, tmp_path: Path) -> None:
    path = published(tmp_path / "w.parquet", {"w0": 8})
    with pytest.raises(BadInput, match="this tokenizer puts none in front; leave out --paper-compat"):
        compat_counts(path, words(5, kind="causal"))


def test_our_own_file_comes_back_as_it_was(pieces: Any, tmp_path: Path) -> None:
    before = ours(notes=("texts were counted whole",), ambiguous=(3, 7))
    path = write_counts(before, tmp_path / "own.parquet")
    after = read_counts(path, pieces)
    assert after.counts.tolist() == before.counts.tolist()
    assert after.special.tolist() == before.special.tolist()
    assert (after.tokens, after.n_texts, after.source) == (PIECES, 6, "x")
    assert (after.notes, after.ambiguous) == (before.notes, before.ambiguous)
    assert [file.name for file in tmp_path.iterdir()] == ["own.parquet"]


def test_counts_add_up_and_other_vocabularies_are_refused(pieces: Any, tmp_path: Path) -> None:
    first = write_counts(ours(), tmp_path / "a.parquet")
    second = published(tmp_path / "b.parquet", PUBLISHED)
    both = read_counts(f"{first},{second}", pieces)
    assert both.counts.tolist() == (ours().counts + read_counts(second, pieces).counts).tolist()
    assert both.n_texts == 46
    assert both.source == f"x, {second}"
    with pytest.raises(BadInput, match=r"different vocabularies .14 and 13 tokens."):
        ours() + ours((*PIECES[:5], *PIECES[6:]))


def test_our_own_file_is_read_with_its_vocabulary_only(words: Any, tmp_path: Path) -> None:
    path = write_counts(ours(), tmp_path / "own.parquet")
    with pytest.raises(BadInput, match=r"another vocabulary \(14 tokens, this tokenizer has 8\)"):
        read_counts(path, words(3))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"word": ["a"], "count": [1]}, "no column 'token'; its columns are word, count"),
        ({"token": ["a"]}, "no column 'count'"),
        ({"token": ["a", "the"], "count": [3, -2]}, "row 1: a token that occurs -2 times"),
        ({"token": ["a"], "count": [2**62]}, "is not believed"),
        ({"token": ["a"], "count": [1.5]}, "column 'count' is double with 0 gaps, not whole numbers"),
        ({"token": ["a", "the"], "count": [1, None]}, "with 1 gaps"),
        ({"token": [1], "count": [1]}, "column 'token' holds more than texts"),
        ({"token": [], "count": []}, "not whole numbers"),
    ],
)
def test_what_is_no_file_of_counts_is_said(columns: Any, message: str, pieces: Any, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=message):
        read_counts(table(tmp_path / "x.parquet", columns), pieces)


def test_damaged_and_missing_files_are_said(pieces: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BadInput, match=r"nowhere.parquet: no such file of token counts; name one, or a corpus to count"
    ):
        read_counts(tmp_path / "nowhere.parquet", pieces)
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1" + b"\xff" * 40 + b"PAR1")
    with pytest.raises(BadFile, match="cannot be read as a parquet file of token counts"):
        read_counts(path, pieces)
    published(path, PUBLISHED)
    with pytest.raises(BadInput, match="has no tokenizer beside it"):
        read_counts(path, None)
    monkeypatch.setattr(token_counts, "LARGEST_VOCABULARY", 9)
    with pytest.raises(BadFile, match=r"10 rows of [\d,]+ bytes are not a vocabulary \(at most 9\)"):
        read_counts(path, pieces)
    monkeypatch.setattr(token_counts, "MAX_BYTES", 100)
    with pytest.raises(BadFile, match="bytes is too large for token counts"):
        read_counts(path, pieces)


def test_a_changed_file_of_ours_is_refused(pieces: Any, tmp_path: Path) -> None:
    from pyarrow import parquet

    path = write_counts(ours(), tmp_path / "own.parquet")
    stored = parquet.read_table(path)
    parquet.write_table(stored.take(list(range(1, 14))), path)
    with pytest.raises(BadFile, match="its ids and tokens are not those it was written with"):
        read_counts(path, pieces)
    newer = json.dumps({**json.loads(stored.schema.metadata[b"outlierlens"]), "format_version": 99})
    parquet.write_table(stored.replace_schema_metadata({b"outlierlens": newer}), path)
    with pytest.raises(BadFile, match="token counts of format 99, this version reads 1"):
        read_counts(path, pieces)
    parquet.write_table(stored.replace_schema_metadata({b"outlierlens": b"[]"}), path)
    with pytest.raises(BadFile, match="damaged token counts"):
        read_counts(path, pieces)


def test_counts_of_another_kind_or_language_are_refused(pieces: Any, byte_pieces: Any, tmp_path: Path) -> None:
    path = published(tmp_path / "bert.parquet", PUBLISHED)
    with pytest.raises(BadInput, match=r"with '##' \(BERT-like\), this tokenizer with spaces \(RoBERTa-like\)"):
        read_counts(path, byte_pieces)
    path = published(tmp_path / "german.parquet", {"der": 90, "die": 80, "a": 3})
    with pytest.raises(BadInput, match="98% of its counted tokens are not in this tokenizer's vocabulary of 14"):
        read_counts(path, pieces)


def test_a_vocabulary_has_a_place_for_every_id(pieces: Any) -> None:
    class Gaps:
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 3}

    class Far(Gaps):
        def get_vocab(self) -> dict[str, int]:
            return {"a": 2**40}

    assert vocabulary_of(Gaps()) == ("a", "", "", "b")
    with pytest.raises(BadInput, match="do not lie between 0 and"):
        vocabulary_of(Far())
    assert added_around(pieces).tolist() == counted({"[CLS]": 1, "[SEP]": 1})


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(BYTES[5:]), st.integers(0, 10**6), min_size=1))
def test_no_occurrence_is_lost_or_made_where_every_key_has_an_id(byte_pieces: Any, by_token: dict[str, int]) -> None:
    text = dict(zip(BYTES, texts_of(BYTES), strict=True))
    keyed: dict[str, int] = {}
    for token, count in by_token.items():
        keyed[text[token]] = keyed.get(text[token], 0) + count
    found = by_id(keyed, byte_pieces, "x")
    assert found.counts.sum() == sum(by_token.values())
    assert (found.counts >= 0).all()


@pytest.mark.real
def test_the_published_counts(sample: Any, evaluation_data: Path) -> None:
    """What the released mapping does to '#' and '##s' of BERT's vocabulary, which minilm-l6 and mpnet-base share."""
    from outlierlens.models.load import load_tokenizer

    folder = evaluation_data / "token_counts"
    both = ",".join(str(folder / f"bert-base-uncased_{name}.parquet") for name in ("wiki", "book_corpus"))
    for name in ("minilm-l6", "mpnet-base"):
        tokenizer = load_tokenizer(sample(name))
        number = tokenizer.get_vocab()
        found = read_counts(both, tokenizer)
        assert found.n_tokens == 3_900_283_474
        assert found.special[tokenizer.cls_token_id] == 168_012_389
        assert found.counts[number["#"]] == 298_820
        assert found.counts[number["##s"]] == 13_768_496
        assert all("100.00 % of the counted tokens" in note for note in found.notes)
        if name == "minilm-l6":
            released = compat_counts(both, tokenizer)
            assert (released.counts[number["#"]], released.counts[number["##s"]]) == (54, 0)
            assert "5,465 of 29,160 keys" in released.notes[0]
