"""Do two models share an origin? Told from the vectors of their norms, without their weights.

    likeness(child, parent)        # p-value, and how close they are; None where they cannot be compared

Training from random values gives no dimension of a residual stream a place: any order of them is as likely. So under the null
that two models were trained apart, the dimensions of one may be permuted among themselves, and nothing changes. What follows
training (fine-tuning, merging, pruning, rounding) keeps their order, and with it who has large and small norms.

Every vector becomes normal scores of its ranks (van der Waerden), layer by layer, scales and biases apart, so that one outlier
does not decide. T is the sum of products of the scores of the two models. Over all permutations of the dimensions T has
the mean 0 and the variance Σ_lm G_lm H_lm / (d − 1), G and H being the Gram matrices of the two models' vectors
(Hoeffding 1951, theorem 2), and is near a normal distribution where d is large. Of models that differ in their layers
the mean over layers is compared, which a student cut from its teacher's layers keeps.

Positions that are fixed sines give dimensions a place before training: two models that have them may be alike without a
common origin.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from outlierlens.experiments.atlas.rows import AtlasRow
from outlierlens.statistics.ranks import middle_ranks

LEAST_WIDTH = 32  # below it the normal distribution is no good guide


@dataclass(frozen=True)
class Likeness:
    """How two streams compare: p of at least this T under the null, and `closeness`, a mean correlation in [−1, 1]."""

    p: float
    z: float
    closeness: float


def likeness(one: AtlasRow, other: AtlasRow) -> Likeness | None:
    """The comparison of two streams; None where their widths differ, or either has no finite vectors that vary."""
    if one.width != other.width or one.width < LEAST_WIDTH or one.scale is None or other.scale is None:
        return None
    kinds = [kind for kind in ("scale", "bias") if getattr(one, kind) is not None and getattr(other, kind) is not None]
    ours, theirs = ([getattr(row, kind).astype(np.float64) for kind in kinds] for row in (one, other))
    if not all(np.isfinite(values).all() for values in (*ours, *theirs)):
        return None
    a, b = _scores(ours, whole=one.layers == other.layers), _scores(theirs, whole=one.layers == other.layers)
    variance = float(((a @ a.T) * (b @ b.T)).sum()) / (one.width - 1)
    if variance <= 0:
        return None
    z = float((a * b).sum()) / math.sqrt(variance)
    closest = np.concatenate([_closest(*pair) for pair in zip(ours, theirs, strict=True)])
    return Likeness(math.erfc(z / math.sqrt(2)) / 2, z, float(closest.mean()))


def _scores(parts: list[np.ndarray], *, whole: bool) -> np.ndarray:
    """Normal scores of the ranks of each vector, or of each part's mean over layers, float64 [vector, dim] with mean 0."""
    vectors = np.concatenate([part if whole else part.mean(axis=0, keepdims=True) for part in parts])
    width = vectors.shape[1]
    table = np.array(
        [NormalDist().inv_cdf(rank / (2 * width + 2)) for rank in range(1, 2 * width + 2)]
    )  # by half ranks
    scores = table[(2 * middle_ranks(vectors)).astype(int) - 1]
    return np.asarray(scores - scores.mean(axis=1, keepdims=True))


def _closest(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Correlation of each layer with the other model's same layer, or with its nearest where they differ in number."""
    a, b = (_unit(values) for values in (ours, theirs))
    return np.asarray((a * b).sum(axis=1) if len(a) == len(b) else (a @ b.T).max(axis=int(len(a) < len(b))))


def _unit(values: np.ndarray) -> np.ndarray:
    """Each vector centred and of length 1; zeros of one that does not vary."""
    centred = values - values.mean(axis=1, keepdims=True)
    size = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(centred, size, out=np.zeros_like(centred), where=size > 0))
