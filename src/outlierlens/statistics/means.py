"""The interval of a mean over texts, and of a share; Student's t; and what intervals leave open, in words.

No heavy library is imported.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from outlierlens.errors import need

LEVEL = 0.95
NORMAL = 1.959963984540054  # standard errors to either side of a normal interval at `LEVEL`
NORMAL_MAD = 1.4826  # standard deviation of normal values over their median absolute deviation
HELPS, HURTS, NOTHING, OPEN = "helps", "hurts", "no difference", "not settled"  # what a change does
NEGLIGIBLE = 1e-3  # of the largest change: what is smaller is rounding


@dataclass(frozen=True)
class Noise:
    """The noise of a mean over texts, from repeats of its measurement; see `mean_noise`.

    Attributes:
        floor: standard deviation of the mean between repeats. shared: the variance in it that all texts share.
        degrees: of freedom of `shared`.
    """

    floor: float
    shared: float
    degrees: int


def mean_noise(runs: np.ndarray, weights: np.ndarray, n: int | None = None) -> Noise | None:
    """Noise of the weighted mean over `n` texts from repeats [run, text] of some of them (`weights` [text]); None for one run.

    Variance components of the two-way layout of runs and texts (Searle, Casella and McCulloch 1992, section 4.3): what runs
    and texts make together is each text's own noise, and falls with n; what runs move in all texts alike does not.
    """
    if len(runs) < 2:
        return None
    count = len(weights)
    values = np.asarray(runs, dtype=np.float64) * weights / np.mean(weights)
    if not np.isfinite(values).all():
        return Noise(math.nan, math.nan, len(runs) - 1)
    away = values - values.mean(0)
    means = away.mean(1)  # [run]
    between, own = float(means.var(ddof=1)), 0.0
    if count > 1:
        own = float(np.square(away - means[:, None]).sum()) / ((len(runs) - 1) * (count - 1))
    shared = max(0.0, between - own / count)
    return Noise(math.sqrt(own / (n or count) + shared), shared, len(runs) - 1)


def mean_interval(
    values: np.ndarray, weights: np.ndarray | None = None, level: float = 0.95, noise: Noise | None = None
) -> tuple[float, float]:
    """(low, high) of the weighted mean Σ w x / Σ w of values [text]: the hull of t and of Hall's transformed t (see `reach`).

    The variance of the ratio is linearised (Cochran 1977, section 6.4). It holds for kinds of texts that are among
    these: `interval_words.unseen` says how rare the others are. NaN, NaN where it is not settled: fewer than 16 texts,
    fewer than 10 that changed (`n_changed`), or a value that is not finite. Zeros alone have (0, 0): no change, no interval.

    Each text's own noise is in the variance between texts. What texts share is not: `noise.shared` is added to it, and the
    degrees of freedom are Welch's and Satterthwaite's.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.any() and not settled(values):
        return math.nan, math.nan
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    return ratio_interval(values * weights, weights, level, noise)


def ratio_interval(
    above: np.ndarray, below: np.ndarray, level: float = 0.95, noise: Noise | None = None
) -> tuple[float, float]:
    """(low, high) of Σ above / Σ below, both [text], as `mean_interval`; the sum of `below` must be well away from 0."""
    if noise and not math.isfinite(noise.floor):
        return math.nan, math.nan
    if len(above) and not np.any(above) and not (noise and noise.floor):
        return 0.0, 0.0
    if not settled(above):
        return math.nan, math.nan
    return unsettled_interval(above, below, level, noise)


def unsettled_interval(
    above: np.ndarray, below: np.ndarray, level: float = 0.95, noise: Noise | None = None
) -> tuple[float, float]:
    """`ratio_interval` of however few texts, to choose by and not to report: (-inf, inf) of one text."""
    n, centre = len(above), float(np.sum(above) / np.sum(below))
    if n < 2:
        return -math.inf, math.inf
    away = (above - centre * below) / np.mean(below)
    variance, degrees = float(away @ away / (n - 1) / n), float(n - 1)
    if noise and noise.shared:
        whole = variance + noise.shared
        degrees = welch_degrees((variance, n - 1), (noise.shared, noise.degrees))
        variance = whole
    error = math.sqrt(variance)
    if not error > 0:  # every text says the same ratio
        return centre, centre
    down, up = reach(float(third_cumulant(away / error)) / n**2, degrees, level)
    return centre - float(down) * error, centre + float(up) * error


def settled(values: np.ndarray) -> bool:
    """Whether values [text] say enough for an interval of their mean; see `mean_interval`."""
    return len(values) >= FEWEST_TEXTS and n_changed(values) >= FEWEST_CHANGED


def n_changed(values: np.ndarray) -> int:
    """How many values [text] are neither 0 nor the median, to a thousandth of the largest; 0 where one is not finite."""
    values = np.asarray(values, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        return 0
    sizes = (np.abs(values), np.abs(values - np.median(values)))
    return int(min(np.sum(size > NEGLIGIBLE * size.max()) for size in sizes))


def third_cumulant(away: np.ndarray) -> np.ndarray:
    """Unbiased third cumulant along the last axis of values whose mean is 0: n Σ x³ / ((n − 1) (n − 2)); 0 below 3 values."""
    n = away.shape[-1]
    return (away**3).sum(-1) * n / ((n - 1) * (n - 2)) if n > 2 else np.zeros(away.shape[:-1])


def reach(skewness: float | np.ndarray, degrees: float, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors (below, above) that an interval of a mean reaches from its centre.

    The larger of t and of Hall's t on either side. Hall's (1992, "On the removal of skewness by transformation", equation
    (2.3)) is g(t) = t + γ t² / 3 + γ² t³ / 27 + γ / 6 with γ the skewness of the mean, whose inverse is
    (3 / γ) (∛(1 + γ (t − γ / 6)) − 1).

    Args:
        skewness: third cumulant of the mean over its standard error cubed, a number or an array.
        degrees: of freedom. level: confidence, above 0 and below 1.
    """
    t = critical(degrees, level)
    skewness = np.asarray(skewness, dtype=np.float64)
    safe = np.where(np.abs(skewness) < 1e-9, 1.0, skewness)

    def inverse(of: float) -> np.ndarray:
        found = 3 / safe * (np.cbrt(1 + safe * (of - safe / 6)) - 1)
        return np.where(np.abs(skewness) < 1e-9, of, found)

    return np.maximum(t, inverse(t)), np.maximum(t, -inverse(-t))


def welch_degrees(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of independent variances, (variance, degrees) each (Welch 1947, Satterthwaite 1946)."""
    return sum(variance for variance, _ in parts) ** 2 / sum(variance**2 / degrees for variance, degrees in parts)


def share_at_most(found: int, n: int, level: float = LEVEL) -> float:
    """The share in [0, 1] that `found` of `n` items allow for at most, at confidence `level` (Clopper and Pearson 1934).

    Of none found it is `interval_words.unseen`; of all found, or of no item, 1.
    """
    special: Any = need("scipy.special", "models", "an interval")
    return float(special.betaincinv(found + 1, n - found, level)) if n > found else 1.0


@lru_cache(maxsize=4096)
def critical(degrees: float, level: float = LEVEL) -> float:
    """Bound below which |t| of Student's distribution with `degrees` of freedom lies with probability `level`."""
    special: Any = need("scipy.special", "models", "an interval")
    return float(special.stdtrit(degrees, (1 + level) / 2))


# --- in words --------------------------------------------------------------------------------------------------------

FEWEST_TEXTS = 16  # below, an interval of a mean covers 92 % of log-normal changes
FEWEST_PAIRS = 598  # below, an interval of a correlation may lack a kind that makes up 0.5 % of all items
FEWEST_CHANGED = 10  # texts that changed at all: of fewer, nothing covers


def unseen(n: int, level: float = 0.95) -> float:
    """The share of all texts that a kind may make up and still be missing among `n` of them: 1 − (1 − level)^(1/n)."""
    return -math.expm1(math.log1p(-level) / n)


def unseen_note(n: int, plural: str = "texts") -> str:
    """What an interval over `n` texts leaves open, in words."""
    return (
        f"among {n:,} {plural} a kind that makes up less than {unseen(n):.1%} of all may be missing (at 95 %): "
        "the interval does not cover it"
    )


def no_interval(n: int, plural: str = "texts", times: int = 1, *, metric: str = "") -> str:
    """Why there is no interval over `n` texts, and what settles it; `times` texts are read for each of these.

    `metric` is of what: "pearson" and "spearman" need more items than a mean.
    """
    few, fewest = f"fewer than {FEWEST_CHANGED} of {n:,} {plural} change", FEWEST_TEXTS
    if metric in ("pearson", "spearman"):
        few, fewest = f"a few of {n:,} {plural} decide the correlation", FEWEST_PAIRS
    if n >= fewest:
        return f"{few}, or a value is not finite, so there is no interval; read {2 * times * n:,}"
    return f"{n:,} {plural} are too few for an interval; read {times * fewest:,} or more"


def interval_text(low: float, high: float, form: str = "+.3f", nothing: str = "no change", why: str = "") -> str:
    """An interval in words: its ends; "not settled" where there is none, with `why`; `nothing` where every value was 0."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"not settled: {why}" if why else "not settled"
    form = re.sub(r"^([+]?)z?", r"\1z", form)  # an end that rounds to 0 has no minus
    return nothing if low == high == 0 else f"{low:{form}} to {high:{form}}"


def verdict(low: float, high: float) -> str:
    """What a change does whose interval is (low, high): "helps", "hurts", "no difference", or "not settled" without one."""
    return OPEN if math.isnan(low) else HELPS if low > 0 else HURTS if high < 0 else NOTHING


def no_change(n: int, plural: str, independent: int | None = None) -> str:
    """Sentence where none of `n` items changed, with the share of all that may still change (`unseen`).

    `independent` is the number of groups of items that hang together, of which that share is.
    """
    return f"no change on {n:,} {plural} (at most {100 * unseen(independent or n):.2g} % of all, 95 %)"
