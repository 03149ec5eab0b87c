"""What is written: whole or not at all, under names that nobody foresees, and never through a link."""

import errno
import io
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlierlens.analyses.frequency_counts import count_tokens
from outlierlens.errors import BadFile, BadInput, told
from outlierlens.report import files, write
from outlierlens.report.job import Job, refuse_finished
from outlierlens.report.options import ReportOptions
from outlierlens.results import safe_files as writing
from outlierlens.results.row_store import RowStore, alone_in, read_rows, remove_rows, row_line
from outlierlens.results.safe_files import new_folder, refuse_links, replacing, write_bytes, write_text
from outlierlens.training.pretrain.loop import pretrain
from outlierlens.training.pretrain.recipe import read_recipe
from synthetic_report import damage, report_data
from tiny_tokenizers import word_pieces


def tree(folder: Path) -> dict[str, bytes | str]:
    """Every file below `folder` with its content, every link with where it leads."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


# --- single files ------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_its_name_is_forced_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").resolve())), real(fd))[1]
    )
    path = write_text(tmp_path / "new" / "a.json", "one \udce9")
    assert path.read_bytes() == rb"one \udce9"  # what a file name that is no UTF-8 becomes is JSON's own escape
    if Path("/proc/self/fd").is_dir():
        assert synced[-1] == str(tmp_path / "new")
        assert synced[0].endswith(".part")

    def stopped() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        stopped()
    assert tree(tmp_path) == {"new/a.json": rb"one \udce9"}


def test_nothing_is_written_past_the_writer_that_writes_all() -> None:
    package = Path(writing.__file__).parents[1]
    raw = re.compile(
        r"buffering=0|\bos\.(p?writev?|sendfile)\(|\bFileIO\("
    )  # these take a part, and nobody asks how much
    assert not [path.name for path in package.rglob("*.py") if raw.search(path.read_text("utf-8"))]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "a.json").symlink_to("theirs")
    write_bytes(tmp_path / "a.json", b"ours")
    assert tree(tmp_path) == {"a.json": b"ours", "theirs": b"theirs"}


def test_a_temporary_name_that_somebody_foresaw_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").write_text("theirs")
    monkeypatch.setattr(secrets, "token_hex", lambda n: "0" * 2 * n)
    (tmp_path / ".a.json.0000000000000000.part").symlink_to("theirs")
    before = tree(tmp_path)
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "a.json", b"ours")
    assert tree(tmp_path) == before


def test_a_folder_that_is_not_finished_leaves_the_earlier_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with new_folder(target) as making:
        (making / "a").write_text("1")

    def stopped() -> None:
        with new_folder(target) as making:
            (making / "a").write_text("2")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        stopped()
    assert tree(tmp_path) == {"model/a": b"1"}
    with new_folder(target) as making:
        (making / "b").write_text("2")
    assert tree(tmp_path) == {"model/b": b"2"}
    (tmp_path / "link").symlink_to("model")
    with new_folder(tmp_path / "link") as making:
        (making / "c").write_text("3")
    assert tree(tmp_path) == {"link/c": b"3", "model/b": b"2"}


def test_links_are_found_where_they_would_be_followed(tmp_path: Path) -> None:
    (tmp_path / "run" / "charts" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "other").symlink_to("charts")
    refuse_links(tmp_path / "run", "charts", "rows*.jsonl")
    refuse_links(tmp_path / "nothing")
    (tmp_path / "named").symlink_to("run")
    refuse_links(tmp_path / "named", "charts")  # the folder itself is what was named
    with pytest.raises(BadInput, match="run/other is a link, and nothing is written through one; remove it or name"):
        refuse_links(tmp_path / "run")
    (tmp_path / "run" / "charts" / "deep" / "x.svg").symlink_to("/nowhere")
    with pytest.raises(BadInput, match=r"x\.svg is a link"):
        refuse_links(tmp_path / "run", "charts")
    (tmp_path / "run" / "rows[1].jsonl").symlink_to("/nowhere")
    with pytest.raises(BadInput, match=r"rows\[1\]\.jsonl is a link"):
        refuse_links(tmp_path / "run", "rows[1].jsonl")


# --- folders that commands write ---------------------------------------------------------------------------------


def _report(folder: Path) -> None:
    write(report_data(observed=False, damages=()), folder, overwrite=True)


def _count(folder: Path) -> None:
    (folder / "text.txt").write_text("a b")
    count_tokens(word_pieces(), folder / "text.txt", rows=folder / "charts")


WRITERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "report": (_report, "charts"),
    "report, before anything is measured": (
        lambda folder: refuse_finished(Job(ReportOptions(model="mini-bert"), folder)),
        "charts",
    ),
    "a report's rows": (
        lambda folder: refuse_finished(Job(ReportOptions(model="mini-bert"), folder)),
        "rows-text.jsonl",
    ),
    "a run that owns its folder": (lambda folder: alone_in(folder).__enter__(), "seed-42"),
    "a run's lock": (lambda folder: alone_in(folder, "run", "rows.jsonl").__enter__(), ".lock"),
    "pretrain": (lambda folder: pretrain(read_recipe("mini-bert"), folder), "checkpoint-500"),
    "rows": (lambda folder: RowStore.open(folder / "rows.jsonl", {}), "rows.jsonl"),
    "rows that are removed": (lambda folder: remove_rows(folder / "rows.jsonl"), "rows.jsonl"),
    "an unfinished count": (_count, "charts"),
}


@pytest.mark.parametrize("case", WRITERS)
@pytest.mark.parametrize("dangling", [False, True])
def test_nothing_is_written_or_removed_through_a_link(
    case: str, dangling: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "can_export", lambda: False)
    call, name = WRITERS[case]
    outside, folder = tmp_path / "outside", tmp_path / "run"
    folder.mkdir()
    if not dangling:
        outside.mkdir()
        (outside / "loss-1.svg").write_text("precious")
    (folder / name).symlink_to(outside)
    with pytest.raises(BadInput, match=r"is a link, and nothing is written through one"):
        call(folder)
    assert (folder / name).readlink() == outside
    assert tree(outside) == ({} if dangling else {"loss-1.svg": b"precious"})


def test_a_manifest_is_believed_only_about_pictures_that_are_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "can_export", lambda: False)
    one, two = damage(fills=False), damage(chosen=1.0, fills=False)
    folder = tmp_path / "run"
    write(report_data(observed=False, damages=(one, two)), folder)
    charts = folder / "charts"
    mine = {"mine.svg": b"kept", "notes.txt": b"kept", "loss-1.vl.json": b"drawn by hand"}
    for name, content in mine.items():
        (charts / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["files"] |= {f"charts/{name}": {"bytes": 4, "sha256": "0" * 64} for name in mine}
    manifest["files"]["charts/notes.txt"] = files._entry(b"kept")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write(report_data(observed=False, damages=(one,)), folder, overwrite=True)
    assert {name: (charts / name).read_bytes() for name in mine} == mine


# --- rows --------------------------------------------------------------------------------------------------------


def made_rows(path: Path) -> bytes:
    with RowStore.open(path, {"seed": 1}) as rows:
        rows.append("a", {"x": 1.5})
        rows.append("\udce9", 12345)
    return path.read_bytes()


def test_a_changed_digit_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whole = made_rows(path)
    assert read_rows(path) == ({"seed": 1}, {"a": {"x": 1.5}, "\udce9": 12345})
    places = [i for i, byte in enumerate(whole) if chr(byte).isalnum()]
    for place in places:
        path.write_bytes(whole[:place] + (b"7" if whole[place : place + 1] != b"7" else b"8") + whole[place + 1 :])
        with pytest.raises(BadFile, match=r"not a row as outlierlens wrote it|not rows of outlierlens"):
            read_rows(path)
    path.write_bytes(b"\n".join(line[: line.index(b',"crc32"')] + b"}" for line in whole.splitlines()) + b"\n")
    with pytest.raises(BadFile, match="line 1: not a row as outlierlens wrote it"):
        read_rows(path)


ELSEWHERE = """
import sys, pathlib
from outlierlens.errors import BadInput
from outlierlens.results.row_store import RowStore
try:
    RowStore.open(pathlib.Path(sys.argv[1]), {"seed": 1})
    print("opened")
except BadInput as error:
    print(error)
"""


def test_two_processes_do_not_share_a_file_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def opened_elsewhere() -> str:
        done = subprocess.run([sys.executable, "-c", ELSEWHERE, path], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    with RowStore.open(path, {"seed": 1}):
        assert opened_elsewhere() == f"{path}: another run is writing to it; wait for it or name another file"
        with pytest.raises(BadInput, match="another run is writing to it"):
            remove_rows(path)
    assert opened_elsewhere() == "opened"


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


@pytest.mark.parametrize("change", ["restart", "rewind"])
def test_an_interrupt_between_two_files_of_rows_is_what_ends_the_block(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "rows.jsonl", Path.open

    def interrupted(self: Path, mode: str = "r", *given: Any, **named: Any) -> Any:
        if self == path and mode == "ab":
            raise KeyboardInterrupt
        return real(self, mode, *given, **named)

    def work() -> None:
        with RowStore.open(path, {"of": 1}) as rows:
            rows.append("a", 1)
            with monkeypatch.context() as patch:
                patch.setattr(Path, "open", interrupted)
                rows.restart() if change == "restart" else rows.rewind(lambda key: False)

    with pytest.raises(KeyboardInterrupt):
        work()
    with RowStore.open(path, {"of": 1}) as rows:
        assert not rows.done
        rows.append("b", 2)
    assert read_rows(path)[1] == {"b": 2}


def test_rows_of_other_work_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowStore.open(path, {"seed": 1, "model": "a"}).file.close()
    with pytest.raises(BadInput, match="holds rows of other work \\(seed was 1, is 2\\); use another directory"):
        RowStore.open(path, {"seed": 2, "model": "a"})
    grouped = tmp_path / "grouped.jsonl"
    RowStore.open(grouped, {"task": {"limit": None, "measure": "loss"}, "seed": 1}).file.close()
    RowStore.open(grouped, {"task": {"limit": None, "measure": "loss"}, "seed": 1}).file.close()
    with pytest.raises(
        BadInput, match=r"other work \(task measure was 'loss', is 'metric'\); use another"
    ):  # that alone
        RowStore.open(grouped, {"task": {"limit": None, "measure": "metric"}, "seed": 1})
    for other in ({"task": None, "seed": 1}, {"seed": 1}, {"task": {}, "seed": 1}):
        with pytest.raises(BadInput, match="holds rows of other work"):
            RowStore.open(grouped, other)
    path.write_bytes(path.read_bytes() + b"nonsense\n" + row_line({"key": "a", "value": 1}))
    with pytest.raises(BadFile, match="line 2: not a row as outlierlens wrote it"):
        RowStore.open(path, {"seed": 1, "model": "a"})


STRANGE = ("years of work\n", '{"results": 1}\n', "\n", "one line without an end", "\0\1", '{"identity":{},"mine":2}')


@pytest.mark.parametrize("content", [*STRANGE, f"{STRANGE[-1]}\n", '{"identity":{"seed', '{"id'])
def test_a_file_that_is_no_row_store_is_neither_continued_nor_removed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    if content in ('{"id', '{"identity":{"seed'):  # the beginning of a first line, which a killed run left
        remove_rows(path)
        assert not path.exists()
        return
    with pytest.raises(
        BadInput, match=r"notes\.txt: not rows of outlierlens, so it is not replaced; name another file"
    ):
        remove_rows(path)
    with pytest.raises(BadFile, match=r"not (rows of outlierlens|a row as outlierlens wrote it); name another file"):
        RowStore.open(path, {"seed": 1})
    assert path.read_text() == content
    remove_rows(tmp_path / "nothing.jsonl")
    with pytest.raises(BadInput, match="not rows of outlierlens"):
        remove_rows(tmp_path)


class _Full(io.RawIOBase):
    """A file on a disk that has room for some bytes."""

    def __init__(self, file: Any, room: int):
        self.file, self.room = file, room

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self.file.fileno())

    def write(self, content: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(bytes(content)[: self.room])
        self.file.flush()
        self.room -= written
        return int(written)

    def close(self) -> None:
        self.file.close()
        super().close()


@pytest.mark.parametrize("room", [0, 5, 40])
def test_a_full_disk_costs_no_row_that_was_finished(tmp_path: Path, room: int) -> None:
    path = tmp_path / "rows.jsonl"
    rows = RowStore.open(path, {"seed": 1})
    rows.append("a", 1)
    rows.file = io.BufferedWriter(_Full(rows.file, room))
    for work in (lambda: rows.append("b", "x" * 100), lambda: rows.__exit__(None, None, None)):
        with pytest.raises(OSError, match="No space left") as full:
            work()
        said = rf"{path}: No space left on device \([\d,.]+ MB are free\); make room and run it again: finished rows are kept"
        assert re.fullmatch(said, told(full.value))
    with RowStore.open(path, {"seed": 1}) as again:  # the lock went too
        assert again.done == {"a": 1}
        again.append("b", 2)
    assert read_rows(path)[1] == {"a": 1, "b": 2}


def test_a_rename_that_cannot_be_forced_to_the_disk_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(code: int) -> Callable[..., int]:
        def opened(*_: Any) -> int:
            raise OSError(code, os.strerror(code))

        return opened

    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(writing.os, "open", failing(errno.EACCES))
    writing.rename(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(writing.os, "open", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output") as failed:
        writing.rename(tmp_path / "b", tmp_path / "c")
    assert failed.value.filename == str(tmp_path)
