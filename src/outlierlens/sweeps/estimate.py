"""How large an effect is and how surely that is known, from per-text differences; pure functions, no torch.

    looks = look_sizes(2000)                             # (12, 18, 24, 36, 48, ..., 2000) texts
    level = look_level(looks)                            # 0.995: what each look must hold for 95 % over all of them
    level = stop_level(looks)                            # 0.966: for 95 % at the look where `precise` stops
    slopes = gradient_scale(first, weights, gradients) * gradients               # [unit, text], where there are some
    found = estimate(values, weights, level)             # weighted mean of the differences seen so far, with interval
    precise(found, tolerance=0.01, relative=0.1)         # whether measuring this effect may stop
    unsettled(estimates, series, weights, k=5, level=level, tolerance=0.01)      # who needs more texts to be ranked
    benjamini_hochberg(rank_p_among(changes))

Texts come in random order, so the first n of them are a random sample. Intervals are looked at only at the numbers of
texts `look_sizes` names, each at a confidence that makes the chance that *any* of them misses 1 − 0.95 in all: repeated
confidence intervals (Jennison & Turnbull 1989), which hold for whatever reason the measuring stopped. Where the only
reason is that the interval is narrow enough, about half as many texts do (`stop_level`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from outlierlens.errors import BadInput, need

FIRST_LOOK = 12  # steadier than 8 against skewed differences, for the same number of texts in all
EQUAL_TEXTS = 32  # so many equal differences in a row leave at most 1 text in 7 that could differ, at confidence 0.99


@dataclass(frozen=True)
class Estimate:
    """A mean change over texts with its interval.

    Attributes:
        change: weighted mean of the differences; infinite where a difference is infinite or no number.
        half_width: of the interval; infinite for a single text. Where `bounds` are given, half of their distance.
        spread: standard deviation of the differences over texts, all texts alike; NaN for a single text.
        n_texts: texts the differences were measured on.
        bounds: ends of an interval that is not symmetric around the change.
    """

    change: float
    half_width: float
    spread: float
    n_texts: int
    bounds: tuple[float, float] | None = None

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.bounds[0] if self.bounds else self.change - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.bounds[1] if self.bounds else self.change + self.half_width


@dataclass(frozen=True)
class Ranking:
    """What it takes to call the `k` largest changes ranked: `level` and `tolerance`, and `smallest` as in `estimate`."""

    k: int
    level: float
    tolerance: float
    smallest: float = 0.0


def look_sizes(n_texts: int, first: int = FIRST_LOOK) -> tuple[int, ...]:
    """Numbers of texts at which intervals are looked at: first, 1.5 × first, and their doubles, then all `n_texts`.

    Raises:
        BadInput: no text, or a first look at fewer than 2 texts.
    """
    if n_texts < 1 or first < 2:
        raise BadInput(f"cannot look at {first} of {n_texts} texts first; need at least one text and a first look of 2")
    sizes, step = [], first
    while step < n_texts:
        sizes += [step, step + step // 2]
        step *= 2
    return (*(size for size in sizes if size < n_texts), n_texts)


@lru_cache(maxsize=64)
def look_level(looks: tuple[int, ...], level: float = 0.95, draws: int = 200_000) -> float:
    """The confidence of each look's t interval at which all looks together hold with probability `level`.

    Pocock's (1977) equal significance level at every look, applied to t intervals (Jennison & Turnbull 2000, section
    4.4): the smallest of the looks' two-sided p-values is simulated for sequences of independent normal values, and one
    less its (1 − level) quantile is the answer. Deterministic; its Monte Carlo error is 0.0005 in overall confidence.
    A single look needs no more than `level` itself. `looks` ascend from 2 or more texts.
    """
    if len(looks) == 1:
        return level
    special = _special()
    smallest = np.ones(draws)
    for now, means, errors in zip(looks, *_sequences(looks, draws), strict=True):
        t = np.abs(means) / errors
        far = t > _critical(now - 1, level)  # the answer is stricter than `level`: other p-values do not matter
        smallest[far] = np.minimum(smallest[far], 2 * special.stdtr(now - 1, -t[far]))
    return float(1 - np.quantile(smallest, 1 - level))


@lru_cache(maxsize=16)
def stop_level(looks: tuple[int, ...], level: float = 0.95, relative: float = 0.1, draws: int = 20_000) -> float:
    """The confidence of each look's t interval at which the interval that `precise` stops at holds with `level`.

    Less is needed than for `look_level`, because that rule asks how wide the interval is and not where: the width comes
    from the variance, which for normal values says nothing about the error of the mean, and all that is lost is lost to
    stopping early when the variance came out small (fixed-width intervals: Chow & Robbins 1965; relative ones: Nádas
    1969). How much that is at small samples is simulated here, for 24 spreads (that need 4 texts to all of them) under
    both limits, ± tolerance and ± `relative` × |change|, and the level returned serves the worst of these 48 cases. It
    lies between `level` and `look_level`, whose intervals alone may be looked at for any other reason to stop.
    """
    if len(looks) == 1:
        return level
    means, errors = _sequences(looks, draws)
    everyone = np.arange(draws)

    def worst(confidence: float) -> float:
        widths = errors * np.array([[_critical(look - 1, confidence)] for look in looks])
        shares = []
        for texts in np.geomspace(4, looks[-1], 24):
            goal = 2 / np.sqrt(texts)  # of the half-width, in spreads: about that many texts get there
            for narrow in (widths <= goal, widths <= np.abs(goal + relative * means)):
                narrow[-1] = True
                stop = narrow.argmax(0)
                shares.append(np.mean(np.abs(means[stop, everyone]) <= widths[stop, everyone]))
        return float(min(shares))

    low, high = level, look_level(looks, level)
    while high - low > 2e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if worst(middle) >= level else (middle, high)
    return high


def estimate(
    values: np.ndarray,
    weights: np.ndarray,
    level: float,
    gradients: np.ndarray | None = None,
    gradient_weights: np.ndarray | None = None,
    *,
    smallest: float = 0.0,
) -> Estimate:
    """Weighted mean of `values` with a t interval of confidence `level`.

    Without gradients the mean is Σ w x / Σ w, a ratio of two means, and its variance that of the mean of
    w (x − mean) / mean(w) (linearisation: Cochran 1977, section 6.4), with n − 1 degrees of freedom.

    `gradients` [m] are first-order estimates of the same differences on the first m > n texts. They serve as control
    variate with coefficient 1 (difference estimator in double sampling: Cochran 1977, section 12.9): the estimate is
    mean_n(x − g) + mean_m(g), which is unbiased however wrong g is, with variance s²(x)/m + s²(x − g) (1/n − 1/m). On m
    or fewer texts than n they have nothing to add and are ignored.

    Differences that come in steps (right or wrong) may be all equal by chance: with `smallest`, their smallest step, the
    variance is taken as if one text more had moved up by it and one down (Agresti & Min 2005, for paired proportions).

    A loss that exploded on one text (infinite or no number) makes the change infinite: worse than any finite one and
    not to be refined, so its half-width is 0. Where all values are equal the half-width is 0 too, which is what the
    formula says but no proof that other texts do the same: see `precise`.

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
        return Estimate(np.inf, 0.0, np.inf, n)
    change, half_width = _intervals(values, weights, level, gradients, wide, smallest)
    if n == 1:
        spread = float("nan")
    else:
        spread = float(values.std(ddof=1)) if np.ptp(values) else 0.0  # exactly: `precise` asks
    return Estimate(float(change), float(half_width), spread, n)


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


def precise(found: Estimate, tolerance: float, relative: float) -> bool:
    """Whether the interval is narrower than ± max(tolerance, relative × |change|), so that measuring may stop.

    An infinite change is settled. Equal differences have an interval of no width, but a few of them say little about
    texts not yet seen, so fewer than `EQUAL_TEXTS` never suffice; and 32 equal ones still leave it possible, at
    confidence 0.99, that 1 text in 7 differs (1 − 0.01^(1/32)). Differences of a loss are equal only when nothing
    changes at all; those of right and wrong have `smallest` to widen them.
    """
    if np.isinf(found.change):
        return True
    if found.spread == 0 and found.n_texts < EQUAL_TEXTS:
        return False
    return found.half_width <= max(tolerance, relative * abs(found.change))


def unsettled(
    estimates: Sequence[Estimate],
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


def rank_p_among(changes: np.ndarray) -> np.ndarray:
    """Rank p-value of each change among the others: (1 + #{others ≥ change}) / (1 + n of others).

    It is valid under the null that a unit's change is exchangeable with the others'. What is no number counts as
    infinite.
    """
    changes = np.nan_to_num(np.asarray(changes, dtype=float), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    # A change is at least as large as itself: counting it is the 1 in the numerator.
    return (len(changes) - np.searchsorted(np.sort(changes), changes, side="left")) / max(1, len(changes))


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Adjusted p-values: the smallest false discovery rate at which each is still rejected.

    Benjamini & Hochberg (1995): q of the i-th smallest p is the minimum over j ≥ i of n p_j / j, at most 1. They hold
    for independent or positively dependent p-values (Benjamini & Yekutieli 2001).
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(-p, kind="stable")
    adjusted = np.minimum.accumulate(p[order] * len(p) / np.arange(len(p), 0, -1))
    q = np.empty_like(p)
    q[order] = np.minimum(adjusted, 1)
    return q


def _sequences(looks: tuple[int, ...], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and their standard errors [look, draw] at each look of sequences of independent standard normal values."""
    random = np.random.default_rng(1977)
    total, squares = np.zeros(draws), np.zeros(draws)
    means, errors = np.empty((len(looks), draws)), np.empty((len(looks), draws))
    for place, (before, now) in enumerate(zip((0, *looks), looks, strict=False)):
        fresh = now - before
        sums = random.standard_normal(draws) * np.sqrt(fresh)
        total += sums
        # The sum of squares of `fresh` normal values, given their sum: the part about their mean is independent of it.
        squares += sums**2 / fresh + (random.chisquare(fresh - 1, draws) if fresh > 1 else 0)
        means[place] = total / now
        errors[place] = np.sqrt((squares - total**2 / now) / (now - 1) / now)
    return means, errors


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
        change, half_width = _intervals(values, weights, ranking.level, control, weights, ranking.smallest)
        ends[places] = change + half_width
    return ends


def _intervals(
    values: np.ndarray,
    weights: np.ndarray,
    level: float,
    gradients: np.ndarray | None,
    wide: np.ndarray,
    smallest: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """(mean, half-width) of the rows of `values` [..., text]; `wide` are the weights of `gradients`. See `estimate`."""
    n = values.shape[-1]
    weights = np.asarray(weights, dtype=float)[:n]
    mean, variance = np.average(values, axis=-1, weights=weights), _variance(values, weights) / n
    m = 0 if gradients is None else gradients.shape[-1]
    if gradients is not None and m > n:
        gradients = np.asarray(gradients, dtype=float)
        residuals = values - gradients[..., :n]
        control = np.average(gradients, axis=-1, weights=np.asarray(wide, dtype=float)[:m])
        controlled = _variance(values, weights) / m + _variance(residuals, weights) * (1 / n - 1 / m)
        # Where every value is the same, gradients that disagree have shown themselves wrong.
        same = variance == 0
        mean = np.where(same, mean, np.average(residuals, axis=-1, weights=weights) + control)
        variance = np.where(same, variance, controlled)
    if n == 1:
        return mean, np.full_like(variance, np.inf)
    step = 2 * smallest**2 / (n - 1) / n  # of the variance of the mean, were one more text to move up and one down
    return mean, _critical(n - 1, level) * np.sqrt(variance + step)


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


@lru_cache(maxsize=4096)
def _critical(degrees: int, level: float) -> float:
    """What |t| stays below with probability `level`."""
    return float(_special().stdtrit(degrees, (1 + level) / 2))


def _special() -> Any:
    return need("scipy.special", "models", "an interval")
