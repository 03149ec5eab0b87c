"""How surely each look must hold what the whole sequence of looks shall: simulated once for the looks of a sweep.

    looks = look_sizes(2000)              # (16, 18, 20, ..., 30, 32, 36, ..., 2000) texts
    level = look_level(looks)             # 0.996: what each look must hold for 95 % over all of them
    widening = stop_widening(looks)       # 37: what makes it 95 % at the look where `precise` stops
    level = widened(100, 0.95, widening)  # 0.977: of that look, after 100 texts

Texts come in random order, so the first n of them are a random sample. Intervals are looked at only at the numbers of
texts `look_sizes` names, each at a confidence that makes the chance that *any* of them misses 1 − 0.95 in all: repeated
confidence intervals (Jennison & Turnbull 1989), which hold for whatever reason the measuring stopped. Where the only
reason is that the interval is narrow enough, fewer texts do (`stop_widening`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.statistics.means import FEWEST_TEXTS, critical, reach, third_cumulant
from outlierlens.statistics.ranks import two_sided_p

FIRST_LOOK = FEWEST_TEXTS  # fewer settle nothing
LOOKS = 8  # for every doubling: a look later than need be measures 6 % too many texts on average
SKEWED_LOSS = 0.015  # of coverage, where differences are log-normal
SKEWED_TEXTS = 768  # of simulated log-normal sequences: the mean of more is as good as normal
MOST_WIDENING = 256.0


def look_sizes(n_texts: int, first: int = FIRST_LOOK) -> tuple[int, ...]:
    """Numbers of texts at which intervals are looked at: first, then in eighths of the last doubling, then all `n_texts`.

    Raises:
        BadInput: no text, or a first look at fewer than 2 texts.
    """
    if n_texts < 1 or first < 2:
        raise BadInput(f"cannot look at {first} of {n_texts} texts first; need at least one text and a first look of 2")
    sizes, step = {n_texts}, first
    while step < n_texts:
        sizes |= {size for part in range(LOOKS) if (size := step + step * part // LOOKS) < n_texts}
        step *= 2
    return tuple(sorted(sizes))


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
    smallest = np.ones(draws)
    for now, means, errors in zip(looks, *_sequences(looks, draws), strict=True):
        t = np.abs(means) / errors
        far = t > critical(now - 1, level)  # the answer is stricter than `level`: other p-values do not matter
        smallest[far] = np.minimum(smallest[far], two_sided_p(t[far], now - 1))
    return float(1 - np.quantile(smallest, 1 - level))


@lru_cache(maxsize=4096)
def widened(n: int, level: float, widening: float) -> float:
    """The confidence of a t interval of `n` values that is √(1 + widening / (n + 16)) times as wide as one of `level`."""
    if n < 2 or not widening:
        return level
    wide = critical(n - 1, level) * np.sqrt(1 + widening / (n + FIRST_LOOK))
    return float(1 - two_sided_p(wide, n - 1))


@dataclass(frozen=True)
class Widening:
    """What makes the interval at which `precise` stops hold, as `widened` takes it; see `stop_widening`.

    Attributes:
        normal, skewed: for normal differences, and for log-normal ones (σ = 1).
        sizes, skewness: numbers of texts, and the mean skewness, in size, of samples of so many log-normal values.
    """

    normal: float = 0.0
    skewed: float = 0.0
    sizes: tuple[int, ...] = ()
    skewness: tuple[float, ...] = ()

    def share(self, values: np.ndarray) -> float:
        """How skewed values [text] are: 0 as samples of so many normal ones are on average, 1 as those of log-normal ones."""
        n = len(values)
        if n < 3 or not self.sizes or np.ptp(values) == 0 or not np.isfinite(values).all():
            return 0.0
        away = values - values.mean()
        skewness = abs(float(third_cumulant(away))) / float(away @ away / (n - 1)) ** 1.5
        normal = math.sqrt(2 / math.pi * 6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
        return (skewness - normal) / (float(np.interp(np.log(n), np.log(self.sizes), self.skewness)) - normal)

    def of(self, share: float) -> float:
        """The widening where differences are so skewed: in proportion, which is more than is needed between the two."""
        return self.normal + (self.skewed - self.normal) * min(1.0, max(0.0, share))


@lru_cache(maxsize=16)
def stop_widening(looks: tuple[int, ...], level: float = 0.95, relative: float = 0.1, draws: int = 20_000) -> Widening:
    """What makes the interval that `precise` stops at hold with `level`, as each look's is `widened` by it.

    Less is needed than for `look_level`, because that rule asks how wide the interval is and not where: the width comes
    from the variance, which for normal values says nothing about the error of the mean, and all that is lost is lost to
    stopping early when the variance came out small (fixed-width intervals: Chow & Robbins 1965; relative ones: Nádas
    1969). That is a loss of order 1 / n, which the widening makes good. How much it is at small samples is simulated here,
    for 24 spreads (that need 4 texts to all of them) under both limits, ± tolerance and ± `relative` × |change|; what is
    returned serves the worst of these 48 cases, of which two Monte Carlo errors less are asked. Where differences are skewed,
    a small variance goes with a small mean: the same is simulated for log-normal values (σ = 1), of which `SKEWED_LOSS` less
    is asked.
    """
    if len(looks) == 1:
        return Widening()
    means, errors = _sequences(looks, draws)
    noise = 2 * np.sqrt(level * (1 - level) / draws)

    def worst(means: np.ndarray, below: np.ndarray, above: np.ndarray, most: float) -> float:
        """The smallest share of sequences whose interval holds 0 where it stops; what is given is [look, draw]."""
        widths, held, shares = np.maximum(below, above), (means - below <= 0) & (means + above >= 0), []
        for texts in np.geomspace(4, most, 24):
            goal = 2 / np.sqrt(texts)  # of the half-width, in spreads: about that many texts get there
            for narrow in (widths <= goal, widths <= np.abs(goal + relative * means)):
                narrow[-1] = True
                shares.append(np.mean(held[narrow.argmax(0), np.arange(held.shape[1])]))
        return float(min(shares))

    def normal(widening: float) -> bool:
        widths = errors * np.array([[critical(look - 1, widened(look, level, widening))] for look in looks])
        return worst(means, widths, widths, looks[-1]) >= level - noise

    few = tuple(look for look in looks if look <= SKEWED_TEXTS)
    least = _least(normal, 0.0)
    if len(few) == 1:
        return Widening(least, least)
    its_means, its_errors, its_skewness = _skewed_sequences(few, draws // 4)

    def skewed(widening: float) -> bool:
        ends = [
            reach(row, look - 1, widened(look, level, widening)) for look, row in zip(few, its_skewness, strict=True)
        ]
        below, above = (np.stack(side) * its_errors for side in zip(*ends, strict=True))
        return worst(its_means, below, above, few[-1] / 4) >= level - SKEWED_LOSS

    usual = np.sqrt(few) * np.abs(its_skewness).mean(1)
    return Widening(least, _least(skewed, least), few, tuple(usual.tolist()))


def _least(holds: Callable[[float], bool], low: float) -> float:
    """The least widening above `low` that holds, to 1."""
    high = MOST_WIDENING
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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


def _skewed_sequences(looks: tuple[int, ...], draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, their standard errors and skewness [look, draw] of log-normal values (σ = 1) with mean 0 and variance 1."""
    random = np.random.default_rng(1992)
    sums, found = np.zeros((3, draws)), np.empty((3, len(looks), draws))
    for place, (before, now) in enumerate(zip((0, *looks), looks, strict=False)):
        values = (random.lognormal(size=(draws, now - before)) - np.sqrt(np.e)) / np.sqrt(np.e * (np.e - 1))
        sums += [(values**power).sum(1) for power in (1, 2, 3)]
        mean, square, cube = sums / now
        variance = (square - mean**2) * now / (now - 1)
        third = (cube - 3 * mean * square + 2 * mean**3) * now**2 / ((now - 1) * (now - 2))
        found[:, place] = mean, np.sqrt(variance / now), third / variance**1.5 / np.sqrt(now)
    return found[0], found[1], found[2]
