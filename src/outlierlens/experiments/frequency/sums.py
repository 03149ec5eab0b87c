"""Sums over tokens of |h_d| with frequency and position, of all dimensions, under every draw of a bootstrap over texts.

    sums = Sums(n_layers, width, n_bootstrap, device)
    tokens = Regressors.of(count, position, ordinary, special)     # [batch, token] each
    sums.start(tokens, weights)                                    # weights [1 + n_bootstrap, batch], row 0 all ones
    for layer, states in enumerate(batch.states):
        sums.add(layer, states)                                    # [batch, token, dim]
    sums.of(layer, "without_special")                              # -> Moments, as NumPy arrays

Memory does not depend on how many texts there are: a text's sums are added to each draw as often as that draw has the text
(Poisson(1) times, which is drawing with replacement from a stream). All accumulators are float64.

A sample of tokens with their |h| in all layers, drawn from a stream: those with the smallest of random keys.

    sample = TokenSample(2048, n_layers, width)
    places = sample.offer(keys, count, ordinary)          # [token] each: which tokens are kept, and where
    sample.keep(layer, places, values)                    # |h| of the kept ones [kept, dim]
    sample.kept                                           # tokens there are now

A token's key does not depend on the batch it came in, so neither does the sample.

Mean |h| of each of a sample of types (vocabulary entries) in all layers, from a stream.

    table = TypeTable(4000, n_vocabulary, n_layers, width, seed=0, device="cpu")
    slots = table.offer(ids)                              # [token] -> slot, the last one for types that are not kept
    table.add(layer, slots, values)                       # |h| [token, dim]
    ids, means = table.means(layer)                       # [type], [type, dim]

Which types are kept is decided by a random order of the vocabulary, not by where they stand: of the types that occur, the
first `size` in that order. A type that is kept has been since its first token, so its mean is over all its tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = ("ordinary", "special")
BASE = ("one", "raw", "log", "position")  # what |h_d| is summed with
ROWS = len(BASE) + 1  # … and its square
CHUNK_VALUES = 2**18  # of a CPU's work at a time, so that it stays in the cache
View = str


@dataclass(frozen=True)
class Regressors:
    """What goes with the tokens of a batch.

    Attributes:
        rows: float64 [batch, 2 × base, token], `BASE` for ordinary tokens and again for special ones, 0 elsewhere.
        own: float64 [batch, 2, base, base], sums of their products.
    """

    rows: "Tensor"
    own: "Tensor"

    @classmethod
    def of(cls, count: "Tensor", position: "Tensor", ordinary: "Tensor", special: "Tensor") -> "Regressors":
        """Of float64 `count` and `position`, bool `ordinary` and `special` [batch, token]."""
        import torch

        base = torch.stack([torch.ones_like(count), count, count.log1p(), position], 1)  # [batch, base, token]
        groups = torch.stack([base * one[:, None] for one in (ordinary, special)], 1)  # [batch, 2, base, token]
        return cls(groups.flatten(1, 2), groups @ base.transpose(1, 2)[:, None])


@dataclass(frozen=True)
class Moments:
    """Sums over the tokens of one view in one layer, float64.

    Attributes:
        own: [draw, base, base], sums of products of `BASE`; draw 0 has every text once.
        with_size: [draw, base, dim], sums of |h_d| with each of `BASE`. square: [draw, dim], sums of h_d².
        signed: [base, dim], sums of h_d itself with "one" and "log" (the others are 0), without draws.
    """

    own: np.ndarray
    with_size: np.ndarray
    square: np.ndarray
    signed: np.ndarray


class FrequencySums:
    """Accumulators of all layers; `memory` says what they take before they are made."""

    def __init__(self, n_layers: int, width: int, n_bootstrap: int, device: Any = "cpu"):
        import torch

        self.n_layers, self.width, self.n_draws, self.device = n_layers, width, 1 + n_bootstrap, torch.device(device)

        def zeros(*shape: int) -> "Tensor":
            return torch.zeros(shape, dtype=torch.float64, device=self.device)

        n = len(BASE)
        self._own = zeros(self.n_draws, 2 * n * n)
        self._sums = [zeros(self.n_draws, 2 * ROWS * width) for _ in range(n_layers)]
        self._signed = [zeros(2 * n, width) for _ in range(n_layers)]
        self._rows: Tensor | None = None
        self._weights: Tensor | None = None

    @staticmethod
    def memory(n_layers: int, width: int, n_bootstrap: int) -> int:
        """Bytes."""
        return 8 * n_layers * (1 + n_bootstrap) * 2 * ROWS * width

    def start(self, tokens: Regressors, weights: np.ndarray) -> None:
        """Begin a batch, in which draw i has text j `weights[i, j]` times."""
        import torch

        self._rows = tokens.rows
        self._weights = torch.from_numpy(weights).to(self.device)
        self._own += self._weights @ tokens.own.flatten(1)

    def add(self, layer: int, states: "Tensor", see: "Callable[[Tensor, int], None] | None" = None) -> None:
        """Add the states of a layer [batch, token, dim] of the batch that was begun.

        `see(|h|, first)` is shown float64 [text, token, dim] of some texts, the first of which is number `first`.

        Raises:
            BadInput: a state is NaN or infinite.
        """
        import torch

        assert self._rows is not None, "start comes first"
        assert self._weights is not None, "start comes first"
        n = len(BASE)
        step = len(states)
        if self.device.type == "cpu":
            step = max(1, CHUNK_VALUES // max(1, states.shape[1] * states.shape[2]))
        found = torch.empty(len(states), 2, ROWS, self.width, dtype=torch.float64, device=self.device)
        for first in range(0, len(states), step):
            rows = self._rows[first : first + step]
            # A copy also of float64 states: they are the model's own, and what follows works in place.
            wide = states[first : first + step].to(self.device, torch.float64, copy=True)
            signed = rows[:, [0, 2, n, n + 2]].transpose(0, 1).flatten(1) @ wide.flatten(0, 1)
            self._signed[layer][[0, 2, n, n + 2]] += signed
            size = wide.abs_()
            part = found[first : first + step]
            part[:, :, :n] = (rows @ size).unflatten(1, (2, n))
            if see is not None:
                see(size, first)
            part[:, :, n] = rows[:, ::n] @ size.square_()
        if not bool(torch.isfinite(found.sum())):
            raise BadInput(f"a state of layer number {layer} that was read is NaN or infinite; {USE_FLOAT32}")
        self._sums[layer].addmm_(self._weights, found.flatten(1))

    def of(self, layer: int, view: View) -> Moments:
        """Sums of a layer over the tokens of view "without_special" or "all"."""
        n = len(BASE)
        groups = slice(0, 1) if view == "without_special" else slice(0, 2)
        sums = self._sums[layer].view(self.n_draws, 2, ROWS, self.width)[:, groups].sum(1).cpu().numpy()
        signed = self._signed[layer].view(2, n, self.width)[groups].sum(0).cpu().numpy()
        return Moments(self.own(view), sums[:, :n], sums[:, n], signed)

    def own(self, view: View) -> np.ndarray:
        """Sums of products of `BASE` over the tokens of a view [draw, base, base]."""
        n = len(BASE)
        groups = slice(0, 1) if view == "without_special" else slice(0, 2)
        found: np.ndarray = self._own.view(self.n_draws, 2, n, n)[:, groups].sum(1).cpu().numpy()
        return found


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
