"""Which layer is taken for each fix, and what the fix changes there: with an interval.

    for one in choices(measured, elsewhere, names, options): one.how, one.layer, one.change, one.low, one.high

A layer is chosen three ways: the best on the very pairs that are reported (the paper's way, too good by what chance adds),
the best on other pairs, and the last. Raw vectors choose theirs the same way, so a fix is compared with raw at its best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.similar import Choice, Scores
from outlierlens.similarity.table import StsPairs
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
    measured: Measured, other: Elsewhere | None, names: Names, *, seed: int, n_draws: int = N_DRAWS
) -> Iterator[Choice]:
    """One choice for each way and fix; intervals are BCa at 95 %, pairs drawn together for fix and raw."""
    pooled = measured.scores.pooled
    statistic = Statistic("spearman", measured.pairs.gold)
    kept: dict[tuple[int, int, int], tuple[float, float]] = {}
    ways: list[tuple[str, str, np.ndarray | None]] = [("best", "these pairs", pooled)]
    if other is not None:
        ways.append(("held out", other.says, other.pooled))
    ways.append(("last", "", None))
    for how, says, by in ways:
        best = np.full(pooled.shape[1], len(pooled) - 1) if by is None else by.argmax(0)
        for fix, name in enumerate(names.fixes):
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
