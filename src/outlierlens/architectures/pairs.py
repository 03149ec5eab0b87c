"""Pairs: what gives some channels of a block times 2^e, and what takes them times 2^-e, so that outputs stay bit for bit.

    block = BlockPairs(name, config, bound, "model.layers.0", live)
    for pair in block.of("neurons"): ...

- "neurons": rows of the up projection of a gated MLP, or before a ReLU, and columns of the last linear.
- "values": rows of what gives values, and columns of what reads their mix; heads that share a value share its factor.
- "keys": rows of what gives keys, and rows of what gives queries, whose products stay. Two dimensions that positions turn into
  one another share a factor. Where a norm follows, its weight takes the factor.
- "norms": weights of a norm that reads the stream, and columns of all that reads what it gives.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, get_args

from outlierlens.architectures.bind import BoundStack
from outlierlens.architectures.stack import PART, Heads, parameter
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["neurons", "values", "keys", "norms"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HOMOGENEOUS = ("relu", "leaky_relu", "linear")  # activations that give t·y for t·x, t > 0
Peaks = Mapping[tuple[str, str], "Tensor"]  # (module path, "reads" or "gives") -> largest |x| of each entry
# A parameter, and the channel of each of its places: numbers that broadcast to its shape, −1 for none.
Side = tuple[str, "Tensor"]
# A module's path, what it "reads" or "gives", and the channel of each entry, −1 for none.
Sight = tuple[str, str, "Tensor"]


@dataclass(frozen=True)
class Pair:
    """Channels that can take a power of two each.

    Attributes:
        gives, takes: parameters times 2^e and 2^-e. seen, inverse: where what is multiplied by 2^e, and by 2^-e, is seen.
        shared: the channel with which each shares its exponent [channel]: itself, or the first of its rotary pair.
        offset: whether the parameters are norms' weights that stand for 1 + weight.
    """

    kind: Kind
    gives: tuple[Side, ...]
    takes: tuple[Side, ...]
    seen: tuple[Sight, ...]
    shared: "Tensor"
    inverse: tuple[Sight, ...] = ()
    offset: bool = False

    def room(self, peaks: Peaks, limit: float) -> "Tensor":
        """Exponents [channel] of the smallest size with which what was seen stays at or below `limit`.

        Of keys and queries either may come down, to the cost of the other.
        """
        return self._above(self.inverse, peaks, limit) - self._above(self.seen, peaks, limit)

    def _above(self, sights: Sequence[Sight], peaks: Peaks, limit: float) -> "Tensor":
        """ceil(log2(largest |x| / limit)), at least 0 [channel]; of two that are turned, of a bound for both."""
        import torch

        top = torch.zeros(len(self.shared), dtype=torch.float64)
        for path, side, channel in sights:
            if (size := peaks.get((path, side))) is not None:
                flat = size.double().flatten()
                at = channel.flatten().repeat(len(flat) // channel.numel())  # of a norm of single heads
                top.scatter_reduce_(0, at[at >= 0], flat[at >= 0], "amax")
        squares = torch.zeros_like(top).index_add_(0, self.shared, top.square())
        top = torch.where(squares.isfinite(), squares, torch.inf).sqrt()[self.shared]
        return torch.log2((top / limit).clamp(min=1)).ceil().int()


@dataclass(frozen=True)
class BlockPairs:
    """The pairs of one block by kind: what its row declares, for the parameters that it has.

    Attributes:
        model: its name, for errors. whole: its config, as transformers holds it. bound: its stream. path: the block.
        live: the model's parameters by name.
    """

    model: str
    whole: Any
    bound: BoundStack
    path: str
    live: dict[str, Any]

    def of(self, kind: Kind) -> Iterator[Pair]:
        """Its pairs of a kind.

        Raises:
            BadInput: heads share keys or values, and the config does not say how wide they are.
        """
        found: Iterator[Pair] = getattr(self, kind)()
        return found

    def neurons(self) -> Iterator[Pair]:
        stack = self.bound.stack
        homogeneous = getattr(self.config, stack.activation, "") in HOMOGENEOUS
        for last, first in (*stack.neurons.items(), *(stack.rectified.items() if homogeneous else ())):
            if self.leaf(last) and self.leaf(first):
                takes, gives = self.channels(last, writes=True), self.part(first, 0)
                seen = self.sight(last, "reads", takes), self.sight(first, "gives", gives)
                both = self.sides(first, gives), self.sides(last, takes, writes=True)
                yield Pair("neurons", *both, seen, takes.flatten())

    def values(self) -> Iterator[Pair]:
        import torch

        for heads in self.bound.stack.heads:
            names = [name for name in heads.value if self.leaf(name)]
            if not names or not self.leaf(heads.output):
                continue
            n_query = self.channels(heads.output, writes=True).numel()
            gives = {name: self.part(name, n_query) for name in names}
            n_values = int(gives[names[0]].max()) + 1
            takes = self.met(n_query, n_values)
            seen = self.sight(heads.output, "reads", takes), self.sight(names[0], "gives", gives[names[0]])
            sides = tuple(side for name, one in gives.items() for side in self.sides(name, one))
            yield Pair("values", sides, self.sides(heads.output, takes, writes=True), seen, torch.arange(n_values))

    def keys(self) -> Iterator[Pair]:
        import torch

        for heads in self.bound.stack.heads:
            normed = [bool(name and self.leaf(name)) for name in (heads.key_norm, heads.query_norm)]
            if not heads.key or not self.leaf(heads.output) or any(normed) != all(normed):
                continue
            n_query = self.channels(heads.output, writes=True).numel()
            if all(normed):
                found = [{name: torch.arange(self.weight(name).numel())} for name in (heads.key_norm, heads.query_norm)]
            else:
                both = (heads.key, heads.query)
                found = [{name: self.part(name, n_query) for name in names if self.leaf(name)} for names in both]
            if not all(found):
                continue
            n_keys, n_queries = (int(next(iter(one.values())).max()) + 1 for one in found)
            meets = torch.cat([self.met(n_queries, n_keys), torch.tensor([-1])])
            found[1] = {name: meets[one] for name, one in found[1].items()}
            keys, queries = (tuple(side for name, at in one.items() for side in self.sides(name, at)) for one in found)
            seen, inverse = (tuple(self.sight(name, "gives", at) for name, at in one.items()) for one in found)
            offset = all(normed) and bool(self.bound.stack.norm_offset)
            yield Pair("keys", keys, queries, seen, self.turned_with(heads, n_keys), inverse, offset)

    def norms(self) -> Iterator[Pair]:
        import torch

        for norm, names in self.bound.stack.readers.items():
            readers = [name for name in names if self.leaf(name)]
            if not self.leaf(norm) or not readers:
                continue
            at, takes = torch.arange(self.weight(norm).numel()), []
            for name in readers:
                shape = [1] * self.weight(name).ndim
                shape[self.stream_axis(name, writes=False)] = -1
                takes.append((self.leaf(name), at.reshape(shape)))
            seen, offset = self.sight(norm, "gives", at), bool(self.bound.stack.norm_offset)
            yield Pair("norms", self.sides(norm, at), tuple(takes), (seen,), at, offset=offset)

    @property
    def config(self) -> Any:
        return reduce(getattr, self.bound.stack.layers.split(".")[:-1], self.whole)  # the part about this stream

    def leaf(self, name: str, leaf: str = "weight") -> str:
        """Full name of a parameter of a linear; "" where the block has none."""
        found = f"{self.path}.{parameter(name.partition('[')[0], leaf)}"
        return found if found in self.live else ""

    def weight(self, name: str) -> "Tensor":
        found: Tensor = self.live[self.leaf(name)]
        return found

    def stream_axis(self, name: str, *, writes: bool) -> int:
        """The axis of a linear's weight, from the end, that runs over the stream's dimensions."""
        stack = self.bound.stack
        usual = -1 if writes == stack.weight_is_in_by_out else -2
        return stack.axes.get(parameter(name.partition("[")[0], "weight"), usual)

    def channels(self, name: str, *, writes: bool) -> "Tensor":
        """A number for each channel of a linear that is not the stream's [..., channel], experts in front."""
        import torch

        shape = list(self.weight(name).shape)
        if len(shape) > 1:
            del shape[self.stream_axis(name, writes=writes)]
        return torch.arange(math.prod(shape)).reshape(shape)

    def sides(self, name: str, channel: "Tensor", *, writes: bool = False) -> tuple[Side, ...]:
        """A weight by the channel of each thing that a linear, a vector or a norm gives, and a bias; or of what it reads."""
        axis = self.stream_axis(name, writes=writes)
        wide = channel.unsqueeze(-1 if axis == -1 else -2) if self.weight(name).ndim > 1 else channel
        bias = "" if writes else self.leaf(name, "bias")
        return ((self.leaf(name), wide), *([(bias, channel)] if bias else []))

    def sight(self, name: str, side: Literal["reads", "gives"], channel: "Tensor") -> Sight:
        return f"{self.path}.{name.partition('[')[0].removesuffix('()')}", side, channel

    def head_width(self) -> int:
        width, heads = (getattr(self.config, name, 0) for name in ("hidden_size", "num_attention_heads"))
        found: int = getattr(self.config, "head_dim", None) or (width // heads if heads else 0)
        if not found:
            raise BadInput(
                f"{self.model}: its config does not say how wide heads are, so that their factors cannot be told apart; "
                f"add head_dim to it"
            )
        return found

    def part(self, name: str, n_query: int) -> "Tensor":
        """The channel of each thing that a linear gives, −1 for what its name leaves out; see `architectures.stack.PART`."""
        import torch

        place, match = self.channels(name, writes=False), PART.fullmatch(name)
        size = place.shape[-1]
        if match is None or not (match["part"] or match["letter"]):
            return place
        at = torch.arange(size)
        if match["part"]:
            width = size // int(match["parts"])
            inside = at - int(match["part"]) * width
            expert = torch.arange(place.numel() // size).reshape(*place.shape[:-1], 1)  # numbers run on over experts
            return torch.where((inside >= 0) & (inside < width), expert * width + inside, -1)
        n_key = (size - n_query) // 2
        head = self.head_width() if match["head"] else n_key
        n_queries = n_query * head // n_key  # of a group, in front of its key and its value
        first, count = {"q": (0, n_queries), "k": (n_queries, head), "v": (n_queries + head, head)}[match["letter"]]
        group, inside = at // (n_queries + 2 * head), at % (n_queries + 2 * head) - first
        return torch.where((inside >= 0) & (inside < count), group * count + inside, -1)

    def met(self, n_query: int, n_keys: int) -> "Tensor":
        """The channel of keys or values that each of queries, or of the mix, meets [channel]; several heads may share one."""
        import torch

        at = torch.arange(n_query)
        if n_query == n_keys:
            return at
        width = self.head_width()
        return at // width // (n_query // n_keys) * width + at % width

    def turned_with(self, heads: Heads, n_keys: int) -> "Tensor":
        """The first of the channels that positions turn into each other [channel]."""
        import torch

        at = torch.arange(n_keys)
        if not heads.rotary:
            return at
        width, rope = self.head_width(), getattr(self.config, "rope_parameters", None) or {}
        turned = int(width * rope.get("partial_rotary_factor", 1.0))
        inside = at % width
        first = inside % (turned // 2) if heads.rotary == "halves" else inside - inside % 2
        return torch.where(inside < turned, at - inside + first, at)
