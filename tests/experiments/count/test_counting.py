"""Counting a corpus: by hand, against a plain loop whatever the shards and workers, stopped and gone on with."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moments import until
from outlierlens.data.token_counts import read_counts
from outlierlens.errors import BadFile, BadInput, OutlierlensError
from outlierlens.experiments.count import measure as run
from outlierlens.experiments.count import tally as shards
from outlierlens.experiments.count.measure import count_texts, count_tokens
from outlierlens.experiments.count.options import CountOptions
from outlierlens.experiments.count.tally import Tally, cut, expand, packed_texts, unpacked_texts
from outlierlens.experiments.count.workers import Workers, here
from tiny_tokenizers import PIECES, byte_level, word_pieces

TEXTS = ["the cats.", "the doggy", "dog dog the", "a zebra", "##s", "the [SEP] cat"]
# the cat ##s . | the dog ##gy | dog dog the | a [UNK] | # # s | the [SEP] cat
BY_HAND = {"the": 4, "cat": 2, "##s": 1, ".": 1, "dog": 3, "##gy": 1, "a": 1, "[UNK]": 1, "#": 2, "s": 1, "[SEP]": 1}
HERE = CountOptions(workers=1)


@pytest.fixture(scope="module")
def pieces() -> Any:
    return word_pieces()


@pytest.fixture(scope="module")
def tally(pieces: Any) -> Tally:
    return Tally.of(pieces)


@pytest.fixture(scope="module")
def workers(tally: Tally) -> Iterator[Workers]:
    with Workers(tally, 2) as running:
        yield running


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard a text, and the sums kept after each."""
    monkeypatch.setattr(shards, "SHARD_TEXTS", 1)
    monkeypatch.setattr(run, "SAVE_SECONDS", 0.0)


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
    found = count_tokens(pieces, corpus(tmp_path / f"texts{ending}"), HERE)
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
    st.integers(1, 4),
)
def test_any_shards_and_workers_count_as_a_plain_loop(
    pieces: Any, tally: Tally, workers: Workers, texts: list[str], characters: int, together: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_CHARACTERS", characters)
        patch.setattr(shards, "SHARD_TEXTS", together)
        numbered = [((0, n, n), text) for n, text in enumerate(texts, 1)]
        one, many = list(here(tally, cut(numbered))), list(workers.counted(cut(numbered)))
    clean = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    for found in (one, many):
        counts = np.zeros(len(PIECES), dtype=np.int64)
        for _, ids, times in found:
            counts[ids] += times
        assert counts.tolist() == plain_loop(pieces, clean)
        assert [text for shard, _, _ in found for text in shard.texts] == texts
        assert all(len(shard.texts) <= together for shard, _, _ in found)
        ends = [shard.end.texts for shard, _, _ in found]
        assert ends == sorted(set(ends))


def test_processes_count_what_this_one_does(pieces: Any, tmp_path: Path, small_shards: None) -> None:
    path = corpus(tmp_path / "texts.txt", TEXTS * 5)
    found = count_tokens(pieces, path, CountOptions(workers=2))
    assert by_token(found.counts) == {token: 5 * count for token, count in BY_HAND.items()}


def test_texts_may_be_endless(pieces: Any) -> None:
    found = count_texts(pieces, itertools.cycle(TEXTS), replace(HERE, limit=12), source="six texts")
    assert by_token(found.counts) == {token: 2 * count for token, count in BY_HAND.items()}
    assert (found.n_texts, found.source) == (12, "six texts, the first 12 texts")


def test_byte_level_texts(words: Any) -> None:
    found = count_texts(byte_level(), ["é a"], HERE)
    assert {found.tokens[n] for n in np.flatnonzero(found.counts)} == {"Ã", "©", "Ġ", "a"}
    assert found.special.sum() == 2
    assert count_texts(words(5, kind="causal"), ["w0 w1", "w1"], HERE).special.sum() == 0


@pytest.mark.parametrize(("side", "kept"), [("right", {"the": 2, "dog": 2}), ("left", {"dog": 3, "the": 1})])
def test_max_length_cuts_where_the_tokenizer_does(side: str, kept: dict[str, int]) -> None:
    tokenizer = word_pieces()
    tokenizer.truncation_side = side
    texts = ["the dog", "the dog the", "dog a dog"] if side == "right" else ["a the dog", "a dog dog"]
    found = count_texts(tokenizer, texts, replace(HERE, max_length=4))
    cut_ids = tokenizer(texts, truncation=True, max_length=4, padding=False)["input_ids"]
    expected = np.bincount(np.concatenate(cut_ids), minlength=len(PIECES))
    assert (found.counts + found.special).tolist() == expected.tolist()
    assert found.notes == ("texts were cut at 4 tokens",)
    assert sum(by_token(found.counts).values()) == 2 * len(texts)


def test_a_length_that_the_tokenizer_file_asks_for_cuts_nothing(pieces: Any) -> None:
    pieces.backend_tokenizer.enable_truncation(3)
    pieces.backend_tokenizer.enable_padding(length=9)
    assert by_token(count_texts(pieces, ["the cat dog a"], HERE).counts) == {"the": 1, "cat": 1, "dog": 1, "a": 1}


class Slow:
    """A tokenizer in Python alone: one id a character."""

    all_special_ids = ()

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1, "[CLS]": 2}

    def __call__(self, texts: Any, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, Any]:
        one = [[2] * add_special_tokens + ["ab".index(c) for c in text] for text in texts]
        return {"input_ids": one[0] if isinstance(texts, str) else one}


def test_slow_tokenizers_count_too() -> None:
    found = count_texts(Slow(), ["aab", "b"], HERE)
    assert (found.counts.tolist(), found.special.tolist()) == ([2, 2, 0], [0, 0, 2])
    tally = Tally.of(Slow(), max_length=2)
    assert tally.portable is not None
    copy = Tally.unpacked(*tally.portable, tally.settings())
    assert [part.tolist() for part in copy(["aab", "b"])] == [[0, 1], [1, 1]]


def test_a_tokenizer_no_process_can_have_counts_here(small_shards: None) -> None:
    """Its class stands in a test, which a worker cannot import."""
    found = count_texts(Slow(), ["aab", "b", "b"], CountOptions(workers=2))
    assert found.counts.tolist() == [2, 3, 0]


def test_a_text_that_a_tokenizer_fails_on_is_told(small_shards: None) -> None:
    with pytest.raises(
        BadInput, match="the tokenizer fails on a text between 2 and 2: ValueError: substring not found"
    ):
        count_texts(Slow(), ["a", "c"], HERE)


def test_a_process_that_dies_is_told(tally: Tally) -> None:
    with Workers(tally, 1) as running:
        running._processes[0].kill()
        with pytest.raises(OutlierlensError, match=r"a counting process ended .exit code.*--workers 1 takes the least"):
            list(running.counted(cut([((0, 1, 1), "the")])))


@given(st.lists(st.text(max_size=5).filter(lambda text: text.isprintable())))
def test_texts_come_through_a_pipe_as_they_were(texts: list[str]) -> None:
    assert unpacked_texts(*packed_texts(texts)) == texts


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


def test_a_stopped_count_goes_on_and_ends_the_same(pieces: Any, tmp_path: Path, small_shards: None) -> None:
    names = [str(corpus(tmp_path / f"{n}.txt", TEXTS[n:])) for n in range(3)]
    whole = count_tokens(pieces, names, HERE, output=tmp_path / "whole.parquet")
    output = tmp_path / "counts.parquet"
    seen = []
    for n in (4, 5, 2):  # stopped in the first, second and second file
        with pytest.raises(KeyboardInterrupt):
            count_tokens(pieces, names, replace(HERE, progress=stop_after(n, KeyboardInterrupt())), output=output)
        stored = (tmp_path / "counts.parquet.parts" / "state").read_bytes().split(b"\n", 1)[0]
        seen.append(tuple(json.loads(stored)["position"]))
        assert not output.exists()
    assert seen == [(0, 4, 4), (1, 3, 9), (1, 5, 11)]
    told: list[tuple[Any, ...]] = []
    found = count_tokens(pieces, names, replace(HERE, progress=lambda *now: told.append(now)), output=output)
    assert told[0][1:4] == (2, 3, 12)
    assert (found.counts.tolist(), found.n_texts) == (whole.counts.tolist(), 15)
    assert read_counts(output, pieces).special.tolist() == whole.special.tolist()
    assert sorted(path.name for path in tmp_path.glob("counts*")) == ["counts.parquet"]


def test_an_unfinished_count_of_something_else_is_not_mixed_in(pieces: Any, tmp_path: Path, small_shards: None) -> None:
    path, output = corpus(tmp_path / "texts.txt"), tmp_path / "counts.parquet"
    stopped = replace(HERE, progress=stop_after(2, RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"):
        count_tokens(pieces, path, stopped, output=output)
    with pytest.raises(
        BadInput, match=r"unfinished count of something else \(limit was None, is 3\); give another name"
    ):
        count_tokens(pieces, path, replace(HERE, limit=3), output=output)
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadInput, match=r"data \(names, sizes and times of files\) was"):
        count_tokens(pieces, path, HERE, output=output)
    (tmp_path / "counts.parquet.parts" / "state").write_bytes(b"no\n")
    with pytest.raises(BadFile, match=r"not an unfinished count .*--overwrite to start again"):
        count_tokens(pieces, path, HERE, output=output)


def test_nothing_is_left_of_a_count_that_found_nothing(pieces: Any, tmp_path: Path) -> None:
    path = corpus(tmp_path / "texts.txt", ["", "  "])
    with pytest.raises(BadInput, match=r"texts\.txt: holds no non-empty text"):
        count_tokens(pieces, path, HERE, output=tmp_path / "counts.parquet")
    assert [found.name for found in tmp_path.iterdir()] == ["texts.txt"]
    for wrong in ({"limit": 0}, {"max_length": 0}, {"workers": -1}):
        with pytest.raises(BadInput, match=f"{next(iter(wrong))} is "):
            CountOptions(**wrong)


KILLED = """
import os, signal, sys
from outlierlens.experiments.count import measure, tally, workers
from outlierlens.experiments.count.measure import count_tokens
from outlierlens.experiments.count.options import CountOptions
from tiny_tokenizers import Bare, pieces_backend

tally.SHARD_TEXTS, measure.SAVE_SECONDS = 1, 0.0
started = workers._started

def noted():
    process = started()
    print(process.pid, flush=True)
    return process

def tell(source, done, total, n_texts, n_tokens):
    if n_texts == 4:
        os.kill(os.getpid(), signal.SIGKILL)

workers._started = noted
count_tokens(Bare(pieces_backend()), sys.argv[1], CountOptions(workers=2, progress=tell), output=sys.argv[2])
"""


def test_a_killed_count_goes_on_and_leaves_no_process(pieces: Any, tmp_path: Path) -> None:
    path, output = corpus(tmp_path / "texts.txt", TEXTS * 3), tmp_path / "counts.parquet"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(output)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    stored = (tmp_path / "counts.parquet.parts" / "state").read_bytes().split(b"\n", 1)[0]
    assert json.loads(stored)["position"] == [0, 4, 4]
    found = count_tokens(pieces, path, HERE, output=output)
    assert by_token(found.counts) == {token: 3 * count for token, count in BY_HAND.items()}
    left = [int(line) for line in done.stdout.split()]
    assert len(left) == 2
    until(lambda: not any(_alive(pid) for pid in left))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One whose parent is gone, and that nobody has waited for yet, has ended all the same.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.fixture(scope="module")
def folder(pieces: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    pieces.save_pretrained(path)
    return path


def test_the_command_counts_and_adds_up(run: Any, folder: Path, pieces: Any, tmp_path: Path) -> None:
    path = corpus(tmp_path / "texts.txt")
    first, second, both = (tmp_path / f"{name}.parquet" for name in ("first", "second", "both"))
    code, out, err = run("count", "--tokenizer", str(folder), "--data", str(path), "-o", str(first), "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["n_texts"], said["n_tokens"], said["n_special"], said["n_types"]) == (6, 18, 12, 11)
    code, out, _ = run("count", "--tokenizer", str(folder), "--data", str(path), "-o", str(second), "--limit", "2")
    assert code == 0
    assert "7 tokens in 2 texts" in out
    assert "6 of 14 ids occur; 4 special tokens around the texts are counted apart" in out
    assert out.splitlines()[4].split() == ["the", "5", "2", "28.6", "%"]
    assert run("count", "--merge", f"{first},{second}", "-o", str(both), "-q") == (0, "", "")
    added = read_counts(both, pieces)
    assert (added.n_texts, added.n_tokens, added.counts[PIECES.index("the")]) == (8, 25, 6)


def test_the_command_says_what_is_wrong(run: Any, folder: Path, tmp_path: Path) -> None:
    path, output = str(corpus(tmp_path / "texts.txt")), str(tmp_path / "counts.parquet")
    for arguments, message in (
        (("--data", path), "whose tokens are counted? name a model with --tokenizer"),
        ((), "give what is counted with --data, or counts to add up with --merge; one of the two"),
        (("--data", path, "--merge", "a,b"), "one of the two"),
        (("--tokenizer", str(tmp_path), "--data", path), "no tokenizer there, or the hub cannot be reached"),
        (("--tokenizer", str(folder), "--data", "gone.txt"), "gone.txt: no such data file"),
        (("--merge", "gone.parquet"), "gone.parquet: no such file of token counts"),
    ):
        code, out, err = run("count", *arguments, "-o", output)
        assert (code, out) == (1, "")
        assert message in err
    Path(output).write_text("there")
    code, _, err = run("count", "--tokenizer", str(folder), "--data", path, "-o", output)
    assert (code, "exists; give another name or --overwrite" in err) == (1, True)


def test_the_command_says_how_to_go_on(
    run: Any, folder: Path, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlierlens.cli.common import Progress

    path, output = str(corpus(tmp_path / "texts.txt")), str(tmp_path / "counts.parquet")
    told = ("count", "--tokenizer", str(folder), "--data", path, "-o", output, "--workers", "1")
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__call__", stop_after(3, KeyboardInterrupt()))
        code, _, err = run(*told)
    assert code == 130
    assert f"{output}.parts/state keeps what was measured; go on with: outlierlens" in err
    code, out, err = run(*told)
    assert code == 0
    assert "18 tokens in 6 texts" in out
    # the first line that is told is of the fourth text: three were not counted again
    assert "4 texts, 12 tokens so far (0/1)" in err.splitlines()[0]
    assert "1 texts" not in err
