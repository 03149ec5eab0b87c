"""Fair controls for a set of dimensions: random sets of its size, and weights as large at other positions; how many of each."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag

TEXTS = 16  # where no limit is given


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Control sets of an ablation."""

    n_random: Annotated[int | None, Flag("--random"), Ge(0)] = None
    """Random sets of the same size; 0 leaves them out. Default: 19."""
    n_matched: Annotated[int | None, Flag("--matched"), Ge(0)] = None
    """Sets of the same size at other positions by layer; 0 leaves them out. Default: 5."""

    @property
    def n_sets(self) -> tuple[int, int]:
        """Random and matched sets, each at least 0."""
        return (19 if self.n_random is None else self.n_random), (5 if self.n_matched is None else self.n_matched)


# --- controls --------------------------------------------------------------------------------------------------------

Plan = dict[int, tuple[int, ...]]  # {layer: dimensions off}
NEAREST = 8  # how many weights of about the same size a matched control draws from, per dimension it needs


def random_sets(
    width: int,
    size: int,
    *,
    n: int,
    seed: int,
    other_than: Collection[int] = (),
    avoid: Collection[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """`n` different sets of `size` dimensions, none of them the tested set `other_than`, drawn with `seed`.

    They are drawn from all dimensions and may share some with the tested set. A set that is drawn at random itself is
    exchangeable with them, so its rank among them is a p-value. Sets that `avoid` dimensions, those tested or found,
    describe ordinary dimensions and give none: a tested set that holds the one dimension that matters has no equal there.
    There are fewer than `n` where no more exist. Sorted within a set.

    Raises:
        BadInput: there is no such set.
    """
    free, tested = np.setdiff1d(np.arange(width), sorted(avoid)), tuple(sorted(other_than))
    n_sets = math.comb(len(free), size) - (len(tested) == size and not set(tested) & set(avoid))
    if n_sets < 1:
        raise BadInput(
            f"no other set of {size} can be drawn from {len(free)} of {width} dimensions; name fewer, or ask for 0 random sets"
        )
    random = np.random.default_rng(seed)
    sets: dict[tuple[int, ...], None] = {}
    n_drawn = 0
    while len(sets) < min(n, n_sets):
        pool = np.arange(width) if n_drawn < n else free  # the first are the same with and without `avoid`
        drawn, n_drawn = tuple(sorted(random.choice(pool, size=size, replace=False).tolist())), n_drawn + 1
        if drawn != tested and not set(drawn) & set(avoid):
            sets[drawn] = None
    return tuple(sets)


def random_families(
    width: int, dims: Collection[int], *, avoid: Collection[int], n: int, seed: int
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Two families: "random", which `dims` are ranked among, and "ordinary", without those that hold one of `dims` or `avoid`.

    The ordinary ones are the same draws, and as many more as `n` needs; they are left out where they are the random ones, and
    where there are none.
    """
    random = random_sets(width, len(dims), n=n, seed=seed, other_than=dims)
    spared = {*dims, *avoid}
    if width - len(spared) < len(dims):
        return {"random": random}
    ordinary = random_sets(width, len(dims), n=n, seed=seed, avoid=spared)
    return {"random": random} if ordinary == random else {"random": random, "ordinary": ordinary}


def relabelled(plan: Plan, drawn: Sequence[int]) -> Plan:
    """`plan` with each of its dimensions, in ascending order, replaced by one of `drawn` in every layer of its ablation.

    A dimension that is off in several layers stays one dimension: what is compared is which positions, not how many.
    """
    names = sorted({dim for dims in plan.values() for dim in dims})
    new = dict(zip(names, drawn, strict=True))
    return {layer: tuple(sorted(new[dim] for dim in dims)) for layer, dims in plan.items()}


@dataclass(frozen=True)
class MatchedSet:
    """A per-layer set of positions with weights about as extreme; `closeness` is the median of theirs over the wanted."""

    plan: Plan
    closeness: float


def matched_sets(
    magnitude: np.ndarray,
    plan: Plan,
    *,
    avoid: Collection[int],
    n: int,
    seed: int,
    blocks: Sequence[str] | None = None,
) -> list[MatchedSet]:
    """`n` sets whose weights are as extreme as those of `plan`, at other positions in every layer.

    `magnitude` is [layer, dim], how extreme each position's weights are. In each layer every dimension of the plan is
    replaced by one of the positions with the nearest magnitude, never one of the plan's dimensions or of `avoid`, and no
    position serves twice within a set while fresh ones are left: what is taken away is as large, but not in one place.
    A weight without its like elsewhere gets the nearest there is, and `closeness` says how near that was. A rank among
    them is no p-value: the chosen weights are the most extreme ones, and stand in one place.

    `blocks` names the block that each layer runs: layers that share one have the same positions, as they have the same weights.
    """
    width = magnitude.shape[1]
    taken = {dim for dims in plan.values() for dim in dims} | set(avoid)
    most = max(len(dims) for dims in plan.values())
    if width - len(taken) < most:
        raise BadInput(f"only {width - len(taken)} of {width} dimensions are free: too few for a matched control")
    random = np.random.default_rng(seed)
    free = np.setdiff1d(np.arange(width), np.array(sorted(taken), dtype=int))
    sets = []
    for _ in range(n):
        used: set[int] = set()
        chosen: Plan = {}
        of_block: dict[tuple[object, tuple[int, ...]], tuple[int, ...]] = {}
        ratios = []
        for layer, dims in plan.items():
            block = (blocks[layer] if blocks else layer, dims)
            if block in of_block:
                chosen[layer] = of_block[block]
                continue
            here: list[int] = []
            for dim in dims:
                fresh = [d for d in free if d not in used and d not in here]
                pool = np.array(fresh or [d for d in free if d not in here])
                distance = np.abs(magnitude[layer, pool] - magnitude[layer, dim])
                pick = int(random.choice(pool[np.argsort(distance, kind="stable")[:NEAREST]]))
                here.append(pick)
                ratios.append(magnitude[layer, pick] / max(magnitude[layer, dim], 1e-12))
            used.update(here)
            chosen[layer] = of_block[block] = tuple(sorted(here))
        sets.append(MatchedSet(chosen, float(np.median(ratios))))
    return sets


def random_neurons(
    pools: Mapping[int, Sequence[int]], plan: Plan, *, avoid: Mapping[int, Collection[int]], n: int, seed: int
) -> dict[str, tuple[Plan, ...]]:
    """`random_families` of neurons, or experts: as many in each layer of `plan` as it has there, drawn from `pools` {layer}.

    A neuron's number means nothing in another layer, so each layer's are drawn for themselves; "random" ones from the
    whole pool, so that a set drawn at random is exchangeable with them, "ordinary" ones from those neither in the plan nor in
    `avoid` {layer: neurons}. The tested set itself is never among them.

    Raises:
        BadInput: the layers have no others to draw from.
    """
    found: dict[str, tuple[Plan, ...]] = {}
    for kind in ("random", "ordinary"):
        spared = {
            layer: {*dims, *avoid.get(layer, ())} if kind == "ordinary" else set() for layer, dims in plan.items()
        }
        free = {layer: np.setdiff1d(pools[layer], sorted(spared[layer])) for layer in plan}
        if kind == "ordinary" and any(len(free[layer]) < len(dims) for layer, dims in plan.items()):
            continue
        n_sets = math.prod(math.comb(len(free[layer]), len(dims)) for layer, dims in plan.items())
        n_sets -= kind == "random"  # the tested one
        if n_sets < 1:
            sizes = ", ".join(str(len(pools[layer])) for layer in plan)
            raise BadInput(f"no other set can be drawn from {sizes} in these layers; ask for 0 random sets")
        random = np.random.default_rng([seed, kind == "ordinary"])
        tested, sets = plan_key(plan), dict[str, Plan]()
        while len(sets) < min(n, n_sets):
            drawn = {
                layer: tuple(sorted(random.choice(free[layer], size=len(dims), replace=False).tolist()))
                for layer, dims in plan.items()
            }
            if (key := plan_key(drawn)) != tested:
                sets[key] = drawn
        found[kind] = tuple(sets.values())
    return found


def matched_neurons(
    magnitude: np.ndarray, plan: Plan, *, avoid: Mapping[int, Collection[int]], n: int, seed: int
) -> list[MatchedSet]:
    """`matched_sets` of neurons: in each layer other neurons of the same layer with the nearest `magnitude` [layer, neuron].

    `avoid` is {layer: neurons}.
    """
    by_layer = [
        matched_sets(magnitude[[layer]], {0: dims}, avoid=avoid.get(layer, ()), n=n, seed=seed + 1000 * layer)
        for layer, dims in plan.items()
    ]
    return [
        MatchedSet(
            {layer: one.plan[0] for layer, one in zip(plan, sets, strict=True)},
            float(np.median([one.closeness for one in sets])),
        )
        for sets in zip(*by_layer, strict=True)
    ]


def figures_of(changes: np.ndarray) -> tuple[float, float, float]:
    """(median, 95th percentile, mean) of controls' changes [set]; inf where infinities leave no number."""
    with np.errstate(invalid="ignore"):  # between infinities there is no quantile
        figures = (np.median(changes), np.quantile(changes, 0.95), np.mean(changes))
    median, high, mean = (float(np.nan_to_num(figure, nan=np.inf, posinf=np.inf)) for figure in figures)
    return median, high, mean


def times(change: float, reference: float) -> float | None:
    """`change` as a multiple of `reference`; None where that says nothing."""
    # A mean that rounding alone keeps from 0 is 0.
    return change / reference if reference > 1e-12 * max(1.0, abs(change)) and np.isfinite(reference) else None


def plan_key(plan: Plan) -> str:
    """The name of a plan in row files."""
    return json.dumps(sorted((layer, sorted(dims)) for layer, dims in plan.items()), separators=(",", ":"))
