"""Running sums over the token vectors of one layer, in memory that does not grow with the texts.

sums = LayerSums(width, device)
sums.add(vectors, sentence)                       # float64 [token, dim] of one text, and the vector that stands for it
sums.contributions(), sums.kurtosis.parts()

All sums are float64 and merge by adding; a text must come whole, since kurtosis is taken of each.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.detection.running_statistics import Moments
from outlierlens.vectors.cosines import contributions_of

if TYPE_CHECKING:
    from torch import Tensor


class SequenceKurtosis:
    """Kurtosis mu_4 / s⁴ of all entries of each sequence, and what every dimension adds to it (Bondarenko et al. 2023).

    Attributes:
        n: sequences that vary; others have no kurtosis. most: the largest.
        fourth: sum over sequences of the parts [dim]. inf_norm: sum over sequences of the largest |entry|.
    """

    def __init__(self, width: int, device: Any = "cpu"):
        import torch

        self.fourth = torch.zeros(width, dtype=torch.float64, device=device)
        self.n, self.most, self.inf_norm = 0, 0.0, 0.0

    def add(self, values: "Tensor") -> None:
        """Take in one sequence, float64 [token, dim]."""
        if not values.numel():
            return
        square = (values - values.mean()).square()
        variance = square.mean()
        if not float(variance) > 0:
            return
        part = square.square().sum(0) / (values.numel() * variance * variance)
        self.fourth += part
        self.n += 1
        self.most = max(self.most, float(part.sum()))
        self.inf_norm += float(values.abs().max())

    def parts(self) -> np.ndarray:
        """Parts [dim] of the kurtosis, mean over sequences: they sum to it; NaN without a sequence that varies."""
        return np.asarray(self.fourth.cpu().numpy() / self.n) if self.n else np.full(len(self.fourth), np.nan)

    @property
    def mean_inf_norm(self) -> float:
        """Mean over sequences of the largest |entry|."""
        return self.inf_norm / self.n if self.n else float("nan")

    @property
    def largest(self) -> float:
        """The largest kurtosis of a sequence."""
        return self.most if self.n else float("nan")


class LayerSums:
    """What systematic, rudman, timkey, he and bondarenko need of one layer.

    Attributes:
        n: token vectors. size: sum of |h| over all entries. energy: sums of h² [dim].
        unit, unit_square: sums over tokens of the vectors of length 1, and of their squares [dim].
        kurtosis: of each text. sentences: moments of the texts' own vectors.
    """

    def __init__(self, width: int, device: Any = "cpu"):
        import torch

        none = torch.zeros(width, dtype=torch.float64, device=device)
        self.n, self.size = 0, 0.0
        self.energy, self.unit, self.unit_square = none.clone(), none.clone(), none.clone()
        self.kurtosis = SequenceKurtosis(width, device)
        self.sentences = Moments(0, none, none, none, none)

    def add(self, vectors: "Tensor", sentence: "Tensor") -> None:
        """Take in the counted tokens of one text, float64 [token, dim], and the vector that stands for it [dim]."""
        square = vectors.square()
        length = square.sum(1, keepdim=True)
        self.n += len(vectors)
        self.size += float(vectors.abs().sum())
        self.energy += square.sum(0)
        unit = vectors / length.sqrt().clamp_min(1e-300)  # a vector of length 0 has no direction and adds nothing
        self.unit += unit.sum(0)
        self.unit_square += unit.square().sum(0)
        self.kurtosis.add(vectors)
        self.sentences = self.sentences.merged(Moments.of(sentence[None].clone()))

    @property
    def mean_abs(self) -> float:
        """Mean |h| over tokens and dimensions."""
        return self.size / (self.n * len(self.energy)) if self.n else float("nan")

    def contributions(self) -> np.ndarray:
        """What every dimension adds to the mean cosine of all pairs of token vectors [dim]."""
        return contributions_of(self.unit.cpu().numpy(), self.unit_square.cpu().numpy(), self.n)

    def variances(self) -> np.ndarray:
        """Variance of every dimension over the texts' own vectors [dim]."""
        return np.asarray((self.sentences.m2 / max(self.sentences.count, 1)).cpu().numpy())
