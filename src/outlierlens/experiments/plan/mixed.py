"""A running model whose linears are rounded, but for those that are kept.

    with mixed(loaded, places, recipe, bits=16, stack=None) as model:
        with model.keeping({("model.layers.11.mlp.down_proj", "inputs")}):
            task.per_text()

What is kept in 16 bits stays as it is; in 8 bits it is rounded by `FINE` in place of the recipe. Everything else is as
`quantization.apply.rounded` has it, and every weight comes back bit for bit.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outlierlens.experiments.plan.result import Entry
from outlierlens.experiments.quantization.places import Place, by_text, shaped_like
from outlierlens.experiments.quantization.schemes import Recipe, Scheme, fake_quantize, fake_quantize_inputs, parse
from outlierlens.models.changes import set_values, temporary
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import edited_calls, running_masks
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

FINE = parse("int8-channel/int8-token")  # of what stays in 8 bits


@temporary
def mixed(
    loaded: LoadedModel, places: Sequence[Place], recipe: Recipe, *, bits: int = 16, stack: str | None = None
) -> Iterator["Mixed"]:
    """Round every linear of `places` inside the block; `keeping` then spares some.

    Raises:
        BadInput: a value is infinite, a group does not divide a row, or the model is compiled.
    """
    with ExitStack() as undo:
        model = Mixed(loaded, places, recipe, FINE if bits == 8 else None, stack)
        model.masks = undo.enter_context(running_masks(reader_of(loaded, [model.bound], "input_ids") or loaded.model))
        undo.callback(model.restore)
        for name in model.places:
            model.round(name, recipe.weights)
        if recipe.inputs is not None:
            reads = {
                place.module: (lambda states, name=name: model.read(name, states))
                for name, place in model.places.items()
            }
            undo.enter_context(edited_calls(loaded.model, reads, {}))
        yield model


class Mixed:
    """The model inside `mixed`; `fine` is what rounds what is kept, None leaves it as it is."""

    def __init__(
        self, loaded: LoadedModel, places: Sequence[Place], recipe: Recipe, fine: Recipe | None, stack: str | None
    ):
        self.bound = loaded.stack(stack)
        self.places = {place.name: place for place in places}
        self.recipe, self.fine = recipe, fine
        self.kept: frozenset[Entry] = frozenset()
        self.masks: list[Tensor] = []
        self._rounded: dict[str, ExitStack] = {}  # of each linear, what puts its weights back

    @temporary
    def keeping(self, kept: Collection[Entry]) -> Iterator[None]:
        """Keep these inside the block."""
        names = sorted(name for name, what in kept if what == "weights" and self.recipe.weights is not None)
        try:
            self.kept = frozenset(kept)
            for name in names:
                self.round(name, self.fine.weights if self.fine else None)
            yield
        finally:
            self.kept = frozenset()
            for name in names:
                self.round(name, self.recipe.weights)

    def round(self, name: str, scheme: Scheme | None) -> None:
        """Round the weights of one linear by another scheme than now; None puts them back."""
        if name in self._rounded:
            self._rounded.pop(name).close()
        if scheme is not None:
            place = self.places[name]
            stored: Any = place.module.weight
            values = fake_quantize(place.weight(), scheme)
            undo = self._rounded[name] = ExitStack()
            set_values(undo, stored, ..., values.T if place.transposed else values, f"{name}.weight")

    def restore(self) -> None:
        """Put all weights back."""
        for name in list(self._rounded):
            self.round(name, None)

    def read(self, name: str, reads: "Tensor") -> "Tensor":
        """What a linear is given in place of `reads`."""
        scheme = self.recipe.inputs
        if (name, "inputs") in self.kept:
            scheme = self.fine.inputs if self.fine else None
        if scheme is None:
            return reads
        states, valid = by_text(reads, self.masks, self.bound)
        return shaped_like(reads, fake_quantize_inputs(states, scheme, valid), self.bound)
