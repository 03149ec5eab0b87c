"""What `layer-story` is asked: the results that it puts side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.options import Flag, check


@dataclass(frozen=True, kw_only=True)
class LayerStoryOptions:
    """Files of results, and which tokens' correlations are taken of them."""

    sweep: Annotated[Path, Flag(argument=True)]
    """results.json or sweep.json of a sweep with --windows single."""
    frequency: Path | None = None
    """What frequency measured (-o FILE)."""
    attention: Path | None = None
    """What attention measured (-o FILE)."""
    special: Annotated[bool, Flag("--special/--no-special")] = False
    """Correlations over all tokens, special ones too."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
