"""What to measure next: rounds of work, decided from nothing but what was measured so far.

    for phase, works in adaptive(state): measure(works)      # the loop adds what it measures to state.measured

Work is cut at the looks, and where looks are far apart into pieces of `PIECE` texts. Since every decision is a function of
rows alone, an interrupted, resumed or distributed sweep takes the same ones.

Ordinary units together: a few texts of each, one interval for all of them, held to a random sample. No torch.

bulk = Bulk.of(candidates, 0.95, seed=0, tolerance=0.01)       # numbers of the units that may belong to it
bulk.divide(values, slopes)                                    # who does: neither change nor spread stands out
bulk.audit(0)                                                  # draws those that none may be off of
bulk.fit(few, further, weights, slopes)                        # their changes; None where too many are further off

A model's dimensions are mostly alike: what a dimension's few texts (and its gradients) say of its change is learnt from the
`audited` ones, drawn at random and measured on further texts. This is double sampling with a regression estimator (Cochran
1977, section 12.6), over units instead of texts. Measuring stops once few of the audited ones are further off than the
tolerance, by their leave-one-out errors: none of 36, one of 54 or two of 72. Whatever the distribution, that happens by a
chance of 5 % at most where 9.8 % of all are further off (`most_off`). More texts are tried until then; so the interval is
the tolerance, and not the largest error, which is small by chance just where measuring stops.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from outlierlens.analyses.sweep.estimate import (
    MeanChange,
    MetricChange,
    Ranking,
    RareTexts,
    estimate,
    giants,
    gradient_scale,
    precise,
    unsettled,
    use_gradients,
)
from outlierlens.analyses.sweep.gradients import Screen, Widening, look_level, stop_widening, widened
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.rows import BulkSummary
from outlierlens.analyses.sweep.units import Differences, Unit, Work
from outlierlens.statistics.means import LEVEL, NORMAL_MAD

# --- bulk ------------------------------------------------------------------------------------------------------------


# Texts of each ordinary unit until they suffice, and of an audited one.
OPENINGS = {1: 16, 2: 16, 3: 16, 4: 16, 6: 24, 8: 32, 12: 48}
AUDITED = (36, 54, 72)  # units, of which none, one or two may be further off
FEWEST_UNITS = 100
FEWEST_TEXTS = 64
FAR = 3.0  # standard deviations of ordinary units; what stands out by chance costs little


@dataclass
class Bulk:
    """The ordinary units of a sweep.

    Attributes:
        candidates: numbers of the units that may belong to it, in a random order.
        level: confidence of the common interval. tolerance: its reach to either side of each member's change.
        members: those that do, in that order. audited: the first of them, which are measured on more texts.
        texts: of each member; 0 while there is no bulk.
        fitted: how many members there were then; later some may leave. off: audited ones that were further off, and left.
        furthest: the largest error of the other audited ones.
    """

    candidates: list[int]
    level: float
    tolerance: float
    members: dict[int, None] = field(default_factory=dict)
    audited: list[int] = field(default_factory=list)
    texts: int = 0
    fitted: int = 0
    off: list[int] = field(default_factory=list)
    furthest: float = math.inf

    @classmethod
    def of(cls, candidates: list[int], level: float, tolerance: float, seed: int) -> "Bulk":
        """With the candidates in the seed's random order."""
        return cls(np.random.default_rng([seed, 29]).permutation(candidates).tolist(), level, tolerance)

    def divide(self, values: np.ndarray, slopes: np.ndarray | None) -> None:
        """Settle the members, from what candidates did on the first texts.

        Args:
            values: differences [candidate, text]. slopes: first-order estimates [candidate, text or more], or None.
        """
        plain = np.isfinite(values).all(1)
        seen = [values.mean(1)]
        if slopes is not None:
            seen += [slopes.mean(1), np.log(slopes.std(1) + np.finfo(float).tiny)]
        for of in seen:
            if plain.any():
                plain &= near(of, of[plain])
        self.members = {number: None for number, ordinary in zip(self.candidates, plain, strict=True) if ordinary}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of audited units of which none, one, two, … may be off; enough for a common interval of the level."""
        least = math.ceil(self.level / (1 - self.level) - 1e-9)
        return AUDITED if least <= AUDITED[0] else (least,)

    @property
    def bound(self) -> float:
        """Upper bound of the share of the members that are further off, at confidence 0.95: of those that stayed."""
        left = most_off(self.sizes) * self.fitted - len(self.off)
        return min(1.0, left / len(self.members))

    def audit(self, may_be_off: int) -> None:
        """Draw the audited ones, as many as are needed where `may_be_off` of them may be off."""
        self.audited = list(self.members)[: self.sizes[may_be_off]]

    def fit(
        self, few: np.ndarray, further: np.ndarray, weights: np.ndarray, slopes: np.ndarray | None
    ) -> dict[int, MeanChange] | None:
        """Estimates with their common interval, of the members that stay; None where too many are off, or too few audited.

        Those that are off leave, and those whose estimate stands out.

        Args:
            few: differences of the members on the first texts [member, text]; the audited ones come first.
            further: of the audited ones on the texts that follow [audited, text].
            weights: of all texts. slopes: first-order estimates [member, text], on the texts of both and more, or None.
        """
        n, m, k = few.shape[1], few.shape[1] + further.shape[1], len(further)
        before, after = weights[:n], weights[n:m]
        changes, features = np.average(further, axis=1, weights=after), [np.average(few, axis=1, weights=before)]
        if slopes is not None:  # as control variate of both, and as what says most where the few texts say little
            expected = np.average(slopes, axis=1, weights=weights[: slopes.shape[1]])
            away = slopes[:, :m] - expected[:, None]
            centred = slopes[:k, n:m] - slopes[:k, n:m].mean(1, keepdims=True)
            slope = (centred * further).sum() / max((centred**2).sum(), np.finfo(float).tiny)
            changes -= slope * np.average(away[:k, n:], axis=1, weights=after)
            features = [features[0] - slope * np.average(away[:, :n], axis=1, weights=before), expected]
        features.append(np.ones(len(few)))
        design = np.column_stack(features)
        design /= np.abs(design).max(0) + np.finfo(float).tiny
        some = design[: len(further)]
        if len(some) <= 2 * some.shape[1]:
            return None
        inverse = np.linalg.pinv(some)
        own_share = np.einsum("ij,ji->i", some, inverse)  # of a unit's own value in its fitted one
        errors = (changes - some @ (inverse @ changes)) / np.maximum(1 - own_share, 1e-6)
        rare = RareTexts.among(list(further))
        allowance = max(rare.below, rare.above) * float(np.median([giants(values)[1] for values in further]))
        away = np.abs(errors) + allowance
        self.texts, self.fitted = n, len(few)
        self.off = [number for number, far in zip(self.audited, away > self.tolerance, strict=True) if far]
        self.furthest = float(away[away <= self.tolerance].max(initial=0.0))
        if len(self.off) >= len(self.sizes) or len(self.audited) < self.sizes[len(self.off)]:
            return None
        spreads = few.std(1, ddof=1) if n > 1 else np.full(len(few), np.nan)
        changes = design @ (inverse @ changes)
        width = self.tolerance
        found = zip(list(self.members), changes.tolist(), spreads.tolist(), strict=True)
        return {
            number: MeanChange(change, change - width, change + width, spread, n)
            for (number, change, spread), ordinary in zip(found, near(changes, changes), strict=True)
            if ordinary and number not in self.off
        }


def near(values: np.ndarray, ordinary: np.ndarray) -> np.ndarray:
    """Whether values are ordinary, bool [unit]."""
    middle = np.median(ordinary)
    return np.abs(values - middle) <= FAR * NORMAL_MAD * np.median(np.abs(ordinary - middle))


@cache
def most_off(sizes: tuple[int, ...]) -> float:
    """The share off at which none of the first `sizes[0]`, one of `sizes[1]`, two of … are off by a chance of 5 %.

    Drawn with replacement, which is the safe side: exact for endlessly many units.
    """

    def accepted(share: float) -> float:
        chance, going, before = 0.0, {0: 1.0}, 0  # {number off: probability that it goes on so}
        for may_be, size in enumerate(sizes):
            after: dict[int, float] = {}
            for off, probability in going.items():
                for more in range(len(sizes) - off):
                    few = math.comb(size - before, more) * share**more * (1 - share) ** (size - before - more)
                    after[off + more] = after.get(off + more, 0.0) + probability * few
            chance += sum(after.get(off, 0.0) for off in range(may_be + 1))
            going, before = {off: one for off, one in after.items() if off > may_be}, size
        return chance

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) > 1 - LEVEL else (low, middle)
    return high


PIECE = 64
SCALE_UNITS = 16  # the fewest that a common scale of gradients is taken from
Round = tuple[str, list[Work]]


def pieces(looks: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of every piece of the ordered texts: cut at `looks` and at most `PIECE` long."""
    cuts = [0]
    for look in looks:
        cuts += [*range(cuts[-1] + PIECE, look, PIECE), look]
    return list(pairwise(cuts))


@dataclass
class SweepState:
    """A sweep so far.

    Attributes:
        gradients: first-order estimates [text, unit] on the first texts, or None.
        scales: by window, what its units' gradients are multiplied by; taken at the first look.
        uses_gradients: of each unit, whether they serve as its control variate; decided at its first look.
        estimates: of each unit at its last look; None before the first.
        ranked: units that were measured further for the order of the strongest: their intervals are `strict`.
        separated: whether the top is told apart.
        again: of each of the strongest that are measured again, how many texts chose it: its estimate rests on later ones.
        smallest: the smallest step of a difference, as in `Task`.
        rare: what rare texts add, as far as all units together have shown at the last look.
        skewed: likewise, how skewed differences are, as in `Widening.share`.
        screen: which texts are run for each unit; None runs all.
        functional: what turns a unit's differences on all texts into its effect, where that is no mean; else None.
        bulk: the ordinary units, which are known together; None where every unit has its own interval.
    """

    units: Sequence[Unit]
    options: SweepOptions
    looks: tuple[int, ...]
    measured: Differences
    gradients: np.ndarray | None = None
    scales: dict[str, float] = field(default_factory=dict)
    uses_gradients: dict[int, bool] = field(default_factory=dict)
    estimates: list[MeanChange | None] = field(default_factory=list)
    ranked: set[int] = field(default_factory=set)
    separated: bool = False
    again: dict[int, int] = field(default_factory=dict)
    smallest: float = 0.0
    functional: MetricChange | None = None
    rare: RareTexts | None = None
    skewed: float = 1.0
    screen: Screen | None = None
    bulk: Bulk | None = None

    def __post_init__(self) -> None:
        self.estimates = [None] * len(self.units)

    @property
    def widening(self) -> Widening:
        """What widens the interval at each look (`widened`), for the rule that stops at its width."""
        return stop_widening(self.looks, self.options.level, self.options.relative)

    @property
    def strict(self) -> float:
        """Level of an interval for any reason to look or stop: what the order of the strongest is decided by."""
        return look_level(self.looks, self.options.level)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, stop) of every piece of the ordered texts."""
        return pieces((*OPENINGS, *self.looks) if self.bulk else self.looks)

    def take(self, works: Sequence[Work], rows: Mapping[str, Any]) -> None:
        """Add what was measured of a round, from its rows by key."""
        for work in works:
            difference = np.array(rows[work.key]["differences"])
            self.measured.add(work.unit.key, work.start, difference, len(difference) - work.n_texts)
            if self.screen is not None and work.only is not None:
                self.screen.count(work.unit, work.span, difference)

    def control(self, number: int) -> np.ndarray | None:
        """First-order estimates of a unit [text] where they serve as its control variate."""
        return self._slopes(number) if self.uses_gradients.get(number) else None

    def look(self, numbers: Sequence[int]) -> None:
        """Estimate these units from what is measured of them."""
        if self.gradients is not None and not self.scales:
            self._weigh_gradients(self.gradients)
        if self.functional is None and not self.smallest and len(self.looks) > 1 and len(self.units) >= SCALE_UNITS:
            series = [self.measured.values(unit.key) for unit in self.units]
            self.rare = RareTexts.among([values for values in series if len(values) >= self.looks[0]])
            own = [n for n, values in enumerate(series) if len(values) >= self.looks[0] and not self.is_bulk(n)]
            if len(own) >= SCALE_UNITS:
                shares = np.array([self.widening.share(self._residuals(n)) for n in own])
                self.skewed = float(shares.mean() + 2 * shares.std(ddof=1) / np.sqrt(len(own)))
        for number in numbers:
            self.estimates[number] = self.estimate(number, strict=number in self.ranked)

    def estimate(self, number: int, *, strict: bool) -> MeanChange:
        """A unit's effect, from all that is measured of it, with an interval that holds for any reason to stop or for one."""
        values, weights = self.measured.values(self.units[number].key), self.measured.weights
        skipped = self.again.get(number, 0)
        level = self.strict
        if not strict:
            share = max(self.skewed, self.widening.share(values[skipped:] if skipped else self._residuals(number)))
            together = len(self.again) if skipped else 1  # whoever reads chooses among the strongest once more
            level = widened(len(values) - skipped, 1 - (1 - self.options.level) / together, self.widening.of(share))
        if self.functional is not None:
            return self.functional.estimate(values, level)
        values, weights = values[skipped:], weights[skipped:]
        control = None if skipped else self.control(number)
        found = estimate(values, weights, level, control, weights, smallest=self.smallest)
        return self.rare.allowed_for(found, values) if self.rare else found

    def _weigh_gradients(self, gradients: np.ndarray) -> None:
        """Decide how gradients serve, from all units at their first look."""
        windows: dict[str, list[int]] = {}
        for number, unit in enumerate(self.units):
            if self.measured.n(unit.key) >= self.looks[0]:
                windows.setdefault(unit.window, []).append(number)
        for window, numbers in windows.items():
            first = np.stack([self.measured.values(self.units[number].key)[: self.looks[0]] for number in numbers])
            # A scale fitted to few units is fitted to their noise, and the estimate would no longer be unbiased.
            many = len(numbers) >= SCALE_UNITS
            self.scales[window] = gradient_scale(first, self.measured.weights, gradients[:, numbers].T) if many else 1.0
            for number, values in zip(numbers, first, strict=True):
                self.uses_gradients[number] = use_gradients(values, self.measured.weights, self._slopes(number))

    def _residuals(self, number: int) -> np.ndarray:
        """What a unit's first-order estimates leave of its differences [text], where it uses them."""
        values, control = self.measured.values(self.units[number].key), self.control(number)
        return values if control is None or len(control) <= len(values) else values - control[: len(values)]

    def _slopes(self, number: int) -> np.ndarray:
        """Scaled first-order estimates of a unit [text]."""
        assert self.gradients is not None
        return self.gradients[:, number].astype(float) * self.scales[self.units[number].window]

    def change(self, number: int) -> float:
        """A unit's change at its last look; 0 before the first."""
        found = self.estimates[number]
        return found.change if found is not None else 0.0

    def strongest(self) -> list[int]:
        """The `top` units of largest change, the largest first."""
        return sorted(range(len(self.units)), key=lambda number: -self.change(number))[: self.options.top]

    def find_bulk(self, found: Sequence[int]) -> None:
        """Settle which units may be known together: single dimensions of all, none of which was named beforehand (`found`)."""
        options = self.options
        one_by_one = not options.bulk or options.dims != "all" or self.smallest > 0
        if one_by_one or len(self.looks) == 1 or self.looks[-1] < FEWEST_TEXTS:
            return
        single = (n for n, unit in enumerate(self.units) if len(unit.dims) == 1 and not unit.by_layer)
        plain = [n for n in single if self.units[n].dims[0] not in found]
        if len(plain) >= FEWEST_UNITS:
            self.bulk = Bulk.of(plain, options.level, options.tolerance, options.seed)

    @property
    def together(self) -> BulkSummary | None:
        """What is known of the bulk; None where there is none."""
        bulk = self.bulk
        if bulk is None or not bulk.members:
            return None
        return BulkSummary(
            len(bulk.members), bulk.texts, bulk.tolerance, len(bulk.audited), OPENINGS[bulk.texts], len(bulk.off),
            bulk.furthest, bulk.bound,
        )  # fmt: skip

    def is_bulk(self, number: int) -> bool:
        """Whether a unit is known together with others."""
        return self.bulk is not None and number in self.bulk.members

    def leave_bulk(self, numbers: Iterable[int]) -> None:
        """Let these units be measured until each has an interval of its own."""
        for number in filter(self.is_bulk, numbers):
            assert self.bulk is not None
            del self.bulk.members[number]
            self.estimates[number] = None

    def work(self, unit: Unit, span: tuple[int, int]) -> Work:
        """The work of a unit on a span: on all its texts, or on those that the screen asks for."""
        return Work(unit, *span, None if self.screen is None else self.screen.only(unit, span))

    def precise(self, number: int) -> bool:
        """Whether a unit's interval is narrow enough, or was before it was measured further."""
        found = self.estimates[number]
        return (
            number in self.ranked
            or self.is_bulk(number)
            or (found is not None and precise(found, self.options.tolerance, self.options.relative))
        )


def exact(state: SweepState) -> Iterator[Round]:
    """Every unit on every text (that the screen asks for), piece by piece; what comes out strongest is measured whole."""
    for span in pieces(state.looks):
        yield "effects", [state.work(unit, span) for unit in state.units]
        if state.functional is None or span[1] == state.looks[-1]:  # a metric is one of all texts together
            state.look(range(len(state.units)))
    if state.screen is not None:
        yield from _whole(state, state.screen)
    state.separated = True


def _whole(state: SweepState, screen: Screen) -> Iterator[Round]:
    """The strongest units anew, on every text: gradients say least of strong effects."""
    while True:
        ranked = sorted(range(len(state.units)), key=lambda number: -state.change(number))[: state.options.top]
        fresh = [number for number in ranked if state.units[number].key not in screen.whole]
        if not fresh:
            return
        for number in fresh:
            screen.whole.add(state.units[number].key)
            state.measured.drop(state.units[number].key)
        for span in pieces(state.looks):
            yield "telling the top apart", [state.work(state.units[number], span) for number in fresh]
        state.look(fresh)


def adaptive(state: SweepState) -> Iterator[Round]:
    """The bulk together, every other unit until its interval is narrow enough; then the strongest until they are in order."""
    order = list(range(len(state.units)))
    if state.gradients is not None:  # what gradients expect to be strong comes first: the leader board settles early
        order.sort(key=np.argsort(np.argsort(-state.gradients.mean(0))).tolist().__getitem__)
    if state.bulk is not None:
        yield from _together(state, state.bulk)
    yield from _each(state, [number for number in order if not state.is_bulk(number)])
    while needed := _needed(state):
        looks = {number: _next(state, number) for number in needed}
        works = [work for number, look in looks.items() for work in _until(state, [number], look)]
        yield "telling the top apart", works
        state.ranked |= {number for number in needed if state.precise(number)}
        state.look(sorted(needed))
    # What left the bulk for the order of the strongest has an interval of its own.
    yield from _each(state, [number for number in order if not state.precise(number)])
    yield from _again(state)


def _each(state: SweepState, numbers: Sequence[int]) -> Iterator[Round]:
    """These units, each until its interval is narrow enough."""
    while looks := {n: _next(state, n) for n in numbers if state.measured.n(state.units[n].key) < state.looks[-1]}:
        look = min(looks.values())
        now = [number for number, its in looks.items() if its == look]
        yield "effects", _until(state, now, look)
        state.look(now)
        numbers = [number for number, its in looks.items() if its != look or not state.precise(number)]


def _together(state: SweepState, bulk: Bulk) -> Iterator[Round]:
    """Ordinary units on ever more of the first texts, until their common interval is narrow enough; else there is no bulk."""
    weights, keys = state.measured.weights, [state.units[number].key for number in bulk.candidates]
    slopes = None if state.gradients is None else state.gradients[:, bulk.candidates].T.astype(float)
    place = {number: at for at, number in enumerate(bulk.candidates)}
    for texts, audit in OPENINGS.items():
        yield "ordinary ones", _until(state, bulk.candidates, texts)
        few = np.stack([state.measured.values(key)[:texts] for key in keys])
        bulk.divide(few, slopes)
        members = [place[number] for number in bulk.members]
        its_slopes = None if slopes is None else slopes[members]
        may_be_off = 0
        while may_be_off < len(bulk.sizes):
            bulk.audit(may_be_off)
            yield "ordinary ones at random", _until(state, bulk.audited, audit)
            further = [state.measured.values(state.units[number].key)[texts:audit] for number in bulk.audited]
            found = bulk.fit(few[members], np.array(further), weights, its_slopes)
            if found is not None:
                bulk.members = dict.fromkeys(found)
                state.estimates = [found.get(number, one) for number, one in enumerate(state.estimates)]
                return
            if len(bulk.off) <= may_be_off:  # no more can be drawn
                break
            may_be_off = len(bulk.off)
    bulk.members, bulk.audited, bulk.texts = {}, [], 0


def _again(state: SweepState) -> Iterator[Round]:
    """The strongest once more, on texts that had no part in choosing them, until their intervals are narrow enough.

    The largest of many estimates is too large by chance, and its interval misses on that side (with 64 equal effects 80 %
    held at nominal 95). Where the texts do not suffice, all of them are measured: that is no estimate any more.
    """
    last = state.looks[-1]
    ranked = state.strongest()
    n_texts = {number: state.measured.n(state.units[number].key) for number in ranked}
    state.ranked -= {*ranked}
    state.leave_bulk(ranked)
    state.again |= {number: n if n < last else 0 for number, n in n_texts.items()}
    open_ = [number for number, n in n_texts.items() if n < last and np.isfinite(state.change(number))]
    while open_:
        looks = {number: _next(state, number) for number in open_}
        works = [work for number, look in looks.items() for work in _until(state, [number], look)]
        yield "measuring the strongest again", works
        state.again |= {number: 0 for number, look in looks.items() if look == last}
        state.look(open_)
        open_ = [number for number in open_ if state.again[number] and not state.precise(number)]


def until(state: SweepState, units: Sequence[Unit], n_texts: int) -> Iterator[Round]:
    """Every one of `units` on the first `n_texts` texts, a number at which pieces end."""
    for start, stop in state.spans:
        if stop <= n_texts:
            yield "controls", [state.work(unit, (start, stop)) for unit in units if state.measured.n(unit.key) <= start]


def _needed(state: SweepState) -> set[int]:
    """Units that can still be measured and must be, for the order of the top; sets `state.separated`."""
    if not state.options.top:
        state.separated = True
        return set()
    if members := set(filter(state.is_bulk, state.strongest())):
        state.leave_bulk(members)
        return members
    # Of the bulk its common interval, which has one reason to stop.
    found = [
        one if one and state.is_bulk(number) else state.estimate(number, strict=True)
        for number, one in enumerate(state.estimates)
    ]
    wanted = unsettled(
        found,
        lambda number: state.measured.values(state.units[number].key),
        state.measured.weights,
        Ranking(state.options.top, state.strict, state.options.tolerance, state.smallest),
        state.control,
    )
    state.separated = not wanted
    state.leave_bulk(wanted)
    return {number for number in wanted if found[number].n_texts < state.looks[-1]}


def _next(state: SweepState, number: int) -> int:
    """The next look of a unit."""
    return next(look for look in state.looks if look > state.measured.n(state.units[number].key))


def _until(state: SweepState, numbers: Sequence[int], look: int) -> list[Work]:
    """What is missing of these units up to a look, the first texts first."""
    done = {number: state.measured.n(state.units[number].key) for number in numbers}
    return [
        Work(state.units[number], *span)
        for span in state.spans
        if span[1] <= look
        for number in numbers
        if done[number] <= span[0]
    ]
