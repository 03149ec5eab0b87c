"""Pairs inside a block: what gives some channels times 2^e, what takes them times 2^-e, and outputs stay bit for bit.

    for pair in pairs_of(loaded):
        pair.kind, pair.where                          # "values", "model.layers.0.self_attn.o_proj"
    plan.pair(pair, exponents)                         # [channel]
    room(pair, peaks, 65504 / 4)                       # exponents with which all that was seen has room

- "neurons": rows of the up projection of a gated MLP, or before a ReLU, and columns of the last linear.
- "values": rows of what gives values, and columns of what reads their mix; heads that share a value share its factor.
- "keys": rows of what gives keys, and rows of what gives queries, whose products stay. Two dimensions that positions turn into
  one another share a factor. Where a norm follows, its weight takes the factor.
- "norms": weights of a norm that reads the stream, and columns of all that reads what it gives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.architectures.stack import PART, Heads, parameter
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["neurons", "values", "keys", "norms"]
# An activation that gives t·y for t·x, t > 0.
HOMOGENEOUS = ("relu", "leaky_relu", "linear")
Peaks = Mapping[tuple[str, str], "Tensor"]  # (module path, "reads" or "gives") -> largest |x| of each entry


@dataclass(frozen=True)
class Side:
    """A parameter, and the channel of each of its places: numbers that broadcast to its shape, −1 for none."""

    parameter: str
    channel: "Tensor"


@dataclass(frozen=True)
class Sight:
    """Where channels are seen while the model runs: entry by entry of what a module reads or gives, −1 for none."""

    path: str
    side: Literal["reads", "gives"]
    channel: "Tensor"


@dataclass(frozen=True)
class Pair:
    """Channels that can take a power of two each.

    Attributes:
        kind: of `Kind`. where: the module that reads them.
        gives, takes: parameters times 2^e and 2^-e. seen, inverse: where what is multiplied by 2^e, and by 2^-e, is seen.
        shared: the channel with which each shares its exponent [channel]: itself, or the first of its rotary pair.
        offset: whether the parameters are norms' weights that stand for 1 + weight.
    """

    kind: Kind
    where: str
    gives: tuple[Side, ...]
    takes: tuple[Side, ...]
    seen: tuple[Sight, ...]
    shared: "Tensor"
    inverse: tuple[Sight, ...] = ()
    offset: bool = False

    @property
    def packed(self) -> bool:
        """Whether these are neurons of packed experts."""
        return self.takes[0].channel.ndim > 2

    def largest(self, peaks: Peaks, inverse: bool = False) -> "Tensor | None":
        """Largest |x| of each channel [channel], a bound of it for two that are turned; None where nothing was seen."""
        import torch

        top = torch.zeros(len(self.shared), dtype=torch.float64)
        found = False
        for sight in self.inverse if inverse else self.seen:
            size = peaks.get((sight.path, sight.side))
            if size is None:
                continue
            found = True
            flat = size.double().flatten()
            # What a norm of single heads gives has its channels once for each head.
            channel = sight.channel.flatten().repeat(len(flat) // sight.channel.numel())
            kept = channel >= 0
            top.scatter_reduce_(0, channel[kept], flat[kept], "amax")
        if not found:
            return None
        squares = torch.zeros_like(top).index_add_(0, self.shared, top.square())
        return torch.where(squares.isfinite(), squares, torch.inf).sqrt()[self.shared]


def pairs_of(loaded: LoadedModel, kinds: tuple[str, ...] = ("neurons", "values", "keys", "norms")) -> list[Pair]:
    """Every pair of the model that its architecture's rows declare, blocks in order."""
    live = live_parameters(loaded.model)
    found = []
    for bound in loaded.stacks:
        makers = {"neurons": _neurons, "values": _values, "keys": _keys, "norms": _norms}
        for block in dict.fromkeys(bound.blocks):
            place = _Block(loaded, bound, block, live)
            found += [pair for kind in kinds for pair in makers[kind](place)]
    return found


def room(pair: Pair, peaks: Peaks, limit: float) -> "Tensor":
    """Exponents [channel] of the smallest size with which what was seen of a pair stays at or below `limit`.

    Of keys and queries either may come down, to the cost of the other.
    """
    down = over(pair.largest(peaks), limit, len(pair.shared))
    return over(pair.largest(peaks, inverse=True), limit, len(pair.shared)) - down if pair.inverse else -down


def over(top: "Tensor | None", limit: float, n: int) -> "Tensor":
    """ceil(log2(top / limit)), 0 at least [channel]; zeros of nothing."""
    import torch

    if top is None:
        return torch.zeros(n, dtype=torch.int)
    return torch.log2((top / limit).clamp(min=1)).ceil().int()


@dataclass(frozen=True)
class _Block:
    """One block of a live model, and how its linears lie."""

    loaded: LoadedModel
    bound: BoundStack
    path: str
    live: dict[str, Any]

    @property
    def config(self) -> Any:
        """The part of the config that is about this stream."""
        whole: Any = self.loaded.model.config
        return reduce(getattr, self.bound.stack.layers.split(".")[:-1], whole)

    def has(self, name: str, leaf: str = "weight") -> bool:
        """Whether the block has this linear."""
        return f"{self.path}.{parameter(_bare(name), leaf)}" in self.live

    def leaf(self, name: str, leaf: str = "weight") -> str:
        """Full name of a parameter of a linear."""
        return f"{self.path}.{parameter(_bare(name), leaf)}"

    def stream_axis(self, name: str, *, writes: bool) -> int:
        """The axis of a linear's weight, from the end, that runs over the stream's dimensions."""
        swapped = self.bound.stack.weight_is_in_by_out
        return self.bound.stack.axes.get(parameter(_bare(name), "weight"), -1 if writes == swapped else -2)

    def channels(self, name: str, *, writes: bool) -> "Tensor":
        """A number for each channel of a linear that is not the stream's [..., channel], experts in front."""
        import torch

        shape = list(self.live[self.leaf(name)].shape)
        if len(shape) > 1:
            del shape[self.stream_axis(name, writes=writes)]
        count = 1
        for size in shape:
            count *= size
        return torch.arange(count).reshape(shape)

    def gives(self, name: str, channel: "Tensor") -> list[Side]:
        """Weight and bias of a linear that reads the stream, by the channel of each thing it gives."""
        weight = self.live[self.leaf(name)]
        if weight.ndim == 1:
            return [Side(self.leaf(name), channel)]
        axis = self.stream_axis(name, writes=False)
        sides = [Side(self.leaf(name), channel.unsqueeze(axis if axis == -1 else -2))]
        return sides + ([Side(self.leaf(name, "bias"), channel)] if self.has(name, "bias") else [])

    def takes(self, name: str, channel: "Tensor") -> Side:
        """The weight of a linear that writes to the stream, by the channel of each thing it reads."""
        axis = self.stream_axis(name, writes=True)
        return Side(self.leaf(name), channel.unsqueeze(axis if axis == -1 else -2))

    def seen(self, name: str, side: Literal["reads", "gives"], channel: "Tensor") -> Sight:
        """Where channels of a module are seen."""
        return Sight(f"{self.path}.{_bare(name).removesuffix('()')}", side, channel)

    def head_width(self) -> int:
        """Channels of a head; raises BadInput where the config does not say."""
        width, heads = (getattr(self.config, name, 0) for name in ("hidden_size", "num_attention_heads"))
        found = getattr(self.config, "head_dim", None) or (width // heads if heads else 0)
        if not found:
            raise BadInput(
                f"{self.loaded.name}: its config does not say how wide heads are, so that their factors cannot be told apart; "
                f"add head_dim to it"
            )
        return int(found)

    def turned(self, width: int) -> int:
        """How many channels of a head positions turn."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        return int(width * rope.get("partial_rotary_factor", 1.0))

    def part(self, name: str, n_query: int) -> "Tensor":
        """The channel of each thing that a linear gives, −1 for what its name leaves out; see `heads`."""
        import torch

        place = self.channels(name, writes=False)
        match = PART.fullmatch(name)
        size = place.shape[-1]
        if match is None or not (match["part"] or match["letter"]):
            return place
        at = torch.arange(size)
        if match["part"]:
            width = size // int(match["parts"])
            start = at - int(match["part"]) * width
            kept = (start >= 0) & (start < width)
            expert = torch.arange(place.numel() // size).reshape(*place.shape[:-1], 1)  # numbers run on over experts
            return torch.where(kept, expert * width + start, -1)
        n_key = (size - n_query) // 2
        head = self.head_width() if match["head"] else n_key
        n_queries = n_query * head // n_key  # of a group, in front of its key and its value
        first, count = {"q": (0, n_queries), "k": (n_queries, head), "v": (n_queries + head, head)}[match["letter"]]
        group, inside = at // (n_queries + 2 * head), at % (n_queries + 2 * head) - first
        return torch.where((inside >= 0) & (inside < count), group * count + inside, -1)


def _bare(name: str) -> str:
    return name.partition("[")[0]


def _neurons(block: _Block) -> Iterator[Pair]:
    stack = block.bound.stack
    homogeneous = getattr(block.config, stack.activation, "") in HOMOGENEOUS
    pairs = [*stack.neurons.items(), *(stack.rectified.items() if homogeneous else ())]
    for last, first in pairs:
        if block.has(last) and block.has(first):
            takes, gives = block.channels(last, writes=True), block.part(first, 0)
            yield Pair(
                "neurons",
                block.leaf(last).removesuffix(".weight"),
                tuple(block.gives(first, gives)),
                (block.takes(last, takes),),
                (block.seen(last, "reads", takes), block.seen(first, "gives", gives)),
                takes.flatten(),
            )


def _values(block: _Block) -> Iterator[Pair]:
    import torch

    for heads in block.bound.stack.heads:
        if not block.has(heads.output):
            continue
        n_query = block.channels(heads.output, writes=True).numel()
        names = [name for name in heads.value if block.has(name)]
        if not names:
            continue
        gives = [block.part(name, n_query) for name in names]
        n_values = int(gives[0].max()) + 1
        takes = _shared(block, n_query, n_values)
        yield Pair(
            "values",
            f"{block.path}.{heads.output}",
            tuple(side for name, one in zip(names, gives, strict=True) for side in block.gives(name, one)),
            (block.takes(heads.output, takes),),
            (block.seen(heads.output, "reads", takes), block.seen(names[0], "gives", gives[0])),
            torch.arange(n_values),
        )


def _shared(block: _Block, n_query: int, n_keys: int) -> "Tensor":
    """The channel of keys or values that each channel of queries, or of the mix, meets: several heads may share one."""
    import torch

    at = torch.arange(n_query)
    if n_query == n_keys:
        return at
    width = block.head_width()
    return at // width // (n_query // n_keys) * width + at % width


def _keys(block: _Block) -> Iterator[Pair]:
    import torch

    for heads in block.bound.stack.heads:
        if not block.has(heads.output) or not heads.key:
            continue
        n_query = block.channels(heads.output, writes=True).numel()
        normed = [bool(name) and block.has(name) for name in (heads.key_norm, heads.query_norm)]
        if any(normed) and not all(normed):
            continue
        names = ((heads.key_norm,), (heads.query_norm,)) if all(normed) else (heads.key, heads.query)
        keys, queries = ([name for name in some if block.has(name)] for some in names)
        if not keys or not queries:
            continue
        if all(normed):
            key, query = (block.live[block.leaf(some[0])].numel() for some in (keys, queries))
            given = [torch.arange(key)], [torch.arange(query)]
        else:
            given = [block.part(name, n_query) for name in keys], [block.part(name, n_query) for name in queries]
            key, query = (int(one[0].max()) + 1 for one in given)
        meets = torch.cat([_shared(block, query, key), torch.tensor([-1])])
        given = given[0], [meets[one] for one in given[1]]
        sides = [
            [side for name, one in zip(some, channels, strict=True) for side in _any(block, name, one, all(normed))]
            for some, channels in zip((keys, queries), given, strict=True)
        ]
        yield Pair(
            "keys",
            f"{block.path}.{keys[0].partition('[')[0]}",
            tuple(sides[0]),
            tuple(sides[1]),
            tuple(block.seen(name, "gives", one) for name, one in zip(keys, given[0], strict=True)),
            _turned_with(block, heads, key),
            tuple(block.seen(name, "gives", one) for name, one in zip(queries, given[1], strict=True)),
            offset=all(normed) and bool(block.bound.stack.norm_offset),
        )


def _any(block: _Block, name: str, channel: "Tensor", norm: bool) -> list[Side]:
    """Parameters of a linear, a vector or a norm by channel."""
    if not norm:
        return block.gives(name, channel)
    return [Side(block.leaf(name, leaf), channel) for leaf in ("weight", "bias") if block.has(name, leaf)]


def _turned_with(block: _Block, heads: Heads, n_keys: int) -> "Tensor":
    """The first of the channels that positions turn into each other [channel]."""
    import torch

    at = torch.arange(n_keys)
    if not heads.rotary:
        return at
    width = block.head_width()
    turned = block.turned(width)
    inside = at % width
    first = inside % (turned // 2) if heads.rotary == "halves" else inside - inside % 2
    return torch.where(inside < turned, at - inside + first, at)


def _norms(block: _Block) -> Iterator[Pair]:
    import torch

    for norm, names in block.bound.stack.readers.items():
        readers = [name for name in names if block.has(name)]
        if not block.has(norm) or not readers:
            continue
        at = torch.arange(block.live[block.leaf(norm)].numel())
        takes = []
        for name in readers:
            shape = [1] * block.live[block.leaf(name)].ndim
            shape[block.stream_axis(name, writes=False)] = -1
            takes.append(Side(block.leaf(name), at.reshape(shape)))
        yield Pair(
            "norms",
            f"{block.path}.{norm}",
            tuple(_any(block, norm, at, norm=True)),
            tuple(takes),
            (block.seen(norm, "gives", at),),
            at,
            offset=bool(block.bound.stack.norm_offset),
        )
