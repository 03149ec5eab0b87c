"""A sample of tokens with their |h| in all layers, drawn from a stream: those with the smallest of random keys.

    sample = TokenSample(2048, n_layers, width)
    places = sample.offer(keys, count, ordinary)          # [token] each: which tokens are kept, and where
    sample.keep(layer, places, values)                    # |h| of the kept ones [kept, dim]
    sample.kept                                           # tokens there are now

A token's key does not depend on the batch it came in, so neither does the sample.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Places:
    """Kept tokens of what was offered: their `index` [kept] in it, and the `slot` [kept] each takes."""

    index: np.ndarray
    slot: np.ndarray


class TokenSample:
    """At most `size` tokens.

    Attributes:
        values: float32 |h| [layer, slot, dim]. count: of the token, and ordinary: whether it is no special one [slot].
    """

    def __init__(self, size: int, n_layers: int, width: int):
        self.size, self.kept = size, 0
        self.values = np.zeros((n_layers, size, width), dtype=np.float32)
        self.count = np.zeros(size)
        self.ordinary = np.zeros(size, dtype=bool)
        self._keys = np.full(size, np.inf)

    @staticmethod
    def memory(size: int, n_layers: int, width: int) -> int:
        """Bytes."""
        return 4 * size * n_layers * width

    def offer(self, keys: np.ndarray, count: np.ndarray, ordinary: np.ndarray) -> Places:
        """Choose among tokens with these random `keys`, counts and kinds [token]; their values are to follow by `keep`."""
        few = np.flatnonzero(keys < self._keys.max())
        few = few[np.argsort(keys[few], kind="stable")[: self.size]]
        # The worst slots go, free ones (with an infinite key) first, as long as what comes is better.
        worst = np.argsort(-self._keys, kind="stable")[: len(few)]
        better = keys[few] < self._keys[worst]
        index, slot = few[better], worst[better]
        self._keys[slot], self.count[slot], self.ordinary[slot] = keys[index], count[index], ordinary[index]
        self.kept = int(np.isfinite(self._keys).sum())
        return Places(index, slot)

    def keep(self, layer: int, slot: np.ndarray, values: np.ndarray) -> None:
        """Set the |h| of the tokens at `slot` [kept] to `values` [kept, dim]."""
        self.values[layer, slot] = values

    def part(self, view: str) -> np.ndarray:
        """Slots in use whose token counts in a view, bool [slot]."""
        used = np.isfinite(self._keys)
        return used & self.ordinary if view == "without_special" else used
