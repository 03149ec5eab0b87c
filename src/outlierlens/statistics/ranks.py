"""Ranks, correlations of whole rows at once, p-values and their corrections."""

import math
from typing import Any, Literal

import numpy as np

from outlierlens.errors import BadInput, need
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
        raise BadInput(f"{metric!r} is not a metric of a regression; use pearson or spearman")
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


# --- p-values --------------------------------------------------------------------------------------------------------

N_PERMUTATIONS = 10_000


def rank_among(chosen: np.ndarray | float, controls: np.ndarray) -> np.ndarray:
    """1 + #{control >= chosen}, int [...], of `chosen` [...] among `controls` [..., control]; a NaN control is the largest."""
    larger = np.isnan(controls) | (controls >= np.asarray(chosen)[..., None])
    return np.asarray(1 + larger.sum(axis=-1))


def rank_p(chosen: float, controls: np.ndarray) -> float | None:
    """(1 + #{control >= chosen}) / (1 + n) of controls [n], in (0, 1]; None where `chosen` is NaN.

    Valid where the chosen one is exchangeable with the controls under the null (Davison and Hinkley 1997, section 4.2). A
    control that is no number counts as the largest.
    """
    return None if np.isnan(chosen) else float(rank_among(chosen, controls) / (1 + len(controls)))


def rank_p_among(changes: np.ndarray) -> np.ndarray:
    """`rank_p` of each change [n] among the others: (1 + #{others ≥ change}) / (1 + n of others), [n] in (0, 1].

    It is valid under the null that a unit's change is exchangeable with the others'. What is no number counts as
    infinite.
    """
    changes = np.nan_to_num(np.asarray(changes, dtype=float), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    # A change is at least as large as itself: counting it is the 1 in the numerator.
    return ranks_from_top(changes, ties="worst") / max(1, len(changes))


def position_p(flags: np.ndarray) -> np.ndarray:
    """p-value [dim] of each dimension's number of flagged layers, under independent positions per layer.

    `flags` is bool [layer, dim]. Under the null the k_l flagged positions of layer l are a uniform random subset, so a
    given dimension is flagged with probability k_l / d, independently over layers: a Poisson-binomial count.
    """
    density = np.array([1.0])
    for probability in flags.mean(axis=1):
        density = np.append(density, 0.0) * (1 - probability) + np.append(0.0, density) * probability
    tail = np.minimum(1.0, np.cumsum(density[::-1])[::-1])  # summed from the small end: no cancellation
    return tail[flags.sum(axis=0)]


def hypergeometric_tail(population: int, marked: int, drawn: int, found: int) -> float:
    """Probability that of `drawn` out of `population`, `marked` of which are marked, `found` or more are marked."""
    if found <= 0:
        return 1.0

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    first = max(found, drawn - (population - marked))
    logs = [
        log_choose(marked, k) + log_choose(population - marked, drawn - k) - log_choose(population, drawn)
        for k in range(first, min(drawn, marked) + 1)
    ]
    return min(1.0, math.fsum(math.exp(one) for one in logs))


def two_sided_p(t: np.ndarray, degrees: float) -> np.ndarray:
    """Two-sided p-values of t [...], Student's distribution with `degrees` of freedom; NaN of NaN."""
    special: Any = need("scipy.special", "models", "p-values")
    return np.asarray(2 * special.stdtr(degrees, -np.abs(t)))


def permutation_p(one: np.ndarray, other: np.ndarray, random: "np.random.Generator") -> float:
    """Share of the orders of `one` [n] with as large a |ρ| (Spearman) with `other` [n], in (0, 1]; NaN where ρ is.

    Of all orders where there are at most 10,000, else of 10,000 drawn and the one seen.
    """
    if not np.isfinite(spearman(one, other)):
        return math.nan
    stats: Any = need("scipy.stats", "models", "rank correlations")
    ranks = middle_ranks(other)
    found = stats.permutation_test(
        (middle_ranks(one),),
        lambda order: np.corrcoef(order, ranks)[0, 1],
        permutation_type="pairings",
        n_resamples=N_PERMUTATIONS,
        rng=random,
    )
    return float(found.pvalue)


def holm(p: np.ndarray) -> np.ndarray:
    """p [n], corrected so that any false rejection among all n has at most the probability said (Holm 1979), step down.

    The i-th smallest becomes the maximum over k ≤ i of (n − k + 1) p_k, at most 1. It holds under any dependence.
    """
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1.0, stepped)
    return corrected


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Adjusted p-values [...]: the smallest false discovery rate at which each is still rejected.

    Benjamini & Hochberg (1995): q of the i-th smallest p is the minimum over j ≥ i of n p_j / j, at most 1. They hold
    for independent or positively dependent p-values (Benjamini & Yekutieli 2001). NaN stays NaN and is not counted.
    """
    stats: Any = need("scipy.stats", "models", "adjusted p-values")
    q = np.array(p, dtype=float)
    known = np.isfinite(q)
    q[known] = stats.false_discovery_control(q[known]) if known.any() else 1
    return q
