"""The append-only store of finished units of long work: one JSON line each, flushed; interrupted work continues.

    with RowStore.open(path, identity) as rows:
        if (value := rows.get(key)) is None:
            value = rows.append(key, measure())

    with alone_in(directory): ...                    # no other process writes to it meanwhile

The first line holds `identity`: what must be equal for the rows to belong together (model, data, seed, settings).
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from outlierlens.errors import BadFile, BadInput

LOCK = ".lock"  # of a directory that a process writes to
SYNC_SECONDS = 1.0  # rows may come by the hundred a second; forcing each to the disk would be what takes the time


@dataclass
class RowStore:
    """Finished units by key, in memory and in a file that only grows."""

    path: Path
    file: IO[str]
    done: dict[str, Any] = field(default_factory=dict)
    _synced: float = 0.0

    @classmethod
    def open(cls, path: Path, identity: dict[str, Any]) -> "RowStore":
        """Open or create `path`; rows of an earlier run with the same identity are kept.

        A torn last line (the process was killed while writing it) is cut off.

        Raises:
            BadInput: the file belongs to work with another identity; the message names what differs.
            BadFile: a line before the last is malformed.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        done, end = _read(path, identity) if path.exists() else ({}, 0)
        if path.exists():
            os.truncate(path, end)
        file = path.open("a", encoding="utf-8")
        store = cls(path, file, done)
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
        first, *lines = self.path.read_bytes().splitlines(keepends=True)
        keys = [json.loads(line)["key"] for line in lines]
        leaving = [not keep(key) for key in keys]
        if not any(leaving):
            return None
        aside = _free_name(self.path)
        for path, wanted in ((aside, True), (self.path, False)):
            written = path.with_name(path.name + ".part")
            with written.open("wb") as file:
                file.write(
                    first + b"".join(line for line, leaves in zip(lines, leaving, strict=True) if leaves is wanted)
                )
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)
        self.file.close()
        self.file = self.path.open("a", encoding="utf-8")
        for key, leaves in zip(keys, leaving, strict=True):
            if leaves:
                self.done.pop(key, None)
        return aside

    def _write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
        self.file.flush()
        now = time.monotonic()
        if now - self._synced > SYNC_SECONDS:
            os.fsync(self.file.fileno())
            self._synced = now

    def __enter__(self) -> "RowStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self.file.fileno())
        self.file.close()


def read_rows(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, {key: value}) of a file of rows, which may still be growing; a torn last line is left out.

    Raises:
        BadInput: no such file.
        BadFile: not such a file, or a line before the last is malformed.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file of rows")
    done, end = _read(path, None)
    if not end:
        raise BadFile(f"{path}: holds no row; its first line was not written completely")
    with path.open("rb") as file:
        identity = json.loads(file.readline())["identity"]
    return identity, done


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}.replayed-{number}{path.suffix}")).exists():
        number += 1
    return aside


def _read(path: Path, identity: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
    """({key: value}, bytes of whole lines); the identity is compared where one is given."""
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    start = b'{"identity":'
    if end == 0 and raw[: len(start)] != start[: len(raw)]:
        raise BadFile(f"{path}: not rows of outlierlens; name another file")
    done: dict[str, Any] = {}
    for number, line in enumerate(raw[:end].splitlines(), 1):
        try:
            row = json.loads(line)
            if number == 1:
                found = dict(row["identity"])
                if identity is not None:
                    _same(path, found, json.loads(json.dumps(identity)))
            elif isinstance(row["key"], str):
                done[row["key"]] = row["value"]
            else:
                raise TypeError("a key is a string")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadFile(f"{path}, line {number}: not a row of outlierlens; delete the file to start again") from None
    return done, end


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
def alone_in(directory: Path, what: str = "run") -> Iterator[None]:
    """Make a directory and hold it: rows of two processes would mix. The lock goes with the process, however it ends.

    Raises:
        BadInput: it is a file, or another process holds it; `what` says what that is.
    """
    from filelock import FileLock, Timeout

    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory} is a file; name a directory with -o")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory / LOCK, timeout=0):
            yield
    except Timeout:
        raise BadInput(f"{directory}: another {what} is writing to it; wait for it or name another directory") from None
