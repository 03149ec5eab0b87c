"""The rules that only live here, on plain arrays [layer, dim]; `detect` and `activation_rules` hold the others.

flags = rudman(variances, factor=5.0)
flags.holds, flags.strength                          # [layer, dim] each

Running sums over the token vectors of one layer, in memory that does not grow with the texts.

sums = LayerSums(width, device)
sums.add(vectors, sentence)                       # float64 [token, dim] of one text, and the vector that stands for it
sums.contributions(), sums.kurtosis.parts()

All sums are float64 and merge by adding; a text must come whole, since kurtosis is taken of each.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.detection.running_statistics import Moments
from outlierlens.vectors.cosines import contributions_of

if TYPE_CHECKING:
    from torch import Tensor
from outlierlens.statistics.ranks import ratio as quotient


@dataclass(frozen=True)
class Flags:
    """Where a rule holds, bool [layer, dim], and the number that it compares [layer, dim]."""

    holds: np.ndarray
    strength: np.ndarray


def systematic(abs_max: np.ndarray, mean_abs: np.ndarray, ratio: float) -> Flags:
    """max |h_d| > `ratio` × the layer's mean |h| (An et al. 2025). `abs_max` [layer, dim], `mean_abs` [layer].

    The strength is the ratio itself; a layer of zeros alone has none.
    """
    times = quotient(abs_max, mean_abs[:, None])
    return Flags(times > ratio, times)


def rudman(variances: np.ndarray, factor: float) -> Flags:
    """Variance of a dimension of sentence vectors >= `factor` × the mean variance over dimensions (Rudman et al. 2023)."""
    times = quotient(variances, variances.mean(axis=1, keepdims=True))
    return Flags(times >= factor, times)


def timkey(contributions: np.ndarray, share: float, least_cosine: float) -> Flags:
    """A dimension adds at least `share` of the layer's mean cosine (Timkey and van Schijndel 2021, section 3).

    `contributions` [layer, dim] sum to the mean cosine of the layer; below `least_cosine` there is no anisotropy to share.
    """
    cosine = contributions.sum(axis=1, keepdims=True)
    part = quotient(contributions, cosine)
    return Flags((part >= share) & (cosine >= least_cosine), part)


def macocco(medians: np.ndarray, high: np.ndarray) -> Flags:
    """Median |h_d| > the quantile `high` [layer] of all |h| of the layer (Macocco et al. 2025); NaN medians never."""
    times = quotient(medians, high[:, None])
    return Flags(times > 1, times)


def he_parts(energy: np.ndarray) -> np.ndarray:
    """What every dimension adds to He's kurtosis − 1 [layer, dim], of sums of squares `energy` [layer, dim].

    s_j = energy_j / mean(energy); the parts (s_j − 1)² / width sum to the variance of s (He et al. 2024).
    """
    relative = quotient(energy, energy.mean(axis=1, keepdims=True))
    return np.asarray((relative - 1) ** 2 / energy.shape[1])


def he(energy: np.ndarray, least: float, share: float) -> Flags:
    """The dimensions that carry `share` of He's kurtosis − 1, in layers where the kurtosis is at least `least`.

    Only dimensions larger than the mean count: a small one adds 1 / width at most.
    """
    parts = he_parts(energy)
    larger = energy > energy.mean(axis=1, keepdims=True)
    high = parts.sum(axis=1, keepdims=True) + 1 >= least
    return Flags(carriers(np.where(larger, parts, 0), share, parts.sum(axis=1)) & high, parts)


def bondarenko(fourth: np.ndarray, least: float, share: float) -> Flags:
    """The dimensions that carry `share` of Bondarenko's kurtosis, in layers where it is at least `least`.

    `fourth` [layer, dim] are the parts of the kurtosis of all entries, mean over sequences; a layer that was not tapped
    holds NaN.
    """
    total = fourth.sum(axis=1)
    high = np.nan_to_num(total)[:, None] >= least
    return Flags(carriers(np.nan_to_num(fourth), share, np.nan_to_num(total)) & high, fourth)


def carriers(parts: np.ndarray, share: float, total: np.ndarray) -> np.ndarray:
    """The fewest dimensions whose `parts` [layer, dim] come to `share` of `total` [layer], as bool [layer, dim]."""
    order = np.argsort(-parts, axis=1, kind="stable")
    ordered = np.take_along_axis(parts, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    wanted = (before < share * total[:, None]) & (ordered > 0)
    found = np.zeros(parts.shape, dtype=bool)
    np.put_along_axis(found, order, wanted, axis=1)
    return found


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
