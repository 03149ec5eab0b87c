"""Change a corpus' token frequencies or order and nothing else: rows keep their length, special tokens their places.

    flattened = Flattening.from_counts(counts, share=0.5, special=(0, 1, 2, 3, 4))
    rows = flattened(rows, generator)       # half of the frequent occurrences are now rare tokens
    rows = shuffled(rows, special, generator)

Puccetti et al. (2022) report a corpus in which 50 % of the frequent tokens are replaced by rare ones; no code for it was
released and the paper's cut between frequent and rare is not known, so it is a parameter here. Frequent are the fewest
types that together make up `frequent_mass` of all occurrences; every other type that occurs is rare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import BadInput


@dataclass(frozen=True)
class Flattening:
    """Which types are replaced by which, and how often: bool and ids over the vocabulary."""

    frequent: np.ndarray  # bool [vocabulary]
    rare: np.ndarray  # int [type]
    share: float

    @classmethod
    def from_counts(
        cls, counts: np.ndarray, *, share: float, special: Sequence[int], frequent_mass: float = 0.5
    ) -> "Flattening":
        """From occurrences of every id, int [vocabulary]; special ids count as neither frequent nor rare.

        Raises:
            BadInput: shares outside (0, 1], or no rare type left.
        """
        if not 0 < share <= 1 or not 0 < frequent_mass < 1:
            raise BadInput(f"share is {share} and frequent_mass {frequent_mass}; they must lie in (0, 1] and (0, 1)")
        counts = counts.astype(np.float64)
        counts[list(special)] = 0
        order = np.argsort(-counts, kind="stable")
        mass = np.cumsum(counts[order]) / max(counts.sum(), 1)
        frequent = np.zeros(len(counts), dtype=bool)
        frequent[order[: int(np.searchsorted(mass, frequent_mass)) + 1]] = True
        rare = np.flatnonzero((counts > 0) & ~frequent)
        if not len(rare):
            raise BadInput("no rare token type is left to put in; give more text or a lower frequent_mass")
        return cls(frequent, rare, share)

    def __call__(self, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """`rows` [row, token] with each frequent occurrence replaced, with probability `share`, by a rare type at random."""
        replaced = self.frequent[rows] & (generator.random(rows.shape) < self.share)
        rows = rows.copy()
        rows[replaced] = self.rare[generator.integers(len(self.rare), size=int(replaced.sum()))]
        return rows

    def expected(self, counts: np.ndarray) -> np.ndarray:
        """Occurrences of every id to expect after the replacement, float [vocabulary]."""
        moved = np.where(self.frequent, counts * self.share, 0.0)
        after = counts - moved
        after[self.rare] += moved.sum() / len(self.rare)
        return after


def shuffled(rows: np.ndarray, special: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """`rows` [row, token] with the ordinary tokens of each row in random order among their own places."""
    rows = rows.copy()
    ordinary = ~np.isin(rows, list(special))
    for row, places in zip(rows, ordinary, strict=True):
        row[places] = generator.permutation(row[places])
    return rows
