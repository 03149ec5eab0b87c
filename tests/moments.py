"""The moments of other processes: wait until one has come, or have a process end itself at one. Never a fixed time.

    until(path.is_file)                             # its first true value; a failure where nothing comes for ten minutes
    finish(process)                                 # its exit status
    changed(before, contents(folder))               # names of files that are other than before
    end_at(lambda path, row: "key" in row)          # in a child: after such a row is written, this process is no more

A moment that lasts a millisecond is not met from outside where a machine is busy; a process that ends itself meets it always.
"""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

HANGS = 600.0  # seconds: no machine is as busy; what is waited for has failed


def until(happened: Callable[[], Any]) -> Any:
    """The first true value of `happened()`."""
    last = time.monotonic() + HANGS
    while not (found := happened()):
        assert time.monotonic() < last, f"waited {HANGS:.0f} seconds for nothing"
        time.sleep(0.002)
    return found


def finish(process: BaseProcess) -> int:
    """Wait for a process to end; its exit status, negative for a signal."""
    process.join(HANGS)
    assert process.exitcode is not None, "still running"
    return process.exitcode


def contents(folder: Path) -> dict[Path, bytes]:
    """The bytes of every file in a folder, however deep."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(before: dict[Path, bytes], after: dict[Path, bytes]) -> set[str]:
    """Names of files whose bytes are others; the files must be the same."""
    assert before.keys() == after.keys()
    return {path.name for path in before if before[path] != after[path]}


def die(*_: Any, **__: Any) -> Any:
    """End this process as power does."""
    os.kill(os.getpid(), signal.SIGKILL)


def end_at(moment: Callable[[Path, dict[str, Any]], bool], end: Callable[[Path], None] = die) -> None:
    """Have this process call `end(path)` as soon as it has written a row to a file for which `moment(path, row)` holds."""
    from outlierlens.results.row_store import RowStore

    rows: Any = RowStore
    write = rows._write

    def written(store: Any, row: dict[str, Any]) -> None:
        write(store, row)
        if moment(store.path, row):
            rows._write = write
            end(store.path)

    rows._write = written


def die_in_checkpoint(step: int) -> None:
    """Have this process killed while a Trainer writes this checkpoint: with the model, without the state, which comes last."""
    import transformers

    trainer: Any = transformers.Trainer
    save = trainer._save_optimizer_and_scheduler
    trainer._save_optimizer_and_scheduler = lambda self, place: (
        die() if place.endswith(f"checkpoint-{step}") else save(self, place)
    )
