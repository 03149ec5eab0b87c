"""Metrics of labelled tasks, and bootstrap intervals of them and of their changes.

    score("mcc", truth, predicted)
    statistic = Statistic("mcc", truth)
    statistic.change(intact, other, seed=0)                  # Estimate, of 1 − MCC: larger is worse; items drawn for both
    low, high = interval("mcc", truth, (predicted,), seed=0) # of one model's own metric
    low, high = paired_interval(wrong, wrong_other, seed=0)  # of a mean of 0 and 1
    counts = confusion(truth, predicted, n_classes)          # [dim, truth, predicted] of predictions [item, dim]
    metric_of("mcc", counts)                                 # [dim]

A metric is a number in [−1, 1] or [0, 1], larger is better. What it cannot say (a correlation with a constant) is 0.
Metrics of classes follow from how often each was true, said and right: of one table, of many at once, or of items drawn again.
Intervals of classes are bias-corrected and accelerated (`statistics.bootstrap.bca`), those of correlations are by subsampling
(`subsampling`). Of two models that say the same of every item, the interval is (0, 0): no change, which
`no_change` puts in words. NaN, NaN is not settled: fewer than 2 items, for correlations fewer than 598.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.errors import BadInput, need
from outlierlens.results.rows import Estimate
from outlierlens.statistics.bootstrap import DRAWN_AT_ONCE, FEW_GROUPS, Sums, bca, dense, mean_value
from outlierlens.statistics.ranks import correlations, ratio
from outlierlens.statistics.subsampling import correlation_interval

N_DRAWS = 2000
CORRELATIONS = ("pearson", "spearman")
METRICS = ("accuracy", "f1", "macro f1", "mcc", *CORRELATIONS, "token accuracy", "token f1")


def score(metric: str, truth: np.ndarray, predicted: np.ndarray) -> float:
    """The metric of predictions [item] against the truth [item].

    Classes are integers, values of a regression floats. "f1" is of class 1 of two; "macro f1" (of words, "token f1") the
    mean over the classes of the truth and the predictions. A class below 0 is no prediction: wrong, and a
    class of its own to macro F1 and MCC. 0 where a prediction is not finite: such a model predicts nothing.

    Raises:
        BadInput: no such metric, shapes that differ, or no item.
    """
    _check(metric, truth, predicted)
    if not np.isfinite(np.asarray(predicted, dtype=float)).all():
        return 0.0
    if metric in CORRELATIONS:
        return float(np.clip(correlations(metric, np.asarray(truth), np.asarray(predicted)[:, None])[0], -1, 1))
    classes, places = np.unique(np.stack([truth, predicted]), return_inverse=True)
    true, said = places.reshape(2, -1)
    counts = [np.bincount(one, minlength=len(classes)).astype(float) for one in (true, said, true[true == said])]
    one = int(np.searchsorted(classes, 1)) if 1 in classes else None
    return float(of_classes(metric, counts[0], counts[1], counts[2], one))


@dataclass(frozen=True)
class Statistic:
    """1 − metric of predictions, for metrics that are not a mean over items: 0 is perfect, larger is worse.

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

    def score(self, predicted: np.ndarray, *, seed: int) -> Estimate:
        """`value` with its 95 % interval."""
        low, high = interval(self.metric, self.truth, (predicted,), seed=seed, groups=self.groups)
        return Estimate(self.value(predicted), 1 - high, 1 - low)

    def change(
        self, intact: np.ndarray, other: np.ndarray, *, seed: int, level: float = 0.95, n_draws: int = N_DRAWS
    ) -> Estimate:
        """Value of `other` minus that of `intact`, predictions [item] both: how much of the metric is lost."""
        draws = {"seed": seed, "groups": self.groups, "level": level, "n_draws": n_draws}
        ends = interval(self.metric, self.truth, (intact, other), **draws)  # type: ignore[arg-type]
        return Estimate(self.value(other) - self.value(intact), *ends)


def interval(
    metric: str,
    truth: np.ndarray,
    predictions: Sequence[np.ndarray],
    *,
    seed: int,
    groups: np.ndarray | None = None,
    level: float = 0.95,
    n_draws: int = N_DRAWS,
) -> tuple[float, float]:
    """(low, high) of the metric of one model's predictions [item], or of a first's minus a second's.

    Of two, items are drawn together for both; (0, 0) where all predictions are the same. Where some classes changed, the
    items are taken with one more that became wrong and one that became right: three that changed in one direction alone are
    no proof. `groups` are as in `Statistic`, such as words of one text.
    """
    for predicted in predictions:
        _check(metric, truth, predicted)
    paired = len(predictions) == 2
    if paired and len(truth) < 2:
        return float("nan"), float("nan")
    if paired and np.array_equal(predictions[0], predictions[1], equal_nan=True):
        return 0.0, 0.0
    if metric in CORRELATIONS:
        return correlation_interval(metric, truth, predictions, seed=seed, groups=groups, level=level, n_draws=n_draws)
    value = class_value(metric, truth, predictions, doubt=paired, groups=groups)
    return bca(value, seed=seed, level=level, n_draws=n_draws)


def paired_interval(
    intact: np.ndarray,
    other: np.ndarray,
    *,
    seed: int,
    weights: np.ndarray | None = None,
    n_draws: int = N_DRAWS,
) -> tuple[float, float]:
    """(low, high) of the (weighted) mean of `other` − `intact`, shares in [0, 1] [item] both; 95 % BCa bootstrap by item.

    (0, 0) where nothing changed. Where all differences are the same but not 0, the interval allows for 3/n of all items
    that differ as much as they can. NaN, NaN where a difference is not finite.

    Raises:
        BadInput: shapes that differ, no item, or shares outside [0, 1].
    """
    intact, other = np.asarray(intact, dtype=np.float64), np.asarray(other, dtype=np.float64)
    weights = np.ones(len(intact)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(intact) or not len(intact) == len(other) == len(weights):
        raise BadInput(
            f"{len(intact)} and {len(other)} values with {len(weights)} weights; there must be the same number of each"
        )
    with np.errstate(invalid="ignore"):
        differences = other - intact
    if not np.isfinite(differences).all() or len(differences) < 2:
        return float("nan"), float("nan")
    if not differences.any():
        return 0.0, 0.0
    if min(intact.min(), other.min()) < 0 or max(intact.max(), other.max()) > 1:
        raise BadInput("values outside [0, 1] are not shares; give errors, accuracies or other shares")
    return bca(mean_value(differences, weights, shares=True), seed=seed, level=0.95, n_draws=n_draws)


def _check(metric: str, truth: np.ndarray, predicted: np.ndarray) -> None:
    if metric not in METRICS:
        raise BadInput(f"unknown metric {metric!r}; metrics are {', '.join(METRICS)}")
    if len(truth) != len(predicted):
        raise BadInput(f"{len(predicted)} predictions for {len(truth)} items")
    if not len(truth):
        raise BadInput(f"there is no item to take the {metric} of")


def class_value(
    metric: str,
    truth: np.ndarray,
    predictions: Sequence[np.ndarray],
    *,
    doubt: bool = False,
    groups: np.ndarray | None = None,
) -> Sums:
    """The metric of the first predictions [item], minus that of the second where there are two; see `metrics.score`.

    With `doubt`, of two predictions, one item more became wrong and one right (spread over the classes): few items that
    all changed the same way would otherwise leave no draw on the other side of no change (Agresti & Min 2005). Where items
    belong to `groups` [item] (the words of a text), whole groups are drawn.
    """
    table = np.stack([np.asarray(column).astype(np.int64) for column in (truth, *predictions)], axis=1)
    classes = _classes(table)
    places = np.searchsorted(classes, table)
    cells, sizes = np.unique(places, axis=0, return_counts=True)
    k = len(classes)
    doubted, shares = _doubted(cells, k) if doubt else (cells[:0], np.zeros(0))
    one = int(np.searchsorted(classes, 1)) if 1 in classes else None

    def finish(sums: np.ndarray) -> np.ndarray:
        true = sums[:, :k]
        parts = [sums[:, k + 2 * k * i : k + 2 * k * (i + 1)] for i in range(len(predictions))]
        found = [of_classes(metric, true, part[:, :k], part[:, k:], one) for part in parts]
        return found[0] if len(found) == 1 else found[0] - found[1]

    def others() -> tuple[np.ndarray, Any]:
        """Items of each cell that are predicted as another class by one of the two."""
        rows, made = [], []
        for column in range(1, cells.shape[1]):
            for other in range(min(k, FEW_GROUPS)):
                those = np.flatnonzero(cells[:, column] != other)
                changed = cells[those].copy()
                changed[:, column] = other
                rows.append(those)
                made.append(changed)
        return np.concatenate(rows), _one_hot(np.concatenate(made), k)

    if doubt:
        cells, sizes = np.concatenate([cells, doubted]), np.concatenate([sizes, shares])
    by_item = Sums(_one_hot(cells, k), sizes, finish, others)
    if groups is None:
        return by_item
    sparse = need("scipy.sparse", "models", "a bootstrap interval")
    _, number = np.unique(groups, return_inverse=True)
    of_group = sparse.csr_array((np.ones(len(table)), (number.ravel(), np.arange(len(table)))))
    adds = np.concatenate([dense(of_group @ _one_hot(places, k)), dense(_one_hot(doubted, k))])
    whole = np.ones(len(adds) - len(doubted), dtype=np.int64)
    return Sums(adds, np.concatenate([whole, shares]) if doubt else whole, finish, parts=by_item)


def _classes(table: np.ndarray) -> np.ndarray:
    """The classes of the truth and of predictions, two at least: where all items are of one, another was possible."""
    there = np.unique(table)
    return there if len(there) > 1 else np.array([there[0], there[0] + 1])


def _doubted(cells: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells (truth, one, other) of an item in all that only one predicts right, and of one that only the other does, with
    the parts of it that they are."""
    there = np.unique(cells[:, 0])
    more = [
        (true, *both)
        for true in there
        for wrong in range(k)
        if wrong != true
        for both in ((true, wrong), (wrong, true))
    ]
    return np.array(more), np.full(len(more), 1 / len(there) / (k - 1))


def _one_hot(cells: np.ndarray, k: int) -> Any:
    """[cell, sum] of the classes of (truth, predictions …): of the truth; then of each prediction all, and the right ones."""
    sparse = need("scipy.sparse", "models", "a bootstrap interval")
    rows, columns = [np.arange(len(cells))], [cells[:, 0]]
    for number in range(1, cells.shape[1]):
        right = np.flatnonzero(cells[:, number] == cells[:, 0])
        start = k + 2 * k * (number - 1)
        rows += [np.arange(len(cells)), right]
        columns += [start + cells[:, number], start + k + cells[right, number]]
    places = (np.concatenate(rows), np.concatenate(columns))
    shape = (len(cells), k + 2 * k * (cells.shape[1] - 1))
    made = sparse.csr_array((np.ones(len(places[0])), places), shape=shape)
    return made.toarray() if shape[0] * shape[1] <= DRAWN_AT_ONCE else made


def confusion(truth: np.ndarray, predicted: np.ndarray, n_classes: int) -> np.ndarray:
    """Counts [dim, truth, predicted] of predictions [item, dim] against truth [item]."""
    width = predicted.shape[1]
    cells = (np.arange(width) * n_classes + truth[:, None]) * n_classes + predicted  # [item, dim]
    return np.bincount(cells.ravel(), minlength=width * n_classes**2).reshape(width, n_classes, n_classes)


def metric_of(metric: str, counts: np.ndarray) -> np.ndarray:
    """The metric [...] of confusion counts [..., truth, predicted]; 0 where it is not defined, as in scikit-learn.

    "f1" is of class 1 of two; "macro f1" the mean over classes that the truth or the predictions hold.

    Raises:
        BadInput: a metric that no confusion table decides.
    """
    table = counts.astype(np.float64)
    return of_classes(metric, table.sum(-1), table.sum(-2), np.diagonal(table, axis1=-2, axis2=-1), 1)


def of_classes(metric: str, true: np.ndarray, said: np.ndarray, right: np.ndarray, one: int | None) -> np.ndarray:
    """The metric [...] of how many items are of each class, are said to be, and rightly so, float64 [..., class] each.

    `one` is the place of class 1, which "f1" is of; 0 where there is none. "token accuracy" and "token f1" are accuracy and
    macro F1 of words.

    Raises:
        BadInput: a metric that these numbers do not decide.
    """
    n = true.sum(-1)
    if metric in ("accuracy", "token accuracy"):
        return ratio(right.sum(-1), n)
    if metric == "f1":
        return ratio(2 * right[..., one], (true + said)[..., one]) if one is not None else np.zeros(n.shape)
    if metric in ("macro f1", "token f1"):
        there = true + said
        return ratio(ratio(2 * right, there).sum(-1), (there > 0).sum(-1))
    if metric == "mcc":
        both = right.sum(-1) * n - (true * said).sum(-1)
        return ratio(both, np.sqrt((n**2 - (true**2).sum(-1)) * (n**2 - (said**2).sum(-1))))
    raise BadInput(f"{metric!r} is not a metric of classes; use accuracy, f1, macro f1 or mcc")
