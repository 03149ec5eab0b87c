"""Luo et al. (2021) whole, for any model that reads text: every part measured once, kept, and put together.

    found = replicate_luo(load_model("distilbert-cased"), PaperData("data/"), folder=Path("runs/luo"))
    found.part("sts").choice("stsb", "clip", "best")

The run directory holds rows/ (from which a stopped run goes on), parts/NAME.json (each part's finding; observation.json is of
the sentences that clipped dimensions come from) and clipping.json (what all parts clip).
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from outlierlens.analyses.embed import BEST, CLIPPED, HELD_OUT, EmbedOptions, FixScore, Similarity, embed
from outlierlens.analyses.embed_pairs import DEV, TextPairs, fit_text, has_split, read_sts, read_wic, sts_tasks
from outlierlens.analyses.geometry import GeometryOptions, geometry
from outlierlens.analyses.observe import Observation, observe
from outlierlens.analyses.origin import OriginOptions, origin_live
from outlierlens.analyses.origin_weights import MAX_NAMED
from outlierlens.analyses.probe import ProbeOptions, probe, split_texts
from outlierlens.analyses.probe_classifiers import protocol_of, read_frozen
from outlierlens.analyses.probe_frozen import FrozenOptions, FrozenScores, frozen
from outlierlens.data.labelled import find_task
from outlierlens.data.labelled.labels import plain_text
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.observed import StackObservation
from outlierlens.detection.weights import scan_stream
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadedModel
from outlierlens.options import Flag
from outlierlens.replicate.papers import PAIRS, PaperData, PublishedNumber, published_extremes, published_for
from outlierlens.replicate.runner import PaperFinding, PaperOptions, PaperPart, PaperRun
from outlierlens.results.document import save
from outlierlens.results.row_store import alone_in
from outlierlens.results.rows import Row
from outlierlens.results.safe_files import write_text
from outlierlens.statistics.means import HELPS, HURTS, NOTHING, OPEN
from outlierlens.vectors.clip import Clipping, resolve_clipping
from outlierlens.vectors.spans import Drawing
from outlierlens.view.section import FineShare, Rows, dims_in_layers, listed

CLIP_TEXTS = 1000  # the last sentences of SST-2: clipped dimensions come from them, and no part measures them
GEOMETRY_TEXTS = 20_000  # sentences that words are looked for in
CONTEXTS = 10  # of a word; in full 20
LONG_TEXTS = 400  # of IMDB, to train on and to test; in full all
CLIP = "clip"
UNTOUCHED = "nothing to clip there"
SAID = {
    HELPS: "helps on",
    HURTS: "hurts on",
    NOTHING: "makes no difference that can be told on",
    OPEN: "cannot be judged on",
    UNTOUCHED: "has nothing to act on at the layer chosen for",
}
NAMES = ("origin", "probe", "geometry", "words", "sts", "frozen-sst2", "frozen-sst5", "frozen-imdb")


@dataclass(frozen=True, kw_only=True)
class LuoOptions(PaperOptions):
    """Data, models and controls of the replication."""

    parts: Annotated[tuple[str, ...], Flag(read="options:parse_names", words=",".join(NAMES))] = NAMES
    """Which parts, by commas."""
    clip: str = "auto"
    """auto (Luo's rule; where it names nothing the most extreme), none, 557, 0-9:896;10-16:678, a name."""


# --- what is found -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FixEffect(FixScore):
    """What one fix does to one data set; `says` is "nothing to clip there" where the chosen layer has no clipped dimension."""

    metric: str
    score: float
    """repaired"""
    published_raw: float | None = None
    """published raw: of this checkpoint, chosen the paper's way"""
    published: float | None = None
    """published clipped"""


@dataclass(frozen=True, kw_only=True)
class Extreme(Row):
    """How often a dimension is the smallest or largest entry of a token vector (Luo et al. 2021, section 2)."""

    dim: int
    end: str
    """is the: "smallest entry" or "largest entry\""""
    share: Annotated[float, FineShare]
    """of token vectors: of all blocks, special tokens included"""
    published: Annotated[float | None, FineShare] = None
    """published: the paper's share for this checkpoint, on sentences of SST-2 and QQP"""


@dataclass(frozen=True, kw_only=True)
class LuoReplication(PaperFinding):
    """Luo et al. 2021 for one model.

    Attributes:
        clipped: dimensions that are clipped, by layer; clipping: where they come from.
    """

    title = "Positional artefacts (Luo et al. 2021)"
    paper = "luo"

    effects: tuple[FixEffect, ...] = ()
    """Repaired against raw vectors: Of other repairs than clip at layers chosen on other data. All are fitted on other text."""
    extremes: tuple[Extreme, ...] = ()
    """Most often the smallest and the largest entry"""
    published: tuple[PublishedNumber, ...] = ()
    """(Published numbers)"""
    clipped: dict[str, tuple[int, ...]]
    clipping: str

    def of_fix(self, fix: str = CLIP) -> tuple[FixEffect, ...]:
        """What one fix does."""
        return tuple(one for one in self.effects if one.fix == fix)

    def laid_out(self, name: str, rows: tuple[Row, ...], head: str, note: str, *, verbose: bool) -> Rows:
        """Of other fixes than clip at layers chosen on other data alone, unless `verbose`."""
        if name == "effects" and not verbose:
            rows = tuple(one for one in self.effects if one.fix == CLIP or one.chosen == HELD_OUT) or rows
        return super().laid_out(name, rows, head, note, verbose=verbose)

    def sentences(self) -> Iterator[str]:
        clipped = dims_in_layers(self.clipped)
        what = f"{clipped} (dimensions in layers)" if clipped else "no dimension"
        effects = [one for one in self.of_fix() if one.chosen == HELD_OUT] or list(self.of_fix())
        if not effects:
            yield f"No data set was measured; dimensions to clip: {clipped or 'none'}."
        else:
            chosen = "a layer chosen on other data" if effects[0].chosen == HELD_OUT else "the best layer"
            yield f"Clipping {what} {_said(effects)} (95 % intervals, {chosen})."
        if there := [one for one in self.of_fix() if one.chosen == CLIPPED]:
            layers = listed(list(dict.fromkeys(one.layer for one in there)))
            yield f"At the best layer that is clipped ({layers}), it {_said(there)}."
        if any(one.fix != CLIP for one in self.effects):
            yield "No interval is widened for the number of data sets and fixes: about one in twenty differs by chance."
        if not self.published:
            yield "None of the paper's numbers are for this checkpoint, so none are compared."
        yield f"{self.provenance.subject}: clipped {self.clipping}."


def _said(effects: Sequence[FixEffect]) -> str:
    """ "helps on stsb and sickr and hurts on wic"."""
    named = {says: [one.data for one in effects if one.says == says] for says in SAID}
    return listed([f"{words} {listed(named[says])}" for says, words in SAID.items() if named[says]])


def effects_of(
    parts: Mapping[str, Any], clipped: Mapping[str, tuple[int, ...]], published: Sequence[PublishedNumber] = ()
) -> Iterator[FixEffect]:
    """What every fix does to every data set of the parts: WiC, then STS, then classification."""
    for one in _fixed(parts):
        known = [row for row in published if (row.data, CLIP, BEST) == (one.data, one.fix, one.chosen)]
        raw, after = (known[0].before, known[0].after) if known else (None, None)
        # Where the chosen layer has nothing to clip, raw and clipped vectors are the same ones.
        untouched = one.fix == CLIP and not clipped.get(one.layer)
        yield replace(one, says=UNTOUCHED if untouched else one.says, published_raw=raw, published=after)


def _fixed(parts: Mapping[str, Any]) -> Iterator[FixEffect]:
    for name, found in parts.items():
        if isinstance(found, Similarity):
            for one in found.choices:
                if one.fix != "raw" and one.thresholds != "any" and one.chosen in (BEST, HELD_OUT, CLIPPED):
                    data = "wic" if name == "words" else one.data
                    yield FixEffect(**vars(one) | {"data": data}, metric=found.about.task)
        elif isinstance(found, FrozenScores):
            for fix, (chosen, by) in itertools.product(found.fixes[1:], ((BEST, "test"), (HELD_OUT, "dev"))):
                mine, raw = found.choice(fix, by), found.choice("raw", by)
                yield FixEffect(
                    data=name.removeprefix("frozen-"), metric=found.about.metric, fix=fix, chosen=chosen, layer=mine.layer,
                    score=mine.value.value, change=mine.change, raw_layer=raw.layer, raw=raw.value.value, says=mine.verdict,
                )  # fmt: skip


def extremes(stack: StackObservation, published: Mapping[tuple[str, int], float]) -> Iterator[Extreme]:
    """The commonest smallest and the commonest largest entry, and every dimension whose share is `published`."""
    for end, shares in stack.pooled_shares().items():
        known = {dim: round(float(share), 6) for dim, share in zip(stack.dims, shares, strict=True) if share >= 0}
        most = [stack.dims[int(np.argmax(shares))]] if any(known.values()) else []
        for dim in dict.fromkeys((*most, *(dim for at, dim in published if at == end))):
            if dim in known:
                yield Extreme(dim=dim, end=end, share=known[dim], published=published.get((end, dim)))


# --- how it is measured ------------------------------------------------------------------------------------------


def replicate_luo(
    loaded: LoadedModel,
    data: PaperData,
    options: LuoOptions | None = None,
    *,
    folder: Path,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> LuoReplication:
    """Measure every part that is missing in the run directory `folder`, and return the whole.

    Raises:
        BadInput: data is missing, or what a part raises.
    """
    with alone_in(Path(folder), "replication"):
        run = LuoRun(loaded, data, options or LuoOptions(), Path(folder), overwrite=overwrite, progress=progress)
        run.measure(PARTS)
        clipping, together = run.clipping, run.together(PARTS, run.clipping.every)
        checkpoint = together["checkpoint"]
        published = published_for("luo", checkpoint)
        seen = run.observed(run.every if run.options.full else run.held_out)
        save(seen, run.folder / "parts" / "observation.json")
        return LuoReplication(
            effects=tuple(effects_of(run.found, clipping.dims, published)),
            extremes=tuple(extremes(run.stack_of(seen), published_extremes(checkpoint))),
            published=published, clipped=clipping.dims, clipping=clipping.source, **together,
        )  # fmt: skip


class LuoRun(PaperRun):
    """One run: the sentences, what is observed on them, and what is clipped, the same for all parts.

    Attributes:
        every: SST-2's training sentences. held_out: those that clipped dimensions come from, which no part measures.
        sentences: the others, but for those that stand among `held_out` too.
    """

    def __init__(self, loaded: LoadedModel, data: PaperData, options: LuoOptions, folder: Path, **more: Any):
        super().__init__(loaded, options, folder, **more)
        self.data = data
        self.every = data.sentences()
        texts, many = self.every.texts, len(self.every) > 2 * CLIP_TEXTS
        self.held_out = replace(self.every, texts=texts[-CLIP_TEXTS:] if many else texts[1::2])
        watched = {plain_text(text) for text in self.held_out.texts}
        rest = (text for text in (texts[:-CLIP_TEXTS] if many else texts[::2]) if plain_text(text) not in watched)
        self.sentences = replace(self.every, texts=tuple(rest))
        self.clip_path = folder / "clipping.json"
        self.clipping = self._clipping()

    def lacks(self, part: PaperPart) -> str:
        """Which data sets are not there; of pairs, a note says which of them."""
        missing = [one for one in part.needs if not self.data.has(one)]
        if PAIRS in part.needs and not missing and (lacking := self.data.lacking_pairs()):
            self.notes.append(f"{part.title}: without {', '.join(lacking)}, for {self.data.root} has no folder of it")
        return f"{self.data.root} has no folder {', '.join(missing)}" if missing else ""

    def observed(self, texts: Texts) -> Observation:
        """Average vectors and shares of extremes."""
        options = ObserveOptions(batch_size=self.options.batch_size, progress=self.progress)
        return observe(self.loaded, texts, options, rows=self.rows)

    def stack_of(self, seen: Observation) -> StackObservation:
        """The stream that is clipped."""
        return next(one for one in seen.stacks if one.stack == self.stack.name)

    def _clipping(self) -> Clipping:
        """What all parts clip, also as the file `clip_path`; never from a text that is measured.

        Where Luo's rule names nothing, it is what is most often the smallest and the largest entry, and the source says so.
        """
        found = resolve_clipping(self.options.clip, self.loaded, fit_texts=self.held_out, stack=self.stack.name)
        if self.options.clip == "auto" and not found.dims:
            seen = self.stack_of(self.observed(self.held_out))
            shares = {end: one for end, one in seen.pooled_shares("without_special").items() if one.any()}
            most = {end: seen.dims[int(one.argmax())] for end, one in shares.items()}
            said = [f"{most[end]} is the {end} of {one.max():.0%} of token vectors" for end, one in shares.items()]
            if dims := tuple(sorted({*most.values()})):
                everywhere = {str(layer): dims for layer in range(self.stack.n_layers)}
                found = Clipping("most extreme", everywhere, f"{listed(said)}: a fallback, for {found.source}")
        told = {"name": found.name, "source": found.source, "dims": {k: list(v) for k, v in found.dims.items()}}
        write_text(self.clip_path, json.dumps(told, indent=2) + "\n")
        return found


def _origin(run: LuoRun) -> Any:
    scanned = scan_stream(run.loaded, run.stack.name)
    dims = tuple(dict.fromkeys((*run.clipping.every, *(one.dim for one in scanned.outliers))))[:MAX_NAMED]
    named_by = "those that are clipped, and those that the scan's rule finds"
    return origin_live(run.loaded, OriginOptions(dims={run.stack.name: dims}, named_by=named_by))


def _probe(run: LuoRun) -> Any:
    split = split_texts(run.sentences, run.data.sentences("validation"), seed=run.options.seed)
    options = ProbeOptions(read=run.reading(), full=run.options.full, seed=run.options.seed)
    return probe(run.loaded, split, run.clipping, options, rows=run.rows)


def _geometry(run: LuoRun) -> Any:
    every = run.sentences
    n = min(len(every) // 2, len(every) if run.options.full else GEOMETRY_TEXTS)
    rest = Texts(f"{every.source} (behind sentence {n:,})", every.texts[n:], every.column)
    drawing = Drawing() if run.options.full else Drawing(max_contexts=CONTEXTS)
    options = GeometryOptions(clip=str(run.clip_path), drawing=drawing, read=run.reading(), seed=run.options.seed)
    return geometry(run.loaded, every.first(n), options, fit=rest, rows=run.rows)


def _embed(run: LuoRun, pairs: list[TextPairs], fit: Texts, dev: list[TextPairs]) -> Any:
    options = EmbedOptions(read=run.reading(final_norm=True), clip=str(run.clip_path), seed=run.options.seed)
    return embed(run.loaded, pairs, options, fit=fit, dev=dev, rows=run.rows)


def _words(run: LuoRun) -> Any:
    folder, offline = run.data.folder("wic"), run.data.offline
    return _embed(run, [read_wic(folder, split, offline=offline) for split in ("train", DEV)], run.sentences, [])


def _sts(run: LuoRun) -> Any:
    root, offline = run.data.folder(PAIRS), run.data.offline
    rows = sts_tasks(folder=root)
    pairs = [read_sts(task, root, offline=offline) for task in rows]
    dev = [read_sts(task, root, split=DEV, offline=offline) for task in rows if has_split(task, root, DEV)]
    return _embed(run, pairs, fit_text(rows, root, offline=offline) or run.sentences, dev)


def _frozen(name: str) -> Callable[[LuoRun], Any]:
    def measure(run: LuoRun) -> Any:
        task = find_task(name)
        protocol, seed, offline = protocol_of(task), run.options.seed, run.data.offline
        limits = (protocol.limit, protocol.test_limit) if name != "imdb" else (LONG_TEXTS, LONG_TEXTS)
        limit, test_limit = (None, None) if run.options.full else limits
        folder = run.data.folder(name)
        splits = read_frozen(task, folder, limit=limit, test_limit=test_limit, seed=seed, offline=offline)
        options = FrozenOptions(read=run.reading(final_norm=True), seed=seed)
        return frozen(run.loaded, splits, options, clip=lambda _: run.clipping, rows=run.rows)

    return measure


PARTS = {
    "origin": PaperPart("where the dimensions come from", _origin),
    "probe": PaperPart("position probe", _probe, ("sst2",)),
    "geometry": PaperPart("anisotropy and self-similarity", _geometry, ("sst2",)),
    "words": PaperPart("words in context", _words, ("wic",)),
    "sts": PaperPart("semantic textual similarity", _sts, (PAIRS,)),
    "frozen-sst2": PaperPart("classifiers on frozen vectors: SST-2", _frozen("sst2"), ("sst2",)),
    "frozen-sst5": PaperPart("classifiers on frozen vectors: SST-5", _frozen("sst5"), ("sst5",)),
    "frozen-imdb": PaperPart("classifiers on frozen vectors: IMDB", _frozen("imdb"), ("imdb",)),
}
