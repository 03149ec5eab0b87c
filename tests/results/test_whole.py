"""Outputs of several files, folders that replace folders, and what killed processes leave: whole or not at all."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moments import die
from outlierlens.errors import BadInput, of_the_disk, takes_a_line, told
from outlierlens.results import safe_files
from outlierlens.results.row_store import LOCK, alone_in
from outlierlens.results.safe_files import alone, check_file, naming, new_folder, replacing, write_text, write_together

TOKEN = "0123456789abcdef"


def tree(folder: Path) -> dict[str, str]:
    """Every file below `folder` with its text, and every folder that is empty."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
        elif not any(path.iterdir()):
            found[f"{path.relative_to(folder)}/"] = ""
    return found


def killed(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> int:
    """The exit status of `work` in a child of this process, behind `prepare` there."""
    pid = os.fork()
    if not pid:
        try:
            prepare()
            work()
        finally:
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- several files -----------------------------------------------------------------------------------------------


def test_files_take_their_names_in_order_once_all_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.svg", "b.json"):
        (tmp_path / name).write_text("old")
    seen: list[tuple[str, dict[str, str]]] = []
    real = safe_files.rename

    def renamed(made: Path, target: Path) -> None:
        seen.append((target.name, tree(tmp_path)))
        real(made, target)

    monkeypatch.setattr(safe_files, "rename", renamed)
    write_together({tmp_path / "a.svg": b"A", tmp_path / "new" / "c.svg": b"C", tmp_path / "b.json": "B"})
    assert [name for name, _ in seen] == ["a.svg", "c.svg", "b.json"]
    first = seen[0][1]
    assert sorted(first.values()) == ["A", "B", "C", "old"]  # all is written, and of the old ones the last has gone
    assert "b.json" not in first
    assert tree(tmp_path) == {"a.svg": "A", "b.json": "B", "new/c.svg": "C"}


def test_a_disk_that_fills_up_in_the_middle_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.svg", "b.json"):
        (tmp_path / name).write_text("old")
    before, real = tree(tmp_path), safe_files._settled

    def settled(file: Any) -> Path:
        if "b.json" in file.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file)

    monkeypatch.setattr(safe_files, "_settled", settled)
    with pytest.raises(OSError, match="No space left") as full:
        write_together({tmp_path / "a.svg": b"A", tmp_path / "b.json": b"B"})
    assert full.value.filename == str(tmp_path / "b.json")
    assert tree(tmp_path) == before


# --- folders -----------------------------------------------------------------------------------------------------


def made(target: Path, text: str) -> None:
    with new_folder(target) as making:
        (making / "model").write_text(text)


@pytest.mark.parametrize("moment", ["filling", "between", "named"])
def test_a_kill_while_a_folder_is_replaced_costs_neither(moment: str, tmp_path: Path) -> None:
    target = tmp_path / "better"
    made(target, "old")

    def at(when: str) -> None:
        real = safe_files.rename
        if when == "between":
            safe_files.rename = die
        elif when == "named":
            safe_files.rename = lambda *given: (real(*given), die())  # type: ignore[assignment]

    def work() -> None:
        with new_folder(target) as making:
            (making / "model").write_text("new")
            if moment == "filling":
                die()

    assert killed(work, lambda: at(moment)) == -signal.SIGKILL
    if moment == "between":
        (old,) = tmp_path.glob("better.before-*")  # where somebody looks for it
        assert (old / "model").read_text() == "old"
        assert not target.exists()
    with alone(target):
        pass
    assert tree(tmp_path) == {"better/model": "new" if moment == "named" else "old"}


def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path) -> None:
    left = [
        f".a.json.{TOKEN}.part",
        f"a.json.before-{TOKEN}",
        f".a.json.{TOKEN}.part.x",
        "a.json.before-2025",
        "a.json",
    ]
    left += [f".a.json-b.{TOKEN}.part", f".b.{TOKEN}.part", ".a.json.part", f"xa.json.before-{TOKEN}"]
    for name in left:
        (tmp_path / name).write_text(name)
    with alone(tmp_path / "a.json"):
        assert (tmp_path / ".a.json.lock").exists()
        assert sorted(tree(tmp_path)) == sorted({*left[2:], ".a.json.lock"})
    assert sorted(tree(tmp_path)) == sorted(left[2:])


def test_a_run_directory_is_swept_but_for_what_others_write(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for place in (run, run / "seed-1", run / "theirs"):
        place.mkdir(parents=True)
        (place / f".a.json.{TOKEN}.part").write_text("half")
    (run / "theirs" / LOCK).touch()  # another run's
    (run / f"model.before-{TOKEN}").mkdir()
    (run / f"model.before-{TOKEN}" / "weights").write_text("old")
    with alone(run / "held"):
        (run / f".held.{TOKEN}.part").write_text("half")
        with alone_in(run):
            found = tree(run)
        assert found == {
            LOCK: "", ".held.lock": "", f".held.{TOKEN}.part": "half", "model/weights": "old", "seed-1/": "",
            "theirs/.lock": "", f"theirs/.a.json.{TOKEN}.part": "half",
        }  # fmt: skip


# --- who may write -----------------------------------------------------------------------------------------------


def test_two_do_not_write_one_place_and_no_lock_is_left(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "a.json"
    with alone(target):
        with pytest.raises(BadInput, match=r"runs/a\.json: another run is writing to it; wait for it or name another"):
            alone(target).__enter__()
        write_text(target, "{}")
    with alone(target):
        pass
    assert tree(tmp_path) == {"runs/a.json": "{}"}
    target.unlink()
    (tmp_path / "runs").rmdir()
    for holding in (lambda: alone(target), lambda: alone_in(target.parent)):
        with holding():  # type: ignore[no-untyped-call]
            pass
        assert not list(tmp_path.iterdir())  # nothing was written, so nothing was made
    (tmp_path / "runs").mkdir()
    with alone_in(tmp_path / "runs"):
        pass
    assert tree(tmp_path) == {"runs/": ""}  # what was there stays


def test_a_folder_that_is_made_is_its_makers_alone(tmp_path: Path) -> None:
    target = tmp_path / "better"
    with new_folder(target) as making:
        (making / "model").write_text("new")
        with pytest.raises(BadInput, match="better: another run is writing to it; wait for it or name another"):
            alone(target).__enter__()
        with alone_in(tmp_path):  # what nobody holds goes
            pass
    assert tree(tmp_path) == {"better/model": "new"}
    with alone(target), new_folder(target) as making:  # who holds it already
        (making / "model").write_text("newer")
    assert tree(tmp_path) == {"better/model": "newer"}


def test_a_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    def work() -> None:
        with alone(tmp_path / "a"):
            die()

    assert killed(work) == -signal.SIGKILL
    assert (tmp_path / ".a.lock").exists()
    with alone(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "pipe or device"])
def test_what_no_file_replaces_is_refused_before_the_work(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    for write in (lambda: check_file(path, replace=True), lambda: replacing(path).__enter__()):
        with pytest.raises(BadInput, match=f"a {kind}, which no file replaces; name a file"):
            write()  # type: ignore[no-untyped-call]


# --- what the system refuses -------------------------------------------------------------------------------------

SafetensorError = type("SafetensorError", (Exception,), {})


@pytest.mark.parametrize(
    ("error", "number", "remedy"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), errno.ENOSPC, "; make room and run it again"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), errno.EFBIG, "(ulimit -f) and run it again"),
        (Exception(f"{os.strerror(errno.ENOSPC)} (os error {errno.ENOSPC})"), errno.ENOSPC, "; make room and run it again"),
        (SafetensorError(f"I/O error: x (os error {errno.EDQUOT})"), errno.EDQUOT, "; make room and run it again"),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device")]), errno.ENOSPC, "; make room and run it again"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), errno.EIO, "and run it again"),
        (OSError("40000 requested and 4968 written"), errno.EIO, "and run it again"),
    ],
)  # fmt: skip
def test_a_refused_write_is_one_line_whoever_says_it(
    error: Exception, number: int, remedy: str, tmp_path: Path
) -> None:
    assert takes_a_line(error)
    refused = of_the_disk(error)
    assert refused is not None
    assert refused.errno == number

    def work() -> None:
        with naming(tmp_path / "runs" / "a", tmp_path):
            raise error

    with pytest.raises(OSError, match=r"\w") as caught:
        work()
    line = told(caught.value, "outlierlens lab finetune x")
    assert line.startswith(f"{tmp_path / 'runs' / 'a'}: ")
    assert line.endswith(f"{remedy}: outlierlens lab finetune x")
    assert (" MB are free)" in line) == (number in (errno.ENOSPC, errno.EIO))


def test_other_errors_are_not_taken_for_the_disk_s(tmp_path: Path) -> None:
    for error in (RuntimeError("of our own"), ValueError("2 (os error 28)"), OSError("of a library")):
        assert of_the_disk(error) is None
    elsewhere = FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere")

    def read() -> None:
        with naming(tmp_path / "a", tmp_path / "a"):
            raise elsewhere

    with pytest.raises(FileNotFoundError) as caught:
        read()
    assert caught.value.filename == "/elsewhere"
