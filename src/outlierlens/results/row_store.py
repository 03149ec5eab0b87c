"""The append-only store of finished units of long work: one JSON line each, flushed; interrupted work continues.

    with kept_rows(place, identity) as kept:         # a file, a folder, or None: in memory
        value = kept(key, measure)
    with alone_in(directory): ...                    # no other process writes to it meanwhile

The first line holds `identity`: what must be equal for the rows to belong together (model, data, seed, settings).
Each line ends with the CRC-32 of what stands before it, so that a changed digit is found.
"""

import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from outlierlens.errors import BadFile, BadInput
from outlierlens.results.safe_files import alone, refuse_links, sweep, write_bytes

LOCK = ".lock"  # of a directory that a process writes to
FIRST = b'{"identity":'
CHECKED = re.compile(rb'(.*),"crc32":"([0-9a-f]{8})"}', re.DOTALL)
SYNC_SECONDS = 1.0  # rows may come by the hundred a second; forcing each to the disk would be what takes the time


@dataclass
class RowStore:
    """Finished units by key, in memory and in a file that only grows."""

    path: Path
    file: IO[bytes]
    done: dict[str, Any] = field(default_factory=dict)
    _synced: float = 0.0
    _lock: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def open(cls, path: Path, identity: dict[str, Any]) -> "RowStore":
        """Open or create `path`, which no other process may then open; rows of an earlier run with this identity are kept.

        A torn last line (the process was killed while writing it) is cut off.

        Raises:
            BadInput: the file belongs to work with another identity (the message names what differs), another process
                writes to it, or it is a link.
            BadFile: a line before the last is malformed or was changed.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_links(path.parent, path.name)
        with ExitStack() as lock:
            lock.enter_context(alone(path))
            done, end = dict[str, Any](), 0
            if path.exists():
                _, done, end = _read(path, identity)
                os.truncate(path, end)
            store = cls(path, path.open("ab"), done, _lock=lock.pop_all())
        if end == 0:
            store._write({"identity": identity})
        return store

    def get(self, key: str) -> Any | None:
        """The value of a finished unit, or None."""
        return self.done.get(key)

    def append(self, key: str, value: Any) -> Any:
        """Keep one finished unit: a killed process no longer loses it, nor, a second later, a machine that goes down."""
        self._write({"key": key, "value": value})
        self.done[key] = value
        return value

    def rewind(self, keep: Callable[[str], bool]) -> Path | None:
        """Move the units whose key `keep` refuses to a new file beside this one; returns its path, None for no such unit.

        For work that goes on from an earlier point and will make them again. A process killed meanwhile loses nothing:
        the other file is complete before this one is replaced as a whole.
        """
        first, *lines = _lines(self.path.read_bytes())
        keys = [json.loads(line)["key"] for line in lines]
        leaving = [not keep(key) for key in keys]
        if not any(leaving):
            return None
        aside = _free_name(self.path)
        for path, wanted in ((aside, True), (self.path, False)):
            kept = (line for line, leaves in zip(lines, leaving, strict=True) if leaves is wanted)
            write_bytes(path, first + b"".join(kept))
        self._reopen()
        for key, leaves in zip(keys, leaving, strict=True):
            if leaves:
                self.done.pop(key, None)
        return aside

    def restart(self) -> None:
        """Drop all units, which are kept elsewhere by now; the identity stays."""
        with self.path.open("rb") as file:
            first = file.readline()
        write_bytes(self.path, first)
        self._reopen()
        self.done.clear()

    def _reopen(self) -> None:
        """Go on in the file that has taken the old one's name; an interrupt finds one of the two open."""
        before, self.file = self.file, self.path.open("ab")
        before.close()

    def _write(self, row: dict[str, Any]) -> None:
        with self._saying():
            self.file.write(row_line(row))
            self.file.flush()
            now = time.monotonic()
            if now - self._synced > SYNC_SECONDS:
                os.fsync(self.file.fileno())
                self._synced = now

    @contextmanager
    def _saying(self) -> Iterator[None]:
        """What the disk refuses names the file, and says what is not lost."""
        try:
            yield
        except OSError as error:
            error.filename = self.path
            error.add_note("finished rows are kept")
            raise

    def __enter__(self) -> "RowStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock, self._saying(), self.file:
            os.fsync(self.file.fileno())


@dataclass(frozen=True)
class Keep:
    """A folder in which a command keeps what it has measured, so that the same command goes on; each identity has a file.

    Attributes:
        fresh: whether rows of an earlier run are dropped.
    """

    folder: Path
    fresh: bool = False

    def path_of(self, identity: dict[str, Any]) -> Path:
        """The file of this identity."""
        text = json.dumps(identity, sort_keys=True, default=str)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"

    def open(self, identity: dict[str, Any]) -> RowStore:
        """The rows of this identity; raises BadInput, BadFile as `RowStore.open`, and where nothing can be kept there."""
        own = self.path_of(identity)
        if self.fresh:
            remove_rows(own)
        try:
            return RowStore.open(own, identity)
        except OSError as error:
            remedy = "name a folder that can be written in the variable OUTLIERLENS_RUNS"
            raise BadInput(f"{self.folder}: nothing can be kept there ({error.strerror or error}); {remedy}") from None


@dataclass(frozen=True)
class UnitCache:
    """Finished units by key; what is not there is measured and added."""

    rows: RowStore | None
    done: dict[str, Any]

    def __call__(self, key: str, measure: Callable[[], Any]) -> Any:
        """A unit, plain data: from there, or measured now."""
        if key not in self.done:
            self.done[key] = measure() if self.rows is None else self.rows.append(key, measure())
        return self.done[key]


@contextmanager
def kept_rows(
    place: Path | Keep | None, identity: dict[str, Any], notice: Callable[[str], None] | None = None
) -> Iterator[UnitCache]:
    """Finished units of this identity, as the file, or the folder, at `place` keeps them; in memory where there is none.

    `notice` is told where those of an earlier run are dropped, and at the end, where nothing had to be measured.

    Raises:
        BadInput, BadFile: as `RowStore.open`.
    """
    if place is None:
        yield UnitCache(None, {})
        return
    if notice and isinstance(place, Keep) and place.fresh and (old := place.path_of(identity)).exists():
        notice(f"{old}: what an earlier run measured is dropped (--overwrite)")
    with place.open(identity) if isinstance(place, Keep) else RowStore.open(place, identity) as rows:
        before = len(rows.done)
        yield UnitCache(rows, rows.done)
        if notice and before and before == len(rows.done):
            notice(f"{rows.path}: every measurement is taken from there")


def row_line(row: dict[str, Any]) -> bytes:
    """A line of the file, with its checksum and its end."""
    body = json.dumps(row, ensure_ascii=False, separators=(",", ":"))[:-1].encode("utf-8", "backslashreplace")
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def remove_rows(path: Path) -> None:
    """Remove a file of rows, where there is one, to start again.

    Raises:
        BadInput: it is a link, or no file of rows: nothing that somebody else wrote is removed.
    """
    if _are_rows(path):
        with alone(path):
            path.unlink()


def _are_rows(path: Path) -> bool:
    """Whether a file of rows is there; raises BadInput for a link, and for what somebody else wrote."""
    refuse_links(path.parent, path.name)
    if path.exists() and not (path.is_file() and _begins_as_rows(path, surely=True)):
        raise BadInput(f"{path}: not rows of outlierlens, so it is not replaced; name another file")
    return path.exists()


def _begins_as_rows(path: Path, *, surely: bool = False) -> bool:
    """Whether the first line begins as ours do; a torn one is no whole JSON. `surely`: its checksum is asked, too."""
    with path.open("rb") as file:
        line = file.readline()
    torn = not line.endswith(b"\n")
    if not line.startswith(FIRST) or not (torn or surely):
        return line.startswith(FIRST) or FIRST.startswith(line)
    return _reads(_checked, line + b"\n" * torn) or (torn and not _reads(json.loads, line))


def _reads(read: Callable[[bytes], Any], line: bytes) -> bool:
    try:
        read(line)
    except (ValueError, RecursionError):
        return False
    return True


def read_rows(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, {key: value}) of a file of rows, which may still be growing; a torn last line is left out.

    Raises:
        BadInput: no such file.
        BadFile: not such a file, or a line before the last is malformed or was changed.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file of rows")
    identity, done, end = _read(path, None)
    if not end:
        raise BadFile(f"{path}: holds no row; its first line was not written completely")
    return identity, done


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}.replayed-{number}{path.suffix}")).exists():
        number += 1
    return aside


def _read(path: Path, identity: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any], int]:
    """(identity, {key: value}, bytes of whole lines); the identity is compared where one is given."""
    if not path.is_file() or not _begins_as_rows(path):
        raise BadFile(f"{path}: not rows of outlierlens; name another file")
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    found: dict[str, Any] = {}
    done: dict[str, Any] = {}
    for number, line in enumerate(_lines(raw[:end]), 1):
        try:
            row = _checked(line)
            if number == 1:
                found = dict(row["identity"])
                if identity is not None:
                    _same(path, found, json.loads(json.dumps(identity)))
            elif isinstance(row["key"], str):
                done[row["key"]] = row["value"]
            else:
                raise TypeError("a key is a string")
        except (ValueError, KeyError, TypeError, RecursionError):
            remedy = "name another file" if number == 1 else "delete the file to start again"
            raise BadFile(f"{path}, line {number}: not a row as outlierlens wrote it; {remedy}") from None
    return found, done, end


def _lines(raw: bytes) -> list[bytes]:
    return [line + b"\n" for line in raw.split(b"\n")[:-1]]


def _checked(line: bytes) -> dict[str, Any]:
    """The row of a line; raises ValueError where it is not what its checksum was made of."""
    match = CHECKED.fullmatch(line, 0, len(line) - 1)
    if match is None or int(match[2], 16) != zlib.crc32(match[1]):
        raise ValueError("the checksum differs")
    return dict(json.loads(match[1] + b"}"))


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """The values of an identity by name, those of groups of settings too: "task max_length"."""
    flat: dict[str, Any] = {}
    for key, value in identity.items():
        inner = value if isinstance(value, dict) and value else None
        flat |= {f"{key} {name}": one for name, one in inner.items()} if inner else {key: value}
    return flat


def _same(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    groups = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if groups:
        was, is_now = (_flat({key: of.get(key) for key in groups}) for of in (before, now))
        differing = [key for key in {**was, **is_now} if was.get(key) != is_now.get(key)]
        what = "; ".join(f"{key} was {was.get(key)!r}, is {is_now.get(key)!r}" for key in differing[:3])
        raise BadInput(
            f"{path} holds rows of other work ({what}); use another directory, or --overwrite to start again"
        )


@contextmanager
def alone_in(directory: Path, what: str = "run", *inside: str) -> Iterator[None]:
    """Make a directory and hold it: rows of two processes would mix. The lock goes with the process, however it ends.

    `inside` are patterns of what will be written in it; without one, everything.

    Raises:
        BadInput: it is a file, another process holds it (`what` says what that is), or a link lies in it.
    """
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory} is a file; name a directory with -o")
    refuse_links(directory, *inside)
    with alone(directory, directory / LOCK, what=what):
        sweep(directory)
        for path in list(directory.iterdir()):
            if path.is_dir() and not path.is_symlink() and not (path / LOCK).exists():  # else it is another run's
                sweep(path)
        yield


def nine_digits(values: np.ndarray) -> list[float]:
    """Values with nine significant digits, which say all of a float32."""
    return [float(f"{value:.9g}") for value in values.tolist()]
