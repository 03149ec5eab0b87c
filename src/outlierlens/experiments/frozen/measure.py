"""The whole measurement: one pass of the frozen model, repairs fitted on training vectors, classifiers, intervals."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.frozen.classifiers import TrainOptions, train
from outlierlens.experiments.frozen.options import MAX_LENGTH, FrozenCall, FrozenOptions
from outlierlens.experiments.frozen.result import Chosen, FixScores, FrozenScores
from outlierlens.experiments.frozen.splits import Splits, protocol_of, read_frozen
from outlierlens.experiments.similarity.result import verdict
from outlierlens.models.load import LoadedModel
from outlierlens.session import Session
from outlierlens.tasks.metrics import Statistic, interval, score
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.fixes import Fix, FixSpec, Moments, make_fix, moments_of, raw_first
from outlierlens.vectors.read import Tokens, Vectors, check_matrices, gather, tokenise

Clip = Callable[[Texts], Clipping]


def frozen(
    loaded: LoadedModel,
    splits: Splits,
    options: FrozenOptions | None = None,
    *,
    clip: Clip | None = None,
    command: str = "",
) -> FrozenScores:
    """The task's metric of linear classifiers on mean vectors of every layer, raw and repaired.

    `clip` gives the dimensions to clip, from the training texts; None observes them ("auto"). Repairs see training vectors
    alone. The layer is chosen twice: by the dev split, and by the test split itself as the paper does.

    Raises:
        BadInput: vectors that do not fit the budget, or what reading, repairing and training raise.
    """
    options = options or FrozenOptions()
    task = splits.test.task
    batch = options.train_batch or protocol_of(task).train_batch
    began = time.perf_counter()
    vectors, tokens = _read(loaded, splits, options)
    parts = np.split(vectors.values, np.cumsum([len(splits.train), len(splits.dev)]), axis=1)  # views, no copies
    learned, chosen, judged = parts
    fitting = _fitting_rows(vectors.n_tokens[: len(splits.train)], options)
    specs = raw_first(options.fixes)
    clipping = Clipping("none", {}, "no clip among the fixes")
    if any(spec.kind == "clip" for spec in specs):
        given = Texts(splits.train.source, splits.train.texts)
        clipping = clip(given) if clip else resolve_clipping("auto", loaded, fit_texts=given, stack=options.read.stack)
    n_dense = len(vectors.layers) * sum(spec.dense for spec in specs)
    # One set as they are made, one as they are trained on.
    check_matrices(2 * n_dense, learned.shape[2], options.read.budget, what="fixes of all layers")
    fixes = _fixes(specs, learned, fitting, vectors.layers, clipping)
    read = time.perf_counter()
    settings = TrainOptions(
        len(task.labels), options.epochs, batch, options.lr, options.bias, options.seed, options.read.progress
    )
    heads = train(learned, np.array(splits.train.labels), fixes, settings)
    said = [heads.predict(part) for part in (learned, chosen, judged)]
    scores = _Scores(task.metric, splits, vectors.layers, said, options.seed)
    found = tuple(scores.fix(i, spec, fixes[i], heads.loss[i]) for i, spec in enumerate(specs))
    commonest = np.bincount(splits.train.labels).argmax()
    return FrozenScores(
        provenance=loaded.provenance(command=command, seed=options.seed),
        task=task.name,
        metric=task.metric,
        labels=task.labels,
        stack=vectors.stack,
        special=options.special,
        final_norm=vectors.final_norm,
        max_length=tokens.max_length,
        n_cut=tokens.n_full,
        train=splits.train.source,
        dev=splits.dev.source,
        test=splits.test.source,
        n_train=len(splits.train),
        n_dev=len(splits.dev),
        n_test=len(splits.test),
        n_train_all=splits.n_train_all,
        n_test_all=splits.n_test_all,
        held_out=splits.held_out,
        n_dropped=splits.n_dropped,
        epochs=options.epochs,
        train_batch=batch,
        lr=options.lr,
        n_steps=heads.n_steps,
        bias=options.bias,
        majority=score(task.metric, scores.truth[2], np.full(len(splits.test), commonest)),
        layers=vectors.layers,
        clipping=clipping.name,
        clip_dims={layer: clipping.at(layer) for layer in vectors.layers if clipping.at(layer)},
        clip_source=clipping.source,
        fixes=found,
        seconds_reading=read - began,
        seconds_training=time.perf_counter() - read,
        notes=(*loaded.notes, *_notes(found, vectors, clipping, options)),
    )


def _read(loaded: LoadedModel, splits: Splits, options: FrozenOptions) -> tuple[Vectors, Tokens]:
    """Vectors of train, dev and test texts in this order, from one pass."""
    texts = (*splits.train.texts, *splits.dev.texts, *splits.test.texts)
    tokens = tokenise(loaded, texts, max_length=options.max_length or 2**30)
    return gather(loaded, tokens, tokens.sentences(), options.read, special=options.special), tokens


def _fitting_rows(n_tokens: np.ndarray, options: FrozenOptions) -> np.ndarray:
    """Numbers of the training vectors that repairs are fitted on: of texts that have a token."""
    rows = np.flatnonzero(n_tokens)
    if len(rows) > options.fit_limit:
        rows = np.sort(np.random.default_rng([options.seed, 19]).permutation(rows)[: options.fit_limit])
    return rows


def _fixes(
    specs: Sequence[FixSpec], learned: np.ndarray, rows: np.ndarray, layers: Sequence[str], clipping: Clipping
) -> list[list[Fix]]:
    """[fix][layer]"""
    found: list[list[Fix]] = [[] for _ in specs]
    for place, layer in enumerate(layers):
        moments: Moments | None = None
        if any(spec.fitted for spec in specs):
            moments = moments_of(learned[place, rows])
        for i, spec in enumerate(specs):
            found[i].append(make_fix(spec, learned.shape[2], moments=moments, dims=clipping.at(layer)))
    return found


def invertible(spec: FixSpec, fixes: Sequence[Fix]) -> bool:
    """Whether the repaired vectors hold all that raw ones do, in every layer.

    What standardising and whitening scale to nothing are directions in which the training vectors do not vary.
    """
    if spec.kind == "clip":
        return all(bool(fix.matrix.all()) for fix in fixes)
    return spec.kind in ("raw", "centre", "standardize") or (
        spec.kind == "whiten" and all(fix.matrix.shape[0] == fix.matrix.shape[1] for fix in fixes)
    )


class _Scores:
    """Metrics and intervals of predictions `said` [fix, layer, text] of each split; fix 0 is raw vectors."""

    def __init__(self, metric: str, splits: Splits, layers: tuple[str, ...], said: Sequence[np.ndarray], seed: int):
        self.metric, self.layers, self.seed, self.said = metric, layers, seed, said
        self.truth = [np.array(part.labels) for part in (splits.train, splits.dev, splits.test)]
        self.statistic = Statistic(metric, self.truth[2], splits.test.family)
        # By split [fix, layer].
        self.values = [
            np.array([[score(metric, truth, layer) for layer in fix] for fix in part])
            for truth, part in zip(self.truth, said, strict=True)
        ]

    def fix(self, i: int, spec: FixSpec, fixes: Sequence[Fix], loss: np.ndarray) -> FixScores:
        """Scores of the repair number `i`."""
        test = self.said[2]
        ends = np.array(
            [
                interval(self.metric, self.truth[2], layer, seed=self.seed, groups=self.statistic.groups)
                for layer in test[i]
            ]
        )
        layers = range(len(self.layers))
        changes = np.array([self._change((0, layer), (i, layer)) for layer in layers])
        by_dev, by_test = (self._chosen(i, values, ends) for values in self.values[1:])
        return FixScores(
            fix=spec.name,
            invertible=invertible(spec, fixes),
            n_fitted=fixes[0].n_fitted,
            shrinkage=np.array([fix.shrinkage for fix in fixes]),
            train=self.values[0][i],
            dev=self.values[1][i],
            test=self.values[2][i],
            loss=loss,
            low=ends[:, 0],
            high=ends[:, 1],
            change=changes[:, 0],
            change_low=changes[:, 1],
            change_high=changes[:, 2],
            selected=by_dev,
            best=by_test,
        )

    def _chosen(self, i: int, values: np.ndarray, ends: np.ndarray) -> Chosen:
        """The layer with the largest of `values` [fix, layer], of the repair and of raw vectors."""
        place, raw = int(values[i].argmax()), int(values[0].argmax())
        change, low, high = self._change((0, raw), (i, place))
        says = verdict(low, high) if i else ""
        value, value_low, value_high = float(self.values[2][i, place]), float(ends[place, 0]), float(ends[place, 1])
        return Chosen(self.layers[place], value, value_low, value_high, change, low, high, says)

    def _change(self, raw: tuple[int, int], other: tuple[int, int]) -> tuple[float, float, float]:
        """(change of the metric, low, high) on test from one (fix, layer) to another; larger is better."""
        if raw == other:
            return 0.0, 0.0, 0.0
        one, two = self.said[2][raw], self.said[2][other]
        low, high = self.statistic.interval(one, two, seed=self.seed)  # of 1 − metric
        return 0.0 - self.statistic.change(one, two), 0.0 - high, 0.0 - low  # 0, not −0, where nothing changed


def _notes(found: Sequence[FixScores], vectors: Vectors, clipping: Clipping, options: FrozenOptions) -> tuple[str, ...]:
    notes = []
    if any(one.fix == "clip" for one in found) and not any(clipping.at(layer) for layer in vectors.layers):
        notes.append(f"clip is raw here: {clipping.source}")
    same = [one.fix for one in found if one.invertible and one.fix not in ("raw", "clip")]
    if same:
        said = f"{', '.join(same)}: invertible, so a linear classifier behind "
        said += (
            "them can say nothing that it could not say of raw vectors" if len(same) > 1 else "it can say nothing new"
        )
        notes.append(
            f"{said}"
            + ("" if options.bias else ", but for the constant that a moved origin gives a classifier without bias")
            + f"; a change comes from training: how far {options.epochs} epochs got, and which directions they fitted first"
        )
    if empty := int((vectors.n_tokens == 0).sum()):
        notes.append(f"{empty:,} texts have no token; their vectors are zero")
    if options.bias is False:
        notes.append(
            "classifiers without bias, as in the paper: a dimension that hardly varies serves them as one, so clipping it also "
            "takes that away; --bias tells the two apart"
        )
    return tuple(notes)


def run(session: Session, options: FrozenCall) -> FrozenScores:
    """What `frozen` finds for the task that the command line names."""
    asked, reads, fits = session.task_reading, session.vectors, session.fitting
    if not asked.is_labelled:
        raise BadInput(f"--task {asked.task} has no labels; use sst2, sst5, imdb, … or classify")
    usual = protocol_of(asked.labelled_task)
    splits = read_frozen(
        asked.labelled_task,
        asked.data,
        limit=None if options.full else options.limit or usual.limit,
        test_limit=None if options.full else options.test_limit or usual.test_limit,
        seed=options.seed,
        offline=session.loading.offline,
    )
    how = replace(
        fits.into(reads.into(options, session.loaded, progress=session.progress)),
        max_length=options.max_length or (None if options.full else MAX_LENGTH),
    )
    return frozen(session.loaded, splits, how, clip=lambda texts: fits.clipping(session.loaded, texts, reads.stack))
