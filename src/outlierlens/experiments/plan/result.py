"""What must stay in high precision when a model is rounded: plain data, no torch.

found.verdict                    # "Keep 4 entries (3.3 % of the weights) in 16 bits: …"
found.steps                      # what stays, in the order chosen, with what each gives back
found.kept                       # (KeptLinear(path="model.layers.11.mlp.down_proj", weights=False, inputs=True, bits=16), …)
found.share_regained             # of the cost, with its interval
found.records()                  # a row per entry
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from outlierlens.analyses.quantize import says_of
from outlierlens.analyses.range import KeyBias
from outlierlens.experiments.plan.kept import KeptLinear
from outlierlens.experiments.plan.options import Grain
from outlierlens.results.document import Provenance, Result

What = Literal["weights", "inputs", "neuron", "dimension", "1 column", "4 columns", "16 columns"]
Entry = tuple[str, What]
"""A linear's path, and its weights or what it reads; a neuron (11:1229); a dimension; a part of the block, or every linear."""
Says = Literal["free", "keep", "no use", "nothing", "unclear", "not tried"]
Kind = Literal["dimension", "neuron", "input"]


@dataclass(frozen=True)
class Difference:
    """A difference of the task's value between two settings, with its 95 % interval over texts, and its noise."""

    value: float
    low: float
    high: float
    noise: float = math.nan


@dataclass(frozen=True)
class Sensitivity:
    """One entry: what its rounding may cost, and does.

    Attributes:
        path: the linear's module path, or the entry's name: "11:1229", "507", "mlp.down_proj", "every linear".
        layer, part: of the linear, its block and its path inside it; of others, of the linear where the largest |x| lies.
        what: see `What`. n_weights: that stay with it.
        rank: place in the cheap ordering, 1 the first.
        estimate: cost by gradient and rounding error, to second order; NaN where the task has no gradients.
        ratio: largest |x| over the median |x|. column: input where the largest lies, and row: of weights the output.
        kind: what an input of this linear is: a "dimension" of the stream, a "neuron" of the MLP, or any "input".
        error: Σ (rounded − x)² / Σ x².
        gain, low, high: what keeping it alone gives back on the nominating texts, with a 95 % interval that is NaN where it is
            not settled; all NaN where it was not measured. n_texts: it was measured on.
    """

    path: str
    layer: int
    part: str
    what: What
    n_weights: int
    rank: int
    estimate: float
    ratio: float
    column: int
    row: int | None
    kind: Kind
    error: float
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n_texts: int = 0


@dataclass(frozen=True)
class Step:
    """An entry that was nominated, with what keeping it gives back, those before it kept.

    Attributes:
        entry: which.
        nominated: mean on the nominating texts, which chose it (and so is too large by chance). n_texts: of them.
        confirmed: on the confirming texts, with its 95 % interval.
        n_weights: that stay once it is.
    """

    entry: Sensitivity
    nominated: float
    n_texts: int
    confirmed: Difference
    n_weights: int


@dataclass(frozen=True)
class Judged:
    """The model in one setting, on the judging texts.

    Attributes:
        label: "intact", "all rounded", "plan", "first and last block", … n_linears: of which something is kept.
        n_weights: that stay; all of a linear whose weights or inputs are kept. share: of all linears' weights. n_bytes: more
            than with all rounded.
        value: the task's; low, high: its 95 % interval. change: against the intact model, paired.
    """

    label: str
    n_linears: int
    n_weights: int
    share: float
    n_bytes: int
    value: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float


@dataclass(frozen=True)
class PrecisionPlan(Result):
    """What stays in `bits` bits while all else is rounded by `scheme`.

    Attributes:
        task, unit: what its value is. budget: share of the linears' weights that may be kept. grain: whether single columns may
            be.
        n_linears, n_weights: that the scheme rounds. exact: whether every entry was measured at every step.
        n_nominating, n_confirming, n_judging: texts of each group. n_estimating: of the pass that orders entries.
        intact, rounded: the model as it is, and all rounded. curve: with the first entries of the plan kept, one more each.
        random: with random linears, neurons, dimensions and columns of the same sizes kept. rules: what tools keep by rule.
        steps: the plan. kept: what stays of each linear. refused: the entry that was nominated after it and not confirmed;
            None where none was left.
        cost: value all rounded − intact, on the confirming texts. floor: what an entry has to give back to be named.
        regained: value all rounded − value with the plan. share_regained: that over what rounding costs.
        beyond_random: mean value of the random draws − value with the plan; None and no p without draws.
        p: (1 + #{draws whose value is as small as the plan's}) / (1 + draws).
        sensitivities: every entry, in the cheap ordering.
        keys: biases of keys so large that a cache of few bits fails in their layers (`range --cache`).
        evaluations: forward passes of a text that all of it took (those found in row files too).
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    stack: str
    scheme: str
    bits: int
    budget: float
    grain: Grain
    n_linears: int
    n_weights: int
    exact: bool
    n_nominating: int
    n_confirming: int
    n_judging: int
    n_estimating: int
    max_length: int
    intact: Judged
    rounded: Judged
    curve: tuple[Judged, ...]
    random: tuple[Judged, ...]
    rules: tuple[Judged, ...]
    steps: tuple[Step, ...]
    kept: tuple[KeptLinear, ...]
    refused: Step | None
    cost: Difference
    floor: float
    regained: Difference
    share_regained: Difference
    beyond_random: Difference | None
    p: float | None
    sensitivities: tuple[Sensitivity, ...]
    evaluations: int
    keys: tuple[KeyBias, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Judged:
        """The model with all of the plan kept; all rounded where it names nothing."""
        return self.curve[-1] if self.curve else self.rounded

    @property
    def says(self) -> Says:
        """What the intervals say.

        "free": the cost's interval holds 0 or lies below. "unclear": it is not settled. "nothing": rounding costs, and no entry
        gives back `floor` that can be told. "keep": the plan gives something back, and more than random linears do, both
        intervals above 0. "no use": that cannot be said. "not tried": no random draw was measured beside.
        """
        if 0 < self.cost.low < math.inf and not self.steps:
            return "nothing"
        beyond = self.beyond_random
        return says_of(self.cost.low, self.regained.low, beyond.low if beyond else None)

    @property
    def random_change(self) -> float:
        """Mean change with random linears kept; NaN without draws."""
        return float(np.mean([one.change for one in self.random])) if self.random else math.nan

    def records(self) -> Iterator[dict[str, Any]]:
        """One flat row per entry, in the cheap ordering."""
        kept = {(step.entry.path, step.entry.what) for step in self.steps}
        for one in self.sensitivities:
            yield {
                "path": one.path,
                "layer": one.layer,
                "what": one.what,
                "kept": (one.path, one.what) in kept,
                "weights": one.n_weights,
                "estimate": one.estimate,
                "ratio": one.ratio,
                "column": one.column,
                "error": one.error,
                "gain": one.gain,
                "low": one.low,
                "high": one.high,
                "texts": one.n_texts,
            }
