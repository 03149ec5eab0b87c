"""What `origin` is asked: which dimensions are followed, and what is drawn of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from outlierlens.detection.scan.measure import ASKED, ScanOptions
from outlierlens.errors import BadInput
from outlierlens.options import FIND, Find, Flag, Flat, check


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Which dimensions to follow, in every stack or {stack: dimensions}, and how to read the model."""

    dims: Annotated[
        tuple[int, ...] | Mapping[str, tuple[int, ...]] | Find, Flag(read="options:chosen_dims", words=FIND)
    ] = FIND
    """Follow these: 557,143; find: what the rule finds."""
    named_by: Annotated[str, Flag(hidden=True)] = "given"
    """How `dims` were chosen, in words."""
    scan: Annotated[ScanOptions, ASKED] = ScanOptions()
    """The rule, whose n_sigma also says what stands out; where the model is, and what the rule may read to name dimensions.
    Tables and linears of any size are read, in parts; beyond `max_read` bytes `notice` is told."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What is followed, and what --chart draws of it."""

    how: Annotated[OriginOptions, Flat()] = OriginOptions()
    """The measurement."""
    observed: Annotated[Path | None, Flag("--from")] = None
    """JSON of observe: follow what its rules found."""
    picture: Literal["all", "rows", "histograms", "ranks"] = "all"
    """What --chart draws: all, rows, histograms or ranks."""
    stack: str | None = None
    """Stream that --chart draws, where there are several."""

    def __post_init__(self) -> None:
        if self.how.dims != FIND and self.observed is not None:
            raise BadInput("--dims and --from both name dimensions; give one of them")
