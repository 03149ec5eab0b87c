"""Texts from every kind of file, and batches against one text at a time."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.data.texts import SHIPPED, batches, beginnings, read_texts
from outlierlens.errors import BadInput, Offline
from tiny_tokenizers import byte_level


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_kind_of_file_gives_the_same_texts(tmp_path: Path) -> None:
    import pandas

    expected = ("one, two", 'three "four', "fünf")
    rows = [{"label": i, "sentence": text} for i, text in enumerate(expected)]
    write(tmp_path / "a.txt", 'one, two\n\n  \nthree "four\r\nfünf\n')
    write(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    write(tmp_path / "a.csv", 'label,sentence\n0,"one, two"\n1,"three ""four"\n2,fünf\n')
    write(tmp_path / "a.tsv", 'label\tsentence\n0\tone, two\n1\tthree "four\n2\tfünf\n')
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    digests = set()
    for ending in ("txt", "jsonl", "csv", "tsv", "parquet"):
        texts = read_texts(tmp_path / f"a.{ending}")
        assert texts.texts == expected, ending
        assert texts.column == ("" if ending == "txt" else "sentence")
        digests.add(texts.digest)
    assert len(digests) == 1
    assert read_texts(tmp_path / "a.csv", limit=2).texts == expected[:2]


@pytest.mark.parametrize(("name", "n", "least", "most"), [("excerpt", 128, 80, 115), ("reviews", 64, 35, 50)])
def test_the_shipped_texts_are_there(name: str, n: int, least: int, most: int) -> None:
    texts = read_texts(name).texts
    assert len(texts) == n
    assert all(least <= len(text.split()) <= most for text in texts)


def test_the_shipped_texts_repeat_nothing() -> None:
    """No six words in a row stand twice, in one text or in two."""
    texts = [re.findall(r"[a-z0-9']+", text.lower()) for name in SHIPPED for text in read_texts(name).texts]
    runs = Counter(tuple(text[i : i + 6]) for text in texts for i in range(len(text) - 5))
    assert [run for run, n in runs.items() if n > 1] == []


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        (
            "x.csv",
            "a,b\n1,2\n",
            None,
            "which column holds the text\\? column \\(--data FILE:column=NAME\\) must be one of a, b",
        ),
        ("x.csv", "a,b\n1,2\n", "c", "no column 'c'; its columns are a, b"),
        ("x.jsonl", '{"text": "a"}\nnonsense\n', None, "line 2: not valid JSON"),
        ("x.jsonl", "[1]\n", None, "line 1: a list, not an object"),
        ("x.txt", "\n\n", None, "holds no non-empty text"),
        ("x.docx", "x", None, "unknown ending '.docx'; use .txt, .jsonl, .csv, .tsv or .parquet"),
        ("x.parquet", "not parquet", None, "cannot be read as a parquet file"),
        ("x.jsonl", "[" * 200_000, None, "line 1: not valid JSON"),
        ("x.jsonl", "\n", None, "holds no non-empty text"),
        ("x.csv", "", None, "holds no non-empty text"),
        ("x.csv", "text\nfine\n" + "x" * 140_000, None, "line 3: field larger than field limit .*convert the file to"),
        ("x.tsv", "text\tlabel\nfine\t1\na\rb\t2\n", None, "line 3: new-line character seen in unquoted field"),
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


ODD = "a\u2028b\u2029c\x85d\x0ce\x1cf"


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\r\n" for text in (ODD, "next"))
    assert "\u2028" in rows
    assert read_texts(write(tmp_path / "a.jsonl", rows)).texts == (ODD, "next")
    for ending in ("txt", "csv", "tsv"):
        head = "" if ending == "txt" else "text\n"
        assert read_texts(write(tmp_path / f"a.{ending}", f"{head}{ODD}\r\nnext\n")).texts == (ODD, "next"), ending
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\rstill one\r\ntwo")
    assert read_texts(tmp_path / "b.txt").texts == ("one\rstill one", "two")


def test_rows_of_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'label,text\n0,"two\nlines"\n1\n\n2,last,extra\n')
    assert read_texts(path).texts == ("two\nlines", "last")
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"open\t0\n\n5" and 6"\t1\n')
    assert read_texts(path).texts == ('"open', '5" and 6"')


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None, str], Any]:
    """Data sets by (name, config, split) in place of the hub; an exception is raised."""
    import datasets

    known: dict[tuple[str, str | None, str], Any] = {}

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> Any:
        assert streaming
        found = known.get((name, config, split), FileNotFoundError(f"no data set {name}"))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return known


def test_hub_ids_may_hold_dots(hub: Any) -> None:
    hub["legacy-datasets/wikipedia", "20220301.en", "train"] = [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}]
    hub["owner/name.v2", None, "test"] = [{"sentence": "three"}]
    assert read_texts("legacy-datasets/wikipedia:20220301.en:train").texts == ("one", "two")
    assert read_texts("owner/name.v2").texts == ("three",)
    for name in ("missing.TSV", "folder/missing.parquet", "./owner/name", "~/texts"):
        with pytest.raises(BadInput, match="no such data file"):
            read_texts(name)


def test_hub_data_sets_that_cannot_be_read(hub: Any) -> None:
    from datasets.exceptions import DatasetGenerationError

    hub["owner/empty", None, "train"] = []
    with pytest.raises(BadInput, match="owner/empty::train: the split 'train' of this data set is empty; name another"):
        read_texts("owner/empty::train")
    with pytest.raises(
        BadInput, match=r"no such file, and it cannot be read as a hub data set .*: no data set owner/x"
    ):
        read_texts("owner/x")
    for error, text in (
        (RuntimeError("Dataset scripts are no longer supported"), "scripts are no longer"),
        (DatasetGenerationError(), "DatasetGenerationError"),
        (ValueError(""), "ValueError"),
    ):
        hub["owner/bad", None, "test"] = error
        with pytest.raises(BadInput, match=text):
            read_texts("owner/bad")


@settings(max_examples=40)
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


LONG = {
    "words": " ".join(f"w{i % 30}" for i in range(20_000)),
    "spaces": ("w1" + " " * 300) * 900,
    "one word": "a" * 60_000,
    "lines": "the dog.\n\n" * 9_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kind", ["masked", "causal", "bytes"])
def test_a_beginning_has_the_first_tokens_of_a_long_text(kind: str, text: str, words: Any) -> None:
    tokenizer = byte_level() if kind == "bytes" else words(kind=kind)
    (part,) = beginnings(tokenizer, (text,), 32)
    assert text.startswith(part)
    assert tokenizer(part, truncation=True, max_length=32) == tokenizer(text, truncation=True, max_length=32)
    if text == LONG["words"]:
        assert len(part) < len(text) / 10
    assert beginnings(tokenizer, ("w1 w2",), 32) == ["w1 w2"]
    tokenizer.truncation_side = "left"
    assert beginnings(tokenizer, (text,), 32) == [text]


def test_a_text_longer_than_a_novel_is_refused(tmp_path: Path) -> None:
    import pandas

    text = "y " * 1_000_001
    write(tmp_path / "a.txt", f"short\n{text}")
    write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": one}) for one in ("short", text)))
    pandas.DataFrame({"text": ["short", text]}).to_parquet(tmp_path / "a.parquet")
    for ending in ("txt", "jsonl", "parquet"):
        with pytest.raises(
            BadInput, match=r"row 2: a text of 2,000,00\d characters, over 2,000,000; write it as several"
        ):
            read_texts(tmp_path / f"a.{ending}")
        assert read_texts(tmp_path / f"a.{ending}", limit=1).texts == ("short",)


def test_a_column_of_lists_is_no_text(tmp_path: Path) -> None:
    import pandas

    pandas.DataFrame({"text": [["a", "b"]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="column 'text' holds lists, and one value in a row is wanted; name another"):
        read_texts(tmp_path / "a.parquet")
