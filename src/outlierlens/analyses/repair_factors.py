"""Which channels of a model take a power of two, and which one: what is seen while it reads, and what follows.

    sizes = sizes_of(loaded, check_of(loaded, texts, max_length=128, seed=0))
    sizes.stream_exponent("fp16", margin=4)              # -1: half of the stream has room
    sizes.pair_exponents("fp16", margin=4)               # [(pair, exponents [channel])]

A pair is what gives some channels of a block times 2^e, and what takes them times 2^-e, so that outputs stay bit for bit:

- "neurons": rows of the up projection of a gated MLP, or before a ReLU, and columns of the last linear.
- "values": rows of what gives values, and columns of what reads their mix; heads that share a value share its factor.
- "keys": rows of what gives keys, and rows of what gives queries, whose products stay. Two dimensions that positions turn into
  one another share a factor. Where a norm follows, its weight takes the factor.
- "norms": weights of a norm that reads the stream, and columns of all that reads what it gives.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, get_args

from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.range import FORMATS, TensorRange, tensor_rows
from outlierlens.analyses.range_pass import Pass
from outlierlens.architectures import BoundStack, live_parameters
from outlierlens.architectures.stack import PART, Heads, parameter
from outlierlens.data.media.items import Items
from outlierlens.data.texts import Batch, Data
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import edited
from outlierlens.models.inputs import check_known, token_limit
from outlierlens.models.load import LoadedModel
from outlierlens.models.passes import Reading, reading_of

if TYPE_CHECKING:
    from torch import Tensor

    Factors = list[tuple["Pair", Tensor]]  # exponents [channel]

Kind = Literal["neurons", "values", "keys", "norms"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HOMOGENEOUS = ("relu", "leaky_relu", "linear")  # activations that give t·y for t·x, t > 0
Peaks = Mapping[tuple[str, str], "Tensor"]  # (module path, "reads" or "gives") -> largest |x| of each entry
# A parameter, and the channel of each of its places: numbers that broadcast to its shape, −1 for none.
Side = tuple[str, "Tensor"]
# A module's path, what it "reads" or "gives", and the channel of each entry, −1 for none.
Sight = tuple[str, str, "Tensor"]
# The largest number that a format holds; int8 has no range of its own, but one scale for all values of a tensor.
LIMITS = {fit: FORMATS[form][0] for fit, form in (("fp16", "fp16"), ("bf16", "bf16"), ("fp8", "e4m3"))}
WHOLE = {"fp16": "float16", "bf16": "bfloat16"}
N_RANDOM, RANDOM_LENGTH = 2, 32  # rows of random tokens, and their length
OUTPUTS = ("logits", "last_hidden_state")
Arguments = Sequence[dict[str, Any]]  # of the model, for each batch
ON_STREAM = ("stream", "stream after attention", "attention output", "MLP output")


# --- pairs ---------------------------------------------------------------------------------------------------------


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


def pairs_of(loaded: LoadedModel, kinds: Sequence[Kind] = KINDS) -> list[Pair]:
    """Every pair of the model that its architecture's rows declare, blocks in order.

    Raises:
        BadInput: heads share keys or values, and the config does not say how wide they are.
    """
    live = live_parameters(loaded.model)
    blocks = [_Block(loaded, bound, path, live) for bound in loaded.stacks for path in dict.fromkeys(bound.blocks)]
    return [pair for block in blocks for kind in kinds for pair in getattr(block, kind)()]


@dataclass(frozen=True)
class _Block:
    """One block of a live model, how its linears lie, and its pairs by kind."""

    loaded: LoadedModel
    bound: BoundStack
    path: str
    live: dict[str, Any]

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
        whole: Any = self.loaded.model.config
        return reduce(getattr, self.bound.stack.layers.split(".")[:-1], whole)  # the part about this stream

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
                f"{self.loaded.name}: its config does not say how wide heads are, so that their factors cannot be told apart; "
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


# --- what is seen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckData:
    """Data as a model reads it: each text, picture or recording, then random ones.

    Attributes:
        data, max_length: what is read, and tokens of a text at most.
        batches, arguments: of each, and what the model takes for it; the random ones last.
        n_tokens, n_random: tokens of the data, and random ones.
    """

    data: Data
    max_length: int
    batches: tuple[Batch, ...]
    arguments: Arguments
    n_tokens: int
    n_random: int


@dataclass(frozen=True)
class Sizes:
    """How large tensors get: `rows` by kind and layer, and `peaks` of each entry of what `pairs` can scale."""

    rows: tuple[TensorRange, ...]
    peaks: Peaks
    pairs: tuple[Pair, ...]

    def of(self, *kinds: str) -> float:
        """The largest |x| of these kinds; 0.0 of none."""
        return max((row.largest for row in self.rows if row.kind in kinds), default=0.0)

    @property
    def layers(self) -> tuple[float, ...]:
        """The largest |h| after each block, all streams in a row."""
        return tuple(row.largest for row in self.rows if row.kind == "stream" and row.layer != "embeddings")

    @property
    def inputs(self) -> "Factors":
        """Of each pair of neurons: the largest |x| of each that the last linear reads [neuron]."""
        read = [(pair, self.peaks.get(pair.seen[0][:2])) for pair in self.pairs if pair.kind == "neurons"]
        return [(pair, size.flatten()) for pair, size in read if size is not None]

    @property
    def spikes(self) -> float:
        """The largest ratio of the largest neuron to the median one; 0.0 where no neuron can take a factor."""
        return max((float(one.max() / one.median().clamp(min=1e-30)) for _, one in self.inputs), default=0.0)

    def stream_exponent(self, fit: str, margin: int) -> int:
        """The exponent ≤ 0 of the stream's factor with which all that was seen of it has room in the format."""
        largest = self.of(*ON_STREAM)
        return -max(0, math.ceil(math.log2(largest * margin / LIMITS[fit]))) if fit in LIMITS and largest > 0 else 0

    def pair_exponents(self, fit: str, margin: int) -> "Factors":
        """Every pair that lacks room in the format, with the exponents that give it."""
        found = [(pair, pair.room(self.peaks, LIMITS[fit] / margin)) for pair in self.pairs if fit in LIMITS]
        return [(pair, exponents) for pair, exponents in found if exponents.any()]

    def balanced_exponents(self, cap: float, share: float) -> "Factors":
        """Neurons whose largest input is more than `cap` times that of the median neuron of their linear.

        In logarithms they come down by `share` of what they are above that: the rest stays with the inputs, so that the weights
        behind them grow by less (SmoothQuant's α; Xiao et al. 2023, eq. 4).
        """
        import torch

        found = []
        for pair, top in self.inputs:
            channel = pair.takes[0][1]
            n_rows = channel.shape[0] if channel.ndim > 2 else 1  # each packed expert has a median of its own
            rows = top.double().reshape(n_rows, -1)
            most = cap * rows.median(1, keepdim=True).values
            above = torch.where(most > 0, rows / most.clamp(min=1e-30), 1.0).flatten()
            exponents = -torch.floor(share * torch.log2(above.clamp(min=1))).int()
            if exponents.any():
                found.append((pair, exponents))
        return found


def check_of(loaded: LoadedModel, data: Data, *, max_length: int, seed: int) -> CheckData:
    """Batches of `data`, then two of random tokens, or one of noise beside pictures and recordings.

    Raises:
        BadInput: the data reaches but a part of the model, or holds no token that its tokenizer knows; or weights are codes.
    """
    import torch

    model: Any = loaded.model
    codes = any(not one.is_floating_point() for one in model.parameters())
    if codes or getattr(model.config, "quantization_config", None):
        raise BadInput(
            f"{loaded.name}: its weights run quantized, and codes take no factor; repair the model that was quantized, in "
            "full precision, then quantize it"
        )
    reading = reading_of(loaded, data, max_length)
    if other := [stack.name for stack in loaded.stacks if stack not in reading.stacks]:
        raise BadInput(
            f"{loaded.name}: {reading.inputs} do not reach its stream {', '.join(other)}, so that it cannot be checked; "
            f"repair the towers one by one, each loaded by itself"
        )
    batches = list(reading.batches(data, batch_size=1))
    check_known(loaded)
    random, drawn = torch.Generator().manual_seed(seed), []
    if isinstance(data, Items):
        noise = {
            name: torch.randn(one.shape, generator=random).to(one) if one.is_floating_point() else one
            for name, one in batches[0].inputs.items()
        }
        drawn.append(replace(batches[0], inputs=noise, texts=(len(data),)))
    else:
        shape = N_RANDOM, min(RANDOM_LENGTH, token_limit(loaded, max_length))
        rows = torch.randint(model.get_input_embeddings().weight.shape[0], shape, generator=random).to(loaded.device)
        for number, ids in enumerate(rows.split(1), len(data)):
            valid = torch.ones_like(ids, dtype=torch.bool)
            drawn.append(Batch({"input_ids": ids, "attention_mask": valid.to(ids)}, valid, ~valid, (number,)))
    n_tokens, n_random = (sum(int(batch.valid.sum()) for batch in some) for some in (batches, drawn))
    whole = (*batches, *drawn)
    return CheckData(data, max_length, whole, tuple(map(reading.arguments, whole)), n_tokens, n_random)


def outputs(model: Any, arguments: Arguments) -> "list[Tensor]":
    """What the model gives for each batch: its logits, or its last hidden state where it has no head."""
    import torch

    weight, found = next(model.parameters()), []
    with torch.inference_mode():
        for batch in arguments:
            tensors = {name: one for name, one in batch.items() if isinstance(one, torch.Tensor)}
            kinds = {name: weight.dtype if one.is_floating_point() else None for name, one in tensors.items()}
            out = model(**{name: one.to(weight.device, kinds[name]) for name, one in tensors.items()})
            found.append(next(out[name] for name in OUTPUTS if name in out).float().cpu())
    return found


def sizes_of(loaded: LoadedModel, check: CheckData, reading: Reading | None = None) -> Sizes:
    """How large the tensors of a model get on a check; raises BadInput where hidden states are not finite."""
    pairs, reading = tuple(pairs_of(loaded)), reading or reading_of(loaded, check.data, check.max_length)
    one = Pass(loaded, reading, watched={sight[:2] for pair in pairs for sight in (*pair.seen, *pair.inverse)})
    for batch in check.batches:
        one.consume(batch)
    sizes = Sizes(tensor_rows(one), one.peaks, pairs)
    if not math.isfinite(sizes.of(*ON_STREAM)):
        raise BadInput(f"{loaded.name}: hidden states are not finite in float32; {USE_FLOAT32}")
    return sizes


@temporary
def in_format(loaded: LoadedModel, fit: str) -> Iterator[Any]:
    """The float32 model, or a copy of it, that runs in `fit` while the context lasts.

    fp16, bf16: all of it. fp8: hidden states after each block are rounded to e4m3 without a scale, as where they are kept in
    it. int8: weights and inputs of every linear inside the blocks, one scale per tensor each.
    """
    import torch

    def fp8(_: int, states: "Tensor") -> "Tensor":
        # A cast takes what lies above the largest number to that number; without a scale it would be lost.
        kept = states.to(torch.float8_e4m3fn).to(states.dtype)
        return kept.masked_fill(states.abs() > LIMITS["fp8"], float("nan"))

    with ExitStack() as undo:
        for bound in loaded.stacks:
            if fit == "int8":
                undo.enter_context(rounded(loaded, parse("int8-tensor/int8-tensor"), stack=bound.name))
            elif fit == "fp8":
                undo.enter_context(edited(loaded.model, bound, fp8))
        yield copy.deepcopy(loaded.model).to(getattr(torch, WHOLE[fit])) if fit in WHOLE else loaded.model
