"""Metrics of labelled tasks, by scikit-learn and scipy, and paired bootstrap intervals of their changes.

    score("mcc", truth, predicted)
    statistic = Statistic("mcc", truth)
    statistic.change(intact, other)                          # of 1 − MCC: larger is worse
    low, high = statistic.interval(intact, other, seed=0)    # items drawn together for both
    low, high = paired_interval(wrong, wrong_other, seed=0)  # of a mean of 0 and 1
    low, high = interval("mcc", truth, predicted, seed=0)    # of one model's own metric

A metric is a number in [−1, 1] or [0, 1], larger is better. What it cannot say (a correlation with a constant) is 0.
Intervals of classes are bias-corrected and accelerated (`bootstrap.bca`), those of correlations are by subsampling
(`subsampling`). Of two models that say the same of every item, the interval is (0, 0): no change, which
`no_change` puts in words. NaN, NaN is not settled: fewer than 2 items, for correlations fewer than 598.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.errors import BadInput, need
from outlierlens.statistics.bootstrap import bca, mean_value
from outlierlens.statistics.subsampling import correlation_interval
from outlierlens.tasks.intervals import class_value

N_DRAWS = 2000
CORRELATIONS = ("pearson", "spearman")


def score(metric: str, truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The metric of predictions [item] against the truth [item]; `weights` count items more than once.

    Classes are integers, values of a regression floats. "f1" is of class 1 of two; "macro f1" (of words, "token f1") the
    mean over the classes of the truth and the predictions. A class below 0 is no prediction: wrong, and a
    class of its own to macro F1 and MCC. A regression is 0 where a prediction is not finite.

    Raises:
        BadInput: no such metric, shapes that differ, or no item.
    """
    _check(metric, truth, predicted)
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
        groups: int [item] where items hang together (pairs that share a sentence): whole groups are drawn.
    """

    metric: str
    truth: np.ndarray
    groups: np.ndarray | None = None

    def value(self, predicted: np.ndarray) -> float:
        """1 − metric of all predictions [item]."""
        return 1 - score(self.metric, self.truth, predicted)

    def change(self, intact: np.ndarray, other: np.ndarray) -> float:
        """Value of `other` minus that of `intact`, predictions [item] both: how much of the metric is lost."""
        return self.value(other) - self.value(intact)

    def interval(
        self, intact: np.ndarray, other: np.ndarray, *, seed: int, level: float = 0.95, n_draws: int = N_DRAWS
    ) -> tuple[float, float]:
        """(low, high) of `change`, items drawn together for both; (0, 0) where all predictions are the same.

        Where some classes changed, the items are taken with one more that became wrong and one that became right: three
        that changed in one direction alone are no proof.
        """
        for predicted in (intact, other):
            _check(self.metric, self.truth, predicted)
        if len(intact) < 2:
            return float("nan"), float("nan")
        if np.array_equal(intact, other, equal_nan=True):
            return 0.0, 0.0
        return _drawn(self, (intact, other), seed, level, n_draws)


def interval(
    metric: str,
    truth: np.ndarray,
    predicted: np.ndarray,
    *,
    seed: int,
    groups: np.ndarray | None = None,
    level: float = 0.95,
    n_draws: int = N_DRAWS,
) -> tuple[float, float]:
    """(low, high) of the metric of one model's predictions [item]; `groups` as in `Statistic`, as words of one text."""
    _check(metric, truth, predicted)
    return _drawn(Statistic(metric, truth, groups), (predicted,), seed, level, n_draws)


def paired_interval(
    intact: np.ndarray,
    other: np.ndarray,
    *,
    seed: int,
    weights: np.ndarray | None = None,
    level: float = 0.95,
    n_draws: int = N_DRAWS,
    shares: bool = True,
) -> tuple[float, float]:
    """(low, high) of the (weighted) mean of `other` − `intact`, values [item] both; BCa bootstrap by item.

    (0, 0) where nothing changed. `shares` says that values lie in [0, 1], such as errors: where all differences are the
    same but not 0, the interval then allows for 3/n of all items (at 95 %) that differ as much as they can. NaN, NaN where
    a difference is not finite.

    Raises:
        BadInput: shapes that differ, no item, or shares outside [0, 1].
    """
    intact, other = np.asarray(intact, dtype=np.float64), np.asarray(other, dtype=np.float64)
    weights = np.ones(len(intact)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(intact) or not len(intact) == len(other) == len(weights):
        raise BadInput(
            f"{len(intact)} and {len(other)} values with {len(weights)} weights; there must be as many of each"
        )
    with np.errstate(invalid="ignore"):
        differences = other - intact
    if not np.isfinite(differences).all() or len(differences) < 2:
        return float("nan"), float("nan")
    if not differences.any():
        return 0.0, 0.0
    if shares and (min(intact.min(), other.min()) < 0 or max(intact.max(), other.max()) > 1):
        raise BadInput("values outside [0, 1] are no shares; say shares=False")
    return bca(mean_value(differences, weights, shares=shares), seed=seed, level=level, n_draws=n_draws)


def _check(metric: str, truth: np.ndarray, predicted: np.ndarray) -> None:
    if metric not in _METRICS:
        raise BadInput(f"unknown metric {metric!r}; metrics are {', '.join(_METRICS)}")
    if len(truth) != len(predicted):
        raise BadInput(f"{len(predicted)} predictions for {len(truth)} items")
    if not len(truth):
        raise BadInput(f"there is no item to take the {metric} of")


def _drawn(
    of: Statistic, predictions: Sequence[np.ndarray], seed: int, level: float, n_draws: int
) -> tuple[float, float]:
    """(low, high) of the metric of the first predictions, minus that of the second where there are two."""
    if of.metric in CORRELATIONS:
        return correlation_interval(
            of.metric, of.truth, predictions, seed=seed, groups=of.groups, level=level, n_draws=n_draws
        )
    value = class_value(of.metric, of.truth, predictions, doubt=len(predictions) == 2, groups=of.groups)
    return bca(value, seed=seed, level=level, n_draws=n_draws)


def _sklearn() -> Any:
    return need("sklearn.metrics", "models", "scoring a task")


def _scipy() -> Any:
    return need("scipy.stats", "models", "scoring a task")


def _correlation(name: str, truth: np.ndarray, predicted: np.ndarray) -> float:
    if len(truth) < 2:
        return 0.0  # one item correlates with nothing, and scipy refuses it
    return float(getattr(_scipy(), name)(truth, predicted).statistic)


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda truth, predicted: _sklearn().accuracy_score(truth, predicted),
    "f1": lambda truth, predicted: _sklearn().f1_score(truth == 1, predicted == 1, zero_division=0),
    "macro f1": lambda truth, predicted: _sklearn().f1_score(truth, predicted, average="macro", zero_division=0),
    "mcc": lambda truth, predicted: _sklearn().matthews_corrcoef(truth, predicted),
    "pearson": lambda truth, predicted: _correlation("pearsonr", truth, predicted),
    "spearman": lambda truth, predicted: _correlation("spearmanr", truth, predicted),
    "token accuracy": lambda truth, predicted: _sklearn().accuracy_score(truth, predicted),
    "token f1": lambda truth, predicted: _sklearn().f1_score(truth, predicted, average="macro", zero_division=0),
}
