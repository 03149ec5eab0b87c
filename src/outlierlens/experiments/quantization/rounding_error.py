"""Where the error of rounding lies: at each linear by itself, and at each block's output.

    errors = local_errors(loaded, recipes, dims, places, texts, …)          # {recipe: a LinearError each place}
    watch = OutputError(loaded, texts, how)              # keeps the intact states of a few texts
    with rounded(loaded, recipe):
        error = watch.measure()                          # float64 [layer, dim], Σ (h' − h)² over tokens
    error.sum(1) / watch.power.sum(1)                    # relative squared error [layer]

At a linear it is Σ (rounded − x)² / Σ x²: over all its weights, or over all its inputs at all tokens that are no padding.
At a block's output it is that of the running model, against the intact one's on the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import BadInput
from outlierlens.experiments.quantization.places import Place, by_text
from outlierlens.experiments.quantization.result import LinearError
from outlierlens.experiments.quantization.schemes import Recipe, Scheme, fake_quantize, fake_quantize_inputs
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, edited_calls, tapped
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of

if TYPE_CHECKING:
    from torch import Tensor

MAX_KEPT_BYTES = 4_000_000_000


@dataclass(frozen=True)
class Reading:
    """How texts are read: the stream, tokens of a text at most, texts of a forward pass."""

    stack: str | None
    max_length: int
    batch_size: int


@dataclass
class _InputErrors:
    """Squares of one linear's inputs, and of their errors plain and with the dimensions kept, by column [in]."""

    power: np.ndarray
    error: np.ndarray
    kept: np.ndarray


def local_errors(
    loaded: LoadedModel,
    recipes: Sequence[Recipe],
    dims: tuple[int, ...],
    places: Sequence[Place],
    texts: Data,
    how: Reading,
) -> dict[str, tuple[LinearError, ...]]:
    """{name of a recipe: the error at every place}, with and without `dims` kept in high precision."""
    schemes = tuple(dict.fromkeys(recipe.inputs for recipe in recipes if recipe.inputs is not None))
    sums = _inputs(loaded, schemes, dims, places, texts, how)
    return {
        recipe.name: tuple(
            _at(place, recipe, dims, None if recipe.inputs is None else sums[recipe.inputs, place.name])
            for place in places
        )
        for recipe in recipes
    }


def _at(place: Place, recipe: Recipe, dims: tuple[int, ...], read: _InputErrors | None) -> LinearError:
    weight, kept, share = (float("nan"),) * 3
    if recipe.weights is not None:
        weight, kept, share = weight_error(place, recipe.weights, dims)
    inputs, inputs_kept, inputs_share = (float("nan"),) * 3
    if read is not None:
        power = read.power.sum()
        inputs, inputs_kept = _over(read.error.sum(), power), _over(read.kept.sum(), power)
        inputs_share = _over(read.error[list(dims)].sum(), read.error.sum()) if place.reads else 0.0
    return LinearError(
        place.layer, place.part, place.reads, place.writes, weight, kept, share, inputs, inputs_kept, inputs_share
    )


def weight_error(place: Place, scheme: Scheme, dims: Sequence[int]) -> tuple[float, float, float]:
    """(relative squared error, the same with `dims` kept, share of the error in the columns or rows of `dims`)."""
    import torch

    weight = place.weight()
    mine = list(dims) if place.reads or place.writes else []
    error = _squares(fake_quantize(weight, scheme) - weight)
    power = float(weight.float().square().sum(dtype=torch.float64))
    total = float(error.sum())
    if not mine:
        return _over(total, power), _over(total, power), 0.0
    axis = 1 if place.reads else 0
    exempt = torch.zeros([1 if place.reads else len(weight), weight.shape[1] if place.reads else 1], dtype=torch.bool)
    exempt.select(1 - axis, 0)[mine] = True
    kept = float(_squares(fake_quantize(weight, scheme, exempt=exempt.to(weight.device)) - weight).sum())
    there = float(error.index_select(axis, torch.tensor(mine, device=weight.device)).sum())
    return _over(total, power), _over(kept, power), _over(there, total)


def _inputs(
    loaded: LoadedModel,
    schemes: Sequence[Scheme],
    dims: tuple[int, ...],
    places: Sequence[Place],
    texts: Data,
    how: Reading,
) -> dict[tuple[Scheme, str], _InputErrors]:
    """Squared errors of what every linear reads, by column, over one pass of the intact model."""
    import torch

    sums: dict[tuple[Scheme, str], _InputErrors] = {}
    if not schemes:
        return sums
    bound = loaded.stack(how.stack)
    reading = reading_of(loaded, texts, how.max_length)
    valid: list[Tensor] = []

    def look(place: Place, reads: "Tensor") -> "Tensor":
        states, mask = by_text(reads, valid, bound)
        counted = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device) if mask is None else mask
        exempt = None
        if place.reads and dims:
            exempt = torch.zeros(states.shape[-1], dtype=torch.bool, device=states.device)
            exempt[list(dims)] = True
        for scheme in schemes:
            error = _squares((fake_quantize_inputs(states, scheme, mask) - states)[counted]).sum(0)
            kept = error
            if exempt is not None:
                rounded = fake_quantize_inputs(states, scheme, mask, exempt=exempt)
                kept = _squares((rounded - states)[counted]).sum(0)
            new = [one.cpu().numpy() for one in (_squares(states[counted]).sum(0), error, kept)]
            old = sums.get((scheme, place.name))
            if old is not None:
                new = [old.power + new[0], old.error + new[1], old.kept + new[2]]
            sums[scheme, place.name] = _InputErrors(*new)
        return reads

    looks = {place.module: (lambda reads, place=place: look(place, reads)) for place in places}
    with edited_calls(loaded.model, looks, {}):
        for batch in reading.batches(texts, batch_size=how.batch_size):
            valid[:] = [batch.valid]
            reading(batch)
    return sums


def _squares(values: "Tensor") -> "Tensor":
    return values.double().square()


def _over(part: float, whole: float) -> float:
    """Their ratio; 0 where both are 0."""
    return float(part / whole) if whole > 0 else 0.0 if part == 0 else float("inf")


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
        self.power = np.sum([[_power(states) for states in layers] for layers in self._intact], axis=0)

    def measure(self) -> np.ndarray:
        """Σ (h' − h)² of the model as it is now, float64 [layer, dim]."""
        error = np.zeros_like(self.power)
        for batch, intact in zip(self.batches, self._intact, strict=True):
            for layer, (before, after) in enumerate(zip(intact, self._states(batch), strict=True)):
                error[layer] += _power(after - before)
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


def _power(states: "Tensor") -> np.ndarray:
    """Σ x² over tokens, float64 [dim]."""
    found: np.ndarray = states.double().square().sum(0).cpu().numpy()
    return found
