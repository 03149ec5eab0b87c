"""Which entries of a token vector stand out among its others.

row, column = beyond(values, wide, wide * wide, n_sigma=3.0)      # |h_d − mean(h)| >= 3 std(h)
smallest, largest = lone_extremes(values)                         # columns, one for each row that has one
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.errors import USE_FLOAT32, BadInput

if TYPE_CHECKING:
    from torch import Tensor

NEAR_MEAN = 2.0**-6  # variance over squared mean, below which E[h²] − E[h]² is not precise enough


def beyond(values: "Tensor", wide: "Tensor", square: "Tensor", n_sigma: float) -> tuple["Tensor", "Tensor"]:
    """(row, column) of |h_d − mean(h)| >= n_sigma std(h), of float32 [row, dim].

    `wide` is `values` in float64 and `square` its square. A vector without spread has none.

    Raises:
        BadInput: a value is NaN or infinite.
    """
    import torch

    mean = wide.mean(1, keepdim=True)
    variance = square.mean(1, keepdim=True) - mean * mean
    far = (variance < NEAR_MEAN * mean * mean).squeeze(1)  # here the difference has lost digits
    if far.any():
        variance[far] = (wide[far] - mean[far]).square().mean(1, keepdim=True)
    if not torch.isfinite(variance).all():
        bad = int((~torch.isfinite(variance)).sum())
        raise BadInput(f"{bad} of {len(values)} token vectors hold NaN or infinity; {USE_FLOAT32}")
    spread = (n_sigma * variance.sqrt()).masked_fill_(variance == 0, math.inf)
    # The float32 values at these bounds or beyond them are those that are beyond the float64 bounds.
    high, low = mean + spread, mean - spread
    up, down = high.float(), low.float()
    up = torch.where(up < high, up.nextafter(torch.full_like(up, math.inf)), up)
    down = torch.where(down > low, down.nextafter(torch.full_like(down, -math.inf)), down)
    quick, up, down = _quick(values), _quick(up), _quick(down)
    found = (quick >= up) | (quick <= down)
    if values.device.type != "cpu":
        row, column = found.nonzero(as_tuple=True)
        return row, column
    place = torch.from_numpy(np.flatnonzero(found))
    return place // values.shape[1], place % values.shape[1]


def lone_extremes(values: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Columns of the smallest and of the largest entries of [row, dim], without rows where another entry equals them."""
    import torch

    first = torch.arange(len(values), device=values.device) * values.shape[1]
    found = []
    for name, extreme, last in (("argmin", torch.amin, math.inf), ("argmax", torch.amax, -math.inf)):
        column = torch.as_tensor(getattr(_quick(values), name)(1), device=values.device)
        place, entries = first + column, values.view(-1)
        value = entries[place]
        entries.index_fill_(0, place, last)
        found.append(column[extreme(values, 1) != value])
        entries.index_copy_(0, place, value)
    return found[0], found[1]


def _quick(values: "Tensor") -> Any:
    """The same numbers in NumPy on a CPU, where it compares and finds them several times faster than torch."""
    return values.numpy() if values.device.type == "cpu" else values
