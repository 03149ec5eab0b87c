"""The settings of rounding as conditions: a scheme on the whole model, and with something kept or smoothed; their errors.

    model = RoundingSettings(loaded, texts, QuantizeOptions(), calibration)
    study.measure(model.conditions(recipe))      # all rounded, outliers kept, random sets kept, large inputs kept, smoothed

    errors = StateErrors(loaded, texts, stack=None, max_length=128, batch_size=16)    # keeps the intact states of a few texts
    with rounded(loaded, recipe):
        error = errors.at_blocks()               # float64 [layer, dim], Σ (h' − h)² over tokens
    error.sum(1) / errors.power.sum(1)           # relative squared error [layer]

The error is that of the running model, against the intact one on the same tokens.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.study import Condition
from outlierlens.analyses.ablate_sets import found_dims
from outlierlens.analyses.quantize_places import (
    calibrate,
    cast_notes,
    find_places,
    smooth_factors,
    without_foreign_readers,
)
from outlierlens.analyses.quantize_rounding import Keeping, NoiseDraws, Rounding, rounded
from outlierlens.analyses.quantize_schemes import SchemePair
from outlierlens.architectures import BoundStack
from outlierlens.data.texts import Batch, Data
from outlierlens.detection.targets import named_dims
from outlierlens.errors import BadInput
from outlierlens.models.forward import check_padding
from outlierlens.models.hooks import EMBEDDINGS, tapped
from outlierlens.models.inputs import reading_of, row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND
from outlierlens.tasks.base import Task
from outlierlens.tasks.choice import make_task, vector_task

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.analyses.quantize import QuantizeOptions

ERROR_TEXTS = 8  # whose hidden states are compared, block by block
MAX_KEPT_BYTES = 4_000_000_000
MOST_SEEN = 8  # dimensions that are taken from activations where the weights name none
ROUNDED, KEPT, RANDOM = "all quantized", "outliers kept", "random kept"
MIXED, SMOOTHED = "large inputs kept", "smoothed"  # LLM.int8's decomposition; SmoothQuant


class RoundingSettings:
    """A model, its task, its outliers, and what is done to it in every setting."""

    def __init__(self, loaded: LoadedModel, texts: Data, options: "QuantizeOptions", calibration: Data):
        self.loaded, self.options, self.stack = loaded, options, loaded.stack(options.stack)
        self.max_length = row_limit(loaded, texts, options.task.max_length)
        reading: Any = {"stack": self.stack.name, "max_length": self.max_length, "batch_size": options.task.batch_size}
        named = (
            found_dims(loaded, self.stack, calibration, FIND, options.task, most=MOST_SEEN)
            if options.dims == FIND
            else named_dims(loaded, self.stack, options.dims)
        )
        self.dims, self.named_by = tuple(sorted(named.dims)), named.by
        how = replace(options.task, seed=options.seed)
        how = vector_task(loaded, how) if texts.plural == "texts" else how
        self.task: Task = make_task(loaded, texts, how)
        places = find_places(loaded, self.stack.name)
        self.seen = calibrate(loaded, places, calibration, **reading)
        # A linear that no text reaches reads nothing that could be measured.
        self.places = without_foreign_readers(
            tuple(place for place in places if place.name in self.seen.largest), self.seen.shared
        )
        self.factors: dict[str, Tensor] = {}
        if options.alpha is not None and any(recipe.inputs is not None for recipe in options.schemes):
            self.factors = smooth_factors(self.places, self.seen, options.alpha)
        self.width = stream_width(loaded.model, self.stack)
        self.random = random_sets(
            self.width, len(self.dims), n=options.n_random, seed=options.seed, other_than=self.dims
        )
        self.noise = NoiseDraws(loaded, self.stack, self.task, options.noise_draws, options.seed)
        self.states = StateErrors(loaded, texts.first(ERROR_TEXTS), **reading)
        self.notes = [*named.notes, *self.task.notes, *self._remarks()]
        self.identity = {
            "task": asdict(how), "stack": self.stack.name, "dims": list(self.dims), "threshold": options.threshold,
            "smooth": options.alpha, "calibration": calibration.digest, "noise": options.noise_draws,
            "seed": options.seed, "error texts": ERROR_TEXTS,
        }  # fmt: skip

    def conditions(self, recipe: SchemePair) -> list[Condition]:
        """A scheme in all settings."""
        found = [(ROUNDED, Keeping()), (KEPT, Keeping(self.dims)), *((RANDOM, Keeping(dims)) for dims in self.random)]
        if recipe.inputs is not None and self.options.threshold is not None:
            found.append((MIXED, Keeping(threshold=self.options.threshold)))
        if recipe.inputs is not None and self.factors:
            found.append((SMOOTHED, Keeping(factors=self.factors)))
        layers = range(self.stack.n_layers)
        errors_of = {0, 1, 2} if self.random else {0, 1}  # the first random set's too
        return [
            Condition(
                setting, f"{recipe.name}, {setting}", dict.fromkeys(layers, keeping.dims),
                partial(rounded, self.loaded, recipe, keeping, stack=self.stack.name, places=self.places),
                f"{recipe.name}, {setting} {i}", self._sizes, partial(self._inside, i in errors_of),
            )
            for i, (setting, keeping) in enumerate(found)
        ]  # fmt: skip

    def _inside(self, with_errors: bool, model: Rounding) -> dict[str, Any]:
        """What is measured beside the values: those with noise [draw, text], and errors [layer, dim]."""
        return {
            "noisy": [one.tolist() for one in self.noise.repeats()],
            "errors": self.states.at_blocks().tolist() if with_errors else [],
        }  # fmt: skip

    def _sizes(self, model: Rounding) -> dict[str, Any]:
        """How much is rounded."""
        return {"kept": model.kept, "n_linears": model.n_linears, "n_weights": model.n_weights}

    def _remarks(self) -> Iterator[str]:
        """What a reader of the numbers should know."""
        if self.task.n_texts < 2:
            yield "one text: there is no interval, for nothing can be resampled"
        if any(module.endswith("()") for module in self.stack.stack.last_linear):
            yield "packed experts are bare parameters, not linears: they stay as they are"
        yield from cast_notes(self.places)


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
        self._intact = loaded.run(partial(self._states, batch) for batch in self.batches)  # [batch][layer][token, dim]
        self.power = np.sum([[_power(states) for states in layers] for layers in self._intact], axis=0)

    def at_blocks(self) -> np.ndarray:
        """Σ (h' − h)² of the model as it is now, float64 [layer, dim]."""
        error = np.zeros_like(self.power)
        now = self.loaded.run(partial(self._states, batch) for batch in self.batches)
        for states, intact in zip(now, self._intact, strict=True):
            for layer, (before, after) in enumerate(zip(intact, states, strict=True)):
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
                    f"the intact states of the texts whose errors are measured would take {needed / 1e9:.1f} GB; use "
                    f"shorter ones"
                )
            kept[layer] = states[batch.valid].float()

        with tapped(self.loaded.model, [self.bound], look):
            self.reading(batch)
        return [kept[layer] for layer in range(self.bound.n_layers)]


def _power(states: "Tensor") -> np.ndarray:
    """Σ x² over tokens, float64 [dim]."""
    found: np.ndarray = states.double().square().sum(0).cpu().numpy()
    return found
