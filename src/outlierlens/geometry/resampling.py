"""Intervals over sentences: by bootstrap, or by leaving groups of sentences out.

    weights = sentence_weights(n_sentences, 500, seed)     # [replicate, sentence], row 0 is every sentence once
    estimate(mean_cosine(units, weights[:, sentence]), raw)

Statistics of one layer, whatever the fix, are taken with the same weights, so differences are paired.
"""

import numpy as np

from outlierlens.geometrical import Estimate

LEVEL = 0.95
# 97.5th percentile of Student's t at 1 to 9 degrees of freedom, of a jackknife over as many groups and one.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
GROUPS = len(STUDENT) + 1
FEWEST_SENTENCES = 100  # of a jackknife


def sentence_weights(n: int, n_bootstrap: int, seed: int) -> np.ndarray:
    """How often each of `n` sentences is drawn in each of `n_bootstrap` draws with replacement, float32.

    [1 + n_bootstrap, n]; row 0 has every sentence once, which gives the value itself.
    """
    random = np.random.default_rng([seed, 23])
    weights = np.ones((1 + n_bootstrap, n), dtype=np.float32)
    for row in weights[1:]:
        row[:] = np.bincount(random.integers(n, size=n), minlength=n)
    return weights


def estimate(values: np.ndarray, raw: np.ndarray | None) -> Estimate:
    """Value and percentile interval of `values` [replicate], the value itself first, and of their difference from `raw`."""
    low, high = _percentiles(values)
    if raw is None:
        return Estimate(float(values[0]), low, high, *(float("nan"),) * 3)
    change = values - raw
    return Estimate(float(values[0]), low, high, float(change[0]), *_percentiles(change))


def jackknife(values: np.ndarray, raw: np.ndarray | None, n: int) -> Estimate:
    """Value and interval of `values`: all `n` sentences, then without each group in turn; and of their difference from `raw`.

    Of groups left out a t interval: a bootstrap draws vectors twice, which makes any spread look smaller than it is. NaN, not
    settled, of fewer than 100 sentences.
    """
    if n < FEWEST_SENTENCES:
        values = np.concatenate([values[:1], np.full(len(values) - 1, np.nan)])
    low, high = _student(values)
    if raw is None:
        return Estimate(float(values[0]), low, high, *(float("nan"),) * 3)
    change = values - raw
    return Estimate(float(values[0]), low, high, float(change[0]), *_student(change))


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    drawn = values[1:][np.isfinite(values[1:])]
    if len(drawn) < 2:
        return float("nan"), float("nan")
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def _student(values: np.ndarray) -> tuple[float, float]:
    left = values[1:]
    groups = len(left)
    if groups < 2 or not np.isfinite(left).all():
        return float("nan"), float("nan")
    error = float(np.sqrt((groups - 1) / groups * ((left - left.mean()) ** 2).sum()))
    reach = STUDENT[min(groups - 1, len(STUDENT)) - 1] * error
    return float(values[0]) - reach, float(values[0]) + reach
