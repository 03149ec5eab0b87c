"""Puccetti et al. (2022) whole, for any model that reads text: every part measured once, kept, and put together.

    made = replicate_puccetti(PuccettiJob("mini-bert", "texts.parquet", Path("runs/puccetti"), counts="counts.parquet"))
    made.puccetti.story.line("109")

The run directory holds

    parts/NAME.json      each part's result as soon as it is measured, and NAME.key, the settings that it was measured with
    layers.rows.jsonl    finished units of the sweep over single layers
    counts.parquet       token counts, where none were given
    results.json, report.html, charts/, manifest.json      the whole

A stopped run goes on with the first part that is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlierlens.data.texts import Texts, read_texts
from outlierlens.data.token_counts import TokenCounts, read_counts, write_counts
from outlierlens.detection.rules import Rule
from outlierlens.detection.scan.measure import ScanOptions, scan_live
from outlierlens.experiments.count.measure import count_texts
from outlierlens.experiments.layer_story.result import FEWEST, layer_story
from outlierlens.models.load import LoadedModel, LoadOptions, fingerprint, load_model
from outlierlens.replicate.glue.references import checkpoint_of
from outlierlens.replicate.kept import KeptParts, check_parts, key_of
from outlierlens.replicate.outliers import STRONGEST, name_outliers
from outlierlens.replicate.puccetti.options import PuccettiOptions
from outlierlens.replicate.puccetti.parts import PARTS, Context
from outlierlens.replicate.puccetti.result import PUBLISHED, PuccettiReplication
from outlierlens.report.result import ReportData
from outlierlens.results.row_store import alone_in
from outlierlens.vectors.read import text_stack

COUNTS = "counts.parquet"
Progress = Callable[[str, int, int], None]


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
            model, job.seed, stack.name, named.dims, some.digest, counts.frequency(special=True).tobytes(), job.tagger
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
