"""What a model says with dimensions off, beside what it says intact and with random dimensions off: plain data, no torch.

found.shift("unmasked", "layers").direction        # "more frequent", "rarer" or "neither"
found.shift("unmasked", "layers").changes["log_frequency"].change
found.of("unmasked").intact.values["kl_to_unigram"]
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.words import interval_text, no_change

MEASURES = {
    "log_frequency": "ln of the corpus frequency of the predicted token, mean (nats)",
    "expected_log_frequency": "ln of the corpus frequency, expected under the predicted distribution, mean (nats)",
    "frequency": "corpus frequency of the predicted token, mean (share of the corpus' tokens)",
    "slope": "slope of ln count among predictions on ln count in the corpus, types that are predicted",
    "spearman": "rank correlation of the same two counts, in [-1, 1]",
    "slope_expected": "slope of ln mean predicted probability on ln count in the corpus, types that the corpus has",
    "spearman_expected": "rank correlation of the same two, in [-1, 1]",
    "kl_to_unigram": "KL(mean predicted distribution || corpus) (nats)",
    "kl_from_unigram": "KL(corpus || mean predicted distribution) (nats)",
    "entropy": "entropy of the predicted distribution, mean (nats)",
    "accuracy": "share of predictions that are the text's own token, in [0, 1]",
    "surprisal": "-ln probability of the text's own token, mean (nats)",
    "special": "share of predictions that are special tokens, in [0, 1]",
}
INTERVENTIONS = {
    "layers": "off in all layers",
    "last_hidden": "off in the last hidden state alone",
    "logits": "off in the product with the vocabulary alone",
}
INPUTS = {"masked": "masked tokens", "unmasked": "every token, nothing masked", "next": "the next token"}


@dataclass(frozen=True)
class Curve:
    """How predictions spread over types, at some ranks (1 is first).

    Attributes:
        ranks: int [point].
        said: share of predictions that the type of this rank has, by how often types are predicted [point]; 0 behind the last.
        covered: share of predictions that are among so many of the corpus' most frequent types [point].
    """

    ranks: Annotated[np.ndarray, "point"]
    said: Annotated[np.ndarray, "point"]
    covered: Annotated[np.ndarray, "point"]


@dataclass(frozen=True)
class Word:
    """A predicted token: its share of predictions, and of the corpus' tokens."""

    token: str
    share: float
    corpus: float


@dataclass(frozen=True)
class Spoken:
    """What the model says under one condition.

    Attributes:
        label: "intact", "chosen", "random 0", … dims: off in any layer.
        n_values: parameters set to zero; 0 for edits.
        values: {measure: number}, see `MEASURES`. n_types: different tokens predicted.
        top: the tokens predicted most often; of random sets none.
    """

    label: str
    dims: tuple[int, ...]
    n_values: int
    values: dict[str, float]
    n_types: int
    curve: Curve
    top: tuple[Word, ...]


@dataclass(frozen=True)
class MeasureChange:
    """What an intervention does to a measure: ablated − intact, with its paired 95 % interval over texts.

    Of means over positions it is a bootstrap's (BCa), of slopes, rank correlations and divergences a jackknife's.

    Attributes:
        random: the same change with random sets of as many dimensions off [set].
        p: (1 + #{|random| >= |change|}) / (1 + n), None without random sets; of the size, for the direction is open.
    """

    change: float
    low: float
    high: float
    random: tuple[float, ...]
    p: float | None

    @property
    def sign(self) -> int:
        """1 or −1 where the whole interval is on one side of 0; else 0, also where there is no interval."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def random_median(self) -> float:
        """Median of the random changes; NaN without any."""
        return float(np.median(self.random)) if self.random else math.nan


@dataclass(frozen=True)
class Shift:
    """One intervention on one kind of input.

    Attributes:
        input: "masked", "unmasked" or "next". intervention: "layers", "last_hidden" or "logits".
        chosen: with the dimensions off; random: with each random set off.
        changes: {measure: change from intact}.
    """

    input: str
    intervention: str
    chosen: Spoken
    random: tuple[Spoken, ...]
    changes: dict[str, MeasureChange]

    @property
    def direction(self) -> str:
        """Of the predicted tokens' log frequency: "more frequent", "rarer", "neither", or "unknown" without an interval."""
        change = self.changes["log_frequency"]
        if not math.isfinite(change.low):
            return "unknown"
        return {1: "more frequent", -1: "rarer", 0: "neither"}[change.sign]

    @property
    def times(self) -> float:
        """By which factor predicted tokens are more frequent (geometric mean): exp of the change of `log_frequency`."""
        return math.exp(self.changes["log_frequency"].change)


@dataclass(frozen=True)
class Heard:
    """One kind of input: how much of it there was, what the intact model says, and what each intervention makes of it."""

    input: str
    n_texts: int
    n_positions: int
    intact: Spoken
    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Predictions(Result):
    """What a model says with dimensions off, beside what it says intact and with random dimensions off.

    Attributes:
        counts: where the corpus' token counts come from; n_counted: tokens counted; smoothing: occurrences added to each.
        dims: off in any layer; by_layer where layers differ. mode: how they are off in all layers.
        n_groups: groups of neighbouring texts, at most, that intervals of numbers over the whole vocabulary leave out in turn.
        corpus: how the corpus' own tokens spread over its types.
        heard: by kind of input.
    """

    provenance: Provenance
    data: str
    data_digest: str
    counts: str
    n_counted: int
    smoothing: float
    head: str
    stack: str
    mode: str
    dims: tuple[int, ...]
    by_layer: dict[int, tuple[int, ...]]
    max_length: int
    n_groups: int
    n_bootstrap: int
    paper_compat: bool
    corpus: Curve
    heard: tuple[Heard, ...]
    notes: tuple[str, ...] = ()

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """Every intervention on every kind of input."""
        return tuple(shift for heard in self.heard for shift in heard.shifts)

    def interval(self, shift: Shift, measure: str, form: str = "+.2f") -> str:
        """The interval of what an intervention does to a measure, in words."""
        change = shift.changes[measure]
        return interval_text(change.low, change.high, form, no_change(self.of(shift.input).n_texts, "texts"))

    def of(self, input: str) -> Heard:
        """One kind of input; raises BadInput with those there are."""
        return pick(self.heard, f"no input {input!r} in this result", input=input)

    def shift(self, input: str, intervention: str) -> Shift:
        """One intervention on one kind of input; raises BadInput with what there is."""
        missing = f"no intervention {intervention!r} on input {input!r} in this result"
        return pick(self.shifts, missing, input=input, intervention=intervention)

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per input, intervention and measure."""
        return prediction_rows(self)


def prediction_rows(found: Predictions) -> Iterator[dict[str, Any]]:
    """One flat row per input, intervention and measure."""
    for heard in found.heard:
        for shift in heard.shifts:
            for measure, change in shift.changes.items():
                yield {
                    "input": heard.input,
                    "intervention": shift.intervention,
                    "measure": measure,
                    "intact": heard.intact.values[measure],
                    "ablated": shift.chosen.values[measure],
                    "change": change.change,
                    "low": change.low,
                    "high": change.high,
                    "random_median": change.random_median,
                    "n_random": len(change.random),
                    "p": math.nan if change.p is None else change.p,
                }
