"""The error of each block's output while the model is rounded, against the intact model's on the same tokens.

watch = OutputError(loaded, texts, how)              # keeps the intact states of a few texts
with rounded(loaded, recipe):
    error = watch.measure()                          # float64 [layer, dim], Σ (h' − h)² over tokens
error.sum(1) / watch.power.sum(1)                    # relative squared error [layer]
"""

from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import BadInput
from outlierlens.experiments.quantization.local_error import Reading
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, tapped
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of

if TYPE_CHECKING:
    from torch import Tensor

MAX_KEPT_BYTES = 4_000_000_000


class OutputError:
    """Hidden states of the model as it was when this was made, to compare with.

    Attributes:
        power: Σ h² over tokens that are no padding, float64 [layer, dim].

    Raises:
        BadInput: the states would not fit into memory, or texts do not reach the stream.
    """

    def __init__(self, loaded: LoadedModel, texts: Data, how: Reading):
        self.loaded, self.bound = loaded, loaded.stack(how.stack)
        self.reading = reading_of(loaded, texts, how.max_length)
        if self.bound.name not in [stack.name for stack in self.reading.stacks]:
            raise BadInput(
                f"stream {self.bound.name!r} needs inputs that {texts.plural} do not give; name another --stack"
            )
        self.batches: list[Batch] = list(self.reading.batches(texts, batch_size=how.batch_size))
        self._intact = [self._states(batch) for batch in self.batches]  # [batch][layer][token, dim]
        self.power = np.sum([[_squares(states) for states in layers] for layers in self._intact], axis=0)

    def measure(self) -> np.ndarray:
        """Σ (h' − h)² of the model as it is now, float64 [layer, dim]."""
        error = np.zeros_like(self.power)
        for batch, intact in zip(self.batches, self._intact, strict=True):
            for layer, (before, after) in enumerate(zip(intact, self._states(batch), strict=True)):
                error[layer] += _squares(after - before)
        return error

    def _states(self, batch: Batch) -> list["Tensor"]:
        """Output of each block at the tokens that are no padding [layer][token, dim]."""
        kept: dict[int, Tensor] = {}

        def look(stack: BoundStack, layer: int, states: "Tensor") -> None:
            if layer == EMBEDDINGS:
                return
            check_padding(stack, layer, states, batch.valid)
            needed = int(batch.valid.sum()) * states.shape[-1] * self.bound.n_layers * 4 * len(self.batches)
            if needed > MAX_KEPT_BYTES:
                raise BadInput(
                    f"the intact states of the texts whose errors are measured would take {needed / 1e9:.1f} GB; use fewer "
                    f"(--error-texts) or shorter ones"
                )
            kept[layer] = states[batch.valid].float()

        with tapped(self.loaded.model, [self.bound], look):
            self.reading(batch)
        return [kept[layer] for layer in range(self.bound.n_layers)]


def _squares(states: "Tensor") -> np.ndarray:
    """Σ x² over tokens, float64 [dim]."""
    found: np.ndarray = states.double().square().sum(0).cpu().numpy()
    return found
