"""Ordinary units together: a few texts of each, one interval for all of them, held to a random sample. No torch.

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
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from outlierlens.analyses.sweep.estimate import MeanChange, RareTexts, giants
from outlierlens.statistics.means import LEVEL, NORMAL_MAD

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
