"""What the range of a model is: the largest |x| of every tensor, with its place, held against each number format.

found.rows                                 # a TensorRange for each stream, kind and layer
found.of("MLP inner")                      # those of one kind
found.top("MLP inner").headroom("fp16")   # of its layer with the largest value; below 1 it overflows
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.results.document import Provenance, Result


@dataclass(frozen=True)
class Format:
    """A number format: its largest finite value, and its smallest positive value of full precision."""

    name: str
    largest: float
    smallest_normal: float


# IEEE 754 binary16; bfloat16; the OCP 8-bit floating point specification (2023), table 1.
FORMATS = (
    Format("fp16", 65504.0, 2.0**-14),
    Format("bf16", (2 - 2.0**-7) * 2.0**127, 2.0**-126),
    Format("e4m3", 448.0, 2.0**-6),
    Format("e5m2", 57344.0, 2.0**-14),
)
INT8_STEPS = 127
KEY_ALARM = 10.0  # key bias over the median layer's

# Every kind of tensor, and what it is.
KINDS: Mapping[str, str] = {
    "stream": "the residual stream: the embeddings, and after each block",
    "stream after attention": "the residual stream between attention and MLP",
    "attention input": "what the linears of attention read",
    "attention linears": "what they give, before any norm or rotation of q and k",
    "q": "queries as attention multiplies them",
    "k": "keys, as a cache holds them",
    "v": "values, as a cache holds them",
    "q·k": "the products of queries and keys, before they are scaled",
    "attention logits": "what softmax reads, hidden keys left out",
    "attention mix": "what the output linear of attention reads",
    "attention output": "what it gives",
    "MLP input": "what the first linears of the MLP read",
    "gate/up": "what they give",
    "MLP inner": "what the last linear of the MLP reads",
    "MLP output": "what it gives",
    "norm output": "what norms give",
    "norm sum of squares": "Σx² of what an RMS norm reads, Σ(x − mean)² of a layer norm",
    "logits": "what the vocabulary head gives",
}
INSIDE = ("q·k", "norm sum of squares")  # within one operation: many kernels hold them in float32


@dataclass(frozen=True)
class TensorRange:
    """The values of one kind of tensor in one layer, over all tokens of all texts, padding left out.

    Attributes:
        stack: the stream it belongs to. kind: of `KINDS`. layer: "embeddings", "0", …, "final", "head".
        module: the module with the largest value; "" where the tensor is no module's own.
        largest: the largest |x|; inf where a value was infinite or NaN. nan: whether any was NaN.
        text, token: number of the text and place in it, from 0; −1 where rows cannot be told (experts). word: the token.
        dim: dimension, neuron or token of the vocabulary; of q, k and v head × width + channel, the row of the projection
            that gives it, where a head that several queries share counts once, as in the cache; −1 of sums and products.
        n_values: values that `median` and `below` rest on; 0 where none were counted.
        median: of |x|, interpolated within an eighth of the range of one exponent or less; NaN where none were counted.
        below: share of values that are not 0 and below the format's smallest normal number, by format.
    """

    stack: str
    kind: str
    layer: str
    module: str
    largest: float
    text: int
    token: int
    word: str
    dim: int
    n_values: int = 0
    median: float = math.nan
    below: dict[str, float] = field(default_factory=dict)
    nan: bool = False

    def headroom(self, form: str) -> float:
        """Largest finite value of a format / largest |x|: below 1 it overflows; inf of zeros. Raises BadInput."""
        return headroom(self.largest, form)

    @property
    def int8_step(self) -> float:
        """One step of int8 with one scale for the whole tensor: largest / 127."""
        return self.largest / INT8_STEPS

    @property
    def int8_coarseness(self) -> float:
        """One step of int8 / the median |x|: above 2, more than half of the values round to 0. NaN without a median."""
        return self.int8_step / self.median if self.median > 0 else math.nan


@dataclass(frozen=True)
class WeightRange:
    """The values of one stored tensor.

    Attributes:
        name: in the checkpoint. stored: its type there. largest: the largest |w| that is a number. n_values: of all.
        nan: how many are NaN, which count nowhere else.
        over, below: how many overflow a format; how many are not 0 and below its smallest normal number; by format.
    """

    name: str
    stored: str
    largest: float
    n_values: int
    over: dict[str, int]
    below: dict[str, int]
    nan: int = 0

    def headroom(self, form: str) -> float:
        """As of `TensorRange`."""
        return headroom(self.largest, form)


@dataclass(frozen=True)
class KeyBias:
    """The bias of one layer's keys.

    Attributes:
        name: of the tensor. layer: of its block. norm: ‖b‖₂. ratio: norm / the median layer's norm.
        largest: its largest |entry|, in channel `channel` of head `head` (-1: the config does not say how wide heads are).
    """

    name: str
    layer: int
    norm: float
    largest: float
    head: int
    channel: int
    ratio: float

    @property
    def alarm(self) -> bool:
        """Whether the norm is at least `KEY_ALARM` times the median layer's."""
        return self.ratio >= KEY_ALARM


@dataclass(frozen=True)
class CacheError:
    """What rounding the keys or values of one layer loses.

    Attributes:
        layer: of the block. tensor: "k" or "v". number: "int8", "int4".
        grain: who shares a step: all of a text ("tensor"), a token, or a channel of a text.
        whole: ‖rounded − x‖₂ / ‖x‖₂ over all tokens. middle: the same of the median channel; 1 where rounding gives 0.
    """

    layer: int
    tensor: str
    number: str
    grain: str
    whole: float
    middle: float


def headroom(largest: float, form: str) -> float:
    """Largest finite value of a format / largest |x|; inf of zeros; raises BadInput for an unknown format."""
    limit = next((one.largest for one in FORMATS if one.name == form), None)
    if limit is None:
        raise BadInput(f"no format {form!r}; formats are {', '.join(one.name for one in FORMATS)}")
    return limit / largest if largest > 0 else math.inf


@dataclass(frozen=True)
class Ranges(Result):
    """The number range of every tensor of a running model, or of its stored weights.

    Attributes:
        data, data_digest: what was read; "" where only weights were. inputs: what they are: "texts".
        n_texts, n_tokens: texts, and tokens of them plain, padding left out. max_length: tokens of a text at most.
        every: medians and shares rest on every so many-th token vector.
        rows: by stream, kind and layer. templated: likewise of each text as a user turn; () where none was asked for.
        weights: of every stored tensor of floating-point values; () where the model was run.
        keys: of each layer with a key bias, with `weights` or `cache`.
        cache: relative errors of rounded keys and values, where asked for.
        skipped: {stored tensor: what packed it} of those whose values are not read.
        never_fed: modules that no token reached, and experts as "NAME, expert 3": nothing is known of their ranges.
    """

    provenance: Provenance
    data: str
    data_digest: str
    inputs: str
    n_texts: int
    n_tokens: int
    max_length: int
    every: int
    rows: tuple[TensorRange, ...]
    templated: tuple[TensorRange, ...] = ()
    weights: tuple[WeightRange, ...] = ()
    notes: tuple[str, ...] = ()
    keys: tuple[KeyBias, ...] = ()
    cache: tuple[CacheError, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    never_fed: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that were seen, in the order of `KINDS`."""
        seen = {row.kind for row in self.rows}
        return tuple(kind for kind in KINDS if kind in seen)

    @property
    def chance_of_more(self) -> float:
        """Chance that one more text, exchangeable with those read, holds a larger value than all of them: 1 / (n + 1).

        Each of n + 1 exchangeable texts is as likely to hold the largest value; ties make it less. This is the bound of
        conformal prediction (Vovk et al. 2005).
        """
        return 1 / (self.n_texts + 1)

    def of(self, kind: str) -> tuple[TensorRange, ...]:
        """The rows of one kind, in order of layers; raises BadInput with the kinds there are."""
        if kind not in self.kinds:
            raise BadInput(f"no tensor of kind {kind!r} was seen; kinds are {', '.join(self.kinds)}")
        return tuple(row for row in self.rows if row.kind == kind)

    def top(self, kind: str) -> TensorRange:
        """The layer of a kind with the largest value."""
        return max(self.of(kind), key=lambda row: row.largest)

    @property
    def stored(self) -> tuple[TensorRange, ...]:
        """The rows of tensors that go from one operation to the next, templated texts included."""
        return tuple(row for row in (*self.rows, *self.templated) if row.kind not in INSIDE)

    @property
    def inside(self) -> tuple[TensorRange, ...]:
        """The rows of sums and products within one operation, templated texts included."""
        return tuple(row for row in (*self.rows, *self.templated) if row.kind in INSIDE)

    def records(self) -> Iterator[dict[str, Any]]:
        """One flat row per tensor, with its headroom in each format."""
        for texts, rows in (("plain", self.rows), ("templated", self.templated)):
            for row in rows:
                place = {name: getattr(row, name) for name in ("stack", "kind", "layer", "module")}
                at = {name: getattr(row, name) for name in ("largest", "text", "token", "word", "dim", "n_values")}
                room = {f"headroom_{one.name}": row.headroom(one.name) for one in FORMATS}
                below = {f"below_{one.name}": row.below.get(one.name, math.nan) for one in FORMATS}
                int8 = {"median": row.median, "int8_step": row.int8_step, "int8_coarseness": row.int8_coarseness}
                yield {"texts": texts} | place | at | room | below | int8
        for one in self.weights:
            flat = {name: getattr(one, name) for name in ("name", "stored", "largest", "n_values", "nan")}
            for form in FORMATS:
                flat[f"headroom_{form.name}"] = one.headroom(form.name)
                flat |= {f"over_{form.name}": one.over[form.name], f"below_{form.name}": one.below[form.name]}
            yield flat
        yield from ({"key_bias": one.name, **vars(one), "alarm": one.alarm} for one in self.keys)
        yield from map(dict, map(vars, self.cache))
