"""The settings of rounding as conditions: a scheme on the whole model, and with something kept or smoothed.

model = RoundingSettings(loaded, texts, QuantizeOptions(), calibration)
study.measure(model.conditions(recipe))      # all rounded, outliers kept, random sets kept, large inputs kept, smoothed
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from outlierlens.ablation.controls import random_sets
from outlierlens.ablation.study import Condition
from outlierlens.analyses.quantize_errors import StateErrors
from outlierlens.analyses.quantize_places import (
    calibrate,
    cast_notes,
    find_places,
    smooth_factors,
    without_foreign_readers,
)
from outlierlens.analyses.quantize_rounding import Keeping, NoiseDraws, Tally, rounded
from outlierlens.analyses.quantize_schemes import Recipe
from outlierlens.data.texts import Data
from outlierlens.detection.observe.measure import ObserveOptions
from outlierlens.detection.targets import active_dims, named_dims
from outlierlens.models.inputs import row_limit
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.options import FIND
from outlierlens.tasks.base import Task
from outlierlens.tasks.choice import make_task, vector_task

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.analyses.quantize import QuantizeOptions

MOST_SEEN = 8  # dimensions that are taken from activations where the weights name none
ROUNDED, KEPT, RANDOM = "all rounded", "outliers kept", "random kept"
MIXED, SMOOTHED = "large inputs kept", "smoothed"  # LLM.int8's decomposition; SmoothQuant


class RoundingSettings:
    """A model, its task, its outliers, and what is done to it in every setting."""

    def __init__(self, loaded: LoadedModel, texts: Data, options: "QuantizeOptions", calibration: Data):
        self.loaded, self.options, self.stack = loaded, options, loaded.stack(options.stack)
        self.max_length = row_limit(loaded, texts, options.task.max_length)
        reading: Any = {"stack": self.stack.name, "max_length": self.max_length, "batch_size": options.task.batch_size}
        self.dims, self.named_by, notes = _outliers(loaded, calibration, options, self.max_length)
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
        self.random = random_sets(self.width, len(self.dims), n=options.n_sets, seed=options.seed, other_than=self.dims)
        self.noise = NoiseDraws(loaded, self.stack, self.task, options.noise_draws, options.seed)
        self.states = StateErrors(loaded, texts.first(options.n_error_texts), **reading)
        self.notes = [*notes, *self.task.notes, *self._remarks()]
        self.identity = {
            "task": asdict(how), "stack": self.stack.name, "dims": list(self.dims), "threshold": options.threshold,
            "smooth": options.alpha, "calibration": calibration.digest, "noise": options.noise_draws,
            "seed": options.seed, "error texts": options.n_error_texts,
        }  # fmt: skip

    def conditions(self, recipe: Recipe) -> list[Condition]:
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
                f"{recipe.name}, {setting} {i}", partial(self._inside, i in errors_of),
            )
            for i, (setting, keeping) in enumerate(found)
        ]  # fmt: skip

    def _inside(self, with_errors: bool, tally: Tally) -> dict[str, Any]:
        """What is measured beside the values: those with noise [draw, text], and errors [layer, dim]."""
        return {
            "noisy": [one.tolist() for one in self.noise.repeats()],
            "errors": self.states.at_blocks().tolist() if with_errors else [],
            "kept": tally.kept, "n_linears": tally.n_linears, "n_weights": tally.n_weights,
        }  # fmt: skip

    def _remarks(self) -> Iterator[str]:
        """What a reader of the numbers should know."""
        if self.task.n_texts < 2:
            yield "one text: there is no interval, for nothing can be resampled"
        if any(module.endswith("()") for module in self.stack.stack.last_linear):
            yield "packed experts are bare parameters, not linears: they stay as they are"
        yield from cast_notes(self.places)


def _outliers(
    loaded: LoadedModel, texts: Data, options: "QuantizeOptions", max_length: int
) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
    """The dimensions, ascending; who names them: the caller, the weights, the activations, or the strongest two; notes."""
    stack = loaded.stack(options.stack)
    named = named_dims(loaded, stack, options.dims)
    if options.dims == FIND and not named.found:
        seen = ObserveOptions(max_length=max_length, batch_size=options.task.batch_size, passage_tokens=0)
        dims, rule = active_dims(loaded, stack, texts, seen)
        if dims:
            return tuple(sorted(dims[:MOST_SEEN])), f"the activations, rule {rule}", ()
    return tuple(sorted(named.dims)), named.by, named.notes
