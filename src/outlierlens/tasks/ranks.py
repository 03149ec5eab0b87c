"""Spearman's correlation of resampled items: ranks are taken anew in every resample, all resamples at once.

value = Ranked(truth, [intact, other])                   # correlation of `intact` − correlation of `other`
low, high = resampled.bca(value, seed=0, level=0.95, n_draws=2000)
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.tasks.resampled import DRAWN_AT_ONCE, ratio

JACKKNIFE_GROUPS = 1000  # of Spearman's jackknife
RANKED_AT_ONCE = 100_000  # numbers: more leave the processor's cache


class Ranked:
    """Spearman's correlation of the first predictions [item], minus that of the second where there are two."""

    def __init__(self, truth: np.ndarray, predictions: Sequence[np.ndarray]):
        self.columns = [np.asarray(column, dtype=np.float64) for column in (truth, *predictions)]
        self.sizes = np.ones(len(truth), dtype=np.int64)
        self._bad = [~np.isfinite(column) for column in self.columns[1:]]
        self._sorted = [_Order(np.where(np.isfinite(column), column, 0.0)) for column in self.columns]

    @property
    def whole(self) -> float:
        """See `Value`."""
        return float(self.drawn(self.sizes[None].astype(np.float64))[0])

    def drawn(self, counts: np.ndarray) -> np.ndarray:
        """See `Value`."""
        rows = max(1, RANKED_AT_ONCE // len(self.sizes))
        return np.concatenate([self._values(counts[i : i + rows]) for i in range(0, len(counts), rows)])

    def _values(self, counts: np.ndarray) -> np.ndarray:
        ranks = [order.ranks(counts) for order in self._sorted]
        truth = ranks[0]
        weighted = truth * counts
        own = np.einsum("di,di->d", weighted, truth)
        found = []
        for mine, bad in zip(ranks[1:], self._bad, strict=True):
            both = np.einsum("di,di->d", weighted, mine)
            spread = np.einsum("di,di->d", mine * counts, mine)
            value = np.clip(ratio(both, np.sqrt(own * spread)), -1, 1)
            found.append(np.where(counts[:, bad].any(1), 0.0, value) if bad.any() else value)
        return found[0] if len(found) == 1 else found[0] - found[1]

    def jackknife(self) -> tuple[np.ndarray, np.ndarray]:
        """Without each item; of more than 1,000 items, without each of 1,000 random parts of equal size."""
        n = len(self.sizes)
        parts = min(n, JACKKNIFE_GROUPS)
        part = np.random.default_rng(0).permutation(n) % parts if parts < n else np.arange(n)
        found = []
        rows = max(1, DRAWN_AT_ONCE // n)
        for start in range(0, parts, rows):
            some = np.arange(start, min(parts, start + rows))
            found.append(self.drawn((part != some[:, None]).astype(np.float64)))
        return np.concatenate(found), np.ones(parts)

    def elsewhere(self, share: float) -> tuple[float, float]:
        """See `Value`."""
        return self.whole, self.whole


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
