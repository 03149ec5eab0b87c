"""The parts of Luo et al. (2021), as data: what each needs, and how it is measured at the usual size and in full.

PARTS["sts"].measure(context)              # -> similar.Similarity
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.data.labelled import find_task
from outlierlens.data.texts import Texts
from outlierlens.detection.scan.measure import scan_stream
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
from outlierlens.models.load import LoadedModel
from outlierlens.replicate.luo.data import PAIRS
from outlierlens.vectors.clip import resolve_clipping
from outlierlens.vectors.read import ReadOptions
from outlierlens.vectors.spans import Drawing
from outlierlens.vectors.store import Budget

if TYPE_CHECKING:
    from outlierlens.replicate.luo.measure import LuoJob

GEOMETRY_TEXTS = 20_000  # sentences that words are looked for in
CONTEXTS = 10  # of a word; in full 20
LONG_TEXTS = 400  # of IMDB, to train on and to test; in full all


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
