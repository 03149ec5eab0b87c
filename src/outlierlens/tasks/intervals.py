"""Metrics of classes as sums over items, which `bootstrap.bca` draws again.

value = class_value("mcc", truth, [intact, other])       # metric of `intact` − metric of `other`
low, high = bca(value, seed=0, level=0.95, n_draws=2000)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outlierlens.errors import need
from outlierlens.statistics.bootstrap import DRAWN_AT_ONCE, FEW_GROUPS, Sums, dense
from outlierlens.tasks.confusion import of_classes


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
