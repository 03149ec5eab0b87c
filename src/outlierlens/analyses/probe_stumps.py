"""The best classifier that sees one number: at most as many intervals as there are classes, found exactly.

    fitted = fit_intervals(values, labels, n_classes=2)      # values [item, dim]: every dimension on its own
    fitted.predict(other)                                    # class numbers [item, dim]
    line = fit_line(values, targets)                         # regression: the least-squares line of each dimension
    shifted_mean(values, labels)                             # the threshold of Rudman et al. (2023)

With two classes an interval classifier is a decision stump: a threshold and a direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput

MEMORY = 64_000_000  # bytes of back pointers held at once
SHIFTS = np.linspace(-50, 50, 201)  # of Rudman et al.'s released code: in steps of 0.5 around the mean


@dataclass(frozen=True)
class Intervals:
    """One interval classifier a dimension.

    Attributes:
        cuts: float64 [dim, n_classes − 1], ascending, inf where a dimension uses fewer; a value on a cut belongs below.
        says: class of each interval, int [dim, n_classes].
        fits: share of the fitted items' weight that it gets right, in [0, 1] [dim].
    """

    cuts: np.ndarray
    says: np.ndarray
    fits: np.ndarray

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Class numbers [item, dim] of values [item, dim]."""
        found = np.empty(values.shape, dtype=np.int64)
        for dim in range(values.shape[1]):
            found[:, dim] = self.says[dim, np.searchsorted(self.cuts[dim], values[:, dim].astype(np.float64))]
        return found

    def words(self, dim: int, labels: Sequence[str]) -> str:
        """The classifier of a dimension in words."""
        text = labels[self.says[dim, 0]]
        for cut, label in zip(self.cuts[dim], self.says[dim, 1:], strict=True):
            if np.isfinite(cut):
                text += f" ≤ {cut:.3g} < {labels[label]}"
        return text if np.isfinite(self.cuts[dim]).any() else f"always {text}"


def fit_intervals(
    values: np.ndarray, labels: np.ndarray, n_classes: int, weights: np.ndarray | None = None
) -> Intervals:
    """For each dimension of `values` [item, dim], the intervals that get the most weight [item] of `labels` right.

    Exact, by dynamic programming over the sorted items: no threshold that could be better is left out. Cuts lie midway
    between neighbouring values. Of equally good classifiers the one with fewest intervals is taken.

    Raises:
        BadInput: no items, or a value that is not finite.
    """
    n, width = values.shape
    if not n or n != len(labels):
        raise BadInput(f"{n} vectors for {len(labels)} labels; need at least one vector, and one label per vector")
    if not np.isfinite(values).all():
        raise BadInput(f"a sentence vector holds a value that is not finite; {USE_FLOAT32}")
    weights = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    step = max(1, MEMORY // (n * n_classes * (n_classes + 1)))
    parts = [
        _fit(values[:, start : start + step].astype(np.float64), labels, n_classes, weights)
        for start in range(0, width, step)
    ]
    cuts, says, right = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Intervals(cuts, says, right / weights.sum())


def _fit(
    values: np.ndarray, labels: np.ndarray, n_classes: int, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cuts, says, weight right) of some dimensions; best[interval, class] is of items so far, the last one in both."""
    n, width = values.shape
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)  # [item, dim]
    classes, weight = labels[order], weights[order]
    columns = np.arange(width)
    best = np.full((n_classes, n_classes, width), -np.inf)
    best[0] = 0.0
    best[0, classes[0], columns] = weight[0]
    entered = np.zeros((n, n_classes, n_classes, width), dtype=bool)  # whether the interval begins at the item
    came_from = np.zeros((n, n_classes, width), dtype=np.int16)  # class of the interval before, where one begins
    for item in range(1, n):
        came_from[item, 1:] = best[:-1].argmax(axis=1)
        enter = np.full((n_classes, width), -np.inf)
        enter[1:] = np.where(ordered[item - 1] < ordered[item], best[:-1].max(axis=1), -np.inf)
        entered[item] = enter[:, None] > best
        best = np.maximum(best, enter[:, None])
        best[:, classes[item], columns] += weight[item]
    return _trace(best, entered, came_from, ordered)


def _trace(
    best: np.ndarray, entered: np.ndarray, came_from: np.ndarray, ordered: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Walk back from the best end to the cuts."""
    n, n_classes, _, width = entered.shape
    columns = np.arange(width)
    flat = best.reshape(-1, width)
    end = flat.argmax(axis=0)  # the first of equals: fewest intervals
    interval, says_now = end // n_classes, end % n_classes
    cuts = np.full((width, n_classes - 1), np.inf)
    says = np.repeat(says_now[:, None], n_classes, axis=1)
    for item in range(n - 1, 0, -1):
        at = columns[entered[item, interval, says_now, columns]]
        if not len(at):
            continue
        place = interval[at]
        cuts[at, place - 1] = (ordered[item - 1, at] + ordered[item, at]) / 2
        says_now[at] = came_from[item, place, at]
        interval[at] -= 1
        says[at, place - 1] = says_now[at]
    return cuts, says, flat[end, columns]


@dataclass(frozen=True)
class FittedLines:
    """The least-squares line of each dimension: slope and intercept, and the share of variance explained, [dim] each."""

    slope: np.ndarray
    intercept: np.ndarray
    fits: np.ndarray

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Values [item, dim]."""
        return values.astype(np.float64) * self.slope + self.intercept

    def words(self, dim: int, _: Sequence[str]) -> str:
        """The line of a dimension in words."""
        return f"{self.slope[dim]:.3g} · h + {self.intercept[dim]:.3g}"


def fit_line(values: np.ndarray, targets: np.ndarray) -> FittedLines:
    """Of `targets` [item] on each dimension of `values` [item, dim]; a constant dimension gets slope 0."""
    x = values.astype(np.float64)
    y = np.asarray(targets, dtype=np.float64)
    mean = x.mean(axis=0)
    spread = np.square(x - mean).sum(axis=0)
    shared = ((x - mean) * (y - y.mean())[:, None]).sum(axis=0)
    slope = np.divide(shared, spread, out=np.zeros_like(shared), where=spread > 0)
    total = np.square(y - y.mean()).sum()
    return FittedLines(slope, y.mean() - slope * mean, slope * shared / total if total else np.zeros_like(slope))


@dataclass(frozen=True)
class ShiftedMean:
    """Rudman et al.'s classifier: `above` is said of values over `mean` + `shift`, the other class of the rest."""

    mean: float
    shift: float
    above: int
    right: float

    def predict(self, values: np.ndarray) -> np.ndarray:
        """Class numbers [item] of values [item]."""
        return np.where(values > self.mean + self.shift, self.above, 1 - self.above)


def shifted_mean(values: np.ndarray, labels: np.ndarray) -> ShiftedMean:
    """The best of 201 shifts of the mean in [−50, 50] and of both directions, on values [item] with labels 0 and 1.

    Rudman et al. (2023), their released code. The grid is 0.5 apart whatever the spread of the values.
    """
    x = values.astype(np.float64)
    mean = float(x.mean())
    above = x[:, None] > mean + SHIFTS  # [item, shift]
    right = (above == (labels == 1)[:, None]).mean(axis=0)  # of "above is class 1"
    best = np.maximum(right, 1 - right)
    place = int(best.argmax())
    return ShiftedMean(mean, float(SHIFTS[place]), int(right[place] >= 0.5), float(best[place]))
