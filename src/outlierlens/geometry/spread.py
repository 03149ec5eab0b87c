"""How evenly vectors fill their space: IsoScore and effective rank, from a covariance.

iso_score(covariance)                    # 1 is the same variance in every direction, 0 a single direction
effective_rank(covariance)
left_out(vectors, groups)                # covariances of all vectors, and without each group: for a jackknife
"""

import numpy as np

from outlierlens.errors import BadInput


def iso_score(covariance: np.ndarray) -> float:
    """IsoScore in [0, 1] (Rudman et al. 2022), of the covariance [dim, dim]. NaN where nothing varies.

    The paper's steps are: variances along principal components, scaled to length √n; distance δ of them to (1, …, 1),
    divided by √(2(n − √n)); φ = (n − δ²(n − √n))² / n²; (nφ − 1) / (n − 1). They come to φ = trace² / (n |C|²), so that no
    principal component has to be computed: IsoScore is the participation ratio of the variances, scaled to [0, 1].

    Raises:
        BadInput: fewer than two dimensions.
    """
    width = len(covariance)
    if width < 2:
        raise BadInput(f"IsoScore needs at least 2 dimensions, got {width}")
    size = float((np.asarray(covariance, dtype=np.float64) ** 2).sum())
    if not size > 0:
        return float("nan")
    return (float(np.trace(covariance)) ** 2 / size - 1) / (width - 1)


def isotropic_iso_score(n: int, width: int) -> float:
    """IsoScore to be expected of `n` vectors drawn from a normal distribution with the same variance everywhere.

    The ratio of the means of trace² and |C|² of a Wishart matrix: a sample's covariance is never even.
    """
    free = max(n - 1, 1)
    trace, size = width**2 + 2 * width / free, width + width * (width + 1) / free
    return (trace / size - 1) / (width - 1)


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


def left_out(vectors: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    """Unbiased covariances [dim, dim]: of all `vectors` [vector, dim], then without each of the groups [vector] in turn.

    Raises:
        BadInput: fewer than two vectors, or fewer than two groups.
    """
    n_groups = int(groups.max()) + 1 if len(groups) else 0
    if len(vectors) < 2 or n_groups < 2:
        raise BadInput(f"a covariance needs at least 2 vectors of 2 sentences, got {len(vectors)}; give more text")
    middle = np.asarray(vectors, dtype=np.float64).mean(0)
    count, total, squares = [], [], []
    for group in range(n_groups):
        away = np.asarray(vectors[groups == group], dtype=np.float64) - middle
        count.append(len(away))
        total.append(away.sum(0))
        squares.append(away.T @ away)
    n, whole = len(vectors), np.sum(squares, axis=0)
    found = [whole / (n - 1)]
    for one, moved, square in zip(count, total, squares, strict=True):
        left = n - one
        mean = -moved / max(left, 1)  # the sum over all is 0
        found.append((whole - square - left * np.outer(mean, mean)) / max(left - 1, 1))
    return found
