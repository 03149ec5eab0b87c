"""Which layer is taken for each fix, and what the fix changes there: with an interval.

    for one in choices(measured, elsewhere, names, options): one.how, one.layer, one.change, one.low, one.high

A layer is chosen three ways: the best on the very pairs that are reported (the paper's way, too good by what chance adds),
the best on other pairs, and the last. Raw vectors choose theirs the same way, so a fix is compared with raw at its best.
Where that layer has nothing to clip, the comparison says nothing about clipping: so clip is also compared at the layer, of
those that are clipped, where raw vectors are best.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from outlierlens.experiments.similarity.result import CLIPPED_LAYER, Choice, Scores
from outlierlens.experiments.similarity.table import StsPairs
from outlierlens.tasks.metrics import N_DRAWS, Statistic

MIN_DEV = 100  # pairs: fewer say little about a layer


@dataclass(frozen=True)
class Measured:
    """Pairs with their cosines [pair, layer, fix] and scores [layer, fix]."""

    pairs: StsPairs
    cosines: np.ndarray
    scores: Scores


@dataclass(frozen=True)
class Elsewhere:
    """Scores [layer, fix] on other pairs than the reported ones, and which these are, in words."""

    says: str
    pooled: np.ndarray


@dataclass(frozen=True)
class Names:
    """Of layers and fixes; the first fix is "raw"."""

    layers: tuple[str, ...]
    fixes: tuple[str, ...]


class _Way(NamedTuple):
    """One way to choose layers: on what scores, which row each fix gets, and the fixes that it is for."""

    how: str
    says: str
    by: np.ndarray | None
    best: np.ndarray
    fixes: Sequence[int]


def elsewhere(measured: Measured, dev: Sequence[Measured], others: Sequence[Measured]) -> Elsewhere | None:
    """Where the layer of one task can be chosen: on its own dev split, on that of STS-B, or on the other tasks; else None."""
    for name in (measured.pairs.task.name, "stsb"):
        for one in dev:
            if one.pairs.task.name == name:
                split = "validation split" if name == measured.pairs.task.name else "STS-B's validation split"
                return Elsewhere(f"{split} ({len(one.pairs):,} pairs)", one.scores.pooled)
    rest = [one for one in others if one.pairs.task.name != measured.pairs.task.name]
    if not rest:
        return None
    names = ", ".join(one.pairs.task.title for one in rest)
    return Elsewhere(f"mean of {names}", np.mean([one.scores.pooled for one in rest], axis=0))


def choices(
    measured: Measured,
    other: Elsewhere | None,
    names: Names,
    *,
    clipped: Collection[str] = (),
    seed: int,
    n_draws: int = N_DRAWS,
) -> Iterator[Choice]:
    """One choice for each way and fix; intervals are at 95 %, pairs drawn together for fix and raw.

    `clipped` names the layers where the fix "clip" changes something.
    """
    pooled = measured.scores.pooled
    statistic = Statistic("spearman", measured.pairs.gold, measured.pairs.family)
    kept: dict[tuple[int, int, int], tuple[float, float]] = {}
    everywhere = range(pooled.shape[1])
    ways = [_Way("best", "these pairs", pooled, pooled.argmax(0), everywhere)]
    if other is not None:
        ways.append(_Way("held out", other.says, other.pooled, other.pooled.argmax(0), everywhere))
    ways.append(_Way("last", "", None, np.full(len(everywhere), len(pooled) - 1), everywhere))
    if rows := [row for row, layer in enumerate(names.layers) if layer in clipped]:
        seen, says = (pooled, "these pairs") if other is None else (other.pooled, other.says)
        row = max(rows, key=lambda one: float(seen[one, 0]))
        clips = [fix for fix in everywhere if names.fixes[fix] == "clip"]
        ways.append(_Way(CLIPPED_LAYER, f"raw vectors, {says}", seen, np.full(len(everywhere), row), clips))
    for how, says, by, best, fixes in ways:
        for fix in fixes:
            name = names.fixes[fix]
            layer, raw_layer = int(best[fix]), int(best[0])
            key = (fix, layer, raw_layer)
            if key not in kept:
                fixed, raw = measured.cosines[:, layer, fix], measured.cosines[:, raw_layer, 0]
                # The value of `Statistic` is a loss, so that the first of the two is the one that gains.
                kept[key] = statistic.interval(fixed, raw, seed=seed, n_draws=n_draws) if fix else (0.0, 0.0)
            yield Choice(
                fix=name,
                how=how,
                chosen_on=says,
                chosen_score=None if by is None else float(by[layer, fix]),
                layer=names.layers[layer],
                score=float(pooled[layer, fix]),
                raw_layer=names.layers[raw_layer],
                raw_score=float(pooled[raw_layer, 0]),
                change=float(pooled[layer, fix] - pooled[raw_layer, 0]),
                low=kept[key][0],
                high=kept[key][1],
            )
