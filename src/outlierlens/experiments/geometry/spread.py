"""How evenly vectors fill their space: IsoScore and effective rank.

parts = scatters(vectors, groups)                  # [group, dim, dim], about the mean of all
own = own_scatters(vectors, starts)                # what each sentence adds by itself
iso_scores(parts, own, group_of_sentence)          # of all sentences, then without each group: for a jackknife
effective_rank(parts.sum(0))
"""

from dataclasses import dataclass

import numpy as np

from outlierlens.errors import BadInput


@dataclass(frozen=True)
class OwnScatters:
    """Of each sentence's vectors x about the mean of all: their number, Σ |x|² and |Σ x xᵀ|² [sentence] each."""

    size: np.ndarray
    trace: np.ndarray
    square: np.ndarray


def scatters(vectors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Σ x xᵀ over the vectors [vector, dim] of each group [vector], x about the mean of all: [group, dim, dim].

    Raises:
        BadInput: fewer than two vectors, or fewer than two groups.
    """
    n_groups = int(groups.max()) + 1 if len(groups) else 0
    if len(vectors) < 2 or n_groups < 2:
        raise BadInput(f"a covariance needs at least 2 vectors of 2 sentences, got {len(vectors)}; give more text")
    away = np.asarray(vectors, dtype=np.float64)
    away = away - away.mean(0)
    return np.stack([away[groups == group].T @ away[groups == group] for group in range(n_groups)])


def own_scatters(vectors: np.ndarray, starts: np.ndarray) -> OwnScatters:
    """Of vectors [vector, dim] of sentences that stand one behind the other, sentence i from `starts[i]` on."""
    away = np.asarray(vectors, dtype=np.float64)
    away = away - away.mean(0)
    ends = np.append(starts[1:], len(away))
    grams = [away[first:last] @ away[first:last].T for first, last in zip(starts, ends, strict=True)]
    found = np.array([(len(gram), np.trace(gram), (gram**2).sum()) for gram in grams])
    return OwnScatters(*found.T)


def iso_scores(parts: np.ndarray, own: OwnScatters, group_of: np.ndarray) -> np.ndarray:
    """IsoScore (Rudman et al. 2022) of the vectors that sentences are drawn from: of all sentences, then without each group.

    [1 + group], in [0, 1] but for chance. The paper's steps are: variances along principal components, scaled to length √n;
    distance δ of them to (1, …, 1), divided by √(2(n − √n)); φ = (n − δ²(n − √n))² / n²; (nφ − 1) / (n − 1). They come to
    φ = trace² / (n |C|²), so that no principal component has to be computed: the participation ratio of the variances,
    scaled to [0, 1]. Of the few vectors of a sample it is too small, since |C|² counts each with itself; so both squares are
    sums over pairs of *different* sentences, whose expectation is that of the covariance of all there are.

    Args:
        parts: scatter of each group [group, dim, dim]. own: of each sentence. group_of: group of each sentence.

    Raises:
        BadInput: fewer than two dimensions.
    """
    width = parts.shape[1]
    if width < 2:
        raise BadInput(f"IsoScore needs at least 2 dimensions, got {width}")
    whole = parts.sum(0)
    found = []
    for left_out in range(-1, len(parts)):
        kept = group_of != left_out
        scatter = whole if left_out < 0 else whole - parts[left_out]
        across = (scatter**2).sum() - own.square[kept].sum()
        trace = own.trace[kept].sum() ** 2 - (own.trace[kept] ** 2).sum()
        found.append((trace / across - 1) / (width - 1) if across > 0 else np.nan)
    return np.array(found)


def effective_rank(covariance: np.ndarray) -> float:
    """exp of the entropy of the normalised singular values of the centred vectors, in [1, dim]; NaN where nothing varies.

    Roy and Vetterli (2007). Singular values are the square roots of the covariance's eigenvalues, up to a factor.
    """
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(covariance), 0))
    if not values.sum() > 0:
        return float("nan")
    share = values / values.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))
