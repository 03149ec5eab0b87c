"""The main job: scan, observe, ablate beside controls, and one report. Every condition is on disk when it is measured.

    page = run(Job(ReportOptions(model="smollm2-135m"), Path("runs/smollm2-135m")), LoadOptions(), progress)

An interrupted run continues: the conditions already measured are read back from `rows.jsonl`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlierlens.ablation.controls import TEXTS
from outlierlens.analyses.ablate import AblateOptions, Ablation, ablate
from outlierlens.analyses.observe import Observation, observe
from outlierlens.analyses.scan import Scan, scan, scan_live
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.track import Track, TrackOptions, track
from outlierlens.checkpoints.samples import recorded_norms, texts_for
from outlierlens.data.texts import EXCERPT, Texts, read_texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput, OutlierlensError, showing
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.options import FIND
from outlierlens.replicate.luo import LuoReplication
from outlierlens.replicate.puccetti import PuccettiReplication
from outlierlens.report.files import CHARTS, write
from outlierlens.report.options import ReportOptions
from outlierlens.report.result import OF_SEVERAL, ReportData, check_joins
from outlierlens.results.document import load, refuse_other_model, to_json
from outlierlens.results.row_store import remove_rows
from outlierlens.results.safe_files import refuse_links
from outlierlens.tasks.base import Reading, TaskOptions
from outlierlens.tasks.choice import forecast, make_task

ROWS = "rows.jsonl"


@dataclass(frozen=True)
class Job:
    """What the main job runs on, where to and as which command; `reading.data` "" is what suits the model."""

    options: ReportOptions
    directory: Path
    reading: Reading = Reading(data="", limit=TEXTS)
    overwrite: bool = False
    command: str = ""

    @property
    def model(self) -> str:
        """The model that it is of."""
        return self.options.model


def suited(*models: str) -> str:
    """The shipped texts that resemble what these models learned from: those of packaged samples, else the excerpt."""
    found = {texts_for(model) for model in models}
    return found.pop() if len(found) == 1 else EXCERPT


def report(
    model: "str | LoadedModel", texts: Texts | None = None, options: ReportOptions | None = None, *,
    folder: Path | str | None = None, overwrite: bool = False, progress: Progress | None = None,
) -> ReportData:  # fmt: skip
    """Scan, observe, ablate against controls, and write `report.html` with its charts and numbers to `folder`.

    `model` is a sample, directory, file or hub id, or a loaded model; `texts` are by default 16 that suit it; `folder` is by
    default runs/MODEL. An interrupted run goes on in its folder.

    Raises:
        BadInput: the folder holds a finished report and `overwrite` is off; or something is asked for that only the command
            makes.
    """
    options, live = options or ReportOptions(), None if isinstance(model, str) else model
    if options.compare or options.card:
        raise BadInput("a page of two models and a card are made by the command, `outlierlens report`")
    name = live.name if live else str(model)
    place = Path(folder or Path("runs") / Path(name).name)
    job = Job(replace(options, model=name), place, Reading(data="", limit=TEXTS), overwrite=overwrite)
    found: ReportData = load(
        run(job, LoadOptions(), progress or (lambda *_: None), live, texts).with_name("results.json")
    )
    return found


def run(
    job: Job, load: LoadOptions, progress: Progress, live: LoadedModel | None = None, texts: Texts | None = None
) -> Path:
    """Run the whole job and return the path of `report.html`; of a `live` model and `texts`, where they are given.

    Raises:
        BadInput: the directory holds a finished report and `overwrite` is off.
    """
    refuse_finished(job)
    results = read_results(job.options)
    texts = texts or read_texts(
        job.reading.data or suited(job.model),
        column=job.reading.text_column,
        limit=job.reading.limit,
        offline=load.offline,
    )
    progress("loading the model", 0, 1)
    loaded = live or load_model(job.model, load)
    found = scan_live(live) if live else scan_of(job.model, loaded, load, job.command)
    check_streams(results, found)
    if job.overwrite or not any(job.directory.glob("rows*.jsonl")):  # else a part of it is done
        n_times = 1 + len(loaded.stacks) * (
            2 + sum(job.options.n_sets)
        )  # observed, and each stream intact, off, beside sets
        said = forecast(make_task(loaded, texts, task_options(job.options)), n_times, rows=job.directory / ROWS)
        load.notice(f"{job.model}: {said}")
    options = ObserveOptions(max_length=job.options.max_length, batch_size=job.options.batch_size, progress=progress)
    observed = observe(loaded, texts, options, command=job.command)
    damages, notes = _ablated(job, loaded, texts, (found, observed), progress)
    tracks = _tracked(job)
    progress("writing the report", 0, 1)
    made = loaded.provenance(command=job.command, seed=job.options.seed, digest=found.provenance.fingerprint)
    data = ReportData(made, (found, observed, *damages, *tracks), notes)
    data = with_results(data, results)
    rows = sorted(job.directory.glob("rows*.jsonl"))
    section = job.options.card
    return write(data, job.directory, overwrite=True, also=rows, section=section, progress=progress).page


def _tracked(job: Job) -> tuple[Track, ...]:
    """How the outliers of a sample emerged, where its training was recorded."""
    if recorded_norms(job.model) is None:
        return ()
    found = track([job.model], TrackOptions(seed=job.options.seed))
    return (replace(found, provenance=replace(found.provenance, command=job.command)),)


def task_options(options: ReportOptions) -> TaskOptions:
    """How its texts become numbers."""
    return TaskOptions(max_length=options.max_length, batch_size=options.batch_size, seed=options.seed)


def scan_of(model: str, loaded: LoadedModel, load: LoadOptions, command: str) -> Scan:
    """Scan the stored weights; the loaded ones where the file cannot be read (a library is missing, say)."""
    options = ScanOptions(
        row=load.row, revision=load.revision, subfolder=load.subfolder, token=load.token, offline=load.offline,
        adapter=load.adapter,
    )  # fmt: skip
    try:
        return scan(model, options, command=command)
    except OutlierlensError as error:
        load.notice(f"note: scanning the loaded weights instead of the file ({error})")
        return scan_live(loaded, options, command=command)


def _ablated(
    job: Job, loaded: LoadedModel, texts: Texts, seen: tuple[Scan, Observation], progress: Progress
) -> tuple[tuple, tuple[str, ...]]:
    """One measurement per stream that has something to switch off."""
    found, observed = seen
    damages, notes = [], []
    rows_path = job.directory / ROWS
    if job.overwrite:
        for old in job.directory.glob("rows*.jsonl"):
            remove_rows(old)
    unread = [stack.name for stack in loaded.stacks if stack.name not in {s.stack for s in observed.stacks}]
    if unread:
        return (), (f"nothing was ablated: stream {', '.join(unread)} needs inputs that texts do not give",)
    unannounced = replace(loaded, notice=lambda _: None)  # its time is in that of the report
    for stack in loaded.stacks:
        scanned = next((s for s in found.stacks if s.stack == stack.name), None)
        weights = scanned.dims if scanned else ()
        one_sided = scanned.one_sided(found.rule) if scanned else ()
        activations = next((s.outliers for s in observed.stacks if s.stack == stack.name), ())
        by_activation = tuple(dict.fromkeys(outlier.dim for outlier in activations))
        given = job.options.dims != FIND
        dims: Any = job.options.dims if given else weights or by_activation[:2] or one_sided
        if not dims:
            notes.append(f"stream {stack.name}: no rule found a dimension, so nothing was ablated")
            continue
        if not given and not weights:
            shown = (
                "those that the activations show" if by_activation else "the outliers of scale alone or of bias alone"
            )
            notes.append(f"stream {stack.name}: weights show none; the ablation is of {shown}")
        options = AblateOptions(
            stack=stack.name,
            avoid=tuple(sorted({*weights, *by_activation, *one_sided})),
            n_random=job.options.n_random,
            n_matched=job.options.n_matched,
            seed=job.options.seed,
            task=task_options(job.options),
        )
        rows = rows_path if len(loaded.stacks) == 1 else rows_path.with_name(f"rows-{stack.name}.jsonl")
        done = ablate(unannounced, texts, dims, options, progress=progress, rows=rows)
        damages.append(replace(done, provenance=replace(done.provenance, command=job.command)))
    return tuple(damages), tuple(notes)


def refuse_finished(job: Job) -> None:
    """Raise BadInput where the job's directory holds a finished report and `overwrite` is off, or a link in its place."""
    refuse_links(job.directory, CHARTS, "rows*.jsonl", "[ab]")
    if is_finished(job.directory) and not job.overwrite:
        raise BadInput(f"{job.directory} holds a report already; name another directory with -o, or use --overwrite")


def is_finished(directory: Path) -> bool:
    """Whether a report was written there to its end: its manifest comes last. A page without results is somebody else's."""
    begun = any((directory / place / "results.json").exists() for place in (".", "a"))
    return (directory / "report.html").exists() and ((directory / "manifest.json").exists() or not begun)


def redraw(results: Path, directory: Path | None, options: ReportOptions) -> Path:
    """Make the page again from a `results.json`, into its own folder or `directory`; needs no torch.

    The results that `options` names join it, and its card is written.
    """
    data = load(results)
    if not isinstance(data, ReportData):
        raise BadInput(f"{results} holds a {type(data).__name__}; a report is made from the results.json of a report")
    data = with_results(data, read_results(options))
    folder = directory or results.parent
    refuse_links(folder, "rows*.jsonl")
    kept = sorted(folder.glob("rows*.jsonl"))
    with showing(data):
        return write(data, folder, overwrite=True, also=kept, section=options.card).page


def read_results(options: ReportOptions) -> dict[Path, Any]:
    """{file: its result} of what joins; raises BadInput for a file whose result has no place in a report."""
    results = {path: load(path) for path in options.results}
    for path, found in results.items():
        check_joins(found, str(path))
    return results


def with_results(data: ReportData, results: Mapping[Path, Any]) -> ReportData:
    """`data` and these results, each where it belongs and once.

    Raises:
        BadInput: of another model, of a stream that the report's model does not have, or a second replication of a paper.
    """
    for path, found in results.items():
        if type(found).__name__ not in OF_SEVERAL:
            refuse_other_model(str(path), found, data.measured, "a result joins the report of its own model")
        check_streams({path: found}, data.scan)
        if to_json(found) in map(to_json, data.findings):  # arrays do not compare as a whole
            continue
        if isinstance(found, LuoReplication | PuccettiReplication) and data.of(type(found)):
            raise BadInput(f"{path}: the report holds another {type(found).__name__} already")
        notes = tuple(dict.fromkeys((*data.notes, *_coarser(data, found))))
        data = replace(data, findings=(*data.findings, found), notes=notes)
    return data


def _coarser(data: ReportData, found: Any) -> Iterator[str]:
    """A note of a sweep that was measured on other values than the damages."""
    known = {damage.provenance.fingerprint for damage in data.damages}
    if isinstance(found, Sweep) and known and found.provenance.fingerprint not in known:
        model = found.provenance.model
        yield f"the sweep by {found.about.task} was measured on {model} in another precision than the rest of this report"


def check_streams(results: Mapping[Path, Any], found: Scan) -> None:
    """Raise BadInput for a damage, a track or a sweep of a stream that the scanned model does not have."""
    streams = {stack.stack: (stack.n_layers, stack.hidden_size) for stack in found.stacks}
    for path, one in results.items():
        if isinstance(one, Ablation | Track) and not getattr(one, "compares", False) and one.about.stack not in streams:
            raise BadInput(
                f"{path} is of stream {one.about.stack!r}; the report's model has {', '.join(sorted(streams))}"
            )
        if isinstance(one, Sweep) and streams.get(one.about.stack) != (one.n_layers, one.width):
            raise BadInput(
                f"{path} is of stream {one.about.stack!r}, {one.n_layers} layers × {one.width:,}, which "
                f"{found.provenance.model} does not have; give sweeps of the same model"
            )
