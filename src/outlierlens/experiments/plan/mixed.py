"""A running model whose linears are rounded, but for what is kept.

    with mixed(loaded, places, recipe, bits=16, stack=None) as model:
        model.keep(merged([KeptLinear(path="model.layers.11.mlp.down_proj", inputs=True)]))
        task.per_text()

What is kept in 16 bits stays as it is; in 8 bits it is rounded by `FINE` in place of the recipe. Everything else is as
`quantize_rounding.rounded` has it, columns and rows too, and every weight comes back bit for bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from outlierlens.analyses.quantize_places import Place, by_text, shaped_like
from outlierlens.analyses.quantize_schemes import Recipe, fake_quantize, fake_quantize_inputs, parse
from outlierlens.architectures import live_parameters
from outlierlens.experiments.plan.kept import KeptLinear
from outlierlens.models.changes import Settable, temporary
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
    """Round every linear of `places` inside the block; `keep` then spares some.

    Raises:
        BadInput: a value is infinite, a group does not divide a row, or the model is compiled.
    """
    with ExitStack() as undo:
        model = Mixed(loaded, places, recipe, FINE if bits == 8 else None, stack)
        model.masks = undo.enter_context(running_masks(reader_of(loaded, [model.bound], "input_ids") or loaded.model))
        undo.callback(model.restore)
        for name in model.places:
            model.round(name)
        if recipe.inputs is not None:
            reads = {one.module: (lambda x, name=name: model.read(name, x)) for name, one in model.places.items()}
            gives = {one.module: (lambda y, name=name: model.give(name, y)) for name, one in model.places.items()}
            undo.enter_context(edited_calls(loaded.model, reads, gives))
        yield model


class Mixed:
    """The model inside `mixed`; `fine` is what rounds what is kept, None leaves it as it is."""

    def __init__(
        self, loaded: LoadedModel, places: Sequence[Place], recipe: Recipe, fine: Recipe | None, stack: str | None
    ):
        self.model, self.bound = loaded.model, loaded.stack(stack)
        self.live = live_parameters(loaded.model)
        self.places = {place.name: place for place in places}
        self.recipe, self.fine = recipe, fine
        self.kept: dict[str, KeptLinear] = {}
        self.masks: list[Tensor] = []
        self._rounded: dict[str, ExitStack] = {}  # of each linear, what puts its weights back
        self._exempt: dict[str, Tensor] = {}  # inputs [in] that stay, of linears where some do
        self._seen: dict[str, Tensor] = {}  # [text, token, in], before rounding, of linears whose rows stay

    def keep(self, kept: Mapping[str, KeptLinear]) -> None:
        """Keep these from now on, and round all else."""
        before, self.kept = self.kept, dict(kept)
        for name in {*before, *self.kept}:
            if before.get(name) != self.kept.get(name):
                self.round(name)

    def round(self, name: str) -> None:
        """Round the weights of one linear, but for what is kept of it now."""
        import torch

        if name in self._rounded:
            self._rounded.pop(name).close()
        self._exempt.pop(name, None)
        place, one = self.places[name], self.kept.get(name, KeptLinear(path=name))
        weight, scheme = place.weight(), self.recipe.weights
        exempt = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device) if one.columns or one.rows else None
        if exempt is not None:
            exempt[:, list(one.columns)] = True
            exempt[list(one.rows)] = True
        if one.columns:
            inputs = torch.zeros(weight.shape[1], dtype=torch.bool, device=weight.device)
            inputs[list(one.columns)] = True
            self._exempt[name] = inputs
        if one.weights and scheme is not None:
            scheme = self.fine.weights if self.fine else None
        if scheme is not None:
            values = fake_quantize(weight, scheme, exempt=exempt)
            undo = self._rounded[name] = ExitStack()
            settable = Settable(undo, self.model, self.live)
            settable.set_values(f"{name}.weight", ..., values.T if place.transposed else values)

    def restore(self) -> None:
        """Put all weights back."""
        with ExitStack() as each:
            while self._rounded:
                each.callback(self._rounded.popitem()[1].close)

    def read(self, name: str, reads: "Tensor") -> "Tensor":
        """What a linear is given in place of `reads`."""
        scheme, one = self.recipe.inputs, self.kept.get(name)
        states, valid = by_text(reads, self.masks, self.bound)
        if one is not None and one.inputs:
            scheme = self.fine.inputs if self.fine else None
        elif one is not None and one.rows:
            self._seen[name] = states
        if scheme is None:
            return reads
        rounded = fake_quantize_inputs(states, scheme, valid, exempt=self._exempt.get(name))
        return shaped_like(reads, rounded, self.bound)

    def give(self, name: str, output: "Tensor") -> "Tensor":
        """A linear's output, with the rows that stay made of inputs that are not rounded."""
        from torch.nn import functional

        seen = self._seen.pop(name, None)
        if seen is None:
            return output
        rows, place = list(self.kept[name].rows), self.places[name]
        bias = place.bias()
        written = functional.linear(seen, place.weight()[rows], None if bias is None else bias[rows])
        output = output.clone()
        output[..., rows] = shaped_like(output, written, self.bound)
        return output
