"""Metrics of labelled tasks, by scikit-learn and scipy, and paired bootstrap intervals of their changes.

    score("mcc", truth, predicted)
    statistic = Statistic("mcc", truth)
    statistic.change(intact, other)                          # of 1 − MCC: larger is worse
    low, high = statistic.interval(intact, other, seed=0)    # BCa, items resampled together for both
    low, high = paired_interval(wrong, wrong_other, seed=0)  # of a mean of 0 and 1
    low, high = interval("mcc", truth, predicted, seed=0)    # of one model's own metric

A metric is a number in [−1, 1] or [0, 1], larger is better. What it cannot say (a correlation with a constant) is 0.
Intervals are bias-corrected and accelerated (Efron 1987), by item; see `resampled.bca` for what they are where no item
changed, and NaN where there are fewer than 2 items.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.errors import BadInput, need
from outlierlens.tasks.ranks import Ranked
from outlierlens.tasks.resampled import Value, bca, class_value, mean_value, pearson_value, text_value

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
    """

    metric: str
    truth: np.ndarray

    def value(self, predicted: np.ndarray) -> float:
        """1 − metric of all predictions [item]."""
        return 1 - score(self.metric, self.truth, predicted)

    def change(self, intact: np.ndarray, other: np.ndarray) -> float:
        """Value of `other` minus that of `intact`, predictions [item] both: how much of the metric is lost."""
        return self.value(other) - self.value(intact)

    def interval(
        self, intact: np.ndarray, other: np.ndarray, *, seed: int, level: float = 0.95, n_draws: int = N_DRAWS
    ) -> tuple[float, float]:
        """(low, high) of `change`: paired BCa bootstrap, items drawn together for both.

        Where all predictions of classes are the same, no item of n changed, and the interval is what the change could be if
        up to 3/n of all items did (at 95 %). Where some changed, the items are taken with one more that became wrong and
        one that became right: three that changed in one direction alone are no proof. Values of a regression that are the
        same to the last bit on every item show that nothing was touched: their interval is (0, 0).
        """
        for predicted in (intact, other):
            _check(self.metric, self.truth, predicted)
        if self.metric in CORRELATIONS and len(intact) > 1 and np.array_equal(intact, other, equal_nan=True):
            return 0.0, 0.0
        doubt = self.metric not in CORRELATIONS and not np.array_equal(intact, other)
        value = _value(self.metric, self.truth, (intact, other), doubt=doubt)
        return bca(value, seed=seed, level=level, n_draws=n_draws)


def interval(
    metric: str,
    truth: np.ndarray,
    predicted: np.ndarray,
    *,
    seed: int,
    words: np.ndarray | None = None,
    level: float = 0.95,
    n_draws: int = N_DRAWS,
) -> tuple[float, float]:
    """(low, high) of the metric of one model's predictions [item]; BCa bootstrap by item.

    Where items are words, `words` [text] says how many each text has, and whole texts are drawn.
    """
    _check(metric, truth, predicted)
    if words is not None:
        return bca(text_value(metric, truth, predicted, words), seed=seed, level=level, n_draws=n_draws)
    return bca(_value(metric, truth, (predicted,)), seed=seed, level=level, n_draws=n_draws)


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

    `shares` says that values lie in [0, 1], such as errors: where all differences are the same, the interval then allows
    for 3/n of all items (at 95 %) that differ as much as they can. NaN, NaN where a difference is not finite.

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
    if not np.isfinite(differences).all():
        return float("nan"), float("nan")
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


def _value(metric: str, truth: np.ndarray, predictions: Sequence[np.ndarray], *, doubt: bool = False) -> Value:
    if metric == "pearson":
        return pearson_value(truth, predictions)
    if metric == "spearman":
        return Ranked(truth, predictions)
    return class_value(metric, truth, predictions, doubt=doubt)


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
