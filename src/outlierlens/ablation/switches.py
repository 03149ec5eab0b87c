"""Switch dimensions off, as context managers that restore every value bit for bit.

    with zeroed_weights(model, [308, 381]):         # scale and bias of each block's last operation
        model(**batch)
    with zeroed_norms(model, [187, 759]):           # scale and bias of every norm of the blocks, and the final one
        ...
    with edited_hidden(model, [507], mode="zero"):  # the activation inside the running network
        ...
    with removed_writes(model, [507]):              # everything that writes to the dimension
        ...
    clip(states, [557])                             # Luo et al.: extracted vectors, post hoc; not the network
    with collected(loaded, stack, dims) as sums:    # mean values at every position, for mode "position mean"
        ...

`dims` is a sequence of dimensions, or a mapping {layer: dims} where layers differ.
The three ablations agree only where blocks end in a norm of the stream (post-norm): elsewhere the residual path still
carries what other layers wrote.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import outlierlens.architectures as arch
from outlierlens.architectures import BoundStack, Param
from outlierlens.errors import BadInput, near
from outlierlens.models.changes import BY_BLOCK, OfPass, SettableParameters, temporary
from outlierlens.models.hooks import EMBEDDINGS, edited, tapped, valid_tokens
from outlierlens.models.load import LoadedModel, config_dict, stream_width
from outlierlens.view.section import runs

if TYPE_CHECKING:
    from torch import Tensor, nn

Dims = Sequence[int] | Mapping[int, Sequence[int]]
EditMode = Literal["zero", "mean", "position mean", "scale", "scale once", "resample"]
EDIT_MODES: tuple[EditMode, ...] = ("zero", "mean", "position mean", "scale", "scale once", "resample")
EditTokens = Literal["all", "first", "rest"]
EDIT_TOKENS: tuple[EditTokens, ...] = ("all", "first", "rest")


@temporary
def zeroed_weights(
    model: "LoadedModel | nn.Module", dims: Dims, *, layers: Sequence[int] | None = None, stack: str | None = None
) -> Iterator[int]:
    """Set scale and bias of each block's last operation to zero at `dims`; yields the number of values set.

    Kovaleva et al. (2021). Post-norm blocks: 2·|D|·L values (48 for two dimensions of BERT-base). Others: the weights
    of the last linear that write to the dimension, and its bias: (d_ff + 1)·|D|·L in GPT-2, d_ff·|D|·L in Llama.
    Norms that multiply by 1 + weight are set to −1. On an MLP axis ("mlp"): the neurons' columns of the last linear. On
    "experts", {layer: experts}: all of their last linears and its bias, so that they give 0; the router chooses as before.

    Raises:
        BadInput: an unknown layer or dimension, or some alone of the layers that run one block (ALBERT).
    """
    module, bound, plan = _planned(model, stack, dims, layers)
    with ExitStack() as undo:
        yield _switch_off(module, _last_operation(bound, plan), undo)


@temporary
def zeroed_norms(
    model: "LoadedModel | nn.Module", dims: Dims, *, layers: Sequence[int] | None = None, stack: str | None = None
) -> Iterator[int]:
    """Set scale and bias of every norm of the blocks to zero at `dims`; yields the number of values set.

    What Puccetti et al. (2022) did to ViT in their released code: norms on what attention and MLP read, on the stream, and
    the final norm, which goes with the last layer (a window that leaves the last layer out leaves it as it is). Norms of the
    embeddings stay. Norms that multiply by 1 + weight are set to −1.

    Raises:
        BadInput: the blocks have no norm, or what `zeroed_weights` raises.
    """
    module, bound, plan = _planned(model, stack, dims, layers)
    targets = [(param, off) for layer, off in plan.items() for norm in bound.norms.values() for param in norm[layer]]
    if bound.n_layers - 1 in plan:
        targets += [(param, plan[bound.n_layers - 1]) for param in bound.final_norm]
    if not targets:
        raise BadInput(f"stream {bound.name!r} declares no norm in these layers; use another ablation")
    with ExitStack() as undo:
        yield _switch_off(module, targets, undo)


def zero_weights_(
    model: "LoadedModel | nn.Module", dims: Dims, *, layers: Sequence[int] | None = None, stack: str | None = None
) -> int:
    """Set for good what `zeroed_weights` sets while it lasts; the number of values set."""
    module, bound, plan = _planned(model, stack, dims, layers)
    with _set_for_good(module, _last_operation(bound, plan)) as n_values:
        return n_values


@temporary
def _set_for_good(module: "nn.Module", targets: list[tuple[Param, tuple[int, ...]]]) -> Iterator[int]:
    with ExitStack() as undo:  # a failure or an interrupt halfway changes nothing
        n_values = _switch_off(module, targets, undo)
        undo.pop_all()
    yield n_values


@temporary
def removed_writes(
    model: "LoadedModel | nn.Module",
    dims: Dims,
    *,
    layers: Sequence[int] | None = None,
    stack: str | None = None,
    embeddings: bool = False,
) -> Iterator[int]:
    """Remove every write to `dims`: attention and MLP output rows and biases, and biases of norms on the stream.

    With `embeddings`, the embedding tables' columns and the embedding norm as well; tied output embeddings lose the
    dimension too. Yields the number of values set.

    Raises:
        BadInput: as `zeroed_weights`.
    """
    module, bound, plan = _planned(model, stack, dims, layers)
    arch.refuse_packed(module, bound.blocks)
    if bound.kind != "dimension":
        raise BadInput(f"stream {bound.name!r}: nothing is declared to write to {bound.kind}s; use mode weights")
    targets = [(param, off) for layer, off in plan.items() for param in bound.writes[layer]]
    if embeddings:
        everywhere = tuple(sorted({dim for off in plan.values() for dim in off}))
        targets += [(param, everywhere) for param in (*bound.embeddings, *bound.embedding_norm)]
    with ExitStack() as undo:
        yield _switch_off(module, targets, undo)


# --- means by position ---------------------------------------------------------------------------------------------
#
# A position is the number of valid tokens before a token in its row: 0 is the first token of what the model reads at once,
# wherever padding stands. Padding is never counted. Sums add up, so those of all texts less those of some are those of the
# others.


@dataclass(frozen=True)
class PositionMeans:
    """Mean values `values` [layer, position + 1, column] of the dimensions `dims` [column].

    The last row is the mean over all tokens: it stands for positions that are not in the table.
    """

    dims: tuple[int, ...]
    values: np.ndarray

    def columns(self, dims: Sequence[int]) -> list[int]:
        """Places of `dims` in the table; raises BadInput for one that is not in it."""
        places = {dim: column for column, dim in enumerate(self.dims)}
        missing = [dim for dim in dims if dim not in places]
        if missing:
            raise BadInput(f"the means hold no dimension {missing[0]}; collect them for all dimensions that are edited")
        return [places[dim] for dim in dims]


@dataclass
class PositionSums:
    """Sums of hidden values by layer and position.

    Attributes:
        dims: dimensions of the columns.
        sums: [layer, position, column]. counts: tokens at each position [position].
    """

    dims: tuple[int, ...]
    sums: np.ndarray
    counts: np.ndarray

    def add(self, layer: int, states: "Tensor", valid: "Tensor") -> None:
        """Add the valid tokens of `states` [batch, token, dim]; `valid` is bool [batch, token]."""
        import torch

        places = positions(valid)[valid].cpu()
        index = torch.tensor(self.dims, device=states.device)
        values = states[valid].index_select(1, index).detach().cpu().double()  # [token, column]
        length = int(places.max()) + 1 if len(places) else 0
        if length > len(self.counts):
            longer = self._longer(length)
            self.sums, self.counts = longer.sums, longer.counts
        np.add.at(self.sums[layer], places.numpy(), values.numpy())
        if layer == 0:
            np.add.at(self.counts, places.numpy(), 1)

    @property
    def n_tokens(self) -> int:
        """Tokens that were added up."""
        return int(self.counts.sum())

    def plus(self, other: "PositionSums", sign: int = 1) -> "PositionSums":
        """Both together; with `sign` −1 this without `other`, which is a part of it."""
        length = max(len(self.counts), len(other.counts))
        mine, theirs = self._longer(length), other._longer(length)
        return PositionSums(self.dims, mine.sums + sign * theirs.sums, mine.counts + sign * theirs.counts)

    def means(self, width: int) -> np.ndarray:
        """Mean over all tokens, [layer, `width`]; NaN for dimensions that were not collected.

        Raises:
            BadInput: no token was added up.
        """
        found = np.full((len(self.sums), width), np.nan)
        found[:, list(self.dims)] = self._overall()
        return found

    def position_means(self) -> PositionMeans:
        """Means at every position; where no token was, the mean over all tokens.

        Raises:
            BadInput: no token was added up.
        """
        overall = self._overall()[:, None]  # [layer, 1, column]
        seen = self.counts > 0
        means = self.sums / np.where(seen, self.counts, 1)[None, :, None]
        return PositionMeans(
            self.dims, np.concatenate([np.where(seen[None, :, None], means, overall), overall], axis=1)
        )

    def _overall(self) -> np.ndarray:
        if not self.n_tokens:
            raise BadInput("no token to take the mean over; give at least one text")
        return np.asarray(self.sums.sum(1) / self.n_tokens)

    def _longer(self, length: int) -> "PositionSums":
        more = length - len(self.counts)
        sums = np.pad(self.sums, ((0, 0), (0, more), (0, 0)))
        return PositionSums(self.dims, sums, np.pad(self.counts, (0, more)))


@temporary
def collected(loaded: LoadedModel, stack: "BoundStack", dims: Sequence[int]) -> Iterator[PositionSums]:
    """Add up the values of `dims` in each block's output, in every forward pass inside the block."""
    found = PositionSums(tuple(dims), np.zeros((stack.n_layers, 0, len(dims))), np.zeros(0, dtype=np.int64))
    with valid_tokens(loaded.model) as mask_of:

        def look(_: "BoundStack", layer: int, states: "Tensor") -> None:
            if layer != EMBEDDINGS:
                found.add(layer, states, mask_of(states))

        with tapped(loaded.model, [stack], look):
            yield found


def positions(valid: "Tensor") -> "Tensor":
    """Number of valid tokens before each token of its row, int [batch, token], from bool `valid` [batch, token]."""
    return (valid.long().cumsum(1) - 1).clamp_min(0)


def first_tokens(valid: "Tensor") -> "Tensor":
    """The first valid token of each row: bool [batch, token] from bool `valid` [batch, token]."""
    return valid & (valid.long().cumsum(1) == 1)


# --- edits of hidden states -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EditSettings:
    """Settings of `edited_hidden`'s modes."""

    factor: float = 0.5
    """Modes "scale" and "scale once" multiply by it."""
    means: np.ndarray | None = None
    """Mode "mean" puts means[layer, dim] in place; see `mean_states`."""
    position_means: PositionMeans | None = None
    """Mode "position mean" puts these in place; see `position_means`."""
    seed: int = 0
    """Mode "resample" permutes values among the batch's tokens with this seed."""
    tokens: EditTokens = "all"
    """Tokens to edit: "all", the "first" of each row without padding, or the "rest"."""


@temporary
def edited_hidden(
    model: "LoadedModel | nn.Module",
    dims: Dims,
    mode: EditMode = "zero",
    *,
    layers: Sequence[int] | None = None,
    stack: str | None = None,
    settings: EditSettings | None = None,
) -> Iterator[int]:
    """Edit the output of each block at `dims` in the running network; parameters stay as they are (yields 0).

    "zero" sets to 0, "mean" to the dimension's mean in that layer, "position mean" to its mean there at the token's
    position, "scale" multiplies by a factor, "resample" permutes the values among all edited tokens of the batch, which
    keeps the distribution and destroys the information.

    Where the stream goes on from block to block (pre-norm), "scale" multiplies in every block what the one before has
    multiplied already: × 2 in 30 layers is × 2³⁰ for what the first wrote. "scale once" leaves out what the edits before
    have added, so that the stream holds `factor` times what the blocks wrote. Where blocks end in a norm of the stream
    nothing is carried on as it is, and the two are the same.

    Raises:
        BadInput: unknown mode, tokens or dimension, no means for "mean" or "position mean", or a compiled model.
    """
    import torch

    settings = settings or EditSettings()
    if mode not in EDIT_MODES:
        raise BadInput(f"unknown mode {mode!r}; modes are {', '.join(EDIT_MODES)}{near(mode, EDIT_MODES)}")
    if settings.tokens not in EDIT_TOKENS:
        raise BadInput(f"unknown tokens {settings.tokens!r}; they are {', '.join(EDIT_TOKENS)}")
    module, bound = _resolve(model, stack)
    if mode == "resample" and hasattr(module, BY_BLOCK):
        raise BadInput(
            "resample draws pass by pass, so it needs the model whole; load it without by_block (--no-by-block)"
        )
    plan = plan_dims(bound, stream_width(module, bound), dims, layers)
    change = _WeightChange(mode, settings, plan, bound)
    at = {layer: torch.tensor(off) for layer, off in plan.items()}

    with valid_tokens(module) as mask_of:

        def edit(layer: int, states: "Tensor") -> "Tensor":
            index = at[layer].to(states.device)
            valid = mask_of(states)
            first = first_tokens(valid)
            here = {"all": valid, "first": first, "rest": valid & ~first}[settings.tokens]
            old = states[..., index]  # [batch, token, dim that is off]
            new = change(layer, old, valid, here)
            changed = states.clone()
            changed[..., index] = new if settings.tokens == "all" else torch.where(here[..., None], new, old)
            return changed

        with edited(module, bound, edit, sorted(plan)):
            yield 0


class _WeightChange:
    """What `edited_hidden` puts in place of values, mode by mode."""

    def __init__(self, mode: EditMode, settings: EditSettings, plan: dict[int, tuple[int, ...]], bound: BoundStack):
        import torch

        self.mode, self.settings = mode, settings
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._plan, self._first = plan, min(plan)
        self._goes_on = bound.stack.norm_site != "stream" and not bound.reads
        self._carried: OfPass[dict[int, Tensor]] = OfPass(
            dict
        )  # [batch, token] by dimension: what the pass's edits added
        self._tables: dict[int, Tensor] = {}  # [position + 1, dim that is off]; of "mean" one row for all positions
        if mode not in ("mean", "position mean"):
            return
        by_position = settings.position_means
        if mode == "mean" and settings.means is None:
            raise BadInput('mode "mean" needs EditSettings(means=…): [layer, dim], from mean_states()')
        if mode == "position mean" and by_position is None:
            raise BadInput('mode "position mean" needs EditSettings(position_means=…), from position_means.collected()')
        given = settings.means if mode == "mean" else by_position.values if by_position else None
        assert given is not None
        if len(given) != bound.n_layers:
            raise BadInput(f"means has {len(given)} layers; the stream has {bound.n_layers}")
        for layer, off in plan.items():
            columns = list(off) if mode == "mean" or by_position is None else by_position.columns(off)
            self._tables[layer] = torch.tensor(np.atleast_2d(given[layer])[:, columns])

    def __call__(self, layer: int, old: "Tensor", valid: "Tensor", here: "Tensor") -> "Tensor":
        """The new values [batch, token, dim that is off] in place of `old`, of tokens `here`, bool [batch, token]."""
        import torch

        if self.mode == "zero":
            return torch.zeros_like(old)
        if self.mode == "scale":
            return old * self.settings.factor
        if self.mode == "scale once":
            return self._scaled_once(layer, old, here)
        if self.mode == "resample":
            shuffled = torch.randperm(int(here.sum()), generator=self._generator).to(old.device)
            new = old.clone()
            new[here] = old[here][shuffled]
            return new
        table = self._tables[layer].to(old)
        return table[positions(valid).clamp_max(len(table) - 1)]

    def _scaled_once(self, layer: int, old: "Tensor", here: "Tensor") -> "Tensor":
        import torch

        if layer == self._first:
            self._carried().clear()
        none = torch.zeros_like(old[..., 0])
        carried = torch.stack([self._carried().get(dim, none) for dim in self._plan[layer]], dim=-1)
        written = old - carried
        if self._goes_on:
            added = (self.settings.factor - 1) * written * here[..., None]
            self._carried().update({dim: added[..., i] for i, dim in enumerate(self._plan[layer])})
        return self.settings.factor * written


def mean_states(
    loaded: LoadedModel, batches: Any, *, stack: str | None = None, run: Callable[[Any], None] | None = None
) -> np.ndarray:
    """Mean hidden state of each block's output over valid tokens: float64 [layer, dim], for `edited_hidden("mean")`.

    `run` is the pass on a batch; by default the whole model's on texts.
    """
    import torch

    from outlierlens.models.inputs import model_inputs

    bound = loaded.axis(stack)
    total: dict[int, Tensor] = {}
    count = 0
    for batch in batches:

        def look(_: BoundStack, layer: int, states: "Tensor", valid: "Tensor" = batch.valid) -> None:
            if layer != EMBEDDINGS:
                part = states[valid].sum(0, dtype=torch.float64).cpu()
                total[layer] = total[layer] + part if layer in total else part

        with torch.inference_mode(), tapped(loaded.model, [bound], look):
            run(batch) if run else loaded.model(**model_inputs(loaded, batch))
        count += int(batch.valid.sum())
    if not count:
        raise BadInput("no token to take the mean over; give at least one text")
    return torch.stack([total[layer] for layer in range(bound.n_layers)]).numpy() / count


def clip(states: Any, dims: Sequence[int]) -> Any:
    """A copy of extracted vectors [..., dim] (NumPy or torch) with `dims` set to zero.

    Luo et al. (2021), section 4: post hoc, on vectors that the intact network produced.
    """
    check_dims(dims, states.shape[-1], "these vectors")
    copied = states.clone() if hasattr(states, "clone") else np.array(states)
    copied[..., list(dims)] = 0
    return copied


def plan_dims(
    bound: BoundStack, width: int, dims: Dims, layers: Sequence[int] | None = None
) -> dict[int, tuple[int, ...]]:
    """{layer: dimensions off}, checked against the stream's layers and its `width`; shared by all ablations.

    Raises:
        BadInput: an unknown layer, or a dimension that is unknown or repeated.
    """
    wanted = range(bound.n_layers) if layers is None else layers
    if isinstance(dims, str):
        raise BadInput(f"dims is {dims!r}; give dimensions, such as 308,381")
    if isinstance(dims, Mapping):
        if layers is not None:
            raise BadInput("give either {layer: dims} or layers=, not both")
        plan = {layer: tuple(off) for layer, off in dims.items() if len(off)}
    else:
        plan = {layer: tuple(dims) for layer in wanted}
    for layer, off in plan.items():
        if not 0 <= layer < bound.n_layers:
            raise BadInput(f"layer {layer} does not exist; stream {bound.name!r} has layers 0 to {bound.n_layers - 1}")
        check_dims(off, width, f"stream {bound.name!r}")
        if bound.kind == "expert" and not bound.scale[layer]:
            raise BadInput(f"layer {layer} of stream {bound.name!r} has no experts")
    if not any(plan.values()):
        raise BadInput("no dimension to ablate; give at least one")
    return plan


def check_shared(bound: BoundStack, plan: Mapping[int, Sequence[int]]) -> None:
    """Raise BadInput where `plan`, {layer: dims}, has a block that several layers run off in some of them alone.

    Its weights are one: they are off in all of these layers or in none.
    """
    for layers in bound.block_layers:
        if len({frozenset(plan.get(layer, ())) for layer in layers}) > 1:
            raise BadInput(
                f"stream {bound.name!r}: layers {runs(layers)} run one block, whose weights are ablated in all of these "
                f"layers or in none; name all of them, or edit what each layer gives (mode zero)"
            )


def _planned(
    model: "LoadedModel | nn.Module", stack: str | None, dims: Dims, layers: Sequence[int] | None
) -> tuple["nn.Module", BoundStack, dict[int, tuple[int, ...]]]:
    """The module, its stream, and what is off in its weights by layer."""
    module, bound = _resolve(model, stack, experts=True)
    plan = plan_dims(bound, stream_width(module, bound), dims, layers)
    check_shared(bound, plan)
    return module, bound, plan


def check_dims(dims: Sequence[int], width: int, where: str) -> None:
    """Raise BadInput for a dimension that is not among the `width` of `where`, or repeated."""
    bad = [
        dim for dim in dims if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or not 0 <= dim < width
    ]
    if bad:
        raise BadInput(f"dimension {bad[0]!r} does not exist; {where}: dimensions 0 to {width - 1}")
    if len(set(dims)) != len(dims):
        raise BadInput(f"a dimension is repeated in {list(dims)}")


def _resolve(
    model: "LoadedModel | nn.Module", stack: str | None, *, experts: bool = False
) -> tuple["nn.Module", BoundStack]:
    if isinstance(model, LoadedModel):
        return model.model, model.axis(stack, experts=experts)
    bound = arch.bind_live(arch.stacks_of(config_dict(model), type(model).__name__), model)
    return model, LoadedModel(type(model).__name__, model, None, "none", bound).axis(stack, experts=experts)


def _last_operation(bound: BoundStack, plan: dict[int, tuple[int, ...]]) -> list[tuple[Param, tuple[int, ...]]]:
    return [(param, off) for layer, off in plan.items() for param in (*bound.scale[layer], *bound.bias[layer])]


def _switch_off(module: "nn.Module", targets: list[tuple[Param, tuple[int, ...]]], undo: ExitStack) -> int:
    """Set `targets` off in place until `undo` is closed; returns the number of values set."""
    import torch

    arch.refuse_sharded(module)
    settable = SettableParameters(undo, module)
    touched: dict[tuple[int, int], set[int]] = {}
    per_dim: dict[tuple[int, int], int] = {}
    for param, dims in targets:
        live = settable.parameters[param.name]
        axis = param.axis % live.ndim
        index = torch.tensor(dims)
        settable.set_values(param.name, (*[slice(None)] * axis, index), param.off)
        key = (id(live), axis)
        touched.setdefault(key, set()).update(dims)
        per_dim[key] = live.numel() // live.shape[axis]
    return sum(len(dims) * per_dim[key] for key, dims in touched.items())
