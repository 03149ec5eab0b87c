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
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
