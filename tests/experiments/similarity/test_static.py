"""Word vectors from files: both formats by hand, what a hostile or damaged file does, sentences as means of words."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.similarity.pooling import needed_words, read_word_vectors, words_of

VECTORS = {"plane": (1.0, 2.0), "taking": (3.0, -4.0), "Off": (0.5, 0.25), "naïve": (7.0, 8.0)}


def text_file(path: Path, vectors: dict[str, tuple[float, ...]] = VECTORS, header: str | None = None) -> Path:
    width = len(next(iter(vectors.values())))
    head = f"{len(vectors)} {width}\n" if header is None else header
    lines = [f"{word} {' '.join(map(str, values))}\n" for word, values in vectors.items()]
    path.write_text(head + "".join(lines), "utf-8")
    return path


def binary_file(
    path: Path, vectors: dict[str, tuple[float, ...]] = VECTORS, header: str | None = None, end: bytes = b""
) -> Path:
    width = len(next(iter(vectors.values())))
    head = f"{len(vectors)} {width}\n" if header is None else header
    rows = [word.encode() + b" " + struct.pack(f"<{width}f", *values) + end for word, values in vectors.items()]
    path.write_bytes(head.encode() + b"".join(rows))
    return path


def test_words_and_punctuation() -> None:
    assert words_of("A plane, taking off.") == ["A", "plane", ",", "taking", "off", "."]
    assert words_of("don't (naïve) 1,650") == ["don't", "(", "naïve", ")", "1", ",", "650"]
    assert needed_words(["A plane"]) == {"A", "a", "plane"}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_binary_and_text_hold_the_same(tmp_path: Path, end: bytes) -> None:
    wanted = {"plane", "naïve", "missing"}
    for path in (
        text_file(tmp_path / "a.txt"),
        text_file(tmp_path / "a.vec", header=""),
        binary_file(tmp_path / "a.bin", end=end),
    ):
        found = read_word_vectors(path, wanted)
        assert set(found.rows) == {"plane", "naïve"}  # only what is needed is kept
        assert found.values[found.rows["naïve"]].tolist() == [7, 8]
        assert found.values.dtype == np.float32
        assert found.name == path.name


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.from_regex(r"\A\w{1,6}\Z"), st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=1
    )
)
def test_any_words_survive_either_format(
    tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, list[float]]
) -> None:
    folder = tmp_path_factory.mktemp("vectors")
    given_vectors = {word: tuple(values) for word, values in vectors.items()}
    for path in (text_file(folder / "a.txt", given_vectors), binary_file(folder / "a.bin", given_vectors)):
        found = read_word_vectors(path, set(vectors))
        assert {word: found.values[row].tolist() for word, row in found.rows.items()} == vectors


def test_a_sentence_is_the_mean_of_its_known_words_and_lower_case_helps(tmp_path: Path) -> None:
    found = read_word_vectors(text_file(tmp_path / "a.txt"), needed_words(["Plane taking unknown", "off"]) | {"Off"})
    values, coverage = found.of(["Plane taking unknown", "unknown", "off"])
    assert values.tolist() == [[2, -1], [0, 0], [0, 0]]  # "Off" is not the lower case of "off"
    assert coverage == 2 / 5
    assert found.of(["Off"])[0].tolist() == [[0.5, 0.25]]


def test_the_first_of_two_counts_and_words_with_spaces_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("plane 1 2\n. . . 3 4\nplane 5 6\n. 7 8\n\n")
    found = read_word_vectors(path, {"plane", "."})
    assert found.values[[found.rows["plane"], found.rows["."]]].tolist() == [[1, 2], [7, 8]]


@pytest.mark.parametrize("make", [text_file, binary_file])
@pytest.mark.parametrize("header", ["999999999999 300\n", "5 60000\n"])
def test_sizes_in_a_header_are_not_believed(tmp_path: Path, make: type, header: str) -> None:
    path = make(tmp_path / ("a.bin" if make is binary_file else "a.txt"), header=header)
    with pytest.raises(BadFile, match=r"need more than the file's .* bytes; it is cut short or no word2vec file"):
        read_word_vectors(path, {"plane"})


@pytest.mark.parametrize("header", ["0 2\n", "-1 2\n", "4 0\n", "4 2 1\n", "x" * 99, "4 999999\n", ""])
def test_a_header_that_is_none(tmp_path: Path, header: str) -> None:
    with pytest.raises(BadFile, match="does not begin with its number of words and dimensions"):
        read_word_vectors(binary_file(tmp_path / "a.bin", header=header), {"plane"})


def test_damaged_files_say_where(tmp_path: Path) -> None:
    path = binary_file(tmp_path / "a.bin")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"taking ", b"taking_"))
    with pytest.raises(BadFile, match="word 4 of 4 is damaged"):
        read_word_vectors(path, {"plane"})
    few = tmp_path / "few.txt"
    few.write_text("plane 1 2 3\ntaking 1 2\n")
    with pytest.raises(BadFile, match=r"word 2 \(b'taking'\): 2 values, expected 3"):
        read_word_vectors(few, {"plane", "taking"})
    few.write_text("plane 1 x 3\n")
    with pytest.raises(BadFile, match="a value is no number"):
        read_word_vectors(few, {"plane"})
    few.write_text("plane 1 nan 3\n")
    with pytest.raises(BadFile, match="the vector of 'plane' is not finite"):
        read_word_vectors(few, {"plane"})
    few.write_text("9 2\nplane 1.00000000000 3.0000000000\n" + "a 1.0000000000000 2.00000000000000\n" * 2)
    with pytest.raises(BadFile, match="its header says 9 words, and it holds 3"):
        read_word_vectors(few, {"plane"})


def test_what_is_no_file_of_word_vectors(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file of word vectors"):
        read_word_vectors(tmp_path / "none.bin", {"a"})
    packed = tmp_path / "a.gz"
    packed.write_bytes(b"")
    with pytest.raises(BadInput, match=r"use .bin \(word2vec binary\), .txt or .vec \(text\), unpacked"):
        read_word_vectors(packed, {"a"})
    empty = tmp_path / "a.txt"
    empty.write_text("")
    with pytest.raises(BadFile, match="it is no file of word vectors"):
        read_word_vectors(empty, {"a"})
    with pytest.raises(BadFile, match="holds none of the 1 words of these texts"):
        read_word_vectors(text_file(tmp_path / "b.txt"), {"absent"})
