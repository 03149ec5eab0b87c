"""Ranks, and correlations of whole rows at once.

ranks_from_top(sizes)                            # 1 is the largest
pearson(one, other), spearman(one, other)         # ρ along the last axis
correlations("pearson", targets, predicted)      # [dim], of predictions [item, dim]
resampled_spearman(truth, predicted, counts)     # [draw], item i of draw d drawn counts[d, i] times
"""

import math
from typing import Literal

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.statistics.means import NORMAL

RANKED_AT_ONCE = 100_000  # numbers: more leave the processor's cache
NEARLY = 1 - 1e-15  # Fisher's z of 1 is infinite


def ratio(above: np.ndarray, below: np.ndarray, nothing: float = 0.0) -> np.ndarray:
    """Quotients, float64; `nothing` where the divisor is not positive."""
    found = np.full(np.broadcast_shapes(np.shape(above), np.shape(below)), nothing, dtype=np.float64)
    return np.divide(above, below, out=found, where=np.broadcast_to(np.asarray(below) > 0, found.shape))


def ranks_from_top(values: np.ndarray, ties: Literal["best", "worst"] = "best") -> np.ndarray:
    """Rank along the last axis, 1 = largest, int [..., n]; equal values share the best of their ranks, or the worst."""
    n = np.shape(values)[-1]
    found = np.empty(np.shape(values), dtype=np.int64)
    for place in np.ndindex(found.shape[:-1]):
        row = np.asarray(values)[place]
        below = np.searchsorted(np.sort(row), row, side="right" if ties == "best" else "left")
        found[place] = n + (ties == "best") - below
    return found


def middle_ranks(values: np.ndarray) -> np.ndarray:
    """Rank along the last axis, 1 = smallest, float64 [..., n]; equal values share the middle of their ranks.

    NaN throughout a row that holds one.
    """
    values = np.asarray(values)
    order = np.argsort(values, axis=-1, kind="stable")
    ascending, place = np.take_along_axis(values, order, axis=-1), np.arange(values.shape[-1])
    new = ascending[..., 1:] != ascending[..., :-1]
    edge = np.ones((*values.shape[:-1], 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, new], axis=-1), place, 0), axis=-1)
    last = np.where(np.concatenate([new, edge], axis=-1), place, values.shape[-1])
    last = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1]
    found = np.empty(values.shape)
    np.put_along_axis(found, order, (first + last) / 2 + 1, axis=-1)
    found[np.isnan(values).any(axis=-1)] = np.nan
    return found


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's r of the values of two arrays; NaN where either does not vary."""
    a, b = np.ravel(one) - np.mean(one), np.ravel(other) - np.mean(other)
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else math.nan


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's ρ along the last axis, in [−1, 1]; NaN where either does not vary or holds a number that is not finite."""
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    finite = np.isfinite(one).all(-1) & np.isfinite(other).all(-1)
    x, y = (middle_ranks(values) - (values.shape[-1] + 1) / 2 for values in (one, other))
    size = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(finite & (size > 0), (x * y).sum(-1) / size, np.nan))


def correlations(metric: str, targets: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Pearson or Spearman correlation [dim] of predictions [item, dim] with targets [item]; 0 with a constant.

    Raises:
        BadInput: another metric.
    """
    if metric == "spearman":
        return np.nan_to_num(spearman(predicted.T, targets))
    if metric != "pearson":
        raise BadInput(f"{metric!r} is no metric of a regression; use pearson or spearman")
    # A constant keeps rounding errors of its mean, so constants are told by their values.
    flat = (np.ptp(predicted, axis=0) <= 1e-12 * np.abs(predicted).max(axis=0)) | (np.ptp(targets) == 0)
    x, y = targets - targets.mean(), predicted - predicted.mean(axis=0)
    return ratio(x @ y, np.where(flat, 0.0, np.sqrt((x @ x) * np.square(y).sum(axis=0))))


def fisher(r: np.ndarray) -> np.ndarray:
    """Fisher's z = artanh(r) of correlations [...]; finite at ±1, too."""
    return np.asarray(np.arctanh(np.clip(r, -NEARLY, NEARLY)))


def spearman_interval(rho: float, n: int) -> tuple[float, float]:
    """95 % interval of Spearman's ρ over `n` independent pairs: Fisher's z with the variance (1 + ρ² / 2) / (n − 3).

    Bonett and Wright (2000). NaN, NaN of 3 pairs or fewer; ρ itself at ±1, where the approximation ends.
    """
    if not math.isfinite(rho) or n <= 3:
        return math.nan, math.nan
    if abs(rho) >= 1:
        return rho, rho
    reach = round(NORMAL, 6) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach)


def resampled_spearman(one: np.ndarray, other: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman's ρ [draw] of finite values `one` and `other` [item], drawn `counts` [draw, item] times; 0 with a constant.

    Ranks are taken anew in every resample, all resamples at once.
    """
    orders = [_Order(np.asarray(values, dtype=np.float64)) for values in (one, other)]
    rows = max(1, RANKED_AT_ONCE // len(one))
    return np.concatenate([_values(orders, counts[start : start + rows]) for start in range(0, len(counts), rows)])


def _values(orders: "list[_Order]", counts: np.ndarray) -> np.ndarray:
    one, other = (order.ranks(counts) for order in orders)
    weighted = one * counts
    both = np.einsum("di,di->d", weighted, other)
    spreads = np.einsum("di,di->d", weighted, one) * np.einsum("di,di->d", other * counts, other)
    return np.clip(ratio(both, np.sqrt(spreads)), -1, 1)


class _Order:
    """The order of some values, for ranks of weighted items."""

    def __init__(self, values: np.ndarray):
        self.order = np.argsort(values, kind="stable")
        ascending = values[self.order]
        new = np.concatenate([[True], ascending[1:] != ascending[:-1]])
        self.starts = np.flatnonzero(new)
        self.place = np.empty(len(values), dtype=np.int64)  # of each item, the number of its value among distinct ones
        self.place[self.order] = np.cumsum(new) - 1

    def ranks(self, counts: np.ndarray) -> np.ndarray:
        """Mid-rank of each item among items drawn `counts` times, minus the mean rank [draw, item]."""
        tied = counts.take(self.order, axis=1)
        if len(self.starts) < tied.shape[1]:
            tied = np.add.reduceat(tied, self.starts, axis=1)
        upto = np.cumsum(tied, axis=1)
        middle = upto - tied / 2
        middle -= upto[:, -1:] / 2
        return middle.take(self.place, axis=1)
