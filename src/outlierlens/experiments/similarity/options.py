"""What `sts` and `wic` are asked: which pairs, how sentences and words become vectors, and how these are repaired."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.pooling import Pooling
from outlierlens.options import Flat, check
from outlierlens.tasks.metrics import N_DRAWS
from outlierlens.vectors.fixes import USUAL, FixSpec, parse_fixes
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import ReadOptions

POOLINGS = ("mean", "first", "last", "own")


@dataclass(frozen=True, kw_only=True)
class RepairOptions:
    """How vectors are read, repaired and compared."""

    read: ReadOptions = field(default_factory=lambda: ReadOptions(final_norm=True))
    """Layers, stream, batches, budget; the vector of a layer is what the model's final norm makes of it, if it has one."""
    fixes: tuple[FixSpec, ...] = parse_fixes(USUAL)
    """What is tried; raw vectors always are."""
    clip: str = "auto"
    """Which dimensions are clipped, as `vectors.clip.resolve_clipping` reads it."""
    fit_limit: Annotated[int, Ge(2)] = Fitting.fit_limit
    """Fit on N texts at most, by the seed."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    n_draws: Annotated[int, Ge(1)] = N_DRAWS
    """Draws of the bootstrap."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class StsOptions(RepairOptions):
    """How sentences become vectors, and how these are read, repaired and compared."""

    pooling: Pooling = field(default_factory=Pooling)
    """How a sentence becomes a vector."""


@dataclass(frozen=True, kw_only=True)
class WicOptions(RepairOptions):
    """How words become vectors, and how these are read, repaired and compared."""

    max_length: Annotated[int, Ge(2)] = 128
    """Tokens of a sentence at most."""


@dataclass(frozen=True, kw_only=True)
class StsCall:
    """The pairs that `sts` reads, and how it measures."""

    data: Path | None = None
    """Folder with a folder per task (stsb/test.parquet). Default: the hub's own copies."""
    tasks: str | None = None
    """stsb,sickr,sts12, … sts16. Default: all that --data holds; of the hub, all."""
    pooling: str = "mean"
    """mean, first, last (token); own: as the model's 1_Pooling/config.json says."""
    limit: Annotated[int | None, Ge(2)] = None
    """Use the first N pairs of each task."""
    how: Annotated[StsOptions, Flat("seed")] = StsOptions()
    """How it measures; the rest of it comes from the options of vectors and fits."""

    def __post_init__(self) -> None:
        check(self)
        if self.pooling not in POOLINGS:
            raise BadInput(f"--pooling is {self.pooling!r}; use {', '.join(POOLINGS)}")


@dataclass(frozen=True, kw_only=True)
class WicCall:
    """The pairs that `wic` reads, and how it measures."""

    data: Path | None = None
    """Folder with train.parquet and validation.parquet. Default: the hub's own copy."""
    limit: Annotated[int | None, Ge(2)] = None
    """Use the first N pairs of each split."""
    how: Annotated[WicOptions, Flat("seed")] = WicOptions()
    """How it measures; the rest of it comes from the options of vectors and fits."""

    def __post_init__(self) -> None:
        check(self)
