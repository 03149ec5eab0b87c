"""`Family`: all that is known of one model family, of which most rows need no more than the streams.

Family(stacks=(BERT,), causal="is_decoder", prefix="bert")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outlierlens.architectures.gguf import Gguf
from outlierlens.architectures.stack import Config, Stack

Causal = Literal["always", "is_decoder", "never"]


@dataclass(frozen=True)
class AttentionWeights:
    """Where a block returns its attention weights when asked with output_attentions=True.

    Attributes:
        index: place in the tuple the block returns.
        query_first: weights are [query, key, batch, head], and no mask hides a key that is no padding.
        window: module path, relative to the block, of a bool buffer [1, 1, query, key] that hides keys beside the mask.
    """

    index: int = 1
    query_first: bool = False
    window: str = ""


@dataclass(frozen=True)
class Specification:
    """Dimensions that a paper names, for one checkpoint of a family.

    Attributes:
        n_layers, hidden_size: the shape it is for.
        ranges: (first layer, last layer (included), dimension); layers counted from 1 as in the paper, where layer 1 is
            the output of the first block.
        source: section of the paper.
        note: what the paper leaves open.
        model_type: the family's, filled in by the table.
    """

    n_layers: int
    hidden_size: int
    ranges: tuple[tuple[int, int, int], ...]
    source: str
    note: str = ""
    model_type: str = ""

    @property
    def dims(self) -> dict[str, tuple[int, ...]]:
        """{layer's name: dimensions}, layers counted from 0: the output of the first block is "0"."""
        layers = range(min(first for first, *_ in self.ranges) - 1, max(last for _, last, _ in self.ranges))
        found = {
            str(layer): tuple(sorted({dim for first, last, dim in self.ranges if first - 1 <= layer < last}))
            for layer in layers
        }
        return {layer: dims for layer, dims in found.items() if dims}


@dataclass(frozen=True)
class Family:
    """A row of the table: a family's residual streams, and what else sets it apart.

    Attributes:
        stacks: its residual streams, or a function of the config where the layout depends on it.
        prefix: module name with which its parameters start (transformers' base_model_prefix), and those of families that
            declare the same alone.
        tables: what a row of an embedding table stands for ("token", "position", "segment", …), by the last part of the
            table's name, where that name is none of `rows.TABLES`.
        first_position: row of the position table that position 0 reads; "padding" is the row after the padding token's.
        counts_skipped: the config's number of positions is the height of that table, rows before the first included.
        causal: when a class named as a causal model attends to the left alone: always, where the config says is_decoder,
            or never.
        head_reads_last: its sequence head reads the last position, padding or not.
        attention: where a block returns its weights, for families of which transformers does not declare it.
        shorten: cuts lists of layers that have a form of their own, in a config's values, to a number of blocks.
        vocabulary: file of a tokenizer that tells it from the families that share its streams.
        renamed: parameter -> its newer name, where files of both ages are about.
        gguf: how llama.cpp's converters store it; several where one family has several layouts.
        clipped: dimensions that papers name, by the name to ask for.
    """

    stacks: tuple[Stack, ...] | Callable[[Config], tuple[Stack, ...]]
    prefix: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    first_position: int | Literal["padding"] = 0
    counts_skipped: bool = False
    causal: Causal = "always"
    head_reads_last: bool = False
    attention: AttentionWeights | None = None
    shorten: Callable[[dict[str, Any], int], None] | None = None
    vocabulary: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    gguf: tuple[Gguf, ...] = ()
    clipped: Mapping[str, Specification] = field(default_factory=dict)

    def named(self, model_type: str) -> "Family":
        """The row with its `model_type` and what follows from its streams filled in below."""
        shift = self.stacks[0].norm_offset if isinstance(self.stacks, tuple) and self.stacks else 0.0
        return replace(
            self,
            gguf=tuple(replace(one, model_type=model_type, norm_shift=shift) for one in self.gguf),
            clipped={name: replace(spec, model_type=model_type) for name, spec in self.clipped.items()},
        )
