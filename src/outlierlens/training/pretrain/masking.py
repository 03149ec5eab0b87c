"""Dynamic masking that depends on nothing but (seed, epoch, sample): a resumed or distributed run masks alike.

    ids, labels = masked(rows, keys, Masking(share=0.15, mask=4, special=(0, 1, 2, 3, 4), n_vocabulary=8192), seed=0)

Devlin et al. (2019): of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are never
chosen. Every row has its own counter-based generator (Philox), keyed by what names the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import BadInput

IGNORED = -100  # the label that PyTorch's cross-entropy passes over


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced: `share` in (0, 1) of the ordinary tokens, each on its own."""

    share: float
    mask: int
    special: tuple[int, ...]
    n_vocabulary: int

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadInput(f"the masked share is {self.share}; it must lie between 0 and 1")
        if len(self.special) >= self.n_vocabulary:
            raise BadInput("the vocabulary holds special tokens only; nothing could be masked")


def masked(
    rows: np.ndarray, keys: Sequence[tuple[int, int]], masking: Masking, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, labels), int64 [row, token] each, of token ids `rows` [row, token]; `keys` are (epoch, sample) of each row.

    Labels are `IGNORED` where nothing is predicted. A row without a chosen token has one chosen for it, if it has an
    ordinary token at all: a row that teaches nothing would make the mean over the batch undefined.
    """
    ids = rows.astype(np.int64)
    labels = np.full_like(ids, IGNORED)
    ordinary = ~np.isin(ids, masking.special)
    replacements = np.setdiff1d(np.arange(masking.n_vocabulary), masking.special)
    for row, (epoch, sample) in enumerate(keys):
        generator = np.random.Generator(np.random.Philox(key=[seed, (epoch << 40) + sample]))
        draws = generator.random((2, ids.shape[1]))
        words = replacements[generator.integers(len(replacements), size=ids.shape[1])]
        chosen = ordinary[row] & (draws[0] < masking.share)
        if not chosen.any() and ordinary[row].any():
            chosen[np.flatnonzero(ordinary[row])[np.argmin(draws[0][ordinary[row]])]] = True
        labels[row, chosen] = ids[row, chosen]
        ids[row, chosen & (draws[1] < 0.8)] = masking.mask
        swapped = chosen & (draws[1] >= 0.9)
        ids[row, swapped] = words[swapped]
    return ids, labels
