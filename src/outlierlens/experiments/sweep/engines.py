"""Where a sweep's work is done: an engine takes pieces of work and gives their values back, in any order.

engine = Local(runner)
for work, values in engine.measure(works): ...        # values [text] of the task, with the work's unit off
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

import numpy as np

from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.units import Work

PASSES_AT_ONCE = 4  # forward passes handed to the runner in one go, until it is known how long they take
MOST_PASSES = 64
SHARE_SECONDS = 20.0  # what a kill may cost; more units in one go make batches of more even length


class Engine(Protocol):
    """Somewhere to measure."""

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """(work, values [text]) of every piece once, as they are done; values are in the order of the work's texts, NaN
        where `only` leaves a text out."""
        ...

    def close(self) -> None:
        """Let go of what the engine holds."""
        ...


def by_span(works: Iterable[Work]) -> Iterator[tuple[tuple[int, int], list[Work]]]:
    """((start, stop), the work on these texts), in the order of texts; within, those that touch early layers first."""
    ordered = sorted(works, key=lambda work: (work.start, work.stop, min(work.unit.layers, default=-1)))
    for span, same in groupby(ordered, key=lambda work: work.span):
        yield span, list(same)


def shares(works: Iterable[Work], rows: int) -> Iterator[list[Work]]:
    """Pieces of work on the same texts, together up to `rows` rows of (unit, text): what one forward pass can mix."""
    for (begin, end), same in by_span(works):
        share: list[Work] = []
        for work in same:
            if share and sum(one.n_texts for one in share) + work.n_texts > max(rows, end - begin):
                yield share
                share = []
            share.append(work)
        yield share


class Local:
    """This process."""

    def __init__(self, runner: Runner):
        self.runner = runner
        self._rows_per_second = 0.0

    def measure(self, works: Sequence[Work]) -> Iterator[tuple[Work, np.ndarray]]:
        """See `Engine`."""
        for span, same in by_span(works):
            self.runner.prepare([work.unit.plan for work in same], span)
            done = 0
            while done < len(same):
                share = next(shares(same[done:], self._rows(span)))
                done += len(share)
                begun = time.monotonic()
                values = self.runner.values([work.unit.plan for work in share], span, [work.only for work in share])
                n_rows = sum(work.n_texts for work in share)
                self._rows_per_second = n_rows / max(1e-9, time.monotonic() - begun)
                yield from zip(share, values, strict=True)

    def _rows(self, span: tuple[int, int]) -> int:
        """Rows of the next share."""
        pass_rows = self.runner.rows(self.runner.order[slice(*span)])
        timely = int(SHARE_SECONDS * self._rows_per_second)
        return min(max(timely, PASSES_AT_ONCE * pass_rows), MOST_PASSES * pass_rows)

    def close(self) -> None:
        """Nothing is held."""
