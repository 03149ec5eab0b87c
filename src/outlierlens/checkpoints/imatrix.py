"""llama.cpp's importance matrices: the second moments of what every linear reads, from either of its two formats.

    found = read_imatrix(Path("imatrix.gguf"))
    found.entries["blk.11.ffn_down.weight"].moments          # mean x² [column]

GGUF (`llama-imatrix` since 2025): `NAME.in_sum2` holds Σ x² [matrix, column] and `NAME.counts` the vectors summed [matrix].
Before that, and with `--output-format dat`: the number of entries; of each the name, the calls, the number of values, and the
values, mean x² times calls; then the chunks and the text's name. Several matrices are the experts of one tensor.

Nothing in a header is believed before the file has been seen to hold it.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outlierlens.checkpoints.base import Placed
from outlierlens.checkpoints.gguf_header import MAX_NAME_BYTES, MAX_TENSORS, read_header
from outlierlens.errors import BadFile

_INT = struct.Struct("<i")
_DATASETS = "imatrix.datasets"


@dataclass(frozen=True)
class Entry:
    """What one tensor's linear reads.

    Attributes:
        moments: mean x² of each input [column]; of experts, over all vectors that any of them read.
        vectors: how many were seen; 0 where the file does not say.
    """

    moments: np.ndarray
    vectors: int


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix: entries by GGUF's name of the weight, texts that were read, chunks and tokens of each (0: unknown).

    `empty` are tensors that read nothing.
    """

    entries: Mapping[str, Entry]
    data: str
    n_chunks: int
    chunk_size: int
    empty: tuple[str, ...] = ()


def read_imatrix(path: Path) -> Imatrix:
    """What the file holds, whatever its name ends in.

    Raises:
        BadFile: it is no importance matrix, or is truncated or corrupt.
    """
    if not path.is_file():
        raise BadFile(f"{path}: no such file; name one that llama-imatrix wrote")
    with path.open("rb") as file:
        start = file.read(4)
    found = _gguf(path) if start == b"GGUF" else _legacy(path)
    if not found.entries:
        raise BadFile(f"{path}: no tensor of it has read anything; make it of a longer text")
    return found


def _gguf(path: Path) -> Imatrix:
    header = read_header(path, arrays=(_DATASETS,))
    if header.metadata.get("general.type") != "imatrix":
        raise BadFile(
            f"{path}: is a GGUF file but no importance matrix (general.type); name one that llama-imatrix wrote"
        )
    entries: dict[str, Entry] = {}
    empty = []
    for stored in header.tensors:
        name = stored.removesuffix(".in_sum2")
        if name == stored:
            continue
        if f"{name}.counts" not in header.tensors:
            raise BadFile(f"{path}: {stored!r} has no counts beside it; the file is corrupt, make it again")
        sums, counts = (_floats(path, one, header.tensors[one]) for one in (stored, f"{name}.counts"))
        if not counts.size or sums.size % counts.size:
            raise BadFile(
                f"{path}: {stored!r} has {sums.size:,} values for {counts.size:,} counts; the file is corrupt"
            )
        total = float(counts.sum())
        if total > 0:
            entries[name] = Entry(sums.reshape(counts.size, -1).sum(0) / total, int(total))
        else:
            empty.append(name)
    listed = header.metadata.get(_DATASETS)
    data = ", ".join(map(str, listed)) if isinstance(listed, list) else ""
    chunks, size = (header.metadata.get(f"imatrix.chunk_{what}") for what in ("count", "size"))
    return Imatrix(
        entries, data, chunks if isinstance(chunks, int) else 0, size if isinstance(size, int) else 0, tuple(empty)
    )


def _floats(path: Path, name: str, place: Placed) -> np.ndarray:
    if place.info.dtype != "F32":
        raise BadFile(
            f"{path}: {name!r} is stored as {place.info.dtype}, not as F32; the file is corrupt, make it again"
        )
    with path.open("rb") as file:
        file.seek(place.start)
        raw = file.read(place.info.nbytes)
    return _checked(path, name, raw, place.info.nbytes)


def _checked(path: Path, name: str, raw: bytes, nbytes: int) -> np.ndarray:
    """The values as float64; raises BadFile for fewer than wanted, a negative one, or one that is no number."""
    if len(raw) != nbytes:
        raise BadFile(f"{path}: the file became shorter while it was read; fetch it again")
    values = np.frombuffer(raw, "<f4").astype(np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise BadFile(f"{path}: {name!r} holds a value that is no sum of squares; the file is corrupt, make it again")
    return values


class _Legacy:
    """A position in a file of the old format that never passes its end."""

    def __init__(self, path: Path, raw: bytes):
        self.path, self.raw, self.at = path, raw, 0

    @property
    def left(self) -> int:
        return len(self.raw) - self.at

    def take(self, n_bytes: int, what: str) -> bytes:
        if n_bytes > self.left:
            raise BadFile(
                f"{self.path}: {what} needs {n_bytes:,} bytes at byte {self.at:,}, the file ends at {len(self.raw):,}; it is "
                "no importance matrix of llama.cpp, or truncated"
            )
        self.at += n_bytes
        return self.raw[self.at - n_bytes : self.at]

    def number(self, what: str, least: int, most: int) -> int:
        (value,) = _INT.unpack(self.take(_INT.size, what))
        if not least <= value <= most:
            raise BadFile(
                f"{self.path}: {what} is {value:,}, not {least:,} to {most:,}; it is no importance matrix of llama.cpp, "
                "or corrupt"
            )
        return int(value)

    def text(self, what: str, least: int) -> str:
        length = self.number(f"the length of {what}", least, min(MAX_NAME_BYTES, self.left))
        return self.take(length, what).decode("utf-8", errors="replace")


def _legacy(path: Path) -> Imatrix:
    file = _Legacy(path, path.read_bytes())
    # The shortest entry: a name of one byte, calls, one value.
    n_entries = file.number("the number of entries", 1, min(MAX_TENSORS, file.left // 17))
    entries: dict[str, Entry] = {}
    for number in range(n_entries):
        name = file.text(f"the name of entry {number}", 1)
        if name in entries:
            raise BadFile(f"{path}: {name[:60]!r} stands there twice; the file is corrupt")
        calls = file.number(f"the calls of entry {number}", 0, 2**31 - 1)
        n_values = file.number(f"the number of values of entry {number}", 1, 2**31 - 1)
        raw = file.take(4 * n_values, f"the values of entry {number}")
        entries[name] = Entry(_checked(path, name[:60], raw, len(raw)) / max(calls, 1), 0)
    chunks, data = 0, ""
    if file.left:  # the oldest files end here
        chunks = file.number("the number of chunks", 0, 2**31 - 1)
        data = file.text("the name of the text", 0) if file.left else ""
    if file.left:
        raise BadFile(
            f"{path}: {file.left:,} bytes follow its end; it is no importance matrix of llama.cpp, or corrupt"
        )
    return Imatrix(entries, data, chunks, 0)
