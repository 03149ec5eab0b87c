"""Whether the cosine of two vectors says how alike sentences are (STS), or that a word means the same (WiC); after Luo et al.
(2021, tables 1, 2, 5 to 7), at every layer and after every fix.

    tasks = sts_tasks("stsb,sickr")                                             # of `embed_pairs`, as what follows
    pairs, dev = ([read_sts(task, "sts", split=split) for task in tasks] for split in ("test", "validation"))
    found = embed(load_model("minilm-l6"), pairs, fit=fit_text(tasks, "sts"), dev=dev)
    found.choice("stsb", "clip", "held out").change                            # an Estimate
    words = embed(loaded, [read_wic("wic", "train"), read_wic("wic", "validation")], fit=read_texts("sst2/train.parquet"))

A layer is chosen in several ways: the best on the very pairs that are reported (the paper's way, too good by what chance
adds), the best on other pairs, and the last. Raw vectors choose theirs the same way, so a fix is compared with raw at its
best. Where that layer has nothing to clip, the comparison says nothing about clipping: so clip is also compared at the layer,
of those that are clipped, where raw vectors are best. Fixes are fitted on text that is never evaluated.

`export_embedder` of `embed_export` writes a layer with a fix for sentence-transformers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from outlierlens.analyses.embed_export import EmbedderExport, ExportOptions, check_place, export_embedder
from outlierlens.analyses.embed_pairs import (
    DEV,
    TASKS,
    WIC,
    TextPairs,
    fit_text,
    has_split,
    read_pairs,
    read_sts,
    read_wic,
    sts_tasks,
)
from outlierlens.analyses.embed_pass import (
    GRID,
    PairPass,
    Pooling,
    Scores,
    accuracy_interval,
    chosen,
    crossed,
    folds_of,
    own_pooling,
    right_at,
    score,
)
from outlierlens.data.texts import EXCERPT, REVIEWS, Texts, read_texts
from outlierlens.errors import BadInput, pick
from outlierlens.models.load import LoadedModel
from outlierlens.options import Flag, Flat, Options, belong, check
from outlierlens.results.finding import About, Finding
from outlierlens.results.row_store import Keep, kept_rows
from outlierlens.results.rows import UNKNOWN, Estimate, More, Quiet, Row
from outlierlens.statistics.means import NOTHING, OPEN, interval_text, no_change, no_interval, verdict
from outlierlens.tasks.metrics import N_DRAWS, interval
from outlierlens.vectors.fixes import USUAL, FixSpec, parse_fixes
from outlierlens.vectors.options import Fitting
from outlierlens.vectors.read import ReadOptions
from outlierlens.view.pictures import Lines, Picture
from outlierlens.view.section import Change, Count, FineShare, Rows, dims_in_layers

if TYPE_CHECKING:
    from outlierlens.session import Session

BEST, HELD_OUT, LAST, CLIPPED, TRAINED = "best", "held out", "last", "clipped layer", "train"
MIN_DEV = 100  # pairs: fewer say little about a layer
FOLDS = 10
READING = ("layers", "stack", "special", "final_norm", "cache_gb")


# --- options -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    """How sentences and words become vectors, and how these are repaired and compared."""

    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    pooling: Annotated[Pooling, Flag(hidden=True)] = Pooling()
    """How a sentence becomes a vector; a word is the mean of its sub-words. Where texts are cut."""
    read: Annotated[ReadOptions, Flag(hidden=True)] = field(default_factory=lambda: ReadOptions(final_norm=True))
    """Layers, stream, batches, budget; the vector of a layer is what the model's final norm makes of it, if it has one."""
    fixes: Annotated[tuple[FixSpec, ...], Flag(hidden=True, read="vectors.fixes:parse_fixes")] = parse_fixes(USUAL)
    """Fixes to try; raw vectors are always included."""
    clip: Annotated[str, Flag(hidden=True)] = "auto"
    """Which dimensions are clipped, as `vectors.clip.resolve_clipping` reads it."""
    fit_limit: Annotated[int, Flag(hidden=True), Ge(2)] = Fitting.fit_limit
    """Fit on N texts at most, by the seed."""
    n_draws: Annotated[int, Flag(hidden=True), Ge(1)] = N_DRAWS
    """Draws of the bootstrap."""


@dataclass(frozen=True, kw_only=True)
class EmbedCall:
    """Which pairs are scored, and how; or which layer is written, and where."""

    task: Literal["sts", "wic"] = "sts"
    """sts: how cosines of sentences rank with people's scores. wic: whether they tell that a word means the same."""
    data: Path | None = None
    """Folder with a folder per set of sts, or wic's splits. Default: the hub's. --export: scored pairs to check on, a file."""
    sets: str | None = None
    """--task sts: stsb,sickr,sts12, … sts16. Default: all that --data holds; of the hub, all."""
    pooling: Literal["mean", "first", "last", "own"] = "mean"
    """--task sts: mean, first, last (token); own: as the model's 1_Pooling/config.json says."""
    limit: Annotated[int | None, Ge(2)] = None
    """Use the first N pairs of each set or split."""
    options: Annotated[EmbedOptions, Flat("seed")] = EmbedOptions()
    """How they are scored."""
    export: Path | None = None
    """Write a sentence-transformers model of one layer with a fix in it to this folder instead; it must not exist."""
    made: Annotated[ExportOptions, Flat("fix", "layer", "normalize")] = ExportOptions()
    """--export: layer, fix and format of the folder."""

    def __post_init__(self) -> None:
        check(self)
        if self.export is None:
            belong("to --export FOLDER; give that too", self.made)
        else:
            belong("to scores; leave that out, or --export", self, "task", "sets", "pooling", "limit")
        if self.task == WIC:
            belong("to --task sts", self, "sets", "pooling")


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FixScore(Row):
    """A fix at a layer that was chosen some way, against raw vectors whose layer was chosen alike."""

    data: str
    fix: str
    chosen: str
    """layer chosen: "best" on these very pairs, as in the paper; "held out", on other pairs (of words: on nine tenths in turn);
    "train", on the train split; the "last"; or the "clipped layer" where raw vectors are best, for both"""
    thresholds: Annotated[str, More] = ""
    """thresholds: of words "grid", 0.1 to 0.9 as in the paper, or "any", all that tell pairs of train apart"""
    layer: str
    threshold: float | None = None
    """above"""
    score: float
    """{task}"""
    change: Annotated[Estimate, Change] = UNKNOWN
    """change: from raw vectors; pairs are drawn together, those that share a sentence or word as one"""
    raw_layer: str
    """raw layer"""
    raw: float
    says: str = ""
    """verdict: "helps", "hurts", "no difference" or "not settled\""""
    chosen_on: Annotated[str, More] = ""
    """chosen on"""


@dataclass(frozen=True, kw_only=True)
class LayerScore(Row):
    """One layer of one data set after one fix."""

    data: str
    layer: str
    fix: str
    score: float
    """{task}: of all pairs together (mteb's way); of words at the best threshold from 0.1 to 0.9"""
    mean: float | None = None
    """mean of subsets: each counts once (SentEval)"""
    weighted: float | None = None
    """weighted: over subsets, by their pairs (SentEval)"""
    threshold: float | None = None
    """above"""
    subsets: Annotated[dict[str, float], Quiet] = field(default_factory=dict)
    """by subset"""
    accuracies: Annotated[tuple[float, ...], "threshold, or empty", Quiet] = ()
    """of words, at each threshold from 0.1 to 0.9"""


@dataclass(frozen=True, kw_only=True)
class PairSet(Row):
    """A data set of pairs."""

    data: str
    source: Annotated[str, More]
    n_pairs: Annotated[int, Count]
    """pairs"""
    n_families: Annotated[int, Count]
    """independent: groups of pairs that hang together by a sentence or a word that they share"""
    left_out: Annotated[int | None, Count] = None
    """left out: pairs whose word lies behind the longest text"""
    all_true: Annotated[float | None, FineShare] = None
    """always “the same”: how often that is right"""
    subsets: Annotated[dict[str, int], Quiet] = field(default_factory=dict)
    """pairs of its parts"""
    missing: tuple[str, ...] = ()
    """without: parts of the complete data set"""


def _of_data(data: str, row: Any) -> bool:
    return bool(row.data == data)


@dataclass(frozen=True, kw_only=True)
class Similarity(Finding):
    """How well cosines of a model's vectors say what is alike, at every layer with every fix.

    Attributes:
        pooling: how a sentence, or a word, became a vector, in words.
        final_norm: whether vectors went through the model's final norm.
        fit_data: the text that fixes were fitted on, "" for none. n_fitted: its vectors. n_dropped: evaluated texts left out.
        shrinkage: of whitening, by layer; () without it.
        clipped: dimensions by layer. clipping: where they come from.
    """

    title = "Similarity by cosine"

    choices: tuple[FixScore, ...]
    """What each fix changes: --verbose shows every way to choose a layer."""
    data: tuple[PairSet, ...]
    """Pairs"""
    by_layer: tuple[LayerScore, ...]
    """(By layer)"""
    pooling: str
    final_norm: bool
    fit_data: str = ""
    n_fitted: int = 0
    n_dropped: int = 0
    shrinkage: Annotated[tuple[float, ...], "layer, or empty"] = ()
    clipped: dict[str, tuple[int, ...]] = field(default_factory=dict)
    clipping: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(dict.fromkeys(one.layer for one in self.by_layer))

    @property
    def fixes(self) -> tuple[str, ...]:
        """Names of the fixes, "raw" first."""
        return tuple(dict.fromkeys(one.fix for one in self.by_layer))

    def choice(self, data: str, fix: str, chosen: str = BEST, thresholds: str = "") -> FixScore:
        """A fix of a data set at a layer chosen so; `thresholds` "any" of words. Raises BadInput with what there is."""
        wanted = {"data": data, "fix": fix, "chosen": chosen}
        if thresholds or any(one.thresholds for one in self.choices):
            wanted["thresholds"] = thresholds or "grid"
        return pick(self.choices, f"no {' / '.join(wanted.values())} in this result", **wanted)

    def score(self, data: str, layer: str, fix: str = "raw") -> LayerScore:
        """One layer of a data set after one fix; raises BadInput with what there is."""
        return pick(self.by_layer, f"no {data} / {layer} / {fix} in this result", data=data, layer=layer, fix=fix)

    def interval(self, one: FixScore) -> str:
        """The interval of a choice's change in words, × 100."""
        data = pick(self.data, f"no data {one.data!r}", data=one.data)
        return interval_text(
            100 * one.change.low, 100 * one.change.high, "+.2f", no_change(data.n_pairs, "pairs", data.n_families)
        )

    def drawn(self) -> tuple[Picture, ...]:
        """A panel for each data set."""
        return tuple(
            Lines(rows="by_layer", x="layer", y="score", by="fix", title=one.data, where=partial(_of_data, one.data))
            for one in self.data
        )

    def fair(self) -> tuple[FixScore, ...]:
        """The choices that were not made on the pairs they are scored on, or all there are; clip also where it clips."""
        held = {one.data for one in self.choices if one.chosen in (HELD_OUT, TRAINED)}
        return tuple(
            one
            for one in self.choices
            if one.chosen in (HELD_OUT, TRAINED, CLIPPED) or (one.chosen == BEST and one.data not in held)
            if one.thresholds != "any"
        )

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """In short the fair choices; what stands behind "no change" and "not settled" is said below."""
        if name == "choices":
            rows, notes = self.choices if verbose else self.fair(), [note] * (not verbose)
            for one in self.data:
                mine = [row for row in self.choices if row.data == one.data]
                if any(row.says == NOTHING and row.change == Estimate(0, 0, 0) for row in mine):
                    notes.append(f"{one.data}, nothing changed: {no_change(one.n_pairs, 'pairs', one.n_families)}.")
                if any(row.says == OPEN for row in mine):
                    why = no_interval(one.n_families, "independent pairs", metric="spearman")
                    notes.append(f"{one.data}, not settled: {why}.")
            note = " ".join(notes)
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        for data in self.data:
            mine = [one for one in self.fair() if one.data == data.data]
            best = max(mine, key=lambda one: one.score)
            beside = f"; raw vectors reach {best.raw:.4f}" if best.fix != "raw" else ""
            always = f"; always saying “the same” gets {data.all_true:.4f}" if data.all_true is not None else ""
            yield (
                f"{data.data}: {self.about.task} is highest, {best.score:.4f}, with {best.fix} at layer {best.layer} "
                f"({best.chosen}){beside}{always}."
            )
        norm = ", through the final norm" if self.final_norm else ""
        yield f"A vector is the {self.pooling}{norm}; texts end at {self.about.max_length} tokens."
        if self.fit_data:
            what = (
                f"Fixes are fitted on {self.n_fitted:,} vectors" if self.n_fitted else "Dimensions to clip are observed"
            )
            yield f"{what} of {self.fit_data}; {self.n_dropped:,} of its texts are evaluated and were left out."
        if self.clipped:
            yield f"Clipped dimensions: {dims_in_layers(self.clipped)} ({self.clipping})."


# --- how it is measured ------------------------------------------------------------------------------------------


def embed(
    loaded: LoadedModel,
    pairs: Sequence[TextPairs],
    options: EmbedOptions | None = None,
    *,
    fit: Texts | None = None,
    dev: Sequence[TextPairs] = (),
    rows: Path | Keep | None = None,
) -> Similarity:
    """Score cosines against people's judgement: sets of sentence pairs, or words in context (train, then validation).

    `fit` is the text that fixes are fitted on, evaluated sentences left out; `dev` are other sentence pairs, to choose a layer
    on. With `rows`, every layer after every fix is kept there and is not measured again.

    Raises:
        BadInput: no pairs, a set twice, no text left to fit on, or no word that lies within the longest text.
    """
    options = options or EmbedOptions()
    names = [(one.name, one.split) for one in pairs]
    if not names or len(set(names)) < len(names) or len({bool(one.places) for one in pairs}) > 1:
        raise BadInput("name at least one set of pairs, each once, all of sentences or all of words")
    words, notes = bool(pairs[0].places), list[str]()
    held = list(pairs)
    if not words and options.read.layers is not None and len(options.read.layers) == 1:
        dev = ()  # there is no layer to choose
    for one in dev:
        left = one.without({text for evaluated in pairs for text in evaluated.sentences})
        notes += _dev_notes(one, left)
        held += [left] if len(left) >= MIN_DEV else []
    work = PairPass(loaded, held, fit, options)
    with kept_rows(rows, work.identity, loaded.notice) as kept:
        cosines = work.measured(kept)
    found = (_words if words else _sentences)(work, len(pairs), cosines)
    return Similarity(
        provenance=loaded.provenance(seed=options.seed, digest=work.identity["model"]),
        about=About(
            data=", ".join(one.source for one in pairs), data_digest=pairs[0].digest, inputs="sentences",
            task="accuracy" if words else "Spearman's ρ", stack=work.stack.name,
            layers=tuple(layer for layer in work.places.values() if layer >= 0), n_texts=len(work.sentences),
            max_length=options.pooling.max_length,
        ),
        **found, pooling="mean of a word's sub-words" if words else options.pooling.says, final_norm=work.final_norm,
        fit_data=fit.source if fit and work.fits else "", n_fitted=work.n_fitted, n_dropped=work.n_dropped,
        shrinkage=work.shrinkage, clipped=work.clipping.dims, clipping=f"{work.clipping.name}: {work.clipping.source}",
        notes=(*loaded.notes, *options.pooling.notes, *notes, *_notes(work, len(pairs))),
    )  # fmt: skip


class _ScoredPairs(NamedTuple):
    """Sentence pairs with their cosines [pair, layer, fix], and the scores of these."""

    pairs: TextPairs
    cosines: np.ndarray
    scores: Scores


def _sentences(work: PairPass, n: int, cosines: list[np.ndarray]) -> dict[str, Any]:
    """Rows of each of the first `n` sets of sentence pairs; a layer is chosen on the others."""
    scored = [_ScoredPairs(one, mine, score(one, mine)) for one, mine in zip(work.held, cosines, strict=True)]
    by_layer, data, choices = list[LayerScore](), list[PairSet](), list[FixScore]()
    for number, one in enumerate(scored[:n]):
        pairs, scores, names = one.pairs, one.scores, one.pairs.subsets
        for at, layer in enumerate(work.layers):
            for column, spec in enumerate(work.specs):
                parts = {"mean": scores.mean[at, column].item(), "weighted": scores.weighted[at, column].item()}
                by_layer.append(LayerScore(
                    data=pairs.name, layer=layer, fix=spec.name, score=scores.pooled[at, column].item(),
                    subsets=dict(zip(names, scores.subsets[:, at, column].tolist(), strict=True)),
                    **parts if names else {},
                ))  # fmt: skip
        data.append(PairSet(
            data=pairs.name, source=pairs.source, n_pairs=len(pairs), n_families=int(pairs.family.max()) + 1,
            subsets={name: pairs.subset.count(name) for name in names}, missing=pairs.missing,
        ))  # fmt: skip
        other = elsewhere(one, scored[n:], scored[:n]) if len(work.layers) > 1 else None
        if tell := work.options.read.progress:
            tell("drawing pairs for intervals", number + 1, n)
        choices += _choices(work, one, other)
    return {"by_layer": tuple(by_layer), "data": tuple(data), "choices": tuple(choices)}


def elsewhere(
    one: _ScoredPairs, dev: Sequence[_ScoredPairs], others: Sequence[_ScoredPairs]
) -> tuple[str, np.ndarray] | None:
    """(which pairs, their ρ [layer, fix]) on which the layer of a set can be chosen, in words; None where there are none.

    These are its own validation split, STS-B's, or the other sets.
    """
    mine = one.pairs.name
    for name in (mine, "stsb"):
        for held in dev:
            if held.pairs.name == name:
                split = "validation split" if name == mine else "stsb's validation split"
                return f"{split} ({len(held.pairs):,} pairs)", held.scores.pooled
    rest = [other for other in others if other.pairs.name != mine]
    if not rest:
        return None
    said = ", ".join(other.pairs.name for other in rest)
    return f"mean of {said}", np.mean([other.scores.pooled for other in rest], axis=0)


def _choices(work: PairPass, one: _ScoredPairs, other: tuple[str, np.ndarray] | None) -> Iterator[FixScore]:
    """One for each way to choose a layer and fix."""
    pooled = one.scores.pooled
    draws: dict[str, Any] = {
        "groups": one.pairs.family, "seed": work.options.seed, "n_draws": work.options.n_draws
    }  # fmt: skip
    every = range(len(work.specs))
    ways: list[tuple[str, str, Any, Sequence[int]]] = [(BEST, "these pairs", pooled.argmax(0), every)]
    if other is not None:
        ways.append((HELD_OUT, other[0], other[1].argmax(0), every))
    ways.append((LAST, "", np.full(len(every), len(pooled) - 1), every))
    if places := [at for at, layer in enumerate(work.layers) if work.clipping.at(layer)]:
        says, seen = other or ("these pairs", pooled)
        there = max(places, key=lambda at: float(seen[at, 0]))
        clips = [column for column in every if work.specs[column].kind == "clip"]
        ways.append((CLIPPED, f"raw vectors, {says}", np.full(len(every), there), clips))
    known: dict[tuple[int, int, int], tuple[float, float]] = {}
    for way, says, best, columns in ways:
        for column in columns:
            at, raw_at = key = int(best[column]), int(best[0])
            moved = float(pooled[at, column] - pooled[raw_at, 0])
            if column and (column, *key) not in known:
                fixed, raw = one.cosines[:, at, column], one.cosines[:, raw_at, 0]
                known[column, *key] = interval("spearman", one.pairs.truth, (fixed, raw), **draws)
            change = Estimate(moved, *known[column, *key]) if column else UNKNOWN
            yield FixScore(
                data=one.pairs.name, fix=work.specs[column].name, chosen=way, layer=work.layers[at],
                score=float(pooled[at, column]), change=change, raw_layer=work.layers[raw_at],
                raw=float(pooled[raw_at, 0]), says=verdict(change.low, change.high) if column else "", chosen_on=says,
            )  # fmt: skip


def _words(work: PairPass, n: int, cosines: list[np.ndarray]) -> dict[str, Any]:
    """Rows of the train split, and of the validation split where it has pairs: layers and thresholds are chosen on train."""
    there = [~out for out in work.left_out[:n]]
    used = [one.some(kept) for one, kept in zip(work.held, there, strict=True)]
    cosines = [mine[kept] for mine, kept in zip(cosines, there, strict=True)]
    if not len(used[0]):
        raise BadInput(
            f"{used[0].source}: no pair has both its words within {work.options.pooling.max_length} tokens; raise --max-length"
        )
    data, by_layer = list[PairSet](), list[LayerScore]()
    for one, mine, kept in zip(used, cosines, there, strict=True):
        if not len(one):
            continue
        name = f"{WIC} {one.split}"
        data.append(PairSet(
            data=name, source=one.source, n_pairs=len(one), n_families=int(one.family.max()) + 1,
            left_out=int((~kept).sum()), all_true=float(one.truth.mean()),
        ))  # fmt: skip
        right = [right_at(mine[..., column], one.truth, GRID).mean(0) for column in range(len(work.specs))]
        for at, layer in enumerate(work.layers):
            for column, spec in enumerate(work.specs):
                found = right[column][at]
                by_layer.append(LayerScore(
                    data=name, layer=layer, fix=spec.name, score=float(found.max()), threshold=GRID[int(found.argmax())],
                    accuracies=tuple(found.tolist()),
                ))  # fmt: skip
    return {"by_layer": tuple(by_layer), "data": tuple(data), "choices": tuple(_word_choices(work, used, cosines))}


def _word_choices(work: PairPass, used: list[TextPairs], cosines: list[np.ndarray]) -> Iterator[FixScore]:
    """For each kind of thresholds and fix: on train, on train crossed, and on validation."""
    train, options = used[0], work.options
    folds = folds_of(train.words, FOLDS, options.seed)
    for kind, thresholds in (("grid", GRID), ("any", None)):
        raw: list[np.ndarray] = []
        raw_layer = ""
        for column, spec in enumerate(work.specs):
            mine = cosines[0][..., column]
            at, threshold = chosen(mine, train.truth, thresholds)
            answers = [mine[:, at] > threshold, crossed(mine, train.truth, folds, thresholds)]
            sets, layer = [(train, BEST), (train, HELD_OUT)], work.layers[at]
            if len(used) > 1 and len(used[1]):
                answers.append(cosines[1][:, at, column] > threshold)
                sets.append((used[1], TRAINED))
            raw, raw_layer = raw or answers, raw_layer or layer
            for (pairs, way), said, before in zip(sets, answers, raw, strict=True):
                right, was = (float((one == pairs.truth).mean()) for one in (said, before))
                change = UNKNOWN
                if column:
                    draws = {"seed": options.seed, "n_draws": options.n_draws}
                    change = Estimate(right - was, *accuracy_interval(pairs, before, said, **draws))
                yield FixScore(
                    data=f"{WIC} {pairs.split}", fix=spec.name, chosen=way, thresholds=kind, layer=layer,
                    threshold=threshold, score=right, change=change, raw_layer=raw_layer, raw=was,
                    says=verdict(change.low, change.high) if column else "",
                )  # fmt: skip


def _dev_notes(dev: TextPairs, left: TextPairs) -> Iterator[str]:
    if len(left) < len(dev):
        unused = "" if len(left) >= MIN_DEV else "; too few are left to choose a layer on them"
        yield (
            f"{dev.name}, {dev.split}: {len(dev) - len(left):,} of {len(dev):,} pairs share a sentence with an evaluated pair "
            f"and are left out{unused}"
        )


def _notes(work: PairPass, n: int) -> Iterator[str]:
    """What a reader should know about the fit and the data."""
    if work.clips and not work.clipping.dims:
        yield f"no dimension is clipped, so clip is raw ({work.clipping.source})"
    if shrunk := [value for value in work.shrinkage if value]:
        yield (
            f"whitening is fitted on {work.n_fitted:,} vectors, fewer than 10 for each of {work.width} dimensions, and is "
            f"shrunk by {min(shrunk):.2g} to {max(shrunk):.2g} towards the mean variance"
        )
    few = [spec.name for spec in work.specs if spec.kind in ("abtt", "standardize", "centre")]
    if few and 0 < work.n_fitted < 2 * work.width:
        yield f"{', '.join(few)} rest on {work.n_fitted:,} vectors of {work.width} dimensions; give more text (--fit-data)"
    if not work.words and (empty := sum(int(out.sum()) for out in work.left_out[:n])):
        yield f"{empty:,} pairs have a sentence without a token that counts, and a cosine of 0"


def run(session: "Session", call: EmbedCall) -> Similarity | EmbedderExport:
    """What the command finds for the pairs that it names, or writes."""
    reads, fits, offline, data = session.vectors, session.fitting, session.loading.offline, call.data
    if call.export is not None:
        return _export(session, call, call.export)
    if reads.special and (call.task == WIC or call.pooling != "mean"):
        raise BadInput(
            "--special belongs to --pooling mean: a word is the mean of its own tokens, own says what counts"
        )
    pooling = Pooling("mean" if call.pooling == "own" else call.pooling, reads.special, reads.max_length)
    if call.pooling == "own":
        pooling = own_pooling(session.subject.model, session.load)
    options = fits.into(reads.into(call.options, session.loaded, final_norm=True, progress=session.progress))
    scored = partial(embed, session.loaded, options=replace(options, pooling=pooling), rows=session.kept)
    fit = fits.texts(offline=offline)
    if call.task == WIC:
        if fit is None:
            # WiC has no split to spare: the paper's protocol reports train, and validation is what is held out.
            shipped = [read_texts(name) for name in (REVIEWS, EXCERPT)]
            fit = Texts("the shipped reviews and excerpt", tuple(text for one in shipped for text in one.texts))
        splits = [read_wic(data, split, limit=call.limit, offline=offline) for split in ("train", DEV)]
        return scored(pairs=splits, fit=fit)
    tasks = sts_tasks(call.sets, data)
    pairs = [read_sts(task, data, limit=call.limit, offline=offline) for task in tasks]
    # STS-B's validation split chooses a layer of tasks that have none of their own.
    judges = [task for task in dict.fromkeys((*tasks, TASKS["stsb"])) if has_split(task, data, DEV)]
    dev = [read_sts(task, data, split=DEV, offline=offline) for task in judges]
    if fit is None and (any(spec.fitted for spec in fits.specs) or fits.clip == "auto"):
        fit = fit_text(tasks, data, offline=offline)
    return scored(pairs=pairs, fit=fit, dev=dev)


def _export(session: "Session", call: EmbedCall, folder: Path) -> EmbedderExport:
    """The embedder that the command line asks for."""
    reads, fits, spec = session.vectors, session.fitting, call.made.fix
    belong("to scores; leave that out, or --export", reads, *READING)
    belong("to scores; say the one fix with --fix", fits, "fixes")
    if fits.clip != "auto" and spec.kind != "clip":
        raise BadInput(f"--clip {fits.clip} belongs to --fix clip, not to {spec.name}")
    if session.load.dtype != "float32":
        raise BadInput(f"--dtype {session.load.dtype}: an embedder is written in float32; leave --dtype out")
    options = replace(
        fits.into(call.made), max_length=reads.max_length, batch_size=reads.batch_size, seed=call.options.seed,
        overwrite=session.output.overwrite, progress=session.progress,
    )  # fmt: skip
    check_place(folder, overwrite=options.overwrite)
    fit = fits.texts(offline=session.load.offline)
    if fit is None and options.needs_text:
        fit = read_texts(REVIEWS)
        session.notice(f"fitting on the {len(fit):,} shipped film reviews; name a text like your own with --fit-data")
    pairs = None if call.data is None else read_pairs(call.data)
    return export_embedder(session.loaded, folder, options, fit=fit, check=pairs, command=session.command)
