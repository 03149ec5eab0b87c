"""The exact account of one dimension of a stream: what every part of the model adds to it, block by block.

    found = account(loaded, stack, 507, reading, batches, weigh)     # weigh(batch) -> weights of tokens [group, batch, token]
    found.values[layer + 1]                                         # [group], the embeddings first
    found.entries                                                   # of every layer they sum to that

A linear that writes to the stream adds read[k] · W[dim, k] for each of its inputs k: a neuron of an MLP, or a channel of a
head. A norm on the way is linear once its divisor is known: it multiplies all that it is given by weight[dim] / σ, takes its
mean away, and adds its bias. An expert adds what its router multiplies that by, to the tokens that it has; what the block's MLP
multiplies its experts and its shared expert by is told from its output. Sums are in float64; the model runs as it is, its
experts one by one.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from outlierlens.architectures import NO_EXPERT, BoundStack, Param, expert_of, live_parameters, packs_experts, weight_of
from outlierlens.architectures.live import is_multiplied_out
from outlierlens.architectures.stack import parameter
from outlierlens.data.texts import Batch
from outlierlens.errors import BadInput
from outlierlens.models.experts import ExpertCall, tapped_experts, unreached
from outlierlens.models.hooks import EMBEDDINGS, edited_calls, layer_name, tapped
from outlierlens.models.inputs import read_together
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn

Kind = Literal["carried", "embedding", "head", "neuron", "bias", "norm bias", "norm mean", "norm scale"]
TOLERANCE = 1e-5  # of the size of what is summed
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")  # how attention modules call their number of heads
Weigh = Callable[[Batch], "Tensor"]


@dataclass(frozen=True)
class TermEntry:
    """What one part of a model adds to the dimension, in one layer.

    Attributes:
        layer: the block, or `EMBEDDINGS`. kind: see `Kind`. name: module of the part. index: its head or neuron, or -1.
        expert: of which it is, or `NO_EXPERT`.
        values: what it adds [group]. columns: of a head, what each of its channels adds [group, channel].
        parameter: where its weights lie. places: of each weight, its place in the parameter.
    """

    layer: int
    kind: Kind
    name: str
    index: int
    values: np.ndarray
    columns: np.ndarray | None = None
    parameter: str = ""
    places: tuple[tuple[int, ...], ...] = ()
    expert: int = NO_EXPERT


@dataclass(frozen=True)
class Account:
    """All that is added to one dimension, over groups of tokens.

    Attributes:
        values: of the dimension after the embeddings and after each block [layer + 1, group].
        entries: of each layer they sum to its value.
        error: the largest |sum − value| of a token, as a share of the sizes that are summed.
        shares: of each state's sum of squares, less its mean where norms take that away, what the dimension makes
            [layer + 1, group].
        unreached: notes on experts that no token reached.
        factors: {(layer, module of a write, "" for the stream that comes in): constant that multiplies it}, where it is not 1.
    """

    values: np.ndarray
    entries: tuple[TermEntry, ...]
    error: float
    shares: np.ndarray
    unreached: tuple[str, ...] = ()
    factors: Mapping[tuple[int, str], float] = field(default_factory=dict)


@dataclass
class _Term:
    """One part's share of a state that is being added up: `amount` [batch, token, input], `scale` [batch, token].

    Of an expert [row, input] and [row], of the `tokens` [row] of the flat batch.
    """

    kind: Kind
    name: str
    amount: "Tensor"
    row: "Tensor"
    scale: "Tensor"
    parameter: str = ""
    places: tuple[tuple[int, ...], ...] = ()
    heads: int = 0
    expert: int = NO_EXPERT
    tokens: "Tensor | None" = None
    write: str = ""  # the module whose output is added to the stream: a linear, or the norm behind it

    def multiply(self, factor: "Tensor") -> None:
        """By a factor of each token [batch, token]."""
        self.scale = self.scale * (factor if self.tokens is None else factor.flatten()[self.tokens])

    def by_token(self, amount: "Tensor", like: "Tensor") -> "Tensor":
        """`amount`, like `scale`, of all tokens [batch, token]: 0 where it has none."""
        if self.tokens is None:
            return amount
        return (like * 0).view(-1).index_add(0, self.tokens, amount).view(like.shape)


@dataclass
class _RunningTerms:
    """The terms of the state that the running pass adds up, and sums over all passes."""

    loaded: LoadedModel
    stack: BoundStack
    dim: int
    terms: list[_Term] = field(default_factory=list)
    fresh: int = 0  # terms before it stand behind a norm already, where norms stand on writes
    sums: dict[tuple[int, Kind, str, int], tuple[_Term, np.ndarray]] = field(
        default_factory=dict
    )  # with [group, input]
    values: dict[int, np.ndarray] = field(default_factory=dict)
    shares: dict[int, np.ndarray] = field(default_factory=dict)
    factors: dict[tuple[int, str], float] = field(default_factory=dict)
    error: float = 0.0
    shape: tuple[int, int] = (0, 0)
    reached: set[tuple[int, int]] = field(default_factory=set)  # (layer, expert)


def account(
    loaded: LoadedModel,
    stack: BoundStack,
    dim: int,
    run: Callable[[Batch], None],
    batches: Iterable[Batch],
    weigh: Weigh,
) -> Account:
    """The account of `dim` over weighted sums of tokens, which `weigh` gives [group, batch, token].

    Raises:
        BadInput: the row names no single linear that writes last, or something writes that it does not name.
    """
    refuse(loaded, stack)
    state = _RunningTerms(loaded, stack, dim)

    def read(batch: Batch) -> float:
        mine = copy.copy(state)  # the pass has terms of its own, and adds to the sums of all
        mine.shape, mine.terms, mine.fresh = ((len(batch.valid), batch.valid.shape[1]), [], 0)
        with _watched(mine, batch, weigh(batch)):
            run(batch)
        return mine.error

    state.error = max(read_together(loaded, read, batches), default=0.0)
    entries = tuple(entry for key, sums in state.sums.items() for entry in _entries(key[0], *sums))
    layers = (EMBEDDINGS, *range(stack.n_layers))
    return Account(
        np.stack([state.values[layer] for layer in layers]), entries, state.error,
        np.stack([state.shares[layer] for layer in layers]), unreached(state.reached, _experts(loaded, stack)),
        {place: factor for place, factor in state.factors.items() if factor != 1},
    )  # fmt: skip


def _experts(loaded: LoadedModel, stack: BoundStack) -> list[tuple[int, int]]:
    """(layer, expert) of every expert that writes."""
    live, found = live_parameters(loaded.model), dict[tuple[int, int], None]()
    for layers in stack.linears.values():
        for layer, params in enumerate(layers):
            for one in params:
                weight = live[one.name]
                numbers = range(len(weight)) if packs_experts(one, weight.shape) else [expert_of(one.name)]
                found |= dict.fromkeys((layer, number) for number in numbers if number != NO_EXPERT)
    return list(found)


def factor_notes(found: Account, stack: BoundStack) -> tuple[str, ...]:
    """Which constants multiply what is added to the stream, in words."""
    each: dict[tuple[str, str], list[str]] = {}
    for (layer, module), factor in found.factors.items():
        name = module.removeprefix(f"{stack.blocks[layer]}.") or "the stream that a block is given"
        each.setdefault((name, f"{factor:.5g}"), []).append(layer_name(layer))
    return tuple(
        f"a constant multiplies {name} by {factor} in layer {', '.join(layers)}: measured, no row declares it"
        for (name, factor), layers in each.items()
    )


def refuse(loaded: LoadedModel, stack: BoundStack) -> None:
    """Raise BadInput where the row does not say which modules write."""
    what, live = f"{loaded.name}, stream {stack.name!r}", live_parameters(loaded.model)
    writers = {name: _params(stack, name) for name in (*stack.stack.last_linear, *stack.stack.other_writes)}
    for name, weights in writers.items():
        known = all(one.name.endswith(".weight") or packs_experts(one, live[one.name].shape) for one in weights)
        if name.endswith("()") and not known:
            raise BadInput(
                f"{what}: {name[:-2]} writes as a bare parameter, whose inputs cannot be seen; it has no account"
            )
        if lone := [one.name for one in weights if one.name.endswith(".weight") and live[one.name].ndim < 2]:
            raise BadInput(f"{what}: {lone[0]} multiplies one by one and is not a linear; it has no account")
    if any(map(is_multiplied_out, live.values())):
        raise BadInput(
            f"{what}: its linears round what they read (bitsandbytes), so it has no account; load it unquantized"
        )
    if stack.reads:
        raise BadInput(f"{what} is an MLP axis; name a residual stream")


def _params(stack: BoundStack, name: str) -> tuple[Param, ...]:
    """The weights of a declared linear in all layers."""
    return tuple(chain(*stack.linears.get(parameter(name, "weight"), ())))


@contextmanager
def _watched(state: _RunningTerms, batch: Batch, weights: "Tensor") -> Iterator[None]:
    """Add up the running pass; `weights` are of tokens [group, batch, token]."""
    stack, live = state.stack, live_parameters(state.loaded.model)
    modules = dict(state.loaded.model.named_modules())
    before: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
    after: dict[nn.Module, Callable[[Any], Any]] = {}
    experts: dict[str, Callable[[ExpertCall], None]] = {}
    for path in dict.fromkeys(stack.blocks):
        mixture = _Mixture(state)
        for name in (*stack.stack.other_writes, *stack.stack.last_linear):
            neurons = name in stack.stack.last_linear or name == stack.stack.mlp
            for param in (one for one in _params(stack, name) if one.name.startswith(f"{path}.")):
                module = param.name.removesuffix(".weight")
                if packs_experts(param, live[param.name].shape) or expert_of(param.name) != NO_EXPERT:
                    experts[param.name] = _expert(state, param, mixture)
                elif module in modules:
                    inner = module.removeprefix(f"{path}.")
                    before[modules[module]] = _shown(_linear(state, path, inner, neurons=neurons))
        mixture.watch(path, [one for one in experts if one.startswith(f"{path}.")], before, after)
        if stack.ends_in_norm:
            for name in (*stack.stack.other_norms, stack.stack.last_norm):
                if f"{path}.{name}" in modules:
                    before[modules[f"{path}.{name}"]] = _shown(_norm(state, f"{path}.{name}"))
    for name in (*stack.stack.embeddings, *stack.stack.embedding_linears):
        if (path := stack.prefix + name) in modules:
            after[modules[path]] = _shown(_table(state, path))
    if stack.embedding_norm:
        path = stack.prefix + stack.stack.embedding_norm
        before[modules[path]] = _shown(_norm(state, path, embeddings=True))

    def look(_: BoundStack, layer: int, states: "Tensor") -> None:
        _close(state, batch, weights, layer, states)

    with (
        edited_calls(state.loaded.model, before, after),
        tapped_experts(state.loaded.model, experts),
        tapped(state.loaded.model, [stack], look),
    ):
        yield


def _shown(look: "Callable[[Tensor], None]") -> "Callable[[Tensor], Tensor]":
    def through(values: "Tensor") -> "Tensor":
        look(values)
        return values

    return through


def _linear(state: _RunningTerms, block: str, name: str, *, neurons: bool) -> "Callable[[Tensor], None]":
    """Take what the linear `name` of a block reads as a term, and its bias as another."""
    parameters = live_parameters(state.loaded.model)
    path = f"{block}.{name}"
    shape = parameters[f"{path}.weight"].shape
    axis = state.stack.stack.axes.get(f"{name}.weight", -1 if state.stack.stack.weight_is_in_by_out else -2)
    n_inputs = shape[0] if axis == -1 else shape[1]
    places = tuple((k, state.dim) if axis == -1 else (state.dim, k) for k in range(n_inputs))
    heads = 0 if neurons else n_heads(state.loaded, block, name, n_inputs)
    times = f"{block}.{state.stack.stack.write_scales.get(name, '')}"

    def take(read: "Tensor") -> None:
        import torch

        there = state.loaded.model.get_submodule(path)  # whose weights are in memory now, or read
        row, bias = weight_of(there).detach().select(axis, state.dim).double(), weight_of(there, "bias")
        above, _, leaf = times.rpartition(".")
        scales = weight_of(state.loaded.model.get_submodule(above), leaf) if times in parameters else None
        factor = 1.0 if scales is None else float(scales.detach()[state.dim])
        amount = read.detach().double().reshape(*state.shape, -1)
        scale = torch.full(state.shape, factor, dtype=torch.float64, device=amount.device)
        kind: Kind = "neuron" if neurons else "head"
        made = [_Term(kind, path, amount, row, scale, f"{path}.weight", places, heads)]
        if bias is not None:
            made.append(_one("bias", path, bias[state.dim] * scale, f"{path}.bias", ((state.dim,),)))
        for term in made:
            term.write = path
        state.terms += made

    return take


def _expert(state: _RunningTerms, param: Param, mixture: "_Mixture") -> Callable[[ExpertCall], None]:
    """Take what an expert reads, of packed ones or alone, as a term of its tokens, and its bias as another."""
    live, name, axis = live_parameters(state.loaded.model), param.name, param.axis
    path, number = name.removesuffix(".weight"), expert_of(name)
    weight, packed = live[name].detach(), packs_experts(param, live[name].shape)
    bias = live.get(f"{name}_bias" if packed else f"{path}.bias")

    def take(call: ExpertCall) -> None:
        import torch

        if call.tokens is None or call.weights is None:
            raise BadInput(
                f"{state.loaded.name}: what the experts of {name} add to which tokens cannot be told; no account"
            )
        own = (call.expert,) if packed else ()
        row = weight[own].select(axis, state.dim).double()
        places = tuple((*own, k, state.dim) if axis == -1 else (*own, state.dim, k) for k in range(len(row)))
        terms = [_Term("neuron", path, call.read.detach().double(), row, call.weights, name, places)]
        if bias is not None:
            add = bias.detach()[own][state.dim].double().expand(len(call.tokens), 1)
            at = (f"{name}_bias" if packed else f"{path}.bias", ((*own, state.dim),))
            terms.append(_Term("bias", path, add, torch.ones_like(row[:1]), call.weights, *at))
        for term in terms:
            term.expert, term.tokens, term.write = (call.expert if packed else number), call.tokens, path
        state.terms += terms
        mixture.add(call)

    return take


class _Mixture:
    """What the MLP of a block multiplies its experts, and what stands beside them, by: told from its output, token by token."""

    def __init__(self, state: _RunningTerms):
        self.state = state
        self.first = 0  # of its terms
        self.experts: Tensor | None = None  # what all experts write [token, dim]
        self.beside: Tensor | None = None

    def watch(
        self, block: str, experts: Sequence[str], before: "dict[nn.Module, Any]", after: "dict[nn.Module, Any]"
    ) -> None:
        """Hang it on the MLP that holds the experts of a block, and on the linears of `before` in it."""
        if not experts:
            return
        path = f"{block}.{experts[0].removeprefix(f'{block}.').partition('.')[0]}"
        for name, module in self.state.loaded.model.get_submodule(path).named_modules():
            if module in before and name:
                after[module] = _shown(self._give)
        mlp = self.state.loaded.model.get_submodule(path)
        before[mlp], after[mlp] = self._begin, self._end

    def add(self, call: ExpertCall) -> None:
        """Take what an expert writes."""
        import torch

        assert call.tokens is not None
        assert call.weights is not None
        if self.experts is None:
            width = call.given.shape[-1]
            self.experts = torch.zeros(call.n_tokens, width, dtype=torch.float64, device=call.given.device)
        self.experts.index_add_(0, call.tokens, call.given.detach().double() * call.weights[:, None])

    def _begin(self, states: "Tensor") -> "Tensor":
        self.first, self.experts, self.beside = len(self.state.terms), None, None
        return states

    def _give(self, states: "Tensor") -> None:
        flat = states.detach().double().reshape(-1, states.shape[-1])
        self.beside = flat if self.beside is None else self.beside + flat

    def _end(self, output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        made = states.detach().double().reshape(-1, states.shape[-1])
        if self.experts is not None:
            beside = made * 0 if self.beside is None else self.beside
            size = self.experts.norm(dim=1) + beside.norm(dim=1)
            if bool(((made - self.experts - beside).norm(dim=1) > TOLERANCE / 10 * size).any()):
                of_experts, of_beside = _multiples(made, self.experts, beside)
                for term in self.state.terms[self.first :]:
                    factor = of_beside if term.expert == NO_EXPERT else of_experts
                    term.multiply(factor.reshape(self.state.shape))
        return output


def _multiples(made: "Tensor", one: "Tensor", other: "Tensor") -> "tuple[Tensor, Tensor]":
    """a and b [token] for which a · one + b · other is nearest to `made`, all [token, dim]."""
    inner, across, outer = (one * one).sum(1), (one * other).sum(1), (other * other).sum(1)
    to_one, to_other = (made * one).sum(1), (made * other).sum(1)
    size = inner * outer - across.square()
    flat = size <= 1e-20 * inner * outer  # one of them is 0, or both point the same way
    size = size.masked_fill(flat, 1.0)
    alone = to_one / inner.masked_fill(inner == 0, 1.0)
    beside = (to_other - alone * across) / outer.masked_fill(outer == 0, 1.0)
    return (
        alone.where(flat, (to_one * outer - to_other * across) / size),
        beside.where(flat, (to_other * inner - to_one * across) / size),
    )


def _one(kind: Kind, name: str, values: "Tensor", parameter: str = "", places: Any = ()) -> _Term:
    """A term of one number a token, [batch, token]."""
    import torch

    wide = values.detach().double()
    row = torch.ones(1, dtype=torch.float64, device=wide.device)
    return _Term(kind, name, wide[..., None], row, torch.ones_like(wide), parameter, places)


def _norm(state: _RunningTerms, path: str, *, embeddings: bool = False) -> "Callable[[Tensor], None]":
    """Have a norm multiply the terms that it is given, take its mean away and add its bias."""
    module: Any = state.loaded.model.get_submodule(path)
    offset = state.stack.stack.norm_offset

    def take(given: "Tensor") -> None:
        wide = given.detach().double().reshape(*state.shape, -1)
        if embeddings:
            _rest(state, wide[..., state.dim])
        mean, sigma = _moments(module, wide)
        weight, bias = weight_of(module), weight_of(module, "bias")
        factor = (1.0 if weight is None else offset + float(weight[state.dim])) / sigma
        on_stream = embeddings or state.stack.stack.norm_site == "stream"
        for term in state.terms[0 if on_stream else state.fresh :]:
            term.multiply(factor)
            if not on_stream:
                term.write = path
            if term.kind == "carried" and weight is not None:
                term.name, term.parameter, term.places = (path, f"{path}.weight", ((state.dim,),))
        n_before = len(state.terms)
        if mean is not None:
            state.terms.append(_one("norm mean", path, -mean * factor))
        if bias is not None:
            state.terms.append(
                _one("norm bias", path, bias[state.dim].expand(state.shape), f"{path}.bias", ((state.dim,),))
            )
        for term in state.terms[n_before:]:
            term.write = path
        state.fresh = len(state.terms)

    return take


def _moments(module: Any, wide: "Tensor") -> "tuple[Tensor | None, Tensor]":
    """(mean [batch, token], or None where the norm takes none away; the divisor [batch, token])."""
    import torch
    from torch import nn

    named = [getattr(module, name, None) for name in ("eps", "variance_epsilon", "epsilon")]
    eps = next((float(one) for one in named if one is not None), torch.finfo(torch.float32).eps)
    if isinstance(module, nn.LayerNorm) or getattr(module, "bias", None) is not None:
        mean = wide.mean(-1)
        return mean, (wide.var(-1, correction=0) + eps).sqrt()
    return None, (wide.square().mean(-1) + eps).sqrt()


def _table(state: _RunningTerms, path: str) -> "Callable[[Tensor], None]":
    """Take what a table or a linear of the embeddings gives as a term."""

    def take(given: "Tensor") -> None:
        values = given[..., state.dim] if given.ndim in (2, 3) else None
        try:
            wide = None if values is None else values.detach().double().expand(state.shape)
        except RuntimeError:  # a convolution's picture, or places of another axis: it stays among the rest
            wide = None
        if wide is not None:
            state.terms = [term for term in state.terms if term.name != path]
            state.terms.append(_one("embedding", path, wide, f"{path}.weight"))

    return take


def _rest(state: _RunningTerms, total: "Tensor") -> None:
    """Add what the embeddings hold beside the tables that were seen; one table alone is all of them."""
    tables = state.terms
    if len(state.stack.stack.embeddings) == 1 and not state.stack.stack.embedding_linears and len(tables) == 1:
        tables[0].amount = total[..., None]  # some families multiply the table by a constant
        return
    left = total - sum(term.amount[..., 0] for term in tables) if tables else total
    size = total.abs() + sum(term.amount[..., 0].abs() for term in tables)
    if bool((left.abs() > TOLERANCE * size).any()):
        state.terms.append(_one("embedding", "rest", left))


def _close(state: _RunningTerms, batch: Batch, weights: "Tensor", layer: int, states: "Tensor") -> None:
    """The layer's state is there: check its terms against it, add them to the sums, and begin the next layer's."""
    import torch

    wide = states.detach().double()
    value = wide[..., state.dim]
    if layer == EMBEDDINGS and not state.stack.embedding_norm:
        _rest(state, value)
    weigh = weights.to(value)
    sums = [term.by_token((term.amount @ term.row) * term.scale, value) for term in state.terms]
    sizes = [term.by_token((term.amount.abs() @ term.row.abs()) * term.scale.abs(), value) for term in state.terms]
    worst = _miss(sums, value, sizes, batch.valid)
    if layer != EMBEDDINGS and (state.factors or not worst <= TOLERANCE):
        factors = _factors(state, layer, sums, value, batch.valid)
        sums = [one * factor for one, factor in zip(sums, factors, strict=True)]
        sizes = [one * abs(factor) for one, factor in zip(sizes, factors, strict=True)]
        worst = _miss(sums, value, sizes, batch.valid)
        for term, factor in zip(state.terms, factors, strict=True):
            term.scale = term.scale * factor
    for term in state.terms:
        flat = weigh.flatten(1) if term.tokens is None else weigh.flatten(1)[:, term.tokens]
        amount = torch.einsum("gn,n,ni->gi", flat, term.scale.flatten(), term.amount.flatten(0, -2)) * term.row
        if term.tokens is not None and bool(batch.valid.flatten()[term.tokens].any()):
            state.reached.add((layer, term.expert))
        key = (layer, term.kind, term.name, term.expert)
        _, held = state.sums.setdefault(key, (term, np.zeros(tuple(amount.shape))))
        held += amount.cpu().numpy()
    if not worst <= TOLERANCE:
        raise BadInput(
            f"{state.loaded.name}, stream {state.stack.name!r}: in layer {layer_name(layer)} the parts that its row declares "
            f"miss the value of dimension {state.dim} by {worst:.2g} of their size; something else writes there"
        )
    state.error = max(state.error, worst)
    centred = wide - wide.mean(-1, keepdim=True) if _reads_centred(state) else wide
    share = centred[..., state.dim] ** 2 / centred.square().sum(-1).clamp(min=1e-300)
    for into, what in ((state.values, value), (state.shares, share)):
        now = torch.einsum("gbt,bt->g", weigh, what * batch.valid).cpu().numpy()
        into[layer] = into.get(layer, 0.0) + now
    state.terms, state.fresh = [_one("carried", "", value)], 1


def _miss(sums: "list[Tensor]", value: "Tensor", sizes: "list[Tensor]", valid: "Tensor") -> float:
    """By how much of their sizes the sums of terms [batch, token] miss the value, at the worst token."""
    zero = value - value
    off = ((sum(sums, zero) - value).abs() / sum(sizes, zero).clamp(min=1e-30))[valid]
    return float(off.max()) if len(off) else 0.0


def _factors(state: _RunningTerms, layer: int, sums: "list[Tensor]", value: "Tensor", valid: "Tensor") -> list[float]:
    """The constant of each term's write in this block: those known, else those that make the account exact, else 1 [term].

    Constants are found by least squares over the tokens of a batch that has twice as many as there are writes.
    """
    import torch

    writes = list(dict.fromkeys(term.write for term in state.terms))
    if any((layer, write) not in state.factors for write in writes):
        grouped = [
            sum((one for one, term in zip(sums, state.terms, strict=True) if term.write == write), value - value)
            for write in writes
        ]
        columns = torch.stack([one[valid] for one in grouped], -1)  # [token, write]
        if len(columns) < 2 * len(writes):
            return [1.0] * len(sums)
        sizes = columns.norm(dim=0).clamp(min=1e-30)  # columns of one size: the constants may differ by far
        found = torch.linalg.lstsq(columns / sizes, value[valid][:, None], driver="gelsd").solution[:, 0] / sizes
        state.factors |= {
            (layer, write): 1.0 if abs(factor - 1) < TOLERANCE else factor
            for write, factor in zip(writes, found.tolist(), strict=True)
        }
    return [state.factors[layer, term.write] for term in state.terms]


def _reads_centred(state: _RunningTerms) -> bool:
    """Whether the norms that read the stream take its mean away."""
    from torch import nn

    norms = [param.name for params in state.stack.reading for param in params] or [p.name for p in state.stack.scale[0]]
    module = state.loaded.model.get_submodule(norms[0].rpartition(".")[0])
    return isinstance(module, nn.LayerNorm) or getattr(module, "bias", None) is not None


def _entries(layer: int, term: _Term, values: np.ndarray) -> Iterator[TermEntry]:
    if term.kind == "neuron":
        for k in range(values.shape[1]):
            place = term.places[k : k + 1]
            yield TermEntry(layer, "neuron", term.name, k, values[:, k], None, term.parameter, place, term.expert)
    elif term.kind == "head":
        width = values.shape[1] // term.heads
        for head in range(term.heads):
            part = slice(head * width, (head + 1) * width)
            columns = values[:, part]
            yield TermEntry(layer, "head", term.name, head, columns.sum(1), columns, term.parameter, term.places[part])
    else:
        yield TermEntry(layer, term.kind, term.name, -1, values[:, 0], None, term.parameter, term.places, term.expert)


def n_heads(loaded: LoadedModel, block: str, name: str, width: int) -> int:
    """Heads of the attention whose output linear is `name` of a block and reads `width` channels."""
    modules = dict(loaded.model.named_modules())
    path = f"{block}.{name}"
    while path != block:
        path = path.rpartition(".")[0]
        for inner, module in modules.items():
            if inner != path and not inner.startswith(f"{path}."):
                continue
            for holder in (module, getattr(module, "config", None)):
                for count in COUNTS:
                    n = getattr(holder, count, None)
                    if isinstance(n, int) and n > 0 and width % n == 0:
                        return n
    raise BadInput(f"{loaded.name}: {block}.{name} does not say how many heads write through it; it has no account")
