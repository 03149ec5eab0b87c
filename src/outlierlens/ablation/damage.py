"""What `disable` measures: the model intact, with dimensions off, and with controls off. Plain data, no torch.

damage.chosen.change                              # against intact, nats per token
damage.controls[0].p                              # rank p of the chosen set among random sets
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from outlierlens.architectures.mlp import Neuron
from outlierlens.results.document import OnTask, Provenance, Result

FillKind = Literal["same", "other", "nonsense", "changed"]
SIGNS: dict[FillKind, str] = {"same": "=", "other": "≠", "nonsense": "✗", "changed": "!"}


@dataclass(frozen=True)
class Score:
    """A task's value on one condition.

    Attributes:
        value: mean over texts, weighted by tokens: nats per token for a loss; a difference to intact otherwise.
        low, high: 95 % interval of `value` over texts, NaN where it is not settled.
        perplexity: exp(value) for a loss; None for other tasks.
        per_text: value of each text, in the order of the data; of a metric that is no mean, its predictions.
        also: further numbers by name (for output change: "cosine", "kl").
    """

    value: float
    low: float
    high: float
    perplexity: float | None
    per_text: tuple[float, ...]
    also: dict[str, float]


@dataclass(frozen=True)
class Condition:
    """One thing that was switched off, and what it did.

    Attributes:
        label: "intact", "chosen", "random 3", "matched 1".
        dims: dimensions off in any layer.
        by_layer: {layer: dims} where layers differ; empty otherwise.
        layers: layers they are off in.
        neurons: of an MLP axis what is off, as "11:1229" (block:neuron); `dims` holds their numbers, `by_layer` is filled.
        score: the task's value.
        change: score.value − intact value (nats per token for a loss); low, high: its 95 % interval
            over texts, NaN where it is not settled.
        n_parameters: parameters set to zero (0 for edits of hidden states).
    """

    label: str
    dims: tuple[int, ...]
    by_layer: dict[int, tuple[int, ...]]
    score: Score
    change: float
    change_low: float
    change_high: float
    n_parameters: int
    layers: tuple[int, ...] = ()
    neurons: tuple[str, ...] = ()

    @property
    def positions(self) -> tuple[int, ...] | tuple[Neuron, ...]:
        """What is off: neurons by block and number, else dimensions; a number each, or "11:1229", as text."""
        return tuple(map(Neuron.parse, self.neurons)) or self.dims

    @property
    def kind(self) -> str:
        """What is off, in a word: "dimension" or "neuron"."""
        return "neuron" if self.neurons else "dimension"


@dataclass(frozen=True)
class Control:
    """The chosen set against a family of control sets of the same size.

    Attributes:
        kind: "random" (any other dimensions), "ordinary" (of these draws, and more, those without a dimension that is tested
            or that the rule finds; only where they differ), or "matched" (as large weights, at different positions by layer).
        conditions: the sets and what they did.
        p: (1 + #{control >= chosen}) / (1 + n): rank p-value of the chosen set's change among random sets. None among
            ordinary and matched ones: the chosen set is none of their kind, and they describe only. None where the
            chosen set's change is no number; a control's that is none counts as the largest.
        median, percentile_95, mean: of the controls' changes, nats per token.
        ratio_to_median, ratio_to_percentile_95, ratio_to_mean: chosen change divided by those; None where the
            denominator is not positive (a ratio to nothing says nothing).
        closeness: matched only: median of the controls' magnitudes over the wanted ones; 1 is a perfect match.
    """

    kind: str
    conditions: tuple[Condition, ...]
    p: float | None
    median: float
    percentile_95: float
    mean: float
    ratio_to_median: float | None
    ratio_to_percentile_95: float | None
    ratio_to_mean: float | None
    closeness: float | None = None


@dataclass(frozen=True)
class Blank:
    """What the model says at one position of a passage: its word, the intact model's, and the verdict.

    `kind` of a blank is "same" (equal to the intact fill), "other" (another word) or "nonsense", by the rule of `fill.judge`;
    "changed" is a word that a masked model was shown, that the intact model repeats, and that this one takes for another.
    """

    position: int
    filled: str
    intact: str
    original: str
    kind: FillKind


@dataclass(frozen=True)
class Filled:
    """The passage under one condition: `pieces` are the texts between `blanks` (changed words among them), one more.

    The space before a blank ends the piece before it.
    """

    label: str
    dims: tuple[int, ...]
    pieces: Annotated[tuple[str, ...], "blank+1"]
    blanks: Annotated[tuple[Blank, ...], "blank"]

    @property
    def line(self) -> str:
        """The passage in one line, words of the model in brackets with their sign; "same" has none."""
        parts = [self.pieces[0]]
        for blank, piece in zip(self.blanks, self.pieces[1:], strict=True):
            sign = "" if blank.kind == "same" else SIGNS[blank.kind]
            parts.append(f"[{sign}{blank.filled}]{piece}")
        return "".join(parts)


@dataclass(frozen=True)
class Continuation:
    """What a causal model says after a prompt, greedily, under one condition."""

    label: str
    dims: tuple[int, ...]
    prompt: str
    text: str


@dataclass(frozen=True)
class Damage(OnTask, Result):
    """What switching dimensions off does to a model, beside controls.

    Attributes:
        task: "masked loss", "causal loss" or "output change"; unit: "nats per token" or "cosine distance".
        mode: "zeroed_weights", "zeroed_norms", "edited_hidden zero|mean|scale|resample" or "removed_writes".
        stack: the residual stream that was edited.
        intact, chosen: conditions; controls: families of control sets.
        fills: the same passage under intact, the median ordinary (or random) set and the chosen set, in this order; empty
            without a head for words.
        continuations: of causal models, likewise.
        metric: "mcc" where values are 1 − metric, so that a change above 0 is what the metric loses; "" for losses.
        inputs: what was read: "texts", "images" or "recordings".
    """

    provenance: Provenance
    data: str
    data_digest: str
    task: str
    unit: str
    mode: str
    stack: str
    layers: tuple[int, ...]
    n_texts: int
    n_tokens: int
    intact: Condition
    chosen: Condition
    controls: tuple[Control, ...]
    fills: tuple[Filled, ...]
    continuations: tuple[Continuation, ...] = ()
    notes: tuple[str, ...] = ()
    metric: str = ""
    inputs: str = "texts"

    def control(self, *kinds: str) -> Control | None:
        """The first of these kinds of control sets that was measured."""
        found = {control.kind: control for control in self.controls}
        return next((found[kind] for kind in kinds if kind in found), None)

    def records(self) -> list[dict[str, Any]]:
        """One flat row per condition."""
        groups = [("", (self.intact, self.chosen)), *((c.kind, c.conditions) for c in self.controls)]
        return [
            {
                "control": kind,
                "label": condition.label,
                "dims": ",".join(map(str, condition.dims)),
                "value": condition.score.value,
                "perplexity": condition.score.perplexity,
                "change": condition.change,
                "change_low": condition.change_low,
                "change_high": condition.change_high,
                "parameters": condition.n_parameters,
            }
            for kind, conditions in groups
            for condition in conditions
        ]
