"""A checkpoint of plain arrays, whose copies in other number formats and whose edits are one call away.

whole = Memory({"encoder.layer.0.output.LayerNorm.weight": values}, {"model_type": "bert"})
whole.rounded("BF16")                      # what a bfloat16 copy reads as
whole.edited("encoder. …weight", (3,), 7.0)
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from outlierlens.analyses.fingerprint_values import WORDS, round_to
from outlierlens.checkpoints import Checkpoint, TensorInfo


class Memory(Checkpoint):
    """Arrays by name; `dtype` is the word under which they claim to be stored."""

    def __init__(self, arrays: dict[str, np.ndarray], config: dict[str, Any], dtype: str = "F32", kind: str = "memory"):
        self.arrays, self.config, self.dtype, self.kind = arrays, config, dtype, kind
        self.name = kind
        self.tensors = {name: TensorInfo(dtype, value.shape, 4 * value.size) for name, value in arrays.items()}
        self.total_bytes, self.bytes_read = sum(info.nbytes for info in self.tensors.values()), 0

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            self.bytes_read += self.tensors[name].nbytes
            yield name, np.array(self.arrays[name], dtype=np.float32)

    def with_arrays(self, arrays: dict[str, np.ndarray], dtype: str = "") -> "Memory":
        return Memory(arrays, dict(self.config), dtype or self.dtype, self.kind)

    def rounded(self, dtype: str) -> "Memory":
        rounded = {name: round_to(value, WORDS[dtype]).astype(np.float32) for name, value in self.arrays.items()}
        return self.with_arrays(rounded, dtype)

    def edited(self, name: str, index: tuple[int, ...], value: float) -> "Memory":
        changed = self.arrays[name].copy()
        changed[index] = value
        return self.with_arrays({**self.arrays, name: changed})


def of_model(family: str, head: str = "", seed: int = 0) -> Memory:
    """A tiny random model of tests/architectures.py as plain arrays."""
    from architectures import FAMILIES, build

    model = build(FAMILIES[family], head, seed)
    arrays = {name: value.detach().float().numpy() for name, value in model.state_dict().items()}
    return Memory(arrays, model.config.to_dict())
