"""What `report` is asked: what is switched off, on how much, and which other results join the page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.ablation.controls import Extent
from outlierlens.ablation.switches import Dims
from outlierlens.options import FIND, Find, Flag, Options

DEFAULT = "mini-planted"


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Extent, Options):
    """What the main job measures, and what else its page shows.

    Where neither `dims` are given nor the scan finds any, the strongest dimensions by activations are switched off, or else
    those that stand out in scale alone or in bias alone, and the report says so.
    """

    model: Annotated[str, Flag(argument=True)] = ""
    """Sample name, directory, weight file or hub id; mini-* need no download. Default: mini-planted."""
    dims: Annotated[Dims | Find, Flag(read="options:planned_dims", words=FIND)] = FIND
    """Dimensions to ablate: 308,381; find: those that scan finds."""
    max_length: Annotated[int, Ge(2)] = 128
    """Maximum number of tokens per text (or window)."""
    batch_size: Annotated[int, Flag(hidden=True), Ge(1)] = 16
    """Texts per forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    results: Annotated[tuple[Path, ...], Flag("--result")] = ()
    """Show this result of another command too (its -o FILE). Repeatable."""
    compare: tuple[str, str] | None = None
    """Two models side by side: named as MODEL, or run directories, or a scan's JSON."""
    card: Path | None = None
    """Also write a section for the model's card (Markdown) to this file."""
