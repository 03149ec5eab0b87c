"""What `replicate luo` is asked: which parts, what is clipped, and how much is read."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from outlierlens.options import Flag, check

PARTS = ("origin", "probe", "geometry", "words", "sts", "frozen-sst2", "frozen-sst5", "frozen-imdb")


@dataclass(frozen=True, kw_only=True)
class LuoOptions:
    """What is replicated, and how."""

    parts: Annotated[tuple[str, ...], Flag(read="options:parse_names", words=",".join(PARTS))] = PARTS
    """Which parts, by commas."""
    clip: str = "auto"
    """auto (Luo's rule; where it names nothing the most extreme), none, 557, 0-9:896;10-16:678, a name."""
    full: bool = False
    """Everything that the paper reads, for hours; else the subsets that the result states."""
    stack: str | None = None
    """Which stream, where there are several."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts in one forward pass."""
    cache_gb: Annotated[float, Gt(0)] = 8.0
    """Memory for vectors, in gigabytes."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
