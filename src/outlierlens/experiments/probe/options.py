"""What `probe` is asked: texts, how probes are trained, and what is evaluated."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from outlierlens.errors import BadInput
from outlierlens.options import Flag, check
from outlierlens.vectors.read import ReadOptions

ROWS = ("gold", "predicted")
REDRAWS = 7  # benchmarks/probe.py
FULL_EPOCHS = 10  # the paper's


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How to train and to evaluate."""

    read: Annotated[ReadOptions, Flag(hidden=True)] = field(default_factory=ReadOptions)
    """Of the forward passes: layers, stream, batch, final norm, and the budget that cached vectors may take."""
    max_length: Annotated[int, Ge(2), Flag(hidden=True)] = 128
    """Tokens of a text."""
    special: Annotated[bool, Flag(hidden=True)] = False
    """Train on and evaluate special tokens too. They count as positions either way."""
    limit: Annotated[int | None, Ge(1)] = None
    """Train on N texts drawn by --seed. Default: up to 100,000 tokens of them."""
    whole: Annotated[bool, Flag("--full")] = False
    """The paper's protocol: 10 epochs over all texts, and all texts evaluated (else up to 40,000 tokens)."""
    epochs: Annotated[int | None, Ge(1)] = None
    """Passes over the training texts. Default: 1, with --full 10."""
    learning_rate: Annotated[float, Flag("--lr"), Gt(0), Lt(10)] = 3e-3
    """Learning rate of Adam; the paper does not state its own."""
    batch: Annotated[int, Flag("--probe-batch"), Ge(1)] = 128
    """Tokens of a training step."""
    positions: Annotated[int | None, Ge(2)] = None
    """Most positions. Default: the tokens of the longest text."""
    row: str = "gold"
    """Contributions from the row of the gold or of the predicted position."""
    retrain: Annotated[bool, Flag("--retrain/--no-retrain")] = True
    """Also train a probe on the clipped vectors of each layer."""
    redraws: Annotated[int, Ge(0)] = REDRAWS
    """Draw training again N times for intervals; 0: over evaluated texts alone."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        if self.row not in ROWS:
            raise BadInput(f"row is {self.row!r}; use one of {', '.join(ROWS)}")
        if self.redraws == 1:
            raise BadInput("redraws is 1; use 2 or more, for one has no spread, or 0 for none")
        if self.whole and self.limit is not None:
            raise BadInput("--full takes all texts and --limit some; give one of the two")

    @property
    def passes(self) -> int:
        """Over the training texts."""
        return self.epochs or (FULL_EPOCHS if self.whole else 1)


@dataclass(frozen=True, kw_only=True)
class ProbeCall(ProbeOptions):
    """How to train and to evaluate, and on what."""

    dev_data: str | None = None
    """Texts to evaluate. Default: a fifth of --data, drawn by --seed."""
