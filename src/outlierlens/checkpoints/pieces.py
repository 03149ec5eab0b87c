"""Tensors that lie in pieces in files: slices, transposes and joins cost no reading; values are read when asked for.

    half = PiecedTensor.of(Piece(Path("a.pt"), 640, "bfloat16", (4, 8), (8, 1)))
    whole = join([half, other], axis=1)              # [4, 16], nothing is read
    whole.transposed()                               # [16, 4]

Openers check that a piece lies in its file. What no piece covers would read as NaN.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from outlierlens.checkpoints.base import ITEM_BYTES, Checkpoint, TensorInfo, is_shape, runs_of, widen
from outlierlens.errors import BadFile

# The types of values in the words of torch, numpy and JAX -> those of safetensors.
WORDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_OTHER_BYTES = {"complex64": 8, "complex128": 16, "qint8": 1, "quint8": 1, "qint32": 4}


def item_bytes(dtype: str) -> int:
    """Bytes of a value of a type, in any of these words; 0 for one that is not known."""
    return ITEM_BYTES.get(WORDS.get(dtype, dtype)) or _OTHER_BYTES.get(dtype, 0)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Values between neighbours along each axis, where values lie row after row."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True)
class Piece:
    """Values in one file: the first at byte `start`, neighbours along each axis `strides` values apart."""

    path: Path
    start: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Bytes from its first value to behind its last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * item_bytes(self.dtype)

    def moved(self, n_values: int) -> "Piece":
        """The same from `n_values` values further on."""
        return replace(self, start=self.start + n_values * item_bytes(self.dtype))

    def rows(self, first: int, end: int, step: int = 1) -> "Piece":
        """Those from `first` to before `end` along the first axis, each `step`-th."""
        shape, strides = (len(range(first, end, step)), *self.shape[1:]), (step * self.strides[0], *self.strides[1:])
        return replace(self.moved(first * self.strides[0]), shape=shape, strides=strides)

    def values(self) -> np.ndarray:
        """As float32 (float64 where stored so), in memory of their own."""
        word, item = WORDS.get(self.dtype, self.dtype), item_bytes(self.dtype)
        with self.path.open("rb") as file:  # a map would stay in memory page by page
            file.seek(self.start)
            raw = file.read(self.span)
        if len(raw) != self.span:
            raise BadFile(f"{self.path}: the file became shorter while it was read; fetch it again")
        if item in (1, 2, 4, 8) and raw and self.strides != strides_of(self.shape):
            steps = [item * stride for stride in self.strides]
            stored = np.lib.stride_tricks.as_strided(np.frombuffer(raw, f"<u{item}"), self.shape, steps)
            raw = np.ascontiguousarray(stored).tobytes()
        return widen(np.frombuffer(raw, np.uint8), word, self.shape, str(self.path))


@dataclass(frozen=True)
class PiecedTensor:
    """A tensor of one type: pieces, each with the place [axis] of its first value."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[tuple[int, ...], Piece], ...]

    @classmethod
    def of(cls, piece: Piece) -> "PiecedTensor":
        """The whole of one piece."""
        return cls(piece.dtype, piece.shape, (((0,) * len(piece.shape), piece),))

    def transposed(self, *axes: int) -> "PiecedTensor":
        """With its axes in this order; reversed without."""
        order = axes or tuple(range(len(self.shape)))[::-1]

        def turned(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[axis] for axis in order)

        pieces = (
            (turned(place), replace(piece, shape=turned(piece.shape), strides=turned(piece.strides)))
            for place, piece in self.pieces
        )
        return PiecedTensor(self.dtype, turned(self.shape), tuple(pieces))

    def rows(self, first: int, end: int, step: int = 1) -> "PiecedTensor":
        """As `Piece.rows`."""
        pieces = []
        for (top, *others), piece in self.pieces:
            before = max(0, -((first - top) // step))  # how many of the rows lie in front of this piece
            low, high = first + before * step - top, min(end - top, piece.shape[0])
            if low < high:
                pieces.append(((before, *others), piece.rows(low, high, step)))
        return PiecedTensor(self.dtype, (len(range(first, end, step)), *self.shape[1:]), tuple(pieces))

    @property
    def matrix(self) -> "PiecedTensor | None":
        """The same with all axes but the last as rows, where that moves no value; None elsewhere."""
        if len(self.shape) == 2:
            return self
        ((_, piece), *others) = self.pieces
        if others or not self.shape or piece.strides != strides_of(piece.shape):
            return None
        shape = (math.prod(self.shape[:-1]), self.shape[-1])
        return PiecedTensor.of(replace(piece, shape=shape, strides=strides_of(shape)))

    def values(self, first: int = 0, end: int | None = None) -> np.ndarray:
        """The rows from `first` to before `end` along the first axis, [row, …]; all without."""
        if not self.shape:
            return self.pieces[0][1].values()
        end = self.shape[0] if end is None else end
        if len(self.pieces) == 1:
            return self.pieces[0][1].rows(first, end).values()
        wide = np.float64 if self.dtype == "float64" else np.float32
        found = np.full((end - first, *self.shape[1:]), np.nan, wide)
        for (top, *others), piece in self.pieces:
            low, high = max(first, top), min(end, top + piece.shape[0])
            if low < high:
                beside = [slice(at, at + size) for at, size in zip(others, piece.shape[1:], strict=True)]
                found[slice(low - first, high - first), *beside] = piece.rows(low - top, high - top).values()
        return found


def join(tensors: Sequence[PiecedTensor], axis: int) -> PiecedTensor:
    """Tensors one behind the other along an axis.

    Raises:
        ValueError: their types or other sizes differ.
    """
    first = tensors[0]
    if len({(one.dtype, *one.shape[:axis], -1, *one.shape[axis + 1 :]) for one in tensors}) > 1:
        raise ValueError(f"shapes {', '.join(str(list(one.shape)) for one in tensors[:4])} do not fit each other")
    pieces, start = [], 0
    for one in tensors:
        pieces += [((*at[:axis], at[axis] + start, *at[axis + 1 :]), piece) for at, piece in one.pieces]
        start += one.shape[axis]
    return PiecedTensor(first.dtype, (*first.shape[:axis], start, *first.shape[axis + 1 :]), tuple(pieces))


class PiecedCheckpoint(Checkpoint):
    """Named tensors in pieces, by `_held`.

    Attributes:
        wrapped: whether something stood around the model or its tensors, so that its file is not what transformers loads.
        files: the files that it was read from.
    """

    wrapped = False
    files: tuple[Path, ...] = ()
    _held: Mapping[str, PiecedTensor]

    def _hold(self, tensors: Mapping[str, PiecedTensor]) -> None:
        self._held = tensors
        self.files = self.files or tuple(sorted({piece.path for one in tensors.values() for _, piece in one.pieces}))
        self.tensors = {
            name: TensorInfo(one.dtype, one.shape, one_bytes(one.dtype, one.shape)) for name, one in tensors.items()
        }

    def _values(self, name: str, of: PiecedTensor, first: int = 0, end: int | None = None) -> np.ndarray:
        if of.dtype.startswith("complex"):
            raise BadFile(f"{self.name}: {name}: cannot read complex values")
        values = of.values(first, end)
        self.bytes_read += values.size * item_bytes(of.dtype)
        return values

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._values(name, self._held[name])

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        matrix = self._held[name].matrix
        if matrix is None:
            yield from super().read_rows(name, n_rows)
            return
        for start in range(0, matrix.shape[0], n_rows):
            yield self._values(name, matrix, start, min(start + n_rows, matrix.shape[0]))

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        matrix = self._held[name].matrix
        if matrix is None or not len(rows):
            return super().take_rows(name, rows)
        return np.concatenate([self._values(name, matrix, first, end) for first, end in runs_of(rows)])


def one_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Number of bytes in a tensor."""
    return math.prod(shape) * item_bytes(dtype)


def checked(piece: Piece, stored: int, where: str) -> Piece:
    """`piece`, which must lie in `stored` bytes; raises BadFile where it claims more."""
    # A stride of zero lets a file of one number claim terabytes, which a copy would then allocate.
    if not is_shape(piece.shape) or max(piece.span, one_bytes(piece.dtype, piece.shape)) > stored:
        raise BadFile(f"{where} claims {list(piece.shape)[:9]} but stores {stored:,} bytes; refused")
    return piece
