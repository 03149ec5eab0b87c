"""Puccetti et al. (2022) whole, for any model that reads text: every part measured once, kept, and put together.

    made = replicate_puccetti(PuccettiJob("mini-bert", "texts.parquet", Path("runs/puccetti"), counts="counts.parquet"))
    made.puccetti.story.line("109")

The run directory holds

    parts/NAME.json      each part's result as soon as it is measured, and NAME.key, the settings that it was measured with
    layers.rows.jsonl    finished units of the sweep over single layers
    counts.parquet       token counts, where none were given
    results.json, report.html, charts/, manifest.json      the whole

A stopped run goes on with the first part that is missing. `PARTS` says as data what each part needs, and how it is
measured at the usual size and in full.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlierlens.ablation.modes import mode_by_layer
from outlierlens.analyses.predictions import PredictionOptions, predictions
from outlierlens.data.texts import Texts, read_texts
from outlierlens.data.token_counts import TokenCounts, read_counts, write_counts
from outlierlens.detection.rules import Rule
from outlierlens.detection.scan.measure import ScanOptions, scan_live
from outlierlens.experiments.attention.measure import attention
from outlierlens.experiments.attention.options import AttentionOptions
from outlierlens.experiments.count.measure import count_texts
from outlierlens.experiments.frequency.measure import frequency
from outlierlens.experiments.frequency.options import FrequencyOptions
from outlierlens.experiments.frequency_geometry.measure import frequency_geometry
from outlierlens.experiments.frequency_geometry.options import FrequencyGeometryOptions
from outlierlens.experiments.layer_story.result import FEWEST, layer_story
from outlierlens.experiments.sweep.options import SweepOptions
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, load_model
from outlierlens.models.passes import Progress
from outlierlens.replicate.kept import KeptParts, check_parts, key_of
from outlierlens.replicate.outliers import STRONGEST, name_outliers
from outlierlens.replicate.papers import checkpoint_of
from outlierlens.replicate.puccetti.options import PuccettiOptions
from outlierlens.replicate.puccetti.result import PUBLISHED, PuccettiReplication
from outlierlens.report.result import ReportData
from outlierlens.results.row_store import alone_in
from outlierlens.tasks.base import TaskOptions
from outlierlens.vectors.read import ReadOptions, text_stack

COUNTS = "counts.parquet"
MAX_LENGTH = 128  # tokens of a text, as in the paper
ROWS = "layers.rows.jsonl"


@dataclass(frozen=True)
class PuccettiJob(PuccettiOptions):
    """What is replicated, on what: texts of `data`, a file or hub id, in `column`, at most `limit`; kept in `directory`.

    `dims` are () for what the rule names (the two strongest where it names none), "strongest", or dimensions.
    """

    model: str
    data: str
    directory: Path
    column: str | None = None
    limit: int | None = None
    overwrite: bool = False
    command: str = ""
    say: Callable[[str], None] = field(default=lambda _: None, compare=False)
    progress: Progress | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self.parts, PARTS)


def replicate_puccetti(job: PuccettiJob, load_options: LoadOptions | None = None) -> ReportData:
    """Measure every part that is missing in the run directory, and return the whole.

    Raises:
        BadInput: a part was measured with other settings, there is no text, or what a part raises.
    """
    options = load_options or LoadOptions()
    with alone_in(job.directory, "replication"):
        if "attention" in job.parts:
            options = replace(options, attention="eager")  # others compute no attention weights
        loaded = load_model(job.model, options)
        texts = read_texts(job.data, column=job.column, limit=job.limit, offline=options.offline)
        return _whole(job, loaded, texts)


def _whole(job: PuccettiJob, loaded: LoadedModel, texts: Texts) -> ReportData:
    """Every part, and the weights' scan beside them."""
    notes: list[str] = []
    stack = text_stack(loaded, job.stack)
    model = fingerprint(loaded.model)
    scanned = scan_live(loaded, ScanOptions())
    mine = next(one for one in scanned.stacks if one.stack == stack.name)
    named = name_outliers(mine, Rule(), job.dims, where=loaded.name)
    if not named.dims:
        named = name_outliers(mine, Rule(), STRONGEST, where=loaded.name)
    notes += named.notes
    counts = _counts(job, loaded, texts, notes)
    at = Context(loaded, job, texts, counts, stack.name, named.dims)
    kept = KeptParts(job.directory, overwrite=job.overwrite)
    found: dict[str, Any] = {}
    for name in (name for name in PARTS if name in job.parts):
        part = PARTS[name]
        if part.needs_head and loaded.head not in ("masked", "causal"):
            notes.append(f"{part.title}: left out, for {loaded.name} has no head that predicts words")
            continue
        some = at.some(part.n_texts)
        settings = key_of(
            model, job.seed, stack.name, named.dims, some.digest, counts.frequency(special=True).tobytes()
        )
        job.say(f"{part.title} …")
        found[name] = kept(name, settings, lambda part=part, some=some: part.measure(at, some))  # type: ignore[misc]
        if len(some) < len(texts):
            notes.append(f"{part.title}: the first {len(some):,} of {len(texts):,} texts")
    swept = found.pop("layers", None)
    provenance = loaded.provenance(command=job.command, seed=job.seed, digest=model)
    frequent, attended = found.get("frequency"), found.get("attention")
    story = None
    if swept is not None and (frequent or attended) and stack.n_layers >= FEWEST:
        story = layer_story(swept, frequency=frequent, attention=attended, seed=job.seed, command=job.command)
    elif swept is not None:
        notes.append(f"no rank correlation over layers: that needs {FEWEST} layers, and frequency or attention")
    checkpoint = checkpoint_of(job.model, loaded.config) or ""
    if checkpoint in PUBLISHED:
        notes.append(PUBLISHED[checkpoint])
    together = PuccettiReplication(
        provenance=provenance,
        checkpoint=checkpoint,
        dims=named.dims,
        named_by=named.by,
        counts=counts.source,
        story=story,
        seconds=kept.seconds,
        full=job.full,
        notes=tuple(dict.fromkeys((*loaded.notes, *notes))),
        **found,
    )
    return ReportData(provenance, scanned, sweeps=() if swept is None else (swept,), puccetti=together)


def _counts(job: PuccettiJob, loaded: LoadedModel, texts: Texts, notes: list[str]) -> TokenCounts:
    """Those that are given, or of the texts themselves."""
    if job.counts is not None:
        return read_counts(job.counts, loaded.tokenizer)
    path = job.directory / COUNTS
    if path.is_file() and not job.overwrite:
        counts = read_counts(path, loaded.tokenizer)
    else:
        counts = count_texts(loaded.tokenizer, texts.texts, source=texts.source)
        write_counts(counts, path)
    notes.append(
        f"token frequencies are those of the measured texts ({counts.n_tokens:,} tokens): give --counts of a corpus"
    )
    return counts


@dataclass(frozen=True)
class Context:
    """What a part is measured with: the model, the job, texts, counts, and the outliers."""

    loaded: LoadedModel
    job: "PuccettiJob"
    texts: Texts
    counts: TokenCounts
    stack: str
    dims: tuple[int, ...]

    def some(self, n: int) -> Texts:
        """The first `n` texts, or all in full."""
        return self.texts if self.job.full else self.texts.first(n)


@dataclass(frozen=True)
class Part:
    """One part: a title, texts it reads unless in full, whether it needs a head for words, and its measurement."""

    title: str
    n_texts: int
    needs_head: bool
    measure: Callable[[Context, Texts], Any]


def _reading(at: Context) -> ReadOptions:
    return ReadOptions(batch_size=at.job.batch_size, stack=at.stack, progress=at.job.progress)


def _frequency(at: Context, texts: Texts) -> Any:
    options = FrequencyOptions(read=_reading(at), max_length=MAX_LENGTH, dims=at.dims, seed=at.job.seed)
    return frequency(at.loaded, texts, at.counts, options, command=at.job.command)


def _attention(at: Context, texts: Texts) -> Any:
    options = AttentionOptions(
        dims=at.dims, stack=at.stack, max_length=MAX_LENGTH, batch_size=at.job.batch_size, seed=at.job.seed
    )  # fmt: skip
    return attention(at.loaded, texts, options, command=at.job.command, progress=at.job.progress)


def _layers(at: Context, texts: Texts) -> Any:
    """Every outlier, and all together, off in each layer alone."""
    from outlierlens.experiments.sweep.measure import sweep

    options = SweepOptions(
        dims=at.dims,
        sets=(at.dims,) if len(at.dims) > 1 else (),
        with_found=False,
        windows="single",
        mode=mode_by_layer(at.loaded.stack(at.stack)),
        stack=at.stack,
        n_random=0,
        n_matched=0,
        gradients=0,
        seed=at.job.seed,
        task=TaskOptions(max_length=MAX_LENGTH),
    )
    return sweep(at.loaded, texts, options, command=at.job.command, rows=at.job.directory / ROWS)


def _bands(at: Context, texts: Texts) -> Any:
    options = FrequencyGeometryOptions(read=_reading(at), max_length=MAX_LENGTH, dims=at.dims, seed=at.job.seed)
    return frequency_geometry(at.loaded, texts, at.counts, options, command=at.job.command)


def _predictions(at: Context, texts: Texts) -> Any:
    job = at.job
    options = PredictionOptions(
        stack=at.stack,
        n_random=19 if job.full else 5,
        task=TaskOptions(max_length=MAX_LENGTH),
        seed=job.seed,
    )
    return predictions(at.loaded, texts, at.counts, at.dims, options, progress=job.progress)


PARTS = {
    "frequency": Part("correlation with token frequency", 1000, False, _frequency),
    "attention": Part("vertical attention", 200, False, _attention),
    "layers": Part("damage of single layers", 64, False, _layers),
    "bands": Part("frequent and rare tokens in space", 1000, False, _bands),
    "predictions": Part("what the model says without them", 64, True, _predictions),
}
