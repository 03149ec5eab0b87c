"""What the linears of the intact model read: the largest |x| of every input, and which linears read one and the same tensor.

seen = calibrate(loaded, places, texts, stack=None, max_length=128, batch_size=16)
seen.largest["model.layers.0.mlp.gate_proj"]              # [in]
smooth_factors(places, seen, alpha=0.5)                   # SmoothQuant's scales: {name: [in]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Data
from outlierlens.experiments.quantization.places import Place
from outlierlens.models.hooks import edited_calls
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of

if TYPE_CHECKING:
    from torch import Tensor

FEW_TOKENS = 8  # enough to see which linears read the same tensor
LEAST = 1e-5  # of factors and of what they are made of: an input that is never used has no largest value


@dataclass(frozen=True)
class Calibration:
    """Inputs of the intact model.

    Attributes:
        largest: {name of a linear: [in], largest |x| over all tokens that are no padding}.
        shared: names of the linears that read one tensor, for each tensor.
    """

    largest: Mapping[str, "Tensor"]
    shared: tuple[tuple[str, ...], ...]


def by_text(reads: "Tensor", masks: Sequence["Tensor"], bound: BoundStack) -> tuple["Tensor", "Tensor | None"]:
    """What a linear reads as ([text, token, in], its valid tokens [text, token] or None where no mask fits).

    Blocks may carry [token, text, in] or all tokens in a row; without a mask that fits, a row of the input is a text.
    """
    if reads.ndim == 3:
        states = reads.transpose(0, 1) if bound.stack.token_first else reads
        return states, next((mask.bool() for mask in masks if mask.shape == states.shape[:2]), None)
    flat = reads.reshape(-1, reads.shape[-1])
    for mask in masks:
        if mask.numel() == len(flat):
            return flat.unflatten(0, tuple(mask.shape)), mask.bool()
    return flat[None], None


def shaped_like(other: "Tensor", states: "Tensor", bound: BoundStack) -> "Tensor":
    """`states` [text, token, n] in the order of axes of `other`: what `by_text` undid."""
    if other.ndim == 3 and bound.stack.token_first:
        return states.transpose(0, 1)
    return states.reshape(*other.shape[:-1], states.shape[-1])


def calibrate(
    loaded: LoadedModel, places: Sequence[Place], texts: Data, *, stack: str | None, max_length: int, batch_size: int
) -> Calibration:
    """Run the intact model on `texts` and look at what every linear reads."""
    import torch

    bound = loaded.stack(stack)
    reading = reading_of(loaded, texts, max_length)
    largest: dict[str, Tensor] = {}
    valid: list[Tensor] = []

    def look(name: str, reads: "Tensor") -> "Tensor":
        states, mask = by_text(reads, valid, bound)
        size = states.abs() if mask is None else states.abs().masked_fill(~mask[..., None], 0.0)
        top = size.flatten(0, 1).amax(0).float()
        largest[name] = torch.maximum(largest[name], top) if name in largest else top
        return reads

    looks = {place.module: (lambda reads, name=place.name: look(name, reads)) for place in places}
    with edited_calls(loaded.model, looks, {}):
        for batch in reading.batches(texts, batch_size=batch_size):
            valid[:] = [batch.valid]
            reading(batch)
    return Calibration(largest, _shared(loaded, places, texts))


def _shared(loaded: LoadedModel, places: Sequence[Place], texts: Data) -> tuple[tuple[str, ...], ...]:
    """Names of the linears by the tensor that they read, seen on the first tokens of one text."""
    reading = reading_of(loaded, texts, FEW_TOKENS)
    alive: list[Tensor] = []  # so that no two tensors of the pass have one address
    names: dict[tuple[int, int], list[str]] = {}

    def look(name: str, reads: "Tensor") -> "Tensor":
        alive.append(reads)
        names.setdefault((reads.data_ptr(), reads.numel()), []).append(name)
        return reads

    looks = {place.module: (lambda reads, name=place.name: look(name, reads)) for place in places}
    (batch,) = reading.batches(texts.first(1), batch_size=1, max_length=FEW_TOKENS)
    with edited_calls(loaded.model, looks, {}):
        reading(batch)
    return tuple(dict.fromkeys(tuple(dict.fromkeys(group)) for group in names.values()))


def smooth_factors(places: Sequence[Place], seen: Calibration, alpha: float) -> dict[str, "Tensor"]:
    """SmoothQuant's scale of every input of the linears that read the stream: {name: [in]}.

    s_j = max|X_j|^α / max|W_j|^(1 − α) (Xiao et al. 2023, eq. 4), at least 1e-5; W_j runs over all linears that read the same
    tensor, so they share one scale. What is read is divided by it, and the weights' columns are multiplied.
    """
    import torch

    readers = {place.name: place for place in places if place.reads}
    factors: dict[str, Tensor] = {}
    for group in seen.shared:
        mine = [readers[name] for name in group if name in readers]
        if not mine or any(place.name in factors for place in mine):
            continue
        weights = torch.stack([place.weight().float().abs().amax(0) for place in mine]).amax(0).clamp(min=LEAST)
        reads = torch.stack([seen.largest[place.name] for place in mine]).amax(0)
        scale = (reads**alpha / weights ** (1 - alpha)).clamp(min=LEAST)
        factors |= {place.name: scale for place in mine}
    return factors
