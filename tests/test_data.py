"""Texts from every kind of file, batches against one text at a time, and the row store."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.data import batches, read_texts
from outlierlens.errors import BadFile, BadInput, Offline
from outlierlens.rows import RowStore


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_kind_of_file_gives_the_same_texts(tmp_path: Path) -> None:
    import pandas

    expected = ("one, two", "three\tfour", "fünf")
    rows = [{"label": i, "sentence": text} for i, text in enumerate(expected)]
    write(tmp_path / "a.txt", "one, two\n\n  \nthree\tfour\r\nfünf\n")
    write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    write(tmp_path / "a.csv", 'label,sentence\n0,"one, two"\n1,three\tfour\n2,fünf\n')
    write(tmp_path / "a.tsv", 'label\tsentence\n0\tone, two\n1\t"three\tfour"\n2\tfünf\n')
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    digests = set()
    for ending in ("txt", "jsonl", "csv", "tsv", "parquet"):
        texts = read_texts(tmp_path / f"a.{ending}")
        assert texts.texts == expected, ending
        assert texts.column == ("" if ending == "txt" else "sentence")
        digests.add(texts.digest)
    assert len(digests) == 1
    assert read_texts(tmp_path / "a.csv", limit=2).texts == expected[:2]


def test_the_excerpt_is_there() -> None:
    texts = read_texts("excerpt")
    assert len(texts) == 18
    assert all(80 < len(text.split()) < 130 for text in texts.texts)


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("x.csv", "a,b\n1,2\n", None, "which column holds the text\\? --text-column must be one of a, b"),
        ("x.csv", "a,b\n1,2\n", "c", "no column 'c'; its columns are a, b"),
        ("x.jsonl", '{"text": "a"}\nnonsense\n', None, "line 2: not valid JSON"),
        ("x.jsonl", "[1]\n", None, "line 1: a list, not an object"),
        ("x.txt", "\n\n", None, "holds no non-empty text"),
        ("x.docx", "x", None, "unknown ending '.docx'; use .txt, .jsonl, .csv, .tsv or .parquet"),
        ("x.parquet", "not parquet", None, "not a parquet file"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: str, column: str | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_texts(write(tmp_path / name, content), column=column)


def test_bad_names(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such data file"):
        read_texts("nothing.txt")
    with pytest.raises(Offline, match="a hub data set, and offline mode is on"):
        read_texts("owner/name:config:test", offline=True)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BadInput, match="not UTF-8 at byte 3"):
        read_texts(tmp_path / "latin.txt")
    with pytest.raises(BadInput, match="limit is 0"):
        read_texts("excerpt", limit=0)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    size=st.integers(1, 4),
    sort=st.booleans(),
    side=st.sampled_from(["left", "right"]),
)
def test_batches_hold_every_token_once(lengths: list[int], size: int, sort: bool, side: str) -> None:
    from conftest import Words

    tokenizer = Words.build(side=side)
    texts = [" ".join(f"w{(i + j) % 35}" for j in range(n)) for i, n in enumerate(lengths)]
    seen: dict[int, list[int]] = {}
    for batch in batches(tokenizer, texts, max_length=8, batch_size=size, sort=sort):
        ids = batch.inputs["input_ids"]
        assert ids.shape == batch.valid.shape == batch.special.shape
        assert batch.valid[:, 0].all()  # right padding, whatever the tokenizer prefers
        for row, number in enumerate(batch.texts):
            seen[number] = ids[row][batch.valid[row]].tolist()
            assert (ids[row][batch.special[row]] < 5).all()
            assert (ids[row][batch.valid[row] & ~batch.special[row]] >= 5).all()
    assert seen == {i: tokenizer(text, truncation=True, max_length=8)["input_ids"] for i, text in enumerate(texts)}


def test_longest_first_when_sorted(words: Any) -> None:
    texts = ["w1", "w1 w2 w3", "w1 w2"]
    order = [number for batch in batches(words(), texts, max_length=9, batch_size=1) for number in batch.texts]
    assert order == [1, 2, 0]


def test_a_model_without_tokenizer_says_so() -> None:
    with pytest.raises(BadInput, match="has no tokenizer beside it"):
        next(batches(None, ["x"], max_length=8, batch_size=1))


def test_rows_are_kept_and_a_torn_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    with RowStore.open(path, {"seed": 1}) as rows:
        assert rows.get("a") is None
        rows.append("a", {"x": 1.5})
        rows.append("b", [float("1e-300")])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "val')
    with RowStore.open(path, {"seed": 1}) as rows:
        assert rows.done == {"a": {"x": 1.5}, "b": [1e-300]}
        assert path.read_bytes() == whole
        rows.append("c", 3)
    assert path.read_bytes().startswith(whole)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with RowStore.open(path, {"seed": 1}) as rows:
            assert set(rows.done) <= {"a", "b"}
            rows.append("z", 0)
        with RowStore.open(path, {"seed": 1}) as rows:
            assert rows.get("z") == 0


def test_rows_of_other_work_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowStore.open(path, {"seed": 1, "model": "a"}).file.close()
    with pytest.raises(BadInput, match="holds rows of other work \\(seed was 1, is 2\\); use another directory"):
        RowStore.open(path, {"seed": 2, "model": "a"})
    path.write_text('{"identity": {"seed": 1, "model": "a"}}\nnonsense\n{"key": "a", "value": 1}\n')
    with pytest.raises(BadFile, match="line 2: not a row of outlierlens"):
        RowStore.open(path, {"seed": 1, "model": "a"})


@pytest.mark.parametrize("content", [b"my notes, one line without an end", b"{", b"\x00\x01"])
def test_a_file_that_is_no_row_store_is_never_cut(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    if content != b"{":  # the beginning of a first line that a killed run left
        with pytest.raises(BadFile, match="not rows of outlierlens; name another file"):
            RowStore.open(path, {"seed": 1})
        assert path.read_bytes() == content
