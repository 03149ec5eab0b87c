"""Metrics of many classifiers at once, one a dimension, where calling a library for each would take seconds.

    counts = confusion(truth, predicted, n_classes)          # [dim, truth, predicted] of predictions [item, dim]
    metric_of("mcc", counts)                                 # [dim]
    correlations("spearman", targets, predicted)             # [dim]

The numbers are those of `tasks.metrics.score`; its intervals serve single dimensions.
"""

import numpy as np

from outlierlens.errors import BadInput, need


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
    hit = np.diagonal(table, axis1=-2, axis2=-1)  # [..., class]
    true, said = table.sum(-1), table.sum(-2)
    n = true.sum(-1)
    if metric == "accuracy":
        return hit.sum(-1) / n
    if metric in ("f1", "macro f1"):
        both = true + said
        f1 = _divide(2 * hit, both)
        return f1[..., 1] if metric == "f1" else f1.sum(-1) / (both > 0).sum(-1)
    if metric == "mcc":
        shared = hit.sum(-1) * n - (true * said).sum(-1)
        return _divide(shared, np.sqrt((n**2 - (true**2).sum(-1)) * (n**2 - (said**2).sum(-1))))
    raise BadInput(f"{metric!r} is no metric of classes; use accuracy, f1, macro f1 or mcc")


def correlations(metric: str, targets: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Pearson or Spearman correlation [dim] of predictions [item, dim] with targets [item]; 0 with a constant.

    Raises:
        BadInput: another metric.
    """
    if metric == "spearman":
        rank = need("scipy.stats", "models", "rank correlations").rankdata
        targets, predicted = rank(targets), rank(predicted, axis=0)
    elif metric != "pearson":
        raise BadInput(f"{metric!r} is no metric of a regression; use pearson or spearman")
    # A constant keeps rounding errors of its mean, so constants are told by their values.
    flat = (np.ptp(predicted, axis=0) <= 1e-12 * np.abs(predicted).max(axis=0)) | (np.ptp(targets) == 0)
    x, y = targets - targets.mean(), predicted - predicted.mean(axis=0)
    return _divide(x @ y, np.where(flat, 0.0, np.sqrt((x @ x) * np.square(y).sum(axis=0))))


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, 0 where whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole != 0)
