"""A loaded model's parameters as a checkpoint, so that the rules run on live weights too."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.checkpoints.base import Checkpoint, TensorInfo
from outlierlens.checkpoints.stored import Weights

if TYPE_CHECKING:
    from torch import nn


class LiveCheckpoint(Weights):
    """Named parameters of a model in memory; values are copied to float32 as they are read."""

    def __init__(self, model: "nn.Module", *, name: str, config: dict[str, Any]):
        super().__init__(_Parameters(model, name=name, config=config), rename=False)


class _Parameters(Checkpoint):
    """The parameters as they are, codes among them."""

    kind = "live"

    def __init__(self, model: "nn.Module", *, name: str, config: dict[str, Any]):
        from outlierlens.architectures import live_parameters

        self.name, self.config = name, config
        self._parameters = live_parameters(model)
        self.tensors = {
            key: TensorInfo(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.nbytes)
            for key, value in self._parameters.items()
        }
        self.total_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self.bytes_read = 0

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            self.bytes_read += self.tensors[name].nbytes
            yield name, self._parameters[name].detach().float().cpu().numpy()

    def read_rows(self, name: str, n_rows: int) -> Iterator[np.ndarray]:
        self.bytes_read += self.tensors[name].nbytes
        values = self._parameters[name].detach()
        rows = values.reshape(-1, values.shape[-1])
        for start in range(0, len(rows), n_rows):
            yield rows[start : start + n_rows].float().cpu().numpy()

    def take_rows(self, name: str, rows: Sequence[int]) -> np.ndarray:
        values = self._parameters[name].detach()
        picked = values.reshape(-1, values.shape[-1])[list(rows)]
        self.bytes_read += picked.nbytes
        return np.array(picked.float().cpu().numpy())
