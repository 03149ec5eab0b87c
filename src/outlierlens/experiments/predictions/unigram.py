"""The corpus' token frequencies, and how predictions compare with them.

    unigram = Unigram.of(counts, n_rows=30522, special=tokenizer.all_special_ids)
    slopes(said[None], unigram.counts)                     # of ln said on ln corpus count
    spearmans(said[None], unigram.counts)
    divergences(mass[None], unigram.probability)           # (KL(mean predicted || corpus), KL(corpus || mean predicted))

The three take several rows [row, type] at once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.result import Curve
from outlierlens.statistics.ranks import spearman

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlierlens.data.token_counts import TokenCounts

FEWEST = 3  # types that a slope or a rank correlation needs
FLOOR = 1e-6  # share of the corpus' distribution mixed into a predicted one, whose logarithm must exist
POINTS = 60  # of a curve


@dataclass(frozen=True)
class Unigram:
    """Frequencies of the vocabulary's types in a corpus.

    Attributes:
        counts: occurrences [type], 0 of special tokens and of rows of the vocabulary matrix that no token has.
        ordinary: bool [type], neither of those.
        smoothing: occurrences added to each ordinary type, so that each has a logarithm.
    """

    counts: np.ndarray
    ordinary: np.ndarray
    smoothing: float = 1.0

    @classmethod
    def of(cls, counts: "TokenCounts", *, n_rows: int, special: "Sequence[int]", smoothing: float = 1.0) -> "Unigram":
        """Of counted tokens, for a model whose vocabulary matrix has `n_rows` rows.

        Raises:
            BadInput: tokens that the model has no row for, or nothing counted.
        """
        beyond = counts.counts[n_rows:]
        if beyond.any():
            raise BadInput(
                f"{counts.source} counts {int((beyond > 0).sum()):,} tokens with ids from {n_rows:,} up, for which the model "
                f"has no row; count with this model's tokenizer"
            )
        found = np.zeros(n_rows, dtype=np.float64)
        known = min(n_rows, len(counts.counts))
        found[:known] = counts.counts[:known]
        ordinary = np.arange(n_rows) < known
        ordinary[[i for i in special if i < n_rows]] = False
        found[~ordinary] = 0
        if not found.any():
            raise BadInput(f"{counts.source} counts no ordinary token; give counts of a text")
        return cls(found, ordinary, smoothing)

    @property
    def probability(self) -> np.ndarray:
        """(count + smoothing) / their sum over ordinary types [type]; 0 elsewhere."""
        added = np.where(self.ordinary, self.counts + self.smoothing, 0.0)
        return added / added.sum()

    @property
    def added(self) -> float:
        """Share of `probability` that is smoothing, in [0, 1]."""
        extra = self.smoothing * float(self.ordinary.sum())
        return extra / (float(self.counts.sum()) + extra)

    @property
    def log(self) -> np.ndarray:
        """ln of it, nats [type]; 0 where there is none."""
        return np.log(np.where(self.ordinary, self.probability, 1.0))

    @property
    def share(self) -> np.ndarray:
        """count / all counts [type], not smoothed."""
        return self.counts / self.counts.sum()

    def curve(self, said: np.ndarray) -> Curve:
        """How `said` [type] spreads over ordinary types."""
        said = np.where(self.ordinary, said, 0.0)
        total = max(said.sum(), 1e-300)
        n_types = int(self.ordinary.sum())
        ranks = np.unique(np.geomspace(1, n_types, min(POINTS, n_types)).round().astype(np.int64))
        by_said = np.sort(said)[::-1] / total
        # Of types as frequent as one another, the one with the smaller id is first.
        by_corpus = np.argsort(-np.where(self.ordinary, self.counts, -1.0), kind="stable")
        covered = np.cumsum(said[by_corpus]) / total
        return Curve(ranks, by_said[ranks - 1], covered[ranks - 1])


def slopes(said: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """Least-squares slope of ln said [row, type] on ln corpus [type], over types where both are above 0; NaN of fewer than 3.

    Macocco et al. (2025) take it of counts of predicted tokens. 1: as often as in the corpus; above: frequent ones more.
    """
    there = (said > 0) & (corpus > 0)
    x = np.log(np.where(corpus > 0, corpus, 1.0))
    x = x - x.mean()
    y = np.log(np.where(there, said, 1.0))
    n = there.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = (there @ x) / n, y.sum(1) / n
        spread = there @ x**2 - n * mean_x**2
        found = (y @ x - n * mean_x * mean_y) / spread
    return np.where((n >= FEWEST) & (spread > 1e-12 * n), found, np.nan)


def spearmans(said: np.ndarray, corpus: np.ndarray) -> np.ndarray:
    """Spearman's correlation of said [row, type] and corpus [type] over the same types, in [-1, 1]; NaN of fewer than 3."""
    found = np.full(len(said), np.nan)
    for number, row in enumerate(said):
        there = (row > 0) & (corpus > 0)
        if there.sum() >= FEWEST:
            found[number] = spearman(row[there], corpus[there])
    return found


def divergences(mass: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(KL(predicted || corpus), KL(corpus || predicted)) [row], nats, of predicted mass [row, type] made a distribution.

    Types of probability 0 are left out of both. A millionth of the corpus' distribution is mixed into the predicted one: a
    probability that underflows costs at most 13.8 nats.
    """
    there = probability > 0
    corpus = probability[there]
    predicted = mass[:, there] / np.maximum(mass[:, there].sum(1, keepdims=True), 1e-300)
    predicted = (1 - FLOOR) * predicted + FLOOR * corpus
    ratio = np.log(predicted / corpus)  # [row, type]
    return (predicted * ratio).sum(1), -(ratio @ corpus)
