"""The values of a model that break it when they change, and where they are stored; neither torch nor the model needed.

    with open_checkpoint("mpnet-base") as checkpoint:
        for entry in list_sensitive(checkpoint, bound_stacks(checkpoint), {"model": (308, 381)}):
            values = read_entry(checkpoint, entry)                      # [row, column], the bytes of these alone
            entry.dangerous()                                           # the same shape: which are outlier entries
            entry.index(0, 5)                                           # where [0, 5] stands in tensor `entry.stored`

Sensitive are, because they are few, contiguous and act on a dimension of the residual stream everywhere at once:
scales and biases of every norm (in blocks, of embeddings, final, of heads) and factors of LayerScale; biases of the
linears that write to the stream; those linears' rows that write to the outlier dimensions; the first rows of position
tables. With `deep` also what is spread over a whole tensor: columns of embedding tables, and of linears that are stored
[in, out] (GPT-2), at the outlier dimensions.

`LiveCheckpoint(model)` serves a model in memory: `entry.stored` is then the name of its parameter.

How far rounding to a number format can move a value, which is the tolerance of `verify`: half a step.

    moved, kind = differ(Side(before, "F32"), Side(after, "BF16"))
    hash_tensor(checkpoint, "stored.name", "name")    # SHA-256 that tells a converted copy from an edited one

A finer format counts as exact beside a coarser one that it contains; between equal formats every bit must agree. So a copy in
another format never looks edited, and an edit hides only where it is smaller than what the conversion itself may do.

A whole tensor is hashed as it is and rounded to each narrower format. A copy in bfloat16 has as its exact hash what the
original has as its bfloat16 hash; an edited one has neither.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from outlierlens.architectures import BoundStack, Param, first_row, kind_of
from outlierlens.checkpoints import Checkpoint
from outlierlens.errors import BadFile
from outlierlens.results.rows import Quiet, Row

Role = Literal["norm scale", "norm bias", "write bias", "write row", "position row", "write column", "embedding column"]
DEEP_ROLES = ("write column", "embedding column")
N_POSITIONS = 4  # the first token draws most attention (sinks), its neighbours some
BLOCK_VALUES = 2**22  # that are held at once
_NORM_LIKE = re.compile(r"norm|(^|[._])ln([._]|\d|$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TensorRole(Row):
    """A tensor, and what it does to a stream."""

    name: str
    """tensor: without a task head's prefix, `weight` and `bias` for `gamma` and `beta`, "[7]" for expert 7"""
    role: str
    stack: Annotated[str, Quiet] = ""
    """stream"""
    layer: Annotated[int | None, Quiet] = None
    """layer: block, from 0; none outside the blocks"""

    @property
    def place(self) -> dict[str, Any]:
        """Its fields, for a row about the same tensor."""
        return {"name": self.name, "role": self.role, "stack": self.stack, "layer": self.layer}


@dataclass(frozen=True, kw_only=True)
class SensitiveValues(TensorRole):
    """One tensor's sensitive values, [row, column] of the view that takes all axes but the last as rows."""

    role: Role
    stored: Annotated[str, Quiet]
    """name in this checkpoint"""
    shape: Annotated[tuple[int, ...], Quiet]
    """shape of the stored tensor"""
    dims: Annotated[tuple[int, ...], Quiet] = ()
    """outlier dimensions of the stream that are among these values; of role "write row" one for each row"""
    row_numbers: Annotated[tuple[int, ...] | None, Quiet] = (0,)
    """rows of the view that are sensitive; None is all"""
    column_numbers: Annotated[tuple[int, ...] | None, Quiet] = None
    """columns of the view that are; None is all"""
    on_stream: Annotated[bool, Quiet] = True
    """whether the values act on the stream's dimensions; False for norms of heads, queries and keys"""

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows and columns of the values."""
        n_rows = math.prod(self.shape[:-1]) if self.row_numbers is None else len(self.row_numbers)
        return n_rows, self.shape[-1] if self.column_numbers is None else len(self.column_numbers)

    def dangerous(self) -> np.ndarray:
        """bool [row, column]: whether a value is an outlier entry, one that acts on an outlier dimension."""
        flags = np.zeros(self.size, dtype=bool)
        flags[:, slice(None) if self.role in ("write row", *DEEP_ROLES) else list(self.dims)] = True
        return flags

    def dim(self, row: int, column: int) -> int | None:
        """The dimension of the stream that value [row, column] acts on; None where it acts on something else."""
        if not self.on_stream:
            return None
        if self.role == "write row":
            return self.dims[row]
        return int(column) if self.column_numbers is None else self.column_numbers[column]

    def index(self, row: int, column: int) -> tuple[int, ...]:
        """Where value [row, column] stands in the stored tensor."""
        at_row = row if self.row_numbers is None else self.row_numbers[row]
        at_column = column if self.column_numbers is None else self.column_numbers[column]
        return tuple(int(i) for i in np.unravel_index(at_row * self.shape[-1] + at_column, self.shape))


def list_sensitive(
    checkpoint: Checkpoint, bound: Sequence[BoundStack], dims: Mapping[str, Sequence[int]], *, deep: bool = False
) -> list[SensitiveValues]:
    """Every sensitive value of a checkpoint, each stored tensor's part once, in the order of the model.

    `dims` are the outlier dimensions by stream, ascending.

    Raises:
        BadFile: a tensor has not the rank that its role needs, or is narrower than an outlier dimension.
    """
    lister = _Lister(checkpoint, [stack.prefix for stack in bound])
    for stack in bound:
        outliers = tuple(dims.get(stack.name, ()))
        lister.outer(stack, outliers, deep)
        for layer in stack.weight_layers:
            lister.block(stack, layer, outliers, deep)
    lister.other_norms(bound)
    return list(lister.entries.values())


def read_entry(checkpoint: Checkpoint, entry: SensitiveValues) -> np.ndarray:
    """Values of one entry [row, column], as float32 (float64 where stored so).

    Raises:
        BadFile: the tensor cannot be read.
    """
    columns = slice(None) if entry.column_numbers is None else list(entry.column_numbers)
    if entry.row_numbers is not None:
        return checkpoint.take_rows(entry.stored, entry.row_numbers)[:, columns]
    step = max(1, BLOCK_VALUES // max(entry.shape[-1], 1))
    return np.concatenate([np.array(block[:, columns]) for block in checkpoint.read_rows(entry.stored, step)])


def read_entries(
    checkpoint: Checkpoint, entries: Sequence[SensitiveValues]
) -> Iterator[tuple[SensitiveValues, np.ndarray]]:
    """(entry, its values) of all entries in order; vectors of a hub's model are fetched together, in few requests."""
    whole = {entry.stored for entry in entries if len(entry.shape) == 1} if checkpoint.kind == "hub" else set()
    fetched = dict(checkpoint.read(whole)) if whole else {}
    for entry in entries:
        vector = fetched.get(entry.stored)
        yield entry, read_entry(checkpoint, entry) if vector is None else vector.reshape(1, -1)


def canonical(stored: str, prefixes: Sequence[str]) -> str:
    """A stored name without the prefix of a task head, and with `weight` and `bias` for `gamma` and `beta`."""
    prefix = max((prefix for prefix in prefixes if stored.startswith(prefix)), key=len, default="")
    stem, dot, leaf = stored[len(prefix) :].rpartition(".")
    return stem + dot + {"gamma": "weight", "beta": "bias"}.get(leaf, leaf)


class _Lister:
    """Collects entries; each part of a stored tensor is taken once."""

    def __init__(self, checkpoint: Checkpoint, prefixes: list[str]):
        self.checkpoint, self.prefixes = checkpoint, prefixes
        self.entries: dict[tuple[str, Role], SensitiveValues] = {}

    def outer(self, stack: BoundStack, dims: tuple[int, ...], deep: bool) -> None:
        """What lies outside the blocks."""
        for param in stack.embeddings:
            kind, name = kind_of(param.name), canonical(param.name, self.prefixes)
            if param.axis == -1 and kind in ("position", "class"):
                start = first_row(self.checkpoint.config) if kind == "position" else 0
                n_rows = math.prod(self.checkpoint.tensors[param.name].shape[:-1])
                rows = tuple(range(min(start, n_rows), min(start + N_POSITIONS, n_rows)))
                self.add(param, name, stack, None, "position row", dims=dims, row_numbers=rows)
            if deep and dims and param.axis == -1 and kind != "class":
                which = {"dims": dims, "row_numbers": None, "column_numbers": dims}
                self.add(param, f"{name} columns", stack, None, "embedding column", **which)
        for param in (*stack.embedding_norm, *stack.final_norm):
            self.add(param, canonical(param.name, self.prefixes), stack, None, _norm_role(param), dims=dims)

    def block(self, stack: BoundStack, layer: int, dims: tuple[int, ...], deep: bool) -> None:
        """What lies in one block."""
        path = stack.blocks[layer][len(stack.prefix) :]
        for module, layers in stack.norms.items():
            for param in layers[layer]:
                role = _norm_role(param)
                leaf = "bias" if role == "norm bias" else "weight"
                self.add(param, f"{path}.{module}.{leaf}", stack, layer, role, dims=dims)
        for declared, layers in stack.linears.items():
            several = len(layers[layer]) > 1
            for expert, param in enumerate(layers[layer]):
                name = f"{path}.{declared}" + (f"[{expert}]" if several else "")
                if param.times:
                    scale = param.times.removeprefix(f"{stack.blocks[layer]}.")
                    self.add(Param(param.times), f"{path}.{scale}", stack, layer, "norm scale", dims=dims)
                if declared.endswith("bias"):
                    self.biases(param, name, stack, layer, dims)
                elif dims:
                    self.writes(param, name, stack, layer, dims, deep)

    def biases(self, param: Param, name: str, stack: BoundStack, layer: int, dims: tuple[int, ...]) -> None:
        """A linear's bias [dim], or those of stacked experts [expert, dim], each expert an entry."""
        shape = self.checkpoint.tensors[param.name].shape
        for row in range(math.prod(shape[:-1])):
            part = f"{name}[{row}]" if len(shape) > 1 else name
            self.add(param, part, stack, layer, "write bias", dims=dims, row_numbers=(row,))

    def writes(self, param: Param, name: str, stack: BoundStack, layer: int, dims: tuple[int, ...], deep: bool) -> None:
        """A linear's rows for `dims`; of stacked experts, each expert's an entry; columns where stored [in, out]."""
        shape = self.checkpoint.tensors[param.name].shape
        if len(shape) < 2:
            raise BadFile(f"{self.checkpoint.name}: {param.name} has shape {list(shape)}, not that of a linear")
        axis = param.axis % len(shape)
        if axis == len(shape) - 1:
            if deep:
                self.add(param, name, stack, layer, "write column", dims=dims, row_numbers=None, column_numbers=dims)
            return
        if max(dims) >= shape[axis]:
            raise BadFile(f"{self.checkpoint.name}: {param.name} has {shape[axis]} rows, found dimension {max(dims)}")
        # Axes before the stream's are experts, each an entry; those between it and the last are heads: rows of one dim.
        inner = math.prod(shape[axis + 1 : -1])
        per_row = tuple(dim for dim in dims for _ in range(inner))
        for expert in range(math.prod(shape[:axis])):
            part = f"{name}[{expert}]" if axis else name
            rows = tuple((expert * shape[axis] + dim) * inner + k for dim in dims for k in range(inner))
            self.add(param, part, stack, layer, "write row", dims=per_row, row_numbers=rows)

    def other_norms(self, bound: Sequence[BoundStack]) -> None:
        """Vectors that are named like norms and that no row declares: norms of heads, of queries and keys.

        Their own dimensions are not the stream's, so none of their values is called dangerous.
        """
        homes = [(stack, layer) for stack in bound for layer in stack.weight_layers]
        known = {entry.stored for entry in self.entries.values()}
        for stored, info in self.checkpoint.tensors.items():
            module, _, leaf = stored.rpartition(".")
            named = leaf in ("weight", "bias", "gamma", "beta") and _NORM_LIKE.search(module.rpartition(".")[2])
            if named and len(info.shape) == 1 and stored not in known:
                inside = (home for home in homes if stored.startswith(f"{home[0].blocks[home[1]]}."))
                stack, layer = next(inside, (bound[0], None))
                param = Param(stored)
                self.add(param, canonical(stored, self.prefixes), stack, layer, _norm_role(param), on_stream=False)

    def add(self, param: Param, name: str, stack: BoundStack, layer: int | None, role: Role, **which: Any) -> None:
        """Take one entry, unless it is there (tables that two streams share) or empty."""
        shape = self.checkpoint.tensors[param.name].shape
        if not shape or (role.startswith("norm") and len(shape) != 1):
            raise BadFile(f"{self.checkpoint.name}: {param.name} has shape {list(shape)}, not that of a {role}")
        dims = which.get("dims") or ()
        if role != "write row" and dims and max(dims) >= shape[-1]:
            raise BadFile(
                f"{self.checkpoint.name}: {param.name} has {shape[-1]} columns, but dimension {max(dims)} was found; "
                "the stream's tensors disagree on its width"
            )
        entry = SensitiveValues(
            name=name, stored=param.name, stack=stack.name, role=role, layer=layer, shape=shape, **which
        )
        if 0 not in entry.size:
            self.entries.setdefault((name, role), entry)


def _norm_role(param: Param) -> Role:
    return "norm bias" if param.name.endswith(("bias", "beta")) else "norm scale"


# --- rounding --------------------------------------------------------------------------------------------------------


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
