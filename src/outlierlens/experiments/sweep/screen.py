"""Which examples can change their predicted class when something is off; all others keep the intact prediction.

    screen = Screen(places)                              # then `wanted` and `audited` of each span, from `masks`
    screen.only(unit, (0, 64))                           # texts of the span to measure, of this unit

A prediction changes only where the margin of its class over another, in nats, is used up. Gradients say to first order
how far each margin moves for every unit at once (three evaluations of a text); where even `SAFETY` times that leaves the
margin standing, the text is not measured for this unit. How often that is wrong is itself measured: of all pairs left out
a random share is measured after all (`AUDITED`), and the result says how many of them had changed.
"""

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.experiments.sweep.first_order import first_order
from outlierlens.experiments.sweep.result import Screening
from outlierlens.experiments.sweep.units import Unit
from outlierlens.statistics.means import share_at_most

if TYPE_CHECKING:
    from outlierlens.experiments.sweep.runner import Runner

SAFETY = 4.0  # first-order estimates of effects on margins are off by less than this, but for strong effects
AUDITED = 0.02


@dataclass
class Screen:
    """Pairs of unit and text that are measured.

    Attributes:
        units: place of each unit's key in the columns of masks.
        wanted: by span, bool [text, unit]: the margin could be used up. audited: likewise, measured all the same.
        whole: keys of units that are measured on every text.
        checked, flipped: audited pairs so far, and of them those whose prediction had changed.
    """

    units: dict[str, int]
    wanted: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    audited: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    checked: int = 0
    flipped: int = 0

    @property
    def share(self) -> float:
        """Share of the pairs that are measured."""
        summary = self.summary()
        return summary.measured / max(1, summary.pairs)

    def only(self, unit: Unit, span: tuple[int, int]) -> tuple[int, ...] | None:
        """Texts of the span to measure, counted from its start; None is all of them."""
        place = self.units.get(unit.key)
        if place is None or unit.key in self.whole:
            return None
        both = self.wanted[span][:, place] | self.audited[span][:, place]
        return tuple(np.flatnonzero(both).tolist())

    def count(self, unit: Unit, span: tuple[int, int], differences: np.ndarray) -> None:
        """Note how many audited texts had changed."""
        place = self.units.get(unit.key)
        if place is not None:
            audited = differences[self.audited[span][:, place]]
            self.checked, self.flipped = self.checked + len(audited), self.flipped + int((audited != 0).sum())

    def summary(self) -> Screening:
        """How much was left out, and how often that was wrong: an upper bound at confidence 0.95 (Clopper & Pearson)."""
        whole = [place for key, place in self.units.items() if key in self.whole]
        pairs = measured = 0
        for span, wanted in self.wanted.items():
            run = wanted | self.audited[span]
            run[:, whole] = True
            pairs, measured = pairs + run.size, measured + int(run.sum())
        bound = share_at_most(self.flipped, self.checked)
        return Screening(pairs, measured, self.checked, self.flipped, bound, SAFETY)


def can_screen(runner: "Runner", n_units: int) -> bool:
    """Whether margins can be screened, and for `n_units` it costs less than running all.

    That takes predicted classes, and an ablation that gradients can follow.
    """
    task: Any = runner.task
    if runner.functional is None or task.examples.task.regression:
        return False
    return runner.mixes and not runner.stack.stack.token_first and evaluations(runner) < n_units


def rivals(runner: "Runner") -> int:
    """Classes that a prediction could change to."""
    task: Any = runner.task
    return len(task.examples.task.labels) - 1


def evaluations(runner: "Runner") -> int:
    """What screening a text costs, in evaluations: one for its margins, three for the gradients of each."""
    return 1 + 3 * rivals(runner)


def masks(runner: "Runner", units: Sequence[Unit], span: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(wanted, audited) of the units on the texts of `span`, bool [text, unit] each."""
    import torch

    task: Any = runner.task
    texts = runner.order[span[0] : span[1]]
    wanted = np.zeros((len(texts), len(units)), dtype=bool)
    margins = np.zeros((len(texts), rivals(runner)))
    with torch.inference_mode():
        for feed in task.feeds(texts.tolist(), runner.tokens):
            margins[list(feed.slots)] = task.margins(feed).cpu().double().numpy()
    for rival in range(margins.shape[1]):
        moves = first_order(runner, units, span, lambda feed, rival=rival: task.margins(feed)[:, rival])  # type: ignore[misc]
        # What is no number leaves nothing to rely on.
        wanted |= ~(SAFETY * np.abs(moves) < margins[:, rival, None])
    drawn = np.stack([_drawn(unit, runner.options.seed, span) for unit in units], axis=1)
    return wanted, drawn & ~wanted


def _drawn(unit: Unit, seed: int, span: tuple[int, int]) -> np.ndarray:
    """A random share of the texts, the same whatever else is swept, bool [text]."""
    random = np.random.default_rng([seed, span[0], zlib.crc32(unit.key.encode())])
    return random.random(span[1] - span[0]) < AUDITED


def packed(mask: np.ndarray) -> str:
    """A mask as text, for the rows."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode()


def unpacked(text: str, shape: tuple[int, int]) -> np.ndarray:
    """The mask that `packed` wrote."""
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape).astype(bool)
