"""Cosines of sentence pairs and their rank correlation with people, for many vectors at once.

    index = PairIndex.of(pairs, place)                          # place: sentence -> row of the vectors
    cosines = index.cosines(vectors, fix)                       # [pair]
    scores = score(pairs, cosines[:, None])                     # pooled, mean and weighted mean over subsets, each subset
    spearman(pairs, unit_vectors_of_another_model)              # one number for vectors that are at hand

Scores are Spearman's ρ in [−1, 1], equal to scipy's `spearmanr`; reports multiply by 100.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.similarity.result import Scores
from outlierlens.experiments.similarity.table import StsPairs
from outlierlens.statistics.ranks import correlations
from outlierlens.vectors.fixes import Fix

PAIRS_AT_ONCE = 4096


@dataclass(frozen=True)
class PairIndex:
    """Rows of the two sentences of each pair, in blocks.

    Attributes:
        blocks: (rows of the block's different sentences, place of the first among them [pair], of the second [pair]).
    """

    blocks: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    @classmethod
    def of(cls, pairs: StsPairs, place: Mapping[str, int]) -> "PairIndex":
        """The rows of `pairs`, where `place` says the row of each sentence."""
        rows = np.array([[place[text] for text in side] for side in (pairs.first, pairs.second)], dtype=np.int64)
        return cls.of_rows(rows[0], rows[1])

    @classmethod
    def of_rows(cls, first: np.ndarray, second: np.ndarray) -> "PairIndex":
        """Of rows [pair] of the first and of the second."""
        blocks = []
        for start in range(0, len(first), PAIRS_AT_ONCE):
            part = np.stack([first[start : start + PAIRS_AT_ONCE], second[start : start + PAIRS_AT_ONCE]])
            used, inverse = np.unique(part, return_inverse=True)
            inverse = inverse.reshape(part.shape)
            blocks.append((used, inverse[0], inverse[1]))
        return cls(tuple(blocks))

    def cosines(self, vectors: np.ndarray, fix: Fix | None = None) -> np.ndarray:
        """Cosine in [−1, 1] of each pair's vectors [row, dim] after `fix`, float64 [pair]; 0 where one has no length.

        Raises:
            BadInput: a vector is not finite.
        """
        found = []
        for used, first, second in self.blocks:
            chosen = np.asarray(vectors[used], dtype=np.float64)
            better = chosen if fix is None else fix.apply(chosen)
            length = np.sqrt(np.einsum("sd,sd->s", better, better))
            if not np.isfinite(length).all():
                raise BadInput(f"a vector to compare is NaN or infinite; {USE_FLOAT32}")
            unit = better / np.where(length > 0, length, 1)[:, None]
            found.append(np.einsum("pd,pd->p", unit[first], unit[second]))
        return np.clip(np.concatenate(found), -1, 1) if found else np.zeros(0)


def score(pairs: StsPairs, cosines: np.ndarray) -> Scores:
    """Spearman's ρ of `cosines` [pair, ...] with the scores that people gave, pooled and by subset.

    Pooled: all pairs together (mteb's way). Mean, weighted: over the subsets, each counting once or by its pairs (SentEval's
    two ways); without subsets they are the pooled one. A constant correlates with nothing: 0.
    """
    shape = cosines.shape[1:]
    flat = cosines.reshape(len(pairs), -1)
    pooled = correlations("spearman", pairs.gold, flat)
    names = pairs.subsets
    if not names:
        whole = pooled.reshape(shape)
        return Scores(whole, whole, whole, np.zeros((0, *shape)))
    of = np.array(pairs.subset)
    each = np.stack([correlations("spearman", pairs.gold[of == name], flat[of == name]) for name in names])
    sizes = np.array([(of == name).sum() for name in names], dtype=np.float64)
    mean, weighted = each.mean(0), sizes @ each / sizes.sum()
    return Scores(pooled.reshape(shape), mean.reshape(shape), weighted.reshape(shape), each.reshape(len(names), *shape))


def spearman(pairs: StsPairs, vectors: np.ndarray, place: Mapping[str, int] | None = None) -> float:
    """Pooled ρ of vectors [sentence, dim] whose rows are `pairs.sentences`, or where `place` says."""
    place = place or {text: i for i, text in enumerate(pairs.sentences)}
    return float(score(pairs, PairIndex.of(pairs, place).cosines(vectors)[:, None]).pooled[0])
