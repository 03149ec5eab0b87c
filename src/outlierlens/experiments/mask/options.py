"""What `mask` is asked: which block, what counts as a sink, and for which tool the mask is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from outlierlens.errors import BadInput
from outlierlens.options import Flag, check

SINK_FACTOR = 10.0  # a token is a sink where its hidden state is longer than this times the median token's
Tool = Literal["saelens", "dictionary-learning", "heretic", "steering"]


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """What counts as a sink, and in which block."""

    layer: Annotated[int | None, Ge(0)] = None
    """The block whose output is masked. Default: the middle one."""
    factor: Annotated[float, Gt(1)] = SINK_FACTOR
    """A token is a sink where its hidden state is longer than this many times that of the median token."""
    dim_factor: Annotated[float, Gt(1)] = 5.0
    """A dimension stands out where its root mean square is more than this many times that of the median dimension."""
    share: Annotated[float, Gt(0), Le(1)] = 0.5
    """Mask a position or a token type where at least this share of its tokens are sinks."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    max_length: Annotated[int, Ge(2)] = 128
    """Tokens of a text at most, or fewer where the model has no more positions."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts of a forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the split into texts that make the mask and texts that judge it."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class MaskCall(MaskOptions):
    """What counts as a sink, and for whom the mask is written."""

    tool: Annotated[Tool | None, Flag("--for")] = None
    """Write the mask for this tool too, to the file of --to."""
    to: Path | None = None
    """With --for: the file to write."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tool is None) != (self.to is None):
            raise BadInput("--for TOOL and --to FILE go together; give both, or neither")
