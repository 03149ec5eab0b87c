"""Sums that Pearson correlations are made of: over keys for every dimension, and over texts drawn again for a few.

    sums = PairSums(n_columns, width)
    sums.add(columns, sizes)                    # [key, column], [key, dim]
    correlation(sums)                           # [column, dim]

    drawn = Drawn(n_bootstrap, n_columns, n_named)
    drawn.add(weights, columns, sizes, counted) # [replicate, batch], [batch, token, column], [batch, token, named], mask
    correlation(drawn.sums())                   # [replicate, column, named]

All memory is flat in the number of texts. Replicates are a Poisson bootstrap over texts: each text's weight is drawn from
its own seed, so every layer, condition and batch size sees the same draws.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

CONSTANT = 1e-12  # of the mean square: a variance below is rounding


@dataclass
class Sums:
    """Numbers of keys, sums, sums of squares and of products; leading axes are replicates.

    Attributes:
        n: [...]; a, aa: [..., column]; x, xx: [..., dim]; ax: [..., column, dim].
    """

    n: np.ndarray
    a: np.ndarray
    aa: np.ndarray
    x: np.ndarray
    xx: np.ndarray
    ax: np.ndarray

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, name) + getattr(other, name) for name in ("n", "a", "aa", "x", "xx", "ax")))


def correlation(sums: Sums) -> np.ndarray:
    """Pearson's r [..., column, dim]; NaN where one of both never varies."""
    n = np.asarray(sums.n, dtype=np.float64)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        of_a = _spread(n, sums.a, sums.aa)
        of_x = _spread(n, sums.x, sums.xx)
        both = n[..., None] * sums.ax - sums.a[..., :, None] * sums.x[..., None, :]
        r = both / np.sqrt(of_a[..., :, None] * of_x[..., None, :])
    return np.clip(r, -1.0, 1.0)


def _spread(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """n² times the variance; NaN where that is nothing but rounding."""
    found = n * squares - total**2
    return np.where(found > CONSTANT * n * squares, found, np.nan)


class PairSums:
    """Sums over keys of [key, column] with [key, dim]."""

    def __init__(self, n_columns: int, width: int, device: Any = "cpu"):
        import torch

        def zeros(*shape: int) -> "Tensor":
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.n = 0
        self.a, self.aa, self.x, self.xx, self.ax = (
            zeros(n_columns), zeros(n_columns), zeros(width), zeros(width), zeros(n_columns, width)
        )  # fmt: skip

    def add(self, columns: "Tensor", sizes: "Tensor") -> None:
        """Add float64 `columns` [key, column] and `sizes` [key, dim]."""
        self.n += len(columns)
        self.a += columns.sum(0)
        self.aa += columns.square().sum(0)
        self.x += sizes.sum(0)
        self.xx += sizes.square().sum(0)
        self.ax.addmm_(columns.T, sizes)

    def sums(self) -> Sums:
        """As arrays."""
        return Sums(
            np.array(float(self.n)), *(one.cpu().numpy() for one in (self.a, self.aa, self.x, self.xx, self.ax))
        )


class Drawn:
    """Sums of each replicate, the first of which is all texts once: [replicate, feature]."""

    def __init__(self, n_replicates: int, n_columns: int, n_named: int, device: Any = "cpu"):
        import torch

        self.shape = (n_columns, n_named)
        n_features = 1 + 2 * n_columns + 2 * n_named + n_columns * n_named
        self.total = torch.zeros((n_replicates, n_features), dtype=torch.float64, device=device)

    def add(self, weights: "Tensor", columns: "Tensor", sizes: "Tensor", counted: "Tensor") -> None:
        """Add `columns` [batch, token, column] and `sizes` [batch, token, named] of `counted` keys, weighted by text."""
        import torch

        mask = counted.double()[..., None]
        a, x = columns * mask, sizes * mask
        features = (
            mask.sum(1), a.sum(1), (a * columns).sum(1), x.sum(1), (x * sizes).sum(1),
            torch.bmm(a.transpose(1, 2), x).flatten(1),
        )  # fmt: skip
        self.total.addmm_(weights, torch.cat(features, dim=1))

    def sums(self) -> Sums:
        """As arrays with replicates in front."""
        columns, named = self.shape
        ends = np.cumsum([1, columns, columns, named, named])
        n, a, aa, x, xx, ax = np.split(self.total.cpu().numpy(), ends, axis=1)
        return Sums(n[:, 0], a, aa, x, xx, ax.reshape(-1, columns, named))
