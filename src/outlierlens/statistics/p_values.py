"""p-values and their corrections.

rank_p(1.2, np.array(changes_of_random_sets))    # among sets that are drawn as the tested one might have been
position_p(flags)                                # [dim]: layers that agree on a position, by closed form
holm(p), benjamini_hochberg(p)                   # over all that were tested together
"""

import math
from typing import Any

import numpy as np

from outlierlens.errors import need
from outlierlens.statistics.ranks import middle_ranks, ranks_from_top, spearman

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
    """Two-sided p-values of t [...], Student's distribution with so many `degrees` of freedom; NaN of NaN."""
    special: Any = need("scipy.special", "models", "p-values")
    return np.asarray(2 * special.stdtr(degrees, -np.abs(t)))


def permutation_p(one: np.ndarray, other: np.ndarray, random: np.random.Generator) -> float:
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
    p = np.asarray(p, dtype=float)
    q = np.full(p.shape, np.nan)
    known = np.isfinite(p)
    tested = p[known]
    order = np.argsort(-tested, kind="stable")
    adjusted = np.empty_like(tested)
    adjusted[order] = np.minimum.accumulate(tested[order] * len(tested) / np.arange(len(tested), 0, -1))
    q[known] = np.minimum(adjusted, 1)
    return q
