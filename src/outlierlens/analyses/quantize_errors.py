"""Where the error of rounding lies: at each linear by itself, and at each block's output.

    errors = StateErrors(loaded, texts, stack=None, max_length=128, batch_size=16)    # keeps the intact states of a few texts
    errors.at_linears(recipe, dims, places)      # [place, 6]
    with rounded(loaded, recipe):
        error = errors.at_blocks()               # float64 [layer, dim], Σ (h' − h)² over tokens
    error.sum(1) / errors.power.sum(1)           # relative squared error [layer]

At a linear it is Σ (rounded − x)² / Σ x²: over all its weights, or over all its inputs at all tokens that are no padding.
At a block's output it is that of the running model, against the intact one's on the same tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.analyses.quantize_places import Place, by_text, looked_at
from outlierlens.analyses.quantize_schemes import Recipe, Scheme, fake_quantize, fake_quantize_inputs
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import BadInput
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, tapped
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of

if TYPE_CHECKING:
    from torch import Tensor

MAX_KEPT_BYTES = 4_000_000_000


class StateErrors:
    """A few texts as the model reads them, and its hidden states as they were when this was made, to compare with.

    Attributes:
        power: Σ h² over tokens that are no padding, float64 [layer, dim].

    Raises:
        BadInput: the states would not fit into memory, or texts do not reach the stream.
    """

    def __init__(self, loaded: LoadedModel, texts: Data, *, stack: str | None, max_length: int, batch_size: int):
        self.loaded, self.bound = loaded, loaded.stack(stack)
        self.reading = reading_of(loaded, texts, max_length)
        if self.bound.name not in [stack.name for stack in self.reading.stacks]:
            raise BadInput(
                f"stream {self.bound.name!r} needs inputs that {texts.plural} do not give; name another --stack"
            )
        self.batches: list[Batch] = list(self.reading.batches(texts, batch_size=batch_size))
        self._intact = [self._states(batch) for batch in self.batches]  # [batch][layer][token, dim]
        self.power = np.sum([[_power(states) for states in layers] for layers in self._intact], axis=0)

    def at_blocks(self) -> np.ndarray:
        """Σ (h' − h)² of the model as it is now, float64 [layer, dim]."""
        error = np.zeros_like(self.power)
        for batch, intact in zip(self.batches, self._intact, strict=True):
            for layer, (before, after) in enumerate(zip(intact, self._states(batch), strict=True)):
                error[layer] += _power(after - before)
        return error

    def at_linears(self, recipes: Sequence[Recipe], dims: tuple[int, ...], places: Sequence[Place]) -> np.ndarray:
        """The error at every place in the intact model, float64 [recipe, place, 6]; NaN for what a scheme does not round.

        Of weights, of weights with `dims` kept, share of the former in the columns or rows of `dims`; likewise of inputs.
        """
        schemes = tuple(dict.fromkeys(recipe.inputs for recipe in recipes if recipe.inputs is not None))
        sums = self._inputs(schemes, dims, places) if schemes else {}
        found = np.full((len(recipes), len(places), 6), np.nan)
        for row, recipe in zip(found, recipes, strict=True):
            for values, place in zip(row, places, strict=True):
                if recipe.weights is not None:
                    values[:3] = weight_error(place, recipe.weights, dims)
                if recipe.inputs is not None:
                    power, error, kept = (float(one.sum()) for one in sums[recipe.inputs, place])
                    there = float(sums[recipe.inputs, place][1, list(dims)].sum()) if place.reads else 0.0
                    values[3:] = _over(error, power), _over(kept, power), _over(there, error)
        return found

    def _inputs(
        self, schemes: Sequence[Scheme], dims: tuple[int, ...], places: Sequence[Place]
    ) -> dict[tuple[Scheme, Place], np.ndarray]:
        """Σ x², Σ (rounded − x)², the same with `dims` kept: of each linear's inputs [3, in], in the intact model."""
        import torch

        sums: dict[tuple[Scheme, Place], np.ndarray] = {}
        valid: list[Tensor] = []

        def look(place: Place, reads: "Tensor") -> None:
            states, mask = by_text(reads, valid, self.bound)
            counted = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device) if mask is None else mask
            exempt = place.part_of(dims) if place.reads else None
            for scheme in schemes:
                error = kept = _squares((fake_quantize_inputs(states, scheme, mask) - states)[counted]).sum(0)
                if exempt is not None:
                    rounded = fake_quantize_inputs(states, scheme, mask, exempt=exempt[0])
                    kept = _squares((rounded - states)[counted]).sum(0)
                found = torch.stack([_squares(states[counted]).sum(0), error, kept]).cpu().numpy()
                sums[scheme, place] = sums.get((scheme, place), 0.0) + found

        with looked_at(self.loaded, places, look):
            for batch in self.batches:
                valid[:] = [batch.valid]
                self.reading(batch)
        return sums

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


def weight_error(place: Place, scheme: Scheme, dims: Sequence[int]) -> tuple[float, float, float]:
    """(relative squared error, the same with `dims` kept, share of the error in the columns or rows of `dims`)."""
    import torch

    weight, mine = place.weight(), place.part_of(dims)
    error = _squares(fake_quantize(weight, scheme) - weight)
    power = float(weight.float().square().sum(dtype=torch.float64))
    total = float(error.sum())
    if mine is None:
        return _over(total, power), _over(total, power), 0.0
    kept = float(_squares(fake_quantize(weight, scheme, exempt=mine) - weight).sum())
    there = float((error[:, mine[0]] if place.reads else error[mine[:, 0]]).sum())
    return _over(total, power), _over(kept, power), _over(there, total)


def _squares(values: "Tensor") -> "Tensor":
    return values.double().square()


def _power(states: "Tensor") -> np.ndarray:
    """Σ x² over tokens, float64 [dim]."""
    found: np.ndarray = _squares(states).sum(0).cpu().numpy()
    return found


def _over(part: float, whole: float) -> float:
    """Their ratio; 0 where both are 0."""
    return float(part / whole) if whole > 0 else 0.0 if part == 0 else float("inf")
