"""The layer and threshold above which a cosine says "the same", by trying all of them.

right = right_at(cosines, truth, GRID)                   # bool [pair, layer, threshold]
layer, place = best(right)                               # most right; of equals the first layer, then the lowest threshold
threshold, accuracy = best_cut(cosines, truth)           # of every threshold there is, [layer] each
said = crossed(cosines, truth, folds, GRID)              # bool [pair]: chosen on the other folds, said of each
"""

from collections.abc import Sequence

import numpy as np

GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # Luo et al. (2021), section 4.2


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
