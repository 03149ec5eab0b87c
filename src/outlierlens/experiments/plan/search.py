"""What to keep, from nothing but values by text: greedy, with what is kept already in place; no torch.

    chosen = Search(score, weights, price, room=4_000_000).run(order)
    chosen.steps                    # in the order chosen, each confirmed
    chosen.refused                  # the first that was not, where the search ended

The texts that choose are two groups. At each step the nominating texts name, of the entries that the budget still holds and
that give back at least four fifths of the most, a neuron or a dimension, which is a cause with a name, or else the one that
gives back most per weight (most per weight of all would name small ones, whose gains are too small to confirm).
The confirming texts, which had no part in that, say whether it gives anything back. What is nominated after what is a
function of the nominating texts alone, and the first entry that is not confirmed ends the search. So the hypotheses
are tested in an order fixed beforehand, each at the whole level, and the probability of naming any entry that gives
nothing back is at most that level (fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995; Westfall and Krishen
2001): there is nothing left to correct for.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from outlierlens.experiments.plan.result import Entry
from outlierlens.experiments.sweep.estimate import estimate
from outlierlens.statistics.means import LEVEL, mean_interval
from outlierlens.tasks.base import weighted_mean

Group = Literal["nominating", "confirming"]
Score = Callable[[frozenset[Entry], Entry | None, Group, int, int], np.ndarray]
"""The value of each text [text] of a group from one place to another, with these entries kept, one more if it is named, and
all else rounded; what is named beside the same entries is asked for after these alone."""
FIRST_LOOK = 4
ENOUGH = 0.8  # of the best gain: what an entry has to give back to be chosen for its name or its price
NAMED = ("neuron", "dimension")
WORTH = 0.001  # of what rounding everything costs: what an entry has to give back to be named at all


@dataclass(frozen=True)
class Gain:
    """What keeping an entry gives back, mean over the nominating texts it was measured on: value without − value with it.

    Attributes:
        low, high: 95 % interval; NaN where it is not settled.
    """

    value: float
    low: float
    high: float
    n_texts: int


@dataclass(frozen=True)
class Trial:
    """An entry that was nominated, and what the confirming texts say.

    Attributes:
        nominated: on the nominating texts.
        value, low, high: what it gives back on the confirming texts, with its 95 % interval.
        n_weights: weights that stay once it is.
    """

    entry: Entry
    nominated: Gain
    value: float
    low: float
    high: float
    n_weights: int

    @property
    def confirmed(self) -> bool:
        """Whether the interval lies above 0; an interval that is not settled does not."""
        return self.low > 0


@dataclass(frozen=True)
class Chosen:
    """What a search found: entries in order; the one that ended it; and what each did alone (`Search.first`)."""

    steps: tuple[Trial, ...]
    refused: Trial | None
    first: Mapping[Entry, Gain]


@dataclass
class Search:
    """A search with its budget.

    Attributes:
        weights: tokens that count of each text, by group.
        price: number of weights that stay with a set of entries; what several entries keep is paid once.
        room: weights that may be kept in all.
        floor: least gain worth an entry, in the unit of the values; the search ends where none gives back more. Ending early
            tests fewer hypotheses, so the level holds.
        n_candidates: entries that are measured at a step, the first of the order.
        exact: whether all are, on all nominating texts.
        progress: called with what begins.
        first: at the first step, what keeping each measured entry alone gives back.
    """

    score: Score
    weights: Mapping[Group, np.ndarray]
    price: Callable[[frozenset[Entry]], int]
    room: int
    floor: float = 0.0
    n_candidates: int = 32
    exact: bool = False
    progress: Callable[[str], None] = lambda _: None
    first: dict[Entry, Gain] = field(default_factory=dict)

    def run(self, order: Sequence[Entry]) -> Chosen:
        """Choose among the entries of `order`, the most promising first."""
        kept: list[Entry] = []
        steps: list[Trial] = []
        while candidates := self._candidates(order, kept):
            self.progress(f"choosing entry {len(steps) + 1}")
            best = self._nominate(frozenset(kept), candidates)
            if best is None:
                return Chosen(tuple(steps), None, self.first)
            trial = self._confirm(frozenset(kept), *best)
            if not trial.confirmed:
                return Chosen(tuple(steps), trial, self.first)
            steps.append(trial)
            kept.append(trial.entry)
        return Chosen(tuple(steps), None, self.first)

    def _candidates(self, order: Sequence[Entry], kept: Sequence[Entry]) -> list[Entry]:
        fitting = [one for one in order if one not in kept and self.price(frozenset((*kept, one))) <= self.room]
        return fitting if self.exact else fitting[: self.n_candidates]

    def _nominate(self, kept: frozenset[Entry], candidates: Sequence[Entry]) -> tuple[Entry, Gain] | None:
        """The candidate to take, of those that give back `ENOUGH` of the most; None where none gives back more than `floor`.

        After 4, 8, 16, … texts those go on whose gain is not below four fifths of the best one's, by the 95 % interval of the
        difference on the same texts.
        """
        weights = self.weights["nominating"]
        gains: dict[Entry, np.ndarray] = dict.fromkeys(candidates, np.empty(0))
        racing, begin = list(candidates), 0
        for look in self._looks(len(weights)):
            before = self.score(kept, None, "nominating", begin, look)
            for entry in racing:
                after = self.score(kept, entry, "nominating", begin, look)
                gains[entry] = np.append(gains[entry], _given_back(before, after))
            begin = look
            leader = max(racing, key=lambda entry: weighted_mean(gains[entry], weights[:look]))
            racing = [
                one for one in racing if one == leader or not _below(gains[one], ENOUGH * gains[leader], weights[:look])
            ]
        found = {entry: _gain(values, weights) for entry, values in gains.items()}
        if not kept:
            self.first.update(found)
        most = max(found[entry].value for entry in racing)
        if not most > self.floor:
            return None
        held = self.price(kept)
        worthy = [
            entry for entry in found if found[entry].value >= ENOUGH * most and found[entry].n_texts == len(weights)
        ]
        named = [entry for entry in worthy if entry[1] in NAMED]
        best = max(named or worthy, key=lambda entry: found[entry].value / max(1, self.price(kept | {entry}) - held))
        return best, found[best]

    def _looks(self, n_texts: int) -> list[int]:
        if self.exact:
            return [n_texts]
        doubled = (FIRST_LOOK * 2**k for k in range(32))
        return [*(look for look in doubled if look < n_texts), n_texts]

    def _confirm(self, kept: frozenset[Entry], entry: Entry, nominated: Gain) -> Trial:
        weights = self.weights["confirming"]
        before = self.score(kept, None, "confirming", 0, len(weights))
        after = self.score(kept, entry, "confirming", 0, len(weights))
        values = _given_back(before, after)
        low, high = mean_interval(values, weights)
        n_weights = self.price(kept | {entry})
        return Trial(entry, nominated, weighted_mean(values, weights), low, high, n_weights)


def _given_back(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """before − after [text], where a value that is no number is as bad as an infinite one, and two infinite ones are equal."""
    worst = (np.nan_to_num(one, nan=np.inf, posinf=np.inf) for one in (before, after))
    with np.errstate(invalid="ignore"):
        found: np.ndarray = np.nan_to_num(np.subtract(*worst), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return found


def _below(gains: np.ndarray, leader: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the mean of `gains` [text] is below that of `leader`, by the interval of their paired difference."""
    with np.errstate(invalid="ignore"):
        difference = leader - gains
    if not np.isfinite(difference).all():
        return bool(np.isneginf(gains).any())
    return estimate(difference, weights, LEVEL).low > 0


def _gain(values: np.ndarray, weights: np.ndarray) -> Gain:
    n = len(values)
    low, high = mean_interval(values, weights[:n]) if np.isfinite(values).all() else (math.nan, math.nan)
    return Gain(weighted_mean(values, weights[:n]), low, high, n)
