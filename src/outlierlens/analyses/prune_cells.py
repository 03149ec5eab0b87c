"""When a position of the residual stream is removed: `Removal`, the rule, and `Cells`, the values that it is about.

cells = Cells.of(bound, shapes, Removal())     # of one stream; cells_of(checkpoint) of all streams of a file
cells.removed(off)                             # bool [layer, dim] of off [layer, dim], how many of its values are zero
per_dim_off(values == param.off, param)
kept_positions("kept.json", old_width=768, new_width=512)      # as given
copied_positions(before, after, old, new)                      # from norm vectors that were copied, or None
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Gt, Le

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.rules import layers_needed
from outlierlens.errors import BadFile, BadInput
from outlierlens.options import check
from outlierlens.results.safe_files import read_json

Scope = Literal["all", "outliers"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
MAX_BYTES = 64 * 2**20
REMEDY = "a JSON list of the old positions in the order of the new ones, such as [0, 1, 3]"


@dataclass(frozen=True)
class Removal:
    """When a position counts as removed, and when that breaks the constraint.

    A position is removed in a layer when the values of the block's last operation that make it are zero:
    where the block ends in a norm, its scale and its bias there; elsewhere at least `row_fraction` of the weights of the
    last linears that write to it. (A norm that multiplies by 1 + weight is zero at weight −1.)
    The constraint (Kovaleva et al. 2021, section on pruning): no position is removed in `min_layer_fraction` of the layers.
    """

    row_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of a row that must be gone, where blocks end in a linear."""
    scale_alone: bool = False
    """A norm's scale counts as removed even where its bias stays."""
    min_layer_fraction: Annotated[float, Gt(0), Le(1)] = 0.5
    """Removed in this share of the layers, a position counts as lost."""
    scope: Scope = "all"
    """Whether the constraint is about all positions or about outliers alone."""

    def __post_init__(self) -> None:
        check(self)
        if self.scope not in SCOPES:
            raise BadInput(f"scope is {self.scope!r}; use {' or '.join(SCOPES)}")

    def off_needed(self, total: int, *, is_norm: bool) -> int:
        """How many of the `total` values that make a position in a layer must be zero for it to be removed there."""
        # A hair below: 0.9 × 10 is not to become 10.
        return total if is_norm else max(1, math.ceil(self.row_fraction * total - 1e-9))

    def says(self, *, is_norm: bool, has_bias: bool) -> str:
        """The definition as it applies to a stream, for reading."""
        if is_norm:
            return f"scale{' and bias' * (has_bias and not self.scale_alone)} of the output norm zero"
        share = "all" if self.row_fraction == 1 else f"at least {self.row_fraction:.0%}"
        return f"{share} of the last linears' weights that write to it zero"


@dataclass(frozen=True)
class Cells:
    """The values that make each position in each layer of a stream: a cell is one position in one layer.

    Attributes:
        params: of each layer, the parameters that hold its cells [layer][part].
        total: int [layer], values of one cell of a layer. needed: of them, zero, for the position to be removed there.
        limit: layers in which a position must be removed to break the constraint.
        width: positions of the stream.
    """

    bound: BoundStack
    rule: Removal
    params: tuple[tuple[Param, ...], ...]
    total: np.ndarray
    needed: np.ndarray
    limit: int
    width: int

    @classmethod
    def of(cls, bound: BoundStack, shapes: Mapping[str, tuple[int, ...]], rule: Removal) -> "Cells":
        """The cells of a stream whose parameters have these shapes; blocks that are shared count once.

        Raises:
            BadFile: layers disagree on the width of the stream.
        """
        layers = bound.weight_layers
        with_bias = bound.ends_in_norm and not rule.scale_alone
        params = tuple((*bound.scale[layer], *(bound.bias[layer] if with_bias else ())) for layer in layers)
        widths = {shapes[param.name][param.axis] for layer in params for param in layer}
        if len(widths) != 1:
            raise BadFile(f"stream {bound.name!r}: layers disagree on its width: {', '.join(map(str, sorted(widths)))}")
        total = np.array([sum(param.values_per_dim(shapes[param.name]) for param in layer) for layer in params])
        needed = np.array([rule.off_needed(int(n), is_norm=bound.ends_in_norm) for n in total])
        limit = layers_needed(rule.min_layer_fraction, len(layers))
        return cls(bound, rule, params, total, needed, limit, widths.pop())

    @property
    def n_layers(self) -> int:
        """Layers with weights of their own."""
        return len(self.params)

    @property
    def beyond_masks(self) -> bool:
        """Whether no mask can remove a position: a norm that multiplies by 1 + weight is 1 where its weight is 0."""
        return any(param.off for layer in self.params for param in layer)

    @property
    def site(self) -> str:
        """The parameters, relative to the block."""
        declared = self.bound.stack
        names = [declared.last_norm] if self.bound.ends_in_norm else list(declared.last_linear)
        return " + ".join(name.removesuffix("()") for name in names)

    @property
    def definition(self) -> str:
        """When a position is removed here, for reading."""
        return self.rule.says(is_norm=self.bound.ends_in_norm, has_bias=all(self.bound.bias))

    def checked(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions, each once; raises BadInput where the stream has no such one."""
        for dim in dims:
            if not 0 <= dim < self.width:
                raise BadInput(f"dimension {dim} does not exist; stream {self.bound.name!r} has 0 to {self.width - 1}")
        return tuple(dict.fromkeys(dims))

    def off(self, gone: Mapping[str, np.ndarray | None]) -> np.ndarray:
        """int [layer, dim]: values of each cell that are off, of bool arrays by parameter; None where all values stay."""
        found = np.zeros((self.n_layers, self.width), dtype=np.int64)
        for layer, params in enumerate(self.params):
            for param in params:
                if (here := gone[param.name]) is not None:
                    found[layer] += per_dim_off(here, param)
        return found

    def removed(self, off: np.ndarray) -> np.ndarray:
        """bool [layer, dim]: whether so many values off [layer, dim] remove the position."""
        found: np.ndarray = off >= self.needed[:, None]
        return found

    def broken(self, removed: np.ndarray) -> np.ndarray:
        """Positions removed in too many layers, of removed [layer, dim], ascending."""
        return np.flatnonzero(removed.sum(axis=0) >= self.limit)


def cells_of(checkpoint: Checkpoint, rule: Removal | None = None) -> list[Cells]:
    """The cells of every stream of a model's file; raises UnknownArchitecture where no row describes it."""
    bound = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors, checkpoint.config)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    return [Cells.of(one, shapes, rule or Removal()) for one in bound]


def per_dim_off(off: np.ndarray, param: Param) -> np.ndarray:
    """How many values of each position are off, int [dim], of bool values in the parameter's shape."""
    return np.moveaxis(off, param.axis, 0).reshape(off.shape[param.axis], -1).sum(axis=1, dtype=np.int64)


def smallest(keys: np.ndarray, count: int) -> np.ndarray:
    """bool [weight]: the `count` of smallest key; of equal ones, the first."""
    chosen = np.zeros(len(keys), dtype=bool)
    if count > 0:
        edge = np.partition(keys, count - 1)[count - 1]
        chosen = keys < edge
        equal = np.flatnonzero(keys == edge)
        chosen[equal[: count - int(np.count_nonzero(chosen))]] = True
    return chosen


def kept_positions(path: Path, old_width: int, new_width: int) -> np.ndarray:
    """The old position of each new one, int [new], from a JSON list.

    Raises:
        BadInput: no such list, another length, positions that do not exist or are repeated.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; --positions names {REMEDY}")
    if path.stat().st_size > MAX_BYTES:
        raise BadInput(f"{path}: {path.stat().st_size:,} bytes is too large for a list of positions")
    kept = read_json(path, f"--positions names {REMEDY}", BadInput)
    if not isinstance(kept, list) or not all(type(one) is int for one in kept):
        raise BadInput(f"{path}: holds no list of whole numbers; --positions names {REMEDY}")
    if len(kept) != new_width:
        raise BadInput(f"{path}: lists {len(kept)} positions; the pruned stream has {new_width}")
    bad = [one for one in kept if not 0 <= one < old_width]
    if bad or len(set(kept)) != len(kept):
        what = f"position {bad[0]} does not exist (0 to {old_width - 1})" if bad else "a position is repeated"
        raise BadInput(f"{path}: {what}; --positions names {REMEDY}")
    return np.array(kept, dtype=np.int64)


def copied_positions(before: Checkpoint, after: Checkpoint, old: BoundStack, new: BoundStack) -> np.ndarray | None:
    """The old position of each new one, int [new], where all norm vectors were copied; None where that cannot be said.

    Each new position must have exactly the values of one old position in every norm of every block, and of no other.
    """
    names, later = ([param.name for param in _norm_vectors(bound)] for bound in (old, new))
    if not names or len(names) != len(later):
        return None
    then, now = (
        [row.tobytes() for row in np.stack([values[name].ravel() for name in listed], axis=1, dtype=np.float32)]
        for listed, values in ((names, dict(before.read(names))), (later, dict(after.read(later))))
    )
    places: dict[bytes, list[int]] = {}
    for dim, row in enumerate(then):
        places.setdefault(row, []).append(dim)
    found = [places.get(row, []) for row in now]
    if any(len(dims) != 1 for dims in found) or len(set(now)) != len(now):
        return None
    return np.array([dims[0] for dims in found], dtype=np.int64)


def _norm_vectors(bound: BoundStack) -> list[Param]:
    """Every norm vector of a stream, in an order that two sizes of one model share."""
    blocks = [param for norm in sorted(bound.norms) for layer in bound.norms[norm] for param in layer]
    return [*bound.embedding_norm, *blocks, *bound.final_norm]
