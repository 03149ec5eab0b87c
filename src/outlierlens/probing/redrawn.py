"""Training drawn again: how often each text counts in each redraw, and intervals that hold for another training set, too.

    times = times_drawn(n_texts, 7, seed=0)                             # [text, redraw]
    low, high = with_training(0.013, (0.010, 0.016), redrawn)           # redrawn [redraw]: the same value in each redraw

A probe that sees its texts in a stream is drawn again without being trained twice: each text counts Poisson(1) times, which is
how often it stands in a draw of as many texts with replacement (the online bootstrap, Oza and Russell 2001).
"""

import math

import numpy as np

from outlierlens.errors import need

LEVEL = 0.95
FEWEST = 10  # texts that say how another training set could differ


def times_drawn(n_texts: int, n_redraws: int, *, seed: int) -> np.ndarray:
    """How often each text counts in each redraw, float32 [text, redraw].

    A number depends on the seed, its text and its redraw alone: more redraws, or more texts behind, leave it as it is.
    """
    drawn = np.zeros((n_texts, n_redraws), dtype=np.float32)
    for redraw in range(n_redraws):
        drawn[:, redraw] = np.random.default_rng([seed, 19, redraw]).poisson(1.0, n_texts)
    return drawn


def deviation(redrawn: np.ndarray) -> float | None:
    """Standard deviation of values [redraw]; None without a redraw, NaN where there is one alone or one is NaN."""
    if not len(redrawn):
        return None
    return float(np.std(redrawn, ddof=1)) if len(redrawn) > 1 else float("nan")


def with_training(value: float, ends: tuple[float, float], redrawn: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a `value` whose interval over evaluated texts alone is `ends`, with its spread over redraws.

    Training texts and evaluated ones are drawn apart, so variances add. A side of `ends` is 1.96 standard errors e of the
    texts on that side; with the deviation s over R redraws the side becomes t √(e² + s²), t of Student's distribution with
    (R − 1) ((e² + s²) / s²)² degrees of freedom (Welch 1947, Satterthwaite 1946; those of e are taken as without end, as the
    bootstrap takes them). Without a redraw, and where all redraws agree, it is `ends`; NaN where the spread is not known.
    """
    spread = deviation(redrawn)
    if spread is None or spread == 0:
        return ends
    if not math.isfinite(spread):
        return float("nan"), float("nan")
    stats = need("scipy.stats", "models", "an interval")
    normal = float(stats.norm.ppf((1 + LEVEL) / 2))

    def side(width: float) -> float:
        error = max(0.0, width) / normal
        both = error**2 + spread**2
        freedom = (len(redrawn) - 1) * (both / spread**2) ** 2
        return float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(both)

    return value - side(value - ends[0]), value + side(ends[1] - value)
