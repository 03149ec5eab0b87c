"""Memory for what is needed for a moment, kept from one moment to the next.

    scratch = Scratch()
    wide = scratch.take("wide", (rows, dim), torch.float64, values.device)

On a CPU, fresh pages for a few megabytes cost as much as the arithmetic on them.
"""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Scratch:
    """Tensors by name, each as large as the largest that was asked for."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any, device: Any) -> "Tensor":
        """A tensor with any values; it holds until `name` is taken again."""
        import torch

        if device.type != "cpu":  # there torch keeps memory itself
            return torch.empty(shape, dtype=dtype, device=device)
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < size or held.dtype != dtype:
            held = self._held[name] = torch.empty(size, dtype=dtype, device=device)
        return held[:size].view(shape)
