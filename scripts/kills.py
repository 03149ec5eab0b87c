"""Kill every command that writes, at its writes and at random moments, look at what it left, and run it again.

    python scripts/kills.py                                     # 300 kills, an hour
    python scripts/kills.py --command report --kills 40 --seed 1

Commands run as the tests' table has them (`tests/every_command.py`), each in a copy of the folder as the commands before it
left it, in copies of a process that has imported all. Two of three kills come just before a write, or in the middle of one;
the third comes after a random share of the time that the command takes. Then no file may be half: each is as it was before,
or can be read to its end. The same command must then end as it does undisturbed, with the same results and the same files,
or say that the whole result is there, or that a file of it is and --overwrite goes on. Exit code 1: something did not hold.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pyarrow.parquet
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import every_command
from outlierlens.experiments import BY_NAME

STARTED = ("fetch", "doctor", "explore")  # what these write is looked at elsewhere, or a page that waits
SECONDS = 600  # after which a command hangs
TEXT = (".html", ".md", ".txt", ".py", ".csv", ".svg")
# What is no result until it is whole: what a command writes beside, and a Trainer's checkpoint, of which one file comes last.
LEFT = (".part", ".tmp", "checkpoint-")


class Kills(faults.Writes):
    """Counts the writes below a folder; the one numbered `at` ends the process, `torn` in its middle, or `after` seconds do."""

    def __init__(self, folder: Path, at: int = 0, *, torn: bool = False, after: float = 0.0):
        super().__init__(folder, -1 if after else at)
        self.torn, self.after = torn, after

    def start(self) -> None:
        """Watch this process until its end, which comes with a traceback where it hangs."""
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        signal.setitimer(signal.ITIMER_REAL, self.after)  # no handler of Python's: the system ends the process
        super().start()

    def _step(self, what: str, name: Any) -> None:
        if not (place := self.place(name)):
            return
        self.count += 1
        self.seen.append(f"{what} {place}")
        if self.count == self.at and not (self.torn and what == "write"):
            os.kill(os.getpid(), signal.SIGKILL)

    def torn_write(self, file: io.FileIO, content: Any) -> None:
        """Write the first half and end, where this is the write."""
        if self.count == self.at and self.torn:
            io.FileIO.write(file, memoryview(content)[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)


# --- what is left ------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, Path]:
    """The files below a folder by their place in it, but for what libraries keep in a cache."""
    return {name: path for name, path in faults.files_of(folder).items() if Path(name).parts[0] != "cache"}


def beside(name: str) -> bool:
    """Whether a file is one that its writer has not finished, by its name."""
    return any(part.startswith(".") or any(mark in part for mark in LEFT) for part in Path(name).parts)


def unreadable(path: Path) -> str:
    """Why a file cannot be read to its end; "" where it can."""

    def lines() -> None:
        rows = path.read_bytes().split(b"\n")
        for row in rows[:-1]:  # the last one is torn where a process ends in it, and is not read
            json.loads(row)

    def html() -> None:
        if not path.read_text("utf-8").rstrip().endswith("</html>"):
            raise ValueError("no end")

    def tensors() -> None:
        with safe_open(path, "np") as file:
            list(file.keys())

    readers: dict[str, Callable[[], Any]] = {
        ".json": lambda: json.loads(path.read_bytes()), ".jsonl": lines, ".html": html, ".safetensors": tensors,
        ".parquet": lambda: pyarrow.parquet.read_table(path), ".npz": lambda: [*np.load(path).values()],
        ".npy": lambda: np.load(path), ".py": lambda: compile(path.read_text("utf-8"), path.name, "exec"),
        ".pt": lambda: torch.load(path, weights_only=False), ".bin": lambda: torch.load(path, weights_only=False),
    }  # fmt: skip
    try:
        readers.get(path.suffix, lambda: None)()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:120]
    return ""


def half(before: Path, now: Path) -> list[str]:
    """Files that are new or other than before, under their own name, and cannot be read to their end."""
    old, wrong = files_of(before), []
    for name, path in files_of(now).items():
        if beside(name) or (name in old and old[name].read_bytes() == path.read_bytes()):
            continue
        if said := unreadable(path):
            wrong.append(f"{name} is half ({said})")
    return wrong


def other(whole: Path, now: Path) -> list[str]:
    """What differs from the folder of an undisturbed run: names, and contents but for times and costs."""
    wanted, found = files_of(whole), files_of(now)
    wrong = [
        f"{name} is left" for name in sorted(found.keys() - wanted.keys()) if ".replayed-" not in name
    ]  # steps done twice
    wrong += [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    return wrong + [
        f"{name} differs"
        for name in sorted(wanted.keys() & found.keys())
        if not faults.same(content(found[name]), content(wanted[name]))
    ]


def content(path: Path) -> Any:
    """What a file says but for times; of a kind of which that cannot be told, whether it says anything."""
    raw = path.read_bytes()
    if path.suffix == ".json":
        return faults.plain(json.loads(raw))
    if path.suffix == ".jsonl":
        rows = [json.loads(row) for row in raw.splitlines()]
        return [faults.plain(row) for row in rows if "second" not in str(row.get("key"))]
    if path.suffix in TEXT:
        return faults.plain(raw.decode("utf-8"))
    return load_file(path) if path.suffix == ".safetensors" else bool(raw)


# --- all ---------------------------------------------------------------------------------------------------------


def written(name: str, words: Sequence[str]) -> list[str]:
    """More words for a command of the table that keeps neither its result nor its rows, though it can."""
    if name in STARTED:
        return []
    file = name.replace(" ", "-")
    more = (
        ["-o", f"{file}.txt" if name == "prune protect" else f"{file}.json"]
        if BY_NAME[name].writes == "file" and "-o" not in words
        else []
    )
    return [*more, "--rows", f"{file}.jsonl"] if "rows" in BY_NAME[name].takes else more


def restored(before: Path, work: Path) -> Path:
    """A copy of the folder as it was before the command."""
    shutil.rmtree(work, ignore_errors=True)
    return Path(shutil.copytree(before, work, symlinks=True))


def goes_on(words: list[str], place: Path, code: int) -> list[str]:
    """What does not hold of the command run again in `work`, which an undisturbed run ends with `code` and as `whole`."""
    again = faults.run(words, place / "work", Kills(place / "work"))
    if again.status != code and "--overwrite" in again.said:  # killed behind the name of a whole file
        again = faults.run([*words, "--overwrite"], place / "work", Kills(place / "work"))
    wrong = other(place / "whole", place / "work")
    if again.status != code and (
        wrong or "is not empty; name a new folder" not in again.said
    ):  # a saved model is whole
        wrong = [f"it ended with {again.status}: {(again.said.splitlines() or [''])[-1][:200]}", *wrong]
    return [f"run again, {one}" for one in wrong]


def trial(words: list[str], place: Path, kill: Kills, code: int) -> str:
    """ "" where all held, else what did not."""
    work = restored(place / "before", place / "work")
    ended = faults.run(words, work, kill)
    if ended.status not in (code, -signal.SIGKILL, -signal.SIGALRM):
        return f"it ended with {ended.status}: {ended.said[-200:]}"
    return "; ".join(half(place / "before", work) + ([] if ended.status == code else goes_on(words, place, code)))


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", action="append", choices=every_command.RUNS, help="only this one")
    parser.add_argument("--kills", type=int, default=300, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a copy
    draw, wrong, n = random.Random(asked.seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        place = Path(folder).resolve()
        base = place / "base"
        base.mkdir()
        every_command.fill(base)
        writers = []
        for name, more in every_command.RUNS.items():
            words = [*name.split(), *more, *written(name, more)]
            looked_at = name not in STARTED and name in (asked.command or [name])
            if looked_at:
                shutil.copytree(base, place / name / "before", symlinks=True)
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                os.chdir(base)
                faults.called(words, base)  # here: what it imports, no copy imports again
            if not looked_at:
                continue
            work, begun = restored(place / name / "before", place / name / "work"), time.monotonic()
            ended = faults.run(words, work, Kills(work))
            if ended.status != every_command.FOUND.get(name, 0):
                print(f"{name} ended with {ended.status} undisturbed: {ended.said}", flush=True)
                wrong += 1
                continue
            shutil.copytree(work, place / name / "whole", symlinks=True)
            if ended.seen:
                writers.append((name, words, ended, time.monotonic() - begun))
            else:
                shutil.rmtree(place / name)
        print(f"{'command':<24}{'writes':>8}{'kills':>8}{'not held':>10}", flush=True)
        for number, (name, words, ended, seconds) in enumerate(writers):
            seen, code = ended.seen, ended.status
            kills, bad = asked.kills // len(writers) + (number < asked.kills % len(writers)), 0
            for turn in range(kills):
                at, share = draw.randint(1, len(seen)), draw.random()
                timed = turn % 3 == 2
                kill = Kills(place / name / "work", at, torn=turn % 3 == 1, after=share * seconds if timed else 0.0)
                if said := trial(words, place / name, kill, code):
                    where = f"after {share:.0%} of its time" if timed else f"at write {at}, {seen[at - 1]}"
                    print(f"    {where}: {said}", flush=True)
                    bad += 1
            print(f"{name:<24}{len(seen):>8,}{kills:>8,}{bad:>10,}", flush=True)
            wrong, n = wrong + bad, n + kills
            shutil.rmtree(place / name)
        print(f"{len(writers)} commands, {n:,} kills, {wrong} not held")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
