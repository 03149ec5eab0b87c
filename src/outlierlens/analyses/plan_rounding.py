"""A running model whose linears are rounded, but for what a plan keeps of them.

    with mixed(loaded, places, recipe) as model:
        model.keep(merged([KeptLinear(path="model.layers.11.mlp.down_proj", inputs=True)]))
        task.per_text()

What is kept in 16 bits stays as it is; in 8 bits it is rounded by `FINE` in place of the recipe. Everything else is as
`quantize_rounding.rounded` has it, and every weight comes back bit for bit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from outlierlens.analyses.quantize_places import Place
from outlierlens.analyses.quantize_rounding import Keeping, RoundedLinear, Tally
from outlierlens.analyses.quantize_schemes import Recipe, parse
from outlierlens.architectures import live_parameters
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import edited_calls, running_masks
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

FINE = parse("int8-channel/int8-token")  # of what stays in 8 bits


@dataclass(frozen=True, kw_only=True)
class KeptLinear:
    """One linear of which something stays in `bits` bits: its weights, what it reads, both, or few columns and rows."""

    path: str
    """Module path in the live model, such as `model.layers.11.mlp.down_proj`."""
    weights: bool = False
    inputs: bool = False
    columns: tuple[int, ...] = ()
    """Inputs that stay, with their weights; they take part in no range."""
    rows: tuple[int, ...] = ()
    """Outputs whose weights stay, multiplied with inputs that are not rounded; they take part in no range."""
    bits: int = 16

    def recipe(self, scheme: Recipe) -> Recipe | None:
        """What happens to the linear where `scheme` rounds the others; None for nothing."""
        weights, inputs = scheme.weights, scheme.inputs
        if weights and self.weights:
            weights = FINE.weights if self.bits == 8 else None
        if inputs and self.inputs:
            inputs = FINE.inputs if self.bits == 8 else None
        return Recipe(weights, inputs) if weights or inputs else None


def merged(parts: Iterable[KeptLinear]) -> dict[str, KeptLinear]:
    """{path: all that stays of that linear}, in the order in which paths come."""
    found: dict[str, KeptLinear] = {}
    for one in parts:
        other = found.get(one.path, one)
        found[one.path] = replace(
            one, weights=one.weights or other.weights, inputs=one.inputs or other.inputs,
            columns=tuple(sorted({*one.columns, *other.columns})), rows=tuple(sorted({*one.rows, *other.rows})),
        )  # fmt: skip
    return found


def n_kept(kept: Mapping[str, KeptLinear], shapes: Mapping[str, tuple[int, int]]) -> int:
    """Weights that stay, of linears of these shapes (outputs, inputs); all of a linear whose weights or inputs stay."""
    total = 0
    for path, one in kept.items():
        n_outputs, n_inputs = shapes[path]
        rounded = (n_outputs - len(one.rows)) * (n_inputs - len(one.columns))
        total += n_outputs * n_inputs - (0 if one.weights or one.inputs else rounded)
    return total


@temporary
def mixed(
    loaded: LoadedModel, places: Sequence[Place], recipe: Recipe, *, stack: str | None = None
) -> Iterator["MixedRounding"]:
    """Round every linear of `places` inside the block; `keep` then spares some.

    Raises:
        BadInput: a value is infinite, a group does not divide a row, or the model is compiled.
    """
    with ExitStack() as undo:
        model = MixedRounding(loaded, places, recipe, stack)
        model.masks = undo.enter_context(running_masks(reader_of(loaded, [model.bound], "input_ids") or loaded.model))
        undo.callback(model.restore)
        for name in model.places:
            model.round(name)
        if recipe.inputs is not None:
            reads, gives = (
                {one.module: partial(edit, name) for name, one in model.places.items()}
                for edit in (model.read, model.give)
            )
            undo.enter_context(edited_calls(loaded.model, reads, gives))
        yield model


class MixedRounding:
    """The model inside `mixed`."""

    def __init__(self, loaded: LoadedModel, places: Sequence[Place], recipe: Recipe, stack: str | None):
        self.model, self.bound, self.recipe = loaded.model, loaded.stack(stack), recipe
        self.live = live_parameters(loaded.model)
        self.places = {place.name: place for place in places}
        self.kept: dict[str, KeptLinear] = {}
        self.masks: list[Tensor] = []
        self._linears: dict[str, tuple[RoundedLinear, ExitStack]] = {}  # with what puts its weights back

    def keep(self, kept: Mapping[str, KeptLinear]) -> None:
        """Keep these from now on, and round all else."""
        before, self.kept = self.kept, dict(kept)
        for name in {*before, *self.kept}:
            if before.get(name) != self.kept.get(name):
                self.round(name)

    def round(self, name: str) -> None:
        """Round one linear, but for what is kept of it now."""
        if name in self._linears:
            self._linears.pop(name)[1].close()
        one = self.kept.get(name, KeptLinear(path=name))
        recipe = one.recipe(self.recipe)
        if recipe is not None:
            keeping = Keeping(columns={name: one.columns}, rows={name: one.rows})
            linear = RoundedLinear(self.places[name], recipe, keeping, (self.bound, self.masks), Tally())
            undo = ExitStack()
            self._linears[name] = linear, undo
            linear.set_weights(Settable(undo, self.model, self.live))

    def restore(self) -> None:
        """Put all weights back."""
        with ExitStack() as each:
            while self._linears:
                each.callback(self._linears.popitem()[1][1].close)

    def read(self, name: str, reads: "Tensor") -> "Tensor":
        """What a linear is given in place of `reads`."""
        linear = self._linears.get(name)
        return linear[0].read(reads) if linear and linear[0].edits_inputs else reads

    def give(self, name: str, output: "Tensor") -> "Tensor":
        """A linear's output, with the rows that stay made of inputs that are not rounded."""
        linear = self._linears.get(name)
        return linear[0].mended(output) if linear and linear[0].edits_outputs else output
