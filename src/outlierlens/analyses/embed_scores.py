"""Cosines of pairs, their rank correlation with people's scores, and the threshold above which a cosine says "the same".

    index = PairIndex.of(first, second)                      # rows of the vectors [pair]
    cosines = index.cosines(vectors, fix)                    # [pair]
    scores = score(pairs, cosines[:, None])                  # pooled, mean and weighted mean over subsets, each subset
    right = right_at(cosines, truth, GRID)                   # bool [pair, layer, threshold]
    layer, threshold = chosen(cosines, truth, GRID)          # most right; of equals the first layer, then the lowest threshold
    said = crossed(cosines, truth, folds, None)              # bool [pair]: chosen on the other folds, of every threshold

Scores are Spearman's ρ in [−1, 1], equal to scipy's `spearmanr`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.analyses.embed_pairs import TextPairs
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.statistics.ranks import correlations
from outlierlens.tasks.metrics import paired_interval
from outlierlens.vectors.fixes import Fix

PAIRS_AT_ONCE = 4096
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # Luo et al. (2021), section 4.2


@dataclass(frozen=True)
class PairIndex:
    """Rows of the two vectors of each pair, in blocks.

    Attributes:
        blocks: (rows of the block's different vectors, place of the first among them [pair], of the second [pair]).
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    @classmethod
    def of(cls, first: np.ndarray, second: np.ndarray) -> "PairIndex":
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
            picked = np.asarray(vectors[used], dtype=np.float64)
            better = picked if fix is None else fix.apply(picked)
            length = np.sqrt(np.einsum("sd,sd->s", better, better))
            if not np.isfinite(length).all():
                raise BadInput(f"a vector to compare is NaN or infinite; {USE_FLOAT32}")
            unit = better / np.where(length > 0, length, 1)[:, None]
            found.append(np.einsum("pd,pd->p", unit[first], unit[second]))
        return np.clip(np.concatenate(found), -1, 1) if found else np.zeros(0)


# --- sentences -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Spearman's ρ: of all pairs together, and over subsets, each counting once or by its pairs; and of each [subset, …]."""

    pooled: np.ndarray
    mean: np.ndarray
    weighted: np.ndarray
    subsets: np.ndarray


def score(pairs: TextPairs, cosines: np.ndarray) -> Scores:
    """Spearman's ρ of `cosines` [pair, ...] with the scores that people gave, pooled and by subset.

    Pooled: all pairs together (mteb's way). Mean, weighted: over the subsets (SentEval's two ways); without subsets they are
    the pooled one. A constant correlates with nothing: 0.
    """
    shape = cosines.shape[1:]
    flat = cosines.reshape(len(pairs), -1)
    pooled = correlations("spearman", pairs.truth, flat).reshape(shape)
    names = pairs.subsets
    if not names:
        return Scores(pooled, pooled, pooled, np.zeros((0, *shape)))
    of = np.array(pairs.subset)
    each = np.stack([correlations("spearman", pairs.truth[of == name], flat[of == name]) for name in names])
    sizes = np.array([(of == name).sum() for name in names], dtype=np.float64)
    mean, weighted = each.mean(0), sizes @ each / sizes.sum()
    return Scores(pooled, mean.reshape(shape), weighted.reshape(shape), each.reshape(len(names), *shape))


def spearman(pairs: TextPairs, vectors: np.ndarray) -> float:
    """Pooled ρ of vectors [sentence, dim] whose rows are `pairs.sentences`."""
    place = {text: i for i, text in enumerate(pairs.sentences)}
    rows = np.array([[place[text] for text in side] for side in (pairs.first, pairs.second)], dtype=np.int64)
    return float(score(pairs, PairIndex.of(*rows).cosines(vectors)[:, None]).pooled[0])


# --- words -----------------------------------------------------------------------------------------------------------


def right_at(cosines: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] | np.ndarray) -> np.ndarray:
    """Whether "cosine above threshold" is what `truth` [pair] says, bool [pair, layer, threshold], of cosines [pair, layer]."""
    return (cosines[..., None] > np.asarray(thresholds)) == truth[:, None, None]


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


def chosen(cosines: np.ndarray, truth: np.ndarray, thresholds: Sequence[float] | None) -> tuple[int, float]:
    """(layer, threshold) that are right most often; `thresholds` None takes every one there is."""
    if thresholds is not None:
        right = right_at(cosines, truth, thresholds)
        at, place = np.unravel_index(int(right.sum(0).argmax()), right.shape[1:])
        return int(at), float(thresholds[int(place)])
    cut, accuracy = best_cut(cosines, truth)
    layer = int(accuracy.argmax())
    return layer, float(cut[layer])


def crossed(
    cosines: np.ndarray, truth: np.ndarray, folds: np.ndarray, thresholds: Sequence[float] | None
) -> np.ndarray:
    """The answer for each pair, bool [pair], where layer and threshold are chosen on the other folds.

    A single fold has no others: all its pairs are called the same.
    """
    said = np.ones(len(truth), dtype=bool)
    for fold in np.unique(folds):
        inside = folds == fold
        if inside.all():
            continue
        layer, threshold = chosen(cosines[~inside], truth[~inside], thresholds)
        said[inside] = cosines[inside, layer] > threshold
    return said


def folds_of(words: Sequence[str], n_folds: int, seed: int) -> np.ndarray:
    """A fold for each pair, the same for all pairs of a word: a word's pairs share sentences."""
    different = sorted(set(words))
    place = np.random.default_rng([seed, 13]).permutation(len(different)) % n_folds
    of = dict(zip(different, place.tolist(), strict=True))
    return np.array([of[word] for word in words], dtype=np.int64)


def accuracy_interval(
    pairs: TextPairs, before: np.ndarray, after: np.ndarray, *, seed: int, n_draws: int
) -> tuple[float, float]:
    """95 % interval of how much more often `after` is right than `before`, answers [pair] both.

    Pairs that share their word or a sentence are alike, so whole families of them are drawn.
    """
    family, sizes = pairs.family, np.bincount(pairs.family)
    shares = [np.bincount(family, weights=one == pairs.truth) / sizes for one in (before, after)]
    return paired_interval(*shares, seed=seed, weights=sizes, n_draws=n_draws)
