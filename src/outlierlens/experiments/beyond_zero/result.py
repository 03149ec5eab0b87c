"""What `beyond_zero` measures: the same dimensions zeroed, set to means, shuffled and scaled. Plain data, no torch.

treated = found.treated[0]
treated.of("mean").recovered                     # share of zero's damage that the mean does not do
treated.verdict, treated.place                   # "fixed", "by position", "information", …; "first token", …
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.errors import BadInput, pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.words import interval_text, no_interval

Verdict = Literal["too few texts", "no damage", "fixed", "by position", "information", "unclear"]
Place = Literal["", "first token", "other tokens", "both", "unclear"]
ZERO, MEAN, POSITION_MEAN, RESAMPLE = "zero", "mean", "position mean", "resample"
BUT_FIRST, ONLY_FIRST, SCALE = "zero, first token kept", "zero, first token only", "scale"
HALF = 0.5  # of zero's damage: recovering more is most of it
RULE = (
    "Zero does damage where the 95 % interval of its change is above 0 and the change above that of every random set. What a "
    "treatment recovers is the share of that damage which it does not do. Fixed: the whole 95 % interval of the mean's share "
    "is above one half. By position: not fixed, and that of the mean at each position is. Information: both intervals are "
    "below one half. Otherwise unclear. Without an interval of zero's change there are too few "
    "texts for a verdict. Place: the first token, where keeping it alone recovers more than half; the "
    "other tokens, where zeroing the first alone leaves more than half; both, where neither does; else unclear."
)
SAYS: dict[Verdict, str] = {
    "too few texts": "no verdict",
    "no damage": "zero does no more damage than to random dimensions, so there is nothing to tell apart",
    "fixed": "mostly a fixed bias",
    "by position": "mostly a bias that is fixed for each position",
    "information": "mostly information, which no mean replaces",
    "unclear": "unclear: the intervals do not tell bias from information",
}


@dataclass(frozen=True)
class Treatment:
    """One treatment of the dimensions, and what it does.

    Attributes:
        name: "zero", "mean", "position mean", "resample", "scale 2", "zero, first token kept", "zero, first token only".
        factor: of a scale; 0 and 1 of "zero" and of nothing done are no treatments of their own. NaN otherwise.
        value: the task's value, weighted mean over texts. per_text: of each text, in the order of `BeyondZero.texts`.
        change: value − intact value; low, high: 95 % interval over texts.
        recovered: 1 − change / change of zero: 0 is no better than zero, 1 as good as intact; NaN where zero does no damage.
            recovered_low, recovered_high: its 95 % interval, texts drawn together for both.
        random: the same change with each random set treated alike [set].
        p: (1 + #{random >= change}) / (1 + n); None without random sets.
        also: further numbers of the task by name.
    """

    name: str
    factor: float
    value: float
    per_text: Annotated[tuple[float, ...], "text"]
    change: float
    low: float
    high: float
    recovered: float
    recovered_low: float
    recovered_high: float
    random: Annotated[tuple[float, ...], "set"] = ()
    p: float | None = None
    also: dict[str, float] | None = None

    @property
    def random_median(self) -> float:
        """Median of the random changes; NaN without any."""
        return float(np.median(self.random)) if self.random else math.nan

    @property
    def side(self) -> int:
        """1 where the whole interval of `recovered` is above one half, −1 where it is below, else 0."""
        return int(self.recovered_low > HALF) - int(self.recovered_high < HALF)


@dataclass(frozen=True)
class Treated:
    """Some dimensions under all treatments.

    Attributes:
        dims: treated in any layer; by_layer: {layer: dims} where layers differ, else empty.
        treatments: zero first. random_dims: the random sets.
    """

    dims: tuple[int, ...]
    by_layer: dict[int, tuple[int, ...]]
    treatments: tuple[Treatment, ...]
    random_dims: Annotated[tuple[tuple[int, ...], ...], "set"] = ()

    @property
    def label(self) -> str:
        """ "308, 381"."""
        return ", ".join(map(str, self.dims))

    def of(self, name: str) -> Treatment:
        """One treatment; raises BadInput with those there are."""
        return pick(self.treatments, f"no treatment {name!r}", name=name)

    @property
    def scales(self) -> tuple[tuple[float, Treatment | None], ...]:
        """(factor, treatment) from 0, which is zero, to the largest; the treatment of factor 1 is None: nothing done."""
        found: dict[float, Treatment | None] = {0.0: self.of(ZERO), 1.0: None}
        found |= {one.factor: one for one in self.treatments if math.isfinite(one.factor)}
        return tuple(sorted(found.items(), key=lambda item: item[0]))

    @property
    def does_damage(self) -> bool:
        """Whether zero does more damage than none, and than to every random set."""
        zero = self.of(ZERO)
        return zero.low > 0 and all(zero.change > one for one in zero.random)

    @property
    def verdict(self) -> Verdict:
        """By `RULE`: "too few texts", "no damage", "fixed", "by position", "information" or "unclear"."""
        if not math.isfinite(self.of(ZERO).low):
            return "too few texts"
        if not self.does_damage:
            return "no damage"
        mean, by_position = self.of(MEAN).side, self.of(POSITION_MEAN).side
        if mean > 0:
            return "fixed"
        if by_position > 0:
            return "by position"
        return "information" if mean < 0 and by_position < 0 else "unclear"

    @property
    def place(self) -> Place:
        """By `RULE`: at which tokens the dimensions must not be zero; "" where zero does no damage."""
        if not self.does_damage:
            return ""
        kept, only = self.of(BUT_FIRST).side, self.of(ONLY_FIRST).side
        if kept > 0:
            return "first token"
        if only > 0:
            return "other tokens"
        return "both" if kept < 0 and only < 0 else "unclear"


@dataclass(frozen=True)
class BeyondZero(Result):
    """Dimensions zeroed, set to means, shuffled, scaled and restored, beside random dimensions treated alike.

    Attributes:
        task, unit: "causal loss", "nats per token". named_by: who named the dimensions.
        layers: blocks whose output was edited.
        n_folds: parts of the texts; the means that a part is treated with are those of the other parts.
        no_mean: share of the tokens at positions that no text of the other parts reaches, in [0, 1].
        intact: the task's value untouched; intact_per_text: of each text.
        texts: numbers of the texts, in the order of all values per text; weights: what each counts.
        treated: the set first, then each dimension alone where that was asked for.
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    stack: str
    layers: tuple[int, ...]
    max_length: int
    n_tokens: int
    n_folds: int
    no_mean: float
    named_by: str
    intact: float
    intact_per_text: Annotated[tuple[float, ...], "text"]
    texts: Annotated[tuple[int, ...], "text"]
    weights: Annotated[tuple[float, ...], "text"]
    treated: tuple[Treated, ...]
    inputs: str = "texts"
    notes: tuple[str, ...] = ()

    def of(self, *dims: int) -> Treated:
        """What was done to exactly these dimensions; raises BadInput with those there are."""
        for one in self.treated:
            if set(one.dims) == set(dims):
                return one
        there = "; ".join(one.label for one in self.treated)
        raise BadInput(f"{', '.join(map(str, dims))} were not treated; there are {there}")

    def says(self, treated: Treated) -> str:
        """One sentence: what the dimensions are, and the numbers it rests on."""
        zero, mean, by_position, kept = (treated.of(name) for name in (ZERO, MEAN, POSITION_MEAN, BUT_FIRST))
        why = f", for {no_interval(len(self.texts), self.inputs)}" if treated.verdict == "too few texts" else ""
        said = (
            f"{treated.label}: {SAYS[treated.verdict]}{why}. Zero changes the {self.task} by {zero.change:+.3g} {self.unit} "
            f"(95 % interval {interval_text(zero.low, zero.high, '+.3g')})"
        )
        if zero.random:
            said += f", random dimensions by {zero.random_median:+.2g} (median of {len(zero.random)})"
        if treated.verdict in ("too few texts", "no damage"):
            return said + "."
        said += f"; the mean recovers {share(mean)} of it, the mean at each position {share(by_position)}"
        where = {
            "first token": "the first token is where it matters",
            "other tokens": "the other tokens are where it matters",
            "both": "the first token and the others both matter",
        }
        said += f", keeping the first token alone {share(kept)}"
        return said + (f": {where[treated.place]}." if treated.place in where else ".")

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per set of dimensions and treatment."""
        return treatment_rows(self)


def share(one: Treatment) -> str:
    """What a treatment recovers, for reading: "97 % (91 to 99 %)"."""
    if not math.isfinite(one.recovered):
        return "an unknown share"
    said = f"{round(100 * one.recovered)} %"
    if math.isfinite(one.recovered_low):
        said += f" ({round(100 * one.recovered_low)} to {round(100 * one.recovered_high)} %)"
    return said


def treatment_rows(found: BeyondZero) -> Iterator[dict[str, Any]]:
    """One flat row per set of dimensions and treatment."""
    for treated in found.treated:
        for one in treated.treatments:
            yield {
                "dims": treated.label,
                "treatment": one.name,
                "value": one.value,
                "change": one.change,
                "low": one.low,
                "high": one.high,
                "recovered": one.recovered,
                "recovered_low": one.recovered_low,
                "recovered_high": one.recovered_high,
                "random_median": one.random_median,
                "random_largest": max(one.random, default=math.nan),
                "n_random": len(one.random),
                "p": math.nan if one.p is None else one.p,
            }
