"""How much of a task one dimension carries (Rudman, Chen and Eickhoff 2023), for every dimension, exactly.

    found = one_dimension(loaded, train, dev, OneDimOptions())
    found.layers[-1].best, found.full, found.majority

Sentence vectors of training examples are read from the running model; the best classifier that sees one number alone is
found for each dimension (at most as many intervals as classes; a line for a regression) and measured on the dev set. The
paper's own classifier, a shifted mean on the dimension of largest variance, stands beside it. For decoders the vector is
that of the last token that is no padding; the paper's released code reads the last position of padded batches instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.data.labelled import Examples, label_order
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.one_dimension.options import OneDimOptions
from outlierlens.experiments.one_dimension.result import LayerOneDim, OneDim, OneDimension, ShiftedMeanProbe
from outlierlens.experiments.one_dimension.stumps import Intervals, Lines, fit_intervals, fit_line, shifted_mean
from outlierlens.models.hooks import EMBEDDINGS, layer_name, tapped
from outlierlens.models.load import LoadedModel
from outlierlens.session import Session
from outlierlens.statistics.ranks import correlations, ranks_from_top
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import confusion, interval, metric_of

if TYPE_CHECKING:
    from torch import Tensor

VARIANCE_RATIO = 5.0  # Rudman et al. (2023): variance at least so many times the mean variance
BEST = 20  # dimensions of a regression that get an interval beside the named ones
MAX_BYTES = 4_000_000_000  # of sentence vectors held at once


def one_dimension(
    loaded: LoadedModel,
    train: Examples,
    dev: Examples,
    options: OneDimOptions | None = None,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> OneDimension:
    """The metric on `dev` of every dimension's best classifier on `train`, beside the whole model's own.

    `progress` is called with what is done, batches done and batches in all.

    Raises:
        BadInput: a task of tokens, a model without a head for the task, an unknown layer or dimension, or vectors that
            would not fit into memory.
    """
    options = options or OneDimOptions()
    task = dev.task
    if task.level == "token":
        raise BadInput(f"{task.name} labels words; one-dimension classifiers read sentence vectors, one a text")
    train = _of_one_task(train, dev)
    stack = loaded.stack(options.stack)
    if options.limit is not None and options.limit < len(train):
        drawn = np.random.default_rng([options.seed, 7]).permutation(len(train))[: options.limit]
        train = train.some(sorted(drawn.tolist()))
    settings = TaskOptions(max_length=options.max_length, batch_size=options.batch_size, labels=options.labels)
    scorers = [LabelledScore(loaded, examples, settings) for examples in (train, dev)]
    reader = _Reader(loaded, stack, options, scorers)
    learned = reader.vectors(scorers[0], "train", progress)
    judged = reader.vectors(scorers[1], "dev", progress)
    said = scorers[1].outputs()
    by_class = task.metric != "accuracy" if options.by_class is None else options.by_class
    fit = _Fit(train, dev, by_class, options.seed)
    scanned = scan_stream(loaded, stack.name)
    z = np.zeros(reader.width)
    z[list(scanned.map_dims)] = np.abs(scanned.z_scale).max(axis=0)
    weights_name = scanned.dims
    asked = tuple(options.dims)
    if bad := [dim for dim in asked if not 0 <= dim < reader.width]:
        raise BadInput(
            f"dimension {bad[0]} does not exist; the sentence vectors have dimensions 0 to {reader.width - 1}"
        )
    layers = tuple(
        fit.layer(layer_name(layer), learned[place], judged[place], z, (*asked, *weights_name))
        for place, layer in enumerate(reader.layers)
    )
    low, high = interval(task.metric, said.truth, said.predicted, seed=options.seed, groups=dev.family)
    return OneDimension(
        provenance=loaded.provenance(seed=options.seed),
        task=task.name,
        metric=task.metric,
        stack=stack.name,
        pooling=reader.pooling,
        by_class=fit.by_class,
        train=train.source,
        dev=dev.source,
        n_train=len(train),
        n_dev=len(dev),
        full=said.scores[task.metric],
        full_low=low,
        full_high=high,
        majority=fit.majority(),
        weights_name=weights_name,
        layers=layers,
        notes=(*loaded.notes, *reader.notes),
    )


def run(session: Session, options: OneDimOptions) -> OneDimension:
    """The experiment, as the command runs it."""
    train, dev = session.splits.splits(offline=session.loading.offline, of_words=False)
    return one_dimension(session.loaded, train, dev, options, progress=session.progress)


class _Reader:
    """Sentence vectors out of the running model."""

    def __init__(self, loaded: LoadedModel, stack: BoundStack, options: OneDimOptions, scorers: list[LabelledScore]):
        from outlierlens.models.load import stream_width

        self.loaded, self.stack, self.options = loaded, stack, options
        self.width = stream_width(loaded.model, stack)
        self.layers = _layers(options, stack)
        self.pooling = _pooling(loaded, stack, options, scorers[0])
        needed = len(self.layers) * self.width * sum(scorer.n_texts for scorer in scorers) * 4
        if needed > MAX_BYTES:
            raise BadInput(
                f"the sentence vectors of {len(self.layers)} layers would take {needed / 1e9:.1f} GB; use fewer layers or a "
                f"smaller --limit"
            )
        norm = stack.stack.norm_site == "read" and bool(stack.final_norm)
        self.notes = (
            ("vectors are the blocks' output, before the model's final norm, which the head reads behind",)
            if norm
            else ()
        )

    def vectors(self, scorer: LabelledScore, what: str, progress: Callable[[str, int, int], None] | None) -> np.ndarray:
        """float32 [layer, text, dim]"""
        import torch

        found = np.empty((len(self.layers), scorer.n_texts, self.width), dtype=np.float32)
        place = {layer: number for number, layer in enumerate(self.layers)}
        batches = list(scorer.feeds(range(scorer.n_texts)))
        model: Any = self.loaded.model
        for done, feed in enumerate(batches):
            slots = list(feed.slots)
            mask = feed.inputs["attention_mask"]

            def look(_: BoundStack, layer: int, states: "Tensor", slots: list[int] = slots, mask: Any = mask) -> None:
                if layer in place:
                    found[place[layer], slots] = self._pool(states, mask).float().cpu().numpy()

            with torch.inference_mode(), tapped(model, [self.stack], look):
                model(**feed.inputs)
            if progress:
                progress(f"reading {what} vectors", done + 1, len(batches))
        return found

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


def _layers(options: OneDimOptions, stack: BoundStack) -> tuple[int, ...]:
    if options.layers == "all":
        return (EMBEDDINGS, *range(stack.n_layers))
    wanted = (stack.n_layers - 1,) if options.layers == "last" else options.layers
    for layer in wanted:
        if not EMBEDDINGS <= layer < stack.n_layers:
            raise BadInput(
                f"layer {layer} does not exist; stream {stack.name!r} has layers 0 to {stack.n_layers - 1} and the embeddings"
            )
    return tuple(dict.fromkeys(wanted))


def _pooling(loaded: LoadedModel, stack: BoundStack, options: OneDimOptions, scorer: LabelledScore) -> str:
    if options.pooling != "auto":
        return options.pooling
    begins = getattr(loaded.tokenizer, "cls_token_id", None)
    first = scorer.encoded.inputs["input_ids"][0][:1]
    return "first" if begins is not None and first == [begins] and stack.name != "decoder" else "last"


class _Fit:
    """Fits on training vectors and judges on dev vectors, layer by layer."""

    def __init__(self, train: Examples, dev: Examples, by_class: bool, seed: int):
        self.task, self.seed = dev.task, seed
        self.train, self.dev, self.family = np.array(train.labels), np.array(dev.labels), dev.family
        self.by_class = by_class and not self.task.regression
        self.n_classes = len(self.task.labels)
        self.weights: np.ndarray | None = None
        if self.by_class:
            self.weights = 1 / np.bincount(self.train, minlength=self.n_classes)[self.train]

    def layer(
        self, name: str, learned: np.ndarray, judged: np.ndarray, z: np.ndarray, named: Sequence[int]
    ) -> LayerOneDim:
        """Every dimension of a layer, from vectors [text, dim]."""
        if not (np.isfinite(learned).all() and np.isfinite(judged).all()):
            raise BadInput(f"layer {name}: a sentence vector holds a value that is not finite; {USE_FLOAT32}")
        variance = learned.astype(np.float64).var(axis=0)
        ratio = variance / variance.mean() if variance.any() else variance
        outliers = tuple(int(dim) for dim in np.argsort(-ratio, kind="stable") if ratio[dim] >= VARIANCE_RATIO)
        fitted: Intervals | Lines
        if self.task.regression:
            fitted = fit_line(learned, self.train)
            train = fitted.explained
        else:
            fitted = fit_intervals(learned, self.train, self.n_classes, self.weights)
            train = fitted.right
        best = int(train.argmax())
        shown = tuple(dict.fromkeys((*named, *outliers)))
        value, low, high = self.judge(fitted.predict(judged), (best, *shown))
        ranks = ranks_from_top(value)

        def one(dim: int) -> OneDim:
            return OneDim(
                dim=dim,
                value=float(value[dim]),
                low=float(low[dim]),
                high=float(high[dim]),
                train=float(train[dim]),
                rank=int(ranks[dim]),
                variance_ratio=float(ratio[dim]),
                z=float(z[dim]),
                rule=self._words(fitted, dim),
            )

        return LayerOneDim(
            layer=name,
            value=value,
            low=low,
            high=high,
            train=train,
            variance=variance,
            variance_outliers=outliers,
            best=one(best),
            named=tuple(one(dim) for dim in shown),
            shifted_mean=self._shifted_mean(learned, judged, int(variance.argmax())),
            rho_variance=float(correlations("spearman", variance, value[:, None])[0]),
            rho_z=float(correlations("spearman", z, value[:, None])[0]),
        )

    def judge(self, predicted: np.ndarray, shown: Sequence[int] = (0,)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(metric, low, high), [dim] each, of predictions [text, dim]; of a regression `shown` and the best get intervals.

        Drawing items of a regression takes a tenth of a second a dimension.
        """
        metric = self.task.metric
        width = predicted.shape[1]
        if self.task.regression:
            value = correlations(metric, self.dev, predicted)
            drawn = dict.fromkeys([*shown, *np.argsort(-value, kind="stable")[:BEST].tolist()])
        else:
            value = metric_of(metric, confusion(self.dev, predicted, self.n_classes))
            drawn = dict.fromkeys(range(width))
        low, high = np.full(width, np.nan), np.full(width, np.nan)
        for dim in drawn:
            low[dim], high[dim] = interval(metric, self.dev, predicted[:, dim], seed=self.seed, groups=self.family)
        return value, low, high

    def majority(self) -> float:
        """Dev metric of always saying the commonest training label; a constant correlates with nothing."""
        if self.task.regression:
            return 0.0
        commonest = np.bincount(self.train, minlength=self.n_classes).argmax()
        always = np.full((len(self.dev), 1), commonest)
        return float(metric_of(self.task.metric, confusion(self.dev, always, self.n_classes))[0])

    def _shifted_mean(self, learned: np.ndarray, judged: np.ndarray, dim: int) -> ShiftedMeanProbe | None:
        if self.n_classes != 2:
            return None
        found = shifted_mean(learned[:, dim], self.train)
        value, low, high = self.judge(found.predict(judged[:, dim])[:, None])
        above = self.task.labels[found.above]
        return ShiftedMeanProbe(
            dim, found.mean, found.shift, above, found.right, float(value[0]), float(low[0]), float(high[0])
        )

    def _words(self, fitted: Intervals | Lines, dim: int) -> str:
        """The classifier of a dimension in words."""
        if isinstance(fitted, Lines):
            return f"{fitted.slope[dim]:.3g} · h + {fitted.intercept[dim]:.3g}"
        text = self.task.labels[fitted.says[dim, 0]]
        for cut, label in zip(fitted.cuts[dim], fitted.says[dim, 1:], strict=True):
            if np.isfinite(cut):
                text += f" ≤ {cut:.3g} < {self.task.labels[label]}"
        return text if np.isfinite(fitted.cuts[dim]).any() else f"always {text}"
