"""A guard around `torch.nn.utils.prune`: masks that obey the constraint and meet their budget exactly.

    guard = same_position_guard(model)
    guard.prune(parameters, amount=0.4).says()
    guard.broken()                                                # {"model": ()}

For each position, the layers in which it may go are those that magnitude alone would empty first; in each other layer the
last weights of the position stay. Where a cell is removed only when all its weights are (norms, and rows at row_fraction 1),
such sets form a matroid, and this is then the mask of least score among all that obey.

When a position of the residual stream is removed: `Removal`, the rule, and `Cells`, the values that it is about.

cells = Cells.of(bound, shapes, Removal())     # of one stream
cells.removed(off)                             # bool [layer, dim] of off [layer, dim], how many of its values are zero
pruner = Pruner(model, cells)                  # the weights of these cells in a running model
with pruner.off(pruner.pruned({0: (6,), 2: (6, 1)}, 100)): ...     # these positions' weights first, then the smallest
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Gt, Le

import outlierlens.architectures as arch
from outlierlens.ablation.controls import Plan
from outlierlens.architectures import BoundStack, Param
from outlierlens.detection.rules import layers_needed
from outlierlens.detection.targets import check_dims
from outlierlens.errors import BadFile, BadInput
from outlierlens.models.changes import SettableParameters, temporary
from outlierlens.models.load import LoadedModel, config_dict
from outlierlens.options import Options

if TYPE_CHECKING:
    from torch import Tensor, nn

    Target = tuple["nn.Module", str]

# --- cells -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Removal(Options):
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


Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PruningState:
    """What holds before a pruning step, bool arrays by parameter; what is not named is untouched.

    Attributes:
        pruned: weights that earlier masks took: gone, and no candidates any more.
        zero: weights that are off without a mask.
    """

    pruned: Arrays = field(default_factory=dict)
    zero: Arrays = field(default_factory=dict)

    def off(self, name: str) -> np.ndarray | None:
        """What is off already, by a mask or as it is."""
        found = [np.asarray(part[name], bool) for part in (self.pruned, self.zero) if name in part]
        return np.logical_or.reduce(found) if found else None

    def broken(self, cells: Cells) -> tuple[int, ...]:
        """Positions of a stream that are removed in too many layers, ascending."""
        gone = {param.name: self.off(param.name) for layer in cells.params for param in layer}
        return tuple(cells.broken(cells.removed(cells.off(gone))).tolist())


@dataclass(frozen=True)
class GuardedMasks:
    """Masks that obey, and what that cost.

    Attributes:
        masks: bool by parameter, True where a weight stays; earlier masks included.
        budget: weights pruned now, exactly.
        swaps: weights that stay although they would have gone without the guard; as many others went instead.
        score: sum of the scores of what was pruned. score_lost: how much more that is than without the guard.
        broken_without: positions by stream that the same budget would have removed in too many layers.
    """

    masks: dict[str, np.ndarray]
    budget: int
    swaps: int
    score: float
    score_lost: float
    broken_without: dict[str, tuple[int, ...]]

    def says(self) -> str:
        """One line for reading."""
        broken = sum(map(len, self.broken_without.values()))
        if not self.swaps:
            return f"{self.budget:,} weights pruned; the constraint held without a swap"
        share = self.score_lost / (self.score - self.score_lost) if self.score > self.score_lost else float("inf")
        return (
            f"{self.budget:,} weights pruned; {self.swaps:,} swapped to save {broken:,} positions, "
            f"for {self.score_lost:.4g} more of the score ({share:.2%})"
        )


def guarded_masks(
    scores: Arrays, budget: int | float, cells: Sequence[Cells], *,
    protect: Sequence[int] = (), state: PruningState | None = None,
) -> GuardedMasks:  # fmt: skip
    """Prune `budget` weights of least score such that no position is removed in too many layers.

    `budget` is a number of weights, or a share in [0, 1] of those not yet pruned (rounded, as torch does). `scores` is the
    importance of each weight; one of +inf never goes. Weights of positions in `protect` never go either.

    Raises:
        BadInput: the budget is more than the constraint leaves, with the most that is possible; scores that are no
            numbers; or masks that break the constraint before anything is pruned.
    """
    step = _Step(scores, state or PruningState())
    count = step.count(budget)
    base = step.smallest(count, step.keys)
    broken = {one.bound.name: step.broken(one, base) for one in cells}
    obeys = not any(broken.values()) and np.isfinite(step.protected(cells, protect)[base]).all()
    chosen = base if obeys else step.smallest(count, step.allowed(cells, protect, count))
    total, before = (float(step.row.values[some].sum(dtype=np.float64)) for some in (chosen, base))
    return GuardedMasks(
        masks=step.masks(chosen),
        budget=count,
        swaps=int(np.count_nonzero(base & ~chosen)),
        score=total,
        score_lost=total - before,
        broken_without=broken,
    )


class _Step:
    """All candidate weights of a pruning step in one row, in the order of the scores' names."""

    def __init__(self, scores: Arrays, state: PruningState):
        if not scores:
            raise BadInput("no weights to prune; give the scores of at least one parameter")
        self.state = state
        self.row = WeightRow({name: np.asarray(values, dtype=np.float64) for name, values in scores.items()})
        flat = self.row.values
        if np.isnan(flat).any() or (flat == -np.inf).any():
            raise BadInput("a score is NaN or −inf; scores are numbers, +inf for what must stay")
        self.places = self.row.parts(np.arange(len(flat)))
        self.gone = self.row.chosen(state.pruned)
        self.keys = np.where(self.gone, np.inf, flat)

    def count(self, budget: int | float) -> int:
        """The budget as a number of weights."""
        n, share = int(np.count_nonzero(~self.gone)), isinstance(budget, float)
        if not 0 <= budget <= (1 if share else n):
            most = "a share in [0, 1]" if share else f"at most {n:,}, the weights not yet pruned"
            raise BadInput(f"the budget is {budget}; it must be {most}")
        return round(budget * n) if share else int(budget)

    def smallest(self, count: int, keys: np.ndarray) -> np.ndarray:
        """bool [weight]: the `count` weights of smallest key; of equal ones, the first."""
        possible = int(np.isfinite(keys).sum())
        if count > possible:
            raise BadInput(
                f"{possible:,} weights can be pruned within the constraint, the budget is {count:,}; lower the budget, prune "
                "more parameters, or raise min_layer_fraction"
            )
        return smallest(keys, count)

    def allowed(self, cells: Sequence[Cells], protect: Sequence[int], count: int) -> np.ndarray:
        """The keys with +inf for every weight that has to stay."""
        for spare in (False, True):  # the layers that cost least; then those that leave most to prune
            keys = self.protected(cells, protect)
            for one in cells:
                self._block(one, keys, spare=spare)
            if int(np.isfinite(keys).sum()) >= count:
                break
        return keys

    def protected(self, cells: Sequence[Cells], protect: Sequence[int]) -> np.ndarray:
        """The keys with +inf for the weights of protected positions alone."""
        keys = self.keys.copy()
        parts = self.row.parts(keys)
        for one in cells:
            dims = list(one.checked(tuple(protect)))
            for param in (param for layer in one.params for param in layer if param.name in parts):
                np.moveaxis(parts[param.name], param.axis, 0)[dims] = np.inf
        return keys

    def _block(self, cells: Cells, keys: np.ndarray, *, spare: bool) -> None:
        """Set +inf in `keys` for the weights that stay so that each position stays in enough layers."""
        if cells.beyond_masks:
            return
        times = np.empty((cells.n_layers, cells.width))  # key of the weight with which the cell is removed
        stay = np.zeros((cells.n_layers, cells.width))  # weights that would have to stay
        for layer in range(cells.n_layers):
            values, _ = self._cell_keys(cells, layer, keys)
            needed = int(cells.needed[layer])
            ordered = np.sort(values, axis=1)
            times[layer] = ordered[:, needed - 1]
            stay[layer] = np.isfinite(ordered[:, needed - 1 :]).sum(axis=1)
        gone = (times == -np.inf).sum(axis=0)
        if len(dims := np.flatnonzero(gone >= cells.limit)):
            raise BadInput(
                f"stream {cells.bound.name!r}: position {dims[0]} is already removed in {int(gone[dims[0]])} of "
                f"{cells.n_layers} layers, before anything is pruned; start from masks that obey the constraint"
            )
        first = np.where(times == -np.inf, -np.inf, -stay if spare else times)
        order = np.argsort(first, axis=0, kind="stable")
        blocked = np.isfinite(times)
        np.put_along_axis(blocked, order[: cells.limit - 1], False, axis=0)
        for layer in range(cells.n_layers):
            values, places = (part[blocked[layer]] for part in self._cell_keys(cells, layer, keys))
            last = np.argsort(values, axis=1, kind="stable")[:, int(cells.needed[layer]) - 1 :]
            finite = np.isfinite(np.take_along_axis(values, last, axis=1))
            keys[np.take_along_axis(places, last, axis=1)[finite]] = np.inf

    def _cell_keys(self, cells: Cells, layer: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(keys, places in the row) of each position's weights, [dim, weight]: −inf for what is off, +inf for what stays."""
        parts, values, places = self.row.parts(keys), [], []
        for param in cells.params[layer]:
            off = self.state.off(param.name)
            if param.name in parts:
                own, place = parts[param.name], self.places[param.name]
            elif off is not None:
                own, place = np.full(off.shape, np.inf), np.full(off.shape, -1)
            else:
                continue
            if off is not None:
                own = np.where(off.reshape(own.shape), -np.inf, own)
            values.append(np.moveaxis(own, param.axis, 0).reshape(cells.width, -1))
            places.append(np.moveaxis(place, param.axis, 0).reshape(cells.width, -1))
        lacking = max(0, int(cells.total[layer]) - sum(part.shape[1] for part in values))
        values.append(np.full((cells.width, lacking), np.inf))  # parameters that this pruning does not touch
        places.append(np.full((cells.width, lacking), -1))
        return np.concatenate(values, axis=1), np.concatenate(places, axis=1)

    def broken(self, cells: Cells, chosen: np.ndarray) -> tuple[int, ...]:
        """Positions that are removed in too many layers once `chosen` is pruned."""
        if cells.beyond_masks:
            return ()
        now = {name: ~stays for name, stays in self.masks(chosen).items()}
        return PruningState({**self.state.pruned, **now}, self.state.zero).broken(cells)

    def masks(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """True where a weight stays, after earlier masks and this one."""
        return self.row.parts(~(chosen | self.gone))


# --- of a model ----------------------------------------------------------------------------------------------------


def same_position_guard(
    model: "LoadedModel | nn.Module",
    rule: Removal | None = None,
    *,
    protect: Sequence[int] = (),
    stack: str | None = None,
) -> "SamePositionGuard":
    """A guard for `model`: what it prunes removes no position in `rule.min_layer_fraction` of the layers.

    Positions in `protect` (outliers, say) lose no weight of the blocks' last operations at all. With `stack`, only that
    stream is guarded.

    Raises:
        UnknownArchitecture: no row describes the model. BadInput: no such stream.
    """
    module = model.model if isinstance(model, LoadedModel) else model
    names = {name.removesuffix("_orig"): tensor for name, tensor in arch.live_parameters(module).items()}
    stacks = tuple(one.stack for one in model.stacks) if isinstance(model, LoadedModel) else None
    config = config_dict(module)
    kind = type(module).__name__
    chosen = arch.streams_of(arch.bind(stacks or arch.stacks_of(config, kind), names, config), stack, kind)
    shapes = {name: tuple(tensor.shape) for name, tensor in names.items()}
    return SamePositionGuard(module, [Cells.of(one, shapes, rule or Removal()) for one in chosen], tuple(protect))


class SamePositionGuard:
    """Prunes a model with masks of `torch.nn.utils.prune` such that every position stays in enough layers.

    Where the smallest weights alone would remove a position in too many layers, the guard keeps that position's largest weights
    and prunes as many others, the smallest ones.
    """

    def __init__(self, model: "nn.Module", cells: Sequence[Cells], protect: tuple[int, ...]):
        self.model, self.cells, self.protect = model, list(cells), protect
        self._names: dict[tuple[int, str], str] = {
            (id(module), leaf.removesuffix("_orig")): f"{path}.{leaf}".lstrip(".").removesuffix("_orig")
            for path, module in model.named_modules(remove_duplicate=False)
            for leaf, _ in module.named_parameters(recurse=False)
        }

    def prune(
        self, parameters: "Iterable[Target]", amount: int | float, scores: "Mapping[Target, Tensor] | None" = None
    ) -> GuardedMasks:
        """Prune `amount` weights of the parameters (module, name), on top of what is pruned; what that cost.

        `amount` is a number, or a share in [0, 1] of what is left. `scores` are the importance of the weights, in the shape of
        each parameter; their size where none are given.

        Raises:
            BadInput: a parameter that is not the model's, or a budget that is more than the constraint leaves.
        """
        from torch.nn.utils import prune

        targets = {self._name(module, name): (module, name) for module, name in parameters}
        wanted, state = {}, self._state()
        pruned = dict(state.pruned)
        for path, (module, name) in targets.items():
            values = getattr(module, name).detach().abs() if scores is None else scores[module, name]
            wanted[path] = values.double().cpu().numpy()
            pruned[path] = (_mask_of(module, name) == 0).cpu().numpy()
        found = guarded_masks(wanted, amount, self.cells, protect=self.protect, state=PruningState(pruned, state.zero))
        for path, (module, name) in targets.items():
            mask = _mask_of(module, name)
            prune.custom_from_mask(module, name, mask.new_tensor(found.masks[path]))
        return found

    def broken(self) -> dict[str, tuple[int, ...]]:
        """Positions by stream that are removed in too many layers, as the model is now."""
        state = self._state()
        return {one.bound.name: state.broken(one) for one in self.cells}

    def _name(self, module: "nn.Module", name: str) -> str:
        found = self._names.get((id(module), name))
        if found is None:
            raise BadInput(
                f"{type(module).__name__}.{name} is no parameter of the guarded model; take it from that model"
            )
        return found

    def _state(self) -> PruningState:
        """Masks and zeros of all parameters that the constraint is about."""
        pruned, zero = {}, {}
        for param in {param for one in self.cells for layer in one.params for param in layer}:
            path, _, leaf = param.name.rpartition(".")
            module = self.model.get_submodule(path)
            values = getattr(module, f"{leaf}_orig", None)
            values = getattr(module, leaf) if values is None else values
            zero[param.name] = (values.detach() == param.off).cpu().numpy()
            # Masks set to 0, which is not where a norm that multiplies by 1 + weight is off.
            if not param.off:
                pruned[param.name] = (_mask_of(module, leaf) == 0).cpu().numpy()
        return PruningState(pruned, zero)


def _mask_of(module: "nn.Module", name: str) -> "Tensor":
    """The mask of a parameter as it is, ones where it has none."""
    import torch

    mask = getattr(module, f"{name}_mask", None)
    found: Tensor = torch.ones_like(getattr(module, name).detach()) if mask is None else mask.detach()
    return found
