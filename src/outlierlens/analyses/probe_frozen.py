"""Linear classifiers on the frozen, mean-pooled vectors of every layer, raw and repaired (Luo et al. 2021, table 3).

    splits = read_frozen(find_task("sst2"), "glue/sst2", limit=4000)
    found = frozen(load_model("minilm-l6"), splits, FrozenOptions())
    found.row("clip", "3").test                  # metric on the test split, an Estimate
    found.choice("clip").change                  # at the layer that the dev split chooses, against raw vectors at theirs
    found.choice("clip", "test").value           # at the layer that is best on the test split itself, as in the paper

One pass of the frozen model; repairs are fitted on training vectors; each layer's classifiers are kept when they are trained.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt

from outlierlens.analyses.probe_classifiers import Splits, TrainOptions, protocol_of, train
from outlierlens.data.texts import Texts
from outlierlens.errors import pick
from outlierlens.models.hooks import EMBEDDINGS, layer_name
from outlierlens.models.inputs import reader_digest
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.options import Flag, Options
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, UnitCache, kept_rows
from outlierlens.results.rows import UNKNOWN, Estimate, More, Pivot, Row
from outlierlens.tasks.metrics import Statistic, interval, score
from outlierlens.vectors.clip import Clipping, kept_clipping
from outlierlens.vectors.fixes import USUAL, FixSpec, make_fix, moments_of, parse_fixes, raw_first
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import (
    ReadOptions,
    Tokens,
    check_matrices,
    gather,
    text_stack,
    tokenise,
    wanted_layers,
)
from outlierlens.view.pictures import Lines
from outlierlens.view.section import Change, dims_in_layers

MAX_LENGTH = 256
BY = ("dev", "test")  # splits that choose a layer: an honest choice, and the paper's
VERDICTS = {1: "helps", -1: "hurts", 0: "no difference"}
OPEN = "not settled"


@dataclass(frozen=True, kw_only=True)
class FrozenOptions(Options):
    """How to read, repair and train."""

    bias: bool = False
    """--frozen: classifiers with a constant for each class; the paper's have none."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """How vectors are read; its progress also reports training."""
    special: Annotated[bool, Flag(hidden=True)] = False
    """Whether special tokens count in the mean."""
    fixes: Annotated[tuple[FixSpec, ...], Flag(hidden=True, read="vectors.fixes:parse_fixes")] = parse_fixes(USUAL)
    """Repairs; raw vectors are always measured, since changes are against them."""
    fit_limit: Annotated[int, Ge(2), Flag(hidden=True)] = Fitting.fit_limit
    """Maximum number of training vectors that repairs are fitted on."""
    max_length: Annotated[int | None, Ge(2), Flag(hidden=True)] = MAX_LENGTH
    """Maximum number of tokens per text; None is the model's number of positions."""
    epochs: Annotated[int, Ge(1), Flag(hidden=True)] = TrainOptions.epochs
    """Passes over the training vectors."""
    lr: Annotated[float, Gt(0), Flag(hidden=True)] = TrainOptions.lr
    """Learning rate of Adam; the paper does not state its own."""
    train_batch: Annotated[int | None, Ge(1), Flag(hidden=True)] = None
    """Examples per step. None is the paper's (sst2 768, sst5 1536), or 128."""
    seed: Annotated[int, Ge(0), Flag(hidden=True)] = 0
    """Seed of everything random."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FrozenScore(Row):
    """Classifiers of one layer behind one repair."""

    layer: str
    fix: str
    test: Estimate
    """{metric} on test"""
    change: Annotated[Estimate, Change] = UNKNOWN
    """change: from raw vectors of the same layer, with its paired interval; (0, 0) where all is predicted alike"""
    dev: float
    """on dev"""
    train: float
    """on train"""
    loss: Annotated[float, More]
    """loss: mean cross-entropy in the last epoch, in nats"""


@dataclass(frozen=True, kw_only=True)
class FrozenChoice(Row):
    """One repair at one layer, against raw vectors at the layer that the same split chooses for them."""

    by: str
    """layer by: the split that chooses it; test itself is the paper's way"""
    fix: str
    layer: str
    value: Estimate
    """{metric} on test"""
    change: Annotated[Estimate, Change] = UNKNOWN
    """change: from raw vectors, chosen alike, with its paired interval"""
    verdict: str = ""
    """says"""


@dataclass(frozen=True, kw_only=True)
class FrozenScores(Finding):
    """Linear classifiers on mean-pooled vectors of a frozen model, by layer and repair (Luo et al. 2021, table 3).

    Attributes:
        special: whether special tokens counted in the mean. final_norm: whether the model's final norm was applied.
        n_cut: texts that have `about.max_length` tokens, which were cut.
        train, dev: where the examples come from, n_train, n_dev how many.
        held_out: whether dev was drawn from the training examples. n_dropped: examples left out as shared between splits.
        epochs: over the training examples, `train_batch` in a step of Adam with the learning rate `lr`.
        bias: whether the classifiers have a constant.
        majority: metric of always saying the commonest training label.
        clip_dims: dimensions that are clipped, by layer. clip_source: where they come from.
    """

    title = "Classifiers on frozen vectors"
    layouts: ClassVar = {"by_layer": Pivot("layer", "fix", "test")}
    pictures = (Lines(rows="by_layer", x="layer", y="test", by="fix", captioned=False),)

    by_layer: tuple[FrozenScore, ...]
    """By layer"""
    chosen: tuple[FrozenChoice, ...]
    """At the chosen layer"""
    special: bool
    final_norm: bool
    n_cut: int
    train: str
    dev: str
    n_train: int
    n_dev: int
    held_out: bool
    n_dropped: int
    epochs: int
    train_batch: int
    lr: float
    bias: bool
    majority: float
    clip_dims: dict[str, tuple[int, ...]]
    clip_source: str

    @property
    def fixes(self) -> tuple[str, ...]:
        """Names of the repairs, raw vectors first."""
        return tuple(dict.fromkeys(one.fix for one in self.by_layer))

    def row(self, fix: str, layer: str) -> FrozenScore:
        """One repair at one layer; raises BadInput with those there are."""
        return pick(self.by_layer, f"no fix {fix!r} at layer {layer!r} in this result", fix=fix, layer=layer)

    def choice(self, fix: str, by: str = "dev") -> FrozenChoice:
        """One repair at the layer that a split chooses; raises BadInput with those there are."""
        return pick(self.chosen, f"no fix {fix!r} by {by!r} in this result", fix=fix, by=by)

    def sentences(self) -> Iterator[str]:
        about, dev, test = self.about, *(self.choice("raw", by) for by in BY)
        yield (
            f"Linear classifiers on frozen mean vectors reach {about.metric} {dev.value.written('.4f')} on {about.task} at "
            f"layer {dev.layer} (chosen on dev), {test.value.value:.4f} at layer {test.layer}, the best on test; always the "
            f"commonest label gets {self.majority:.4f}."
        )
        for one in (self.choice(fix) for fix in self.fixes[1:]):
            yield f"{one.fix}, layer {one.layer}: {one.value.value:.4f}, {one.change.written('+z.3f')}, {one.verdict}."
        yield (
            f"{self.n_train:,} training, {self.n_dev:,} dev ({'held out of train' if self.held_out else self.dev}) and "
            f"{about.n_texts:,} test examples, {self.n_dropped:,} dropped as shared; at most {about.max_length} tokens "
            f"({self.n_cut:,} texts that long); special tokens {'counted' if self.special else 'left out'}."
        )
        n_steps = self.epochs * -(-self.n_train // self.train_batch)
        yield (
            f"{self.epochs} epochs of Adam, {n_steps:,} steps of {self.train_batch:,} examples, learning rate {self.lr:g}, "
            f"{'with' if self.bias else 'without'} bias; clipped: {dims_in_layers(self.clip_dims) or 'nothing'} "
            f"({self.clip_source})."
        )


# --- how it is measured ------------------------------------------------------------------------------------------


def frozen(
    loaded: LoadedModel,
    splits: Splits,
    options: FrozenOptions | None = None,
    *,
    clip: Callable[[Texts], Clipping] | None = None,
    rows: Path | Keep | None = None,
) -> FrozenScores:
    """The task's metric of linear classifiers on mean vectors of every layer, raw and repaired.

    `clip` gives the dimensions to clip, from the training texts; None observes them ("auto"). Repairs see training vectors
    alone. The layer is chosen twice: by the dev split, and by the test split itself as the paper does. With `rows`, the
    classifiers of every layer are kept there and are not trained again.

    Raises:
        BadInput: vectors that do not fit the budget, or what reading, repairing and training raise.
    """
    options = options or FrozenOptions()
    task, test = splits.test.task, splits.test
    work = _Classifiers(loaded, splits, replace(options, fixes=raw_first(options.fixes)))
    with kept_rows(rows, work.identity, loaded.notice) as kept:
        clipping = work.clipping(clip, kept)
        found = work.trained(clipping, kept)
        n_empty = kept.done["texts without a token"]
    scores = [row for layer, one in found.items() for row in work.scores(layer, one)]
    commonest = np.bincount(splits.train.labels).argmax()
    return FrozenScores(
        provenance=loaded.provenance(seed=options.seed, digest=work.identity["model"]),
        about=About(
            data=test.source, data_digest=test.digest, inputs="examples", task=task.name, metric=task.metric,
            stack=work.stack.name, layers=tuple(one for one in work.places.values() if one != EMBEDDINGS),
            dims=tuple(map(str, clipping.every)), n_texts=len(test), max_length=work.tokens.max_length,
        ),
        by_layer=tuple(scores), chosen=tuple(work.choices(found, scores)),
        special=options.special, final_norm=work.final_norm, n_cut=work.tokens.n_full,
        train=splits.train.source, dev=splits.dev.source, n_train=len(splits.train), n_dev=len(splits.dev),
        held_out=splits.held_out, n_dropped=splits.n_dropped, epochs=options.epochs, train_batch=work.training.batch,
        lr=options.lr, bias=options.bias, majority=score(task.metric, work.truth[2], np.full(len(test), commonest)),
        clip_dims={layer: clipping.at(layer) for layer in found if clipping.at(layer)}, clip_source=clipping.source,
        notes=(*loaded.notes, *_notes(work, found, clipping, n_empty)),
    )  # fmt: skip


class _Classifiers:
    """The classifiers of all layers, and what they say of each split."""

    def __init__(self, loaded: LoadedModel, splits: Splits, options: FrozenOptions):
        self.loaded, self.splits, self.options = loaded, splits, options
        task, read = splits.test.task, options.read
        self.stack = text_stack(loaded, read.stack)
        self.places = {layer_name(layer): layer for layer in wanted_layers(self.stack, read.layers)}
        self.final_norm = bool(read.final_norm and self.stack.final_norm)
        self.truth = [np.array(part.labels) for part in splits.parts]
        self.statistic = Statistic(task.metric, self.truth[2], splits.test.family)
        self.training = TrainOptions(
            len(task.labels), options.epochs, options.train_batch or protocol_of(task).train_batch, options.lr,
            options.bias, options.seed,
        )  # fmt: skip
        texts = [text for part in splits.parts for text in part.texts]
        self.tokens: Tokens = tokenise(loaded, texts, max_length=options.max_length or 2**30)
        self.identity: dict[str, Any] = {
            "model": fingerprint(loaded.model), "reader": reader_digest(loaded),
            "task": task.name, "metric": task.metric, "stack": self.stack.name,
            "final_norm": self.final_norm, "special": options.special, "max_length": options.max_length,
            "fixes": [asdict(spec) for spec in options.fixes], "fit_limit": options.fit_limit,
            "training": asdict(self.training), **dict(zip(("train", *BY), (one.digest for one in splits.parts), strict=True)),
        }  # fmt: skip

    def clipping(self, clip: Callable[[Texts], Clipping] | None, kept: UnitCache) -> Clipping:
        """What is clipped; "auto" observes the training texts."""
        if not any(spec.kind == "clip" for spec in self.options.fixes):
            return Clipping("none", {}, "no clip among the fixes")
        given = Texts(self.splits.train.source, self.splits.train.texts)
        if clip is not None:
            return clip(given)
        return kept_clipping(kept, "auto", self.loaded, lambda: given, stack=self.options.read.stack)

    def trained(self, clipping: Clipping, kept: UnitCache) -> dict[str, dict[str, Any]]:
        """Of each layer what its classifiers say; those that are missing are trained on vectors of one pass."""
        keys = {layer: f"{layer} {clipping.at(layer)}" for layer in self.places}
        missing = {layer: place for layer, place in self.places.items() if keys[layer] not in kept.done}
        if missing:
            read = replace(self.options.read, layers=tuple(missing.values()))
            n_dense = len(missing) * sum(spec.dense for spec in self.options.fixes)
            width = stream_width(self.loaded.model, self.stack)
            check_matrices(2 * n_dense, width, read.cache_gb, what="fixes of all layers")
            vectors = gather(self.loaded, self.tokens, self.tokens.sentences(), read, special=self.options.special)
            kept("texts without a token", lambda: int((vectors.n_tokens == 0).sum()))
            fitting = self._fitting_rows(vectors.n_tokens[: len(self.splits.train)])
            for place, layer in enumerate(missing):
                kept(keys[layer], partial(self._layer, vectors.values[place], fitting, clipping.at(layer)))
                if read.progress:
                    read.progress("training classifiers", place + 1, len(missing))
        return {layer: kept.done[key] for layer, key in keys.items()}

    def _fitting_rows(self, n_tokens: np.ndarray) -> np.ndarray:
        """Numbers of the training vectors that repairs are fitted on: of texts that have a token."""
        rows = np.flatnonzero(n_tokens)
        if len(rows) > self.options.fit_limit:
            drawn = np.random.default_rng([self.options.seed, 19]).permutation(rows)
            rows = np.sort(drawn[: self.options.fit_limit])
        return rows

    def _layer(self, vectors: np.ndarray, fitting: np.ndarray, clipped: tuple[int, ...]) -> dict[str, Any]:
        """Scores of each repair [fix], from vectors of all splits [text, dim]."""
        splits, specs = self.splits, self.options.fixes
        parts = np.split(vectors, np.cumsum([len(splits.train), len(splits.dev)]))  # views, no copies
        moments = moments_of(parts[0][fitting]) if any(spec.fitted for spec in specs) else None
        fixes = [make_fix(spec, vectors.shape[1], moments=moments, dims=clipped) for spec in specs]
        heads = train(parts[0], self.truth[0], fixes, self.training)
        said = [heads.predict(part) for part in parts]
        metric, groups = self.statistic.metric, self.statistic.groups
        values = [[score(metric, truth, one) for one in every] for truth, every in zip(self.truth, said, strict=True)]
        ends = [interval(metric, self.truth[2], (one,), seed=self.options.seed, groups=groups) for one in said[2]]
        return {
            "train": values[0], "dev": values[1], "test": values[2], "ends": ends, "loss": heads.loss.tolist(),
            "change": [self.change(said[2][0], one) for one in said[2]], "said": said[2].tolist(),
        }  # fmt: skip

    def change(self, raw: Sequence[int], other: Sequence[int]) -> tuple[float, float, float]:
        """(change of the metric, low, high) on test from predictions [text] to others; larger is better."""
        lost = self.statistic.change(np.array(raw), np.array(other), seed=self.options.seed)
        return 0.0 - lost.value, 0.0 - lost.high, 0.0 - lost.low  # 0, not −0, where nothing changed

    def scores(self, layer: str, found: dict[str, Any]) -> Iterator[FrozenScore]:
        """A row for each repair."""
        for i, spec in enumerate(self.options.fixes):
            more = {key: found[key][i] for key in ("dev", "train", "loss")}
            change = Estimate(*found["change"][i]) if i else UNKNOWN
            test = Estimate(found["test"][i], *found["ends"][i])
            yield FrozenScore(layer=layer, fix=spec.name, test=test, change=change, **more)

    def choices(self, found: dict[str, dict[str, Any]], scores: Sequence[FrozenScore]) -> Iterator[FrozenChoice]:
        """Each repair at the layer with the best value on the dev split, and on the test split."""
        layers = list(found)
        for by in BY:
            best = np.array([found[layer][by] for layer in layers]).argmax(0)  # [fix]
            raw = found[layers[best[0]]]["said"][0]
            for i, spec in enumerate(self.options.fixes):
                layer = layers[best[i]]
                (row,) = (one for one in scores if (one.layer, one.fix) == (layer, spec.name))
                change = Estimate(*self.change(raw, found[layer]["said"][i])) if i else UNKNOWN
                verdict = (VERDICTS[change.side()] if math.isfinite(change.low) else OPEN) if i else ""
                yield FrozenChoice(by=by, fix=spec.name, layer=layer, value=row.test, change=change, verdict=verdict)


def _notes(work: _Classifiers, found: dict[str, dict[str, Any]], clipping: Clipping, n_empty: int) -> Iterator[str]:
    if any(spec.kind == "clip" for spec in work.options.fixes) and not any(map(clipping.at, found)):
        yield f"clip is raw here: {clipping.source}"
    if n_empty:
        yield f"{n_empty:,} texts have no token; their vectors are zero"
    if not work.options.bias:
        yield (
            "classifiers without bias, as in the paper: a dimension that hardly varies serves them as one, so clipping it also "
            "takes that away; --bias tells the two apart"
        )
