"""Pruning masks that obey the constraint and meet their budget exactly: `guarded_masks`.

cells = Cells.of(bound, shapes, Removal())
found = guarded_masks({name: abs(weights)}, budget=10_000, cells=[cells])
found.masks["encoder.layer.0.output.LayerNorm.weight"]        # bool, True where the weight stays
found.swaps, found.score_lost                                 # what it cost

For each position, the layers in which it may go are those that magnitude alone would empty first; in each other layer the
last weights of the position stay. Where a cell is removed only when all its weights are (norms, and rows at row_fraction 1),
such sets form a matroid, and this is then the mask of least score among all that obey.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.pruning.removal import Cells, per_dim_off

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
    scores: Arrays,
    budget: int | float,
    cells: Sequence[Cells],
    *,
    protect: Sequence[int] = (),
    state: State | None = None,
) -> Guarded:
    """Prune `budget` weights of least score such that no position is removed in too many layers.

    `budget` is a number of weights, or a share in [0, 1] of those not yet pruned (rounded, as torch does). `scores` is the
    importance of each weight; one of +inf never goes. Weights of positions in `protect` never go either.

    Raises:
        BadInput: the budget is more than the constraint leaves, with the most that is possible; scores that are no
            numbers; or masks that break the constraint before anything is pruned.
    """
    work = _Work(scores, state or State())
    count = work.count(budget)
    base = work.smallest(count, work.keys)
    broken = {one.bound.name: tuple(one.broken(work.removed(one, base)).tolist()) for one in cells}
    obeys = not any(broken.values()) and np.isfinite(work.protected(cells, protect)[base]).all()
    chosen = base if obeys else work.smallest(count, work.allowed(cells, protect, count))
    total, before = (float(work.flat[some].sum(dtype=np.float64)) for some in (chosen, base))
    return Guarded(
        masks=work.masks(chosen),
        budget=count,
        swaps=int(np.count_nonzero(base & ~chosen)),
        score=total,
        score_lost=total - before,
        broken_without=broken,
    )


class _Work:
    """All candidate weights in one row, in the order of the scores' names."""

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
        for name, gone in state.pruned.items():
            if name in self.slices:
                self.keys[self.slices[name]][np.asarray(gone, bool).ravel()] = np.inf

    def _ordered(self) -> np.ndarray:
        """What to go by: the scores, or their ranks after all that a method would take."""
        if not any(np.any(values) for values in self.state.first.values()):
            return self.flat.copy()
        later = np.ones(len(self.flat), dtype=bool)
        for name, values in self.state.first.items():
            later[self.slices[name]] = ~np.asarray(values, bool).ravel()
        keys = np.empty(len(self.flat))
        keys[np.lexsort((self.flat, later))] = np.arange(len(self.flat))
        keys[(self.flat == np.inf) & later] = np.inf
        return keys

    def count(self, budget: int | float) -> int:
        """The budget as a number of weights."""
        n = len(self.flat) - sum(
            int(np.count_nonzero(gone)) for name, gone in self.state.pruned.items() if name in self.slices
        )
        share = isinstance(budget, float)
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
        chosen = np.zeros(len(keys), dtype=bool)
        if count:
            edge = np.partition(keys, count - 1)[count - 1]
            chosen = keys < edge
            equal = np.flatnonzero(keys == edge)
            chosen[equal[: count - int(chosen.sum())]] = True
        return chosen

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
            self._protect(one, protect, keys)
        return keys

    def _protect(self, cells: Cells, protect: Sequence[int], keys: np.ndarray) -> None:
        bad = [dim for dim in protect if not 0 <= dim < cells.width]
        if bad:
            raise BadInput(f"position {bad[0]} does not exist; stream {cells.bound.name!r} has 0 to {cells.width - 1}")
        for layer in cells.params:
            for param in layer:
                if protect and param.name in self.slices:
                    shaped = keys[self.slices[param.name]].reshape(np.shape(self.scores[param.name]))
                    np.moveaxis(shaped, param.axis, 0)[list(protect)] = np.inf

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
        if (gone >= cells.limit).any():
            dims = np.flatnonzero(gone >= cells.limit)
            raise BadInput(
                f"stream {cells.bound.name!r}: position {dims[0]} is already removed in {int(gone[dims[0]])} of "
                f"{cells.n_layers} layers, before anything is pruned; start from masks that obey the constraint"
            )
        first = np.where(times == -np.inf, -np.inf, -stay if spare else times)
        order = np.argsort(first, axis=0, kind="stable")
        blocked = np.ones(times.shape, dtype=bool)
        np.put_along_axis(blocked, order[: cells.limit - 1], False, axis=0)
        blocked &= np.isfinite(times)
        for layer in range(cells.n_layers):
            dims = np.flatnonzero(blocked[layer])
            if not len(dims):
                continue
            values, places = self._cell_keys(cells, layer, keys, dims)
            last = np.argsort(values, axis=1, kind="stable")[:, int(cells.needed[layer]) - 1 :]
            which = np.take_along_axis(places, last, axis=1)
            finite = np.isfinite(np.take_along_axis(values, last, axis=1))
            keys[which[finite]] = np.inf

    def _cell_keys(
        self, cells: Cells, layer: int, keys: np.ndarray, dims: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(keys, places in the row) of each position's weights, [dim, weight]: −inf for what is off, +inf for what stays."""
        values, places = [], []
        dims = np.arange(cells.width) if dims is None else dims
        for param in cells.params[layer]:
            off = self._off(param.name)
            if param.name in self.slices:
                shape = np.shape(self.scores[param.name])
                start = self.slices[param.name].start
                own = keys[self.slices[param.name]].reshape(shape)
                where = np.arange(start, start + own.size).reshape(shape)
            elif off is not None:
                own, where = np.full(off.shape, np.inf), np.full(off.shape, -1)
            else:
                continue
            if off is not None:
                own = np.where(off.reshape(own.shape), -np.inf, own)
            values.append(np.moveaxis(own, param.axis, 0).reshape(cells.width, -1)[dims])
            places.append(np.moveaxis(where, param.axis, 0).reshape(cells.width, -1)[dims])
        known = sum(part.shape[1] for part in values)
        if (lacking := int(cells.total[layer]) - known) > 0:  # parameters that this pruning does not touch
            values.append(np.full((len(dims), lacking), np.inf))
            places.append(np.full((len(dims), lacking), -1))
        return np.concatenate(values, axis=1), np.concatenate(places, axis=1)

    def _off(self, name: str) -> np.ndarray | None:
        """What is off already, by a mask or as it is."""
        found = [np.asarray(part[name], bool) for part in (self.state.pruned, self.state.zero) if name in part]
        return None if not found else np.logical_or.reduce(found)

    def removed(self, cells: Cells, chosen: np.ndarray) -> np.ndarray:
        """bool [layer, dim]: which positions are removed once `chosen` is pruned."""
        off = np.zeros((cells.n_layers, cells.width), dtype=np.int64)
        if cells.beyond_masks:
            return cells.removed(off)
        for layer, params in enumerate(cells.params):
            for param in params:
                gone = self._off(param.name)
                if param.name in self.slices:
                    now = chosen[self.slices[param.name]].reshape(np.shape(self.scores[param.name]))
                    gone = now if gone is None else now | gone.reshape(now.shape)
                if gone is not None:
                    off[layer] += per_dim_off(gone, param)
        return cells.removed(off)

    def masks(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """True where a weight stays, after earlier masks and this one."""
        made = {}
        for name, values in self.scores.items():
            stays = ~chosen[self.slices[name]].reshape(np.shape(values))
            earlier = self.state.pruned.get(name)
            made[name] = stays if earlier is None else stays & ~np.asarray(earlier, bool).reshape(stays.shape)
        return made
