"""Let every write and every allocation of numpy fail in turn, in a sweep, a report and a fetch, and run the command again.

    python scripts/faults.py                                    # half an hour
    python scripts/faults.py --command fetch --every 5          # each fifth

A write is each call that opens a file for writing, writes to one, forces it to the disk, renames, removes or cuts one, or
makes a folder, below the folder of the command. It fails once (EIO), and in another run so do all that follow (ENOSPC, a
full disk).
An allocation is each place of ours (file and line) at which numpy asks for memory for an array: its first request fails in
one run, its last in another. Commands run in copies of a process that has imported all. One that failed must have ended with
one line on stderr and a code that is not 0, unless it did its work all the same. The same command must then end well, with
the result, to float32's rounding, and the files of a run that nothing disturbed. Exit code 1: something did not hold.
"""

import argparse
import contextlib
import ctypes
import errno
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import outlierlens
from outlierlens.checkpoints.samples import SAMPLES, Sample, Wheel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from finetune_runs import tiny

OURS = f"{Path(outlierlens.__file__).parent}{os.sep}"
CHANGING = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink")


# --- writes ------------------------------------------------------------------------------------------------------


class Writes:
    """Counts the writes below a folder; the one numbered `at` fails, with `full` all that follow too."""

    def __init__(self, folder: Path, at: int = 0, *, full: bool = False):
        self.folder, self.at, self.full, self.count, self.seen = f"{folder}{os.sep}", at, full, 0, list[str]()

    def start(self) -> None:
        """Watch this process until its end."""
        sys.addaudithook(self._audited)
        fsync, self._open = os.fsync, io.open
        os.fsync = lambda file: self._step("fsync", self._name(file)) or fsync(file)
        io.open = sys.modules["builtins"].open = self._opened  # type: ignore[assignment, attr-defined]

    def place(self, name: Any) -> str:
        """Where in the folder a name leads; "" where it leads elsewhere."""
        path = str(Path(os.fsdecode(name)).absolute()) if isinstance(name, str | bytes | os.PathLike) else ""
        return path.removeprefix(self.folder) if path.startswith(self.folder) else ""

    def _step(self, what: str, name: Any) -> None:
        if not (place := self.place(name)):
            return
        self.count += 1
        self.seen.append(f"{what} {place}")
        if self.count == self.at or (
            self.full and self.at and self.count > self.at and what in ("open", "write", "fsync", "os.mkdir")
        ):
            code = errno.ENOSPC if self.full else errno.EIO
            raise OSError(code, os.strerror(code), None if what in ("write", "fsync") else os.fspath(name))

    def torn_write(self, file: io.FileIO, content: Any) -> None:
        """What else happens at a write."""

    def _name(self, file: Any) -> str:
        return str(Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").readlink())

    def _audited(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR):
            self._step("open", given[0])
        elif event in CHANGING:
            self._step(event, given[1] if event == "os.rename" else given[0])

    def _opened(self, file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any) -> Any:
        if not set(mode) & set("wxa+") or not self.place(file) or named.get("opener"):
            return self._open(file, mode, buffering, *given, **named)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""))
        raw.step = lambda content: self._step("write", file) or self.torn_write(raw, content)  # type: ignore[func-returns-value]
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *given, **named)


class _Raw(io.FileIO):
    step: Callable[[Any], None]

    def write(self, content: Any) -> int:
        self.step(content)
        return super().write(content)


# --- allocations -------------------------------------------------------------------------------------------------

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
LAST = ("run/manifest.json", "run/sweep.json")  # what a report or a sweep writes last
VARIES = ("command", "cost", "notes")  # with the folder, and with the size of batches
# Times, and what a command has that replaces a file.
TIMES = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d\S*)?)?|\bin [\d.]+ (ms|s|min|h)\b| --overwrite")
SET_HANDLER = 304  # PyDataMem_SetHandler in numpy's table of functions, since 1.22


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of NEP 49."""

    _fields_ = [
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", ctypes.c_void_p), ("malloc", _MALLOC),
        ("calloc", _CALLOC), ("realloc", _REALLOC), ("free", _FREE),
    ]  # fmt: skip


class Allocations:
    """Counts what numpy asks for from lines of ours; the request numbered `at` gets no memory."""

    def __init__(self, folder: Path, at: int = 0, *, full: bool = False):
        self.at, self.count, self.seen = at, 0, list[str]()

    def start(self) -> None:
        """Watch this process until its end."""
        c = ctypes.CDLL(None)
        for name in ("malloc", "calloc", "realloc"):
            getattr(c, name).restype = ctypes.c_void_p
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        self._kept = (
            _MALLOC(lambda _, n: None if self._fails() else c.malloc(size(n))),
            _CALLOC(lambda _, n, width: None if self._fails() else c.calloc(size(n), size(width))),
            _REALLOC(lambda _, old, n: None if self._fails() else c.realloc(pointer(old), size(n))),
            # Python in here would lose the MemoryError that numpy raises before it frees; what is freed is NULL, the context.
            ctypes.cast(c.free, _FREE),
        )
        self._handler = _Handler(b"outlierlens", 1, None, *self._kept)
        api = ctypes.pythonapi
        api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
        get = api.PyCapsule_GetPointer
        get.restype, get.argtypes = pointer, [ctypes.py_object, ctypes.c_char_p]
        table = get(np._core._multiarray_umath._ARRAY_API, None)
        address = ctypes.cast(table, ctypes.POINTER(pointer))[SET_HANDLER]
        capsule = api.PyCapsule_New(ctypes.addressof(self._handler), b"mem_handler", None)
        ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)(capsule)

    def _fails(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(OURS):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return False
        self.count += 1
        if not self.at:
            self.seen.append(f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}")
        return self.count == self.at


Faults = type[Writes] | type[Allocations]


# --- commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """Words of the command line for a folder, and what of the result must be equal."""

    words: Callable[[Path], list[str]]
    result: Callable[[Path], Any]


def commands(root: Path) -> dict[str, Command]:
    """A sweep and a report of a tiny model, and a fetch of a tiny sample from a folder of wheels."""
    common = f"{root}/model --data {root}/texts.txt --max-length 12 --device cpu -q"
    sweep = "--sets 3,5 --dims 1,2 --random 2 --matched 1 --max-texts 8 -o {}/run/sweep.json"
    report = "--limit 8 --dims 3,5 --random 2 --matched 1 -o {}/run"

    def measured(name: str) -> Callable[[Path], Any]:
        return lambda folder: (plain(json.loads((folder / "run" / name).read_bytes()), *VARIES), [*files_of(folder)])

    os.environ |= {"PIP_FIND_LINKS": str(root), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    return {
        "sweep": Command(lambda folder: f"sweep {common} {sweep.format(folder)}".split(), measured("sweep.json")),
        "report": Command(lambda folder: f"report {common} {report.format(folder)}".split(), measured("results.json")),
        "fetch": Command(
            lambda _: ["fetch", "tiny", "-q"],
            lambda folder: [(name, path.read_bytes()) for name, path in files_of(folder).items()],
        ),
    }


def same(one: Any, other: Any) -> bool:
    """Equal, numbers but for float32's rounding: a run that memory failed goes on in smaller batches."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float | np.ndarray) and type(one) is type(other):
        return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=1e-5, atol=1e-7, equal_nan=True)
    return bool(one == other)


def files_of(folder: Path) -> dict[str, Path]:
    """The files below a folder by their place in it, locks left out."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(folder)): path for path in paths}


def plain(value: Any, *leave: str) -> Any:
    """JSON without times, digests of what holds times, and the names to leave out."""
    if isinstance(value, dict):
        names = ("created", "files", "crc32", *leave)
        kept = (name for name in value if name not in names and "second" not in name and "runtime" not in name)
        return {name: plain(value[name], *leave) for name in kept}
    if isinstance(value, list):
        return [plain(one, *leave) for one in value]
    return TIMES.sub("", value) if isinstance(value, str) else value


def prepared(root: Path) -> None:
    """Make the model, the texts and the sample."""
    torch.set_num_threads(1)  # threads do not survive a copy
    transformers.utils.logging.disable_progress_bar()
    tiny(root / "model")
    lines = (" ".join(f"w{(7 * i + j * j) % 35}" for j in range(9 + i % 7)) for i in range(16))
    (root / "texts.txt").write_text("\n".join(lines))
    files = {"config.json": b'{"model_type": "bert"}', "model.safetensors": bytes(300_000)}
    about = {
        "tiny-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
        "tiny-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: faults\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = root / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in ({f"tiny/{name}": raw for name, raw in files.items()} | about).items():
            archive.writestr(name, content)
    wheel = Wheel("tiny", "1", path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    sizes = {name: len(raw) for name, raw in files.items()}
    SAMPLES["tiny"] = Sample("tiny", "a test", "MIT", "nowhere", (wheel,), "tiny", sizes)


# --- runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a command ended: its status, what it wrote to stderr, and the faults' count and places."""

    status: int
    said: str
    seen: tuple[str, ...]


def run(words: list[str], folder: Path, faults: Any = None) -> Ended:
    """The command in a copy of this process."""
    folder.mkdir(parents=True, exist_ok=True)
    said, seen = folder.with_name(f"{folder.name}.said"), folder.with_name(f"{folder.name}.seen")
    seen.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        status = 70
        try:
            torch.set_num_threads(torch.get_num_threads())  # makes its pool anew, for which threads would race
            os.chdir(folder)
            for stream, place in ((1, os.devnull), (2, said)):
                os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
            sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
            status = called(words, folder, faults)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            if faults is not None and not faults.at:
                with os.fdopen(os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w") as file:
                    file.write("\n".join(faults.seen))
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = tuple(seen.read_text().splitlines()) if seen.exists() else ()
    return Ended(status, said.read_text(errors="replace"), found)


def called(words: list[str], folder: Path, faults: Any = None) -> int:
    """The exit code of the command line, run here; what it caches lies in the folder."""
    from outlierlens.cli import main

    sys.modules["vl_convert"] = None  # type: ignore[assignment]  # its threads do not survive a copy: charts as JSON only
    os.environ["OUTLIERLENS_CACHE"] = str(folder / "cache")
    sys.argv = ["outlierlens", *words]
    if faults is not None:
        faults.start()
    try:
        main()
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


def chosen(kind: Faults, seen: tuple[str, ...]) -> Iterator[tuple[int, bool]]:
    """(number, whether all behind it fail too) of each fault: of every write, and of each place's first and last allocation."""
    if kind is Writes:
        yield from itertools.product(range(1, len(seen) + 1), (False, True))
    else:
        first = {place: number for number, place in reversed(list(enumerate(seen, 1)))}
        last = {place: number for number, place in enumerate(seen, 1)}
        yield from ((number, False) for number in sorted({*first.values(), *last.values()}))


def trial(command: Command, root: Path, fault: Any, wanted: Any) -> str:
    """ "" where all held, else what did not."""
    folder = root / "faulty"
    shutil.rmtree(folder, ignore_errors=True)
    ended = run(command.words(folder), folder, fault)
    lines = ended.said.splitlines()
    if ended.status == 0:
        return "" if same(command.result(folder), wanted) else f"code 0 and another result; {ended.said!r}"
    wrong = ""
    if len(lines) != 1 or not lines[0].startswith("error: "):
        wrong = f"{len(lines)} lines on stderr ({lines[-1][:150] if lines else ''})"
    whole = any((folder / name).exists() for name in LAST) and same(command.result(folder), wanted)
    again = run(command.words(folder), folder)
    if whole and ("holds a report already" in again.said or "exists; give another name" in again.said):
        return wrong  # what failed was to force the last name to the disk
    if again.status:
        return f"{wrong}; run again, it ended with {again.status}: {again.said.splitlines()[-1][:200]}"
    if not same(command.result(folder), wanted):
        return f"{wrong}; run again, another result or other files"
    return wrong


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", action="append", choices=("sweep", "report", "fetch"), help="only this one")
    parser.add_argument("--faults", choices=("writes", "allocations"), help="only these")
    parser.add_argument("--every", type=int, default=1, help="try each N-th fault alone (default: %(default)s)")
    asked = parser.parse_args()
    kinds: dict[str, Faults] = {"writes": Writes, "allocations": Allocations}
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        root = Path(place).resolve()
        prepared(root)
        found = commands(root)
        print(f"{'command':<10}{'faults':<13}{'counted':>9}{'tried':>8}{'not held':>10}")
        for name, kind in itertools.product(asked.command or found, [asked.faults] if asked.faults else kinds):
            command, whole = found[name], root / "whole"
            shutil.rmtree(whole, ignore_errors=True)
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                called(command.words(whole), whole)  # here: what it imports, no copy imports again
            shutil.rmtree(whole)
            undisturbed = run(command.words(whole), whole, kinds[kind](whole))
            if undisturbed.status:
                raise SystemExit(f"{name}: {undisturbed.said}")
            wanted = command.result(whole)
            numbers, bad = list(chosen(kinds[kind], undisturbed.seen))[:: asked.every], 0
            for number, full in numbers:
                fault = kinds[kind](root / "faulty", number, full=full)
                if said := trial(command, root, fault, wanted):
                    bad += 1
                    how = "full disk from" if full else "once at"
                    print(f"    {how} {number} ({undisturbed.seen[number - 1]}): {said}", flush=True)
            print(f"{name:<10}{kind:<13}{len(undisturbed.seen):>9,}{len(numbers):>8,}{bad:>10,}", flush=True)
            wrong += bad
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
