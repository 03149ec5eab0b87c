"""When a position of the residual stream is removed: `Removal`, the rule, and `Cells`, the values that it is about.

cells = Cells.of(bound, shapes, Removal())     # of one stream
cells.removed(off)                             # bool [layer, dim] of off [layer, dim], how many of its values are zero
pruner = Pruner(model, cells)                  # the weights of these cells in a running model
with pruner.off(pruner.pruned({0: (6,), 2: (6, 1)}, 100)): ...     # these positions' weights first, then the smallest
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Gt, Le

import outlierlens.architectures as arch
from outlierlens.ablation.controls import Plan
from outlierlens.architectures import BoundStack, Param
from outlierlens.detection.rules import layers_needed
from outlierlens.detection.targets import check_dims
from outlierlens.errors import BadFile
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.options import check

if TYPE_CHECKING:
    from torch import nn


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
    min_layer_fraction: Annotated[float, Gt(0), Le(1)] = 0.5
    """Removed in this share of the layers, a position counts as lost."""
    only_outliers: bool = False
    """The constraint is about outliers alone, not about every position."""

    def __post_init__(self) -> None:
        check(self)

    def off_needed(self, total: int, *, is_norm: bool) -> int:
        """How many of the `total` values that make a position in a layer must be zero for it to be removed there."""
        # A hair below: 0.9 × 10 is not to become 10.
        return total if is_norm else max(1, math.ceil(self.row_fraction * total - 1e-9))


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
        with_bias = bound.ends_in_norm
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
        if self.bound.ends_in_norm:
            return f"scale{' and bias' * all(self.bound.bias)} of the output norm zero"
        share = "all" if self.rule.row_fraction == 1 else f"at least {self.rule.row_fraction:.0%}"
        return f"{share} of the last linears' weights that write to it zero"

    def checked(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions, each once; raises BadInput where the stream has no such one."""
        check_dims(dims, self.bound, self.width)
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


class WeightRow:
    """The weights of several parameters in one row.

    Attributes:
        values: [weight]. shapes: of each parameter, by name.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.shapes = {name: values.shape for name, values in arrays.items()}
        self.values = np.concatenate([values.ravel() for values in arrays.values()])
        starts = np.cumsum([0, *map(math.prod, self.shapes.values())])
        self.slices = {name: slice(a, b) for name, a, b in zip(arrays, starts[:-1], starts[1:], strict=True)}

    def parts(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """Values [weight] as views in the shapes of the parameters."""
        return {name: row[where].reshape(self.shapes[name]) for name, where in self.slices.items()}

    def chosen(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """bool [weight] of bool arrays by parameter; what is not named is False."""
        found = np.zeros(len(self.values), dtype=bool)
        for name in arrays.keys() & self.slices.keys():
            found[self.slices[name]] = np.asarray(arrays[name], bool).ravel()
        return found


class Pruner:
    """The weights of a stream's last operations in one row, and which of them a budget takes."""

    def __init__(self, model: "nn.Module", cells: Cells):
        self.model, self.cells = model, cells
        live = arch.live_parameters(model)
        self.params = {param.name: param for layer in cells.params for param in layer}
        self.row = WeightRow({
            name: (live[name].detach().float() - param.off).abs().cpu().numpy() for name, param in self.params.items()
        })  # fmt: skip

    def pruned(self, plan: Plan, budget: int) -> np.ndarray:
        """bool [weight]: all weights of the positions of `plan`, {layer: positions}, then the smallest, `budget` in all."""
        taken = np.zeros(len(self.row.values), dtype=bool)
        parts = self.row.parts(taken)
        for layer, dims in plan.items():
            for param in self.cells.params[layer]:
                np.moveaxis(parts[param.name], param.axis, 0)[list(dims)] = True
        return taken | smallest(np.where(taken, np.inf, self.row.values), budget - int(np.count_nonzero(taken)))

    @temporary
    def off(self, taken: np.ndarray) -> Iterator[int]:
        """Switch weights off inside the block, and put every value back bit for bit; yields how many are off."""
        import torch

        with ExitStack() as undo:
            settable = SettableParameters(undo, self.model)
            for name, here in self.row.parts(taken).items():
                if here.any():
                    settable.set_values(name, (torch.from_numpy(here),), self.params[name].off)
            yield int(np.count_nonzero(taken))
