"""What every published definition of an outlier dimension finds in one model: plain data, without torch.

found.of("massive").dims                          # as the definition pools its layers, ascending
found.of("rudman", ROTATED).at("11")              # of one layer, under a null
found.agreement()                                 # Jaccard [definition, definition]; agreement("5") of one layer
found.records()

Super weights: single weights behind the largest activations, and what the model loses without them. Plain data.

found.weights[0].place                      # "layer 2, [507, 1031]": row j writes the dimension, column k reads the MLP
found.trial("zeroed").change                # of the task, with its interval over texts
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from outlierlens.architectures.bind import Neuron, is_mlp
from outlierlens.detection.observe.result import Size
from outlierlens.errors import BadInput, pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.ranks import hypergeometric_tail

MODEL, RANDOM, SHUFFLED, ROTATED = "model", "random initialisation", "shuffled weights", "rotated basis"
CONDITIONS = (MODEL, RANDOM, SHUFFLED, ROTATED)
NULLS = CONDITIONS[1:]
FINAL = "final norm"  # the row behind the last block: what the model's final norm makes of its output


@dataclass(frozen=True)
class Spikes:
    """Largest |value| that the MLP's last linear reads and writes in each layer on one prompt, arrays [layer].

    `column` is the input k and `row` the output j where it stands, `read_position` and `write_position` the token.
    """

    read: Annotated[np.ndarray, "layer"]
    column: Annotated[tuple[int, ...], "layer"]
    read_position: Annotated[tuple[int, ...], "layer"]
    written: Annotated[np.ndarray, "layer"]
    row: Annotated[tuple[int, ...], "layer"]
    write_position: Annotated[tuple[int, ...], "layer"]


@dataclass(frozen=True)
class SuperWeight:
    """One weight that was found and removed.

    Attributes:
        layer: block, from 0. row: j, the dimension that it writes. column: k, what it reads.
        weight: its value. rank: of |weight| among all of its matrix, 1 = largest.
        read, written: the spiking input and output, signed. position, token: where the output spikes.
        share: of that output that this weight alone makes, weight × input / output at that token.
        remaining: largest |output| of the layer once it is removed.
    """

    layer: int
    row: int
    column: int
    weight: float
    rank: int
    read: float
    written: float
    position: int
    token: str
    share: float
    remaining: float

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"layer {self.layer}, [{self.row}, {self.column}]"


@dataclass(frozen=True)
class Trial:
    """The task with weights changed.

    Attributes:
        name: "zeroed", "restored", "× 2", "random 0", "largest". kind: "intact", "zeroed", "restored", "scaled", "random",
            "largest". factor: that the weights were multiplied by; NaN where they were not simply multiplied.
        value: of the task. change: from intact; low, high: its 95 % interval over texts.
    """

    name: str
    kind: str
    factor: float
    value: float
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class SuperWeights:
    """The search on one prompt, and the tests.

    Attributes:
        spike: what |input| and |output| must exceed.
        weights: in the order they were removed. stopped: why the search ended.
        before, after: spikes of the intact model, and with all of `weights` removed.
        task, unit, n_texts: of the trials, "" and 0 where none were asked for.
        restored_tokens: super activations that were put back in these texts.
    """

    prompt: str
    spike: float
    weights: tuple[SuperWeight, ...]
    stopped: str
    before: Spikes
    after: Spikes
    task: str = ""
    unit: str = ""
    n_texts: int = 0
    restored_tokens: int = 0
    trials: tuple[Trial, ...] = ()

    def trial(self, name: str) -> Trial:
        """One of `trials`; raises BadInput with those there are."""
        return pick(self.trials, f"no trial {name!r}", name=name)

    @property
    def restores(self) -> float:
        """Share of the damage that putting the super activations back undoes; NaN without trials or damage."""
        if not self.trials or not self.trial("zeroed").change > 0:
            return float("nan")
        return 1 - self.trial("restored").change / self.trial("zeroed").change


@dataclass(frozen=True)
class Definition:
    """One published definition as it was applied.

    Attributes:
        name: "kovaleva", "llm.int8", … title: whose it is.
        rests_on: "weights" need no text and no basis but the model's own.
        tap: which values of which module and layer it looks at.
        rule: when a dimension counts. pooled: how its layers become one set of dimensions.
        source: paper or released code. ours: what the source leaves open and was decided here, "" for nothing.
        thresholds: by the name of the setting.
    """

    name: str
    title: str
    rests_on: Literal["weights", "activations"]
    tap: str
    rule: str
    pooled: str
    source: str
    ours: str
    thresholds: dict[str, float]


@dataclass(frozen=True)
class Found:
    """What one definition finds under one condition.

    Attributes:
        dims: dimensions as the definition pools layers, ascending. neurons: of an MLP axis, in their place: "11:1229".
        layers: {layer: dimensions, or numbers of neurons, strongest first}, layers without any left out.
        strength: for each of them the number that the rule compares.
        why_not: why the definition says nothing here, "" where it does.
    """

    definition: str
    condition: str
    dims: tuple[int, ...] = ()
    layers: Annotated[dict[str, tuple[int, ...]] | None, "found"] = None
    strength: Annotated[dict[str, tuple[float, ...]] | None, "found"] = None
    why_not: str = ""
    neurons: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[int | str, ...]:
        """The dimensions, or the neurons, pooled."""
        return self.neurons or self.dims

    @property
    def applies(self) -> bool:
        """Whether the definition says anything here."""
        return not self.why_not

    def at(self, layer: str) -> tuple[int, ...]:
        """Dimensions of one layer; () where there are none."""
        return (self.layers or {}).get(layer, ())


@dataclass(frozen=True)
class LayerValues:
    """Numbers of whole layers under one condition, arrays [layer] over `layers`; NaN where there is no such tap.

    Attributes:
        mean_cosine: mean cosine of all pairs of token vectors, in [−1, 1]: anisotropy.
        he_kurtosis: mean_j(s_j²) / mean_j(s_j)², s_j the mean over tokens of h_j², in [1, width] (He et al. 2024). 1 is even.
        bondarenko_out, bondarenko_out_max: kurtosis over all tokens × dimensions of a sequence of what the block puts out,
            mean and largest over sequences (Bondarenko et al. 2023). inf_norm: mean over sequences of its largest |h|.
        bondarenko_ffn, bondarenko_ffn_max: the same kurtosis of what the MLP's last linear writes.
        gamma: ‖mean‖ / ‖standard deviation‖ of the states.
    """

    condition: str
    layers: Annotated[tuple[str, ...], "layer"]
    mean_cosine: Annotated[np.ndarray, "layer"]
    he_kurtosis: Annotated[np.ndarray, "layer"]
    bondarenko_out: Annotated[np.ndarray, "layer"]
    bondarenko_out_max: Annotated[np.ndarray, "layer"]
    inf_norm: Annotated[np.ndarray, "layer"]
    bondarenko_ffn: Annotated[np.ndarray, "layer"]
    bondarenko_ffn_max: Annotated[np.ndarray, "layer"]
    gamma: Annotated[np.ndarray, "layer"]


@dataclass(frozen=True)
class Detectors(Result):
    """Every definition side by side, in the model and under its nulls.

    Attributes:
        layers: "embeddings", the blocks from 0, and "final norm" where the stream has one; of an MLP axis the blocks.
        hidden_size: dimensions of the stream; of an MLP axis, neurons of a block.
        special: whether special tokens were counted. sentence: which token (or mean) stands for a text (rudman).
        definitions: in the order of the tables. found: of every definition and condition. values: of every condition
            that runs on texts.
        sizes: how large the dimensions are that a definition finds, and on which share of the tokens; of neurons none.
        super_weights: the search behind "super-weight", with its tests where they were asked for.
    """

    provenance: Provenance
    data: str
    data_digest: str
    n_texts: int
    n_tokens: int
    n_special: int
    max_length: int
    special: bool
    sentence: str
    stack: str
    hidden_size: int
    layers: tuple[str, ...]
    definitions: tuple[Definition, ...]
    found: tuple[Found, ...]
    values: tuple[LayerValues, ...]
    sizes: dict[int, Size] = field(default_factory=dict)
    super_weights: SuperWeights | None = None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the definitions."""
        return tuple(one.name for one in self.definitions)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions that were measured, the model itself first."""
        there = {one.condition for one in self.found}
        return tuple(one for one in CONDITIONS if one in there)

    def definition(self, name: str) -> Definition:
        """One of `definitions`; raises BadInput with those there are."""
        return pick(self.definitions, f"no definition {name!r}", name=name)

    def of(self, name: str, condition: str = MODEL) -> Found:
        """What a definition finds under a condition; raises BadInput with what there is."""
        self.definition(name)
        for one in self.found:
            if (one.definition, one.condition) == (name, condition):
                return one
        raise BadInput(f"condition {condition!r} was not measured; there are {', '.join(self.conditions)}")

    def values_of(self, condition: str = MODEL) -> LayerValues:
        """Numbers of whole layers; raises BadInput with the conditions there are."""
        return pick(self.values, f"condition {condition!r} has no values", condition=condition)

    def agreement(self, layer: str | None = None, condition: str = MODEL) -> np.ndarray:
        """Jaccard index [definition, definition] in [0, 1] of the dimensions found: pooled, or of one `layer`.

        NaN where neither of the two finds anything, or one does not apply.
        """
        if layer is not None and layer not in self.layers:
            raise BadInput(f"no layer {layer!r}; there are {', '.join(self.layers)}")
        sets = [self._set(name, layer, condition) for name in self.names]
        return np.array([[jaccard(a, b) for b in sets] for a in sets])

    def shared_by_chance(self, one: str, other: str, condition: str = MODEL) -> float:
        """Probability that two definitions share at least as many dimensions (pooled) if each had picked its own at random."""
        a, b = self._set(one, None, condition), self._set(other, None, condition)
        if a is None or b is None:
            return math.nan
        positions = self.hidden_size * (len(self.layers) if self.by_neuron else 1)
        return hypergeometric_tail(positions, len(a), len(b), len(a & b))

    def votes(self, condition: str = MODEL) -> dict[int | str, tuple[str, ...]]:
        """{dimension, or neuron: definitions that find it}, those of most definitions first."""
        by: dict[int | str, list[str]] = {}
        for name in self.names:
            for one in self.of(name, condition).named:
                by.setdefault(one, []).append(name)
        order = {one: Neuron.parse(one) if isinstance(one, str) else one for one in by}
        return {one: tuple(by[one]) for one in sorted(by, key=lambda one: (-len(by[one]), order[one]))}

    def records(self) -> Iterator[dict[str, Any]]:
        """One row per definition, condition, layer and dimension found."""
        for one in self.found:
            for layer, dims in (one.layers or {}).items():
                for dim, strength in zip(dims, (one.strength or {})[layer], strict=True):
                    yield {
                        "definition": one.definition,
                        "condition": one.condition,
                        "layer": layer,
                        "dim": dim,
                        "strength": strength,
                        "pooled": dim in one.dims or self.by_neuron,
                    }

    @property
    def by_neuron(self) -> bool:
        """Whether neurons of the blocks' MLPs were judged, not dimensions of a stream."""
        return is_mlp(self.stack)

    @property
    def what(self) -> Literal["neuron", "dimension"]:
        """What was judged."""
        return "neuron" if self.by_neuron else "dimension"

    def _set(self, name: str, layer: str | None, condition: str) -> frozenset[int | str] | None:
        found = self.of(name, condition)
        if not found.applies:
            return None
        return frozenset(found.named if layer is None else found.at(layer))


def jaccard(one: frozenset[int | str] | None, other: frozenset[int | str] | None) -> float:
    """|A ∩ B| / |A ∪ B|; NaN of two empty sets, or where one is None."""
    if one is None or other is None or not one | other:
        return math.nan
    return len(one & other) / len(one | other)


def _said(found: Found) -> str:
    return ", ".join(map(str, found.named)) if found.applies else found.why_not
