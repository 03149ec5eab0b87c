"""Round the linears of a running model, as a context manager that restores every weight bit for bit.

    with rounded(loaded, parse("int8-tensor/int8-tensor")):
        loaded.model(**batch)
    with rounded(loaded, recipe, Keeping(dims=(100, 247, 507))) as tally:
        ...
    change, low, high = loss_change(loaded, task, recipe)

Keeping dimension d of the stream in high precision is: in every linear that reads the stream, input d and column d of the
weights stay, and take part in no range; in every linear that writes to it, row d of the weights stays, takes part in no range
and is multiplied with the inputs as they were before rounding.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlierlens.ablation.switches import plan_dims
from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.experiments.quantization.places import Place, by_text, find_places, shaped_like
from outlierlens.experiments.quantization.schemes import Recipe, fake_quantize, fake_quantize_inputs
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import edited_calls, running_masks
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import Task, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Keeping:
    """What is spared.

    Attributes:
        dims: dimensions of the stream that stay in high precision; see above.
        threshold: LLM.int8's decomposition (Dettmers et al. 2022, section 3.2): in each linear and text, inputs with any
            |x| of at least this stay, and are multiplied with weights that stay.
        factors: {name of a linear: [in]}: what it reads is divided by them and its columns are multiplied (SmoothQuant).
    """

    dims: tuple[int, ...] = ()
    threshold: float | None = None
    factors: Mapping[str, "Tensor"] = field(default_factory=dict)


@dataclass
class Tally:
    """How many weights of the linears are rounded or spared, and how many of their inputs `threshold` spared so far."""

    n_linears: int = 0
    n_weights: int = 0
    weights_kept: int = 0
    n_features: int = 0
    features_kept: int = 0

    @property
    def kept(self) -> float:
        """Share in [0, 1] of the weights that stay in high precision; with a threshold, of the inputs."""
        if self.n_features:
            return self.features_kept / self.n_features
        return self.weights_kept / self.n_weights


@temporary
def rounded(
    loaded: LoadedModel,
    recipe: Recipe,
    keeping: Keeping | None = None,
    *,
    stack: str | None = None,
    places: Sequence[Place] | None = None,
) -> Iterator[Tally]:
    """Round every linear inside the blocks of a stream while the block runs; biases and all else stay as they are.

    Raises:
        BadInput: the blocks hold no linear, a value is infinite, a dimension does not exist, a group does not divide a row, a
            threshold where no inputs are rounded, or the model is compiled.
    """
    keeping = keeping or Keeping()
    if keeping.threshold is not None and recipe.inputs is None:
        raise BadInput(f"{recipe.name} rounds no inputs, so there is nothing that a threshold could spare")
    bound = loaded.stack(stack)
    if keeping.dims:
        plan_dims(bound, stream_width(loaded.model, bound), keeping.dims)
    tally = Tally()
    with ExitStack() as undo:
        masks = undo.enter_context(running_masks(reader_of(loaded, [bound], "input_ids") or loaded.model))
        linears, settable = [], Settable(undo, loaded.model)
        for place in find_places(loaded, bound.name) if places is None else places:
            linear = _Linear(place, recipe, keeping, (bound, masks), tally)
            values = linear.rounded_weights()
            settable.set_values(f"{place.name}.weight", ..., values.T if place.transposed else values)
            linears.append(linear)
        before = {one.place.module: one.enter for one in linears if one.edits_inputs}
        after = {one.place.module: one.leave for one in linears if one.edits_outputs}
        undo.enter_context(edited_calls(loaded.model, before, after))
        yield tally


def loss_change(
    loaded: LoadedModel, task: Task, recipe: Recipe, *, stack: str | None = None
) -> tuple[float, float, float]:
    """(change, low, high) of the task's value by `rounded`, with its 95 % interval over texts."""
    intact, weights = task.per_text()
    with rounded(loaded, recipe, stack=stack):
        after, _ = task.per_text()
    low, high = mean_interval(after - intact, weights)
    return weighted_mean(after - intact, weights), low, high


class _Linear:
    """One linear while it is rounded."""

    def __init__(
        self,
        place: Place,
        recipe: Recipe,
        keeping: Keeping,
        running: tuple[BoundStack, list["Tensor"]],
        tally: Tally,
    ):
        import torch

        self.place, self.recipe, self.keeping, self.tally = place, recipe, keeping, tally
        self.bound, self.masks = running
        weight = place.weight()
        n_outputs, n_inputs = weight.shape
        self.factor = keeping.factors.get(place.name)
        self.columns = keeping.dims if place.reads else ()
        self.rows = keeping.dims if place.writes else ()
        self.exempt_inputs: Tensor | None = None  # bool [in]
        self.exempt_weights: Tensor | None = None  # bool [1, in] or [out, 1]
        if self.columns:
            self.exempt_inputs = torch.zeros(n_inputs, dtype=torch.bool, device=weight.device)
            self.exempt_inputs[list(self.columns)] = True
            self.exempt_weights = self.exempt_inputs[None]
        elif self.rows:
            self.exempt_weights = torch.zeros((n_outputs, 1), dtype=torch.bool, device=weight.device)
            self.exempt_weights[list(self.rows)] = True
        tally.n_linears += 1
        tally.n_weights += weight.numel()
        tally.weights_kept += len(self.columns) * n_outputs + len(self.rows) * n_inputs
        # Rows that stay are only rounded by what they are multiplied with.
        self.edits_inputs = recipe.inputs is not None or self.factor is not None
        self.edits_outputs = recipe.inputs is not None and (bool(self.rows) or keeping.threshold is not None)
        # Weights before rounding, where outputs need them: with a threshold all, else the rows that stay.
        self.exact: Tensor | None = None
        self._seen: Tensor | None = None  # [text, token, in], the inputs before rounding
        self._large: Tensor | None = None  # bool [text, 1, in], inputs over the threshold

    def rounded_weights(self) -> "Tensor":
        """[out, in], in place of the linear's own."""
        live = self.place.weight()
        exact = live if self.factor is None else live * self.factor.to(live)
        if self.edits_outputs:
            self.exact = exact.clone() if self.keeping.threshold is not None else exact[list(self.rows)]
        if self.recipe.weights is not None:
            exact = fake_quantize(exact, self.recipe.weights, exempt=self.exempt_weights)
        return exact

    def enter(self, reads: "Tensor") -> "Tensor":
        """What the linear is given in place of `reads`."""
        if self.factor is not None:
            reads = reads / self.factor.to(reads)
        if self.recipe.inputs is None:
            return reads
        states, valid = by_text(reads, self.masks, self.bound)
        exempt = self.exempt_inputs
        if self.keeping.threshold is not None:
            size = states.abs() if valid is None else states.abs().masked_fill(~valid[..., None], 0.0)
            self._large = (size >= self.keeping.threshold).any(1, keepdim=True)
            exempt = self._large if exempt is None else exempt | self._large
            self.tally.n_features += self._large.numel()
            self.tally.features_kept += int(self._large.sum())
        if self.edits_outputs:
            self._seen = states
        return shaped_like(reads, fake_quantize_inputs(states, self.recipe.inputs, valid, exempt=exempt), self.bound)

    def leave(self, output: "Tensor") -> "Tensor":
        """The linear's output with what is spared put right."""
        from torch.nn import functional

        assert self._seen is not None
        assert self.exact is not None
        seen, large, self._seen, self._large = self._seen, self._large, None, None
        exact, rows, bias = self.exact, list(self.rows), self.place.bias()
        if large is not None:
            columns = large.any(0)[0].nonzero()[:, 0]  # that stay in any of the texts
            lost = exact[:, columns] - self.place.weight()[:, columns]
            spared = seen[..., columns].masked_fill(~large[..., columns], 0.0)
            output = output + shaped_like(output, functional.linear(spared, lost), self.bound)
            exact = exact[rows]
        if rows:
            written = functional.linear(seen, exact, None if bias is None else bias[rows])
            output = output.clone()
            output[..., rows] = shaped_like(output, written, self.bound)
        return output
