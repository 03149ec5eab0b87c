"""What a linear probe reads of a token's position at every layer, and from which dimensions: plain data, without torch.

found.layers[0].layer, found.layers[0].raw.accuracy          # "embeddings"; share of tokens whose position it names
found.layers[3].contribution[557], found.layers[3].mean      # mean |w · v| of one dimension, and over all of them
found.layers[3].heat                                         # [position, heat_dims]: the largest contributors by position
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from outlierlens.errors import pick
from outlierlens.results.document import Provenance, Result
from outlierlens.statistics.means import interval_text, no_change
from outlierlens.statistics.ranks import ranks_from_top


@dataclass(frozen=True)
class ProbeScore:
    """What one probe says of the evaluated tokens.

    Attributes:
        accuracy, low, high: share of tokens in [0, 1] whose position it names, with its 95 % interval: for other evaluated
            texts and, where training was drawn again, for other training texts.
        within_one: share whose position it misses by one at most.
        loss: mean cross-entropy, nats per token.
        by_position: accuracy among the tokens of each position [position]; NaN where there is none.
        se_texts: standard error over evaluated texts: their interval's width / 3.92. sd_training: standard deviation over
            redraws of the training texts; None where they were not drawn again.
    """

    accuracy: float
    low: float
    high: float
    within_one: float
    loss: float
    by_position: Annotated[np.ndarray, "position"]
    se_texts: float | None = None
    sd_training: float | None = None


@dataclass(frozen=True)
class AccuracyChange:
    """An accuracy minus that on the vectors as they are, with its paired 95 % interval, and its parts as in `ProbeScore`."""

    value: float
    low: float
    high: float
    se_texts: float | None = None
    sd_training: float | None = None


@dataclass(frozen=True)
class Contribution:
    """What one dimension adds: c = |w · v|, mean over tokens; `rank` among all dimensions of the layer, 1 is largest."""

    dim: int
    value: float
    rank: int


@dataclass(frozen=True)
class LayerProbe:
    """The probe of one layer.

    Attributes:
        layer: its number as text, or "embeddings".
        scale: by which all its vectors were divided for training, one number: it leaves every |w · v| as it is.
        raw: on the vectors as they are.
        clipped_dims: what is clipped here; clipped: the same probe on the clipped vectors; retrained: a probe that was
            trained on clipped vectors. None where nothing is clipped, or no such probe was trained.
        contribution: |w · v| of each dimension, mean over tokens [dim]. mean: over all dimensions.
        weight: |w| alone of each dimension, mean over the same tokens and rows [dim], w of the vectors as they are.
        named: the dimensions that are clipped in some layer. other: the largest contributor that is none of them.
        heat_dims: the named dimensions and the largest other contributors; heat: their |w · v|, mean over the tokens of
            a position [position, heat_dims], 0 where there is none.
    """

    layer: str
    scale: float
    raw: ProbeScore
    clipped_dims: tuple[int, ...]
    clipped: ProbeScore | None
    clipped_change: AccuracyChange | None
    retrained: ProbeScore | None
    retrained_change: AccuracyChange | None
    contribution: Annotated[np.ndarray, "dim"]
    mean: float
    weight: Annotated[np.ndarray, "dim"]
    named: tuple[Contribution, ...]
    other: Contribution
    heat_dims: Annotated[tuple[int, ...], "heat"]
    heat: Annotated[np.ndarray, "position heat"]

    def weight_rank(self, dim: int) -> int:
        """Rank of the dimension's |w| among all, 1 is largest."""
        return int(ranks_from_top(self.weight)[dim])

    @property
    def largest(self) -> Contribution:
        """The largest contributor of all."""
        return next((one for one in self.named if one.rank == 1), self.other)


@dataclass(frozen=True)
class PositionProbe(Result):
    """Linear probes without bias that predict a token's position from its hidden state (Luo et al. 2021, section 3).

    Positions count from 0 and count special tokens; the layers are named as elsewhere ("embeddings", "0", "1", …), where
    the paper counts blocks from 1.

    Attributes:
        n_positions: classes. n_trained_at, n_at: tokens of each position, trained on and evaluated [position].
        majority: the commonest position of training; majority_accuracy: of always naming it.
        learning_rate: of Adam, on vectors divided by their layer's `scale`. batch: tokens of a step.
        row: which row of W the contributions are of: "gold" (the token's own position) or "predicted".
        special: whether special tokens were trained on and evaluated.
        clip, clip_source: what is clipped and where it comes from.
        cached: whether later epochs read the vectors of the first from disk.
        in_embeddings: whether the embeddings of one token differ by its position; None where that could not be seen.
        left_only: whether a token's states depend on what stands before it alone; None where that could not be seen.
        n_redraws: how often training was drawn again; with 0 the intervals are over evaluated texts alone.
    """

    provenance: Provenance
    stack: str
    train: str
    dev: str
    n_train: int
    n_train_tokens: int
    n_dev: int
    n_dev_tokens: int
    n_positions: Annotated[int, "position"]
    n_trained_at: Annotated[np.ndarray, "position"]
    n_at: Annotated[np.ndarray, "position"]
    majority: int
    majority_accuracy: float
    epochs: int
    learning_rate: float
    batch: int
    row: str
    special: bool
    max_length: int
    final_norm: bool
    clip: str
    clip_source: str
    cached: bool
    in_embeddings: bool | None
    left_only: bool | None
    layers: tuple[LayerProbe, ...]
    notes: tuple[str, ...] = ()
    n_redraws: int = 0

    @property
    def named(self) -> tuple[int, ...]:
        """The dimensions that are clipped in some layer."""
        return tuple(one.dim for one in self.layers[0].named) if self.layers else ()

    def interval(self, change: AccuracyChange, form: str = "+.1%") -> str:
        """The interval of a change of accuracy in words."""
        return interval_text(change.low, change.high, form, no_change(self.n_dev, "texts"))

    def at(self, layer: str) -> LayerProbe:
        """The probe of one layer; raises BadInput with the layers there are."""
        return pick(self.layers, f"no layer {layer!r} was probed", layer=layer)

    def records(self) -> list[dict[str, Any]]:
        """One row per layer and dimension."""
        return [
            {"layer": one.layer, "dim": dim, "contribution": value, "named": dim in self.named}
            for one in self.layers
            for dim, value in enumerate(one.contribution.tolist())
        ]


def buckets(n_positions: int) -> list[tuple[int, int]]:
    """Ranges of positions, both ends included, each twice as long as the one before: (0, 3), (4, 7), (8, 15), …"""
    found, first, last = [], 0, 3
    while first < n_positions:
        found.append((first, min(last, n_positions - 1)))
        first, last = last + 1, 2 * last + 1
    return found


def bucket_accuracy(found: PositionProbe, score: ProbeScore) -> list[float]:
    """Accuracy among the tokens of each of `buckets`; NaN where there is none."""
    right = np.nan_to_num(score.by_position) * found.n_at
    tokens = [int(found.n_at[first : last + 1].sum()) for first, last in buckets(found.n_positions)]
    sums = [float(right[first : last + 1].sum()) for first, last in buckets(found.n_positions)]
    return [one / n if n else float("nan") for one, n in zip(sums, tokens, strict=True)]


def held_for(found: PositionProbe) -> str:
    """What the intervals hold for, in a sentence."""
    if not found.n_redraws:
        return "intervals are over the evaluated texts alone: training was not drawn again (--redraws)"
    return (
        f"intervals hold for other evaluated texts and for other training texts (drawn again {found.n_redraws} times)"
    )


def meaning(found: PositionProbe) -> list[str]:
    """What the accuracies mean for a model of this kind, a sentence each."""
    said = []
    if found.in_embeddings:
        said.append(
            "positions are added before the first block: the embeddings of one token differ by where it stands, and the "
            "embeddings' probe reads what was written there"
        )
    elif found.in_embeddings is not None:
        said.append(
            "nothing in the embeddings tells positions apart (rotary, relative, ALiBi or no position): their probe can only "
            "guess from which words stand where, and what later layers know, attention wrote"
        )
    if found.left_only:
        said.append(
            "a token sees only what stands before it, and how much that is can tell its position without any position signal"
        )
    return said
