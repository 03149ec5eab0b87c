"""Metrics of classes from how often each was true, said and right: of one table, or of many at once.

    counts = confusion(truth, predicted, n_classes)          # [dim, truth, predicted] of predictions [item, dim]
    metric_of("mcc", counts)                                 # [dim]

The numbers are those of `tasks.metrics.score`; calling a library for each of many dimensions would take seconds.
"""

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.statistics.ranks import ratio


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
    raise BadInput(f"{metric!r} is no metric of classes; use accuracy, f1, macro f1 or mcc")
