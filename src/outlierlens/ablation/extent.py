"""How much is measured where no number is given: a first try of minutes, or the whole with `thorough`."""

from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from annotated_types import Ge

from outlierlens.options import Flag
from outlierlens.tasks.options import Reading

R = TypeVar("R", bound=Reading)
TEXTS, THOROUGH_TEXTS = 16, 64


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Texts and control sets of an ablation."""

    thorough: bool = False
    """64 texts, 99 random and 19 matched sets instead of 16, 19 and 5; a number that is given stands."""
    n_random: Annotated[int | None, Flag("--random"), Ge(0)] = None
    """Random sets of the same size; 0 leaves them out. Default: 19; --thorough: 99."""
    n_matched: Annotated[int | None, Flag("--matched"), Ge(0)] = None
    """Sets of the same size at other positions by layer; 0 leaves them out. Default: 5; --thorough: 19."""

    @property
    def n_sets(self) -> tuple[int, int]:
        """Random and matched sets, each at least 0."""
        usual = (99, 19) if self.thorough else (19, 5)
        return (
            usual[0] if self.n_random is None else self.n_random,
            usual[1] if self.n_matched is None else self.n_matched,
        )


def limited(reading: R, *, thorough: bool) -> R:
    """`reading` of the first 16 texts, or 64 if `thorough`, where it says no limit."""
    if reading.limit is not None:
        return reading
    return replace(reading, limit=THOROUGH_TEXTS if thorough else TEXTS)
