"""Luo et al. (2021) whole, for any model that reads text: every part measured once, kept, and put together.

    made = replicate_luo(LuoJob("distilbert-cased", LuoData("data/"), Path("runs/luo")))
    made.luo.effects()

The run directory holds

    parts/NAME.json     each part's result as soon as it is measured, and NAME.key, the settings that it was measured with
    clipping.json       the dimensions that all parts clip, and where they come from
    results.json, report.html, charts/, manifest.json      the whole

A stopped run goes on with the first part that is missing. `PARTS` says as data what each part needs, and how it is
measured at the usual size and in full.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.data.labelled import find_task
from outlierlens.data.labelled.labels import plain_text
from outlierlens.data.texts import Texts
from outlierlens.detection.observe.measure import ObserveOptions, observe
from outlierlens.detection.observe.result import Observation, StackObservation
from outlierlens.detection.scan.measure import ScanOptions, scan_live, scan_stream
from outlierlens.errors import BadInput
from outlierlens.experiments.frozen.measure import frozen
from outlierlens.experiments.frozen.options import FrozenOptions
from outlierlens.experiments.frozen.splits import protocol_of, read_frozen
from outlierlens.experiments.geometry.measure import geometry
from outlierlens.experiments.geometry.options import GeometryOptions
from outlierlens.experiments.origin.measure import MAX_NAMED, OriginOptions, origin_live
from outlierlens.experiments.probe.flow import split_texts
from outlierlens.experiments.probe.measure import probe_positions
from outlierlens.experiments.probe.options import ProbeOptions
from outlierlens.experiments.similarity.options import StsOptions, WicOptions
from outlierlens.experiments.similarity.sts import sts
from outlierlens.experiments.similarity.table import DEV, TASKS, fit_text, found_in, has_split, read_sts
from outlierlens.experiments.similarity.wic import read_wic, wic
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, load_model
from outlierlens.models.passes import Progress
from outlierlens.replicate.kept import KeptParts, check_parts, key_of
from outlierlens.replicate.luo.data import PAIRS, LuoData, published_for, shares_for
from outlierlens.replicate.luo.options import LuoOptions
from outlierlens.replicate.luo.result import LuoReplication, extremes
from outlierlens.replicate.papers import checkpoint_of
from outlierlens.report.result import ReportData
from outlierlens.results.document import Provenance
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import write_text
from outlierlens.vectors.clip import resolve_clipping
from outlierlens.vectors.read import Budget, ReadOptions, text_stack
from outlierlens.vectors.spans import Drawing

CLIP_TEXTS = 1000  # the last sentences of SST-2: clipped dimensions come from them, and no part measures them
GEOMETRY_TEXTS = 20_000  # sentences that words are looked for in
CONTEXTS = 10  # of a word; in full 20
LONG_TEXTS = 400  # of IMDB, to train on and to test; in full all


@dataclass(frozen=True)
class LuoJob(LuoOptions):
    """What is replicated, on what: names of data sets in `data`, everything kept in `directory`."""

    model: str
    data: LuoData
    directory: Path
    overwrite: bool = False
    command: str = ""
    say: Callable[[str], None] = field(default=lambda _: None, compare=False)
    progress: Progress | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self.parts, PARTS)


def replicate_luo(job: LuoJob, load_options: LoadOptions | None = None) -> ReportData:
    """Measure every part that is missing in the run directory, and return the whole.

    Raises:
        BadInput: a part was measured with other settings, data is missing, or what a part raises.
    """
    with alone_in(job.directory, "replication"):
        return _LuoRun(job, load_options or LoadOptions()).whole()


class _LuoRun:
    """One run: what the parts share is made once."""

    def __init__(self, job: LuoJob, options: LoadOptions):
        self.job = job
        self.loaded = load_model(job.model, options)
        self.fingerprint = fingerprint(self.loaded.model)
        self.stack = text_stack(self.loaded, job.stack)
        self.parts = KeptParts(job.directory, overwrite=job.overwrite)
        self.notes: list[str] = []

    def whole(self) -> ReportData:
        """Every part, and the weights' scan beside them."""
        job = self.job
        found: dict[str, Any] = {}
        for name, part in PARTS.items():
            if name not in job.parts:
                continue
            if missing := [one for one in part.needs if not job.data.has(one)]:
                self.notes.append(f"{part.title}: left out, for {job.data.root} has no folder {', '.join(missing)}")
                continue
            if name == "sts" and (lacking := job.data.lacking_pairs()):
                self.notes.append(
                    f"{part.title}: without {', '.join(lacking)}, for {job.data.root} has no folder of it"
                )
            found[name] = self.kept(name, functools.partial(self.measure, part))
        checkpoint = checkpoint_of(job.model, self.loaded.config)
        together = LuoReplication(
            provenance=self.provenance(),
            checkpoint=checkpoint or "",
            clipping=self.clipping["source"],
            clipped={layer: tuple(dims) for layer, dims in self.clipping["dims"].items()},
            extremes=extremes(self.seen, shares_for(checkpoint)),
            frozen=tuple(found.pop(name) for name in tuple(found) if name.startswith("frozen")),
            published=published_for(checkpoint),
            seconds=self.parts.seconds,
            full=job.full,
            notes=(*self.loaded.notes, *self.notes),
            **found,
        )
        scanned = scan_live(self.loaded, ScanOptions())
        return ReportData(self.provenance(), scanned, self.observation, luo=together)

    def provenance(self) -> Provenance:
        return self.loaded.provenance(command=self.job.command, seed=self.job.seed, digest=self.fingerprint)

    def measure(self, part: "Part") -> Any:
        """The part's result, measured now."""
        job = self.job
        job.say(f"{part.title} …")
        return part.measure(Context(self.loaded, job, self.sentences, self.clip_path, self.stack.name))

    @functools.cached_property
    def every_sentence(self) -> Texts:
        """SST-2's training sentences."""
        return self.job.data.sentences()

    @functools.cached_property
    def sentences(self) -> Texts:
        """SST-2's training sentences but for those that the clipped dimensions come from, which it has some of twice."""
        every = self.every_sentence
        kept = every.texts[:-CLIP_TEXTS] if len(every) > 2 * CLIP_TEXTS else every.texts[::2]
        watched = {plain_text(text) for text in self.held_out.texts}
        return replace(every, texts=tuple(text for text in kept if plain_text(text) not in watched))

    @functools.cached_property
    def held_out(self) -> Texts:
        """Sentences of SST-2 that no other part measures."""
        every = self.every_sentence
        return replace(every, texts=every.texts[-CLIP_TEXTS:] if len(every) > 2 * CLIP_TEXTS else every.texts[1::2])

    @functools.cached_property
    def observation(self) -> Observation:
        """Average vectors and argmin / argmax shares, on the sentences held out; with `full` on all."""
        return self.observed("observation", self.every_sentence if self.job.full else self.held_out)

    @property
    def seen(self) -> StackObservation:
        """What was observed of the stream that is measured."""
        return next(one for one in self.observation.stacks if one.stack == self.stack.name)

    def observed(self, name: str, texts: Texts) -> Observation:
        """What `observe` sees on `texts`, kept as `name`."""
        options = ObserveOptions(batch_size=self.job.batch_size, progress=self.job.progress)
        found = self.kept(name, lambda: observe(self.loaded, texts, options, self.job.command))
        assert isinstance(found, Observation)
        return found

    @functools.cached_property
    def clipping(self) -> dict[str, Any]:
        """{"name", "source", "dims": {layer: dimensions}}, the same for all parts."""
        asked = resolve_clipping(self.job.clip, self.loaded, fit_texts=self.held_out, stack=self.stack.name)
        found = {"name": asked.name, "source": asked.source, "dims": {k: list(v) for k, v in asked.dims.items()}}
        if self.job.clip == "auto" and not asked.dims:
            dims, said = self.most_extreme()
            everywhere = {str(layer): dims for layer in range(self.stack.n_layers)}
            found = {"name": "most extreme", "source": f"{said}: a fallback, for {asked.source}", "dims": everywhere}
        write_text(self.clip_path, json.dumps(found, indent=2) + "\n")
        return found

    @property
    def clip_path(self) -> Path:
        return self.job.directory / "clipping.json"

    def most_extreme(self) -> tuple[list[int], str]:
        """The dimension most often smallest and the one most often largest over all blocks, and what they are.

        Of the sentences held out, also with `full`: what is clipped never comes from a text that is measured.
        """
        seen = self.observed("observation-held-out", self.held_out) if self.job.full else self.observation
        (mine,) = (one for one in seen.stacks if one.stack == self.stack.name)
        view = mine.view("without_special")
        blocks = [row for row, layer in enumerate(mine.layers) if layer != "embeddings"]
        ends = [np.asarray(share)[blocks].mean(0) for share in (view.argmin_share, view.argmax_share)]
        places = [int(end.argmax()) for end in ends]
        if not all(end.any() for end in ends):
            raise BadInput(
                "no dimension alone is the smallest or largest entry of any token vector: there is none to clip"
            )
        low, high = (mine.dims[place] for place in places)
        said = (
            f"{low} is the smallest entry of {ends[0][places[0]]:.0%} of token vectors, {high} the largest of "
            f"{ends[1][places[1]]:.0%} (no other of as many)"
        )
        return sorted({low, high}), said

    def kept(self, name: str, measure: Callable[[], Any]) -> Any:
        """The part's result as it lies in the run directory, measured first where it is missing."""
        return self.parts(name, self.key(name), measure)

    def key(self, name: str) -> str:
        """SHA-256 over what a part's numbers depend on."""
        job = self.job
        clip = "" if name.startswith("observation") else json.dumps(self.clipping["dims"], sort_keys=True)
        files = job.data.contents(PARTS[name].needs if name in PARTS else ())
        return key_of(self.fingerprint, job.seed, job.full, self.stack.name, clip, files, self.held_out.digest)


@dataclass(frozen=True)
class Context:
    """What a part is measured with: the model, the job, sentences of SST-2, and the file of clipped dimensions."""

    loaded: LoadedModel
    job: "LuoJob"
    sentences: Texts
    clip: Path
    stack: str


@dataclass(frozen=True)
class Part:
    """One part: a title, data sets without which it is left out, and its measurement."""

    title: str
    needs: tuple[str, ...]
    measure: Callable[[Context], Any]


def _reading(at: Context, *, final_norm: bool = False) -> ReadOptions:
    return ReadOptions(
        batch_size=at.job.batch_size,
        stack=at.stack,
        final_norm=final_norm,
        budget=Budget(at.job.cache_gb),
        progress=at.job.progress,
    )


def _origin(at: Context) -> Any:
    clipped = resolve_clipping(str(at.clip), at.loaded, stack=at.stack).every
    scanned = scan_stream(at.loaded, at.stack)
    dims = tuple(dict.fromkeys((*clipped, *(one.dim for one in scanned.outliers))))[:MAX_NAMED]
    options = OriginOptions(
        dims={at.stack: dims}, named_by="those that are clipped, and those that the scan's rule finds"
    )
    return origin_live(at.loaded, options, command=at.job.command)


def _probe(at: Context) -> Any:
    split = split_texts(at.sentences, at.job.data.sentences("validation"), seed=at.job.seed)
    options = ProbeOptions(read=_reading(at), whole=at.job.full, seed=at.job.seed)
    clipping = resolve_clipping(str(at.clip), at.loaded, stack=at.stack)
    return probe_positions(at.loaded, split, clipping, options, command=at.job.command)


def _geometry(at: Context) -> Any:
    n = len(at.sentences) // 2
    n = n if at.job.full else min(n, GEOMETRY_TEXTS)
    rest = Texts(f"{at.sentences.source} (behind sentence {n:,})", at.sentences.texts[n:], at.sentences.column)
    options = GeometryOptions(
        clip=str(at.clip),
        drawing=Drawing() if at.job.full else Drawing(max_contexts=CONTEXTS),
        read=_reading(at),
        seed=at.job.seed,
    )
    return geometry(at.loaded, at.sentences.first(n), options, fit=rest, command=at.job.command)


def _words(at: Context) -> Any:
    folder = at.job.data.folder("wic")
    train = read_wic(folder, "train", offline=at.job.data.offline)
    validation = read_wic(folder, "validation", offline=at.job.data.offline)
    options = WicOptions(read=_reading(at, final_norm=True), clip=str(at.clip), seed=at.job.seed)
    return wic(at.loaded, train, validation, options, fit=at.sentences, command=at.job.command)


def _sts(at: Context) -> Any:
    data, offline = at.job.data, at.job.data.offline
    root: Path | None = data.pairs_root()
    rows = tuple(TASKS.values()) if root is None else found_in(root)
    pairs = [read_sts(task, root, offline=offline) for task in rows]
    dev = [read_sts(task, root, split=DEV, offline=offline) for task in rows if has_split(task, root, DEV)]
    options = StsOptions(read=_reading(at, final_norm=True), clip=str(at.clip), seed=at.job.seed)
    fit = fit_text(rows, root, offline=offline) or at.sentences
    return sts(at.loaded, pairs, options, fit=fit, dev=dev, command=at.job.command)


def _frozen(task: str) -> Callable[[Context], Any]:
    def measure(at: Context) -> Any:
        data, row = at.job.data, find_task(task)
        protocol = protocol_of(row)
        limits = (protocol.limit, protocol.test_limit) if task != "imdb" else (LONG_TEXTS, LONG_TEXTS)
        limit, test_limit = (None, None) if at.job.full else limits
        splits = read_frozen(
            row, data.folder(task), limit=limit, test_limit=test_limit, seed=at.job.seed, offline=data.offline
        )
        options = FrozenOptions(read=_reading(at, final_norm=True), seed=at.job.seed)
        clipping = resolve_clipping(str(at.clip), at.loaded, stack=at.stack)
        return frozen(at.loaded, splits, options, clip=lambda _: clipping, command=at.job.command)

    return measure


PARTS = {
    "origin": Part("where the dimensions come from", (), _origin),
    "probe": Part("position probe", ("sst2",), _probe),
    "geometry": Part("anisotropy and self-similarity", ("sst2",), _geometry),
    "words": Part("words in context", ("wic",), _words),
    "sts": Part("semantic textual similarity", (PAIRS,), _sts),
    "frozen-sst2": Part("classifiers on frozen vectors: SST-2", ("sst2",), _frozen("sst2")),
    "frozen-sst5": Part("classifiers on frozen vectors: SST-5", ("sst5",), _frozen("sst5")),
    "frozen-imdb": Part("classifiers on frozen vectors: IMDB", ("imdb",), _frozen("imdb")),
}
