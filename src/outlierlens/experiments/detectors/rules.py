"""The rules that only live here, on plain arrays [layer, dim]; `detect` and `activation_rules` hold the others.

flags = rudman(variances, factor=5.0)
flags.holds, flags.strength                          # [layer, dim] each
"""

from dataclasses import dataclass

import numpy as np

from outlierlens.statistics.ranks import ratio as quotient


@dataclass(frozen=True)
class Flags:
    """Where a rule holds, bool [layer, dim], and the number that it compares [layer, dim]."""

    holds: np.ndarray
    strength: np.ndarray


def systematic(abs_max: np.ndarray, mean_abs: np.ndarray, ratio: float) -> Flags:
    """max |h_d| > `ratio` × the layer's mean |h| (An et al. 2025). `abs_max` [layer, dim], `mean_abs` [layer].

    The strength is the ratio itself; a layer of zeros alone has none.
    """
    times = quotient(abs_max, mean_abs[:, None])
    return Flags(times > ratio, times)


def rudman(variances: np.ndarray, factor: float) -> Flags:
    """Variance of a dimension of sentence vectors >= `factor` × the mean variance over dimensions (Rudman et al. 2023)."""
    times = quotient(variances, variances.mean(axis=1, keepdims=True))
    return Flags(times >= factor, times)


def timkey(contributions: np.ndarray, share: float, least_cosine: float) -> Flags:
    """A dimension adds at least `share` of the layer's mean cosine (Timkey and van Schijndel 2021, section 3).

    `contributions` [layer, dim] sum to the mean cosine of the layer; below `least_cosine` there is no anisotropy to share.
    """
    cosine = contributions.sum(axis=1, keepdims=True)
    part = quotient(contributions, cosine)
    return Flags((part >= share) & (cosine >= least_cosine), part)


def macocco(medians: np.ndarray, high: np.ndarray) -> Flags:
    """Median |h_d| > the quantile `high` [layer] of all |h| of the layer (Macocco et al. 2025); NaN medians never."""
    times = quotient(medians, high[:, None])
    return Flags(times > 1, times)


def he_parts(energy: np.ndarray) -> np.ndarray:
    """What every dimension adds to He's kurtosis − 1 [layer, dim], of sums of squares `energy` [layer, dim].

    s_j = energy_j / mean(energy); the parts (s_j − 1)² / width sum to the variance of s (He et al. 2024).
    """
    relative = quotient(energy, energy.mean(axis=1, keepdims=True))
    return np.asarray((relative - 1) ** 2 / energy.shape[1])


def he(energy: np.ndarray, least: float, share: float) -> Flags:
    """The dimensions that carry `share` of He's kurtosis − 1, in layers where the kurtosis is at least `least`.

    Only dimensions larger than the mean count: a small one adds 1 / width at most.
    """
    parts = he_parts(energy)
    larger = energy > energy.mean(axis=1, keepdims=True)
    high = parts.sum(axis=1, keepdims=True) + 1 >= least
    return Flags(carriers(np.where(larger, parts, 0), share, parts.sum(axis=1)) & high, parts)


def bondarenko(fourth: np.ndarray, least: float, share: float) -> Flags:
    """The dimensions that carry `share` of Bondarenko's kurtosis, in layers where it is at least `least`.

    `fourth` [layer, dim] are the parts of the kurtosis of all entries, mean over sequences; a layer that was not tapped
    holds NaN.
    """
    total = fourth.sum(axis=1)
    high = np.nan_to_num(total)[:, None] >= least
    return Flags(carriers(np.nan_to_num(fourth), share, np.nan_to_num(total)) & high, fourth)


def carriers(parts: np.ndarray, share: float, total: np.ndarray) -> np.ndarray:
    """The fewest dimensions whose `parts` [layer, dim] come to `share` of `total` [layer], as bool [layer, dim]."""
    order = np.argsort(-parts, axis=1, kind="stable")
    ordered = np.take_along_axis(parts, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    wanted = (before < share * total[:, None]) & (ordered > 0)
    found = np.zeros(parts.shape, dtype=bool)
    np.put_along_axis(found, order, wanted, axis=1)
    return found
