"""Named dimensions against all others: does |r| of the outliers exceed that of the rest of the layer?

rank_p_of(sizes, dims, sets)                   # by chance, any dimensions being as good as these
contrast(draws, dims)                         # difference of mean |r|, [draw]
rows = contrasts(found, dims, …)              # every layer, then all blocks together
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.experiments.frequency.result import Contrast
from outlierlens.statistics.p_values import rank_among

N_SETS = 9_999
ROWS = 256  # sets that are drawn at once


def random_dims(width: int, size: int, seed: int) -> np.ndarray:
    """`N_SETS` random sets of `size` of all dimensions [set, size]; of a single one, nothing: ranks say all."""
    if size == 1:
        return np.zeros((0, 1), dtype=np.int64)
    random = np.random.default_rng([seed, 53])
    parts = []
    for start in range(0, N_SETS, ROWS):
        order = random.random((min(ROWS, N_SETS - start), width)).argpartition(size - 1, axis=1)
        parts.append(order[:, :size])
    return np.concatenate(parts)


def rank_p_of(sizes: np.ndarray, dims: Sequence[int], sets: np.ndarray) -> float:
    """Share of sets of dimensions whose mean of `sizes` [dim] is at least that of `dims`, these included.

    Valid where the dimensions are exchangeable with the others. One dimension: its rank over the number of dimensions.
    """
    sizes = np.nan_to_num(np.asarray(sizes, dtype=float), nan=-1.0)
    own = sizes[list(dims)].mean()
    if len(dims) == 1:
        return float((sizes >= own).sum() / len(sizes))
    return float(rank_among(own - 1e-12, sizes[sets].mean(1)) / (1 + len(sets)))


def contrast(draws: np.ndarray, dims: Sequence[int]) -> np.ndarray:
    """Mean |r| of `dims`, and of all others, of correlations [draw, dim]: [2, draw]; constant dimensions are left out."""
    sizes = np.abs(draws)
    mine = np.zeros(sizes.shape[1], dtype=bool)
    mine[list(dims)] = True
    return np.stack([_mean(sizes[:, mine]), _mean(sizes[:, ~mine])])


def row(where: tuple[str, str, str], sides: np.ndarray, p: float, reach: float) -> Contrast:
    """One contrast at (view, measure, layer) from the `sides` [2, draw] of `contrast`; one draw alone gives no interval."""
    difference = sides[0] - sides[1]
    known = difference[1:][np.isfinite(difference[1:])]
    half = reach * float(known.std(ddof=1)) if len(known) > 1 else float("nan")
    value = float(difference[0])
    return Contrast(*where, float(sides[0, 0]), float(sides[1, 0]), value, value - half, value + half, p)


def _mean(sizes: np.ndarray) -> np.ndarray:
    known = np.isfinite(sizes)
    n = known.sum(1)
    return np.where(n > 0, np.where(known, sizes, 0).sum(1) / np.maximum(n, 1), np.nan)
