"""What was pruned, from files: masks, or a model that is compared with the intact one; torch is needed for .bin and .pt alone.

    evidence = Evidence(first, second, options)        # opened by open_source
    for bound in evidence.streams():
        evidence.of_stream(bound).removed              # bool [layer, dim]

Each block's last operation is read, and its MLP, whose single weights may carry a layer's output. A mask is 1 where a weight
stays and 0 where it is gone. It is named as the parameter, or NAME_mask, as in a state dict of `torch.nn.utils.prune`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import outlierlens.architectures as arch
from outlierlens.analyses.prune_guard import Cells, per_dim_off
from outlierlens.analyses.scan import scan_checkpoint
from outlierlens.architectures import BoundStack, LastLinear, Neuron, Param, last_linears
from outlierlens.checkpoints import Checkpoint, as_weights, open_checkpoint, with_adapter
from outlierlens.detection.weights import LargeNeuron, check_size, scan_mlps, sites_of
from outlierlens.errors import BadFile, BadInput
from outlierlens.options import FIND

if TYPE_CHECKING:
    from outlierlens.analyses.prune import PruneCheckOptions

MASK, PARAMETERS = "_mask", (".weight", ".bias", ".gamma", ".beta")


def open_source(name: str, adapter: str | None = None, **how: Any) -> Checkpoint:
    """What `open_checkpoint` opens; masks as they are stored."""
    source = open_checkpoint(name, **how, as_stored=True)
    if held(source) == "weights":
        return with_adapter(as_weights(source), adapter)
    if adapter is not None:
        raise BadInput(
            f"--model-args adapter belongs to a model, and {name} holds masks; name the pruned model in their place"
        )
    return source


def held(source: Checkpoint) -> Literal["masks", "weights"]:
    """What a file holds, by its names and types."""
    return "masks" if _masks(source) or not any(map(source.holds_floats, source.tensors)) else "weights"


def _masks(source: Checkpoint) -> list[str]:
    """The tensors that are masks by their names."""
    return [name for name in source.tensors if name.endswith(tuple(f"{leaf}{MASK}" for leaf in PARAMETERS))]


class Masks:
    """The masks of a file, by the parameter they are of."""

    def __init__(self, source: Checkpoint):
        self.source, self.used = source, set[str]()
        names = _masks(source) or list(source.tensors)
        self._by_tail: dict[str, list[str]] = {}
        for name in names:
            parts = name.removesuffix(MASK).split(".")
            for start in range(len(parts)):
                self._by_tail.setdefault(".".join(parts[start:]), []).append(name)

    def find(self, parameter: str, prefix: str) -> str | None:
        """The tensor that holds the mask of a parameter, or None: what has no mask was not pruned.

        A head's prefix may stand before the name here or there ("bert."), never in between.

        Raises:
            BadInput: several fit.
        """
        found = self._by_tail.get(parameter) or self._by_tail.get(parameter.removeprefix(prefix)) or []
        found = [name for name in found if name.removesuffix(MASK) == parameter] or found
        if len(found) > 1:
            raise BadInput(
                f"{self.source.name}: {', '.join(map(repr, sorted(found)[:3]))} could all be the mask of {parameter}; "
                "keep one of them"
            )
        return found[0] if found else None

    def off(self, param: Param, prefix: str, shape: tuple[int, ...]) -> np.ndarray:
        """How many values of `param` are pruned at each position, int [dim]; zeros where it has no mask.

        Raises:
            BadInput: the mask has another shape than the parameter, or holds other values than 0 and 1.
        """
        name = self.find(param.name, prefix)
        if name is None:
            return np.zeros(shape[param.axis], dtype=np.int64)
        self.used.add(name)
        found = self.source.tensors[name].shape
        if found != shape:
            raise BadInput(
                f"{self.source.name}: {name} is {list(found)}, the parameter {list(shape)}; a mask has its parameter's "
                "shape"
            )
        ((_, values),) = self.source.read([name])
        zero = values == 0
        if not (zero | (values == 1)).all():
            odd = values[~(zero | (values == 1))].flat[0]
            raise BadInput(
                f"{self.source.name}: {name} holds {odd:.4g}; masks are 0 and 1; to compare two models give both, the "
                "intact one first"
            )
        # A pruner sets weights to 0; a norm that multiplies by 1 + weight is then 1 there, which removes nothing.
        if param.off:
            return np.zeros(shape[param.axis], dtype=np.int64)
        return per_dim_off(zero, param)


@dataclass(frozen=True)
class PrunedStream:
    """What pruning took from one stream.

    Attributes:
        later: the stream in the pruned model; of masks the intact one.
        off: int [layer, dim], values of each cell that are newly zero. removed: bool [layer, dim], which cells are.
    """

    cells: Cells
    later: BoundStack
    off: np.ndarray
    removed: np.ndarray
    notes: tuple[str, ...]


class Evidence:
    """The intact model, and masks or the pruned model."""

    def __init__(self, model: Checkpoint, second: Checkpoint, options: "PruneCheckOptions"):
        self.model, self.second, self.options = model, second, options
        self.masks = Masks(second) if held(second) == "masks" else None
        model.config = model.config or second.config

    def streams(self) -> list[BoundStack]:
        """The streams that are asked for, by the names of the intact model."""
        bound = arch.bind(self._declared(), self.model.tensors, self.model.config)
        return arch.streams_of(bound, self.options.stack, self.model.name)

    def _declared(self) -> tuple[arch.Stack, ...]:
        if self.options.scan.row is not None:
            return arch.stacks_for(self.model, self.options.scan.row)
        if not self.model.config:
            raise BadInput(f"{self.model.name}: lay its config.json beside it; it says what the tensors are")
        return arch.stacks_of(self.model.config, self.model.name)

    def of_stream(self, bound: BoundStack) -> PrunedStream:
        """What was taken from a stream: what is off in every cell, then the rule."""
        shapes = {name: info.shape for name, info in self.model.tensors.items()}
        cells = Cells.of(bound, shapes, self.options.rule)
        check_size(self.model, sites_of(bound, "last"), self.options.scan, instead="")
        if self.masks is None:
            return self._compared(bound, cells)
        off = np.zeros((cells.n_layers, cells.width), dtype=np.int64)
        for layer, params in enumerate(cells.params):
            for param in params:
                off[layer] += self.masks.off(param, bound.prefix, shapes[param.name])
        norms = "norms here multiply by 1 + weight: a mask sets the weight to 0 and the factor to 1, so none counts"
        notes = (*bound.stack.notes, *(norms,) * cells.beyond_masks)
        return PrunedStream(cells, bound, off, cells.removed(off), notes)

    def _compared(self, bound: BoundStack, cells: Cells) -> PrunedStream:
        """What is zero in the pruned model and was not before."""
        second = arch.bind(self._declared(), self.second.tensors, self.second.config or self.model.config)
        (later,) = arch.streams_of(second, bound.name, self.second.name)
        narrow = Cells.of(later, {name: info.shape for name, info in self.second.tensors.items()}, self.options.rule)
        sizes = [f"{one.n_layers} layers of {one.width} positions" for one in (narrow, cells)]
        if sizes[0] != sizes[1]:
            raise BadInput(
                f"{self.second.name}: has {sizes[0]} in {bound.name!r}, {self.model.name} has {sizes[1]}: which ones were "
                "removed cannot be told from the files; this check compares position by position"
            )
        notes = bound.stack.notes
        off, before = np.zeros((2, cells.n_layers, cells.width), dtype=np.int64)
        for layer in range(cells.n_layers):
            before[layer] = _zeros(self.model, cells.params[layer], cells.width)
            # Rows of fewer weights (a narrower MLP) lost what they no longer have.
            lost = max(0, int(cells.total[layer] - narrow.total[layer]))
            off[layer] = _zeros(self.second, narrow.params[layer], narrow.width) + lost
        if not np.array_equal(cells.total, narrow.total):
            notes += ("rows of the pruned model have fewer weights; what they no longer have counts as removed",)
        removed = cells.removed(off) & ~cells.removed(before)
        return PrunedStream(cells, later, np.maximum(off - before, 0), removed, notes)

    def single_weights(self, pruned: PrunedStream, digest: Any) -> Iterator[tuple[LargeNeuron, bool]]:
        """(the largest weight of each neuron that the intact MLP's weights single out, whether it is gone).

        Raises:
            BadInput: neurons cannot be told, or the pruned MLP has others.
            TooMuchToRead: the MLPs are larger than may be read.
        """
        bound = pruned.cells.bound
        _, found = scan_mlps(self.model, bound, self.options.scan, digest)
        before, later = (
            {one.row: one for one in last_linears(stack, source.tensors)}
            for stack, source in (
                (bound, self.model),
                (pruned.later, self.second if self.masks is None else self.model),
            )
        )
        for row, neurons in groupby(sorted(found, key=_order), key=lambda one: one.neuron.rpartition(":")[0]):
            left = self._last_linear(bound, before[row], later.get(row))
            for one in neurons:
                yield one, left is not None and not left[one.dim, _place(one).neuron].any()

    def _last_linear(self, bound: BoundStack, before: LastLinear, later: LastLinear | None) -> np.ndarray | None:
        """The last linear of a pruned MLP, or its mask, [dimension, neuron]; None where it has no mask."""
        if later is None:
            raise BadInput(f"the pruned model has no MLP {before.row}, so what became of its neurons cannot be told")
        name = self.masks.find(later.param.name, bound.prefix) if self.masks else later.param.name
        if name is None:
            return None
        shape, other = self.second.tensors[name].shape, self.model.tensors[before.param.name].shape
        if shape[later.param.axis] != other[before.param.axis]:
            raise BadInput("the pruned MLPs have fewer neurons, and which ones are left cannot be told from the files")
        ((_, values),) = self.second.read([name])
        left: np.ndarray = later.matrix(values)
        return left

    def outliers(self, cells: Cells) -> tuple[tuple[int, ...], str]:
        """(the outliers of a stream, who names them)."""
        if self.options.dims != FIND and self.options.dims:
            return cells.checked(self.options.dims), "given"
        quiet = replace(self.options.scan, notice=None)  # what is read was said when its size was checked
        found = next(one for one in scan_checkpoint(self.model, quiet).stacks if one.stack == cells.bound.name)
        return found.dims, found.named_by

    def unused(self, bound: Sequence[BoundStack]) -> tuple[str, ...]:
        """Masks that fit nothing of the model are a mistake; masks of other parameters are worth a remark."""
        if self.masks is None or self.masks.used:
            return ()
        masks = self.masks
        if not any(masks.find(name, one.prefix) for name in self.model.tensors for one in bound):
            shown = ", ".join(sorted(self.second.tensors)[:3])
            raise BadInput(
                f"{self.second.name}: none of its {len(self.second.tensors)} tensors ({shown}, …) is named as a parameter of "
                f"{self.model.name}; are these masks of another model?"
            )
        return ("no mask is of a block's last operation: other parameters were pruned, which removes no position",)


def _zeros(source: Checkpoint, params: Sequence[Param], width: int) -> np.ndarray:
    by_name = {param.name: param for param in params}
    found = np.zeros(width, dtype=np.int64)
    for name, values in source.read(by_name):
        if np.isnan(values).any():
            raise BadFile(f"{source.name}: {name} holds NaN: the weights are damaged; fetch or train them again")
        found += per_dim_off(values == by_name[name].off, by_name[name])
    return found


def _order(one: LargeNeuron) -> tuple[int, int, int]:
    neuron = _place(one)
    return neuron.layer, neuron.expert, neuron.neuron


def _place(one: LargeNeuron) -> Neuron:
    return Neuron.parse(one.neuron)
