"""Which powers of two a model needs, from what was seen of it.

stream_exponent(seen, "fp16", margin=4)              # -1: half of the stream has room
for pair, exponents in pair_exponents(seen, "fp16", margin=4): ...
"""

import math
from typing import TYPE_CHECKING

from outlierlens.experiments.repair.check import STREAM, WRITES, Seen
from outlierlens.experiments.repair.options import LIMITS
from outlierlens.experiments.repair.pairs import Pair, room

if TYPE_CHECKING:
    from torch import Tensor

    Factors = list[tuple[Pair, Tensor]]  # exponents [channel]


def stream_exponent(seen: Seen, fit: str, margin: int) -> int:
    """The exponent ≤ 0 of the stream's factor with which all that was seen of it has room in the format."""
    largest = seen.of(*STREAM, *WRITES)
    return -max(0, math.ceil(math.log2(largest * margin / LIMITS[fit]))) if fit in LIMITS and largest > 0 else 0


def pair_exponents(seen: Seen, fit: str, margin: int) -> "Factors":
    """Every pair that lacks room in the format, with the exponents that give it."""
    if fit not in LIMITS:
        return []
    found = [(pair, room(pair, seen.peaks, LIMITS[fit] / margin)) for pair in seen.pairs]
    return [(pair, exponents) for pair, exponents in found if exponents.any()]


def balanced_exponents(seen: Seen, cap: float, share: float) -> "Factors":
    """Neurons whose largest input is more than `cap` times that of the median neuron of their linear.

    In logarithms they come down by `share` of what they are above that: the rest stays with the inputs, so that the weights
    behind them grow by less (SmoothQuant's α; Xiao et al. 2023, eq. 4).
    """
    import torch

    found = []
    for pair, top in seen.inputs:
        # [expert, neuron] of packed experts: each has a median of its own.
        rows = top.double().reshape(pair.takes[0].channel.shape[0] if pair.packed else 1, -1)
        most = cap * rows.median(1, keepdim=True).values
        above = torch.where(most > 0, rows / most.clamp(min=1e-30), 1.0).flatten()
        exponents = -torch.floor(share * torch.log2(above.clamp(min=1))).int()
        if exponents.any():
            found.append((pair, exponents))
    return found
