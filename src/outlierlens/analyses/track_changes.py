"""Where a series over training steps leaves its level, where a loss starts to fall and where it has settled.

    onset = change_point(steps, mean_z, direction=1)         # ChangePoint with an interval, None for a flat series
    settled = plateau(steps, loss)                           # within 5 % of the total fall of the final level
    falls_from = last_fall(steps, loss)                      # onset of the last steep fall

The change is fitted as level, straight ramp, level (continuous; a jump and a lasting slope are its limits) by least
squares over all pairs of break points. Successive deviations may be correlated, AR(1): the fit is repeated on
whitened values. The interval is what a likelihood-ratio test of the onset does not reject; its 95 % value, 7.35, is
that of a jump (Siegmund 1988; Hansen 2000, theorem 1), more than the 3.84 that a bend alone would need (Feder 1975).

p is of another likelihood ratio: the best ramp against no change, each at the correlation that suits it best, so that what a
change explains is weighed against what drifting noise would. Its null distribution is simulated at the correlation where it
is largest, 0.98: noise that drifts more slowly than that cannot be told from a change in one series.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.ranks import rank_among

MIN_POINTS = 8  # four numbers are fitted; fewer points leave nothing to judge the fit by
MAX_POINTS = 120  # longer series are averaged in bins: more would only repeat correlated values
MAX_BREAKS = 60
DRAWS = 199  # series simulated without a change; the least p-value is 1 / 200
BOOTSTRAP = 400
MAX_RHO = 0.95
RHOS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98)  # correlations that likelihoods are compared at
SHARE = 0.05  # of its total fall within which a loss is on its plateau
STEEP = 0.1  # share of the total fall that makes a fall steep enough to count


@dataclass(frozen=True)
class ChangePoint:
    """Where a series leaves its first level: level, ramp, level, fitted by least squares.

    Attributes:
        step: end of the first level.
        low, high: 95 % interval of `step`, which ends at recorded steps.
        until: end of the ramp; the last recorded step where the series still moves.
        before, after: the two levels.
        rho: correlation of successive deviations from the fit that the interval allows for, in [0, 1).
        p: p-value of "no change at all", by simulation; above 0.05 it is not settled that there is one (`sure`).
        n_points: points the fit rests on.
    """

    step: int
    low: int
    high: int
    until: int
    before: float
    after: float
    rho: float
    p: float
    n_points: int

    @property
    def sure(self) -> bool:
        """Whether "no change at all" is rejected at 5 %."""
        return self.p <= SIGNIFICANT


@dataclass(frozen=True)
class Plateau:
    """Where a loss comes within a share of its total fall of its final level, and stays there.

    Attributes:
        step: first such step of the curve made monotone; `low` and `high` are its bootstrap interval.
        final: mean of the last tenth of the curve; `fall` is the first value minus it.
        settled: False when it is reached only in the last quarter of the run: then the loss may well still be falling.
    """

    step: int
    low: int
    high: int
    final: float
    fall: float
    settled: bool


def change_point(
    steps: np.ndarray, values: np.ndarray, *, direction: int = 0, level: float = 0.95, seed: int = 0
) -> ChangePoint | None:
    """The onset of the change in `values`; `direction` 1 looks for a rise, −1 for a fall, 0 for either.

    None with fewer than `MIN_POINTS` points, in a constant series, and where nothing moves in that direction.
    """
    x, y = binned(np.asarray(steps), np.asarray(values), MAX_POINTS)
    if len(x) < MIN_POINTS or np.ptp(y) <= 1e-12 * np.abs(y).max():
        return None
    fit = _Ramps(x, direction)
    rho = 0.0
    for _ in range(3):
        best = fit.best(y, rho)
        if best is None:
            return None
        left = y - best.curve
        rho = _correlation(left) if left @ left > 1e-12 * np.square(y - y.mean()).sum() else 0.0  # rounding alone
    best = fit.best(y, rho)
    if best is None:
        return None
    critical = -2 * math.log(1 - math.sqrt(level))
    ratio = (len(x) - 4) * (best.by_onset - best.rss) / best.rss
    kept = np.flatnonzero(ratio <= critical)
    # A jump after step i shows at step i + 1, so an onset that is kept stands for all that lies before the next one.
    last = fit.breaks[int(np.searchsorted(fit.breaks, fit.onsets[kept[-1]])) + 1]
    return ChangePoint(
        step=round(x[best.start]),
        low=round(x[fit.onsets[kept[0]]]),
        high=round(x[last]),
        until=round(x[best.end]),
        before=best.before,
        after=best.after,
        rho=rho,
        p=_p_value(fit.ratio(y[:, None])[0], x, direction, seed),
        n_points=len(x),
    )


class _SegmentFit:
    """The best ramp: indices of its ends, its levels, RSS, and the RSS of each onset."""

    def __init__(self, fit: "_Ramps", rss: np.ndarray, y: np.ndarray, total: float):
        pair = int(np.argmin(rss))
        self.start, self.end = (int(i) for i in fit.pairs[pair])
        shape = fit.shapes[pair]
        (self.before, slope), *_ = np.linalg.lstsq(np.stack([np.ones_like(y), shape], axis=1), y, rcond=None)
        self.before, self.after = float(self.before), float(self.before + slope)
        self.curve = self.before + slope * shape
        floor = 1e-12 * total
        self.rss = max(float(rss[pair]), floor)
        best = np.full(len(fit.onsets), np.inf)
        np.minimum.at(best, fit.onset_of_pair, rss)
        self.by_onset = np.maximum(best, floor)


class _Ramps:
    """Every level-ramp-level shape over the points `x`, from 0 to 1."""

    def __init__(self, x: np.ndarray, direction: int):
        self.x, self.direction = x, direction
        n = len(x)
        self.breaks = breaks = np.unique(np.linspace(0, n - 1, min(n, MAX_BREAKS)).round().astype(int))
        self.pairs = np.array([(a, b) for a in breaks for b in breaks if a < b])
        self.onsets, self.onset_of_pair = np.unique(self.pairs[:, 0], return_inverse=True)
        start, end = x[self.pairs[:, 0], None], x[self.pairs[:, 1], None]
        self.shapes = np.clip((x - start) / (end - start), 0, 1)  # [pair, point]

    def _whitened(self, rho: float) -> tuple[np.ndarray, np.ndarray]:
        """Unit shapes [pair, point] orthogonal to the constant, and the unit constant, all whitened."""
        one = _whiten(np.ones(len(self.x)), rho)
        one /= np.linalg.norm(one)
        shapes = _whiten(self.shapes, rho)
        shapes = shapes - (shapes @ one)[:, None] * one
        return shapes / np.linalg.norm(shapes, axis=1, keepdims=True), one

    def best(self, y: np.ndarray, rho: float) -> _SegmentFit | None:
        """The least-squares ramp in the direction asked for, or None."""
        shapes, one = self._whitened(rho)
        white = _whiten(y, rho)
        white = white - (white @ one) * one
        along = shapes @ white
        total = float(white @ white)
        rss = total - self._gains(along)
        return _SegmentFit(self, rss, y, total) if self._gains(along).any() else None

    def _gains(self, along: np.ndarray) -> np.ndarray:
        if self.direction:
            along = np.maximum(along * self.direction, 0)
        return np.square(along)

    def ratio(self, values: np.ndarray) -> np.ndarray:
        """Likelihood ratio of the best ramp against no change [series], of values [point, series].

        −2 log of the restricted likelihood of AR(1) noise around a level (Harville 1974), smallest over `RHOS`, without a ramp
        less with one.
        """
        n = len(self.x)
        flat, ramp = np.full((2, values.shape[1]), np.inf)
        for rho in RHOS:
            shapes, one = self._whitened(rho)
            white = _whiten(values.T, rho).T
            white -= one[:, None] * (one @ white)
            total = np.square(white).sum(axis=0)
            left = np.maximum(total - self._gains(shapes @ white).max(axis=0), 1e-12 * total)
            level = math.log1p((n - 1) * (1 - rho) / (1 + rho))
            flat = np.minimum(flat, (n - 1) * np.log(total) + level)
            ramp = np.minimum(ramp, (n - 1) * np.log(left) + level)
        return flat - ramp


def _p_value(ratio: float, x: np.ndarray, direction: int, seed: int) -> float:
    """(1 + simulated series without a change whose ratio is as large) / (1 + series)."""
    relative = (x - x[0]) / (x[-1] - x[0])
    without = _without_change(tuple(relative.round(12).tolist()), direction, seed)
    return float(rank_among(ratio, without) / (1 + DRAWS))


@lru_cache(maxsize=256)  # dimensions of one run are followed over the same steps
def _without_change(x: tuple[float, ...], direction: int, seed: int) -> np.ndarray:
    """Likelihood ratios of `DRAWS` series of AR(1) noise with the largest of `RHOS`, at points `x` from 0 to 1."""
    noise, rho = np.random.default_rng(seed).standard_normal((len(x), DRAWS)), RHOS[-1]
    noise[1:] *= math.sqrt(1 - rho * rho)
    for i in range(1, len(x)):
        noise[i] += rho * noise[i - 1]
    return _Ramps(np.array(x), direction).ratio(noise)


def _whiten(values: np.ndarray, rho: float) -> np.ndarray:
    """AR(1) values along the last axis as independent ones of equal variance (Prais and Winsten 1954)."""
    out = values.astype(np.float64)
    out[..., 1:] -= rho * values[..., :-1]
    out[..., 0] *= math.sqrt(1 - rho * rho)
    return out


def _correlation(residuals: np.ndarray) -> float:
    """Lag-one correlation of residuals in [0, 0.95], corrected for the bias that the fitted numbers bring."""
    n = len(residuals)
    raw = float(residuals[1:] @ residuals[:-1]) / float(residuals @ residuals)
    # Kendall (1954): the estimate lies (1 + 4 rho) / n low around a mean. A fitted ramp takes up more: this much more.
    return min(max((n * raw + 3) / max(n - 12, n / 3), 0.0), MAX_RHO)


def binned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Finite points as float arrays; where there are more than `most`, means of that many groups of neighbours."""
    finite = np.isfinite(values)
    x, y = steps[finite].astype(np.float64), values[finite].astype(np.float64)
    if len(x) <= most:
        return x, y
    groups = np.array_split(np.arange(len(x)), most)
    return np.array([x[g].mean() for g in groups]), np.array([y[g].mean() for g in groups])


def last_fall(steps: np.ndarray, loss: np.ndarray, *, seed: int = 0) -> ChangePoint | None:
    """Onset of the last steep fall of a loss; None where it falls from its first point on without a level before.

    A masked-LM loss drops to its unigram plateau first, and the fall that matters starts at the end of that plateau. So
    the curve is cut at later and later points until a ramp fits that has a level of a twentieth of the points before it,
    and falls by a tenth of the total fall; what follows that fall is searched again.
    """
    x, y = binned(np.asarray(steps), np.asarray(loss), MAX_POINTS)
    n, found, start = len(x), None, 0
    if n < MIN_POINTS:
        return None
    total, flat = float(y[:2].mean() - y[-3:].mean()), max(3, n // 20)
    while total > 0 and start <= n - MIN_POINTS:
        fall = change_point(x[start:], y[start:], direction=-1, seed=seed)
        if fall is None or not fall.sure or fall.before - fall.after < STEEP * total:
            break
        if int(np.searchsorted(x, fall.step)) - start >= flat - 1 and fall.low > x[start]:
            found = fall
            start = max(int(np.searchsorted(x, fall.until)), start + 1)
        else:
            start += max(1, n // 40)
    return found


def plateau(
    steps: np.ndarray, loss: np.ndarray, *, share: float = SHARE, level: float = 0.95, seed: int = 0
) -> Plateau | None:
    """Where the loss reaches its plateau for good; None with fewer than `MIN_POINTS` points or without a fall.

    The curve is made monotone by isotonic least squares first, so that noise does not decide. The interval resamples
    blocks of the deviations (Künsch 1989; blocks of n^(1/3) points), `level` of the resampled curves lie inside.
    """
    x, y = binned(np.asarray(steps), np.asarray(loss), 2 * MAX_POINTS)
    n = len(x)
    if n < MIN_POINTS:
        return None
    smooth = falling(y)
    tail = max(3, n // 10)
    final, fall = float(y[-tail:].mean()), float(smooth[0] - y[-tail:].mean())
    if fall <= 0:
        return None

    def reached(values: np.ndarray) -> int:
        smooth, final = falling(values), values[-tail:].mean()
        return int(np.argmax(smooth <= final + (share + 1e-9) * (smooth[0] - final)))

    random = np.random.default_rng(seed)
    size, residuals = max(1, round(n ** (1 / 3))), y - smooth
    starts = random.integers(0, n - size + 1, (BOOTSTRAP, -(-n // size)))
    drawn = residuals[(starts[:, :, None] + np.arange(size)).reshape(BOOTSTRAP, -1)[:, :n]]
    again = np.array([reached(smooth + noise) for noise in drawn])
    low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    step = x[reached(y)]
    return Plateau(
        step=round(step),
        low=round(min(x[int(low)], step)),
        high=round(max(x[int(high)], step)),
        final=final,
        fall=fall,
        settled=bool(step <= x[0] + 0.75 * (x[-1] - x[0])),
    )


def falling(values: np.ndarray) -> np.ndarray:
    """The nearest series (least squares) that never rises: pool adjacent violators."""
    levels: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        levels.append(value)
        counts.append(1)
        while len(levels) > 1 and levels[-2] < levels[-1]:
            count, one = counts.pop(), levels.pop()
            levels[-1] = (levels[-1] * counts[-1] + one * count) / (counts[-1] + count)
            counts[-1] += count
    return np.repeat(levels, counts)
