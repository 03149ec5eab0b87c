"""What `frozen` is asked: how vectors are read and repaired, and how classifiers are trained on them."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt

from outlierlens.errors import BadInput
from outlierlens.experiments.frozen.classifiers import TrainOptions
from outlierlens.options import Flag, check
from outlierlens.vectors.fixes import USUAL, FixSpec, parse_fixes
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import ReadOptions

MAX_LENGTH = 256


@dataclass(frozen=True, kw_only=True)
class FrozenOptions:
    """How to read, repair and train."""

    read: Annotated[ReadOptions, Flag(hidden=True)] = field(default_factory=ReadOptions)
    """How vectors are read; its progress is told of training too."""
    special: Annotated[bool, Flag(hidden=True)] = False
    """Whether special tokens count in the mean."""
    fixes: Annotated[tuple[FixSpec, ...], Flag(hidden=True)] = parse_fixes(USUAL)
    """Repairs; raw vectors are always measured, since changes are against them."""
    fit_limit: Annotated[int, Ge(2), Flag(hidden=True)] = Fitting.fit_limit
    """Training vectors that repairs are fitted on at most."""
    max_length: Annotated[int | None, Ge(2)] = MAX_LENGTH
    """Tokens of a text at most; None is all that the model has positions for."""
    epochs: Annotated[int, Ge(1)] = TrainOptions.epochs
    """Passes over the training vectors."""
    lr: Annotated[float, Gt(0)] = TrainOptions.lr
    """Learning rate of Adam; the paper does not state its own."""
    train_batch: Annotated[int | None, Ge(1)] = None
    """Examples of a step. Default: the paper's (sst2 768, sst5 1536), or 128."""
    bias: bool = False
    """Classifiers with a constant for each class; the paper's have none."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class FrozenCall(FrozenOptions):
    """How to read, repair and train, and on how many examples."""

    limit: Annotated[int | None, Ge(2)] = None
    """Training examples, drawn by --seed. Default: 10,000; imdb 2,500."""
    test_limit: Annotated[int | None, Ge(2)] = None
    """Test examples, drawn by --seed. Default: all; imdb 2,500."""
    max_length: Annotated[int | None, Ge(2)] = None
    """Tokens of a text at most. Default: 256; with --full all."""
    full: bool = False
    """The paper's protocol: all examples, whole texts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.full and (self.limit is not None or self.test_limit is not None):
            raise BadInput("--full takes all examples, --limit and --test-limit some; give one of them")
