"""How far rounding to a number format can move a value: the tolerance of `verify`, derived, never chosen.

    low, high = interval(values, "bfloat16")          # all reals that round to these values
    moved, allowed = differ(Side(before, "F32"), Side(after, "BF16"))

Two copies of one value agree when some real number rounds to both. A finer format counts as exact beside a coarser one
that it contains; between equal formats every bit must agree. So a copy in another format never looks edited, and an
edit hides only where it is smaller than what the conversion itself may do.
"""

from dataclasses import dataclass

import numpy as np

# bits of the stored mantissa, smallest normal exponent
FORMATS = {"bfloat16": (7, -126), "float16": (10, -14), "float32": (23, -126), "float64": (52, -1022)}
# The file formats' words.
WORDS = {
    "BF16": "bfloat16", "BFLOAT16": "bfloat16", "bfloat16": "bfloat16",
    "F16": "float16", "FLOAT16": "float16", "float16": "float16",
    "F32": "float32", "FLOAT": "float32", "float32": "float32",
    "F64": "float64", "DOUBLE": "float64", "float64": "float64",
}  # fmt: skip
_CONTAINS = {
    "float64": ("float32", "float16", "bfloat16"),
    "float32": ("float16", "bfloat16"),
    "float16": (),
    "bfloat16": (),
}
Q8_BLOCK = 32  # values that share a scale in GGUF's Q8_0


@dataclass(frozen=True)
class Side:
    """Values [row, column] of one copy: `dtype` is the file's word, `offset` what the file adds before it rounds.

    `whole_rows`: the rows are complete, so that blocks of a quantization can be told.
    """

    values: np.ndarray
    dtype: str
    offset: float = 0.0
    whole_rows: bool = True


@dataclass(frozen=True)
class Difference:
    """bool [row, column] of moved values, the change that is allowed at each, and how the copies relate.

    `kind` is "same" (every bit), "converted" (only rounding differs), "moved" or "not comparable" (then nothing is moved).
    """

    moved: np.ndarray
    allowed: np.ndarray
    kind: str


def round_to(values: np.ndarray, name: str) -> np.ndarray:
    """Values rounded to the nearest number of a format, ties to even, as float64; overflow gives infinity."""
    wide = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "float64":
            return wide
        if name != "bfloat16":
            return wide.astype(name).astype(np.float64)
        return _to_bfloat16(wide)


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


def interval(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(lowest, highest) real number that rounds to each value, which must be of that format; infinities stand alone.

    Below a power of two numbers lie twice as close, so its interval is not symmetric.
    """
    values = np.asarray(values, dtype=np.float64)
    _, smallest = FORMATS[name]
    outward = half_step(values, name)
    mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    at_power = (np.abs(mantissa) == 0.5) & (exponent - 1 > smallest)
    inward = np.where(at_power, outward / 2, outward)
    positive = values > 0
    with np.errstate(invalid="ignore"):
        low = values - np.where(positive, inward, outward)
        high = values + np.where(positive | (values == 0), outward, inward)
    still = ~np.isfinite(values)
    return np.where(still, values, low), np.where(still, values, high)


def differ(before: Side, after: Side) -> Difference:
    """Which values of `after` cannot be those of `before`, stored in their number formats."""
    if before.dtype == after.dtype and before.offset == after.offset:
        same = _equal(before.values, after.values)
        plain = _compare(before, after, WORDS.get(before.dtype, "float32"), WORDS.get(after.dtype, "float32"))
        if same.all() or before.dtype not in WORDS:
            return Difference(~same, np.zeros(same.shape), "same" if same.all() else "moved")
        return _narrowed(before, after, plain)
    old, new = WORDS.get(before.dtype), WORDS.get(after.dtype)
    if old and new:
        return _narrowed(before, after, _compare(before, after, old, new))
    return _quantized(before, after)


def _narrowed(before: Side, after: Side, plain: Difference) -> Difference:
    """`plain`, or what is left where `after` holds values of a narrower format in a wider one (rounded, stored wide)."""
    best = plain
    old, new = WORDS[before.dtype], WORDS[after.dtype]
    for name in ("bfloat16", "float16"):
        if best.moved.any() and name in _CONTAINS[old] and name in _CONTAINS[new] and holds(after.values, name):
            found = _compare(before, after, old, name)
            best = found if found.moved.sum() < best.moved.sum() else best
    return best


def _compare(before: Side, after: Side, old: str, new: str) -> Difference:
    """Plain formats: the intervals of the two values must meet."""
    same = _equal(before.values, after.values)
    low, high = _reach(before, old, exact=old == new or new in _CONTAINS[old], offset=after.offset)
    low2, high2 = _reach(after, new, exact=old == new or old in _CONTAINS[new], offset=before.offset)
    meet = (low <= high2) & (low2 <= high)
    moved = ~(same | meet)
    # What is allowed seen from the value before: a change up or down by less than this still meets.
    with np.errstate(invalid="ignore"):
        allowed = (high - low) / 2 + (high2 - low2) / 2
    kind = "moved" if moved.any() else "same" if same.all() else "converted"
    return Difference(moved, np.where(np.isfinite(allowed), allowed, 0.0), kind)


def _reach(side: Side, name: str, *, exact: bool, offset: float) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(side.values, dtype=np.float64)
    low, high = (values, values) if exact else interval(values, name)
    if side.offset != offset and side.offset:
        # The file rounded value + offset, and taking the offset off again rounded once more.
        slack = half_step(values + side.offset, WORDS.get(side.dtype, "float32")) + half_step(values, "float32")
        low, high = low - slack, high + slack
    return low, high


def _quantized(before: Side, after: Side) -> Difference:
    """Quantized against plain (or other) values: a copy of the dequantized ones, or as near as the blocks allow."""
    as_plain = [
        Side(side.values, side.dtype if side.dtype in WORDS else "F32", side.offset, side.whole_rows)
        for side in (before, after)
    ]
    plain = _compare(as_plain[0], as_plain[1], WORDS[as_plain[0].dtype], WORDS[as_plain[1].dtype])
    # A copy made from dequantized values agrees everywhere else: one that agrees nowhere was quantized on the way.
    if 2 * int(plain.moved.sum()) <= plain.moved.size:
        return plain
    none = np.zeros(plain.moved.shape, dtype=bool)
    steps = [_q8_reach(side) if side.dtype == "Q8_0" else None for side in (before, after)]
    known = [side.dtype in WORDS or step is not None for side, step in zip((before, after), steps, strict=True)]
    if not all(known):
        return Difference(none, np.zeros(none.shape), "not comparable")
    allowed = np.zeros(none.shape)
    for side, step in zip(as_plain, steps, strict=True):
        allowed = allowed + (half_step(side.values, WORDS[side.dtype]) if step is None else step)
    with np.errstate(invalid="ignore"):
        change = np.abs(np.asarray(after.values, dtype=np.float64) - np.asarray(before.values, dtype=np.float64))
    moved = ~(change <= allowed)
    return Difference(moved, allowed, "moved" if moved.any() else "converted")


def _q8_reach(side: Side) -> np.ndarray | None:
    """The most that Q8_0 moves a value: half a step of its block, whose step is stored as float16; None if unknown."""
    values = np.asarray(side.values, dtype=np.float64)
    if not side.whole_rows or values.shape[-1] % Q8_BLOCK:
        return None
    blocks = np.abs(values).reshape(len(values), -1, Q8_BLOCK)
    step = blocks.max(axis=-1, keepdims=True) / 127  # the largest value of a block is stored as ±127
    error = half_step(step, "float16")  # of the step itself, times how often it is counted
    # A block whose step is less than float16 can hold is stored as zeros; how far its values were counted is lost.
    counted = np.divide(blocks, step, out=np.full_like(blocks, 127.0), where=step > 0)
    return np.asarray(((step + error) / 2 + error * counted).reshape(values.shape))


def _equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Nearest bfloat16, ties to even, straight from float64: through float32 it would be rounded twice."""
    bits, smallest = FORMATS["bfloat16"]
    finite = np.isfinite(values)
    size = np.where(finite, values, 0.0)
    exponent = np.maximum(np.frexp(size)[1] - 1, smallest)
    step = np.ldexp(1.0, exponent - bits)
    rounded = np.rint(size / step) * step
    largest = np.ldexp(2.0 - 2.0**-bits, 127)
    rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
    return np.where(finite, rounded, values)
