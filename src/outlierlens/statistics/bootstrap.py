"""BCa bootstrap intervals of what depends on items through sums over them; and texts drawn again, whatever depends on them.

    value = mean_value(changes, weights, shares=False)       # or `tasks.metrics.class_value`, of a metric of classes
    low, high = bca(value, seed=0, level=0.95, n_draws=2000)

A resample is a product of how often each item was drawn with what an item adds (`Sums`), and the jackknife a subtraction.
Items that add the same are one group, and how often a group is drawn is multinomial. Correlations are another matter:
`subsampling`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from outlierlens.errors import need
from outlierlens.statistics.means import LEVEL, NORMAL, critical, unseen, welch_degrees
from outlierlens.statistics.ranks import ratio

DRAWN_AT_ONCE = 2_000_000  # numbers of a table held in memory: 16 MB
KEPT = 4_000_000  # numbers of the counts that are kept for the next call with the same seed
FEW_GROUPS = 64  # up to here drawing multinomial counts is faster than drawing items


def bca(value: "Sums", *, seed: int, level: float, n_draws: int) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval (low, high), items drawn with replacement (Efron 1987).

    Draws equal to the value of all items count half in the bias correction, since metrics of few items come in steps.
    Where no draw differs from it, the sample says nothing about spread, and an interval of no width would be too sure of
    itself. What n items never showed is still up to 1 − (1 − level)^(1/n) of all items (3/n at 95 %, the rule of three);
    the interval is then what the value could be with that share of items of another kind. NaN, NaN for fewer than 2 items.
    """
    special: Any = need("scipy.special", "models", "a bootstrap interval")
    n = round(float(value.sizes.sum()))
    if n < 2:
        return float("nan"), float("nan")
    whole = value.whole
    values = np.concatenate([value.drawn(counts) for counts in draws(value.sizes, n_draws, seed)])
    step = 1e-12 * max(1.0, abs(whole))  # sums in another order differ in their last digits
    below, equal = values < whole - step, np.abs(values - whole) <= step
    if equal.all():
        return value.elsewhere(unseen(n, level))
    share = (below.sum() + equal.sum() / 2) / n_draws
    bias = special.ndtri(np.clip(share, 0.5 / n_draws, 1 - 0.5 / n_draws))
    left_out, sizes = value.jackknife()
    away = np.average(left_out, weights=sizes) - left_out
    squares = float(sizes @ away**2)
    acceleration = float(sizes @ away**3) / (6 * squares**1.5) if squares > 0 else 0.0
    edges = bias + special.ndtri([(1 - level) / 2, (1 + level) / 2])
    # |acceleration| is at most 1/6, so the denominator is positive for every level in use.
    tails = special.ndtr(bias + edges / np.maximum(1 - acceleration * edges, 1e-3))
    low, high = np.quantile(values, tails)
    return float(low), float(high)


def draws(sizes: np.ndarray, n_draws: int, seed: int) -> Iterator[np.ndarray]:
    """How often each group is drawn, float64 [some draws, group]: n draws with replacement among all n items, n_draws times."""
    n, groups = round(float(sizes.sum())), len(sizes)
    parts = sizes.dtype.kind == "f"  # of items, which cannot be drawn one by one
    if not parts and groups > FEW_GROUPS and groups == n and n * n_draws <= KEPT:
        yield _kept_counts(n, n_draws, seed)
        return
    random = np.random.default_rng(seed)
    multinomial = groups <= FEW_GROUPS or parts
    group_of = None if groups == n or multinomial else np.repeat(np.arange(groups), sizes)
    at_once = max(1, DRAWN_AT_ONCE // (groups if multinomial else n))
    for start in range(0, n_draws, at_once):
        rows = min(at_once, n_draws - start)
        if multinomial:
            yield random.multinomial(n, sizes / sizes.sum(), size=rows).astype(np.float64)
        else:
            yield _counts(random, rows, n, group_of)


@lru_cache(maxsize=1)
def _kept_counts(n: int, n_draws: int, seed: int) -> np.ndarray:
    """Kept, because a sweep asks for hundreds of intervals over the same items with the same seed."""
    counts = _counts(np.random.default_rng(seed), n_draws, n, None)
    counts.flags.writeable = False
    return counts


def _counts(random: np.random.Generator, rows: int, n: int, group_of: np.ndarray | None) -> np.ndarray:
    items = random.integers(0, n, size=(rows, n), dtype=np.int32)
    groups = n
    if group_of is not None:
        items, groups = group_of[items], int(group_of[-1]) + 1
    flat = items + np.arange(rows)[:, None] * groups
    return np.bincount(flat.ravel(), minlength=rows * groups).reshape(rows, groups).astype(np.float64)


@dataclass(frozen=True)
class Sums:
    """A value that depends on items through sums alone.

    Attributes:
        adds: what one item of each group adds [group, sum], sparse or not.
        sizes: items of each group [group], in all a whole number: items of one group cannot be told apart.
        finish: values [.] from sums [., sum].
        others: what items of other kinds would add, of each group that has them: rows (group, adds [sum]); None where the
            kinds of items cannot be counted. parts: the same value of items' parts, whose kinds stand for theirs then.
    """

    adds: Any
    sizes: np.ndarray
    finish: Callable[[np.ndarray], np.ndarray]
    others: "Callable[[], tuple[np.ndarray, Any]] | None" = None
    parts: "Sums | None" = None

    @property
    def _total(self) -> np.ndarray:
        return np.asarray(self.sizes.astype(np.float64) @ self.adds)

    @property
    def whole(self) -> float:
        """The value of all items."""
        return float(self.finish(self._total[None])[0])

    def drawn(self, counts: np.ndarray) -> np.ndarray:
        """Values [draw] where group g was drawn counts[:, g] times."""
        return np.concatenate([self.finish(counts[rows] @ self.adds) for rows in self._some(len(counts))])

    def jackknife(self) -> tuple[np.ndarray, np.ndarray]:
        """(values [left out], how many items each stands for [left out]): each without one item, or one part of them."""
        total = self._total
        values = [self.finish(total - dense(self.adds[rows])) for rows in self._some(len(self.sizes))]
        return np.concatenate(values), self.sizes.astype(np.float64)

    def elsewhere(self, share: float) -> tuple[float, float]:
        """(lowest, highest) value if `share` of the items were of another kind; `whole` where that cannot be said."""
        whole = self.whole
        if self.parts is not None:
            return self.parts.elsewhere(share)
        if self.others is None:
            return whole, whole
        groups, adds = self.others()
        if not len(groups):
            return whole, whole
        moved = np.minimum(share * self.sizes.sum(), self.sizes)[groups, None]
        values = np.concatenate([
            self.finish(self._total + moved[rows] * (dense(adds[rows]) - dense(self.adds[groups[rows]])))
            for rows in self._some(len(groups))
        ])  # fmt: skip
        return float(min(values.min(), whole)), float(max(values.max(), whole))

    def _some(self, n: int) -> Iterator[slice]:
        rows = max(1, DRAWN_AT_ONCE // self.adds.shape[1])
        return (slice(start, min(n, start + rows)) for start in range(0, n, rows))


def dense(some: Any) -> np.ndarray:
    """A table [row, column], sparse or not, as an array."""
    return np.asarray(some.toarray() if hasattr(some, "toarray") else some)


def mean_value(values: np.ndarray, weights: np.ndarray, *, shares: bool) -> Sums:
    """Σ w v / Σ w of values [item]; as `shares` they are differences of numbers in [0, 1]."""
    table = np.stack([values * weights, weights], axis=1)
    cells, sizes = np.unique(table, axis=0, return_counts=True)
    if len(cells) > FEW_GROUPS:
        cells, sizes = table, np.ones(len(table), dtype=np.int64)

    def others() -> tuple[np.ndarray, np.ndarray]:
        """Items of each group that are as wrong, or as right, as can be."""
        groups = np.arange(len(cells))
        worst = cells[:, 1:] * np.array([[[1.0, 1.0]], [[-1.0, 1.0]]])
        return np.concatenate([groups, groups]), worst.reshape(-1, 2)

    return Sums(cells, sizes, lambda sums: ratio(sums[:, 0], sums[:, 1]), others if shares else None)


# --- texts drawn again -----------------------------------------------------------------------------------------------

FEWEST_DRAWS = 20  # that are finite, of a percentile interval


def multinomial_weights(n: int, n_draws: int, seed: int) -> np.ndarray:
    """How often each of `n` texts is drawn in each of `n_draws` draws with replacement, float32 [1 + n_draws, n].

    Row 0 has every text once, which gives the value itself.
    """
    random = np.random.default_rng([seed, 23])
    weights = np.ones((1 + n_draws, n), dtype=np.float32)
    for row in weights[1:]:
        row[:] = np.bincount(random.integers(n, size=n), minlength=n)
    return weights


def poisson_weights(texts: Sequence[int], n_draws: int, seed: int) -> np.ndarray:
    """How often each of the numbered `texts` counts, float64 [1 + n_draws, text]: once in row 0, then Poisson(1)."""
    weights = np.ones((1 + n_draws, len(texts)))
    for place, text in enumerate(texts):
        weights[1:, place] = np.random.default_rng([seed, 29, text]).poisson(1.0, n_draws)
    return weights


def poisson_times(n_texts: int, n_draws: int, *, seed: int) -> np.ndarray:
    """How often each text counts in each draw, Poisson(1), float32 [text, draw].

    A number depends on the seed, its text and its draw alone: more draws, or more texts behind, leave it as it is.
    """
    drawn = np.zeros((n_texts, n_draws), dtype=np.float32)
    for draw in range(n_draws):
        drawn[:, draw] = np.random.default_rng([seed, 19, draw]).poisson(1.0, n_texts)
    return drawn


def percentile_interval(drawn: np.ndarray, fewest: int = FEWEST_DRAWS) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) [...]: 2.5th and 97.5th percentile of the finite values of `drawn` [draw, ...]; NaN of fewer than `fewest`.

    Efron and Tibshirani (1993), chapter 13.
    """
    ends = finite_quantiles(np.moveaxis(drawn, 0, -1), (0.025, 0.975), fewest)
    return ends[..., 0], ends[..., 1]


def finite_quantiles(values: np.ndarray, shares: Sequence[float], fewest: int = 1) -> np.ndarray:
    """Quantiles at `shares` of the finite numbers of the last axis: [..., share]; NaN where there are fewer than `fewest`."""
    found = np.full((*values.shape[:-1], len(shares)), np.nan)
    for place in np.ndindex(values.shape[:-1]):
        finite = values[place][np.isfinite(values[place])]
        if len(finite) >= fewest:
            found[place] = np.quantile(finite, shares)
    return found


def jackknife_error(without: np.ndarray) -> float:
    """Standard error √((n − 1) / n Σ (v − mean v)²) of a value, from it without each of n groups in turn [group].

    An interval reaches `critical(n − 1)` of them to either side (Tukey 1958). NaN of one group, or where one is not finite.
    A bootstrap of what draws twice change (spreads, distributions over types) would be off; leaving out changes none.
    """
    n = len(without)
    if n < 2 or not np.isfinite(without).all():
        return math.nan
    return float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))


def deviation(redrawn: np.ndarray) -> float | None:
    """Standard deviation of values [redraw]; None without a redraw, NaN where there is one alone or one is NaN."""
    if not len(redrawn):
        return None
    return float(np.std(redrawn, ddof=1)) if len(redrawn) > 1 else math.nan


def with_training(value: float, ends: tuple[float, float], redrawn: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a `value` whose interval over evaluated texts alone is `ends`, with its spread over redraws.

    Training texts and evaluated ones are drawn apart, so variances add. A side of `ends` is 1.96 standard errors e of the
    texts on that side; with the deviation s over R redraws the side becomes t √(e² + s²), t of Student's distribution with
    (R − 1) ((e² + s²) / s²)² degrees of freedom (those of e are taken as without end, as the bootstrap takes them).
    Without a redraw, and where all redraws agree, it is `ends`; NaN where the spread is not known.
    """
    spread = deviation(redrawn)
    if spread is None or spread == 0:
        return ends
    if not math.isfinite(spread):
        return math.nan, math.nan

    def side(width: float) -> float:
        error = max(0.0, width) / NORMAL
        degrees = welch_degrees((error**2, math.inf), (spread**2, len(redrawn) - 1))
        return critical(degrees, LEVEL) * math.sqrt(error**2 + spread**2)

    return value - side(value - ends[0]), value + side(ends[1] - value)
