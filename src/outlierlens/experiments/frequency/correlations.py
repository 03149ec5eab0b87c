"""From sums, sampled tokens and type means to correlations, their standard errors and their p-values.

    pearson(moments, "log")                          # [draw, dim], of |h| with log(1 + count); draw 0 is the value itself
    partial(moments)                                 # the same, given the position in the text
    pearson_signed(moments)                          # [dim], of h itself
    spread(found)                                    # standard error of Fisher's z over draws [dim]
    spearman(sizes, count)                           # [dim], of a sample of tokens [token, dim]
    of_types(means, count)                           # value and error [dim], every type counted once

A dimension that does not vary has no correlation: NaN.

Named dimensions against all others: does |r| of the outliers exceed that of the rest of the layer?

rank_p_of(sizes, dims, sets)                   # by chance, any dimensions being as good as these
contrast(draws, dims)                         # difference of mean |r|, [draw]
rows = contrasts(found, dims, …)              # every layer, then all blocks together
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.experiments.frequency.result import Contrast
from outlierlens.experiments.frequency.sums import BASE, Moments
from outlierlens.statistics.ranks import benjamini_hochberg, fisher, middle_ranks, rank_among, two_sided_p

LEAST = 1e-12  # variance over mean square below which float64 sums say nothing any more: a constant
N_SETS = 9_999
ROWS = 256  # sets that are drawn at once


def pearson(moments: Moments, which: str) -> np.ndarray:
    """Correlation of |h| with the "raw" or "log" count or the "position" [draw, dim]."""
    place = BASE.index(which)
    own = moments.own
    n = own[:, 0, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = moments.with_size[:, 0] / n[:, None], own[:, 0, place] / n
        covariance = moments.with_size[:, place] / n[:, None] - mean_x * mean_y[:, None]
        square = moments.square / n[:, None]
        return _ratio(covariance, square, mean_x, _variance(own[:, place, place] / n, mean_y)[:, None])


def pearson_signed(moments: Moments) -> np.ndarray:
    """Correlation of h itself with the log count [dim], without draws."""
    place = BASE.index("log")
    own = moments.own[0]
    n = own[0, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = moments.signed[0] / n, own[0, place] / n
        covariance = moments.signed[place] / n - mean_x * mean_y
        return _ratio(covariance, moments.square[0] / n, mean_x, _variance(own[place, place] / n, mean_y))


def partial(moments: Moments, log: np.ndarray | None = None) -> np.ndarray:
    """Correlation of |h| with the log count given the position in the text, both taken linearly [draw, dim].

    `log` is `pearson(moments, "log")` where it is there. Where all tokens stand at one position it is `log` itself.
    """
    log = pearson(moments, "log") if log is None else log
    own, place, other = moments.own, BASE.index("log"), BASE.index("position")
    position = pearson(moments, "position")
    n = own[:, 0, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_l, mean_p = own[:, 0, place] / n, own[:, 0, other] / n
        size = _variance(own[:, place, place] / n, mean_l) * _variance(own[:, other, other] / n, mean_p)
        between = (own[:, place, other] / n - mean_l * mean_p) / np.sqrt(size)
        found = (log - position * between[:, None]) / np.sqrt((1 - position**2) * (1 - between**2)[:, None])
    still = np.isnan(_variance(own[:, other, other] / np.maximum(n, 1), own[:, 0, other] / np.maximum(n, 1)))
    return np.where(still[:, None], log, np.clip(found, -1, 1))


def spread(draws: np.ndarray) -> np.ndarray:
    """Standard deviation over draws of Fisher's z [dim], of correlations [draw, dim] whose first is the value itself.

    NaN where fewer than half of the draws have a value.
    """
    z = fisher(draws[1:])
    known = np.isfinite(z)
    n = known.sum(0)
    mean = np.where(known, z, 0).sum(0) / np.maximum(n, 1)
    square = np.where(known, (z - mean) ** 2, 0).sum(0) / np.maximum(n - 1, 1)
    return np.where((n > len(z) / 2) & np.isfinite(draws[0]), np.sqrt(square), np.nan)


def adjusted(values: np.ndarray, errors: np.ndarray, df: int) -> np.ndarray:
    """Two-sided p-values of correlations (t of Fisher's z over its error), adjusted over all of them together.

    Benjamini and Hochberg (1995); NaN, and not counted, where there is no correlation or no error.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return benjamini_hochberg(two_sided_p(fisher(values) / errors, df))


def spearman(sizes: np.ndarray, count: np.ndarray, parts: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Rank correlations of `sizes` [token, dim] with `count` [token], over each of the `parts` (bool [token]): [dim] each.

    Equal values share their middle rank. Sizes are sorted once, whatever the parts are.
    """
    columns = np.ascontiguousarray(sizes.T)  # [dim, token]
    order = np.argsort(columns, axis=1)
    found = []
    for part in parts:
        kept = order[part[order]].reshape(len(columns), -1)
        n = kept.shape[1]
        if n < 3:
            found.append(np.full(len(columns), np.nan))
            continue
        ranks = np.zeros(len(count))
        ranks[part] = middle_ranks(count[part])
        y = ranks[kept] - (n + 1) / 2
        values = np.take_along_axis(columns, kept, axis=1)
        x = np.broadcast_to(np.arange(n) - (n - 1) / 2, kept.shape)
        tied = (values[:, 1:] == values[:, :-1]).any(1)
        product, size = (y * x[0]).sum(1), np.full(len(columns), (x[0] ** 2).sum())
        for dim in np.flatnonzero(tied):
            middle = middle_ranks(values[dim]) - (n + 1) / 2
            product[dim], size[dim] = y[dim] @ middle, middle @ middle
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(np.where(size > 0, product / np.sqrt(size * (y[0] @ y[0])), np.nan))
    return found


def of_types(means: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pearson correlation of `means` [type, dim] with log(1 + `count`) [type], and the standard error of its Fisher's z.

    Types are independent draws. The error is that of influences (a sandwich), which holds for skewed sizes too.
    """
    n, width = means.shape
    if n < 4:
        return np.full(width, np.nan), np.full(width, np.nan)
    y = np.log1p(count)
    with np.errstate(invalid="ignore", divide="ignore"):
        y = (y - y.mean()) / y.std()
        centre = means.mean(0)
        spread_x = means.std(0)
        x = (means - centre) / np.where(spread_x**2 > LEAST * (centre**2 + spread_x**2), spread_x, np.nan)
        found = (x * y[:, None]).mean(0)
        influence = x * y[:, None] - found / 2 * (x**2 + y[:, None] ** 2)
        error = np.sqrt((influence**2).sum(0) / n / (n - 1)) / (1 - found**2)
    return np.clip(found, -1, 1), error


def _variance(square: np.ndarray, mean: np.ndarray) -> np.ndarray:
    found = square - mean**2
    return np.where(found > LEAST * square, found, np.nan)


def _ratio(covariance: np.ndarray, square: np.ndarray, mean: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Correlation, in [−1, 1] whatever the last digits say."""
    return np.clip(covariance / np.sqrt(_variance(square, mean) * other), -1, 1)


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
