"""How much of a task one dimension carries (Rudman, Chen and Eickhoff 2023), for every dimension, exactly.

    found = one_dimension(loaded, train, dev, OneDimOptions(dims=(557,)))
    found.layers[-1].best, found.layers[-1].value, found.full, found.majority
    found.layers[-1].values[557]                             # of any dimension

Sentence vectors of training examples are read from the running model; the best classifier that sees one number alone is
found for each dimension and measured on the dev set. The paper's own classifier, a shifted mean on the dimension of largest
variance, stands beside it. For decoders the vector is that of the last token that is no padding; the paper's released code
reads the last position of padded batches instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from outlierlens.analyses.probe_classifiers import FittedLines, Intervals, fit_intervals, fit_line, shifted_mean
from outlierlens.architectures import BoundStack
from outlierlens.data.labelled import Examples, label_order
from outlierlens.detection.targets import check_dims
from outlierlens.detection.weights import scan_stream
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped
from outlierlens.models.inputs import reader_digest
from outlierlens.models.load import LoadedModel, fingerprint, stream_width
from outlierlens.options import Flag, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, UnitCache, kept_rows
from outlierlens.results.rows import UNKNOWN, Estimate, More, Quiet, Row
from outlierlens.statistics.ranks import correlations, ranks_from_top
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.metrics import confusion, interval, metric_of
from outlierlens.vectors.read import ReadOptions, allocate, text_stack, wanted_layers
from outlierlens.view.pictures import Strips
from outlierlens.view.section import Change, Count

if TYPE_CHECKING:
    from torch import Tensor

    from outlierlens.tasks.classify import LabelledScore

VARIANCE_RATIO = 5.0  # Rudman et al. (2023): variance at least so many times the mean variance


@dataclass(frozen=True, kw_only=True)
class OneDimOptions:
    """How sentence vectors are read, and what is fitted to them."""

    dims: Annotated[tuple[int, ...], Flag(read="options:plain_dims")] = ()
    """--one-dimension: name these (308,381) as well as those that weights and variances name."""
    pooling: Literal["auto", "first", "last", "mean"] = "auto"
    """--one-dimension: first, last (token) or mean; auto: first where there is a [CLS], else last."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = ReadOptions()
    """Settings of the forward passes: layers, stream, batch, and memory for vectors."""
    limit: Annotated[int | None, Flag(hidden=True), Ge(2)] = 5000
    """Training examples to fit on, drawn at random."""
    labels: Annotated[tuple[str, ...] | None, Flag(hidden=True)] = None
    """The model's labels in the order of its outputs, if its config has none."""
    max_length: Annotated[int, Flag(hidden=True), Ge(2)] = 256
    """Maximum number of tokens per text."""
    seed: Annotated[int, Flag(hidden=True), Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        if self.pooling not in ("auto", "first", "last", "mean"):
            raise BadInput(f"pooling is {self.pooling!r}; use one of auto, first, last, mean")


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OneDim(Row):
    """The classifier (or line) of one dimension."""

    layer: str
    dim: int
    """dimension"""
    value: Estimate
    """{metric}: on the dev set, with its 95 % bootstrap interval over examples"""
    rank: Annotated[int, Count]
    """rank: by the metric among all dimensions of the layer, 1 is best"""
    train: float
    """on train: share of training examples that it gets right (of their weight, where classes count alike); of a regression
    the variance explained"""
    variance_ratio: float
    """× mean variance: of the training sentence vectors of the layer"""
    z: float
    """largest |z|: of the dimension's scale in the weights, over layers"""
    why: str
    """why: best on train, named by the weights, of large variance, or asked for"""
    rule: str
    """rule: "contradiction ≤ −0.31 < entailment\""""


@dataclass(frozen=True, kw_only=True)
class LayerOneDim(Row):
    """All one-dimension classifiers of one layer."""

    note = (
        "Over dimensions: rank correlation of the metric with the variance, and with the largest |z| of the scale over "
        "layers. The shifted mean of the dimension of largest variance, Rudman et al.'s (2023) classifier, says its class "
        "above mean + shift."
    )
    layer: str
    best: int
    """best on train: the dimension, chosen on training examples, so that its dev value is not a maximum over noise"""
    value: Estimate
    """{metric}: of it on the dev set"""
    rho_variance: Annotated[float, Change]
    """ρ with the variance"""
    rho_z: Annotated[float, Change]
    """ρ with |z|"""
    shifted_dim: int | None = None
    """shifted mean of: the dimension of largest variance; none for a task without exactly two classes"""
    shifted_mean: float | None = None
    """mean"""
    shift: Annotated[float | None, Change] = None
    """shift: the best of 201 in [−50, 50] on training examples"""
    above: str = ""
    """says above"""
    shifted_train: Annotated[float | None, More] = None
    """its share right on train"""
    shifted: Estimate = UNKNOWN
    """its {metric}"""
    values: Annotated[tuple[float, ...], "dim", Quiet]
    """{metric} of every dimension on the dev set"""
    train: Annotated[tuple[float, ...], "dim", Quiet]
    """on train"""
    variance: Annotated[tuple[float, ...], "dim", Quiet]
    """of the training sentence vectors"""


@dataclass(frozen=True, kw_only=True)
class OneDimension(Finding):
    """How much of a task each single dimension of a fine-tuned model carries.

    Attributes:
        pooling: which vector stands for an example: "first", "last" (valid token) or "mean".
        by_class: whether classifiers were fitted with all classes counting alike.
        full: the whole model's metric on the dev set.
        majority: metric of always saying the commonest training label; 0 for a regression.
        weights_name: the dimensions that the scan of the weights finds.
        train: where the training examples come from. n_train: how many.
    """

    title = "What one dimension carries"
    pictures = (
        Strips(rows="layers", x="value", y="layer", draws="values", greys="{n} single dimensions", captioned=False,
               title="Best on train among all dimensions, layer by layer"),
        Strips(rows="last", x="value", y="dim", says=lambda row: row.why, title="Best and named dimensions, last layer"),
    )  # fmt: skip

    named: tuple[OneDim, ...]
    """Best and named dimensions"""
    layers: tuple[LayerOneDim, ...]
    """Layer by layer"""
    pooling: str
    by_class: bool
    full: Estimate
    majority: float
    weights_name: tuple[int, ...]
    train: str
    n_train: int

    @property
    def last(self) -> tuple[OneDim, ...]:
        """The best and the named dimensions of the last layer."""
        return tuple(one for one in self.named if one.layer == self.layers[-1].layer)

    def sentences(self) -> Iterator[str]:
        last, about = self.layers[-1], self.about
        nothing = "no dimension at all" if about.metric in ("pearson", "spearman") else "always the commonest label"
        yield (
            f"Dimension {last.best} alone, after layer {last.layer}, reaches {about.metric} {last.value.written('.3f')} on "
            f"{about.task}; the whole model {self.full.written('.3f')}, {nothing} {self.majority:.3f}."
        )
        vector = "mean of all tokens" if self.pooling == "mean" else f"{self.pooling} token"
        yield (
            f"Each dimension of the {vector}, fitted on {self.n_train:,} examples with all "
            f"{'classes' if self.by_class else 'examples'} counting alike, scored on {about.n_texts:,} dev examples."
        )


# --- how it is measured ------------------------------------------------------------------------------------------


def one_dimension(
    loaded: LoadedModel,
    train: Examples,
    dev: Examples,
    options: OneDimOptions | None = None,
    *,
    rows: Path | Keep | None = None,
) -> OneDimension:
    """The metric on `dev` of every dimension's best classifier on `train`, beside the whole model's own.

    With `rows`, every layer is kept there and is not fitted again.

    Raises:
        BadInput: a task of tokens, a model without a head for the task, an unknown layer or dimension, or vectors that
            do not fit the budget.
    """
    from outlierlens.tasks.classify import LabelledScore

    options = options or OneDimOptions()
    task = dev.task
    if task.level == "token":
        raise BadInput(f"{task.name} labels words; one-dimension classifiers read sentence vectors, one a text")
    train = _of_one_task(train, dev)
    stack = text_stack(loaded, options.read.stack)
    if options.limit is not None and options.limit < len(train):
        drawn = np.random.default_rng([options.seed, 7]).permutation(len(train))[: options.limit]
        train = train.some(sorted(drawn.tolist()))
    width = stream_width(loaded.model, stack)
    check_dims(options.dims, stack, width)
    settings = TaskOptions(max_length=options.max_length, batch_size=options.read.batch_size, labels=options.labels)
    scorers = [LabelledScore(loaded, examples, settings) for examples in (train, dev)]
    pooling = _pooling(loaded, stack, options, scorers[0])
    fit = _Stumps(train, dev, options, pooling)
    scanned = scan_stream(loaded, stack.name)
    z = np.zeros(width)
    z[list(scanned.map_dims)] = np.abs(scanned.z_scale).max(axis=0)
    places = {layer_name(layer): layer for layer in wanted_layers(stack, options.read.layers)}
    named = (*options.dims, *scanned.dims)
    read = _Reader(loaded, stack, options.read, pooling)
    identity = fit.identity | {
        "model": fingerprint(loaded.model),
        "reader": reader_digest(loaded),
        "named": named,
        "stack": stack.name,
    }
    with kept_rows(rows, identity, loaded.notice) as kept:
        full = kept("whole model", lambda: fit.whole(scorers[1]))
        _fitted(fit, read, scorers, places, named, kept)
        layers = {name: kept.done[name] for name in places}
    blocks = tuple(layer for layer in places.values() if layer != EMBEDDINGS)
    norm = stack.stack.norm_site == "read" and bool(stack.final_norm)
    behind = "vectors are the blocks' output, before the model's final norm, which the head reads behind"
    return OneDimension(
        provenance=loaded.provenance(seed=options.seed, digest=identity["model"]),
        about=About(
            data=dev.source, data_digest=dev.digest, inputs="examples", task=task.name, metric=task.metric,
            stack=stack.name, layers=blocks, n_texts=len(dev), max_length=options.max_length,
        ),
        named=tuple(one for name, found in layers.items() for one in fit.named(name, found, z, scanned.dims)),
        layers=tuple(fit.row(name, found, z) for name, found in layers.items()),
        pooling=pooling, by_class=fit.by_class, full=Estimate(*full), majority=fit.majority(), weights_name=scanned.dims,
        train=train.source, n_train=len(train), notes=(*loaded.notes, *(behind,) * norm),
    )  # fmt: skip


def _fitted(
    fit: "_Stumps",
    read: "_Reader",
    scorers: "list[LabelledScore]",
    places: dict[str, int],
    named: Sequence[int],
    kept: UnitCache,
) -> None:
    """Fit and judge the layers that are missing, of vectors read in one pass over either set."""
    missing = {name: layer for name, layer in places.items() if name not in kept.done}
    if not missing:
        return
    learned, judged = read.vectors(scorers, tuple(missing.values()))
    for place, name in enumerate(missing):
        kept(name, partial(fit.layer, name, learned[place], judged[place], named))
        if read.options.progress:
            read.options.progress("fitting layers", place + 1, len(missing))


@dataclass(frozen=True)
class _Reader:
    """Sentence vectors out of the running model."""

    loaded: LoadedModel
    stack: BoundStack
    options: ReadOptions
    pooling: str

    def vectors(self, scorers: "list[LabelledScore]", layers: tuple[int, ...]) -> list[np.ndarray]:
        """float32 [layer, text, dim] of the examples of each scorer."""
        width, ends = stream_width(self.loaded.model, self.stack), np.cumsum([one.n_texts for one in scorers])
        every = allocate((len(layers), int(ends[-1]), width), self.options.cache_gb, what="sentence vectors")
        found = np.split(every, ends[:-1], axis=1)
        for scorer, into, what in zip(scorers, found, ("train", "dev"), strict=True):
            self._read(scorer, layers, into, what)
        return found

    def _read(self, scorer: "LabelledScore", layers: tuple[int, ...], into: np.ndarray, what: str) -> None:
        import torch

        batches = list(scorer.feeds(range(scorer.n_texts)))
        model: Any = self.loaded.model
        for done, feed in enumerate(batches):
            slots, mask = list(feed.slots), feed.inputs["attention_mask"]

            def look(_: BoundStack, layer: int, states: "Tensor", slots: list[int] = slots, mask: Any = mask) -> None:
                if layer in layers:
                    into[layers.index(layer), slots] = self._pool(states, mask).float().cpu().numpy()

            with torch.inference_mode(), tapped(model, [self.stack], look):
                model(**feed.inputs)
            if self.options.progress:
                self.options.progress(f"reading {what} vectors", done + 1, len(batches))

    def _pool(self, states: "Tensor", mask: "Tensor") -> "Tensor":
        """One vector per row [row, dim] of states [row, token, dim], padded on either side."""
        import torch

        if states.shape[:2] != mask.shape:
            raise BadInput(
                f"stream {self.stack.name!r}: states are {list(states.shape)}, the tokens {list(mask.shape)}; sentence vectors "
                f"need a stream that runs over the text's own tokens"
            )
        if self.pooling != "mean":
            valid = mask.to(torch.int64)  # argmax finds the first 1
            place = valid.argmax(1) if self.pooling == "first" else mask.shape[1] - 1 - valid.flip(1).argmax(1)
            return states[torch.arange(len(states), device=states.device), place]
        weight = mask[..., None].to(torch.float32)
        return (states.float() * weight).sum(1) / weight.sum(1)


def _of_one_task(train: Examples, dev: Examples) -> Examples:
    """`train` with its labels among those of `dev`, whose task may call several of them one (HANS and MNLI)."""
    if train.task.labels == dev.task.labels:
        return train
    names = train.task.labels
    try:
        order = label_order(dev.task, dict(enumerate(names)), names)
    except BadInput:
        raise BadInput(f"{train.source} and {dev.source} have other labels; both must be of one task") from None
    return replace(train, task=dev.task, labels=tuple(order[label] for label in train.labels))


def _pooling(loaded: LoadedModel, stack: BoundStack, options: OneDimOptions, scorer: "LabelledScore") -> str:
    if options.pooling != "auto":
        return options.pooling
    begins = getattr(loaded.tokenizer, "cls_token_id", None)
    first = scorer.encoded.inputs["input_ids"][0][:1]
    return "first" if begins is not None and first == [begins] and stack.name != "decoder" else "last"


class _Stumps:
    """Fits on training vectors and judges on dev vectors, layer by layer."""

    def __init__(self, train: Examples, dev: Examples, options: OneDimOptions, pooling: str):
        self.task, self.seed, self.asked = dev.task, options.seed, options.dims
        self.train, self.dev, self.family = np.array(train.labels), np.array(dev.labels), dev.family
        self.by_class = self.task.metric != "accuracy" and not self.task.regression
        self.n_classes = len(self.task.labels)
        self.weights: np.ndarray | None = None
        if self.by_class:
            self.weights = 1 / np.bincount(self.train, minlength=self.n_classes)[self.train]
        self.identity: dict[str, Any] = {
            "train": train.digest, "dev": dev.digest, "task": self.task.name, "metric": self.task.metric,
            "by_class": self.by_class, "pooling": pooling, "labels": options.labels, "max_length": options.max_length,
            "seed": options.seed,
        }  # fmt: skip

    def whole(self, scorer: "LabelledScore") -> tuple[float, float, float]:
        """(metric, low, high) of the whole model."""
        said = scorer.outputs()
        ends = interval(self.task.metric, said.truth, (said.predicted,), seed=self.seed, groups=self.family)
        return (said.scores[self.task.metric], *ends)

    def layer(self, name: str, learned: np.ndarray, judged: np.ndarray, named: Sequence[int]) -> dict[str, Any]:
        """Every dimension of a layer, from vectors [text, dim]."""
        if not (np.isfinite(learned).all() and np.isfinite(judged).all()):
            raise BadInput(f"layer {name}: a sentence vector holds a value that is not finite; {USE_FLOAT32}")
        variance = learned.astype(np.float64).var(axis=0)
        ratio = variance / variance.mean() if variance.any() else variance
        outliers = [int(dim) for dim in np.argsort(-ratio, kind="stable") if ratio[dim] >= VARIANCE_RATIO]
        fitted: Intervals | FittedLines
        if self.task.regression:
            fitted = fit_line(learned, self.train)
        else:
            fitted = fit_intervals(learned, self.train, self.n_classes, self.weights)
        best = int(fitted.fits.argmax())
        shown = list(dict.fromkeys((best, *named, *outliers)))
        values, ends = self.judge(fitted.predict(judged), shown)
        return {
            "values": values.tolist(), "train": fitted.fits.tolist(), "variance": variance.tolist(), "ends": ends,
            "outliers": outliers, "shown": shown, "rules": [fitted.words(dim, self.task.labels) for dim in shown],
            "shifted": self._shifted_mean(learned, judged, int(variance.argmax())),
        }  # fmt: skip

    def named(self, layer: str, found: dict[str, Any], z: np.ndarray, weights: Sequence[int]) -> Iterator[OneDim]:
        """Rows of the best and the named dimensions of a layer."""
        variance, ranks = np.array(found["variance"]), ranks_from_top(np.array(found["values"]))
        ratio = variance / variance.mean() if variance.any() else variance
        for dim, rule, ends in zip(*(found[key] for key in ("shown", "rules", "ends")), strict=True):
            why = {
                "best on train": dim == found["shown"][0], "weights": dim in weights, "variance": dim in found["outliers"],
                "asked for": dim in self.asked,
            }  # fmt: skip
            yield OneDim(
                layer=layer, dim=dim, value=Estimate(found["values"][dim], *ends), rank=int(ranks[dim]),
                train=found["train"][dim], variance_ratio=float(ratio[dim]), z=float(z[dim]), rule=rule,
                why=", ".join(word for word, holds in why.items() if holds),
            )  # fmt: skip

    def row(self, layer: str, found: dict[str, Any], z: np.ndarray) -> LayerOneDim:
        """The row of a layer."""
        value, best, shifted = np.array(found["values"]), found["shown"][0], dict[str, Any](found["shifted"])
        if shifted:
            shifted["shifted"] = Estimate(*shifted["shifted"])
        return LayerOneDim(
            layer=layer, best=best, value=Estimate(found["values"][best], *found["ends"][0]), **shifted,
            rho_variance=float(correlations("spearman", np.array(found["variance"]), value[:, None])[0]),
            rho_z=float(correlations("spearman", z, value[:, None])[0]),
            values=tuple(found["values"]), train=tuple(found["train"]), variance=tuple(found["variance"]),
        )  # fmt: skip

    def judge(self, predicted: np.ndarray, shown: Sequence[int] = (0,)) -> tuple[np.ndarray, list[tuple[float, float]]]:
        """The metric of predictions [text, dim] of each dimension [dim], and its interval of those that are `shown`."""
        metric = self.task.metric
        if self.task.regression:
            value = correlations(metric, self.dev, predicted)
        else:
            value = metric_of(metric, confusion(self.dev, predicted, self.n_classes))
        drawn = partial(interval, metric, self.dev, seed=self.seed, groups=self.family)
        return value, [drawn((predicted[:, dim],)) for dim in shown]

    def majority(self) -> float:
        """Dev metric of always saying the commonest training label; a constant correlates with nothing."""
        if self.task.regression:
            return 0.0
        commonest = np.bincount(self.train, minlength=self.n_classes).argmax()
        always = np.full((len(self.dev), 1), commonest)
        return float(metric_of(self.task.metric, confusion(self.dev, always, self.n_classes))[0])

    def _shifted_mean(self, learned: np.ndarray, judged: np.ndarray, dim: int) -> dict[str, Any]:
        if self.n_classes != 2:
            return {}
        found = shifted_mean(learned[:, dim], self.train)
        value, (ends,) = self.judge(found.predict(judged[:, dim])[:, None])
        return {
            "shifted_dim": dim, "shifted_mean": found.mean, "shift": found.shift,
            "above": self.task.labels[found.above], "shifted_train": found.right, "shifted": (float(value[0]), *ends),
        }  # fmt: skip
