"""Semantic textual similarity (Luo et al. 2021, tables 2, 6 and 7) at every layer with every fix, from one pass.

    tasks = [read_sts(task, "sts/") for task in sts_tasks("stsb,sickr")]
    dev = [read_sts(task, "sts/", split="validation") for task in sts_tasks("stsb,sickr")]
    found = sts(load_model("minilm-l6"), tasks, StsOptions(), fit=fit_text(sts_tasks("stsb,sickr"), "sts/"), dev=dev)

Sentences go through the model once, however many tasks share them. Fixes are fitted on `fit`, without the sentences that
are evaluated or that a layer is chosen on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from outlierlens.data.labelled.labels import plain_text
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.experiments.similarity.fitting import (
    NOTHING,
    FittedFixes,
    described,
    fit_fixes,
    fit_notes,
    needs_text,
    text_and_clipping,
)
from outlierlens.experiments.similarity.options import StsCall, StsOptions
from outlierlens.experiments.similarity.pooling import (
    Pooling,
    own_pooling,
    sentence_vectors,
    static_vectors,
)
from outlierlens.experiments.similarity.result import Scores, Similarity, StaticVectors, TaskScores
from outlierlens.experiments.similarity.scores import (
    MIN_DEV,
    MeasuredPairs,
    Names,
    PairIndex,
    choices,
    elsewhere,
    score,
)
from outlierlens.experiments.similarity.table import (
    DEV,
    TASKS,
    StsPairs,
    fit_text,
    found_in,
    has_split,
    read_sts,
    sts_tasks,
)
from outlierlens.models.load import LoadedModel
from outlierlens.session import Session
from outlierlens.vectors.fixes import Fix, FixSpec, make_fix, moments_of, raw_first
from outlierlens.vectors.read import Vectors, tokenise

INPUT_EMBEDDINGS = "input embeddings"


def sts(
    loaded: LoadedModel,
    tasks: Sequence[StsPairs],
    options: StsOptions | None = None,
    *,
    fit: Texts | None = None,
    dev: Sequence[StsPairs] = (),
    command: str = "",
) -> Similarity:
    """Spearman's ρ of every task at every layer with every fix; `dev` are other pairs, to choose a layer on.

    Raises:
        BadInput: no task, a task twice, or no text left to fit on.
    """
    options = options or StsOptions()
    if not tasks or len({one.task.name for one in tasks}) < len(tasks):
        raise BadInput("similarity needs at least one task, and each once")
    if options.read.layers is not None and len(options.read.layers) == 1:
        dev = ()  # there is no layer to choose
    evaluated = {plain_text(text) for pairs in tasks for text in pairs.sentences}
    apart_dev = [one.without(evaluated) for one in dev]
    dev_pairs = [one for one in apart_dev if len(one) >= MIN_DEV]
    specs = raw_first(options.fixes)
    held = [*tasks, *dev_pairs]
    sentences = tuple(dict.fromkeys(text for pairs in held for text in pairs.sentences))
    text, dropped, clipping = text_and_clipping(loaded, sentences, specs, fit, options)
    read = options.read
    fitting: Vectors | None = None
    if text is not None and any(spec.fitted for spec in specs):
        fitting = sentence_vectors(loaded, text.texts, options.pooling, read.told("reading the text to fit on"))
    vectors = sentence_vectors(loaded, sentences, options.pooling, read.told("reading sentences"))
    width = vectors.values.shape[-1]
    fixes = fit_fixes(specs, vectors.layers, fitting, width, clipping or NOTHING, read.budget)
    measured = measure(vectors, sentences, held, fixes)
    names = Names(vectors.layers, tuple(spec.name for spec in specs))
    clipped = [layer for layer, dims in (clipping or NOTHING).dims.items() if dims]
    statics, static_scores, notes = _static(loaded, tasks, sentences, text, specs, options)
    found = []
    for number, one in enumerate(measured[: len(tasks)]):
        other = None
        if len(vectors.layers) > 1:
            other = elsewhere(one, measured[len(tasks) :], measured[: len(tasks)])
        if read.progress:
            read.progress("drawing pairs for intervals", number + 1, len(tasks))
        found.append(
            TaskScores(
                name=one.pairs.task.name,
                title=one.pairs.task.title,
                source=one.pairs.source,
                n_pairs=len(one.pairs),
                n_sentences=len(one.pairs.sentences),
                n_families=int(one.pairs.family.max()) + 1,
                subsets=one.pairs.subsets,
                sizes=tuple(one.pairs.subset.count(name) for name in one.pairs.subsets),
                missing=one.pairs.missing,
                layers=one.scores,
                static=static_scores[number],
                choices=tuple(choices(one, other, names, clipped=clipped, seed=options.seed, n_draws=options.n_draws)),
            )
        )
    empty = int((vectors.n_tokens == 0).sum())
    return Similarity(
        provenance=loaded.provenance(command=command, seed=options.seed),
        stack=vectors.stack,
        pooling=options.pooling.says,
        max_length=options.pooling.max_length,
        final_norm=vectors.final_norm,
        layers=vectors.layers,
        fixes=names.fixes,
        fitted=described(fixes, text, dropped, clipping),
        static=statics,
        n_sentences=len(sentences),
        tasks=tuple(found),
        notes=(
            *loaded.notes,
            *options.pooling.notes,
            *fit_notes(fixes, specs, clipping, width),
            *_dev_notes(dev, apart_dev),
            *_data_notes(tasks),
            *((f"{empty} sentences have no token that counts, and a cosine of 0",) if empty else ()),
            *notes,
        ),
    )


def measure(
    vectors: Vectors, sentences: Sequence[str], held: Sequence[StsPairs], fixes: FittedFixes
) -> list[MeasuredPairs]:
    """Cosines and scores of all `held` pairs at every layer with every fix; rows of `vectors` are `sentences`."""
    place = {text: i for i, text in enumerate(sentences)}
    indices = [PairIndex.of(pairs, place) for pairs in held]
    shape = (len(vectors.layers), len(fixes.at[0]))
    cosines = [np.empty((len(pairs), *shape)) for pairs in held]
    for layer, of_layer in enumerate(fixes.at):
        values = np.asarray(vectors.values[layer])
        for number, index in enumerate(indices):
            for column, fix in enumerate(of_layer):
                cosines[number][:, layer, column] = index.cosines(values, fix)
    return [MeasuredPairs(pairs, found, score(pairs, found)) for pairs, found in zip(held, cosines, strict=True)]


def _static(
    loaded: LoadedModel,
    tasks: Sequence[StsPairs],
    sentences: Sequence[str],
    text: Texts | None,
    specs: Sequence[FixSpec],
    options: StsOptions,
) -> tuple[tuple[StaticVectors, ...], list[Scores], tuple[str, ...]]:
    """(static vectors, their scores in each task, notes); `clip` is of layers, so static vectors have none: NaN."""
    fitting = () if text is None else text.texts
    made: list[np.ndarray] = []
    notes: tuple[str, ...] = ()
    try:
        tokens = tokenise(loaded, (*sentences, *fitting), max_length=options.pooling.max_length)
        made.append(static_vectors(loaded, tokens))
    except BadInput as error:
        notes = (str(error),)
    place = {sentence: i for i, sentence in enumerate(sentences)}
    indices = [PairIndex.of(pairs, place) for pairs in tasks]
    cosines = [np.full((len(pairs), len(made), len(specs)), np.nan) for pairs in tasks]
    for row, values in enumerate(made):
        fixes = _static_fixes(specs, values[len(sentences) :], values.shape[1])
        for number, index in enumerate(indices):
            for column, fix in enumerate(fixes):
                if fix is not None:
                    cosines[number][:, row, column] = index.cosines(values, fix)
    scores = [_scored(pairs, found) for pairs, found in zip(tasks, cosines, strict=True)]
    return tuple(StaticVectors(INPUT_EMBEDDINGS, values.shape[1]) for values in made), scores, notes


def _static_fixes(specs: Sequence[FixSpec], fitting: np.ndarray, width: int) -> list[Fix | None]:
    """Fixes of static vectors; None for clip, and for a `k` that they are too narrow for."""
    there = fitting[np.any(fitting != 0, axis=1)]
    moments = moments_of(there) if len(there) > 1 else None
    usable = [
        spec.kind != "clip" and (not spec.fitted or moments is not None) and (spec.k or 0) < width for spec in specs
    ]
    return [make_fix(spec, width, moments=moments) if good else None for spec, good in zip(specs, usable, strict=True)]


def _scored(pairs: StsPairs, cosines: np.ndarray) -> Scores:
    """`score`, NaN where there are no cosines."""
    found = score(pairs, np.nan_to_num(cosines))
    none = np.isnan(cosines).all(0)
    return Scores(*(np.where(none, np.nan, part) for part in (found.pooled, found.mean, found.weighted, found.subsets)))


def _dev_notes(dev: Sequence[StsPairs], kept: Sequence[StsPairs]) -> list[str]:
    notes = []
    for one, left in zip(dev, kept, strict=True):
        if len(left) < len(one):
            unused = "" if len(left) >= MIN_DEV else "; too few are left to choose a layer on them"
            notes.append(
                f"{one.task.title}, {one.split}: {len(one) - len(left):,} of {len(one):,} pairs share a sentence with an "
                f"evaluated pair and are left out{unused}"
            )
    return notes


def _data_notes(tasks: Sequence[StsPairs]) -> list[str]:
    notes = []
    for pairs in tasks:
        task = pairs.task
        if len(pairs) != task.pairs and pairs.split == "test":
            lacks = f"; without {', '.join(pairs.missing)}" if pairs.missing else ""
            notes.append(f"{task.title}: {len(pairs):,} pairs, the hub's copy has {task.pairs:,}{lacks}")
    return notes


def run(session: Session, options: StsCall) -> Similarity:
    """What `sts` finds for the pairs that the command line names."""
    reads, fits, offline = session.vectors, session.fitting, session.loading.offline
    if reads.special and options.pooling != "mean":
        raise BadInput(f"--special belongs to --pooling mean; {options.pooling} says itself which tokens count")
    everything = tuple(TASKS.values()) if options.data is None else found_in(options.data)
    rows = everything if options.tasks is None else sts_tasks(options.tasks)
    pairs = [read_sts(task, options.data, limit=options.limit, offline=offline) for task in rows]
    dev = [
        read_sts(task, options.data, split=DEV, offline=offline) for task in rows if has_split(task, options.data, DEV)
    ]
    dev += _stsb_dev(dev, options.data, offline)
    fit = fits.texts(offline=offline)
    if fit is None and needs_text(fits.specs, fits.clip):
        fit = fit_text(rows, options.data, offline=offline)
    pooling = Pooling(options.pooling, reads.special, reads.max_length) if options.pooling != "own" else None
    how = replace(
        fits.into(reads.into(options.how, session.loaded, final_norm=True, progress=session.progress)),
        pooling=pooling or own_pooling(session.subject.model, session.load),
    )
    return sts(session.loaded, pairs, how, fit=fit, dev=dev)


def _stsb_dev(dev: Sequence[StsPairs], data: Path | None, offline: bool) -> Iterator[StsPairs]:
    """STS-B's validation split, to choose a layer of tasks that have none of their own; none where it is not at hand."""
    stsb = TASKS["stsb"]
    if all(one.task.name != "stsb" for one in dev) and has_split(stsb, data, DEV):
        yield read_sts(stsb, data, split=DEV, offline=offline)
