"""Give every reader changed files, thousands of each, and keep those that it does not read or refuse in one line.

    python scripts/fuzz.py                                      # 20,000 mutants a reader, hours
    python scripts/fuzz.py --reader gguf --mutants 500 --seed 1

Every reader of `fuzz_readers.py` runs in a process of its own. A mutant passes when the reader returns, or raises an error of
ours in one line, within 10 s of processor time and 200 MB of memory beyond what the process had. All else is a finding: its
file is kept below --keep, one for each place in the code, and the exit code is 1.
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where it is not run as a script
import fuzz_mutants
from fuzz_readers import READERS, Reader

SECONDS, MEGABYTES = 10, 200  # of processor time, and of memory beyond what the process had
ADDRESSES = 4 << 30  # bytes of address space beyond it: allocators reserve more than they use
MOST_FINDINGS = 25  # a reader is left alone after so many
LOG, MUTANT, FOUND = "log.txt", "mutant", "findings.json"  # below the folder of a reader


class Tally(ctypes.Structure):
    """Of one reader: mutants so far, those read, those refused; most processor seconds and megabytes of one."""

    _fields_ = (
        ("n", ctypes.c_uint64), ("read", ctypes.c_uint64), ("refused", ctypes.c_uint64), ("seconds", ctypes.c_double),
        ("megabytes", ctypes.c_double),
    )  # fmt: skip

    def row(self, name: str, n_findings: int) -> str:
        """A row of the table."""
        numbers = f"{self.n:>11,}{self.read:>11,}{self.refused:>11,}{n_findings:>9,}"
        return f"{name:<22}{numbers}{self.seconds:>8.2f}{self.megabytes:>9,.0f}"


# --- one mutant --------------------------------------------------------------------------------------------------


def _memory(name: str) -> float:
    """Megabytes of this process: "VmRSS" now, "VmHWM" the most since it was last looked at."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def _forget_the_most() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def tried(reader: Reader, path: Path) -> tuple[str, str]:
    """("read" or "refused" or what went wrong, where)."""
    from outlierlens.errors import OutlierlensError, of_a_library, told

    try:
        reader.read(path)
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if isinstance(error, OutlierlensError) or of_a_library(error):
            return ("refused", "") if told(error) else ("says nothing", _place(error))
        return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}", _place(error)
    return "read", ""


def _place(error: BaseException) -> str:
    """The last line of ours that an error went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}outlierlens{os.sep}" in f.filename]
    return f"{frames[-1].filename.rpartition('outlierlens' + os.sep)[2]}:{frames[-1].lineno}" if frames else "?"


class Trial:
    """Runs a reader on one content after another, counts, and keeps what is found."""

    def __init__(self, name: str, folder: Path, keep: Path, tally: Tally):
        self.reader, self.folder, self.keep, self.tally = READERS[name](), folder, keep, tally
        self.path = folder / self.reader.file
        for file, content in self.reader.beside.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        (keep / MUTANT).unlink(missing_ok=True)
        (keep / MUTANT).symlink_to(self.path)
        for seed in self.reader.seeds:
            self.path.write_bytes(seed.wrap(seed.content))
            self.reader.read(self.path)  # a reader that refuses good files would pass with any
        addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESSES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def __call__(self, content: bytes) -> None:
        """Give it a file of this content."""
        self.path.write_bytes(content)
        self.tally.n += 1
        before = _memory("VmRSS")
        _forget_the_most()
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # then it ends this process
        said, where = tried(self.reader, self.path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds, megabytes = time.process_time() - start, _memory("VmHWM") - before
        if megabytes > MEGABYTES and said in ("read", "refused"):
            said, where = f"{said} with {megabytes:,.0f} MB", "memory"
        self.tally.read += said == "read"
        self.tally.refused += said == "refused"
        self.tally.seconds = max(self.tally.seconds, seconds)
        self.tally.megabytes = max(self.tally.megabytes, megabytes)
        if said not in ("read", "refused"):
            note(self.keep, said, where, content, self.path.name)


def note(keep: Path, said: str, where: str, content: bytes, file: str) -> None:
    """Keep the first file of a finding, and count the others."""
    listed = keep / FOUND
    found: dict[str, Any] = json.loads(listed.read_text()) if listed.is_file() else {}
    key = f"{said.split(':', maxsplit=1)[0]} at {where}"
    if key not in found:
        found[key] = {"said": said, "file": f"{len(found):02}-{file}", "n": 0}
        (keep / found[key]["file"]).write_bytes(content)
    found[key]["n"] += 1
    listed.write_text(json.dumps(found, indent=1))


def findings(keep: Path) -> dict[str, Any]:
    """{what and where: its first file, and how many}."""
    listed = keep / FOUND
    return dict(json.loads(listed.read_text())) if listed.is_file() else {}


# --- processes ---------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None], log: Path) -> int:
    """Run `work` in a child; its exit status, negative for a signal."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    status = 70
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):  # what libraries print
            os.dup2(out, stream)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def by_number(name: str, asked: argparse.Namespace, keep: Path, tally: Tally, folder: Path) -> None:
    """The mutants from where `tally` is, each made of the seed, the reader's name and its own number."""
    trial = Trial(name, folder, keep, tally)
    while (number := tally.n) < asked.mutants and len(findings(keep)) < MOST_FINDINGS:
        content, seed = fuzz_mutants.mutant(trial.reader.seeds, Random(f"{asked.seed} {name} {number}"))
        trial(trial.reader.seeds[seed].wrap(content))


def fuzzed(name: str, asked: argparse.Namespace, tally: Tally) -> None:
    """Fuzz one reader; a process that dies is a finding, and another goes on behind it."""
    keep = asked.keep / name
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    status = -1
    while status < 0 and len(findings(keep)) < MOST_FINDINGS:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
            folder = Path(place) / "model"
            folder.mkdir()
            os.environ |= {"OUTLIERLENS_CACHE": f"{place}/cache", "HF_HUB_CACHE": f"{place}/hub", "HF_HUB_OFFLINE": "1"}
            status = in_child(partial(by_number, name, asked, keep, tally, folder), keep / LOG)
            if status < 0:
                said = f"more than {SECONDS} s" if status == -signal.SIGPROF else f"the process ended with {status}"
                mutant = keep / MUTANT
                note(keep, said, f"mutant {tally.n}", mutant.read_bytes(), mutant.readlink().name)
    if status > 0:
        raise SystemExit(f"{name}: the fuzzer itself failed; see {keep / LOG}")


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reader", action="append", choices=READERS, help="only this one; give it once a reader")
    parser.add_argument("--mutants", type=int, default=20_000, help="of each reader (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the changes (default: %(default)s)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="folder (default: %(default)s)")
    asked = parser.parse_args()
    print(f"{'reader':<22}{'mutants':>11}{'read':>11}{'refused':>11}{'findings':>9}{'most s':>8}{'most MB':>9}")
    n_found, done = 0, []
    for name in asked.reader or READERS:
        tally, keep = RawValue(Tally), asked.keep / name  # which a process leaves behind, however it ends
        try:
            fuzzed(name, asked, tally)
        except KeyboardInterrupt:
            break
        finally:
            found = findings(keep)
            done.append(tally)
            n_found += len(found)
            print(tally.row(name, len(found)), flush=True)
            for where, one in found.items():
                print(f"    {one['n']:,} × {where}: {one['said']} ({keep / one['file']})", flush=True)
    total = Tally(*(sum(getattr(one, name) for one in done) for name in ("n", "read", "refused")))
    total.seconds, total.megabytes = (max(getattr(one, name) for one in done) for name in ("seconds", "megabytes"))
    print(total.row(f"{len(done)} readers", n_found))
    return 1 if n_found else 0


if __name__ == "__main__":
    sys.exit(main())
