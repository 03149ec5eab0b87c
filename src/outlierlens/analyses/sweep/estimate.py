"""How large an effect is and how surely that is known, from per-text differences; pure functions, no torch.

slopes = gradient_scale(first, weights, gradients) * gradients               # [unit, text], where there are some
found = estimate(values, weights, level)             # weighted mean of the differences seen so far, with interval
precise(found, tolerance=0.01, relative=0.1)         # whether measuring this effect may stop
unsettled(estimates, series, weights, k=5, level=level, tolerance=0.01)      # who needs more texts to be ranked

An effect on a metric of all texts together (MCC, F1, correlations) is no mean over texts; `MetricChange` estimates it:

functional = Functional(statistic, order, intact, seed=0)
functional.estimate(differences, 0.95)               # change of 1 − metric with a paired BCa interval
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.statistics.means import FEWEST_CHANGED, reach, settled, third_cumulant
from outlierlens.tasks.metrics import Statistic

GIANT = 30.0  # median absolute deviations; of normal values 20 σ
DEVIATION_ERROR = 1.17  # standard error of that deviation of n normal values, × √n, relative


@dataclass(frozen=True)
class MeanChange:
    """A mean change over texts with its interval.

    Attributes:
        change: weighted mean of the differences; infinite where a difference is infinite or no number.
        low, high: ends of the interval; infinite for a single text.
        spread: standard deviation of the differences over texts, all texts alike; NaN for a single text.
        n_texts: texts the differences were measured on.
        settled: whether they are enough texts, and enough that changed, for the interval to hold (`means.settled`).
    """

    change: float
    low: float
    high: float
    spread: float
    n_texts: int
    settled: bool = True

    @property
    def half_width(self) -> float:
        """The larger of the distances from the change to its ends; 0 for an infinite change."""
        return max(self.change - self.low, self.high - self.change) if np.isfinite(self.change) else 0.0


@dataclass(frozen=True)
class Ranking:
    """What it takes to call the `k` largest changes ranked: `level` and `tolerance`, and `smallest` as in `estimate`."""

    k: int
    level: float
    tolerance: float
    smallest: float = 0.0


def estimate(
    values: np.ndarray,
    weights: np.ndarray,
    level: float,
    gradients: np.ndarray | None = None,
    gradient_weights: np.ndarray | None = None,
    *,
    smallest: float = 0.0,
) -> MeanChange:
    """Weighted mean of `values` with an interval of confidence `level`.

    Without gradients the mean is Σ w x / Σ w, a ratio of two means, and its variance that of the mean of
    w (x − mean) / mean(w) (linearisation: Cochran 1977, section 6.4), with n − 1 degrees of freedom.

    `gradients` [m] are first-order estimates of the same differences on the first m > n texts. They serve as control
    variate with coefficient 1 (difference estimator in double sampling: Cochran 1977, section 12.9): the estimate is
    mean_n(x − g) + mean_m(g), which is unbiased however wrong g is, with variance s²(x)/m + s²(x − g) (1/n − 1/m). On m
    or fewer texts than n they have nothing to add and are ignored.

    Its ends are those of `means.reach`, which allows for skewness: the third cumulant of the mean, of difference
    estimators the sum of what the texts of both samples add.

    Differences that come in steps (right or wrong) may be all equal by chance: with `smallest`, their smallest step, the
    variance is taken as if one text more had moved up by it and one down (Agresti & Min 2005, for paired proportions).
    They are bounded, and any number of them settles an interval.

    A loss that exploded on one text (infinite or no number) makes the change infinite: worse than any finite one and
    not to be refined.

    Args:
        values: differences to the intact model, one a text.
        weights: how much each text counts (its tokens); those beyond the texts of `values` are ignored.
        gradients: first-order estimates, the texts of `values` first.
        gradient_weights: weights of the texts of `gradients`; by default the first of `weights`.

    Raises:
        BadInput: no value, or fewer weights than values.
    """
    n = len(values)
    wide = weights if gradient_weights is None else gradient_weights
    short = gradients is not None and len(gradients) > n and len(wide) < len(gradients)
    if not n or len(weights) < n or short:
        raise BadInput(f"cannot estimate from {n} values and {len(weights)} weights; every text needs both")
    values = np.asarray(values, dtype=float)
    if not np.isfinite(values).all():
        return MeanChange(np.inf, np.inf, np.inf, np.inf, n)
    change, below, above = _intervals(values, weights, level, gradients, wide, smallest)
    spread = float(values.std(ddof=1)) if n > 1 else float("nan")
    enough = smallest > 0 or settled(values)
    return MeanChange(float(change), float(change - below), float(change + above), spread, n, enough)


@dataclass(frozen=True)
class RareTexts:
    """What rare texts add to a change, learnt from all units of a sweep together: a unit's texts may hold too few of them.

    Attributes:
        share: of all differences, those further from their unit's median than `GIANT` median absolute deviations.
        below, above: what such differences add at most (at 95 %) to a unit's mean, in its median absolute deviations, of
            differences below the median and above it; 0 or more. See `among`.
    """

    share: float
    below: float
    above: float

    @classmethod
    def among(cls, series: Sequence[np.ndarray]) -> "RareTexts":
        """Of the differences of each unit [unit][text], the same texts first; units without a deviation say nothing.

        The mean over units with two standard errors: over units, or of the number r of texts that hold a rare difference,
        whichever is larger. r is taken as r + 2 (after Agresti & Coull 1998): a few are easily too few.
        """
        seen = [found for values in series if (found := giants(values)[0]) is not None]
        texts = len(set().union(*(np.flatnonzero(away).tolist() for away in seen)))
        if len(seen) < 2 or not texts:
            return cls(0.0, 0.0, 0.0)
        adds = np.array([_adds(away) for away in seen])
        mean, error = adds.mean(0), adds.std(0, ddof=1) / np.sqrt(len(seen))
        below, above = mean * (1 + 2 / texts) + 2 * np.maximum(error, mean * np.sqrt(texts + 2) / texts)
        return cls(float(np.mean([np.mean(away != 0) for away in seen])), float(below), float(above))

    def allowed_for(self, found: MeanChange, values: np.ndarray) -> MeanChange:
        """`found` of `values` [text], widened by what its own rare texts add too little, until 10 are to be expected.

        An interval of few rare texts is narrow by chance just where they are too few, and measuring would stop there: so the
        deviation, too, is taken with two of its standard errors.
        """
        away, deviation = giants(values)
        if away is None or self.share * len(values) >= FEWEST_CHANGED:
            return found
        surely = 1 + 2 * DEVIATION_ERROR / np.sqrt(len(values))
        below, above = np.maximum(surely * np.array([self.below, self.above]) - _adds(away), 0) * deviation
        return replace(found, low=found.low - float(below), high=found.high + float(above))


def giants(values: np.ndarray) -> tuple[np.ndarray | None, float]:
    """(distances from the median in median absolute deviations, 0 where that is at most `GIANT`, and the deviation).

    None, 0 where the deviation of the values [text] is 0 or not finite.
    """
    if not len(values) or not np.isfinite(values).all():
        return None, 0.0
    away = values - np.median(values)
    deviation = float(np.median(np.abs(away)))
    return (np.where(np.abs(away) > GIANT * deviation, away / deviation, 0.0), deviation) if deviation else (None, 0.0)


def _adds(away: np.ndarray) -> tuple[float, float]:
    """What distances below and above the median add to the mean, 0 or more each."""
    return float(np.mean(np.maximum(-away, 0))), float(np.mean(np.maximum(away, 0)))


def gradient_scale(values: np.ndarray, weights: np.ndarray, gradients: np.ndarray) -> float:
    """The one number by which all `gradients` [unit, text] are multiplied before they serve as control variate.

    First-order estimates move with the true changes but may be too large all alike: by about two where blocks end in a
    norm, whose output does not grow with its input. The scale is the median over units of the least-squares slope
    cov(values, gradients) / var(gradients), not below 0; 1 where no unit says anything. It is taken once, at the first
    look, over the units of one window together, so that it is nearly a constant beside any one unit's estimate: a slope
    fitted to each unit's own few texts would make its residuals look smaller than they are.

    Args:
        values: [unit, text], of the first look; units with an exploded loss are left out.
        gradients: [unit, text or more].
    """
    values = np.asarray(values, dtype=float)
    n = values.shape[1]
    gradients = np.asarray(gradients, dtype=float)[:, :n]
    usable = np.isfinite(values).all(1) & np.isfinite(gradients).all(1) & (np.ptp(gradients, axis=1) > 0)
    if not usable.any():
        return 1.0
    weights = np.asarray(weights, dtype=float)[:n]
    x, g = _linear(values[usable], weights), _linear(gradients[usable], weights)
    return max(0.0, float(np.median((x * g).sum(1) / (g**2).sum(1))))


def use_gradients(values: np.ndarray, weights: np.ndarray, gradients: np.ndarray) -> bool:
    """Whether `gradients` explain `values` so well that their residuals vary less than the values themselves.

    Asked once, at the first look, and kept: a choice made anew at every look would favour lucky small variances.
    """
    values = np.asarray(values, dtype=float)
    gradients = np.asarray(gradients, dtype=float)
    n = len(values)
    if n < 2 or len(gradients) < n or not (np.isfinite(values).all() and np.isfinite(gradients).all()):
        return False
    weights = np.asarray(weights, dtype=float)[:n]
    return bool(_variance(values - gradients[:n], weights) < _variance(values, weights))


def precise(found: MeanChange, tolerance: float, relative: float) -> bool:
    """Whether a settled interval reaches no further than max(tolerance, relative × |change|), so that measuring may stop."""
    return found.settled and found.half_width <= max(tolerance, relative * abs(found.change))


def unsettled(
    estimates: Sequence[MeanChange],
    series: Callable[[int], np.ndarray],
    weights: np.ndarray,
    ranking: Ranking,
    gradients: Callable[[int], np.ndarray | None] | None = None,
) -> set[int]:
    """Indices of the units that need more texts before the `k` largest changes are known, in order.

    A unit among the top k and one ranked below it are in the right order, or differ by less than the tolerance, once the
    lower is shown to exceed the higher by no more than `tolerance`: by their intervals alone, or else by the interval of
    their difference on the texts both were measured on, where what the texts have in common cancels. Of a pair that is
    still open the unit with fewer texts needs more; both, where they have the same number.

    Args:
        series: the values of a unit.
        weights: of the sweep's texts, at least as many as the longest series.
        ranking: how many are ranked, and how surely; its level is that of each look, as for `estimate`.
        gradients: the first-order estimates of a unit that uses them, else None; a pair uses them if both do.
    """
    change, low, high = np.array([(e.change, e.low, e.high) for e in estimates]).reshape(-1, 3).T
    doubtful = np.array([not e.settled for e in estimates], dtype=bool)
    low[doubtful], high[doubtful] = -np.inf, np.inf
    lengths = np.array([e.n_texts for e in estimates])
    order = np.lexsort((np.arange(len(change)), -change))
    needed: set[int] = set()
    for rank, upper in enumerate(order[: ranking.k].tolist()):
        below = order[rank + 1 :]
        if np.isinf(change[upper]):
            continue  # nothing is worse
        close = below[high[below] > low[upper] + ranking.tolerance]
        for length in np.unique(lengths[close]).tolist():
            lowers = close[lengths[close] == length]
            common = min(length, int(lengths[upper]))
            ends = _may_exceed(upper, lowers.tolist(), common, (series, gradients, weights, ranking))
            open_ = lowers[ends > ranking.tolerance]
            if len(open_):
                needed |= set(open_.tolist()) if length <= lengths[upper] else set()
                needed |= {upper} if lengths[upper] <= length else set()
    return needed


def _may_exceed(upper: int, lowers: list[int], n: int, known: tuple[Any, ...]) -> np.ndarray:
    """Upper ends of the intervals of value(lower) − value(upper) on the first `n` texts."""
    series, gradients, weights, ranking = known
    ends = np.full(len(lowers), -np.inf)
    slope = gradients(upper) if gradients else None
    slopes = {i: gradients(lower) for i, lower in enumerate(lowers)} if gradients and slope is not None else {}
    controlled = {i: one for i, one in slopes.items() if one is not None}
    for places in (list(controlled), [i for i in range(len(lowers)) if i not in controlled]):
        if not places:
            continue
        values = np.stack([series(lowers[i])[:n] for i in places]) - series(upper)[:n]
        control = np.stack([controlled[i] for i in places]) - slope if places[0] in controlled else None
        change, _, above = _intervals(values, weights, ranking.level, control, weights, ranking.smallest)
        ends[places] = change + above
    return ends


def _intervals(
    values: np.ndarray,
    weights: np.ndarray,
    level: float,
    gradients: np.ndarray | None,
    wide: np.ndarray,
    smallest: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, reach below, above) of the rows of `values` [..., text]; `wide` are the weights of `gradients`. See `estimate`."""
    n = values.shape[-1]
    weights = np.asarray(weights, dtype=float)[:n]
    mean, variance = np.average(values, axis=-1, weights=weights), _variance(values, weights) / n
    if n == 1:
        return mean, np.full_like(variance, np.inf), np.full_like(variance, np.inf)
    third = third_cumulant(_linear(values, weights)) / n**2
    m = 0 if gradients is None else gradients.shape[-1]
    if gradients is not None and m > n:
        gradients, wide = np.asarray(gradients, dtype=float), np.asarray(wide, dtype=float)[:m]
        residuals = values - gradients[..., :n]
        control = np.average(gradients, axis=-1, weights=wide)
        controlled = _variance(values, weights) / m + _variance(residuals, weights) * (1 / n - 1 / m)
        # What a text of both samples adds, and what one adds that has its gradient alone.
        both = _linear(values, weights) / m + _linear(residuals, weights) * (1 / n - 1 / m)
        thirds = n * third_cumulant(both) + (m - n) * third_cumulant(_linear(gradients, wide)) / m**3
        # Where every value is the same, gradients that disagree have shown themselves wrong.
        same = variance == 0
        mean = np.where(same, mean, np.average(residuals, axis=-1, weights=weights) + control)
        variance, third = np.where(same, variance, controlled), np.where(same, 0.0, thirds)
    step = 2 * smallest**2 / (n - 1) / n  # of the variance of the mean, were one more text to move up and one down
    error = np.sqrt(variance + step)
    cubed = error**3
    skewness = np.divide(third, cubed, out=np.zeros_like(cubed), where=cubed > 0)
    below, above = reach(skewness, n - 1, level)
    return mean, below * error, above * error


def _variance(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Variance of w (x − mean) / mean(w) along the last axis: n times that of the weighted mean, linearised.

    Infinite for a single text, and exactly 0 where all values are equal, which rounding would hide.
    """
    n = values.shape[-1]
    if n == 1:
        return np.full(values.shape[:-1], np.inf)
    return np.where(np.ptp(values, axis=-1) == 0, 0.0, (_linear(values, weights) ** 2).sum(-1) / (n - 1))


def _linear(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """w (x − mean) / mean(w) of every value: what it adds to the error of the weighted mean, times n."""
    return weights * (values - np.average(values, axis=-1, weights=weights)[..., None]) / weights.mean()


@dataclass
class MetricChange:
    """What a sweep's differences of predictions do to the metric.

    Attributes:
        statistic: of predictions in the task's own order of texts.
        order: the sweep's order of texts, int [text].
        intact: predictions of the intact model in the sweep's order [text]; filled in once all are known.
    """

    statistic: Statistic
    order: np.ndarray
    seed: int
    intact: np.ndarray | None = None

    def predictions(self, differences: np.ndarray) -> np.ndarray:
        """Predictions in the task's order, from differences to the intact model in the sweep's order, both [text]."""
        assert self.intact is not None, "the intact model is measured before any effect is looked at"
        found = np.empty(len(differences))
        found[self.order] = self.intact + differences
        return found

    def change(self, differences: np.ndarray) -> float:
        """Change of 1 − metric."""
        nothing = self.predictions(np.zeros(len(differences)))
        return self.statistic.value(self.predictions(differences)) - self.statistic.value(nothing)

    def estimate(self, differences: np.ndarray, level: float) -> MeanChange:
        """The change with its paired BCa interval over texts; `spread` is that of the predictions' differences."""
        before, after = self.predictions(np.zeros(len(differences))), self.predictions(differences)
        change = self.statistic.change(before, after, seed=self.seed, level=level)
        spread = float(np.std(differences, ddof=1)) if np.isfinite(differences).all() else float("inf")
        return MeanChange(change.value, change.low, change.high, spread, len(differences))
