"""The rows of a sweep: the effect of a set of dimensions, and the set among control sets; what else a sweep says of itself."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from outlierlens.results.rows import Estimate, More, Quiet, Row
from outlierlens.view.section import Change, Count, P, percent

BY_LAYER = "layer by layer"  # stands for the window of sets that differ from layer to layer
MAX_DRAWS = 300  # dots of one strip
Stopped = Literal["precise", "all texts", "unfinished", "bulk"]


@dataclass(frozen=True, kw_only=True)
class Effect(Row):
    """The effect of ablating one set of dimensions.

    `change` is infinite, or NaN, where the value is no number on a text: that ranks as the worst. Its interval is
    calibrated for the rule that stopped the measuring; its ends are infinite where too few texts, or too few that changed,
    settle it, and 0 where nothing changed on any text. Of "bulk" effects it is their common one (see `BulkSummary`).
    """

    label: str
    """ablated"""
    dims: Annotated[tuple[int, ...], More]
    """dimensions: ablated in any layer"""
    by_layer: Annotated[dict[int, tuple[int, ...]], Quiet]
    """{layer: dims} where layers differ, else empty"""
    window: Annotated[str, Quiet]
    """ablated in: "all layers", "layer 3", "from layer 3", "up to layer 3", "layers 0–2", or "layer by layer" """
    layers: Annotated[tuple[int, ...], Quiet]
    change: Annotated[Estimate, Change]
    """change ({of_change}): mean over texts, against the intact model"""
    n_texts: Annotated[int, Count]
    """texts: it was measured on the first of the sweep's order"""
    stopped: Stopped
    """stopped: why no more texts; "precise" is narrow enough, "bulk" known together with the other ordinary ones"""
    p: Annotated[float | None, P] = None
    """p: rank among the other dimensions of the same window, (1 + #{others >= change}) / (1 + n); none for sets"""
    q: Annotated[float | None, P, More] = None
    """q: p adjusted over all dimensions of the window (Benjamini & Hochberg 1995), which can hardly reject anything"""
    q_found: Annotated[float | None, P] = None
    """q among named: over the dimensions alone that the weights named beforehand"""
    times_random: float | None = None
    """× random: over the mean change of the dimensions that the weights did not name, or of ordinary sets"""
    first_order: Annotated[float | None, Change] = None
    """first order: estimate from gradients, to compare with the measurement"""
    found: bool = False
    """by weights: whether the weights name all of it"""
    spread: Annotated[float, More]
    """spread: standard deviation of the change over texts"""
    n_parameters: Annotated[int, Count, More] = 0
    """parameters: number that is set to zero; 0 for edits of hidden states"""
    again: Annotated[int, Count, More] = 0
    """again: of the strongest, which were measured again, texts that the change rests on, none of which chose it"""

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.change.low

    @property
    def finite(self) -> bool:
        """Whether the change is a number."""
        return math.isfinite(self.change.value)


@dataclass(frozen=True, kw_only=True)
class Null(Row):
    """One set of dimensions against control sets of its size, all on the same texts."""

    label: str
    """ablated"""
    window: Annotated[str, Quiet]
    """ablated in"""
    kind: str
    """control: random (any other dimensions), ordinary (none that was named beforehand), matched (as extreme weights)"""
    n: Annotated[int, Count]
    n_texts: Annotated[int, Count]
    """texts"""
    change: Annotated[float, Change]
    """change ({of_change}): of the set itself on these texts"""
    median: Annotated[float, Change]
    percentile_95: Annotated[float, Change]
    """95th percentile"""
    mean: Annotated[float, Change]
    times_mean: float | None
    """× mean"""
    p: Annotated[float | None, P] = None
    """rank p: (1 + #{control >= change}) / (1 + n); among random sets alone, the others describe only"""
    q: Annotated[float | None, P] = None
    """q: adjusted over all sets and windows of this sweep (Benjamini & Hochberg 1995)"""
    closeness: float | None = None
    """closeness: median of the controls' magnitudes over the wanted ones; 1 is a perfect match"""
    changes: Annotated[tuple[float, ...], Quiet]
    """of each control set, ascending"""

    @property
    def sample(self) -> tuple[float, ...]:
        """At most `MAX_DRAWS` of the changes, evenly by rank, both ends among them."""
        places = np.linspace(0, self.n - 1, min(self.n, MAX_DRAWS)).round().astype(int)
        return tuple(self.changes[place] for place in places.tolist())


@dataclass(frozen=True)
class Cost:
    """What the sweep took, in evaluations of one text by the whole model.

    Attributes:
        intact, effects, nulls: texts evaluated for each; of a screened sweep `intact` counts them again for their margins.
        gradient_texts: texts of the gradient passes, each of which costs about three evaluations.
        total: all of them. exact: what measuring every effect (nulls apart) on every text takes.
        tokens: tokens of the evaluated texts in `total`, padding not counted.
    """

    intact: int
    effects: int
    nulls: int
    gradient_texts: int
    total: int
    exact: int
    tokens: int

    @property
    def saving(self) -> float:
        """Exact evaluations over those spent on effects, the intact model and gradients."""
        spent = self.intact + self.effects + 3 * self.gradient_texts
        return self.exact / spent if spent else math.nan


@dataclass(frozen=True)
class Precision:
    """How far a reduced precision moves the effects, over some sets and texts: against the same weights in float32.

    Attributes:
        deviation: the largest |change − change in float32|; of a metric of all texts together the share of predicted classes,
            or the largest difference of predicted values, that is other than in float32.
        of: what it is of: "changes", "classes" or "values".
        intact: the intact model's value minus that in float32, on the same texts; None where `of` is no change.
    """

    dtype: str
    deviation: float
    n_sets: int
    n_texts: int
    of: str = "changes"
    intact: float | None = None

    def written(self, unit: str) -> str:
        """ "the intact value differs from float32 by +0.0012, changes by at most 0.003 nats per token (4 sets, 9 texts)"."""
        over = f"({self.n_sets:,} set{'s' * (self.n_sets != 1)}, {self.n_texts:,} text{'s' * (self.n_texts != 1)})"
        if self.of == "classes":
            compared = (self.n_sets + 1) * self.n_texts  # the intact model too
            said = f"{round(self.deviation * compared):,} of {compared:,} predicted classes are other than in float32"
        elif self.intact is None:
            said = f"predicted values differ from float32 by at most {self.deviation:.2g}"
        else:
            moved = f"changes by at most {self.deviation:.2g} {unit}"
            said = f"the intact value differs from float32 by {self.intact:+.2g}, {moved}"
        return f"{said} {over}"


@dataclass(frozen=True)
class BulkSummary:
    """The bulk: the ordinary dimensions, which stand out by neither change nor spread.

    Attributes:
        n: of them; texts: each was measured on. reach: of their common interval, to either side of each change.
        audited: ordinary ones, drawn at random and measured on `audit_texts`. off: of them, those that were further off; they
            have intervals of their own. furthest: by how much the furthest of the others is off.
        bound: upper bound of the share of the bulk that is further off, at confidence 0.95 (`bulk.most_off`).
    """

    n: int
    texts: int
    reach: float
    audited: int
    audit_texts: int
    off: int
    furthest: float
    bound: float

    def written(self) -> str:
        """In words, for reading."""
        return (
            f"The bulk: {self.n:,} effects of ordinary size and spread were measured on {self.texts} "
            f"text{'s' * (self.texts != 1)} each; each is its estimate ± {self.reach:g}. Of {self.audited} ordinary ones, "
            f"drawn at random and measured on {self.audit_texts} texts, {self.off or 'none'} "
            f"{'were' if self.off > 1 else 'was'} further off (the furthest other by {self.furthest:.2g}): at most "
            f"{100 * self.bound:.2g} % of the bulk are, at confidence 0.95."
        )


@dataclass(frozen=True)
class Screening:
    """Pairs left out because their predicted class cannot change to first order, and how often that was wrong.

    Attributes:
        pairs: of a text and something switched off; measured: of them, the audited ones with them.
        audited: pairs that could have been left out and were drawn at random to be measured; flipped: of them, those whose
            predicted class had changed.
        bound: upper bound of the share of flipped ones among all left out, at confidence 0.95.
        safety: how many times its first-order estimate a margin must withstand.
    """

    pairs: int
    measured: int
    audited: int
    flipped: int
    bound: float
    safety: float

    def written(self) -> str:
        """In words, for reading."""
        if self.measured == self.pairs:
            return f"Screening left nothing out: all {self.pairs:,} pairs of text and ablation were measured."
        audited = (
            f" Of {self.audited:,} that could have been left out and were drawn at random to be measured {self.flipped:,} "
            f"had changed: at most {100 * self.bound:.2f} % of all left out, at confidence 0.95."
        )
        return (
            f"Measured on {percent(self.measured / max(1, self.pairs))} of {self.pairs:,} pairs of text and ablation: the "
            f"others keep their predicted class to first order ({self.safety:g} times over).{audited * bool(self.audited)} "
            "--exact measures all."
        )
