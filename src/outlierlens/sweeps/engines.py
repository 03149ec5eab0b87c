"""Where a sweep's work is done: an engine takes pieces of work and gives their values back, in any order.

engine = Local(runner)
for work, values in engine.measure(works): ...        # values [text] of the task, with the work's unit off
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

import numpy as np

from outlierlens.sweeps.runner import Runner
from outlierlens.sweeps.units import Work

ROWS_AT_ONCE = 1024  # rows of (unit, text) handed to the runner in one go: what is lost at most by a kill


class Engine(Protocol):
    """Somewhere to measure."""

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """(work, values [text]) of every piece once, as they are done; values are in the order of the work's texts."""
        ...

    def close(self) -> None:
        """Let go of what the engine holds."""
        ...


def shares(works: Iterable[Work], rows: int) -> Iterator[list[Work]]:
    """Pieces of work on the same texts, together up to `rows` rows: what one forward pass can mix."""
    ordered = sorted(works, key=lambda work: (work.start, work.stop, min(work.unit.layers, default=-1)))
    for _, same in groupby(ordered, key=lambda work: (work.start, work.stop)):
        together = list(same)
        step = max(1, rows // together[0].n_texts)
        for start in range(0, len(together), step):
            yield together[start : start + step]


class Local:
    """This process."""

    def __init__(self, runner: Runner, rows: int = ROWS_AT_ONCE):
        self.runner, self.rows = runner, rows

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """See `Engine`."""
        for share in shares(works, self.rows):
            values = self.runner.values([work.unit.plan for work in share], (share[0].start, share[0].stop))
            yield from zip(share, values, strict=True)

    def close(self) -> None:
        """Nothing is held."""
