"""The error at each linear by itself: of its weights, and of what it reads in the intact model.

    errors = local_errors(loaded, recipes, dims, places, texts, …)          # {recipe: a LinearError each place}

All are Σ (rounded − x)² / Σ x²: over all weights of the linear, or over all its inputs at all tokens that are no padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.data.texts import Data
from outlierlens.experiments.quantization.calibration import by_text
from outlierlens.experiments.quantization.places import Place
from outlierlens.experiments.quantization.result import LinearError
from outlierlens.experiments.quantization.rounding import fake_quantize, fake_quantize_inputs
from outlierlens.experiments.quantization.schemes import Recipe, Scheme
from outlierlens.models.hooks import edited_calls
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import reading_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """How texts are read: the stream, tokens of a text at most, texts of a forward pass."""

    stack: str | None
    max_length: int
    batch_size: int


@dataclass
class _Sums:
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


def _at(place: Place, recipe: Recipe, dims: tuple[int, ...], read: _Sums | None) -> LinearError:
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
) -> dict[tuple[Scheme, str], _Sums]:
    """Squared errors of what every linear reads, by column, over one pass of the intact model."""
    import torch

    sums: dict[tuple[Scheme, str], _Sums] = {}
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
            sums[scheme, place.name] = _Sums(*new)
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
