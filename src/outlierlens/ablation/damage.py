"""What `disable` measures: the model intact, with dimensions off, and with controls off. Plain data, no torch.

damage.chosen.change                              # against intact, nats per token
damage.controls[0].p                              # rank p of the chosen set among random sets
"""

from dataclasses import dataclass

from outlierlens.architectures.mlp import Neuron


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
