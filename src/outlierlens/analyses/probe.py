"""A token's position, predicted from its hidden state by one linear probe per layer (Luo et al. 2021, section 3).

    split = split_texts(read_texts("train.jsonl"), read_texts("dev.jsonl"), seed=0)
    found = probe(loaded, split, resolve_clipping("557", loaded), ProbeOptions())
    found.accuracy("0").accuracy, found.at("0").largest_dim      # share of tokens whose position it names, an Estimate
    found.at("3").contribution[557], found.at("3").mean          # mean |w · v| of one dimension, and over all of them

Positions count from 0 and count special tokens; the layers are named as elsewhere ("embeddings", "0", "1", …), where the paper
counts blocks from 1. The command has two more: what one dimension carries of a labelled task (`probe_one_dimension`), and
classifiers on frozen vectors (`probe_frozen`).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Lt

from outlierlens.analyses.probe_classifiers import protocol_of, read_frozen
from outlierlens.analyses.probe_frozen import MAX_LENGTH, FrozenOptions, FrozenScores, frozen
from outlierlens.analyses.probe_one_dimension import OneDimension, OneDimOptions, one_dimension
from outlierlens.analyses.probe_training import (
    LEAST,
    Flow,
    FlowOptions,
    JudgedProbes,
    Plan,
    ProbeEstimate,
    Probes,
    Split,
    Variants,
    counted,
    judge,
    split_texts,
    train_probes,
)
from outlierlens.data.labelled.labels import apart
from outlierlens.data.texts import read_texts
from outlierlens.errors import BadInput, pick
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.inputs import reader_digest
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.options import Flag, Flat, belong, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, UnitCache, kept_rows
from outlierlens.results.rows import More, Pivot, Quiet, Row
from outlierlens.statistics.ranks import ranks_from_top
from outlierlens.vectors.clip import Clipping
from outlierlens.vectors.read import ReadOptions, Tokens, final_norm, text_stack, tokenise, wanted_layers
from outlierlens.view.charts.base import ALARM, Spec, field
from outlierlens.view.charts.draw import heat, panel, strength
from outlierlens.view.pictures import Lines, Picture
from outlierlens.view.section import Change

if TYPE_CHECKING:
    from outlierlens.session import Session

REDRAWS = 7  # benchmarks/probe.py
FULL_EPOCHS = 10  # the paper's
LEARNING_RATE, BATCH = 3e-3, 128  # of Adam, and tokens of its step
TRAIN_TOKENS = 100_000
DEV_TOKENS = 40_000
MOST_TEXTS = 50_000  # that are tokenised to find so many tokens
CLIP_TEXTS = 500  # that --clip auto observes where no --fit-data is named: argmin shares settle long before
HEAT_DIMS = 12  # largest contributors that a heat map shows beside the named dimensions
RAW, SAME, AGAIN = "as they are", "clipped", "clipped, trained again"
MEAN, OTHER = "mean of all", "highest other"
OF_POSITIONS = "to the probe of positions; leave out --one-dimension and --frozen"


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How to train and to evaluate."""

    limit: Annotated[int | None, Ge(1)] = None
    """Train on N texts drawn by --seed. Default: up to 100,000 tokens; --one-dimension 5,000, --frozen 10,000 (imdb 2,500)."""
    full: bool = False
    """The paper's protocol: 10 epochs, all texts trained on and evaluated (else up to 40,000 tokens); --frozen: whole texts."""
    epochs: Annotated[int | None, Ge(1)] = None
    """Passes over the training data. Default: 1; with --full or --frozen 10."""
    lr: Annotated[float | None, Gt(0), Lt(10)] = None
    """Learning rate of Adam; the papers do not state theirs. Default: 0.003, --frozen 0.01."""
    train_batch: Annotated[int | None, Flag(hidden=True), Ge(1)] = None
    """Tokens per training step, --frozen: examples. Default: 128; --frozen the paper's (sst2 768, sst5 1536)."""
    positions: Annotated[int | None, Ge(2)] = None
    """Maximum number of positions. Default: the tokens of the longest text."""
    redraws: Annotated[int, Flag(hidden=True), Ge(0)] = REDRAWS
    """Draw training again N times for intervals; 0: over evaluated texts alone."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """Settings of the forward passes: layers, stream, batch, final norm."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 128
    """Maximum number of tokens per text."""
    special: Annotated[bool, Flag(hidden=True)] = False
    """Train on and evaluate special tokens too. They count as positions either way."""

    def __post_init__(self) -> None:
        check(self)
        if self.redraws == 1:
            raise BadInput("redraws is 1; use 2 or more, for one has no spread, or 0 for none")
        if self.full and self.limit is not None:
            raise BadInput("--full takes all texts and --limit some; give one of the two")

    @property
    def passes(self) -> int:
        """Over the training texts."""
        return self.epochs or (FULL_EPOCHS if self.full else 1)


@dataclass(frozen=True, kw_only=True)
class ProbeCall(ProbeOptions):
    """What the command is asked: positions, what one dimension carries of a task, or classifiers on frozen vectors."""

    one_dimension: bool = False
    """For a fine-tuned model and its --task: the best classifier per single dimension (Rudman 2023)."""
    frozen: bool = False
    """For a --task: linear classifiers on frozen mean vectors, raw and repaired (Luo et al. 2021, table 3)."""
    test_limit: Annotated[int | None, Ge(2)] = None
    """--frozen: test examples, drawn by --seed. Default: all; imdb 2,500."""
    classifiers: Annotated[FrozenOptions, Flat("bias")] = FrozenOptions()
    """How classifiers on frozen vectors are trained."""
    alone: Annotated[OneDimOptions, Flat("dims", "pooling")] = OneDimOptions()
    """How one dimension is classified by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.one_dimension and self.frozen:
            raise BadInput("--one-dimension and --frozen are two measures; give one of the two")
        if not self.one_dimension:
            belong("to --one-dimension; give that too", self, "dims", "pooling")
        if not self.frozen:
            belong("to --frozen; give that too", self, "test_limit", "bias")
        if self.one_dimension or self.frozen:
            belong(OF_POSITIONS, self, "positions")
        if self.one_dimension:
            belong("to training, which --one-dimension does not do", self, "full", "epochs", "lr")
        if self.full and self.test_limit is not None:
            raise BadInput("--full takes all examples and --test-limit some; give one of the two")


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProbeAccuracy(Row):
    """What the probe of one layer says of the evaluated tokens, whose vectors are as they are, or clipped."""

    layer: str
    vectors: str
    """vectors: clipped ones are read by the same probe, or by one that was trained on them"""
    clipped: tuple[int, ...] = ()
    """clipped: dimensions that are zero"""
    accuracy: ProbeEstimate
    """accuracy: share of tokens whose position it names, for other evaluated texts and, with redraws, other training texts"""
    change: Annotated[ProbeEstimate, Change]
    """change: from the vectors as they are, paired by text and by redraw"""
    within_one: float
    """within 1: share whose position it misses by one at most"""
    loss: Annotated[float, More]
    """loss: mean cross-entropy, nats per token"""
    by_position: Annotated[tuple[float, ...], "position", Quiet]
    """accuracy among the tokens of each position; NaN where there is none"""


@dataclass(frozen=True, kw_only=True)
class LayerProbe(Row):
    """What the probe of one layer reads: c = |w · v| of each dimension, mean over the evaluated tokens."""

    layer: str
    largest_dim: int
    """largest contributor"""
    other_dim: int
    """highest other: the largest contributor that is clipped in no layer"""
    mean: float
    """mean |w · v| of all"""
    scale: Annotated[float, Quiet]
    """by which all its vectors were divided for training, one number: it leaves every |w · v| as it is"""
    contribution: Annotated[tuple[float, ...], "dim", Quiet]
    """|w · v| of each dimension"""
    weight: Annotated[tuple[float, ...], "dim", Quiet]
    """|w| alone of each dimension, mean over the same tokens and rows, w of the vectors as they are"""

    def weight_rank(self, dim: int) -> int:
        """Rank of the dimension's |w| among all, 1 is largest."""
        return int(ranks_from_top(np.array(self.weight))[dim])


@dataclass(frozen=True, kw_only=True)
class ProbeContribution(Row):
    """What one of the clipped dimensions adds in each layer, against the others."""

    layer: str
    of: str
    """dimension"""
    contribution: float
    """|w · v|, mean over tokens"""
    rank: int | None = None
    """rank: among all dimensions of the layer, 1 is largest"""
    weight_rank: int | None = None
    """rank of |w|"""


@dataclass(frozen=True, kw_only=True)
class PositionContribution(Row):
    """What a dimension adds at a position, mean over its tokens."""

    position: int
    dim: str
    """dimension"""
    contribution: float
    """|w · v|"""


class PositionHeat(Picture):
    """Position across, dimension down: the darker the cell, the more it contributes."""

    def panel(self, found: Any) -> Spec:
        cells = [row.flat() | {"end": row.position + 1} for row in found.heat]
        names = list(dict.fromkeys(row.dim for row in found.heat))
        x = field("position", self.head(found, "position"), scale={"nice": False}, axis={"grid": False})
        y = field("dim", "dimension", "ordinal", sort=None, scale={"domain": names, "paddingInner": 0.08})
        top = max(row.contribution for row in found.heat) or 1.0
        shade = strength("contribution", top, title="|w · v|", orient="bottom", symbolFillColor=ALARM)
        drawn = heat(cells, x, y, shade, self.tooltip(found), x2={"field": "end"}, color=ALARM)
        return panel([drawn], 640, 17 * len(names), f"By position and dimension, layer {found.heat_layer}")


@dataclass(frozen=True, kw_only=True)
class PositionProbe(Finding):
    """Linear probes without bias that predict a token's position from its hidden state (Luo et al. 2021, section 3).

    Attributes:
        train, n_train, n_train_tokens: what was trained on; `about` says what was evaluated.
        n_positions: classes. n_trained_at, n_at: tokens of each position, trained on and evaluated [position].
        majority: the commonest position of training; majority_accuracy: of always naming it.
        epochs, learning_rate: of Adam, on vectors divided by their layer's `scale`. batch: tokens of a step.
        special: whether special tokens were trained on and evaluated. final_norm: whether vectors are behind that.
        clip, clip_source: what is clipped and where it comes from.
        n_redraws: how often training was drawn again; with 0 the intervals are over evaluated texts alone.
        heat_layer: the layer of `heat`, in which a clipped dimension stands out most.
    """

    title = "Where positions can be read"
    layouts: ClassVar = {
        "contributions": Pivot("layer", "of", "contribution"),
        "heat": Pivot("position", "dim", "contribution"),
    }
    pictures = (
        Lines(rows="accuracies", x="layer", y="accuracy", by="vectors", title="Accuracy"),
        Lines(rows="contributions", x="layer", y="contribution", by="of", title="What single dimensions add"),
        PositionHeat(rows="heat", x="position", y="contribution", by="dim", captioned=False),
    )

    accuracies: tuple[ProbeAccuracy, ...]
    """Accuracy"""
    layers: tuple[LayerProbe, ...]
    """What it reads"""
    contributions: tuple[ProbeContribution, ...]
    """Contribution |w · v|"""
    heat: tuple[PositionContribution, ...]
    """(By position and dimension)"""
    train: str
    n_train: int
    n_train_tokens: int
    n_positions: Annotated[int, "position"]
    n_trained_at: Annotated[np.ndarray, "position"]
    n_at: Annotated[np.ndarray, "position"]
    majority: int
    majority_accuracy: float
    epochs: int
    learning_rate: float
    batch: int
    special: bool
    final_norm: bool
    clip: str
    clip_source: str
    n_redraws: int
    heat_layer: str

    def at(self, layer: str) -> LayerProbe:
        """What the probe of a layer reads; raises BadInput with the layers there are."""
        return pick(self.layers, f"no layer {layer!r} was probed", layer=layer)

    def accuracy(self, layer: str, vectors: str = RAW) -> ProbeAccuracy:
        """Of a layer's vectors as they are, "clipped", or "clipped, trained again"; raises BadInput with what there is."""
        return pick(self.accuracies, f"no layer {layer!r} was probed {vectors}", layer=layer, vectors=vectors)

    def sentences(self) -> Iterator[str]:
        raw = [one for one in self.accuracies if one.vectors == RAW]
        best = max(raw, key=lambda one: one.accuracy.value)
        yield (
            f"A linear probe names the position of {best.accuracy.percent()} of the tokens from layer {best.layer}, the best "
            f"of {len(raw)} layers, of {raw[-1].accuracy.percent()} from layer {raw[-1].layer}; always position "
            f"{self.majority}, the commonest, is right in {self.majority_accuracy:.1%}."
        )
        if first := [one.layer for one in self.layers if one.largest_dim in self.dims]:
            yield f"A clipped dimension is the largest contributor in layer{'s' * (len(first) > 1)} {', '.join(first)}."
        if changed := [one for one in self.accuracies if one.vectors == SAME]:
            most = max(changed, key=lambda one: abs(one.change.value))
            yield f"Clipping changes the same probe's accuracy by {most.change.written('+z.3f')} at most (layer {most.layer})."
        yield (
            f"A position is one of {self.n_positions}, {'with' if self.special else 'without'} special tokens"
            f"{'' if self.special else ' (they count as positions)'}; {self.epochs} epoch{'s' * (self.epochs > 1)} over "
            f"{self.n_train_tokens:,} tokens of {self.n_train:,} texts; contributions with the row of the token's own position."
        )
        yield (
            f"Intervals hold for other evaluated texts and for other training texts (drawn again {self.n_redraws} times)."
            if self.n_redraws
            else "Intervals are over the evaluated texts alone: training was not drawn again."
        )
        yield f"Clipping {self.clip}: {self.clip_source}."


# --- how it is measured ------------------------------------------------------------------------------------------


def probe(
    loaded: LoadedModel,
    split: Split,
    clipping: Clipping,
    options: ProbeOptions | None = None,
    *,
    rows: Path | Keep | None = None,
) -> PositionProbe:
    """One linear probe without bias per layer, trained on `split.train`, evaluated on `split.dev` (Luo et al. 2021, section 3).

    The layers that `rows` do not hold are trained by one forward pass per epoch and evaluated by one more. Contributions are
    |w · v| of single tokens, absolute first and averaged over all evaluated tokens then; the paper leaves both the row and the
    order open.

    Raises:
        BadInput: no token that counts, no second position, a clipped dimension that the vectors do not have, or what the
            forward pass raises.
    """
    options = options or ProbeOptions()
    work = _Positions(loaded, split, clipping, options)
    with kept_rows(rows, work.identity, loaded.notice) as kept:
        found = work.measured(kept)
    named, n_dev = clipping.every, int(work.n_at.sum())
    layers = tuple(_layer_row(layer, one, named) for layer, one in found.items())
    accuracies = tuple(_accuracy(layer, *pair) for layer, one in found.items() for pair in one["scores"].items())
    # Where a named dimension contributes most over the mean; without any, where positions are known best.
    known = {one.layer: one.accuracy.value for one in accuracies if one.vectors == RAW}
    most = {one.layer: max((one.contribution[dim] / (one.mean or 1) for dim in named), default=0.0) for one in layers}
    telling = max(found, key=lambda layer: (most[layer], known[layer]))
    majority = int(work.trained_at.argmax())
    return PositionProbe(
        provenance=loaded.provenance(seed=options.seed, digest=work.identity["model"]),
        about=About(
            data=split.dev.source, data_digest=split.dev.digest, stack=work.stack.name, dims=tuple(map(str, named)),
            layers=tuple(one for one in work.places.values() if one != EMBEDDINGS), n_tokens=n_dev,
            n_texts=sum(bool((one < work.n_positions).any()) for one in work.counted[1]), max_length=work.train.max_length,
        ),
        accuracies=accuracies,
        layers=layers, contributions=tuple(row for one in layers for row in _contributions(one, named)),
        heat=tuple(_heat(found[telling], work.n_at, named)), heat_layer=telling,
        train=split.train.source, n_train=len(work.train.texts), n_train_tokens=int(work.trained_at.sum()),
        n_positions=work.n_positions, n_trained_at=work.trained_at, n_at=work.n_at, majority=majority,
        majority_accuracy=float(work.n_at[majority] / n_dev), epochs=options.passes,
        learning_rate=options.lr or LEARNING_RATE, batch=options.train_batch or BATCH,
        special=options.special, final_norm=work.final_norm, clip=clipping.name,
        clip_source=clipping.source, n_redraws=options.redraws,
        notes=(*loaded.notes, *split.notes, *work.notes()),
    )  # fmt: skip


class _Positions:
    """Tokens to train on and to evaluate, and the probes of the layers."""

    def __init__(self, loaded: LoadedModel, split: Split, clipping: Clipping, options: ProbeOptions):
        self.loaded, self.split, self.clip, self.options = loaded, split, clipping, options
        read = options.read
        self.stack = text_stack(loaded, read.stack)
        self.width = stream_width(loaded.model, self.stack)
        if beyond := [dim for dim in clipping.every if dim >= self.width]:
            raise BadInput(
                f"dimension {beyond[0]} cannot be clipped; the vectors have dimensions 0 to {self.width - 1}"
            )
        self.places = {layer_name(layer): layer for layer in wanted_layers(self.stack, read.layers)}
        self.final_norm = bool(read.final_norm and final_norm(loaded, self.stack))
        some = options.full or options.limit is not None
        self.train = self._tokens(split.train.texts[: options.limit], None if some else TRAIN_TOKENS)
        self.dev = self._tokens(split.dev.texts, None if options.full else DEV_TOKENS)
        self.counted = [counted(loaded, one, read.stack, special=options.special) for one in (self.train, self.dev)]
        self.n_positions, self.left_out = self._n_positions()
        self.trained_at, self.n_at = (
            np.bincount(np.concatenate(side), minlength=self.n_positions)[: self.n_positions] for side in self.counted
        )
        trained = sum(bool((one < self.n_positions).any()) for one in self.counted[0])
        self.unsettled = trained if options.redraws and trained < LEAST else 0
        self.identity: dict[str, Any] = {
            "model": fingerprint(loaded.model), "reader": reader_digest(loaded),
            "train": split.train.digest, "dev": split.dev.digest,
            "stack": self.stack.name, "layers": list(self.places), "final_norm": self.final_norm, "clipped": clipping.dims,
            **{one.name: getattr(options, one.name) for one in fields(ProbeOptions) if one.name != "read"},
        }  # fmt: skip

    def _tokens(self, texts: tuple[str, ...], budget: int | None) -> Tokens:
        """Of `texts` the first that have `budget` tokens together; None takes all."""
        given = texts if budget is None else texts[:MOST_TEXTS]
        tokens = tokenise(self.loaded, given, max_length=self.options.max_length)
        if budget is None:
            return tokens
        return tokens.some(range(max(1, int(np.searchsorted(np.cumsum(tokens.lengths), budget, side="right")))))

    def _n_positions(self) -> tuple[int, int]:
        """(classes, tokens behind the last of them) of the counted positions."""
        sides = [np.concatenate(side) for side in self.counted]
        longest = 1 + max((int(side.max()) for side in sides if len(side)), default=0)
        n_positions = min(longest, self.options.positions or longest)
        for side, what in zip(sides, ("train on", "evaluate"), strict=True):
            if not (side < n_positions).any():
                remedy = "give longer ones, or count special tokens too"
                raise BadInput(f"there is no token to {what} in these texts; {remedy}")
        if n_positions < 2:
            raise BadInput("all tokens stand at the first position, so there is nothing to predict; give longer texts")
        return n_positions, int(sum((side >= n_positions).sum() for side in sides))

    def measured(self, kept: UnitCache) -> dict[str, dict[str, Any]]:
        """What is found of each layer; those that are missing are trained and evaluated together."""
        missing = {layer: place for layer, place in self.places.items() if layer not in kept.done}
        if missing:
            read = replace(self.options.read, layers=tuple(missing.values()))
            clipped = [self.clip.at(layer) for layer in missing]
            variants, told = Variants.of_probes(self._trained(read, clipped), clipped), read.told("evaluating")
            judged = judge(self.loaded, self.dev, variants, told, special=self.options.special)
            if self.unsettled:
                judged = replace(judged, redrawn=np.full_like(judged.redrawn, np.nan))
            for place, layer in enumerate(missing):
                mine = [i for i, of in enumerate(variants.of) if of == place]
                kept(layer, partial(self._layer, judged, mine, float(variants.scale[place]), clipped[place]))
        return {layer: kept.done[layer] for layer in self.places}

    def _trained(self, read: ReadOptions, clipped: list[tuple[int, ...]]) -> Probes:
        """The probes of some layers: one a layer, then one a layer that is clipped."""
        options, n_pooled = self.options, len(self.places)
        again = [place for place, dims in enumerate(clipped) if dims]
        without = (*(() for _ in clipped), *(clipped[place] for place in again))
        plan = Plan((*range(len(clipped)), *again), without, self.width, self.n_positions, options.redraws)
        batch, rate = options.train_batch or BATCH, options.lr or LEARNING_RATE
        dealt = FlowOptions(read, self.n_positions, options.special, batch, options.seed, options.passes, n_pooled)
        return train_probes(Flow(self.loaded, self.train, dealt, self.width), plan, learning_rate=rate)

    def _layer(self, judged: JudgedProbes, mine: list[int], scale: float, clipped: tuple[int, ...]) -> dict[str, Any]:
        """A layer's numbers; `mine` are its variants: as they are, clipped, trained again."""
        seed, scores = self.options.seed, dict[str, Any]()
        for variant, vectors in zip(mine, (RAW, SAME, AGAIN), strict=False):
            with np.errstate(invalid="ignore"):
                by_position = judged.right_at[variant] / judged.n_at
            changed = judged.change(variant, mine[0], seed=seed) if vectors != RAW else ProbeEstimate(np.nan)
            scores[vectors] = {
                "clipped": list(clipped) if vectors != RAW else [],
                "accuracy": asdict(judged.accuracy(variant, seed=seed)), "change": asdict(changed),
                "within_one": float(judged.near[variant].sum() / judged.n.sum()), "loss": float(judged.loss[variant]),
                "by_position": by_position.tolist(),
            }  # fmt: skip
        at_position = judged.contribution[mine[0]].astype(np.float64)  # [position, dim]
        value = at_position.sum(0) / judged.n.sum()
        others = [dim for dim in np.argsort(-value, kind="stable").tolist() if dim not in self.clip.every][:HEAT_DIMS]
        dims = list(dict.fromkeys((*self.clip.every, *others)))
        return {
            "scale": scale, "scores": scores, "contribution": value.tolist(),
            "weight": (judged.weight[mine[0]] / scale).tolist(), "heat_dims": dims,
            "heat": (at_position[:, dims] / np.maximum(judged.n_at, 1)[:, None]).tolist(),
        }  # fmt: skip

    def notes(self) -> Iterator[str]:
        """What a reader should know of the texts and of the training."""
        sides = ((self.train, self.split.train, "trained on"), (self.dev, self.split.dev, "evaluated"))
        for tokens, texts, verb in sides:
            if (n := len(tokens.texts)) < len(texts):
                yield f"{n:,} of {len(texts):,} texts of {texts.source} were {verb}, drawn by the seed"
            if cut := tokens.n_full:
                yield f"{cut:,} texts of {texts.source} reach the limit of {tokens.max_length} tokens and may be cut there"
        if self.left_out:
            yield f"{self.left_out:,} tokens at later positions than the {self.n_positions} probed were left out"
        if self.unsettled:
            yield (
                f"{self.unsettled} texts were trained on, and fewer than {LEAST} do not say how another training set would "
                f"differ: no interval is settled (redraws=0 gives those over the evaluated texts alone)"
            )


def _accuracy(layer: str, vectors: str, found: dict[str, Any]) -> ProbeAccuracy:
    parts = {key: ProbeEstimate(**found[key]) for key in ("accuracy", "change")}
    arrays = {key: tuple(found[key]) for key in ("clipped", "by_position")}
    return ProbeAccuracy(layer=layer, vectors=vectors, **{**found, **parts, **arrays})


def _layer_row(layer: str, found: dict[str, Any], named: tuple[int, ...]) -> LayerProbe:
    order = np.argsort(-np.array(found["contribution"]), kind="stable").tolist()
    return LayerProbe(
        layer=layer, largest_dim=order[0], other_dim=next((dim for dim in order if dim not in named), order[0]),
        mean=float(np.mean(found["contribution"])), scale=found["scale"], contribution=tuple(found["contribution"]),
        weight=tuple(found["weight"]),
    )  # fmt: skip


def _contributions(one: LayerProbe, named: tuple[int, ...]) -> Iterator[ProbeContribution]:
    ranks = ranks_from_top(np.array(one.contribution))
    yield ProbeContribution(layer=one.layer, of=MEAN, contribution=one.mean)
    for of, dim in ((OTHER, one.other_dim), *((str(dim), dim) for dim in named)):
        more = {"rank": int(ranks[dim]), "weight_rank": one.weight_rank(dim)}
        yield ProbeContribution(layer=one.layer, of=of, contribution=one.contribution[dim], **more)


def _heat(found: dict[str, Any], n_at: np.ndarray, named: tuple[int, ...]) -> Iterator[PositionContribution]:
    """Cells of a layer, the largest contributor first."""
    dims, value = found["heat_dims"], found["contribution"]
    for i in sorted(range(len(dims)), key=lambda i: -value[dims[i]]):
        name = f"{dims[i]}{' (clipped)' if dims[i] in named else ''}"
        for at in np.flatnonzero(n_at > 0).tolist():
            yield PositionContribution(position=at, dim=name, contribution=found["heat"][at][i])


# --- the command -------------------------------------------------------------------------------------------------


def run(session: "Session", call: ProbeCall) -> PositionProbe | OneDimension | FrozenScores:
    """What the command finds."""
    reading, reads, fits = session.splits, session.vectors, session.fitting
    if not call.frozen:
        belong("to --frozen; give that too", fits, "fixes")
    if not call.one_dimension:
        belong("to --one-dimension; give that too", reading, "labels", "pair_column")
    if call.one_dimension or call.frozen:
        belong(OF_POSITIONS, fits, "fit_data", "fit_column")
    if call.one_dimension:
        belong("to the probe of positions and --frozen", fits)
        belong("to the probe of positions and --frozen", reads, "special", "final_norm")
        return _run_alone(session, call)
    if call.frozen:
        belong("to the probe of positions and --one-dimension", reading, "dev_data")
        return _run_frozen(session, call)
    belong("to --one-dimension and --frozen; give one of them too", reading, "task", "metric", "label_column")
    if not reading.data:
        raise BadInput("there is no text to train on; name a file or a hub id with --data")
    offline = session.loading.offline
    texts, _ = session.texts()
    dev = reading.dev_data and read_texts(reading.dev_data, column=reading.text_column, offline=offline)
    split = split_texts(texts, dev or None, seed=call.seed)
    options = replace(call, read=_read(session), special=reads.special, max_length=reads.max_length or 128)
    seen = None
    if fits.clip == "auto":  # it observes --fit-data without the evaluated texts, or some of the training texts
        fit = fits.texts(offline=offline)
        seen = split.train.first(min(CLIP_TEXTS, fits.fit_limit))
        if fit is not None:
            seen = apart(fit, split.dev.texts, limit=fits.fit_limit, seed=call.seed)[0]
    clipping = fits.clipping(session.loaded, seen, reads.stack)
    return probe(session.loaded, split, clipping, options, rows=session.kept)


def _read(session: "Session") -> ReadOptions:
    return session.vectors.options(session.loaded, progress=session.progress)


def _run_alone(session: "Session", call: ProbeCall) -> OneDimension:
    train, dev = session.splits.splits(offline=session.loading.offline, of_words=False)
    options = replace(
        call.alone, read=_read(session), seed=call.seed, limit=call.limit or OneDimOptions.limit,
        labels=session.splits.options().labels, max_length=session.vectors.max_length or OneDimOptions.max_length,
    )  # fmt: skip
    return one_dimension(session.loaded, train, dev, options, rows=session.kept)


def _run_frozen(session: "Session", call: ProbeCall) -> FrozenScores:
    reading, reads, fits, loaded = session.splits, session.vectors, session.fitting, session.loaded
    if not reading.is_labelled:
        raise BadInput(f"--task {reading.task} has no labels; use sst2, sst5, imdb, … or classify")
    task, usual = reading.labelled_task, protocol_of(reading.labelled_task)
    splits = read_frozen(
        task, reading.data or None, seed=call.seed, offline=session.loading.offline,
        limit=None if call.full else call.limit or usual.limit,
        test_limit=None if call.full else call.test_limit or usual.test_limit,
    )  # fmt: skip
    options = replace(
        fits.into(call.classifiers), read=_read(session), special=reads.special, seed=call.seed,
        max_length=reads.max_length or (None if call.full else MAX_LENGTH), train_batch=call.train_batch,
        epochs=call.epochs or FrozenOptions.epochs, lr=call.lr or FrozenOptions.lr,
    )  # fmt: skip
    clip = None if fits.clip == "auto" else lambda texts: fits.clipping(loaded, texts, reads.stack)
    return frozen(loaded, splits, options, clip=clip, rows=session.kept)
