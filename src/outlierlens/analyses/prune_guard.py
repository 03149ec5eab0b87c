"""Pruning masks that obey the constraint and meet their budget exactly: `guarded_masks`; and around `torch.nn.utils.prune`.

    found = guarded_masks({name: abs(weights)}, budget=10_000, cells=[Cells.of(bound, shapes, Removal())])
    found.masks["encoder.layer.0.output.LayerNorm.weight"]        # bool, True where the weight stays
    found.swaps, found.score_lost                                 # what it cost

    guard = same_position_guard(model)                            # any method of torch.nn.utils.prune, one tensor or global
    prune.global_unstructured(parameters, pruning_method=guard.method(parameters, prune.L1Unstructured), amount=0.4)
    guard.apply(layer.output.dense, "weight", prune.RandomUnstructured, amount=100)
    guard.last.says(), guard.broken()

For each position, the layers in which it may go are those that magnitude alone would empty first; in each other layer the
last weights of the position stay. Where a cell is removed only when all its weights are (norms, and rows at row_fraction 1),
such sets form a matroid, and this is then the mask of least score among all that obey.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import outlierlens.architectures as arch
from outlierlens.analyses.prune_cells import Cells, Removal, smallest
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, config_dict

if TYPE_CHECKING:
    from torch import Tensor, nn

    Target = tuple["nn.Module", str]

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class State:
    """What holds before a pruning step, bool arrays by parameter; what is not named is untouched.

    Attributes:
        pruned: weights that earlier masks took: gone, and no candidates any more.
        zero: weights that are off without a mask.
        first: weights that a pruning method would take; they go before all others, whatever their scores.
    """

    pruned: Arrays = field(default_factory=dict)
    zero: Arrays = field(default_factory=dict)
    first: Arrays = field(default_factory=dict)

    def off(self, name: str) -> np.ndarray | None:
        """What is off already, by a mask or as it is."""
        found = [np.asarray(part[name], bool) for part in (self.pruned, self.zero) if name in part]
        return np.logical_or.reduce(found) if found else None


@dataclass(frozen=True)
class Guarded:
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
    protect: Sequence[int] = (), state: State | None = None,
) -> Guarded:  # fmt: skip
    """Prune `budget` weights of least score such that no position is removed in too many layers.

    `budget` is a number of weights, or a share in [0, 1] of those not yet pruned (rounded, as torch does). `scores` is the
    importance of each weight; one of +inf never goes. Weights of positions in `protect` never go either.

    Raises:
        BadInput: the budget is more than the constraint leaves, with the most that is possible; scores that are no
            numbers; or masks that break the constraint before anything is pruned.
    """
    step = _Step(scores, state or State())
    count = step.count(budget)
    base = step.smallest(count, step.keys)
    broken = {one.bound.name: tuple(step.broken(one, base).tolist()) for one in cells}
    obeys = not any(broken.values()) and np.isfinite(step.protected(cells, protect)[base]).all()
    chosen = base if obeys else step.smallest(count, step.allowed(cells, protect, count))
    total, before = (float(step.flat[some].sum(dtype=np.float64)) for some in (chosen, base))
    return Guarded(
        masks=step.masks(chosen),
        budget=count,
        swaps=int(np.count_nonzero(base & ~chosen)),
        score=total,
        score_lost=total - before,
        broken_without=broken,
    )


class _Step:
    """All candidate weights of a pruning step in one row, in the order of the scores' names."""

    def __init__(self, scores: Arrays, state: State):
        self.scores, self.state = scores, state
        if not scores:
            raise BadInput("no weights to prune; give the scores of at least one parameter")
        self.flat = np.concatenate([np.asarray(values, dtype=np.float64).ravel() for values in scores.values()])
        starts = np.cumsum([0, *(np.size(values) for values in scores.values())])
        self.slices = {name: slice(a, b) for name, a, b in zip(scores, starts[:-1], starts[1:], strict=True)}
        if np.isnan(self.flat).any() or (self.flat == -np.inf).any():
            raise BadInput("a score is NaN or −inf; scores are numbers, +inf for what must stay")
        self.keys = self._ordered()
        self.gone = self._row(state.pruned)
        self.keys[self.gone] = np.inf

    def _row(self, arrays: Arrays) -> np.ndarray:
        """bool [weight] of bool arrays by parameter."""
        found = np.zeros(len(self.flat), dtype=bool)
        for name in arrays.keys() & self.slices.keys():
            found[self.slices[name]] = np.asarray(arrays[name], bool).ravel()
        return found

    def _ordered(self) -> np.ndarray:
        """What to go by: the scores, or their ranks after all that a method would take."""
        later = ~self._row(self.state.first)
        if later.all():
            return self.flat.copy()
        keys = np.empty(len(self.flat))
        keys[np.lexsort((self.flat, later))] = np.arange(len(self.flat))
        keys[(self.flat == np.inf) & later] = np.inf
        return keys

    def count(self, budget: int | float) -> int:
        """The budget as a number of weights."""
        n, share = len(self.flat) - int(np.count_nonzero(self.gone)), isinstance(budget, float)
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
        for one in cells:
            dims = list(one.checked(tuple(protect)))
            for param in (param for layer in one.params for param in layer if dims and param.name in self.slices):
                shaped = keys[self.slices[param.name]].reshape(np.shape(self.scores[param.name]))
                np.moveaxis(shaped, param.axis, 0)[dims] = np.inf
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
        values, places = [], []
        for param in cells.params[layer]:
            off = self.state.off(param.name)
            if param.name in self.slices:
                shape, where = np.shape(self.scores[param.name]), self.slices[param.name]
                own, place = keys[where].reshape(shape), np.arange(where.start, where.stop).reshape(shape)
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

    def broken(self, cells: Cells, chosen: np.ndarray) -> np.ndarray:
        """Positions that are removed in too many layers once `chosen` is pruned."""
        if cells.beyond_masks:
            return np.arange(0)
        now = {name: ~stays for name, stays in self.masks(chosen).items()}
        return broken(cells, State({**self.state.pruned, **now}, self.state.zero))

    def masks(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """True where a weight stays, after earlier masks and this one."""
        stays = ~(chosen | self.gone)
        return {name: stays[self.slices[name]].reshape(np.shape(values)) for name, values in self.scores.items()}


def broken(cells: Cells, state: State) -> np.ndarray:
    """Positions of a stream that are removed in too many layers, ascending."""
    return cells.broken(cells.removed(cells.off({p.name: state.off(p.name) for layer in cells.params for p in layer})))


# --- around torch.nn.utils.prune -----------------------------------------------------------------------------------


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
    bound = arch.bind(stacks or arch.stacks_of(config, type(module).__name__), names, config)
    chosen = [one for one in bound if stack in (None, one.name)]
    if not chosen:
        raise BadInput(f"no stream {stack!r}; streams are {', '.join(one.name for one in bound)}")
    shapes = {name: tuple(tensor.shape) for name, tensor in names.items()}
    return SamePositionGuard(module, [Cells.of(one, shapes, rule or Removal()) for one in chosen], tuple(protect))


class SamePositionGuard:
    """Prunes a model with methods of `torch.nn.utils.prune` such that every position stays in enough layers.

    The method chooses; where its choice would remove a position in too many layers, the guard keeps that position's largest
    weights and prunes as many others, the smallest ones.

    Attributes:
        last: what the last pruning cost; None before the first, and for whole channels.
    """

    def __init__(self, model: "nn.Module", cells: Sequence[Cells], protect: tuple[int, ...]):
        self.model, self.cells, self.protect = model, list(cells), protect
        self.last: Guarded | None = None
        self._names: dict[tuple[int, str], str] = {
            (id(module), leaf.removesuffix("_orig")): f"{path}.{leaf}".lstrip(".").removesuffix("_orig")
            for path, module in model.named_modules(remove_duplicate=False)
            for leaf, _ in module.named_parameters(recurse=False)
        }

    def method(self, parameters: "Iterable[Target]", base: Any) -> Any:
        """`base`, an unstructured method, under guard: for `prune.global_unstructured` on the same `parameters`.

        Raises:
            BadInput: a parameter that is not the model's; a method that prunes whole channels.
        """
        if base.PRUNING_TYPE != "unstructured":
            raise BadInput(
                f"{base.__name__} prunes whole channels of one tensor; use guard.apply(module, name, {base.__name__}, …)"
            )
        return self._guarding([(self._name(module, name), module, name) for module, name in parameters], base)

    def apply(self, module: "nn.Module", name: str, base: Any, *args: Any, **options: Any) -> "nn.Module":
        """Prune one tensor by `base` under guard, as `base.apply(module, name, …)` would without one.

        `importance_scores` may be given among the options. A structured method must prune along the stream (whole positions),
        or the guard only checks what it did.

        Raises:
            BadInput: the budget is more than the constraint leaves, or a structured method breaks it.
        """
        from torch.nn.utils import prune

        parameter = self._name(module, name)
        scores = options.pop("importance_scores", None)
        scores = getattr(module, name).detach() if scores is None else scores
        mask, inner = _mask_of(module, name).clone(), base(*args, **options)
        inner._tensor_name = name
        if base.PRUNING_TYPE == "structured":
            new = self._structured(parameter, inner, scores, mask)
        else:
            container = prune.PruningContainer()
            guarding = self._guarding([(parameter, module, name)], lambda: inner)()
            container._tensor_name = guarding._tensor_name = name
            container.add_pruning_method(guarding)
            new = container.compute_mask(scores, mask)
        prune.custom_from_mask(module, name, mask=new)
        return module

    def broken(self) -> dict[str, tuple[int, ...]]:
        """Positions by stream that are removed in too many layers, as the model is now."""
        state = self._state()
        return {one.bound.name: tuple(broken(one, state).tolist()) for one in self.cells}

    def _guarding(self, targets: Any, make: Any) -> Any:
        """A pruning method that asks what `make(**options)` would prune of the targets, and puts it right."""
        from torch.nn.utils import prune

        guard = self

        class Guarding(prune.BasePruningMethod):
            """A pruning method whose masks obey the guard."""

            PRUNING_TYPE = "unstructured"

            def __init__(self, **options: Any):
                self.inner = make(**options)

            def compute_mask(self, t: "Tensor", default_mask: "Tensor") -> "Tensor":
                return guard._unstructured(targets, self.inner, t, default_mask)

        return Guarding

    def _name(self, module: "nn.Module", name: str) -> str:
        found = self._names.get((id(module), name))
        if found is None:
            raise BadInput(
                f"{type(module).__name__}.{name} is no parameter of the guarded model; take it from that model"
            )
        return found

    def _state(self) -> State:
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
        return State(pruned, zero)

    def _unstructured(self, targets: Any, inner: Any, t: "Tensor", default_mask: "Tensor") -> "Tensor":
        """The method's mask of `t` (all weights of the targets, or those not yet pruned), put right."""
        import torch

        masks = [_mask_of(module, name) for _, module, name in targets]
        flat = torch.cat([mask.reshape(-1) for mask in masks]).to(t.device) == 1
        here = torch.ones_like(flat) if t.numel() == flat.numel() else flat
        if int(here.sum()) != t.numel():
            raise BadInput(f"{t.numel():,} weights are to be pruned, {int(flat.sum()):,} of the guard's parameters are left; "
                           "give the same parameters to guard.method and to the pruning function")  # fmt: skip
        chosen = inner.compute_mask(t, default_mask)
        took = torch.zeros_like(flat)
        took[here] = (chosen.reshape(-1) == 0) & (default_mask.reshape(-1) != 0)
        sizes = torch.zeros(len(flat), dtype=torch.float64, device=t.device)
        sizes[here] = t.detach().reshape(-1).abs().double()
        ends = [mask.numel() for mask in masks]

        def by_name(row: "Tensor") -> dict[str, np.ndarray]:
            parts = zip(targets, masks, row.split(ends), strict=True)
            return {name: part.reshape(mask.shape).cpu().numpy() for (name, _, _), mask, part in parts}

        state = self._state()
        state = State(dict(state.pruned) | by_name(~flat), state.zero, by_name(took))
        self.last = guarded_masks(by_name(sizes), int(took.sum()), self.cells, protect=self.protect, state=state)
        stays = np.concatenate([self.last.masks[name].ravel() for name, _, _ in targets])
        return torch.from_numpy(stays).to(t.device)[here].reshape(t.shape).to(default_mask.dtype)

    def _structured(self, parameter: str, inner: Any, scores: "Tensor", mask: "Tensor") -> "Tensor":
        """The method's mask of whole channels, with channels swapped where they are positions of the stream."""
        new = inner.compute_mask(scores, mask) * mask
        dim, state = inner.dim % scores.ndim, self._state()
        for one in self.cells:
            for layer, params in enumerate(one.params):
                for param in (p for p in params if p.name == parameter):
                    if param.axis % scores.ndim == dim:
                        new = self._swap(one, layer, dim, (scores, mask, new), state)
                    gone = dict(state.pruned) | {parameter: (new == 0).cpu().numpy()}
                    if len(dims := broken(one, State(gone, state.zero))):
                        raise BadInput(
                            f"{parameter}: {type(inner).__name__} along axis {dim} would remove position {dims[0]} in "
                            f"{one.limit} of {one.n_layers} layers; lower the amount"
                        )
        self.last = None
        return new.to(mask.dtype)

    def _swap(
        self, cells: Cells, layer: int, dim: int, tensors: "tuple[Tensor, Tensor, Tensor]", state: State
    ) -> "Tensor":
        """Let only positions go that stay in enough other layers: the method's first, then those of least norm."""
        import torch

        scores, mask, new = tensors
        others = [axis for axis in range(scores.ndim) if axis != dim]
        off = cells.off({p.name: state.off(p.name) for params in cells.params for p in params})
        free = np.delete(cells.removed(off), layer, axis=0).sum(axis=0) < cells.limit - 1
        free[list(self.protect)] = False
        alive = (mask.sum(dim=others) != 0).cpu().numpy()
        took = (new.sum(dim=others) == 0).cpu().numpy() & alive
        count, allowed = int(took.sum()), np.flatnonzero(free & alive)
        if len(allowed) < count:
            raise BadInput(
                f"{len(allowed)} positions can be pruned within the constraint, the budget is {count}; lower the amount"
            )
        norm = torch.linalg.vector_norm((scores * mask).float(), dim=others).cpu().numpy()
        order = allowed[np.lexsort((norm[allowed], ~took[allowed]))][:count]
        stays = torch.ones(scores.shape[dim], dtype=mask.dtype, device=mask.device)
        stays[torch.as_tensor(order.copy(), device=mask.device)] = 0
        return mask * stays.reshape([-1 if axis == dim else 1 for axis in range(scores.ndim)])


def _mask_of(module: "nn.Module", name: str) -> "Tensor":
    """The mask of a parameter as it is, ones where it has none."""
    import torch

    mask = getattr(module, f"{name}_mask", None)
    found: Tensor = torch.ones_like(getattr(module, name).detach()) if mask is None else mask.detach()
    return found
