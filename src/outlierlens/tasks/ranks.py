"""Spearman's correlation of resampled items: ranks are taken anew in every resample, all resamples at once.

rank_correlations(truth, predicted, counts)              # [draw], item i of draw d drawn counts[d, i] times
"""

import numpy as np

from outlierlens.tasks.resampled import ratio

RANKED_AT_ONCE = 100_000  # numbers: more leave the processor's cache


def rank_correlations(one: np.ndarray, other: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman's ρ [draw] of finite values `one` and `other` [item], drawn `counts` [draw, item] times; 0 with a constant."""
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
        self.place = np.empty(
            len(values), dtype=np.int64
        )  # of each item, the number of its value among the distinct ones
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
