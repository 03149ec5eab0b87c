"""Values and intervals over sentences, of a measure and of its difference from raw vectors.

    weights = multinomial_weights(n_sentences, 500, seed)     # [replicate, sentence], row 0 is every sentence once
    estimate(mean_cosine(units, weights[:, sentence]), raw)

Statistics of one layer, whatever the fix, are taken with the same weights, so differences are paired.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from outlierlens.statistics.means import critical
from outlierlens.statistics.resampling import jackknife_error, percentile_interval

GROUPS = 10  # of sentences that a jackknife leaves out in turn
FEWEST_SENTENCES = 100  # of a jackknife


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, and its difference from the same number of the raw vectors, paired.

    `change` and its interval are 0 for raw, and NaN where raw was not measured.
    """

    value: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float


def estimate(values: np.ndarray, raw: np.ndarray | None) -> Estimate:
    """Value and percentile interval of `values` [replicate], the value itself first, and of their difference from `raw`."""
    return _estimate(values, raw, _percentiles)


def jackknife(values: np.ndarray, raw: np.ndarray | None, n: int) -> Estimate:
    """Value and interval of `values`: all `n` sentences, then without each group in turn; and of their difference from `raw`.

    Of groups left out a t interval: a bootstrap draws vectors twice, which makes any spread look smaller than it is. NaN, not
    settled, of fewer than 100 sentences.
    """
    if n < FEWEST_SENTENCES:
        values = np.concatenate([values[:1], np.full(len(values) - 1, np.nan)])
    return _estimate(values, raw, _student)


def _estimate(
    values: np.ndarray, raw: np.ndarray | None, ends: Callable[[np.ndarray], tuple[float, float]]
) -> Estimate:
    value = float(values[0])
    if raw is None:
        return Estimate(value, *ends(values), *(float("nan"),) * 3)
    change = values - raw
    return Estimate(value, *ends(values), float(change[0]), *ends(change))


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    low, high = percentile_interval(values[1:], fewest=2)
    return float(low), float(high)


def _student(values: np.ndarray) -> tuple[float, float]:
    value, groups = float(values[0]), len(values) - 1
    reach = round(critical(max(1, groups - 1)), 3) * jackknife_error(values[1:])  # t as printed tables have it
    return value - reach, value + reach
