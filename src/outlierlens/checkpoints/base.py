"""What every weight source offers: names, shapes and types first, values only for the tensors asked for.

    with open_checkpoint("model.safetensors") as checkpoint:
        checkpoint.tensors["encoder.layer.0.output.LayerNorm.weight"].shape
        for name, values in checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]): ...

A subclass fills `tensors` and `config` when it is made (header only) and yields values in `read`.
"""

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from outlierlens.checkpoints.ranges import GAP_BYTES, merge
from outlierlens.errors import BadFile

# No published model comes near these; a file that claims more is broken or hostile.
MAX_TENSORS = 2_000_000
MAX_RANK = 8
MAX_CONFIG_BYTES = 16 * 2**20
ALIGNED = 64  # bytes: lines of a processor's cache
INDEX = ".index.json"  # how the names of lists of shards end
MAX_FILE_NAME = 255  # bytes; file systems have no longer ones


# Types of whole and complex numbers, in the words of safetensors, torch, ONNX, GGUF and numpy.
NO_FLOATS = re.compile(r"u?int\d*|[<>|]?[iucb]\d+|bool|complex\d*", re.IGNORECASE)


def is_too_long(name: str) -> bool:
    """Whether no file can have this name: asking for one is an error."""
    return len(name.encode("utf-8", "replace")) > MAX_FILE_NAME


def is_plain_name(name: Any) -> bool:
    """Whether this is the name of a file next to another: no folder, no drive, and such that a file can have it."""
    sound = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\:\0")
    return sound and not is_too_long(name)


def is_shape(numbers: Sequence[Any]) -> bool:
    """Whether numpy can hold an array of float64 of this shape; a size of 0 does not excuse the others."""
    return (
        len(numbers) <= MAX_RANK
        and all(type(n) is int and n >= 0 for n in numbers)
        and math.prod(max(n, 1) for n in numbers) < 2**60
    )


@dataclass(frozen=True)
class TensorInfo:
    """A stored tensor as its header declares it: `dtype` is the file format's own word ("BF16", "Q4_1")."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class LazyTensors(Mapping[str, TensorInfo]):
    """Tensors whose names are known; a look at one asks `info` for what its header declares."""

    def __init__(self, names: Mapping[str, str], info: Callable[[str], TensorInfo]):
        self._names, self._info = names, info

    def __getitem__(self, name: str) -> TensorInfo:
        if name not in self._names:
            raise KeyError(name)
        return self._info(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Checkpoint(ABC):
    """Named tensors of one model, wherever they are stored.

    Attributes:
        name: what the user called it.
        kind: a word for its format, such as "safetensors", or "hub".
        tensors: every stored tensor by name, in Hugging Face's naming and layout.
        config: the content of `config.json`, or its equivalent rebuilt from the file's metadata; may be empty.
        total_bytes: size of all weight files together.
        bytes_read: bytes asked of disk or network so far, headers included.
        notes: remarks that belong beside every result made from this source.
        outside: other files that its one file points to.
        remedy: what to do where tensors of the model are missing.
        adapter: the folder of an adapter that was put on it; "" for none.
        adapter_config: of a saved PeftModel, its adapter's settings.
        commit, requests: of a model of a hub alone: the revision's full hash, and requests sent so far.
    """

    name: str
    kind: str
    tensors: Mapping[str, TensorInfo]
    config: dict[str, Any]
    total_bytes: int
    bytes_read: int
    commit: str
    requests: int
    notes: tuple[str, ...] = ()
    outside: tuple[Path, ...] = ()
    adapter: str = ""
    adapter_config: Mapping[str, Any] = MappingProxyType({})
    remedy = "save the model alone (save_pretrained)"

    @abstractmethod
    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (name, values) for `names` in any order, as float32 (float64 where stored so), in `tensors` shape."""

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        """Yield the rows of one tensor in order, [row, column] with at most `n_rows` at a time, as `read` would.

        All axes but the last are rows. Sources that can, override this to hold no more than a few blocks.
        """
        ((_, values),) = self.read([name])
        rows = values.reshape(-1, values.shape[-1])
        for start in range(0, len(rows), n_rows):
            yield rows[start : start + n_rows]

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        """Some rows of one tensor [row, column], values as `read` gives them; all axes but the last are rows.

        Sources that can, override this to read the bytes of these rows alone.
        """
        ((_, values),) = self.read([name])
        return np.array(values.reshape(-1, values.shape[-1])[list(rows)])

    def holds_floats(self, name: str) -> bool:
        """Whether the values of a tensor are floats, stored as such or as integers with their scale."""
        return not NO_FLOATS.fullmatch(self.tensors[name].dtype)

    def packed_by(self, name: str) -> str:
        """The quantizer that packed a tensor whose values are not read; "" where `read` gives them."""
        return ""

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open, and need not say so
        """Release files and connections; reading afterwards is undefined."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def header_digest(self) -> str:
        """SHA-256 over all names, types and shapes: equal for equal layouts, whatever the values."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            info = self.tensors[name]
            digest.update(f"{name}\0{info.dtype}\0{info.shape}\n".encode())
        return digest.hexdigest()


def widen(raw: np.ndarray, dtype: str, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Floats of width 32 (or 64) from raw little-endian bytes of a safetensors-style `dtype`, in memory of their own.

    bf16 is float32 with the lower 16 bits cut off, so it is widened by a shift.
    """
    if dtype == "BF16":
        values = (raw.view("<u2").astype("<u4") << 16).view("<f4")
    elif dtype in _FLOATS_OF_A_BYTE:
        values = _FLOATS_OF_A_BYTE[dtype][raw.view("<u1")]
    elif dtype in _NUMPY:
        values = raw.view(_NUMPY[dtype]).astype(np.float64 if dtype == "F64" else np.float32)
    else:
        raise BadFile(f"{where}: cannot read values of type {dtype}; known types: {', '.join(ITEM_BYTES)}")
    return values.reshape(shape)


def _floats_of_a_byte() -> dict[str, np.ndarray]:
    """The value of each byte, by type (OCP 8-bit floating point 1.0; E8M0: OCP microscaling formats 1.0)."""
    byte = np.arange(256)
    mantissa, exponent = byte % 8, byte // 8 % 16
    size = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    e4m3 = np.where(byte % 128 == 127, np.nan, np.where(byte < 128, size, -size))
    e8m0 = np.where(byte == 255, np.nan, 2.0 ** np.minimum(byte - 127.0, 127))
    e5m2 = (byte.astype("<u2") << 8).view("<f2")  # half of float16's bytes
    return {"F8_E4M3": e4m3.astype("<f4"), "F8_E5M2": e5m2.astype("<f4"), "F8_E8M0": e8m0.astype("<f4")}


_FLOATS_OF_A_BYTE = _floats_of_a_byte()

_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "?",
}  # fmt: skip
ITEM_BYTES = (
    {"BF16": 2} | dict.fromkeys(_FLOATS_OF_A_BYTE, 1) | {name: np.dtype(code).itemsize for name, code in _NUMPY.items()}
)


def row_spans(info: TensorInfo, n_rows: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """(first byte, end, shape) of each block of `n_rows` rows of a tensor without packed blocks of values."""
    width = info.shape[-1]
    total = info.size // max(width, 1)
    row_bytes = info.nbytes // max(total, 1)
    for start in range(0, total, n_rows):
        end = min(start + n_rows, total)
        yield start * row_bytes, end * row_bytes, (end - start, width)


def runs_of(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, end) of each run of consecutive numbers in `rows`, in the order given."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1:
            yield rows[start], rows[end - 1] + 1
            start = end


@dataclass(frozen=True)
class TensorSpan:
    """A tensor's declaration and its bytes [start, end) within its file."""

    info: TensorInfo
    start: int
    end: int


def room_for(first: int, end: int) -> memoryview:
    """Memory for bytes [first, end) of a file, aligned as in a map of the file: the last bit of a product depends on that."""
    room = np.empty(end - first + ALIGNED, np.uint8)
    skipped = (first - room.ctypes.data) % ALIGNED
    return memoryview(room.data)[skipped : skipped + end - first]


class PlacedCheckpoint(Checkpoint):
    """Tensors whose bytes lie row after row in files; packed blocks of values do not cross rows."""

    @abstractmethod
    def _place(self, name: str) -> tuple[str, TensorSpan]:
        """What errors call a tensor, and where it lies."""

    @abstractmethod
    def _parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        """The bytes [first, end) of a tensor, of each of `spans`."""

    @abstractmethod
    def _file(self, name: str) -> tuple[str, Callable[[int, int], memoryview], TensorSpan]:
        """The file that a tensor lies in, what reads bytes [first, end) of that, and the place there."""

    def raw(self, names: Iterable[str]) -> Iterator[tuple[str, TensorInfo, memoryview]]:
        """(name, declaration, bytes as they are stored) of tensors; those that lie together in a file are read at once."""
        files: dict[str, tuple[Callable[[int, int], memoryview], dict[str, TensorSpan]]] = {}
        for name in names:
            where, read, place = self._file(name)
            files.setdefault(where, (read, {}))[1][name] = place
        for read, placed in files.values():
            spans = [(place.start, place.end, name) for name, place in placed.items()]
            yield from ((name, placed[name].info, memoryview(b"")) for start, end, name in spans if start == end)
            for run in merge(spans, longest=sum(end - start for start, end, _ in spans) + len(spans) * GAP_BYTES):
                body = read(run.start, run.end)
                for name in run.names:
                    place = placed[name]
                    yield name, place.info, body[place.start - run.start : place.end - run.start]

    def _values(self, name: str, raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        where, place = self._place(name)
        return widen(raw, place.info.dtype, shape, where)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            info = self._place(name)[1].info
            (raw,) = self._parts(name, [(0, info.nbytes)])
            yield name, self._values(name, raw, info.shape)

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        blocks = list(row_spans(self._place(name)[1].info, n_rows))
        parts = self._parts(name, [(first, end) for first, end, _ in blocks])
        for (_, _, shape), raw in zip(blocks, parts, strict=True):
            yield self._values(name, raw, shape)

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        info = self._place(name)[1].info
        row_bytes = info.nbytes // max(info.size // max(info.shape[-1], 1), 1)
        spans = [(first * row_bytes, end * row_bytes) for first, end in runs_of(rows)]
        raw = np.concatenate([np.empty(0, np.uint8), *self._parts(name, spans)])
        return self._values(name, raw, (len(rows), info.shape[-1]))


class LocalCheckpoint(PlacedCheckpoint):
    """Such tensors in files on this disk, by `_files`: {name: (file, place)}."""

    _files: Mapping[str, tuple[Path, TensorSpan]]

    def placed(self) -> Mapping[str, tuple[Path, TensorSpan]]:
        """The file and place of each tensor."""
        return self._files

    def _place(self, name: str) -> tuple[str, TensorSpan]:
        path, place = self._files[name]
        return f"{path}: {name}", place

    def _file(self, name: str) -> tuple[str, Callable[[int, int], memoryview], TensorSpan]:
        path, place = self._files[name]
        return str(path), partial(self._span, path), place

    def _span(self, path: Path, first: int, end: int) -> memoryview:
        with path.open("rb") as file:
            return self._taken(file, f"{path}", first, end)

    def _parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        path, place = self._files[name]
        with path.open("rb") as file:  # a map would stay in memory page by page
            for first, end in spans:
                yield np.frombuffer(
                    self._taken(file, f"{path}: {name}", place.start + first, place.start + end), np.uint8
                )

    def _taken(self, file: BinaryIO, what: str, first: int, end: int) -> memoryview:
        raw, at = room_for(first, end), 0
        file.seek(first)
        while at < len(raw):  # one read gives 2 GiB at most
            if not (n := file.readinto(raw[at:])):  # type: ignore[attr-defined]
                raise BadFile(f"{what}: the file became shorter while it was read; fetch it again")
            at += n
        self.bytes_read += len(raw)
        return raw


def load_config(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or {} where there is none; raises BadFile for anything else."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise BadFile(f"{path}: {path.stat().st_size:,} bytes is too large for a config file; is it the right file?")
    return parse_config(path.read_bytes(), str(path))


def parse_config(raw: bytes, where: str, *, strict: bool = False) -> dict[str, Any]:
    """The JSON object in `raw`; raises BadFile with `where` when it is anything else.

    `strict` refuses what Python reads beyond JSON, a whole number −0, and a name that stands twice in one object.
    """
    try:
        if strict:
            config = json.loads(
                raw.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_no_constant, parse_int=_count
            )
        else:
            config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{where}: not valid JSON ({error.__class__.__name__}); fetch the file again") from None
    if not isinstance(config, dict):
        raise BadFile(f"{where}: holds a {type(config).__name__}, not an object; fetch the file again")
    return config


def _count(digits: str) -> int:
    if digits == "-0":  # a number below 0 to other readers, which refuse it
        raise ValueError("-0 is not a count")
    return int(digits)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    "".join(found).encode("utf-8")  # raises ValueError for half a character
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
