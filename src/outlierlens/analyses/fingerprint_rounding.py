"""How far rounding to a number format can move a value, which is the tolerance of `verify`: half a step.

    moved, kind = differ(Side(before, "F32"), Side(after, "BF16"))
    hash_tensor(checkpoint, "stored.name", "name")    # SHA-256 that tells a converted copy from an edited one

A finer format counts as exact beside a coarser one that it contains; between equal formats every bit must agree. So a copy in
another format never looks edited, and an edit hides only where it is smaller than what the conversion itself may do.

A whole tensor is hashed as it is and rounded to each narrower format. A copy in bfloat16 has as its exact hash what the
original has as its bfloat16 hash; an edited one has neither.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from outlierlens.analyses.fingerprint_values import BLOCK_VALUES
from outlierlens.checkpoints import Checkpoint
from outlierlens.results.rows import Row

Kind = Literal["same", "converted", "moved", "not comparable"]
# bits of the stored mantissa, smallest normal exponent
FORMATS = {"bfloat16": (7, -126), "float16": (10, -14), "float32": (23, -126), "float64": (52, -1022)}
# The file formats' words.
WORDS = {
    "BF16": "bfloat16", "BFLOAT16": "bfloat16", "bfloat16": "bfloat16",
    "F16": "float16", "FLOAT16": "float16", "float16": "float16",
    "F32": "float32", "FLOAT": "float32", "float32": "float32",
    "F64": "float64", "DOUBLE": "float64", "float64": "float64",
}  # fmt: skip
NARROW = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class RoundingSide:
    """Values [row, column] of one copy: `dtype` is the file's word, `offset` what the file adds before it rounds."""

    values: np.ndarray
    dtype: str
    offset: float = 0.0


class Difference(NamedTuple):
    """bool [row, column] of moved values, and how the copies relate: "converted" where only rounding differs.

    Of what is "not comparable" nothing is moved.
    """

    moved: np.ndarray
    kind: Kind


def round_to(values: np.ndarray, name: str) -> np.ndarray:
    """Values rounded to the nearest number of a format, ties to even, as float64; overflow gives infinity."""
    wide = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return _to_bfloat16(wide) if name == "bfloat16" else wide.astype(name).astype(np.float64)


def holds(values: np.ndarray, name: str) -> bool:
    """Whether a format holds every value exactly."""
    return bool(np.array_equal(round_to(values, name), np.asarray(values, dtype=np.float64), equal_nan=True))


def half_step(values: np.ndarray, name: str) -> np.ndarray:
    """Half the distance to the next number of a format away from zero: the most that rounding moves a value there."""
    bits, smallest = FORMATS[name]
    size = np.abs(np.asarray(values, dtype=np.float64))
    exponent = np.frexp(np.where(np.isfinite(size), size, 0.0))[1] - 1
    exponent = np.where(size == 0, smallest, np.maximum(exponent, smallest))
    return np.asarray(np.ldexp(0.5, exponent - bits))


def differ(before: RoundingSide, after: RoundingSide) -> Difference:
    """Which values of `after` cannot be those of `before`, stored in their number formats."""
    old, new = WORDS.get(before.dtype), WORDS.get(after.dtype)
    if old and new:
        return _plain(before, after, old, new)
    if before.dtype == after.dtype and before.offset == after.offset:
        moved = ~_equal(before.values, after.values)
        return Difference(moved, "moved" if moved.any() else "same")
    return _quantized(before, after)


def _plain(before: RoundingSide, after: RoundingSide, old: str, new: str) -> Difference:
    """Plain formats; `after` may also hold values of a narrower format in a wider one (rounded, stored wide)."""
    best = _meet(before, after, old, new)
    for name in ("bfloat16", "float16"):
        if best.moved.any() and _contains(old, name) and _contains(new, name) and holds(after.values, name):
            best = min(best, _meet(before, after, old, name), key=lambda one: int(one.moved.sum()))
    return best


def _meet(before: RoundingSide, after: RoundingSide, old: str, new: str) -> Difference:
    """Values agree that lie no further apart than what either format rounds off."""
    same = _equal(before.values, after.values)
    with np.errstate(invalid="ignore"):
        change = np.abs(np.asarray(after.values, dtype=np.float64) - np.asarray(before.values, dtype=np.float64))
    reach = _reach(before, old, exact=_contains(old, new), offset=after.offset)
    reach = reach + _reach(after, new, exact=_contains(new, old), offset=before.offset)
    moved = ~(same | (change <= reach))
    return Difference(moved, "moved" if moved.any() else "same" if same.all() else "converted")


def _contains(wide: str, name: str) -> bool:
    (bits, smallest), (fewer, larger) = FORMATS[wide], FORMATS[name]
    return bits >= fewer and smallest <= larger


def _reach(side: RoundingSide, name: str, *, exact: bool, offset: float) -> np.ndarray:
    values = np.asarray(side.values, dtype=np.float64)
    reach = np.zeros(values.shape) if exact else half_step(values, name)
    if side.offset != offset and side.offset:
        # The file rounded value + offset, and taking the offset off again rounded once more.
        reach = reach + half_step(values + side.offset, WORDS.get(side.dtype, "float32")) + half_step(values, "float32")
    return reach


def _quantized(before: RoundingSide, after: RoundingSide) -> Difference:
    """Quantized against plain (or other) values: comparable where one was made from the other's dequantized values."""
    plain = _meet(before, after, *(WORDS.get(side.dtype, "float32") for side in (before, after)))
    # Such a copy agrees everywhere else: one that agrees nowhere was quantized on the way.
    few = 2 * int(plain.moved.sum()) <= plain.moved.size
    return plain if few else Difference(np.zeros(plain.moved.shape, dtype=bool), "not comparable")


def _equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Nearest bfloat16, ties to even, straight from float64: through float32 it would be rounded twice."""
    bits, smallest = FORMATS["bfloat16"]
    finite = np.isfinite(values)
    size = np.where(finite, values, 0.0)
    step = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 1, smallest) - bits)
    rounded = np.rint(size / step) * step
    largest = np.ldexp(2.0 - 2.0**-bits, 127)
    rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
    return np.where(finite, rounded, values)


# --- whole tensors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TensorHash(Row):
    """SHA-256 of a whole tensor's values as float32 (float64 where stored so), exact and rounded to narrower formats."""

    name: str
    """tensor"""
    shape: tuple[int, ...]
    dtype: str
    """stored as"""
    exact: str
    bfloat16: str
    float16: str
    float32: str


def hash_tensor(checkpoint: Checkpoint, stored: str, name: str) -> TensorHash:
    """Hashes of one tensor, read in blocks; -0 counts as 0 and every NaN as one.

    Raises:
        BadFile: the tensor cannot be read.
    """
    info, narrow = checkpoint.tensors[stored], True
    digests: dict[str, Any] = {word: hashlib.sha256(f"{info.shape}\0".encode()) for word in (*NARROW, "float64")}
    step = max(1, BLOCK_VALUES // max(info.shape[-1], 1)) if info.shape else 1
    blocks = checkpoint.read_rows(stored, step) if info.shape else (v for _, v in checkpoint.read([stored]))
    for block in blocks:
        with np.errstate(invalid="ignore"):  # a damaged value may be a signalling NaN
            values = np.atleast_1d(block) + block.dtype.type(0)
        values[np.isnan(values)] = np.nan
        with np.errstate(over="ignore"):
            rounded = {"float32": values.astype(np.float32, copy=False), "float16": values.astype(np.float16)}
        if values.dtype == np.float64:
            narrow = narrow and bool(np.array_equal(rounded["float32"], values, equal_nan=True))
            digests["float64"].update(values.astype("<f8").tobytes())
        for word, some in (rounded | {"bfloat16": bfloat16_of(values)}).items():
            digests[word].update(some.astype("<f4", copy=False).tobytes())
    exact = digests["float32" if narrow else "float64"].hexdigest()
    hashes = {word: digests[word].hexdigest() for word in NARROW}
    return TensorHash(name=name, shape=info.shape, dtype=info.dtype, exact=exact, **hashes)


def relation(before: TensorHash, after: TensorHash) -> Kind:
    """How two copies of a tensor relate; "converted": one is the other rounded to its own format.

    Two copies in formats of which neither contains the other, and quantized ones, cannot be told from edited ones.
    """
    if before.exact == after.exact:
        return "same"
    for word in NARROW:
        one, other = getattr(before, word), getattr(after, word)
        # The one that is its own rounding is the copy.
        if one == other and (one == before.exact or other == after.exact):
            return "converted"
    old, new = WORDS.get(before.dtype), WORDS.get(after.dtype)
    if before.dtype != after.dtype and (not old or not new or {old, new} == {"bfloat16", "float16"}):
        return "not comparable"
    return "moved"


def bfloat16_of(values: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16, as float32; of float32 by its bits, which is several times as fast as `round_to`."""
    if values.dtype != np.float32:
        return round_to(values, "bfloat16").astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Half of the cut bits is added, less one where the kept part is even: ties go to even. NaN must not overflow.
    rounded = np.where(np.isnan(values), bits, bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
