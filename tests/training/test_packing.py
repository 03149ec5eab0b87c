"""Rows of tokens: where [CLS] and [SEP] stand in each packing, by hand and for any sentences."""

import itertools
from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlierlens.training.pretrain.corpus import Marks, pack
from outlierlens.training.pretrain.recipe import Packing

CLS, SEP, PAD = 2, 3, 0
PACKINGS: tuple[str, ...] = get_args(Packing)
MARKS = Marks(cls=CLS, sep=SEP, pad=PAD)
SENTENCES = [[10, 11, 12], [13], [14, 15], [16, 17]]

sentences_of_any_kind = st.lists(st.lists(st.integers(4, 99), max_size=12), max_size=30)
lengths = st.integers(4, 16)


def rows(sentences: list[list[int]], packing: str, length: int) -> list[list[int]]:
    return list(pack(sentences, packing, MARKS, length))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        # 2 10 11 12 3 2 | 13 3 2 14 15 3 | 2 16 17 3
        ("sentences", [[2, 10, 11, 12, 3, 2], [13, 3, 2, 14, 15, 3]]),
        # SPLIT: 10 11 12 3 13 | 3 14 15 3 16 | 17 3, and [CLS] before each
        ("split", [[2, 10, 11, 12, 3, 13], [2, 3, 14, 15, 3, 16]]),
        # ONE_SEP: 10 11 12 13 | 14 15 16 17, and [CLS] before and [SEP] after each
        ("one-sep", [[2, 10, 11, 12, 13, 3], [2, 14, 15, 16, 17, 3]]),
        ("lines", [[2, 10, 11, 12, 3, 0], [2, 13, 3, 0, 0, 0], [2, 14, 15, 3, 0, 0], [2, 16, 17, 3, 0, 0]]),
    ],
)
def test_rows_of_six_tokens_by_hand(packing: str, expected: list[list[int]]) -> None:
    assert rows(SENTENCES, packing, 6) == expected


def test_a_line_is_cut_before_its_separator() -> None:
    assert rows([[10, 11, 12, 13], [14, 15]], "lines", 4) == [[2, 10, 11, 3], [2, 14, 15, 3]]


@given(sentences_of_any_kind, lengths)
def test_split_keeps_every_separator_and_one_sep_none(sentences: list[list[int]], length: int) -> None:
    with_separators = [token for sentence in sentences if sentence for token in (*sentence, SEP)]
    split = rows(sentences, "split", length)
    assert all(row[0] == CLS and CLS not in row[1:] for row in split)
    assert [token for row in split for token in row[1:]] == with_separators[: len(split) * (length - 1)]
    assert len(split) == len(with_separators) // (length - 1)
    words = [token for sentence in sentences for token in sentence]
    one = rows(sentences, "one-sep", length)
    assert all(row[0] == CLS and row[-1] == SEP and not {CLS, SEP} & set(row[1:-1]) for row in one)
    assert [token for row in one for token in row[1:-1]] == words[: len(one) * (length - 2)]
    assert len(one) == len(words) // (length - 2)


@given(sentences_of_any_kind, lengths)
def test_sentences_are_the_stream_as_it_is(sentences: list[list[int]], length: int) -> None:
    stream = [token for sentence in sentences if sentence for token in (CLS, *sentence, SEP)]
    packed = rows(sentences, "sentences", length)
    assert [token for row in packed for token in row] == stream[: len(stream) // length * length]


@given(sentences_of_any_kind, lengths)
def test_lines_are_the_sentences_one_by_one(sentences: list[list[int]], length: int) -> None:
    kept = [sentence for sentence in sentences if sentence]
    packed = rows(sentences, "lines", length)
    assert len(packed) == len(kept)
    for row, sentence in zip(packed, kept, strict=True):
        body = sentence[: length - 2]
        assert row == [CLS, *body, SEP] + [PAD] * (length - 2 - len(body))


@given(sentences_of_any_kind, lengths, st.sampled_from(PACKINGS))
def test_rows_have_their_length_and_the_sentences_stay(sentences: list[list[int]], length: int, packing: str) -> None:
    before = [list(sentence) for sentence in sentences]
    assert all(len(row) == length for row in rows(sentences, packing, length))
    assert sentences == before


@pytest.mark.parametrize("packing", PACKINGS)
def test_text_without_end_is_packed_as_it_comes(packing: str) -> None:
    read = 0

    def endless() -> Iterator[list[int]]:
        nonlocal read
        for number in itertools.count():
            read += 1
            yield [10 + number % 7] * 5

    first = list(itertools.islice(pack(endless(), packing, MARKS, 16), 100))  # type: ignore[arg-type]
    assert len(first) == 100
    assert read <= 100 * 16 / 5 + 4
