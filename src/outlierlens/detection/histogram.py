"""Quantiles in constant memory: counts in signed logarithmic bins, which merge exactly.

histogram = LogHistogram(dim=768)
histogram.add(values)                            # float32 [row, dim]
histogram.quantiles([0.5, 0.99])                 # [dim, share], relative error at most `QUANTILE_ERROR`
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.detection.scratch import Scratch
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

MANTISSA_BITS = 5
LOWEST_EXPONENT, HIGHEST_EXPONENT = -12, 20
HALF = (HIGHEST_EXPONENT - LOWEST_EXPONENT) << MANTISSA_BITS  # bins of one sign; the first holds all that is smaller
BINS = 2 * HALF
BIN_BYTES = 4
# The widest bin is [1, 1 + 1/32); its harmonic centre is off by at most width / (sum of the edges).
QUANTILE_ERROR = 1 / (2 ** (MANTISSA_BITS + 1) + 1)
SMALLEST = 2.0**LOWEST_EXPONENT  # smaller magnitudes are read as 0
# On a CPU bins are many and caches small: with enough rows, dimensions are counted some at a time.
FEW_ROWS = 512
COLUMNS_AT_ONCE = 16  # as many as int16 has room for: places in their counts go up to 16 * BINS − 1
_SHIFT = 7 - MANTISSA_BITS
_FIRST_CODE = ((127 + LOWEST_EXPONENT) << MANTISSA_BITS) - 1


class LogHistogram:
    """Counts of float32 values in signed logarithmic bins, for each of some columns.

    A bin is what the sign, the exponent and the first five bits of the mantissa say: 1/32 of an octave from 2^-12 to
    2^20. Smaller magnitudes count as 0, larger ones fall into the last bin.

    Attributes:
        columns: int64, the dimensions counted, or None for all of them.
        counts: int32 [column * BINS], ascending in value.
        magnitudes: int64 [HALF], |h| over all dimensions; kept apart only where `columns` leaves some out.
    """

    def __init__(self, dim: int, columns: "Tensor | None" = None, device: Any = "cpu"):
        import torch

        self.dim, self.columns = dim, columns
        kept = dim if columns is None else len(columns)
        self.counts = torch.zeros(kept * BINS, dtype=torch.int32, device=device)
        self.magnitudes = None if columns is None else torch.zeros(HALF, dtype=torch.int64, device=device)
        self._offset = torch.arange(kept, dtype=torch.int32, device=device) * BINS + HALF
        self._one = torch.ones((), dtype=torch.int32, device=device)

    def add(self, values: "Tensor") -> None:
        """Count float32 [row, dim]."""
        self.count(self.codes(values, Scratch()))

    def codes(self, values: "Tensor", scratch: Scratch, out: "Tensor | None" = None) -> "Tensor":
        """What `count` takes for float32 [row, dim]: int16 [row, column], from −HALF up to HALF − 1, into `out` if given."""
        import torch

        bits = scratch.take("bits", values.shape, torch.int32, values.device)
        torch.bitwise_right_shift(values.view(torch.int32), 16, out=bits)
        # Sign, exponent and seven bits of the mantissa are all that a bin needs.
        high = scratch.take("high", values.shape, torch.int16, values.device).copy_(bits)
        every = self.columns is None
        code = out if every and out is not None else scratch.take("code", values.shape, torch.int16, values.device)
        torch.bitwise_and(high, 0x7FFF, out=code).bitwise_right_shift_(_SHIFT).sub_(_FIRST_CODE).clamp_(0, HALF - 1)
        if self.columns is not None and self.magnitudes is not None:
            self.magnitudes += torch.bincount(code.view(-1), minlength=HALF)
            high = high.index_select(1, self.columns)
            code = torch.index_select(code, 1, self.columns, out=out)
        return code.bitwise_xor_(high.bitwise_right_shift_(15))  # with −1 for negative values: turns code c into −c − 1

    def count(self, codes: "Tensor") -> None:
        """Count codes [row, column]."""
        import torch

        if codes.device.type != "cpu" or len(codes) < FEW_ROWS:
            index = (codes + self._offset).long().reshape(-1)
            self.counts.scatter_add_(0, index, self._one.expand(index.numel()))
            return
        offset = (torch.arange(COLUMNS_AT_ONCE) * BINS + HALF).short()
        for start in range(0, codes.shape[1], COLUMNS_AT_ONCE):
            part = codes[:, start : start + COLUMNS_AT_ONCE]
            size = part.shape[1] * BINS
            index = (part + offset[: part.shape[1]]).reshape(-1)
            self.counts[start * BINS : start * BINS + size] += torch.bincount(index, minlength=size).int()

    def all_magnitudes(self) -> "Tensor":
        """Counts of |h| over all dimensions, int64 [HALF]."""
        if self.magnitudes is not None:
            return self.magnitudes
        by_bin = self.counts.view(-1, BINS).sum(0)
        return by_bin[HALF:] + by_bin[:HALF].flip(0)

    def narrowed(self, columns: "Tensor") -> "LogHistogram":
        """The same counts for `columns` only, which must be among those kept."""
        import torch

        new = LogHistogram(self.dim, columns, self.counts.device)
        place = columns if self.columns is None else torch.searchsorted(self.columns, columns)
        new.counts = self.counts.view(-1, BINS)[place].reshape(-1)
        new.magnitudes = self.all_magnitudes().clone()
        return new

    def merged(self, other: "LogHistogram") -> "LogHistogram":
        """Counts of both; raises BadInput where they count different columns."""
        import torch

        kept = [None if h.columns is None else h.columns.tolist() for h in (self, other)]
        if self.dim != other.dim or kept[0] != kept[1]:
            raise BadInput("histograms of different dimensions cannot be merged; narrow both to the same columns first")
        new = LogHistogram.__new__(LogHistogram)
        new.__dict__.update(self.__dict__ | {"counts": torch.add(self.counts, other.counts)})
        if self.magnitudes is not None:
            new.magnitudes = self.magnitudes + other.all_magnitudes()
        return new

    def quantiles(self, shares: Sequence[float]) -> "Tensor":
        """Value at rank ceil(share * n) of each column, float64 [column, share]; NaN without values."""
        import torch

        running = self.counts.view(-1, BINS).cumsum(1)  # int64 [column, bin]
        total = running[:, -1:]
        rank = (torch.tensor(shares, dtype=torch.float64, device=running.device) * total).ceil().long().clamp(min=1)
        found = torch.searchsorted(running, rank).clamp(max=BINS - 1)
        return torch.where(total > 0, bin_values().to(running.device)[found], math.nan)

    def median_magnitude(self) -> float:
        """Median of |h| over all values and dimensions; NaN without values."""
        return self.magnitude_quantile(0.5)

    def magnitude_quantile(self, share: float) -> float:
        """|h| at rank ceil(share * n) over all values and dimensions; NaN without values."""
        running = self.all_magnitudes().cumsum(0).cpu().numpy()
        if not running[-1]:
            return math.nan
        rank = max(1, math.ceil(share * int(running[-1])))
        return float(bin_values()[HALF + min(int(np.searchsorted(running, rank)), HALF - 1)])

    def magnitude_quantiles(self, share: float) -> "Tensor":
        """|h| at rank ceil(share * n) of each column, float64 [column]; NaN without values."""
        import torch

        by_bin = self.counts.view(-1, BINS)
        running = (by_bin[:, HALF:] + by_bin[:, :HALF].flip(1)).cumsum(1)  # int64 [column, HALF]
        total = running[:, -1:]
        rank = (share * total.double()).ceil().long().clamp(min=1)
        found = torch.searchsorted(running, rank).clamp(max=HALF - 1).squeeze(1)
        return torch.where(total.squeeze(1) > 0, bin_values().to(running.device)[HALF + found], math.nan)


def bin_values() -> "Tensor":
    """The value that stands for each bin, float64 [BINS]: the harmonic centre, with the same relative error to both edges."""
    import torch

    edges = (
        (torch.arange(_FIRST_CODE, _FIRST_CODE + HALF + 1, dtype=torch.int32) << 16 + _SHIFT)
        .view(torch.float32)
        .double()
    )
    centre = 2 * edges[:-1] * edges[1:] / (edges[:-1] + edges[1:])
    centre[0] = 0.0
    return torch.cat([-centre.flip(0), centre])
