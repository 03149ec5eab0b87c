"""What a trace is: an account of one dimension, who writes it, what the model loses without, and who reads it.

found.blocks[11].largest              # the dimension's value at its largest token after a block
found.of("11")                        # the parts that it is the sum of
found.writers                         # the fewest parts that carry it; () where no few do
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlierlens.results.document import Provenance, Result

GROUPS = ("first", "largest", "others")


@dataclass(frozen=True)
class BlockValue:
    """The dimension after a block, at the first tokens (mean), at its largest token, and at all other tokens (mean).

    Attributes:
        layer: "embeddings", "0", …
        share_first, share_largest, share_others: of the state's sum of squares, by which norms divide, in [0, 1]; of the
            state less its mean where the stream's norms take that away.
    """

    layer: str
    first: float
    largest: float
    others: float
    share_first: float
    share_largest: float
    share_others: float


@dataclass(frozen=True)
class Part:
    """What one part of a block adds to the dimension.

    Attributes:
        kind: "carried" (the block's input), "embedding", "head", "neuron", "other neurons", "bias", "norm bias", "norm mean".
        name: module. index: of the head or neuron, else -1.
    """

    layer: str
    kind: str
    name: str
    index: int
    first: float
    largest: float
    others: float


@dataclass(frozen=True)
class Writer:
    """One of the few parts that carry the dimension's lift at its largest token.

    Attributes:
        kind: as in `Part`, or "norm scale": what a block's norms make of the value that the block was given.
        value: what it adds there. share: of the lift.
    """

    layer: str
    kind: str
    name: str
    index: int
    value: float
    share: float


@dataclass(frozen=True)
class Weight:
    """A single weight through which the writers write.

    Attributes:
        parameter: its tensor. place: in it. value: of the weight. share: of the lift that passes through it.
    """

    layer: str
    parameter: str
    place: tuple[int, ...]
    value: float
    share: float


@dataclass(frozen=True)
class Trial:
    """What the model loses under one condition, paired by text.

    Attributes:
        kind: "zeroed" (the named weights are 0), "restored" (they are 0, and the dimension is put back at the tokens that
            carry it), "random" (as many weights of the same tensors and about the same size are 0).
        change, low, high: of the task's value, with a 95 % interval.
    """

    name: str
    kind: str
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class Reader:
    """A head that is a sink on the dimension's token.

    Attributes:
        mass: mean attention on the token. in_keys, in_queries: with the dimension set to its mean at the token, and at all
            other tokens.
        lost, low, high: share of `mass` that the former takes away, with a 95 % interval over texts.
    """

    layer: int
    head: int
    mass: float
    in_keys: float
    in_queries: float
    lost: float
    low: float
    high: float

    @property
    def reads(self) -> str:
        """ "keys", "queries", "keys and queries", or "neither": where half of the mass goes with the dimension."""
        halves = {"keys": self.in_keys <= self.mass / 2, "queries": self.in_queries <= self.mass / 2}
        return " and ".join(name for name, half in halves.items() if half) or "neither"


@dataclass(frozen=True)
class SinkLoss:
    """Share of attention on the token that is lost with the dimension at its mean there, or a random one moved as far.

    Attributes:
        lost, low, high: by all heads that are sinks there, with a 95 % interval over texts.
        read, read_low, read_high: by those that read the traced dimension in keys, on texts that did not choose them; NaN
            where no head does.
    """

    name: str
    lost: float
    low: float
    high: float
    read: float
    read_low: float
    read_high: float


@dataclass(frozen=True)
class Trace(Result):
    """The life of one dimension.

    Attributes:
        text, position, token: where the dimension is largest.
        post_norm: whether blocks end in a norm of the stream. error: largest |sum of parts − value|, as a share of the sizes
            that are summed, over all tokens and blocks.
        lifts, peak, falls: block that adds most, block after which it is largest, block that takes most away ("" for none).
        lift: at the largest token: the value at the peak where the stream is a sum, and what `lifts` changes where blocks end
            in a norm of it.
        writers: the fewest parts that carry the lift, largest first; () where no few do. explained: their share.
        weights: the single weights they write through; passed: the share that passes through these.
        readers: heads that are sinks on the dimension's token. sinks: what these lose, against random dimensions moved as far.
        n_reading: heads that read it: on every other text they lose more than half, by the 95 % interval.
    """

    provenance: Provenance
    data: str
    data_digest: str
    stack: str
    dim: int
    n_texts: int
    n_tokens: int
    text: int
    position: int
    token: str
    post_norm: bool
    error: float
    blocks: tuple[BlockValue, ...]
    parts: tuple[Part, ...]
    lifts: str
    lift: float
    peak: str
    falls: str
    writers: tuple[Writer, ...]
    explained: float
    weights: tuple[Weight, ...]
    passed: float
    task: str
    unit: str
    trials: tuple[Trial, ...]
    threshold: float
    n_heads: int
    readers: tuple[Reader, ...]
    n_reading: int
    sinks: tuple[SinkLoss, ...]
    notes: tuple[str, ...] = ()

    def of(self, layer: str) -> tuple[Part, ...]:
        """The parts of one layer; their sums are its values."""
        return tuple(part for part in self.parts if part.layer == layer)

    def at(self, layer: str) -> BlockValue:
        """The dimension after one layer."""
        return next(one for one in self.blocks if one.layer == layer)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per part."""
        for part in self.parts:
            yield {name: getattr(part, name) for name in ("layer", "kind", "name", "index", *GROUPS)}
