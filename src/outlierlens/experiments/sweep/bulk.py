"""Ordinary units together: a few texts of each, one interval for all of them, held to a random sample. No torch.

bulk = Bulk.of(candidates, 0.95, seed=0, tolerance=0.01)       # numbers of the units that may belong to it
bulk.divide(values, slopes)                                    # who does: neither change nor spread stands out
bulk.fit(few, further, weights, slopes)                        # their changes; None where these may be further off

A model's dimensions are mostly alike: what a dimension's few texts (and its gradients) say of its change is learnt from the
`audited` ones, drawn at random and measured on further texts. This is double sampling with a regression estimator (Cochran
1977, section 12.6), over units instead of texts. Measuring stops once none of m audited ones is further off than the
tolerance, by its leave-one-out error: whatever the distribution, at most 1 − 0.05^(1/m) of all are, at confidence 0.95 (Wilks
1941). More texts are tried until then; so the interval is the tolerance, and not the largest error, which is small by chance
just where measuring stops.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from outlierlens.experiments.sweep.estimate import Estimate, Rare, giants
from outlierlens.statistics.means import NORMAL_MAD

# Texts of each ordinary unit until they suffice, and of an audited one.
OPENINGS = {1: 24, 2: 24, 3: 24, 4: 24, 6: 24, 8: 32, 12: 48}
AUDITED = 29  # units at least: of none found, at most 9.8 % of all are further off
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
        fitted: how many members there were then; later some may leave. furthest: the largest error of the audited ones.
    """

    candidates: list[int]
    level: float
    tolerance: float
    members: dict[int, None] = field(default_factory=dict)
    audited: list[int] = field(default_factory=list)
    texts: int = 0
    fitted: int = 0
    furthest: float = math.inf

    @classmethod
    def of(cls, candidates: list[int], level: float, tolerance: float, seed: int) -> "Bulk":
        """With the candidates in the seed's random order."""
        return cls(np.random.default_rng([seed, 29]).permutation(candidates).tolist(), level, tolerance)

    def divide(self, values: np.ndarray, slopes: np.ndarray | None) -> None:
        """Settle the members, and draw the audited ones of them, from what candidates did on the first texts.

        Args:
            values: differences [candidate, text]. slopes: first-order estimates [candidate, text or more], or None.
        """
        plain = np.isfinite(values).all(1)
        seen = [values.mean(1)]
        if slopes is not None:
            seen += [slopes.mean(1), np.log(slopes.std(1) + np.finfo(float).tiny)]
        for of in seen:
            if plain.any():
                away = np.abs(of - np.median(of[plain]))
                plain &= away <= FAR * NORMAL_MAD * np.median(away[plain])
        self.members = {number: None for number, ordinary in zip(self.candidates, plain, strict=True) if ordinary}
        self.audited = list(self.members)[: max(AUDITED, math.ceil(self.level / (1 - self.level) - 1e-9))]

    def fit(
        self, few: np.ndarray, further: np.ndarray, weights: np.ndarray, slopes: np.ndarray | None
    ) -> list[Estimate] | None:
        """Estimates of the members with their common interval; None where an audited one is further off, or there are too few.

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
        rare = Rare.among(list(further))
        allowance = max(rare.below, rare.above) * float(np.median([giants(values)[1] for values in further]))
        self.texts, self.fitted, self.furthest = n, len(few), float(np.abs(errors).max()) + allowance
        if self.furthest > self.tolerance:
            return None
        spreads = few.std(1, ddof=1) if n > 1 else np.full(len(few), np.nan)
        changes = design @ (inverse @ changes)
        width = self.tolerance
        return [
            Estimate(change, change - width, change + width, spread, n)
            for change, spread in zip(changes.tolist(), spreads.tolist(), strict=True)
        ]
