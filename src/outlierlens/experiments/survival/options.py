"""What `survival` is asked: which models, and how they are compared."""

from dataclasses import dataclass
from typing import Annotated

from outlierlens.detection.scan.measure import ASKED, ScanOptions
from outlierlens.options import Flag, Flat, check


@dataclass(frozen=True, kw_only=True)
class SurvivalOptions:
    """How a base is compared with models tuned from it."""

    dims: Annotated[tuple[int, ...], Flag(read="options:plain_dims")] = ()
    """308,381: follow these too. Default: what the rule finds."""
    norms_only: bool = False
    """Do not read all weights: leaves out how far each kind moved."""
    scan: Annotated[ScanOptions, ASKED] = ScanOptions()
    """The rule, and how the base is opened; its `max_read` also limits what is read of a hub's model."""
    tuned_revision: str | None = None
    """Hub revision of the tuned models; default: --revision."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A base, models tuned from it, and how they are compared."""

    base: Annotated[str, Flag(argument=True)]
    """Pre-trained: sample, directory, file or hub id."""
    tuned: Annotated[tuple[str, ...], Flag(argument=True)]
    """Models fine-tuned from it, named likewise."""
    how: Annotated[SurvivalOptions, Flat()] = SurvivalOptions()
    """The rule, and what is read."""
