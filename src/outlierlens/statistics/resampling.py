"""Texts drawn again: how often each counts, and intervals from values over draws.

    weights = multinomial_weights(n_texts, 500, seed)        # [1 + draw, text], row 0 is every text once
    low, high = percentile_interval(values[1:])              # the same value in each draw
    error = jackknife_error(without)                         # the same value without each group in turn
    low, high = with_training(0.013, (0.010, 0.016), redrawn)

Where texts come in a stream each counts Poisson(1) times, which is how often it stands in a draw of as many texts with
replacement (the online bootstrap, Oza and Russell 2001). A number of `poisson_weights` depends on its seed, text and draw
alone, whatever batch the text is in; one of `poisson_times` too, with all texts at hand.
"""

import math
from collections.abc import Sequence

import numpy as np

from outlierlens.statistics.means import LEVEL, NORMAL, critical, welch_degrees

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
