"""What was pruned, from files: masks, or a model that is compared with the intact one; torch is needed for .bin and .pt alone.

    evidence = Evidence(first, second, options)        # opened by prune_masks.open_source
    for bound in evidence.streams():
        evidence.of_stream(bound).removed              # bool [layer, dim]

Each block's last operation is read, and where the intact weights are there its MLP, whose single weights may carry a layer's
output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

import outlierlens.architectures as arch
from outlierlens.analyses.prune_cells import Cells, copied_positions, kept_positions, per_dim_off
from outlierlens.analyses.prune_masks import Masks, Unmasked, held
from outlierlens.architectures import BoundStack, Neuron, Param, mlp_axis
from outlierlens.checkpoints import Checkpoint
from outlierlens.detection.scan.measure import check_size, scan_checkpoint, scan_mlps, sites_of
from outlierlens.detection.scan.result import Standing
from outlierlens.errors import BadFile, BadInput, UnknownArchitecture
from outlierlens.options import FIND

if TYPE_CHECKING:
    from outlierlens.analyses.prune import PruneCheckOptions

ALONE = "name the intact model first: outlierlens prune check MODEL MASKS"


@dataclass(frozen=True)
class Pruned:
    """What pruning took from one stream.

    Attributes:
        later: the stream in the pruned model; of masks the intact one.
        off: int [layer, dim], values of each cell that are newly zero. removed: bool [layer, dim], which cells are.
        kept: of a narrower stream the old position of each new one; empty otherwise.
    """

    cells: Cells
    later: BoundStack
    off: np.ndarray
    removed: np.ndarray
    kept: np.ndarray
    notes: tuple[str, ...]


class Evidence:
    """Intact weights, where there are any, and what says what was pruned.

    Attributes:
        kind: "masks", "torch masks" or "models". model: the intact model.
    """

    def __init__(self, first: Checkpoint, second: Checkpoint | None, options: "PruneCheckOptions"):
        self.first, self.options = first, options
        self.second = second or first
        self.alone = second is None
        holds = held(self.second) if options.reading == "auto" else options.reading
        if self.alone and options.reading == "weights":
            raise BadInput(f"{first.name}: one model alone does not say what was pruned; give the intact one first")
        if self.alone and holds == "weights":
            if not _looks_like_masks(first):
                raise BadInput(
                    f"{first.name} holds weights, not masks; give the intact model first and the pruned one second"
                )
            holds = "masks"
        self.masks = None if holds == "weights" else Masks(self.second)
        if options.positions and self.masks is not None:
            raise BadInput("--positions belongs to a pruned model; masks have the shapes of the intact one")
        self.kind = "models" if self.masks is None else self.masks.holds if holds == "torch masks" else "masks"
        self.model = Unmasked(first) if self.alone or held(first) == "torch masks" else first
        self.model.config = self.model.config or self.second.config

    def streams(self) -> list[BoundStack]:
        """The streams that are asked for, by the names of the intact model; of masks alone, by the names of what they mask."""
        bound = self._bound(self._declared())
        chosen = [one for one in bound if self.options.stack in (None, one.name)]
        if not chosen:
            known = ", ".join(one.name for one in bound)
            raise BadInput(f"no stream {self.options.stack!r} in {self.model.name}; streams are {known}")
        return chosen

    def _declared(self) -> tuple[arch.Stack, ...]:
        if self.options.scan.row is not None:
            return arch.stacks_for(self.model, self.options.scan.row)
        if not self.model.config:
            raise BadInput(
                f"{self.model.name}: there is no config.json beside it, so nothing says what its tensors are; {ALONE}"
            )
        return arch.stacks_of(self.model.config, self.model.name)

    def _bound(self, stacks: tuple[arch.Stack, ...]) -> list[BoundStack]:
        if self.masks is None or not self.alone or self.masks.holds == "torch masks":
            return arch.bind(stacks, self.model.tensors, self.model.config)
        try:
            return arch.bind(stacks, self.masks.parameters(), self.model.config)
        except (BadFile, UnknownArchitecture) as error:
            raise BadInput(
                f"{self.model.name}: these masks alone do not cover the last operation of every block ({error}); {ALONE}"
            ) from None

    def _later(self, bound: BoundStack) -> BoundStack:
        config = self.second.config or self.model.config
        found = {one.name: one for one in arch.bind(self._declared(), self.second.tensors, config)}
        if bound.name not in found:
            raise BadInput(f"{self.second.name}: has no stream {bound.name!r}, which {self.first.name} has")
        return found[bound.name]

    def of_stream(self, bound: BoundStack) -> Pruned:
        """What was taken from a stream: what is off in every cell, then the rule."""
        shapes = self._shapes(bound)
        cells = Cells.of(bound, shapes, self.options.rule)
        if not self.alone:
            check_size(self.model, sites_of(bound, "last"), self.options.scan, instead="")
        if self.masks is None:
            return self._compared(bound, cells)
        off = np.zeros((cells.n_layers, cells.width), dtype=np.int64)
        for layer, params in enumerate(cells.params):
            for param in params:
                off[layer] += self.masks.off(param, bound.prefix, shapes[param.name])
        norms = "norms here multiply by 1 + weight: a mask sets the weight to 0 and the factor to 1, so none counts"
        notes = (*bound.stack.notes, *(norms,) * cells.beyond_masks)
        return Pruned(cells, bound, off, cells.removed(off), np.arange(0), notes)

    def _shapes(self, bound: BoundStack) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter of the last operations; of masks alone, that of the mask."""
        params = {p.name for layer in (*bound.scale, *bound.bias) for p in layer}
        if all(name in self.model.tensors for name in params):
            return {name: self.model.tensors[name].shape for name in params}
        assert self.masks is not None
        found = {name: self.masks.find(name, bound.prefix) for name in params}
        return {name: self.masks.source.tensors[real].shape for name, real in found.items() if real}

    def _compared(self, bound: BoundStack, cells: Cells) -> Pruned:
        """What is zero in the pruned model and was not before, in the intact stream's positions."""
        later = self._later(bound)
        narrow = Cells.of(later, {name: info.shape for name, info in self.second.tensors.items()}, self.options.rule)
        if narrow.n_layers != cells.n_layers:
            raise BadInput(
                f"{self.second.name}: has {narrow.n_layers} layers of {bound.name!r}, {self.first.name} has {cells.n_layers}: "
                "whole layers were removed, and which ones cannot be told from the files; this check compares layer by layer"
            )
        kept, notes = self._kept(bound, later, cells.width, narrow.width)
        off, before = np.repeat(cells.total[:, None], cells.width, axis=1), np.zeros((cells.n_layers, cells.width), int)
        for layer in range(cells.n_layers):
            before[layer] = _zeros(self.model, cells.params[layer], cells.width)
            # Rows of fewer weights (a narrower MLP) lost what they no longer have.
            lost = max(0, int(cells.total[layer] - narrow.total[layer]))
            off[layer, kept] = _zeros(self.second, narrow.params[layer], narrow.width) + lost
        if not np.array_equal(cells.total, narrow.total):
            notes += ("rows of the pruned model have fewer weights; what they no longer have counts as removed",)
        removed = cells.removed(off) & ~cells.removed(before)
        kept = kept if narrow.width != cells.width else np.arange(0)
        return Pruned(cells, later, np.maximum(off - before, 0), removed, kept, (*bound.stack.notes, *notes))

    def _kept(
        self, old: BoundStack, new: BoundStack, old_width: int, new_width: int
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """The old position of each new one."""
        if self.options.positions:
            return kept_positions(self.options.positions, old_width, new_width), ("positions as given by --positions",)
        if new_width == old_width:
            return np.arange(old_width), ()
        where = f"{self.second.name}: its stream has {new_width} positions"
        if new_width > old_width:
            raise BadInput(f"{where}, {self.first.name} has {old_width}: it grew")
        found = copied_positions(self.model, self.second, old, new)
        if found is None:
            raise BadInput(
                f"{where} of {old_width}, and its norm vectors are no copies of the old ones, so which positions were removed "
                "cannot be checked; give --positions, a JSON list of the old position of each new one. That the others are "
                "gone from every layer can be said without it"
            )
        return found, ("positions found by their values: each has those of one old position in every norm vector",)

    def single_weights(self, pruned: Pruned, digest: Any) -> Iterator[tuple[Standing, bool]]:
        """(the largest weight of each neuron that the intact MLP's weights single out, whether it is gone).

        Raises:
            BadInput: there are no intact weights, neurons cannot be told, or the pruned MLP has others.
            TooMuchToRead: the MLPs are larger than may be read.
        """
        if self.alone and self.kind == "masks":
            raise BadInput("masks alone hold no weights; name the intact model first")
        bound, kept = pruned.cells.bound, pruned.kept
        found = scan_mlps(self.model, bound, self.options.scan, digest).found
        for layer, neurons in groupby(sorted(found, key=_place), key=lambda one: _place(one).layer):
            left = self._last_linear(bound, pruned.later, layer)
            for one in neurons:
                rows = np.flatnonzero(kept == one.dim) if kept.size else [one.dim]  # of the pruned stream: one, or none
                yield one, left is not None and not left[rows, _place(one).neuron].any()

    def _last_linear(self, bound: BoundStack, later: BoundStack, layer: int) -> np.ndarray | None:
        """The last linear of a pruned MLP, or its mask, [row, column]; None where it has no mask."""
        before, param = (mlp_axis(one).scale[layer][0] for one in (bound, later))
        name = self.masks.find(param.name, bound.prefix) if self.masks else param.name
        if name is None:
            return None
        if self.second.tensors[name].shape[param.axis] != self.model.tensors[before.name].shape[before.axis]:
            raise BadInput("the pruned MLPs have fewer neurons, and which ones are left cannot be told from the files")
        ((_, values),) = self.second.read([name])
        return values.T if bound.stack.weight_is_in_by_out else values

    def outliers(self, cells: Cells) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        """(the outliers of a stream, who names them, what to know of that)."""
        if self.options.dims != FIND and self.options.dims:
            return cells.checked(self.options.dims), "given", ()
        if self.alone and self.masks is not None and self.masks.holds == "masks":
            return (), "no one", ("masks alone do not say where outliers are: name the intact model first, or --dims",)
        quiet = replace(self.options.scan, notice=None)  # what is read was said when its size was checked
        found = next(one for one in scan_checkpoint(self.model, quiet).stacks if one.stack == cells.bound.name)
        return found.dims, found.named_by, ()

    def unused(self, bound: Sequence[BoundStack]) -> tuple[str, ...]:
        """Masks that fit nothing of the model are a mistake; masks of other parameters are worth a remark."""
        if self.masks is None or self.masks.used:
            return ()
        masks = self.masks
        if not self.alone and not any(masks.find(name, one.prefix) for name in self.model.tensors for one in bound):
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


def _place(one: Standing) -> Neuron:
    return Neuron.parse(one.neuron)


def _looks_like_masks(source: Checkpoint) -> bool:
    """Whether the smallest tensor holds zeros and ones alone; what is read later is looked at value by value."""
    names = sorted(source.tensors, key=lambda name: source.tensors[name].nbytes)
    return all(np.isin(values, (0, 1)).all() for _, values in source.read(names[:1]))
