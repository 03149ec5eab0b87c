"""Round the linears of a running model, as a context manager that restores every weight bit for bit; noise of the last bit.

    with rounded(loaded, parse("int8-tensor/int8-tensor")):
        loaded.model(**batch)
    with rounded(loaded, recipe, Keeping(dims=(100, 247, 507))) as model:
        model.kept                                                    # share of the weights that stay
        model.keep({path: KeptLinear(path=path, inputs=True)})        # from now on; all else is rounded
    change, low, high = loss_change(loaded, task, recipe)
    NoiseDraws(loaded, stack, task, n=3, seed=0).repeats()        # [draw][text], for `statistics.means.mean_noise`

Keeping dimension d of the stream in high precision is: in every linear that reads the stream, input d and column d of the
weights stay, and take part in no range; in every linear that writes to it, row d of the weights stays, takes part in no range
and is multiplied with the inputs as they were before rounding.

Rounding is a step function: a value at the edge of a step falls to either side by its last bit, and another processor or
another batch moves that. Noise is drawn by (seed, draw), token and dimension, the same in every text: another processor's
arithmetic too is one and the same for all texts, and what texts share (a first token that sees no other) moves alike in all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.ablation.switches import plan_dims
from outlierlens.analyses.quantize_places import LinearPlace, by_text, find_places, shaped_like
from outlierlens.analyses.quantize_schemes import FINE, SchemePair, fake_quantize, fake_quantize_inputs
from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.errors import BadInput
from outlierlens.models.changes import SettableParameters, hang, temporary
from outlierlens.models.forward import reader_of
from outlierlens.models.hooks import EMBEDDINGS, edited, refuse_compiled, running_masks
from outlierlens.models.load import LoadedModel, stream_width
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import Task, values_of, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

SIZE = 1e-6  # of noise, relative: about what another order of summation moves in float32
MOST_TEXTS = 16  # that are run again with noise


@dataclass(frozen=True)
class Keeping:
    """What stays in high precision.

    Attributes:
        dims: dimensions of the stream; see above.
        threshold: LLM.int8's decomposition (Dettmers et al. 2022, section 3.2): in each linear and text, inputs with any
            |x| of at least this stay, and are multiplied with weights that stay.
        factors: {name of a linear: [in]}: what it reads is divided by them and its columns are multiplied (SmoothQuant).
    """

    dims: tuple[int, ...] = ()
    threshold: float | None = None
    factors: Mapping[str, "Tensor"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class KeptLinear:
    """One linear of which something stays in `bits` bits: its weights, what it reads, both, or few columns and rows."""

    path: str
    """Module path in the live model, such as `model.layers.11.mlp.down_proj`."""
    weights: bool = False
    inputs: bool = False
    columns: tuple[int, ...] = ()
    """Inputs that are kept, with their weights; no range includes them."""
    rows: tuple[int, ...] = ()
    """Outputs whose weights stay, multiplied with unquantized inputs; no range includes them."""
    bits: int = 16

    def recipe(self, scheme: SchemePair) -> SchemePair | None:
        """What happens to the linear where `scheme` rounds the others; None for nothing."""
        weights, inputs = scheme.weights, scheme.inputs
        if weights and self.weights:
            weights = FINE.weights if self.bits == 8 else None
        if inputs and self.inputs:
            inputs = FINE.inputs if self.bits == 8 else None
        return SchemePair(weights, inputs) if weights or inputs else None


@temporary
def rounded(
    loaded: LoadedModel,
    recipe: SchemePair,
    keeping: Keeping | None = None,
    *,
    stack: str | None = None,
    places: Sequence[LinearPlace] | None = None,
) -> Iterator["Rounding"]:
    """Round every linear inside the blocks of a stream while the block runs; biases and all else stay as they are.

    Raises:
        BadInput: the blocks hold no linear, a value is infinite, a dimension does not exist, a group does not divide a row, a
            threshold where no inputs are rounded, or the model is compiled.
    """
    keeping = keeping or Keeping()
    if keeping.threshold is not None and recipe.inputs is None:
        raise BadInput(f"{recipe.name} quantizes no inputs, so a threshold has nothing to keep")
    bound = loaded.stack(stack)
    if keeping.dims:
        plan_dims(bound, stream_width(loaded.model, bound), keeping.dims)
    refuse_compiled(loaded.model)
    places = find_places(loaded, bound.name) if places is None else places
    with ExitStack() as undo:
        masks = undo.enter_context(running_masks(reader_of(loaded, [bound], "input_ids") or loaded.model))
        model = Rounding(loaded.model, places, (recipe, keeping), (bound, masks))
        undo.callback(model.restore)
        for name in model.places:
            model.round(name)
        yield model


class Rounding:
    """The model inside `rounded`: how much of its linears is rounded, and what else of them stays.

    Attributes:
        linears: those that are rounded, by path. places: all of them.
    """

    def __init__(
        self,
        model: "nn.Module",
        places: Sequence[LinearPlace],
        how: tuple[SchemePair, Keeping],
        running: tuple[BoundStack, Sequence["Tensor"]],
    ):
        self.model, self.running = model, running
        self.recipe, self.keeping = how
        self.live = live_parameters(model)
        self.places = {place.name: place for place in places}
        self.linears: dict[str, RoundedLinear] = {}
        self._kept: dict[str, KeptLinear] = {}
        self._undo: dict[str, ExitStack] = {}  # what puts each linear back

    def keep(self, kept: Mapping[str, KeptLinear]) -> None:
        """Keep these from now on, and round all else."""
        before, self._kept = self._kept, dict(kept)
        for name in {*before, *self._kept}:
            if before.get(name) != self._kept.get(name):
                self.round(name)

    def round(self, name: str) -> None:
        """Round one linear, but for what is kept of it now."""
        if name in self._undo:
            del self.linears[name]
            self._undo.pop(name).close()
        kept = self._kept.get(name, KeptLinear(path=name))
        recipe = kept.recipe(self.recipe)
        if recipe is not None:
            linear = self.linears[name] = RoundedLinear(self.places[name], recipe, self.keeping, kept, self.running)
            undo = self._undo[name] = ExitStack()
            linear.set_weights(SettableParameters(undo, self.model, self.live))
            if linear.edits_inputs:
                hang(undo, linear.place.module.register_forward_pre_hook, linear.enter)
            if linear.edits_outputs:
                hang(undo, linear.place.module.register_forward_hook, linear.leave)

    def restore(self) -> None:
        """Put all weights back."""
        with ExitStack() as each:
            while self._undo:
                each.callback(self._undo.popitem()[1].close)

    @property
    def n_linears(self) -> int:
        """Linears that are rounded."""
        return len(self.linears)

    @property
    def n_weights(self) -> int:
        """Weights in them."""
        return sum(one.n_weights for one in self.linears.values())

    @property
    def weights_kept(self) -> int:
        """Of these, how many stay in high precision."""
        return sum(int(one.exempt.sum()) for one in self.linears.values() if one.exempt is not None)

    @property
    def kept(self) -> float:
        """Share in [0, 1] of the weights that stay in high precision; with a threshold, of the inputs read so far."""
        if n_features := sum(one.n_features for one in self.linears.values()):
            return sum(one.features_kept for one in self.linears.values()) / n_features
        return self.weights_kept / self.n_weights


def loss_change(loaded: LoadedModel, task: Task, recipe: SchemePair) -> tuple[float, float, float]:
    """(change, low, high) of the task's value by `rounded`, with its 95 % interval over texts."""
    intact, weights = task.per_text()
    with rounded(loaded, recipe):
        after, _ = task.per_text()
    low, high = mean_interval(after - intact, weights)
    return weighted_mean(after - intact, weights), low, high


class RoundedLinear:
    """One linear while it is rounded. Its hooks hold all that they need: a pass calls nothing else of this package in them."""

    def __init__(
        self,
        place: LinearPlace,
        recipe: SchemePair,
        keeping: Keeping,
        kept: KeptLinear,
        running: tuple[BoundStack, Sequence["Tensor"]],
    ):
        import torch
        from torch.utils.weak import WeakIdKeyDictionary

        self.place, self.recipe, self.keeping = place, recipe, keeping
        self.n_weights = place.weight().numel()
        self.bound, self.masks = running
        self.as_is = torch._C.DisableTorchFunction  # else `fast_products` asks at every function
        weight = place.weight()
        self.factor = keeping.factors.get(place.name)
        columns = [*kept.columns, *(keeping.dims if place.reads else ())]
        self.rows = [*kept.rows, *(keeping.dims if place.writes else ())]
        self.exempt_inputs: Tensor | None = None  # bool [in]
        self.exempt: Tensor | None = None  # bool [out, in], weights
        if columns or self.rows:
            self.exempt = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
            self.exempt[:, columns] = True
            self.exempt[self.rows] = True
        if columns:
            self.exempt_inputs = torch.zeros(weight.shape[1], dtype=torch.bool, device=weight.device)
            self.exempt_inputs[columns] = True
        self.n_features = self.features_kept = 0  # inputs that were compared with the threshold, and those that it kept
        # Rows that stay are only rounded by what they are multiplied with.
        self.edits_inputs = recipe.inputs is not None or self.factor is not None
        self.edits_outputs = recipe.inputs is not None and (bool(self.rows) or keeping.threshold is not None)
        # Weights before rounding by parameter, where outputs need them: with a threshold all, else the rows that stay.
        self.exact: Any = WeakIdKeyDictionary()
        self._seen: Tensor | None = None  # [text, token, in], the inputs before rounding
        self._large: Tensor | None = None  # bool [text, 1, in], inputs over the threshold

    def set_weights(self, settable: SettableParameters) -> None:
        """Put rounded weights in place of the linear's own."""
        if self.factor is not None or self.edits_outputs or self.recipe.weights is not None:
            settable.set_values(f"{self.place.name}.weight", ..., self._rounded)

    def _rounded(self, parameter: "Tensor") -> "Tensor":
        """What takes the place of the parameter."""
        live = parameter.T if self.place.transposed else parameter
        exact = live if self.factor is None else live * self.factor.to(live)
        if self.edits_outputs:
            self.exact[parameter] = exact.clone() if self.keeping.threshold is not None else exact[self.rows]
        if self.recipe.weights is not None:
            exact = fake_quantize(exact, self.recipe.weights, exempt=self.exempt)
        return exact.T if self.place.transposed else exact

    def enter(self, _: "nn.Module", args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the linear is given in place of `args`."""
        with self.as_is():
            return (self.read(args[0]), *args[1:])

    def leave(self, _: "nn.Module", __: Any, output: "Tensor") -> "Tensor":
        """The linear's output with what is kept put right."""
        with self.as_is():
            return self.mended(output)

    def read(self, reads: "Tensor") -> "Tensor":
        """What the linear reads in place of `reads`."""
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
            self.n_features += self._large.numel()
            self.features_kept += int(self._large.sum())
        if self.edits_outputs:
            self._seen = states
        return shaped_like(reads, fake_quantize_inputs(states, self.recipe.inputs, valid, exempt=exempt), self.bound)

    def mended(self, output: "Tensor") -> "Tensor":
        """`output` with what is kept put right."""
        from torch.nn import functional

        assert self._seen is not None
        seen, large, self._seen, self._large = self._seen, self._large, None, None
        exact, rows, bias = self.exact[self.place.module.weight], self.rows, self.place.bias()
        if large is not None:
            columns = large.any(0)[0].nonzero()[:, 0]  # that stay in any of the texts
            lost = exact[:, columns] - self.place.weight()[:, columns]
            kept = seen[..., columns].masked_fill(~large[..., columns], 0.0)
            output = output + shaped_like(output, functional.linear(kept, lost), self.bound)
            exact = exact[rows]
        if rows:
            written = functional.linear(seen, exact, None if bias is None else bias[rows])
            output = output.clone()
            output[..., rows] = shaped_like(output, written, self.bound)
        return output


class NoiseDraws:
    """The first texts of a task, run again with noise.

    Attributes:
        n: draws. n_texts: that are run again, 0 without draws.
    """

    def __init__(self, loaded: LoadedModel, stack: BoundStack, task: Task, n: int, seed: int):
        self.loaded, self.stack, self.task, self.n, self.seed = loaded, stack, task, n, seed
        few = task.n_texts < 2 * MOST_TEXTS  # a first try spends a quarter of its texts on noise, four at least
        self.n_texts = (min(task.n_texts, max(4, task.n_texts // 4)) if few else MOST_TEXTS) if n else 0
        self._feeds = list(task.feeds(range(self.n_texts))) if n else []
        self._drawn: dict[int, np.ndarray] = {}

    def repeats(self) -> list[np.ndarray]:
        """The values [text] of each draw, of the model as it is now."""
        return self.loaded.run(partial(self._run, draw) for draw in range(self.n))

    def _run(self, draw: int) -> np.ndarray:
        with self.noisy(draw):
            return values_of(self.task, self._feeds, self.task.weights[: self.n_texts])

    @temporary
    def noisy(self, draw: int) -> Iterator[None]:
        """Multiply what the first block reads by 1 + size · ε in every forward pass; size is 1e-6 or the dtype's last bit."""
        import torch

        reader = reader_of(self.loaded, [self.stack], "input_ids") or self.loaded.model
        with running_masks(reader) as masks:

            def edit(_: int, states: "Tensor") -> "Tensor":
                size = max(SIZE, torch.finfo(states.dtype).eps)
                place = token_places(states, masks)
                noise = torch.from_numpy(self._noise(draw, int(place.max()) + 1, states.shape[-1]))
                wide = torch.promote_types(states.dtype, torch.float32)
                return (states.to(wide) * (1 + size * noise.to(states.device)[place].to(wide))).to(states.dtype)

            with edited(self.loaded.model, self.stack, edit, [EMBEDDINGS]):
                yield

    def _noise(self, draw: int, n_tokens: int, width: int) -> np.ndarray:
        """ε, standard normal, float32 [token, dim]; more tokens add rows and change none."""
        known = self._drawn.get(draw)
        if known is None or len(known) < n_tokens:
            random = np.random.default_rng([self.seed, draw])
            known = self._drawn[draw] = random.standard_normal((n_tokens, width)).astype(np.float32)
        return known[:n_tokens]


def token_places(states: "Tensor", masks: Sequence["Tensor"]) -> "Tensor":
    """The place of each token in its text, from 0, int [batch, token] or as `states` has its tokens; padding has any place."""
    import torch

    tokens = states.shape[:-1]
    for mask in masks:
        if mask.shape == tokens or (len(tokens) == 1 and mask.numel() == tokens[0]):
            return (mask.long().cumsum(1) - 1).clamp(min=0).reshape(tokens)
    of_text = tokens[1:] if len(tokens) > 1 else tokens
    return torch.arange(of_text.numel(), device=states.device).reshape(of_text).expand(tokens)
