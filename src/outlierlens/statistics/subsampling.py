"""Intervals of correlations, and of differences of two on the same items, by subsampling.

    low, high = correlation_interval("spearman", truth, (one, other), seed=0)   # of ρ with `one` − ρ with `other`
    low, high = correlation_interval("pearson", truth, (one,), groups=text, seed=0)
    values, errors = measured("spearman", (truth, one, other), parts)           # of some parts of the items

A few items may carry a correlation: errors with heavy tails, examples that are broken. Resamples as large as the sample
then repeat the items that were drawn, and their intervals are too narrow (BCa covers 87 % of differences of Pearson's r
among 1,400 items whose errors have Student's t with 3 degrees). Parts of n^0.7 items, drawn without replacement, hold or
lack such items as the sample itself does among all samples: the distribution of |value − whole| / error over them is that
of the sample's own, whatever the tails (Politis, Romano and Wolf 1999, chapter 11). Of a single correlation the whole is
itself off where tails are heavy, since no second one is off alike: its parts have n^0.4 items, beside which that is little.

Items that belong together (pairs that share a sentence) form groups: whole groups are drawn, and errors sum over them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outlierlens.statistics.means import FEWEST_PAIRS

PART, PART_OF_ONE = 0.7, 0.4  # exponents of how many groups a part has: of two correlations, of a single one
AT_ONCE = 300_000  # items of the parts that are measured together
CONSTANT = 1e-12  # of a spread, relative to the mean square: below it is rounding
WIDEST = 1.0  # that an interval may reach to either side and still say something
CERTAIN = 1 - 1e-12  # a correlation whose Fisher's z says nothing any more


@dataclass(frozen=True)
class Parts:
    """Some parts of the items, one behind the other.

    Attributes:
        items: rows of the items [item], group after group.
        starts: where each part begins among them [part]. groups: where each group of a part begins [group].
        of_group: the part that a group belongs to [group].
    """

    items: np.ndarray
    starts: np.ndarray
    groups: np.ndarray
    of_group: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Items of each part."""
        return np.diff(np.append(self.starts, len(self.items)))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum over each part [part] of values [item]."""
        return np.add.reduceat(values, self.starts)

    def each(self, values: np.ndarray) -> np.ndarray:
        """Values [part] for the items of each [item]."""
        return np.repeat(values, self.sizes)


def correlation_interval(
    metric: str,
    truth: np.ndarray,
    predictions: Sequence[np.ndarray],
    *,
    seed: int,
    groups: np.ndarray | None = None,
    level: float = 0.95,
    n_draws: int = 1000,
) -> tuple[float, float]:
    """(low, high) of the correlation with the first predictions [item], minus that with the second where there are two.

    A single correlation is taken on the scale of Fisher's z. Two predictions that are the same on every item have (0, 0):
    no change. NaN, NaN where it is not settled: so few items (or groups of them) that a kind of 0.5 % of all may have been
    missed (fewer than 598), a value that is not finite, or so few items that carry the value that it could be anything.

    Args:
        metric: "pearson" or "spearman".
        groups: the group of each item, int [item]; None where items are independent.
    """
    columns = [np.asarray(column, dtype=np.float64) for column in (truth, *predictions)]
    if len(predictions) == 2 and np.array_equal(columns[1], columns[2], equal_nan=True):
        return 0.0, 0.0
    group_of = np.arange(len(truth)) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    n_groups = int(group_of.max(initial=-1)) + 1
    nothing = float("nan"), float("nan")
    if n_groups < FEWEST_PAIRS or not all(np.isfinite(column).all() for column in columns):
        return nothing
    every = _parts(group_of, np.arange(n_groups)[None])
    (whole,), (error,) = measured(metric, columns, every)
    if not 0 < error < np.inf:
        return nothing
    size = max(2, round(n_groups ** (PART if len(predictions) == 2 else PART_OF_ONE)))
    distances = []
    for drawn in _drawn(n_groups, size, n_draws, seed, max(1, round(AT_ONCE / len(truth) * n_groups / size))):
        values, errors = measured(metric, columns, _parts(group_of, drawn))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            distances.append(np.abs(values - whole) / errors)
    # A part without any spread says nothing about the error: as far away as can be.
    away = np.nan_to_num(np.concatenate(distances), nan=np.inf, posinf=np.inf)
    reach = float(np.quantile(away, level, method="higher")) * error / np.sqrt(1 - size / n_groups)
    if not reach < WIDEST:
        return nothing
    if len(predictions) == 1:
        return float(np.tanh(whole - reach)), float(np.tanh(whole + reach))
    return float(max(whole - reach, -2.0)), float(min(whole + reach, 2.0))


def measured(metric: str, columns: Sequence[np.ndarray], parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """(value, standard error) [part] of `columns`, truth and one or two predictions [item].

    Of one prediction they are of Fisher's z. The error is that of the sum of influences: what the value would move if an
    item (or a group of them) counted a little more. A correlation with a constant is 0.
    """
    truth, *predictions = columns
    found = _INFLUENCES[metric](parts, truth, predictions)
    value, influence = found[0]
    if len(found) == 2:
        value, influence = value - found[1][0], influence - found[1][1]
    n_groups = np.bincount(parts.of_group, minlength=len(parts.starts))
    of_groups = np.add.reduceat(influence, parts.groups)
    squares = np.bincount(parts.of_group, weights=of_groups**2, minlength=len(parts.starts))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = np.sqrt(squares * n_groups / (n_groups - 1)) / parts.sizes
        if len(found) == 1:
            inside = np.abs(value) < CERTAIN
            error = np.where(inside, error / (1 - value**2), np.inf)
            value = np.arctanh(np.clip(value, -CERTAIN, CERTAIN))
    return value, error


Correlations = list[
    tuple[np.ndarray, np.ndarray]
]  # (correlation [part], influence of each item on it [item]) of each prediction


def _pearson(parts: Parts, truth: np.ndarray, predictions: Sequence[np.ndarray]) -> Correlations:
    """With a and b of mean 0 and variance 1: r = mean(a b); influence a b − r (a² + b²) / 2."""

    def unit(column: np.ndarray) -> np.ndarray:
        values = column[parts.items]
        values = values / (np.abs(values).max(initial=0) or 1.0)
        away = values - parts.each(parts.sums(values) / parts.sizes)
        spread = parts.sums(away**2) / parts.sizes
        varies = spread > CONSTANT * parts.sums(values**2) / parts.sizes
        scale = np.divide(1, np.sqrt(spread), out=np.zeros(len(spread)), where=varies)
        return np.asarray(away * parts.each(scale))

    a, found = unit(truth), []
    for b in map(unit, predictions):
        r = np.clip(parts.sums(a * b) / parts.sizes, -1, 1)
        varies = (parts.sums(np.abs(a)) > 0) & (parts.sums(np.abs(b)) > 0)
        influence = a * b - parts.each(r) / 2 * (a**2 + b**2)
        found.append((np.where(varies, r, 0.0), influence * parts.each(varies)))
    return found


def _spearman(parts: Parts, truth: np.ndarray, predictions: Sequence[np.ndarray]) -> Correlations:
    """With H and K the mid-distribution functions less ½: ρ = mean(H K) / √(mean H² mean K²).

    An item moves the ranks of the others too: its influence on mean(H K) is H K + mean of K over the items above it (half of
    those beside it) + mean of H over those above it in the other order − 3 mean(H K), and alike for mean H² and mean K².
    """
    one, found = _SortOrder(parts, truth), []
    of_one = one.own()
    for other in (_SortOrder(parts, column) for column in predictions):
        mean = parts.sums(one.middle * other.middle) / parts.sizes
        both = one.middle * other.middle + one.above(other.middle) + other.above(one.middle) - 3 * parts.each(mean)
        of_other = other.own()
        size = np.sqrt(one.square * other.square)
        rho = np.divide(mean, size, out=np.zeros(len(size)), where=size > 0)
        scale = np.divide(1, size, out=np.zeros(len(size)), where=size > 0)
        influence = both * parts.each(scale) - parts.each(rho) / 2 * (of_one + of_other)
        found.append((np.clip(rho, -1, 1), influence * parts.each(size > 0)))
    return found


_INFLUENCES = {"pearson": _pearson, "spearman": _spearman}


class _SortOrder:
    """A column's order within each part.

    Attributes:
        middle: mid-distribution function less ½ [item], in (−½, ½). square: mean of its square [part].
    """

    def __init__(self, parts: Parts, column: np.ndarray):
        _, place = np.unique(column, return_inverse=True)
        place = place.ravel()
        key = place[parts.items] + parts.each(np.arange(len(parts.starts))) * (int(place.max(initial=0)) + 1)
        self.parts, self.order = parts, np.argsort(key, kind="stable")
        ascending = key[self.order]
        new = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        ties = np.flatnonzero(new)
        number = np.cumsum(new) - 1  # of equal values
        self.first, self.last = ties[number], np.append(ties[1:], len(key))[number]
        begin = parts.each(parts.starts)
        rank = ((self.first + self.last) / 2 - begin) / parts.each(parts.sizes) - 0.5
        self.middle = self._back(rank)
        self.square = parts.sums(self.middle**2) / parts.sizes

    def above(self, values: np.ndarray) -> np.ndarray:
        """Mean over the part of values [item], those of items above each, and half of those beside it [item]."""
        upto = np.concatenate([[0.0], np.cumsum(values[self.order])])
        end = self.parts.each(np.append(self.parts.starts[1:], len(values)))
        found = upto[end] - (upto[self.first] + upto[self.last]) / 2
        return self._back(found / self.parts.each(self.parts.sizes))

    def own(self) -> np.ndarray:
        """Influence on the mean square over that mean square [item]; 0 where nothing varies."""
        moved = self.middle**2 + 2 * self.above(self.middle)
        square = self.parts.each(self.square)
        return np.divide(moved, square, out=np.full(len(moved), 3.0), where=square > 0) - 3

    def _back(self, ascending: np.ndarray) -> np.ndarray:
        found = np.empty(len(ascending))
        found[self.order] = ascending
        return found


def _parts(group_of: np.ndarray, drawn: np.ndarray) -> Parts:
    """The items of groups `drawn` [part, group]."""
    members = np.argsort(group_of, kind="stable")
    sizes = np.bincount(group_of)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    flat = drawn.ravel()
    lengths = sizes[flat]
    groups = np.concatenate([[0], np.cumsum(lengths)])
    items = members[np.repeat(begin[flat] - groups[:-1], lengths) + np.arange(groups[-1])]
    width = drawn.shape[1]
    return Parts(items, groups[:-1:width], groups[:-1], np.repeat(np.arange(len(drawn)), width))


def _drawn(n_groups: int, size: int, n_draws: int, seed: int, at_once: int) -> Iterator[np.ndarray]:
    """Groups of each part [part, group], some parts at a time."""
    every = _kept(n_groups, size, n_draws, seed)
    return (every[start : start + at_once] for start in range(0, n_draws, at_once))


@lru_cache(maxsize=1)
def _kept(n_groups: int, size: int, n_draws: int, seed: int) -> np.ndarray:
    """Kept, because a sweep asks for hundreds of intervals over the same items with the same seed."""
    random = np.random.default_rng(seed)
    drawn = np.stack([random.choice(n_groups, size, replace=False, shuffle=False) for _ in range(n_draws)])
    drawn.flags.writeable = False
    return drawn
