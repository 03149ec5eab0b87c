"""The values of a model that break it when they move, and where they are stored; neither torch nor the model needed.

    with open_checkpoint("mpnet-base") as checkpoint:
        bound = bound_stacks(checkpoint)
        dims = dims_of(scan_checkpoint(checkpoint, ScanOptions()))      # {"model": Found((...), "the scan's outliers")}
        for entry in list_sensitive(checkpoint, bound, dims):
            values = read_entry(checkpoint, entry)                      # [row, column], the bytes of these alone
            entry.dangerous()                                           # the same shape: which are outlier entries
            entry.index(0, 5)                                           # where [0, 5] stands in tensor `entry.stored`

Sensitive are, because they are few, contiguous and act on a dimension of the residual stream everywhere at once:
scales and biases of every norm (in blocks, of embeddings, final, of heads) and factors of LayerScale; biases of the
linears that write to the stream; those linears' rows that write to the found dimensions; the first rows of position
tables. The found dimensions are the scan's outliers, else its strongest. With `deep` also what is spread over a whole
tensor: columns of embedding tables, and of linears that are stored [in, out] (GPT-2), at the found dimensions.

`LiveCheckpoint(model)` serves a model in memory: `entry.stored` is then the name of its parameter.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, Param, first_row, kind_of
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.scan.result import Scan
from outlierlens.errors import BadFile
from outlierlens.experiments.integrity.result import Role

N_STRONGEST = 3  # dimensions taken per stream where the scan's rule finds none
N_POSITIONS = 4  # the first token draws most attention (sinks), its neighbours some
_NORM_LIKE = re.compile(r"norm|(^|[._])ln([._]|\d|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """Dimensions of one stream whose entries are the dangerous ones, ascending, and in words how they were chosen."""

    dims: tuple[int, ...]
    how: str


@dataclass(frozen=True)
class Sensitive:
    """One tensor's sensitive values, [row, column] of the view that takes all axes but the last as rows.

    Attributes:
        name: canonical: without a task head's prefix, `weight` and `bias` for `gamma` and `beta`, "[7]" for expert 7.
        stored: the tensor's name in this checkpoint.
        stack: the stream it acts on: "model", "encoder", …
        role: what it does there.
        layer: block that it belongs to, from 0; None outside the blocks.
        shape: of the stored tensor.
        dims: found dimensions of the stream that are among these values; of "write row" one for each row.
        rows: rows of the view that are sensitive; None is all.
        columns: columns of the view that are; None is all.
        on_stream: whether the values act on the stream's dimensions; False for norms of heads, queries and keys.
    """

    name: str
    stored: str
    stack: str
    role: Role
    layer: int | None
    shape: tuple[int, ...]
    dims: tuple[int, ...] = ()
    rows: tuple[int, ...] | None = (0,)
    columns: tuple[int, ...] | None = None
    on_stream: bool = True

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows and columns of the values."""
        width = self.shape[-1]
        stored_rows = math.prod(self.shape[:-1])
        n_rows = stored_rows if self.rows is None else len(self.rows)
        return n_rows, width if self.columns is None else len(self.columns)

    def dangerous(self) -> np.ndarray:
        """bool [row, column]: whether a value is an outlier entry, one that acts on a found dimension."""
        flags = np.zeros(self.size, dtype=bool)
        if self.role in ("write row", "write column", "embedding column"):
            flags[:] = True
        else:
            flags[:, list(self.dims)] = True
        return flags

    def dim(self, row: int, column: int) -> int | None:
        """The dimension of the stream that value [row, column] acts on; None where it acts on something else."""
        if not self.on_stream:
            return None
        if self.role == "write row":
            return self.dims[row]
        return int(column) if self.columns is None else self.columns[column]

    def index(self, row: int, column: int) -> tuple[int, ...]:
        """Where value [row, column] stands in the stored tensor."""
        at_row = row if self.rows is None else self.rows[row]
        at_column = column if self.columns is None else self.columns[column]
        return tuple(int(i) for i in np.unravel_index(at_row * self.shape[-1] + at_column, self.shape))


def bound_stacks(checkpoint: Checkpoint, row: arch.RowChoice = None) -> list[BoundStack]:
    """The checkpoint's streams by the architecture table, or by `row`: a family of it, or a TOML file."""
    return arch.bind(arch.stacks_for(checkpoint, row), checkpoint.tensors, checkpoint.config)


def dims_of(scan: Scan, n_strongest: int = N_STRONGEST) -> dict[str, Found]:
    """{stack: found dimensions} of a scan (view "last"): its outliers, else the `n_strongest` strongest."""
    return {
        stack.stack: Found(stack.dims, f"outliers by the rule {scan.rule.name}")
        if stack.dims
        else Found(tuple(sorted(stack.strongest_dims(n_strongest))), "the strongest; the rule found no outlier")
        for stack in scan.stacks
    }


def list_sensitive(
    checkpoint: Checkpoint, bound: Sequence[BoundStack], dims: Mapping[str, Found], *, deep: bool = False
) -> list[Sensitive]:
    """Every sensitive value of a checkpoint, each stored tensor's part once, in the order of the model.

    Raises:
        BadFile: a tensor has not the rank that its role needs, or is narrower than a found dimension.
    """
    lister = _Lister(checkpoint, [stack.prefix for stack in bound])
    for stack in bound:
        found = dims[stack.name].dims if stack.name in dims else ()
        lister.outer(stack, found, deep)
        for layer in stack.weight_layers:
            lister.block(stack, layer, found, deep)
    lister.other_norms(bound)
    return lister.entries


def read_entry(checkpoint: Checkpoint, entry: Sensitive) -> np.ndarray:
    """Values of one entry [row, column], as float32 (float64 where stored so).

    Raises:
        BadFile: the tensor cannot be read.
    """
    if entry.rows is not None:
        values = checkpoint.take_rows(entry.stored, entry.rows)
        return values if entry.columns is None else values[:, list(entry.columns)]
    step = max(1, 2**22 // max(entry.shape[-1], 1))
    columns = slice(None) if entry.columns is None else list(entry.columns)
    return np.concatenate([np.array(block[:, columns]) for block in checkpoint.read_rows(entry.stored, step)])


def read_entries(checkpoint: Checkpoint, entries: Sequence[Sensitive]) -> Iterator[tuple[Sensitive, np.ndarray]]:
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
        self.entries: list[Sensitive] = []
        self._taken: set[str] = set()
        self._parts: set[tuple[str, str]] = set()

    def outer(self, stack: BoundStack, dims: tuple[int, ...], deep: bool) -> None:
        """What lies outside the blocks."""
        for param in stack.embeddings:
            kind = kind_of(param.name)
            name = canonical(param.name, self.prefixes)
            if param.axis == -1 and kind in ("position", "class"):
                start = first_row(self.checkpoint.config) if kind == "position" else 0
                stored_rows = self.rows_of(param.name)
                rows = tuple(range(min(start, stored_rows), min(start + N_POSITIONS, stored_rows)))
                self.add(param, name, stack, None, "position row", dims=dims, rows=rows)
            if deep and dims and param.axis == -1 and kind != "class":
                self.add(param, f"{name} columns", stack, None, "embedding column", dims=dims, rows=None, columns=dims)
        for param in (*stack.embedding_norm, *stack.final_norm):
            self.add(param, canonical(param.name, self.prefixes), stack, None, _norm_role(param.name), dims=dims)

    def block(self, stack: BoundStack, layer: int, dims: tuple[int, ...], deep: bool) -> None:
        """What lies in one block."""
        path = stack.blocks[layer][len(stack.prefix) :]
        for module, layers in stack.norms.items():
            for param in layers[layer]:
                role = _norm_role(param.name)
                self.add(param, f"{path}.{module}.{_leaf(role)}", stack, layer, role, dims=dims)
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
        rows = self.rows_of(param.name)
        for row in range(rows):
            part = f"{name}[{row}]" if len(self.checkpoint.tensors[param.name].shape) > 1 else name
            self.add(param, part, stack, layer, "write bias", dims=dims, rows=(row,))

    def writes(self, param: Param, name: str, stack: BoundStack, layer: int, dims: tuple[int, ...], deep: bool) -> None:
        """A linear's rows for `dims`; of stacked experts, each expert's an entry; columns where stored [in, out]."""
        shape = self.checkpoint.tensors[param.name].shape
        if len(shape) < 2:
            raise BadFile(f"{self.checkpoint.name}: {param.name} has shape {list(shape)}, not that of a linear")
        if param.axis % len(shape) == len(shape) - 1:
            if deep:
                self.add(param, name, stack, layer, "write column", dims=dims, rows=None, columns=dims)
            return
        axis = param.axis % len(shape)
        if max(dims) >= shape[axis]:
            raise BadFile(f"{self.checkpoint.name}: {param.name} has {shape[axis]} rows, found dimension {max(dims)}")
        # Axes before the stream's are experts, each an entry; those between it and the last are heads: rows of one dim.
        inner = math.prod(shape[axis + 1 : -1])
        per_row = tuple(dim for dim in dims for _ in range(inner))
        offsets = tuple(dim * inner + k for dim in dims for k in range(inner))
        for expert in range(math.prod(shape[:axis])):
            part = f"{name}[{expert}]" if axis else name
            rows = tuple(expert * shape[axis] * inner + offset for offset in offsets)
            self.add(param, part, stack, layer, "write row", dims=per_row, rows=rows)

    def other_norms(self, bound: Sequence[BoundStack]) -> None:
        """Vectors that are named like norms and that no row declares: norms of heads, of queries and keys.

        Their own dimensions are not the stream's, so none of their values is called dangerous.
        """
        for stored, leaf in ((name, name.rpartition(".")[2]) for name in self.checkpoint.tensors):
            module = stored.rpartition(".")[0]
            if stored in self._taken or leaf not in ("weight", "bias", "gamma", "beta"):
                continue
            if not _NORM_LIKE.search(module.rpartition(".")[2]) or len(self.checkpoint.tensors[stored].shape) != 1:
                continue
            stack, layer = _home(stored, bound)
            self.add(Param(stored), canonical(stored, self.prefixes), stack, layer, _norm_role(stored), on_stream=False)

    def rows_of(self, stored: str) -> int:
        """Rows of the view of a tensor."""
        return math.prod(self.checkpoint.tensors[stored].shape[:-1])

    def add(
        self,
        param: Param,
        name: str,
        stack: BoundStack,
        layer: int | None,
        role: Role,
        **which: Any,
    ) -> None:
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
        entry = Sensitive(name, param.name, stack.name, role, layer, shape, **which)
        if 0 in entry.size or (name, role) in self._parts:
            return
        self._taken.add(param.name)
        self._parts.add((name, role))
        self.entries.append(entry)


def _norm_role(stored: str) -> Role:
    return "norm bias" if stored.endswith(("bias", "beta")) else "norm scale"


def _leaf(role: Role) -> str:
    return "bias" if role == "norm bias" else "weight"


def _home(stored: str, bound: Sequence[BoundStack]) -> tuple[BoundStack, int | None]:
    """The stream and layer whose block holds a tensor; outside all blocks the first stream."""
    for stack in bound:
        for layer in stack.weight_layers:
            if stored.startswith(f"{stack.blocks[layer]}."):
                return stack, layer
    return bound[0], None
