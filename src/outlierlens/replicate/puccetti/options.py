"""What `replicate puccetti` is asked: which parts, counts and outliers, and how much is read."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from outlierlens.options import Flag, check

PARTS = ("frequency", "attention", "layers", "bands", "predictions")


@dataclass(frozen=True, kw_only=True)
class PuccettiOptions:
    """What is replicated, and how."""

    counts: str | None = None
    """Token counts of a corpus: ours or published, by commas. Default: of --data."""
    dims: Annotated[tuple[int, ...] | str, Flag(read="options:dims_or_strongest")] = ()
    """The outliers (308,381) in place of the rule's; strongest: the two largest |z|."""
    parts: Annotated[tuple[str, ...], Flag(read="options:parse_names", words=",".join(PARTS))] = PARTS
    """Which parts, by commas."""
    full: bool = False
    """All texts in every part; else the subsets that the result states."""
    stack: str | None = None
    """Which stream, where there are several."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Texts in one forward pass."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
