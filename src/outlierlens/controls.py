"""Fair controls for a set of dimensions: random sets of its size, and weights as large at other positions.

random_sets(width, size, avoid=found, n=99, seed=0)
matched_sets(magnitude, plan, avoid=found, n=5, seed=0)     # other positions in each layer
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.damage import Condition, Control
from outlierlens.errors import BadInput

Plan = dict[int, tuple[int, ...]]  # {layer: dimensions off}
NEAREST = 8  # how many weights of about the same size a matched control draws from, per dimension it needs


@dataclass(frozen=True)
class RandomSets:
    """Random sets of dimensions: `free` avoids what the rules found, `anywhere` does not.

    A set drawn from anywhere that misses the found dimensions is as good as one drawn from the free ones, so the two
    families share such sets and each is measured once.
    """

    free: tuple[tuple[int, ...], ...]
    anywhere: tuple[tuple[int, ...], ...]


def random_sets(width: int, size: int, *, avoid: Collection[int], n: int, seed: int) -> RandomSets:
    """`n` sets of `size` dimensions in both families, sorted within a set, drawn with `seed`.

    Raises:
        BadInput: fewer than `size` dimensions are left after `avoid`.
    """
    allowed = np.setdiff1d(np.arange(width), np.array(sorted(avoid), dtype=int))
    if len(allowed) < size:
        raise BadInput(f"only {len(allowed)} of {width} dimensions are free: too few for a random set of {size}")
    random = np.random.default_rng(seed)

    def draw(pool: np.ndarray) -> tuple[int, ...]:
        return tuple(sorted(random.choice(pool, size=size, replace=False).tolist()))

    anywhere = tuple(draw(np.arange(width)) for _ in range(n))
    free = [dims for dims in anywhere if not set(dims) & set(avoid)]
    free += [draw(allowed) for _ in range(n - len(free))]
    return RandomSets(tuple(free), anywhere)


def relabelled(plan: Plan, drawn: Sequence[int]) -> Plan:
    """`plan` with each of its dimensions, in ascending order, replaced by one of `drawn` in every layer it is off in.

    A dimension that is off in several layers stays one dimension: what is compared is which positions, not how many.
    """
    names = sorted({dim for dims in plan.values() for dim in dims})
    new = dict(zip(names, drawn, strict=True))
    return {layer: tuple(sorted(new[dim] for dim in dims)) for layer, dims in plan.items()}


@dataclass(frozen=True)
class Matched:
    """A per-layer set of positions with weights about as extreme; `closeness` is the median of theirs over the wanted."""

    plan: Plan
    closeness: float


def matched_sets(magnitude: np.ndarray, plan: Plan, *, avoid: Collection[int], n: int, seed: int) -> list[Matched]:
    """`n` sets whose weights are as extreme as those of `plan`, at other positions in every layer.

    `magnitude` is [layer, dim], how extreme each position's weights are. In each layer every dimension of the plan is
    replaced by one of the positions with the nearest magnitude, never one of the plan's dimensions or of `avoid`, and no
    position serves twice within a set while fresh ones are left: what is taken away is as large, but not in one place.
    A weight without its like elsewhere gets the nearest there is, and `closeness` says how near that was.
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
        ratios = []
        for layer, dims in plan.items():
            here: list[int] = []
            for dim in dims:
                fresh = [d for d in free if d not in used and d not in here]
                pool = np.array(fresh or [d for d in free if d not in here])
                distance = np.abs(magnitude[layer, pool] - magnitude[layer, dim])
                pick = int(random.choice(pool[np.argsort(distance, kind="stable")[:NEAREST]]))
                here.append(pick)
                ratios.append(magnitude[layer, pick] / max(magnitude[layer, dim], 1e-12))
            used.update(here)
            chosen[layer] = tuple(sorted(here))
        sets.append(Matched(chosen, float(np.median(ratios))))
    return sets


def compare_with(kind: str, chosen: Condition, family: Sequence[Condition], closeness: float | None = None) -> Control:
    """Rank p, median, 95th percentile and mean of a control family, and the chosen change as their multiple."""
    # A loss that is no number any more is as bad as one that is infinite.
    changes = np.nan_to_num(np.array([condition.change for condition in family]), nan=np.inf, posinf=np.inf)
    change = float(np.nan_to_num(chosen.change, nan=np.inf, posinf=np.inf))
    median, high, mean = figures_of(changes)
    return Control(
        kind=kind,
        conditions=tuple(family),
        p=rank_p(change, changes),
        median=median,
        percentile_95=high,
        mean=mean,
        ratio_to_median=times(change, median),
        ratio_to_percentile_95=times(change, high),
        ratio_to_mean=times(change, mean),
        closeness=closeness,
    )


def rank_p(chosen: float, controls: np.ndarray) -> float:
    """(1 + #{control >= chosen}) / (1 + n)."""
    return float((1 + np.sum(controls >= chosen)) / (1 + len(controls)))


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
