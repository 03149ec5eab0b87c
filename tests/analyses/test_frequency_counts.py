"""Counting a corpus: by hand, against a plain loop whatever the shards, stopped and gone on with."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from outlierlens.analyses import frequency_counts as counting
from outlierlens.analyses.frequency_counts import count_texts, count_tokens, counts_of, expand
from outlierlens.data.token_counts import TokenCounts, read_counts, write_counts
from outlierlens.errors import BadFile, BadInput
from outlierlens.results.row_store import read_rows
from tiny_tokenizers import PIECES, byte_level, word_pieces

TEXTS = ["the cats.", "the doggy", "dog dog the", "a zebra", "##s", "the [SEP] cat"]
# the cat ##s . | the dog ##gy | dog dog the | a [UNK] | # # s | the [SEP] cat
BY_HAND = {"the": 4, "cat": 2, "##s": 1, ".": 1, "dog": 3, "##gy": 1, "a": 1, "[UNK]": 1, "#": 2, "s": 1, "[SEP]": 1}


@pytest.fixture(scope="module")
def pieces() -> Any:
    return word_pieces()


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard a text."""
    monkeypatch.setattr(counting, "SHARD", 1)


def by_token(counts: np.ndarray) -> dict[str, int]:
    return {PIECES[n]: int(counts[n]) for n in np.flatnonzero(counts)}


def plain_loop(tokenizer: Any, texts: list[str]) -> list[int]:
    counts = [0] * len(tokenizer)
    for text in texts:
        for number in tokenizer(text, add_special_tokens=False)["input_ids"]:
            counts[number] += 1
    return counts


def corpus(path: Path, texts: list[str] = TEXTS) -> Path:
    """The texts as a file of the ending asked for."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=2)
        return path
    rows = {
        ".txt": texts,
        ".jsonl": [json.dumps({"text": text}) for text in texts],
        ".csv": ["text,n", *(f'"{text}",1' for text in texts)],
        ".tsv": ["n\ttext", *(f"1\t{text}" for text in texts)],
    }[path.suffix]
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_counts_by_hand(ending: str, pieces: Any, tmp_path: Path) -> None:
    found = count_tokens(pieces, corpus(tmp_path / f"texts{ending}"))
    assert by_token(found.counts) == BY_HAND
    # [SEP] spelled in a text is one of its tokens; those put around the six texts are counted apart
    assert by_token(found.special) == {"[CLS]": 6, "[SEP]": 6}
    assert (found.n_texts, found.n_tokens, found.tokens) == (6, 18, PIECES)
    assert found.frequency(special=True)[3] == 7
    assert found.notes == (
        "texts were counted whole",
        "6% of the tokens read are unknown to the tokenizer; it may not fit these texts (their language, script or case)",
    )


@settings(max_examples=30)
@given(
    st.lists(st.text(st.sampled_from("the catsdogy#.[]é\ud800\udc00"), max_size=20), max_size=12),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_any_shards_count_as_a_plain_loop(pieces: Any, texts: list[str], shard: int, batch: int) -> None:
    texts = ["the", *texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "SHARD", shard)
        patch.setattr(counting, "BATCH", batch)
        found = count_texts(pieces, texts)
    clean = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    assert found.counts.tolist() == plain_loop(pieces, clean)
    assert found.n_texts == len(texts)


def test_at_most_so_many_texts_are_read(pieces: Any, tmp_path: Path) -> None:
    path = corpus(tmp_path / "texts.txt", TEXTS * 5)
    found = count_tokens(pieces, path, limit=12)
    assert by_token(found.counts) == {token: 2 * count for token, count in BY_HAND.items()}
    assert (found.n_texts, found.source) == (12, f"{path}, the first 12 texts")


def test_byte_level_texts(words: Any) -> None:
    found = count_texts(byte_level(), ["é a"])
    assert {found.tokens[n] for n in np.flatnonzero(found.counts)} == {"Ã", "©", "Ġ", "a"}
    assert found.special.sum() == 2
    assert count_texts(words(5, kind="causal"), ["w0 w1", "w1"]).special.sum() == 0


def test_a_length_that_the_tokenizer_file_asks_for_cuts_nothing(pieces: Any) -> None:
    pieces.backend_tokenizer.enable_truncation(3)
    pieces.backend_tokenizer.enable_padding(length=9)
    assert by_token(count_texts(pieces, ["the cat dog a"]).counts) == {"the": 1, "cat": 1, "dog": 1, "a": 1}


class Slow:
    """A tokenizer in Python alone: one id a character."""

    all_special_ids = ()

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1, "[CLS]": 2}

    def __call__(self, texts: Any, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, Any]:
        one = [[2] * add_special_tokens + ["ab".index(c) for c in text] for text in texts]
        return {"input_ids": one[0] if isinstance(texts, str) else one}


def test_slow_tokenizers_count_too() -> None:
    found = count_texts(Slow(), ["aab", "b"])
    assert (found.counts.tolist(), found.special.tolist()) == ([2, 2, 0], [0, 0, 2])


def test_a_text_that_a_tokenizer_fails_on_is_told(small_shards: None) -> None:
    with pytest.raises(
        BadInput, match="the tokenizer fails on a text between 2 and 2: ValueError: substring not found"
    ):
        count_texts(Slow(), ["a", "c"])


def test_files_folders_globs_and_ids_are_found_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "deep/c.txt", ".hidden/d.txt", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    below = tuple(str(tmp_path / name) for name in ("a.jsonl", "b.txt", "deep/c.txt"))
    assert expand(tmp_path) == below
    assert expand([str(tmp_path / "*.txt"), tmp_path, "owner/name:config:train", "reviews"]) == (
        below[1], below[0], below[2], "owner/name:config:train", "reviews",
    )  # fmt: skip
    for wrong, message in (
        (tmp_path / "none.txt", "none.txt: no such data file"),
        (tmp_path / "*.csv", r"no file there that ends in .txt, .jsonl"),
        ([], "no data is named"),
    ):
        with pytest.raises(BadInput, match=message):
            expand(wrong if isinstance(wrong, list) else str(wrong))


def stop_after(n: int, error: BaseException) -> Any:
    """Progress that raises at its n-th call."""
    calls = itertools.count(1)

    def tell(*_: Any) -> None:
        if next(calls) == n:
            raise error

    return tell


def place_of(rows: Path) -> tuple[int, ...]:
    """Where the last shard that is kept ends."""
    return tuple(list(read_rows(rows)[1].values())[-1]["end"])


def test_a_stopped_count_goes_on_and_ends_the_same(pieces: Any, tmp_path: Path, small_shards: None) -> None:
    names, rows = [str(corpus(tmp_path / f"{n}.txt", TEXTS[n:])) for n in range(3)], tmp_path / "rows.jsonl"
    whole = count_tokens(pieces, names)
    seen = []
    for n in (4, 5, 2):  # stopped in the first, second and second file
        with pytest.raises(KeyboardInterrupt):
            count_tokens(pieces, names, rows=rows, progress=stop_after(n, KeyboardInterrupt()))
        seen.append(place_of(rows))
    assert seen == [(0, 4, 4), (1, 3, 9), (1, 5, 11)]
    told: list[tuple[str, int, int]] = []
    found = count_tokens(pieces, names, rows=rows, progress=lambda *now: told.append(now))
    assert told[0][0].startswith(f"{names[2]}: 12 texts, ")
    assert told[0][1:] == (2, 3)
    assert (found.counts.tolist(), found.n_texts) == (whole.counts.tolist(), 15)
    assert found.special.tolist() == whole.special.tolist()
    told.clear()
    again = count_tokens(pieces, names, rows=rows, progress=lambda *now: told.append(now))
    assert (again.counts.tolist(), told) == (whole.counts.tolist(), [])


def test_an_unfinished_count_of_something_else_is_not_mixed_in(pieces: Any, tmp_path: Path, small_shards: None) -> None:
    path, rows = corpus(tmp_path / "texts.txt"), tmp_path / "rows.jsonl"
    with pytest.raises(RuntimeError, match="stop"):
        count_tokens(pieces, path, rows=rows, progress=stop_after(2, RuntimeError("stop")))
    with pytest.raises(BadInput, match=r"rows of other work \(limit was None, is 3\)"):
        count_tokens(pieces, path, limit=3, rows=rows)
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadInput, match=r"data \(names, sizes and times of files\) was"):
        count_tokens(pieces, path, rows=rows)
    rows.write_bytes(b"no\n")
    with pytest.raises(BadFile, match="not rows of outlierlens"):
        count_tokens(pieces, path, rows=rows)


def test_a_count_that_finds_nothing_is_refused(pieces: Any, tmp_path: Path) -> None:
    path = corpus(tmp_path / "texts.txt", ["", "  "])
    with pytest.raises(BadInput, match=r"texts\.txt: holds no non-empty text"):
        count_tokens(pieces, path)
    with pytest.raises(BadInput, match="limit is 0; it must be at least 1"):
        count_tokens(pieces, path, limit=0)


KILLED = """
import os, signal, sys
from pathlib import Path
from outlierlens.analyses import frequency_counts
from tiny_tokenizers import Bare, pieces_backend

frequency_counts.SHARD = 1

def tell(label, done, total):
    if " 4 texts" in label:
        os.kill(os.getpid(), signal.SIGKILL)

frequency_counts.count_tokens(Bare(pieces_backend()), sys.argv[1], rows=Path(sys.argv[2]), progress=tell)
"""


def test_a_killed_count_goes_on(pieces: Any, tmp_path: Path) -> None:
    path, rows = corpus(tmp_path / "texts.txt", TEXTS * 3), tmp_path / "rows.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(rows)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert place_of(rows) == (0, 4, 4)
    found = count_tokens(pieces, path, rows=rows)
    assert by_token(found.counts) == {token: 3 * count for token, count in BY_HAND.items()}


def test_an_option_names_counts_or_a_corpus(pieces: Any, tmp_path: Path) -> None:
    path, own = corpus(tmp_path / "texts.parquet"), tmp_path / "own.parquet"
    found = counts_of(str(path), pieces)
    assert by_token(found.counts) == BY_HAND
    write_counts(found, own)
    again = counts_of(f"{own},{own}", pieces)
    assert isinstance(again, TokenCounts)
    assert again.counts.tolist() == (2 * found.counts).tolist() == (2 * read_counts(own, pieces).counts).tolist()
    assert counts_of(f"{path},{path}", pieces).n_texts == 6  # a file that is named twice counts once
    published = tmp_path / "published.parquet"
    parquet.write_table(pyarrow.table({"token": ["the", "cat", "dog"], "count": [3, 2, 1]}), published)
    assert by_token(counts_of(str(published), pieces).counts) == {"the": 3, "cat": 2, "dog": 1}
    for wrong, message in (
        ("gone.parquet", "gone.parquet: no such file of token counts"),
        ("gone.txt", "gone.txt: no such data file"),
    ):
        with pytest.raises(BadInput, match=message):
            counts_of(wrong, pieces)
    with pytest.raises(BadInput, match="the released code reads a file of counts; make one with --write-counts first"):
        counts_of(str(path), pieces, paper_compat=True)
