"""Super weights: the single weights behind the largest activations, found on one prompt (Yu et al. 2024).

found = super_weights(loaded, stack, "One short text.", settings)
[weight.place for weight in found.weights]

In each layer, k is where the MLP's last linear reads its largest |value| and j where it writes its largest. Where both are
above `super_spike`, weight [j, k] joins them. The first such layer's weight is removed and the prompt runs again, until
nothing spikes, or `super_rounds` are removed. A weight without which more than `super_left` of the layer's largest output is
left is put back, and its layer is left alone: where a whole column writes, no single weight is behind the spike.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.entries import rank_of, scaled
from outlierlens.experiments.detectors.linears import entries, last_linears
from outlierlens.experiments.detectors.settings import Settings
from outlierlens.experiments.detectors.super_weights import Spikes, SuperWeight, SuperWeights
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import TextReading

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Seen:
    """Spikes of one pass, and by layer the signed (input, output) at them and the input k at the token of the output."""

    spikes: Spikes
    peaks: tuple[tuple[float, float, float], ...]


def super_weights(
    loaded: LoadedModel, stack: BoundStack, prompt: str, settings: Settings, *, max_length: int = 128
) -> SuperWeights:
    """Search on `prompt`, removing what is found one by one; the model is as before afterwards.

    Raises:
        BadInput: the prompt has no token, or the model reads no text.
    """
    reading = TextReading(loaded, max_length)
    batch = next(reading.batches((prompt,), batch_size=1), None)
    if batch is None:
        raise BadInput(f"the tokenizer makes no token of the prompt {prompt!r}; give another")
    tokens = reading.words(reading.sides(batch)[stack.name][0][0].tolist())
    found: list[SuperWeight] = []
    refused: dict[int, str] = {}
    before = now = _look(loaded, stack, reading, batch)
    while True:
        spiking = [layer for layer in _spiking(now.spikes, settings.super_spike) if layer not in refused]
        if not spiking or len(found) == settings.super_rounds:
            break
        layer = spiking[0]
        row, column = now.spikes.row[layer], now.spikes.column[layer]
        removed = [(one.layer, one.row, one.column) for one in found]
        if (layer, row, column) in removed:
            refused[layer] = f"{layer} ([{row}, {column}] is removed already)"
            continue
        read, written, there = now.peaks[layer]
        position = now.spikes.write_position[layer]
        with scaled(loaded, stack, removed, 0.0):
            weight = entries(loaded, stack, layer)
            value, rank = float(weight[row, column]), rank_of(weight, row, column)
            with scaled(loaded, stack, [(layer, row, column)], 0.0):
                after = _look(loaded, stack, reading, batch)
        left = float(after.spikes.written[layer])
        if left > settings.super_left * abs(written):
            refused[layer] = f"{layer} ({left / abs(written):.0%} is left without [{row}, {column}])"
            continue
        now = after
        share = value * there / written
        found.append(
            SuperWeight(layer, row, column, value, rank, read, written, position, tokens[position], share, left)
        )
    return SuperWeights(
        prompt, settings.super_spike, tuple(found), _why(spiking, refused, settings), before.spikes, now.spikes
    )


def _spiking(spikes: Spikes, spike: float) -> list[int]:
    """Layers whose input and output are both above `spike`."""
    return np.flatnonzero((spikes.read > spike) & (spikes.written > spike)).tolist()


def _why(spiking: list[int], refused: dict[int, str], settings: Settings) -> str:
    """Why the search ended."""
    above = f"above {settings.super_spike:g}"
    if spiking:
        layers = ", ".join(map(str, spiking))
        return f"{settings.super_rounds} weights are removed, the limit; layers {layers} still spike {above}"
    if refused:
        return f"what still spikes {above} is no single weight's doing: layer {', '.join(refused.values())}"
    return f"no layer reads and writes {above}"


def _look(loaded: LoadedModel, stack: BoundStack, reading: TextReading, batch: Batch) -> _Seen:
    """One forward pass on the prompt."""
    rows: list[tuple[float, int, int, float, int, int]] = [(0.0, 0, 0, 0.0, 0, 0)] * stack.n_layers
    peaks = [(0.0, 0.0, 0.0)] * stack.n_layers

    def use(layer: int, read: "Tensor", written: "Tensor") -> None:
        into, out = (values.reshape(*batch.valid.shape, -1)[batch.valid].float() for values in (read, written))
        (at, column), (position, row) = (
            divmod(int(values.abs().argmax()), values.shape[1]) for values in (into, out)
        )  # [token, …]
        peaks[layer] = (float(into[at, column]), float(out[position, row]), float(into[position, column]))
        rows[layer] = (abs(peaks[layer][0]), column, at, abs(peaks[layer][1]), row, position)

    with last_linears(loaded, stack, use):
        reading(batch)
    read, column, at, written, row, position = zip(*rows, strict=True)
    return _Seen(Spikes(np.array(read), column, at, np.array(written), row, position), tuple(peaks))
