"""Metrics of labelled tasks, by scikit-learn and scipy, and the paired bootstrap of their differences.

    score("mcc", truth, predicted)
    low, high = paired_interval("mcc", truth, intact, ablated, seed=0)

A metric is a number in [−1, 1] or [0, 1], larger is better. What it cannot say (a correlation with a constant) is 0.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.errors import BadInput, need

N_DRAWS = 2000
DRAWN_AT_ONCE = 2_000_000


def score(metric: str, truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The metric of predictions [item] against the truth [item]; `weights` count items more than once.

    Classes are integers, values of a regression floats. "f1" is of class 1 of two, "macro f1" the mean over the classes
    of the truth.

    Raises:
        BadInput: no such metric, or shapes that differ.
    """
    if len(truth) != len(predicted):
        raise BadInput(f"{len(predicted)} predictions for {len(truth)} items")
    if metric not in _METRICS:
        raise BadInput(f"unknown metric {metric!r}; metrics are {', '.join(_METRICS)}")
    if weights is not None:  # neither library weights all of these alike; repeating an item is what a weight means
        truth, predicted = np.repeat(truth, weights), np.repeat(predicted, weights)
    if not np.isfinite(np.asarray(predicted, dtype=float)).all():
        return 0.0  # a model that gives no numbers any more predicts nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant has no correlation: said by the 0
        value = float(_METRICS[metric](truth, predicted))
    return value if np.isfinite(value) else 0.0


@dataclass(frozen=True)
class Statistic:
    """1 − metric of predictions, for metrics that are no mean over items: 0 is perfect, larger is worse.

    Attributes:
        metric: its name. truth: [item].
    """

    metric: str
    truth: np.ndarray

    def value(self, predicted: np.ndarray) -> float:
        """1 − metric of all predictions [item]."""
        return 1 - score(self.metric, self.truth, predicted)


def interval(
    metric: str, truth: np.ndarray, predicted: np.ndarray, *, seed: int, level: float = 0.95
) -> tuple[float, float]:
    """(low, high) of the metric; percentile bootstrap over items."""
    random = np.random.default_rng(seed)
    n = len(truth)
    draws = [score(metric, truth[some], predicted[some]) for some in (random.integers(0, n, n) for _ in range(500))]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _sklearn() -> Any:
    return need("sklearn.metrics", "models", "scoring a task")


def _scipy() -> Any:
    return need("scipy.stats", "models", "scoring a task")


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda truth, predicted: _sklearn().accuracy_score(truth, predicted),
    "f1": lambda truth, predicted: _sklearn().f1_score(truth, predicted, zero_division=0),
    "macro f1": lambda truth, predicted: _sklearn().f1_score(truth, predicted, average="macro", zero_division=0),
    "mcc": lambda truth, predicted: _sklearn().matthews_corrcoef(truth, predicted),
    "pearson": lambda truth, predicted: _scipy().pearsonr(truth, predicted).statistic,
    "spearman": lambda truth, predicted: _scipy().spearmanr(truth, predicted).statistic,
}
