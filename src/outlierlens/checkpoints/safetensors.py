"""Safetensors, one file or many: our own header check, then memory-mapped values.

`safe_open(framework="numpy")` raises on bf16 and trusts more than we want to, so the header is checked here:
length against the file, offsets against each other, shape against bytes.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from outlierlens.checkpoints.base import (
    INDEX,
    ITEM_BYTES,
    MAX_TENSORS,
    Checkpoint,
    TensorInfo,
    is_shape,
    is_too_long,
    parse_config,
    raw_blocks,
    raw_rows,
    widen,
)
from outlierlens.errors import BadFile

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_INDEX_BYTES = 200_000_000
T = TypeVar("T")

_OTHER_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "U16": 16, "U32": 32, "U64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Placed:
    """A tensor's declaration and its bytes [start, end) within the file."""

    info: TensorInfo
    start: int
    end: int


def header_length(first8: bytes, file_size: int, where: str) -> int:
    """Bytes of the JSON header that follow the first eight; raises BadFile when the file cannot hold them."""
    if len(first8) < 8:
        raise BadFile(f"{where}: {len(first8)} bytes is too short for a safetensors file; fetch it again")
    (length,) = struct.unpack("<Q", first8)
    if length > min(MAX_HEADER_BYTES, file_size - 8):
        raise BadFile(
            f"{where}: the header claims {length:,} bytes in a file of {file_size:,}; truncated or not safetensors"
        )
    return int(length)


def parse_header(raw: bytes, file_size: int, where: str) -> dict[str, Placed]:
    """Every tensor of a safetensors header, with each length, type and offset checked against the file size."""
    header = parse_config(raw, f"{where} (header)", strict=True)
    if len(header) > MAX_TENSORS:
        raise BadFile(f"{where}: the header lists {len(header):,} tensors, more than {MAX_TENSORS:,}")
    base = 8 + len(raw)
    placed = {
        name: _entry(name, entry, base, file_size, where) for name, entry in header.items() if name != "__metadata__"
    }
    about = header.get("__metadata__") or {}
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise BadFile(f"{where}: the header's __metadata__ is no text by name; the file is corrupt, fetch it again")
    previous_end, previous_name = base, ""
    for name, tensor in sorted(placed.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start < previous_end:
            raise BadFile(f"{where}: tensor {name!r} overlaps {previous_name!r}; the file is corrupt")
        if tensor.start > previous_end:
            raise _unclaimed(where, previous_end, tensor.start)
        previous_end, previous_name = tensor.end, name
    if previous_end != file_size:
        raise _unclaimed(where, previous_end, file_size)
    return placed


def _unclaimed(where: str, start: int, end: int) -> BadFile:
    """What the safetensors library refuses too: bytes that no tensor claims can hide anything."""
    return BadFile(f"{where}: bytes {start:,} to {end:,} belong to no tensor; the file is corrupt, fetch it again")


def _entry(name: str, entry: Any, base: int, file_size: int, where: str) -> Placed:
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    offsets = entry.get("data_offsets") if isinstance(entry, Mapping) else None
    if (
        not isinstance(shape, list)
        or not isinstance(offsets, list)
        or len(offsets) != 2
        or not isinstance(entry.get("dtype"), str)
        or not is_shape(shape)
        or not all(type(n) is int and 0 <= n < 2**63 for n in offsets)
    ):
        raise BadFile(f"{where}: the entry of tensor {name!r} lacks a sound dtype, shape or data_offsets")
    dtype = entry["dtype"]
    start, end = base + offsets[0], base + offsets[1]
    if end < start or end > file_size:
        raise BadFile(f"{where}: tensor {name!r} lies outside the file (bytes {start:,} to {end:,} of {file_size:,})")
    info = TensorInfo(dtype, tuple(shape), end - start)
    # Types that we cannot widen may stand in the file; they only fail when asked for.
    bits = 8 * ITEM_BYTES.get(dtype, 0) or _OTHER_BITS.get(dtype)
    if bits is not None and info.size * bits != info.nbytes * 8:
        raise BadFile(f"{where}: tensor {name!r} declares {dtype}{shape} but holds {info.nbytes:,} bytes")
    return Placed(info, start, end)


def shard_names(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """{tensor name: shard file} of an index file; a shard must be a plain file name beside the index."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(f"{where}: has no weight_map; fetch it again")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard not in ("", ".", "..") and not set(shard) & set("/\\:\0")
        plain = plain and not is_too_long(shard)
        if not plain:
            raise BadFile(f"{where}: tensor {name!r} names the shard {shard!r}, which is not a plain file name")
    return weight_map


def files_of(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The files of a model, and {tensor: file name} as promised: of an index its shards, of a weight file itself and {}."""
    if not path.name.endswith(INDEX):
        return [path], {}
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a shard index")
    wanted = shard_names(parse_config(path.read_bytes(), str(path)), str(path))
    return [path.parent / shard for shard in sorted(set(wanted.values()))], wanted


def gather(
    files: Iterable[Path], promised: Mapping[str, str], name: str, tensors_of: Callable[[Path], Mapping[str, T]]
) -> dict[str, tuple[Path, T]]:
    """{tensor: (file, what `tensors_of` says of it)} of all files of the model `name`.

    Raises:
        BadFile: a file is missing, two hold a tensor of one name, or one lacks what the index promised of it.
    """
    found: dict[str, tuple[Path, T]] = {}
    for path in files:
        if not path.is_file():
            raise BadFile(f"{path}: this shard is named by the index but missing; fetch the model again")
        for tensor, value in tensors_of(path).items():
            if tensor in found:
                raise BadFile(f"{path}: tensor {tensor!r} also stands in {found[tensor][0].name}")
            found[tensor] = (path, value)
    for tensor, shard in promised.items():
        if tensor not in found or found[tensor][0].name != shard:
            raise BadFile(f"{name}: the index places {tensor!r} in {shard}, which does not hold it")
    return found


class SafetensorsCheckpoint(Checkpoint):
    """One or more local safetensors files read through memory maps."""

    kind = "safetensors"

    def __init__(
        self,
        files: Iterable[Path],
        promised: Mapping[str, str] = MappingProxyType({}),
        *,
        name: str,
        config: dict[str, Any],
    ):
        """`promised` ({tensor: file name}, from an index) must be satisfied exactly by `files`."""
        self.name, self.config = name, config
        self.total_bytes = self.bytes_read = 0
        self._where = gather(files, promised, name, self._header)
        self.tensors = {tensor: place.info for tensor, (_, place) in self._where.items()}

    def _header(self, path: Path) -> dict[str, Placed]:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = header_length(file.read(8), size, str(path))
            placed = parse_header(file.read(length), size, str(path))
        self.total_bytes += size
        self.bytes_read += 8 + length
        return placed

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        maps: dict[Path, np.ndarray] = {}
        for name in names:
            path, place = self._where[name]
            if path not in maps:
                maps[path] = np.memmap(path, dtype=np.uint8, mode="r")
            raw = np.array(maps[path][place.start : place.end])  # a copy, aligned for the view below
            self.bytes_read += place.info.nbytes
            yield name, widen(raw, place.info.dtype, place.info.shape, f"{path}: {name}")

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        path, place = self._where[name]
        where = f"{path}: {name}"
        for raw, shape in raw_blocks(path, place.start, place.info, n_rows, where):
            self.bytes_read += len(raw)
            yield widen(raw, place.info.dtype, shape, where)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        path, place = self._where[name]
        where = f"{path}: {name}"
        raw = raw_rows(path, place.start, place.info, rows, where)
        self.bytes_read += len(raw)
        return widen(raw, place.info.dtype, (len(rows), place.info.shape[-1]), where)


def open_safetensors(path: Path, *, name: str, config: dict[str, Any]) -> SafetensorsCheckpoint:
    """One file, or a sharded checkpoint by its `model.safetensors.index.json`."""
    return SafetensorsCheckpoint(*files_of(path), name=name, config=config)


def write_header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> bytes:
    """The length word and JSON header for `tensors` ({name: (dtype, shape, nbytes)}), laid out in order.

    Lets a file be written tensor by tensor, never holding more than one in memory.
    """
    header, position = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw
