"""What a step reads depends on the recipe alone: which rows, in which order, masked how.

    data = TrainingRows(tokens, recipe, n_rows=steps * rows_per_step)
    data.collate([0, 1, 2])                  # the batch of the first three places, on any machine and after any resume
    ids, labels = masked(rows, keys, Masking(share=0.15, mask=4, special=(0, 1, 2, 3, 4), n_vocabulary=8192), seed=0)

A decoder's rows are not masked: each token's label is the next one, and of the last none.

Place i of the training belongs to epoch i // n and to the row at place i % n of that epoch's own order. Masking depends on
nothing but (seed, epoch, sample), so that a resumed or distributed run masks alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.training.pretrain.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.training.pretrain.corpus import PackedTokens

IGNORED = -100  # the label that PyTorch's cross-entropy passes over
HELD_OUT_EPOCH = 2**22  # an epoch that no training reaches: held-out rows are masked alike at every evaluation


@dataclass(frozen=True)
class Masking:
    """How tokens are chosen and replaced: `share` in (0, 1) of the ordinary tokens, each on its own."""

    share: float
    mask: int
    special: tuple[int, ...]
    n_vocabulary: int

    def __post_init__(self) -> None:
        if len(self.special) >= self.n_vocabulary:
            raise BadInput("the vocabulary holds special tokens only; nothing could be masked")


def masked(
    rows: np.ndarray, keys: Sequence[tuple[int, int]], masking: Masking, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, labels), int64 [row, token] each, of token ids `rows` [row, token]; `keys` are (epoch, sample) of each row.

    Devlin et al. (2019): of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay; special tokens are never
    chosen. Every row has its own counter-based generator (Philox), keyed by what names the row. Labels are `IGNORED` where
    nothing is predicted. A row without a chosen token has one chosen for it, if it has an ordinary token at all: a row that
    teaches nothing would make the mean over the batch undefined.
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


def next_tokens(rows: np.ndarray, padding: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(ids, labels), int64 [row, token] each: what follows each token of `rows` [row, token], `IGNORED` where nothing does."""
    ids = rows.astype(np.int64)
    labels = np.concatenate([ids[:, 1:], np.full_like(ids[:, :1], IGNORED)], axis=1)
    if padding is not None:
        labels[labels == padding] = IGNORED
    return ids, labels


class PackedRows:
    """Places of a data set for PyTorch's loader; an item is its data set and its place, and `collate` makes the batch."""

    def __init__(self, rows: np.ndarray, tokens: "PackedTokens", recipe: Recipe):
        self.rows, self.seed = rows, recipe.training.seed
        self.padding = tokens.tokenizer.pad_token_id if recipe.data.packing == "lines" else None
        self.masking = (
            None if recipe.model.type == "llama" else Masking(
                recipe.training.mask_share, tokens.tokenizer.mask_token_id, tokens.special, len(tokens.tokenizer)
            )
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> "tuple[PackedRows, int]":
        return self, place

    def keys(self, places: list[int]) -> list[tuple[int, int]]:
        """(epoch, row) of each place."""
        return [(HELD_OUT_EPOCH, place) for place in places]

    def collate(self, places: list[int]) -> dict[str, "Tensor"]:
        """input_ids, attention_mask and labels, int64 [row, token] each."""
        import torch

        keys = self.keys(places)
        # Held-out rows do not depend on the seed: runs of several seeds are compared on the same masks.
        seed = 0 if keys and keys[0][0] == HELD_OUT_EPOCH else self.seed
        chosen = np.asarray(self.rows[[row for _, row in keys]])
        if self.masking is None:
            ids, labels = next_tokens(chosen, self.padding)
        else:
            ids, labels = masked(chosen, keys, self.masking, seed)
        valid = np.ones_like(ids) if self.padding is None else (chosen != self.padding).astype(np.int64)
        batch = {"input_ids": ids, "attention_mask": valid, "labels": labels}
        return {name: torch.from_numpy(values) for name, values in batch.items()}


class TrainingRows(PackedRows):
    """`n_rows` places: epoch after epoch, each in an order of its own."""

    def __init__(self, tokens: "PackedTokens", recipe: Recipe, n_rows: int):
        super().__init__(tokens.train, tokens, recipe)
        self.n_rows = n_rows
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self.n_rows

    def keys(self, places: list[int]) -> list[tuple[int, int]]:
        """(epoch, row) of each place."""
        n = len(self.rows)
        return [(place // n, int(self._order_of(place // n)[place % n])) for place in places]

    def _order_of(self, epoch: int) -> np.ndarray:
        if self._order[0] != epoch:
            # As unsigned integers: NumPy would make floats of such numbers, which cannot tell epochs apart.
            key = np.array([self.seed, (1 << 63) + epoch], dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(key=key))
            self._order = (epoch, generator.permutation(len(self.rows)))
        return self._order[1]
