"""A walk over a GGUF header in which nothing is believed before the file has been seen to hold it.

    header = read_header(path)
    header.metadata["general.architecture"]         # scalars and short strings; arrays are stepped over unless named
    header.tensors["blk.0.ffn_down.weight"]         # TensorSpan(TensorInfo("Q4_1", (576, 1536), 552960), start, end)

Layout (GGUF specification, versions 2 and 3): magic, version, number of tensors, number of metadata entries; the
entries (key, type, value); the tensors (name, dimensions fastest first, type, offset); padding; data. The usual
readers build every array and trust every count, so that a file of 200 bytes can keep them busy for hours.
"""

import math
import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import TensorInfo, TensorSpan
from outlierlens.errors import BadFile

# Far above any published model. They bound time and memory where the file's size alone would allow more.
MAX_ENTRIES = 65_536
MAX_TENSORS = 131_072
MAX_STRINGS = 8_000_000  # in all arrays together; the largest vocabularies have 262,144 tokens
MAX_NAME_BYTES = 65_535  # the specification's limit for keys
MAX_TEXT_BYTES = 4_096  # longer metadata (chat templates) is stepped over
MAX_RANK = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {
    number: struct.Struct("<" + code) for number, code in zip((*range(8), 10, 11, 12), "BbHhIifBQqd", strict=True)
}
_BOOL = 7
_U32, _U64 = _SCALARS[4], _SCALARS[10]

# ggml type number -> name, elements a block, bytes a block.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What stands before the data.

    Attributes:
        metadata: scalars, strings of at most `MAX_TEXT_BYTES`, and the arrays that were asked for (as lists), by key.
        tensors: declaration and place by stored name; shapes are slowest axis first, as in numpy.
        nbytes: length of the header.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorSpan]
    nbytes: int


def read_header(path: Path, arrays: Collection[str] = ()) -> Header:
    """The header of a GGUF file with every count, length and offset checked against the file's size.

    `arrays` names those that are read; all others are stepped over.

    Raises:
        BadFile: the file is malformed, truncated, big-endian or of an unknown version.
    """
    size = path.stat().st_size
    if size < 24:
        raise BadFile(f"{path}: {size} bytes is too short for a GGUF file; fetch it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        return _Walk(raw, str(path), arrays).header()


class _Walk:
    """A position in the file that never passes its end."""

    def __init__(self, raw: mmap.mmap, where: str, arrays: Collection[str] = ()):
        self.raw, self.size, self.where, self.arrays = raw, len(raw), where, frozenset(arrays)
        self.position = 0
        self.n_strings = 0

    def header(self) -> Header:
        self.magic()
        n_tensors, n_entries = self.scalar(_U64, "the tensor count"), self.scalar(_U64, "the metadata count")
        # The shortest entry is an empty key, a type and one byte; the shortest tensor has no name and no dimensions.
        self.check_count(n_entries, 13, MAX_ENTRIES, "metadata entries")
        self.check_count(n_tensors, 24, MAX_TENSORS, "tensors")
        if not n_tensors:
            raise BadFile(f"{self.where}: holds no tensors (a vocabulary alone?); name the file with the weights")
        metadata: dict[str, Any] = {}
        seen: set[str] = set()
        for number in range(n_entries):
            key = self.name(f"the key of metadata entry {number}")
            if key in seen:
                raise BadFile(f"{self.where}: metadata key {_short(key)} stands there twice; the file is corrupt")
            seen.add(key)
            value = self.value(key)
            if value is not None:
                metadata[key] = value
        alignment = self.alignment(metadata)
        infos = self.infos(n_tensors, alignment)
        nbytes = self.position
        return Header(metadata, self.place(infos, -(-nbytes // alignment) * alignment), nbytes)

    def magic(self) -> None:
        if (magic := bytes(self.raw[:4])) != b"GGUF":
            raise BadFile(f"{self.where}: begins with {magic!r}, not with b'GGUF'; it is no GGUF file or a broken one")
        self.position = 4
        version = self.scalar(_U32, "the version")
        if version in (2, 3):
            return
        if version and version & 0xFFFF == 0:
            raise BadFile(f"{self.where}: is a big-endian GGUF file; convert the model to little-endian")
        raise BadFile(f"{self.where}: is GGUF version {version}; versions 2 and 3 are read, convert the model again")

    def scalar(self, kind: struct.Struct, what: str) -> Any:
        self.need(kind.size, what)
        (value,) = kind.unpack_from(self.raw, self.position)
        self.position += kind.size
        return value

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.position:
            raise BadFile(
                f"{self.where}: {what} needs {n_bytes:,} bytes at byte {self.position:,}, the file ends at "
                f"{self.size:,}; it is truncated or corrupt, fetch it again"
            )

    def check_count(self, count: int, least_bytes: int, limit: int, what: str) -> None:
        left = self.size - self.position
        if count > limit or count * least_bytes > left:
            raise BadFile(
                f"{self.where}: claims {count:,} {what}, at most {min(limit, left // least_bytes):,} can be in the "
                f"{left:,} bytes that are left; the file is truncated or corrupt, fetch it again"
            )

    def name(self, what: str) -> str:
        length = self.scalar(_U64, f"the length of {what}")
        if length > MAX_NAME_BYTES:
            raise BadFile(f"{self.where}: {what} claims {length:,} bytes, more than {MAX_NAME_BYTES:,}; it is corrupt")
        self.need(length, what)
        raw = self.raw[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise BadFile(f"{self.where}: {what} is not UTF-8 ({raw[:20]!r}); the file is corrupt") from None

    def value(self, key: str) -> Any:
        """The value at the position, or None for what is only stepped over: arrays not asked for, long strings."""
        kind = self.scalar(_U32, f"the type of metadata {_short(key)}")
        if kind in _SCALARS:
            value = self.scalar(_SCALARS[kind], f"the value of metadata {_short(key)}")
            if kind != _BOOL:
                return value
            if value > 1:
                raise BadFile(f"{self.where}: metadata {_short(key)} is a bool of value {value}; the file is corrupt")
            return bool(value)
        if kind == _STRING:
            length = self.scalar(_U64, f"the length of metadata {_short(key)}")
            self.need(length, f"the text of metadata {_short(key)}")
            self.position += length
            if length > MAX_TEXT_BYTES:
                return None
            return self.raw[self.position - length : self.position].decode("utf-8", errors="replace")
        if kind == _ARRAY:
            return self.array(key)
        raise BadFile(f"{self.where}: metadata {_short(key)} has the unknown type {kind}; the file is corrupt")

    def array(self, key: str) -> list[Any] | None:
        """The items, or None where they are only stepped over."""
        kind = self.scalar(_U32, f"the item type of metadata {_short(key)}")
        count = self.scalar(_U64, f"the length of metadata {_short(key)}")
        if kind in _SCALARS:
            start, nbytes = self.position, count * _SCALARS[kind].size
            self.need(nbytes, f"metadata {_short(key)}, an array of {count:,} items,")
            self.position += nbytes
            if key in self.arrays:
                return [value for (value,) in _SCALARS[kind].iter_unpack(self.raw[start : start + nbytes])]
        elif kind == _STRING:
            self.check_count(count, 8, MAX_STRINGS - self.n_strings, f"strings in metadata {_short(key)}")
            self.n_strings += count
            if key in self.arrays:
                return [self.name(f"string {number} of metadata {_short(key)}") for number in range(count)]
            self.step_over_strings(count, key)
        elif kind == _ARRAY:
            # No writer nests arrays and llama.cpp refuses them; followed blindly, they multiply a small file's work.
            raise BadFile(f"{self.where}: metadata {_short(key)} is an array of arrays, which no model needs")
        else:
            raise BadFile(f"{self.where}: metadata {_short(key)} has items of the unknown type {kind}; it is corrupt")
        return None

    def step_over_strings(self, count: int, key: str) -> None:
        length_at, raw, position, last = _U64.unpack_from, self.raw, self.position, self.size - 8
        for _ in range(count):
            if position > last:
                break
            position += 8 + length_at(raw, position)[0]
        else:
            if position <= self.size:
                self.position = position
                return
        raise BadFile(
            f"{self.where}: the {count:,} strings of metadata {_short(key)} run past the end of the file at byte "
            f"{self.size:,}; it is truncated or corrupt, fetch it again"
        )

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise BadFile(f"{self.where}: general.alignment is {_short(alignment)}, not a power of two; it is corrupt")
        return alignment

    def infos(self, n_tensors: int, alignment: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """{name: (shape, type number, offset)}."""
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for number in range(n_tensors):
            name = self.name(f"the name of tensor {number}")
            if name in infos:
                raise BadFile(f"{self.where}: tensor {_short(name)} stands there twice; the file is corrupt")
            rank = self.scalar(_U32, f"the rank of tensor {_short(name)}")
            if rank > MAX_RANK:
                raise BadFile(f"{self.where}: tensor {_short(name)} claims {rank:,} dimensions, more than {MAX_RANK}")
            dims = tuple(self.scalar(_U64, f"a dimension of tensor {_short(name)}") for _ in range(rank))
            kind = self.scalar(_U32, f"the type of tensor {_short(name)}")
            offset = self.scalar(_U64, f"the offset of tensor {_short(name)}")
            if offset % alignment:
                raise BadFile(
                    f"{self.where}: tensor {_short(name)} has offset {offset:,}, not aligned to {alignment:,}"
                )
            infos[name] = dims[::-1], kind, offset
        return infos

    def place(self, infos: Mapping[str, tuple[tuple[int, ...], int, int]], base: int) -> dict[str, TensorSpan]:
        ordered = sorted(infos.items(), key=lambda item: item[1][2])
        starts = [base + offset for _, (_, _, offset) in ordered[1:]]
        placed = {}
        for (name, (shape, kind, offset)), next_start in zip(ordered, [*starts, max(base, self.size)], strict=True):
            start = base + offset
            # A type from the future has a length only its author knows; it reaches to the next tensor at most.
            dtype, nbytes = (
                self.extent(name, shape, kind) if kind in TYPES else (f"type {kind}", max(0, next_start - start))
            )
            if start > self.size or nbytes > self.size - start:
                raise BadFile(
                    f"{self.where}: tensor {_short(name)} ({dtype}{list(shape)}) lies outside the file: "
                    f"{nbytes:,} bytes at byte {start:,} of {self.size:,}; it is truncated or corrupt, fetch it again"
                )
            if start + nbytes > next_start:
                other = next(item[0] for item in ordered if base + item[1][2] == next_start and item[0] != name)
                raise BadFile(f"{self.where}: tensor {_short(name)} overlaps {_short(other)}; the file is corrupt")
            placed[name] = TensorSpan(TensorInfo(dtype, shape, nbytes), start, start + nbytes)
        return {name: placed[name] for name in infos}

    def extent(self, name: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
        """Name and bytes of a tensor of a known type."""
        dtype, block, block_bytes = TYPES[kind]
        n_values = math.prod(shape)
        if not 0 < n_values < 2**63:
            raise BadFile(f"{self.where}: tensor {_short(name)} has the impossible shape {list(shape)}; it is corrupt")
        if block > 1 and (not shape or shape[-1] % block):
            raise BadFile(
                f"{self.where}: tensor {_short(name)} has rows of {shape[-1] if shape else 1:,} values, no multiple of "
                f"{dtype}'s blocks of {block}; the file is corrupt"
            )
        return dtype, n_values // block * block_bytes


def _short(value: object) -> str:
    """`value` as one line of an error message: a hostile name may be long, or hold a line break."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
