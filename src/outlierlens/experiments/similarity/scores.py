"""Cosines of sentence pairs and their rank correlation with people, for many vectors at once.

    index = PairIndex.of(pairs, place)                          # place: sentence -> row of the vectors
    cosines = index.cosines(vectors, fix)                       # [pair]
    scores = score(pairs, cosines[:, None])                     # pooled, mean and weighted mean over subsets, each subset
    spearman(pairs, unit_vectors_of_another_model)              # one number for vectors that are at hand

Scores are Spearman's ρ in [−1, 1], equal to scipy's `spearmanr`; reports multiply by 100.

The layer and threshold above which a cosine says "the same", by trying all of them.

right = right_at(cosines, truth, GRID)                   # bool [pair, layer, threshold]
layer, place = best(right)                               # most right; of equals the first layer, then the lowest threshold
threshold, accuracy = best_cut(cosines, truth)           # of every threshold there is, [layer] each
said = crossed(cosines, truth, folds, GRID)              # bool [pair]: chosen on the other folds, said of each

Which layer is taken for each fix, and what the fix changes there: with an interval.

    for one in choices(measured, elsewhere, names, options): one.how, one.layer, one.change, one.low, one.high

A layer is chosen three ways: the best on the very pairs that are reported (the paper's way, too good by what chance adds),
the best on other pairs, and the last. Raw vectors choose theirs the same way, so a fix is compared with raw at its best.
Where that layer has nothing to clip, the comparison says nothing about clipping: so clip is also compared at the layer, of
those that are clipped, where raw vectors are best.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.similarity.result import CLIPPED_LAYER, Choice, Scores
from outlierlens.experiments.similarity.table import StsPairs
from outlierlens.statistics.ranks import correlations
from outlierlens.tasks.metrics import N_DRAWS, Statistic
from outlierlens.vectors.fixes import Fix

PAIRS_AT_ONCE = 4096
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # Luo et al. (2021), section 4.2
MIN_DEV = 100  # pairs: fewer say little about a layer


@dataclass(frozen=True)
class PairIndex:
    """Rows of the two sentences of each pair, in blocks.

    Attributes:
        blocks: (rows of the block's different sentences, place of the first among them [pair], of the second [pair]).
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    @classmethod
    def of(cls, pairs: StsPairs, place: Mapping[str, int]) -> "PairIndex":
        """The rows of `pairs`, where `place` says the row of each sentence."""
        rows = np.array([[place[text] for text in side] for side in (pairs.first, pairs.second)], dtype=np.int64)
        return cls.of_rows(rows[0], rows[1])

    @classmethod
    def of_rows(cls, first: np.ndarray, second: np.ndarray) -> "PairIndex":
        """Of rows [pair] of the first and of the second."""
        blocks = []
        for start in range(0, len(first), PAIRS_AT_ONCE):
            part = np.stack([first[start : start + PAIRS_AT_ONCE], second[start : start + PAIRS_AT_ONCE]])
            used, inverse = np.unique(part, return_inverse=True)
            inverse = inverse.reshape(part.shape)
            blocks.append((used, inverse[0], inverse[1]))
        return cls(tuple(blocks))

    def cosines(self, vectors: np.ndarray, fix: Fix | None = None) -> np.ndarray:
        """Cosine in [−1, 1] of each pair's vectors [row, dim] after `fix`, float64 [pair]; 0 where one has no length.

        Raises:
            BadInput: a vector is not finite.
        """
        found = []
        for used, first, second in self.blocks:
            chosen = np.asarray(vectors[used], dtype=np.float64)
            better = chosen if fix is None else fix.apply(chosen)
            length = np.sqrt(np.einsum("sd,sd->s", better, better))
            if not np.isfinite(length).all():
                raise BadInput(f"a vector to compare is NaN or infinite; {USE_FLOAT32}")
            unit = better / np.where(length > 0, length, 1)[:, None]
            found.append(np.einsum("pd,pd->p", unit[first], unit[second]))
        return np.clip(np.concatenate(found), -1, 1) if found else np.zeros(0)


def score(pairs: StsPairs, cosines: np.ndarray) -> Scores:
    """Spearman's ρ of `cosines` [pair, ...] with the scores that people gave, pooled and by subset.

    Pooled: all pairs together (mteb's way). Mean, weighted: over the subsets, each counting once or by its pairs (SentEval's
    two ways); without subsets they are the pooled one. A constant correlates with nothing: 0.
    """
    shape = cosines.shape[1:]
    flat = cosines.reshape(len(pairs), -1)
    pooled = correlations("spearman", pairs.gold, flat)
    names = pairs.subsets
    if not names:
        whole = pooled.reshape(shape)
        return Scores(whole, whole, whole, np.zeros((0, *shape)))
    of = np.array(pairs.subset)
    each = np.stack([correlations("spearman", pairs.gold[of == name], flat[of == name]) for name in names])
    sizes = np.array([(of == name).sum() for name in names], dtype=np.float64)
    mean, weighted = each.mean(0), sizes @ each / sizes.sum()
    return Scores(pooled.reshape(shape), mean.reshape(shape), weighted.reshape(shape), each.reshape(len(names), *shape))


def spearman(pairs: StsPairs, vectors: np.ndarray, place: Mapping[str, int] | None = None) -> float:
    """Pooled ρ of vectors [sentence, dim] whose rows are `pairs.sentences`, or where `place` says."""
    place = place or {text: i for i, text in enumerate(pairs.sentences)}
    return float(score(pairs, PairIndex.of(pairs, place).cosines(vectors)[:, None]).pooled[0])


def right_at(cosines: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """Whether "cosine above threshold" is what `truth` [pair] says, bool [pair, layer, threshold], of cosines [pair, layer]."""
    return (cosines[..., None] > np.asarray(thresholds)) == truth[:, None, None]


def best(right: np.ndarray) -> tuple[int, int]:
    """(layer, place of the threshold) with most right in [pair, layer, threshold]."""
    layer, place = np.unravel_index(int(right.sum(0).argmax()), right.shape[1:])
    return int(layer), int(place)


def best_cut(cosines: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(threshold, accuracy) [layer] of the threshold that tells most pairs of cosines [pair, layer] apart rightly.

    Thresholds lie midway between two different cosines, or below all or above all; of equally good ones the lowest is taken.
    """
    n = len(truth)
    order = np.argsort(cosines, axis=0, kind="stable")
    ascending = np.take_along_axis(cosines, order, axis=0)
    same = truth[order]  # [pair, layer]
    none = np.zeros((1, cosines.shape[1]), dtype=np.int64)
    # With k cosines below the threshold, right are those of them that are not the same, and the others that are.
    right = np.concatenate([none, np.cumsum(~same, axis=0)]) + (
        same.sum(0) - np.concatenate([none, np.cumsum(same, axis=0)])
    )
    possible = np.ones((n + 1, cosines.shape[1]), dtype=bool)
    possible[1:n] = ascending[1:] > ascending[:-1]
    cut = np.where(possible, right, -1).argmax(0)
    columns = np.arange(cosines.shape[1])
    below, above = ascending[np.maximum(cut - 1, 0), columns], ascending[np.minimum(cut, n - 1), columns]
    # Cosines end at 1: nothing lies above a threshold of 1, everything above one below −1.
    middle = np.where(
        cut == 0, np.minimum(-1.0, below) - 1, np.where(cut == n, np.maximum(1.0, above), (below + above) / 2)
    )
    # The middle of two neighbouring floats may be the upper one.
    threshold = np.where((cut > 0) & (cut < n) & (middle >= above), below, middle)
    return threshold, right[cut, columns] / n


def crossed(
    cosines: np.ndarray, truth: np.ndarray, folds: np.ndarray, thresholds: Sequence[float] | None
) -> np.ndarray:
    """What is said of each pair, bool [pair], where layer and threshold are chosen on the other folds.

    `thresholds` None takes every one there is. A single fold has no others: all its pairs are called the same.
    """
    said = np.ones(len(truth), dtype=bool)
    for fold in np.unique(folds):
        inside = folds == fold
        if inside.all():
            continue
        layer, threshold = chosen(cosines[~inside], truth[~inside], thresholds)
        said[inside] = cosines[inside, layer] > threshold
    return said


def chosen(cosines: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] | None) -> tuple[int, float]:
    """(layer, threshold) that are right most often."""
    if thresholds is not None:
        layer, place = best(right_at(cosines, truth, thresholds))
        return layer, float(thresholds[place])
    cut, accuracy = best_cut(cosines, truth)
    layer = int(accuracy.argmax())
    return layer, float(cut[layer])


def folds_of(words: Sequence[str], n_folds: int, seed: int) -> np.ndarray:
    """A fold for each pair, the same for all pairs of a word: a word's pairs share sentences."""
    different = sorted(set(words))
    place = np.random.default_rng([seed, 13]).permutation(len(different)) % n_folds
    of = dict(zip(different, place.tolist(), strict=True))
    return np.array([of[word] for word in words], dtype=np.int64)


@dataclass(frozen=True)
class MeasuredPairs:
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


def elsewhere(
    measured: MeasuredPairs, dev: Sequence[MeasuredPairs], others: Sequence[MeasuredPairs]
) -> Elsewhere | None:
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
    measured: MeasuredPairs,
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
