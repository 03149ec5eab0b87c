"""What rounding each linear may cost, from one pass over a few texts: it orders what is measured, and is never a result.

    seen = cheap(loaded, task, places, recipe, texts, stack=None)       # {(path, "inputs"): Cheap}

A linear's output moves by δ = (rounded inputs − inputs) Wᵀ, or inputs (rounded W − W)ᵀ. A text's loss, summed over tokens, then
moves by Σ g·δ to first order, g its gradient at that output. At a minimum these moves cancel over texts, and what is left is of
second order: E[(Σ g·δ)²] / 2, for the Hessian of a log likelihood is the mean of g gᵀ (Fisher). It is divided by the tokens
that count, so its unit is that of the loss. Where rounding takes everything away it is far off; the order is all that is used.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlierlens.analyses.quantize_places import Place, by_text, shaped_like
from outlierlens.analyses.quantize_schemes import Recipe, fake_quantize, fake_quantize_inputs
from outlierlens.experiments.plan.result import Entry
from outlierlens.models.changes import frozen
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import EMBEDDINGS, edited, edited_calls, running_masks
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import Task

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 256  # of a pass: every linear's output is held, and two changes of it


@dataclass
class Cheap:
    """One entry in the intact model.

    Attributes:
        ratio: largest |x| over the median |x| of those that are not 0: of the weights, or of the inputs of the text where
            that is largest.
        column: input where the largest lies. row: of weights the output, else None.
        power, error: Σ x² and Σ (rounded − x)².
        estimate: of what rounding it costs, see above; NaN where the task has no gradients.
        columns: [in], largest |x| of each input over all texts, or of each column of the weights. rows: [out], of weights.
    """

    ratio: float = 0.0
    column: int = 0
    row: int | None = None
    power: float = 0.0
    error: float = 0.0
    estimate: float = math.nan
    columns: "Tensor" = field(default=None, repr=False)  # type: ignore[assignment]
    rows: "Tensor" = field(default=None, repr=False)  # type: ignore[assignment]

    @property
    def relative_error(self) -> float:
        """Σ (rounded − x)² / Σ x²; 0 where all is 0."""
        return self.error / self.power if self.power else 0.0

    @property
    def promise(self) -> float:
        """The estimate, or the relative error where there is none; infinite where it is no number."""
        found = self.relative_error if math.isnan(self.estimate) else self.estimate
        return found if math.isfinite(found) else math.inf

    def without(self, columns: Sequence[int], rows: Sequence[int]) -> float:
        """Largest |x| without these columns and rows over the largest with them: what a step of the whole tensor shrinks by."""
        ends = [(self.columns, columns), (self.rows, rows)]
        left = [_rest(sizes, spared) for sizes, spared in ends if spared and sizes is not None]
        return min(left, default=1.0)


def cheap(
    loaded: LoadedModel, task: Task, places: Sequence[Place], recipe: Recipe, texts: Sequence[int], *, stack: str | None
) -> dict[Entry, Cheap]:
    """Every entry that the scheme rounds and these texts of the task reach, from one pass of the intact model."""
    look = _Look(loaded, task, places, recipe, stack)
    look.read(texts)
    return look.found


def standing(sizes: "Tensor") -> "Tensor":
    """Each of these sizes over their median, the median of those that are not 0."""
    some = sizes[sizes > 0]
    return sizes / some.median() if some.numel() else sizes


def _rest(sizes: "Tensor", spared: Sequence[int]) -> float:
    rest = sizes.clone()
    rest[list(spared)] = 0.0
    return float(rest.max() / sizes.max()) if float(sizes.max()) else 1.0


class _Look:
    """The pass. Of each call of a linear it keeps the output and how either rounding would move it."""

    def __init__(self, loaded: LoadedModel, task: Task, places: Sequence[Place], recipe: Recipe, stack: str | None):
        self.loaded, self.task, self.recipe = loaded, task, recipe
        self.bound = loaded.stack(stack)
        self.places = {place.name: place for place in places}
        self.differentiates = task.is_loss and not self.bound.stack.token_first
        self.found: dict[Entry, Cheap] = {}
        self.masks: list[Tensor] = []
        self.reads: dict[str, Tensor] = {}
        self.calls: list[tuple[Tensor, dict[Entry, Tensor]]] = []

    def read(self, texts: Sequence[int]) -> None:
        """Run these texts of the task, and then sum up."""
        import torch

        model = self.loaded.model
        before = {place.module: (lambda x, name=name: self._enter(name, x)) for name, place in self.places.items()}
        after = {place.module: (lambda y, name=name: self._leave(name, y)) for name, place in self.places.items()}
        sums: dict[Entry, float] = {}
        tokens = 0.0
        with ExitStack() as undo:
            self.masks = undo.enter_context(running_masks(reader_of(self.loaded, [self.bound], "input_ids") or model))
            undo.enter_context(edited_calls(model, before, after))
            undo.enter_context(torch.set_grad_enabled(self.differentiates))
            if self.differentiates:
                undo.enter_context(frozen(model))
                undo.enter_context(edited(model, self.bound, _started, [EMBEDDINGS]))
            for feed in self.task.feeds(list(texts), TOKENS):
                self.calls.clear()
                total = self.task.sums(feed).sum()
                tokens += sum(float(self.task.weights[texts[slot]]) for slot in set(feed.slots))
                if self.differentiates:
                    slopes = torch.autograd.grad(total, [output for output, _ in self.calls], allow_unused=True)
                    self._add(sums, slopes)
                self.calls.clear()
        for entry, squares in sums.items():
            self.found[entry].estimate = squares / 2 / tokens

    def _enter(self, name: str, reads: "Tensor") -> "Tensor":
        self.reads[name] = reads.detach()
        return reads

    def _leave(self, name: str, output: "Tensor") -> "Tensor":
        import torch
        from torch.nn import functional

        place, reads = self.places[name], self.reads.pop(name)
        with torch.no_grad():
            states, valid = by_text(reads, self.masks, self.bound)
            moves: dict[Entry, Tensor] = {}
            if self.recipe.weights is not None:
                weight = place.weight()
                error = fake_quantize(weight, self.recipe.weights) - weight
                moves[name, "weights"] = functional.linear(reads, error)
                if (name, "weights") not in self.found:
                    self.found[name, "weights"] = _of_weights(weight, error)
            if self.recipe.inputs is not None:
                error = fake_quantize_inputs(states, self.recipe.inputs, valid) - states
                if valid is not None:
                    error = error.masked_fill(~valid[..., None], 0.0)
                    states = states.masked_fill(~valid[..., None], 0.0)
                _see_inputs(self.found.setdefault((name, "inputs"), Cheap()), states, error)
                moves[name, "inputs"] = functional.linear(shaped_like(reads, error, self.bound), place.weight())
        if self.differentiates:
            self.calls.append((output, moves))
        return output

    def _add(self, sums: dict[Entry, float], slopes: Sequence["Tensor | None"]) -> None:
        """Add the squared first-order move of each text; the calls of one linear in a pass move the loss together."""
        by_entry: dict[Entry, Tensor] = {}
        for (_, moves), slope in zip(self.calls, slopes, strict=True):
            for entry, move in moves.items():
                if slope is None:  # an output that the loss does not depend on
                    continue
                product = (slope.double() * move.double()).sum(-1, keepdim=True)
                states, valid = by_text(product, self.masks, self.bound)
                kept = states if valid is None else states.masked_fill(~valid[..., None], 0.0)
                by_entry[entry] = by_entry.get(entry, 0.0) + kept.flatten(1).sum(1)
        for entry, moved in by_entry.items():
            sums[entry] = sums.get(entry, 0.0) + float(moved.square().sum())


def _of_weights(weight: "Tensor", error: "Tensor") -> Cheap:
    size = weight.float().abs()
    place = int(size.argmax())
    power, squares = (float(one.double().square().sum()) for one in (weight, error))
    return Cheap(
        _ratio(size), place % weight.shape[1], place // weight.shape[1], power, squares,
        columns=size.amax(0), rows=size.amax(1),
    )  # fmt: skip


def _see_inputs(one: Cheap, states: "Tensor", error: "Tensor") -> None:
    """Add inputs [text, token, in], padding 0, and their errors."""
    import torch

    one.power += float(states.double().square().sum())
    one.error += float(error.double().square().sum())
    top = states.float().abs().flatten(0, 1).amax(0)
    one.columns = top if one.columns is None else torch.maximum(one.columns, top)
    for text in states.float().abs():
        ratio = _ratio(text)
        if ratio > one.ratio:
            one.ratio, one.column = ratio, int(text.amax(0).argmax())


def _ratio(size: "Tensor") -> float:
    """Largest over median of the sizes that are not 0; 0 where all are."""
    some = size[size > 0]
    return float(some.max() / some.median()) if some.numel() else 0.0


def _started(_: int, embedded: "Tensor") -> "Tensor":
    return embedded.detach().requires_grad_()
