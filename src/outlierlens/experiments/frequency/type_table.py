"""Mean |h| of each of a sample of types (vocabulary entries) in all layers, from a stream.

    table = TypeTable(4000, n_vocabulary, n_layers, width, seed=0, device="cpu")
    slots = table.offer(ids)                              # [token] -> slot, the last one for types that are not kept
    table.add(layer, slots, values)                       # |h| [token, dim]
    ids, means = table.means(layer)                       # [type], [type, dim]

Which types are kept is decided by a random order of the vocabulary, not by where they stand: of the types that occur, the
first `size` in that order. A type that is kept has been since its first token, so its mean is over all its tokens.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class TypeTable:
    """Sums of |h| by type, float64, of at most `size` types.

    Attributes:
        n_seen: different types that occurred, kept or not.
    """

    def __init__(self, size: int, n_vocabulary: int, shape: tuple[int, int], *, seed: int, device: Any = "cpu"):
        import torch

        n_layers, width = shape
        self.size = min(size, n_vocabulary)
        self._order = np.random.default_rng([seed, 47]).permutation(n_vocabulary)
        self._slot = np.full(n_vocabulary, -1)
        self._id = np.full(self.size, -1)
        self._count = np.zeros(self.size + 1, dtype=np.int64)
        self._seen = np.zeros(n_vocabulary, dtype=bool)
        # The slot behind the last takes what is not kept.
        self._sums = torch.zeros(n_layers, self.size + 1, width, dtype=torch.float64, device=device)

    @staticmethod
    def memory(size: int, n_layers: int, width: int) -> int:
        """Bytes."""
        return 8 * (size + 1) * n_layers * width

    @property
    def n_seen(self) -> int:
        """Types that occurred."""
        return int(self._seen.sum())

    def offer(self, ids: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """Slot of each token [token] of `ids`, with room made for new types; `size` where it is not `counted` or kept."""
        present = np.unique(ids[counted])
        new = present[~self._seen[present]]
        self._seen[new] = True
        new = new[np.argsort(self._order[new])][: self.size]
        rank = np.where(self._id < 0, len(self._order), self._order[self._id])  # [slot]
        worst = np.argsort(-rank, kind="stable")[: len(new)]
        better = self._order[new] < rank[worst]
        for slot, one in zip(worst[better].tolist(), new[better].tolist(), strict=True):
            if self._id[slot] >= 0:
                self._slot[self._id[slot]] = -1
                self._sums[:, slot] = 0
                self._count[slot] = 0
            self._id[slot], self._slot[one] = one, slot
        slots = np.where(counted & (self._slot[ids] >= 0), self._slot[ids], self.size)
        self._count += np.bincount(slots.ravel(), minlength=self.size + 1)
        return slots

    def add(self, layer: int, slots: "Tensor", values: "Tensor") -> None:
        """Add |h| [token, dim] of tokens whose types have these slots [token]."""
        self._sums[layer].index_add_(0, slots, values)

    @property
    def ids(self) -> np.ndarray:
        """Types that are kept [type]."""
        return self._id[self._id >= 0]

    def means(self, layer: int) -> np.ndarray:
        """Mean |h| of the kept types [type, dim], in the order of `ids`."""
        used = np.flatnonzero(self._id >= 0)
        sums: np.ndarray = self._sums[layer, used].cpu().numpy()
        return sums / self._count[used, None]
