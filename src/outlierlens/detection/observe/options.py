"""What `observe` is asked: how much of a text is read, what counts as far, and what is shown of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.detection.rules import ActivationRules, Rule
from outlierlens.errors import BadInput
from outlierlens.options import Flat, check


@dataclass(frozen=True, kw_only=True)
class ObserveOptions:
    """How to observe."""

    stack: str | None = None
    """One stream alone. mlp (encoder.mlp): what the last linear of each block's MLP reads, neuron by neuron."""
    max_length: int = 128
    """Tokens of a text that are read, special tokens included."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts in one forward pass."""
    n_sigma: Annotated[float, Gt(0), Lt(float("inf"))] = Rule.n_sigma
    """Threshold on the distance from the vector's own mean, in standard deviations (--verbose lists what exceeds it)."""
    rules: ActivationRules = ActivationRules()
    """Thresholds of the rules on top."""
    histogram_bytes: int = 200_000_000
    """Memory for histograms; beyond it, quantiles are kept for the most extreme dimensions only."""
    table_cells: Annotated[int, Ge(1)] = 65_536
    """Layers × dimensions that a result holds; beyond it, it names the most extreme dimensions only."""
    passage: str | None = None
    """The text whose token vectors are recorded; the first text where none is given."""
    passage_tokens: Annotated[int, Ge(0)] = 24
    """At most N tokens of it; 0 records none."""
    progress: Callable[[str, int, int], None] | None = field(default=None, compare=False, repr=False)
    """Called with the stage, texts done and texts in all."""

    def __post_init__(self) -> None:
        check(self)
        if self.passage_tokens == 1:
            raise BadInput("passage_tokens is 1; it must be 0, or at least 2")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command is asked beside that."""

    max_length: Annotated[int | None, Ge(2)] = None
    """Tokens of a text at most. Default: 128."""
    options: Annotated[ObserveOptions, Flat("stack", "batch_size", "n_sigma")] = ObserveOptions()
    """How to observe."""
    without_special: bool = False
    """Show numbers without special tokens."""
    parquet: Path | None = None
    """Also write every statistic as a table."""
    imatrix: Path | None = None
    """Run nothing: show what this importance matrix of llama.cpp says each linear reads."""

    def __post_init__(self) -> None:
        check(self)
        if self.imatrix is not None and (self.parquet is not None or self.without_special):
            raise BadInput("--imatrix runs nothing, so it knows no tokens; leave --parquet and --without-special out")
