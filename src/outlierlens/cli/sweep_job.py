"""A sweep as a run directory: rows that only grow, and results, report and chart made from them.

    done = run(SweepJob(model="smollm2-135m", directory=Path("runs/smollm2-135m-sweep")), LoadOptions(), view)
    done.sweep.top(5)

    rows.jsonl       every finished unit of work, appended; what an interrupted run continues from
    sweep.json       the result of `sweep`
    results.json, report.html, charts/, manifest.json      the report of it, as `report` writes one

The same command on a finished directory measures nothing and makes the files again from the rows.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outlierlens import charts
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.job import ROWS, scan_of
from outlierlens.cli.labelled import Reading
from outlierlens.data import EXCERPT, Data
from outlierlens.errors import BadInput, need
from outlierlens.models import LoadedModel, LoadOptions, load_model
from outlierlens.report import ReportData, write
from outlierlens.report.files import CHARTS, OURS
from outlierlens.results import save
from outlierlens.rows import alone_in, remove_rows
from outlierlens.scanned import Scan
from outlierlens.spelling import plain_dims
from outlierlens.sweeps.options import SweepOptions
from outlierlens.swept import Sweep
from outlierlens.weights import scan_stream

if TYPE_CHECKING:
    from outlierlens.sweeps.engines import Engine
    from outlierlens.sweeps.loop import SweepProgress
    from outlierlens.sweeps.runner import Runner

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Machines:
    """Where the work is done: engine "local" (this process) or "ray"; `address` and what follows belong to Ray."""

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ("local", "ray"):
            raise BadInput(f"--engine is {self.engine!r}; use local or ray")
        given = (self.address, self.workers, self.cpus_per_worker, self.gpus_per_worker)
        if self.engine == "local" and any(value is not None for value in given):
            raise BadInput("--address, --workers, --cpus-per-worker and --gpus-per-worker belong to --engine ray")
        if self.engine == "ray" and importlib.util.find_spec("ray") is None:
            need(
                "ray", "ray", "--engine ray"
            )  # before the model is loaded; not imported yet, for it reads settings then

    def engine_for(self, texts: Data, load: LoadOptions) -> "Callable[[Runner], Engine] | None":
        """What `sweep` takes as its engine."""
        if self.engine == "local":
            return None
        from outlierlens.sweeps.ray_engine import on_ray

        cpus = 1.0 if self.cpus_per_worker is None else self.cpus_per_worker
        return on_ray(
            texts, load,
            address=self.address, workers=self.workers, cpus_per_worker=cpus, gpus_per_worker=self.gpus_per_worker,
        )  # fmt: skip


@dataclass(frozen=True)
class SweepJob:
    """What is swept. `dims` is "all", "found" (what the weights name), "none", or dimensions "507,100"."""

    model: str
    directory: Path
    reading: Reading = field(default_factory=lambda: Reading("auto", EXCERPT))
    dims: str = "all"
    options: SweepOptions = field(default_factory=SweepOptions)
    machines: Machines = Machines()
    chart: Path | None = None
    overwrite: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        chosen_dims(self.dims, ())
        check_chart(self.chart, replace=self.overwrite, remedy="remove it")
        ours = [name for name in (*OURS, SWEEP) if (self.directory / name).exists()]
        if ours and not self.rows.exists() and not self.overwrite:
            raise BadInput(
                f"{self.directory} holds {ours[0]} but no {ROWS} to continue from; name another directory with -o, or use "
                f"--overwrite"
            )

    @property
    def rows(self) -> Path:
        """The file of finished units."""
        return self.directory / ROWS


@dataclass(frozen=True)
class Done:
    """A finished sweep and what was written: the page, and every file."""

    sweep: Sweep
    page: Path
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def run(job: SweepJob, load: LoadOptions, progress: "Callable[[SweepProgress], None]") -> Done:
    """Sweep, then write the run directory.

    Raises:
        BadInput: rows of other work lie in the directory, or another process is writing to it.
    """
    from outlierlens.sweeps import loop

    texts = job.reading.read(offline=load.offline)
    with alone_in(job.directory, "sweep", CHARTS, ROWS):
        loaded = load_model(job.model, load)
        found = scan_of(job.model, loaded, load, job.command)
        options = replace(job.options, dims=chosen_dims(job.dims, _named(loaded, job)))
        if job.overwrite:
            remove_rows(job.rows)
        swept = loop.sweep(
            loaded, texts, options,
            command=job.command, progress=progress, rows=job.rows, engine=job.machines.engine_for(texts, load),
        )  # fmt: skip
        return _write(job, swept, found)


def _write(job: SweepJob, swept: Sweep, found: Scan) -> Done:
    save(swept, job.directory / SWEEP)
    data = ReportData(provenance=swept.provenance, scan=found, sweeps=(swept,))
    written = write(data, job.directory, overwrite=True, also=[job.rows, job.directory / SWEEP])
    files = (job.directory / SWEEP, *written.files)
    if job.chart:
        write_chart(job.chart, drawn(swept))
        files = (job.chart, *files)
    return Done(swept, written.page, files, written.notes)


def drawn(swept: Sweep) -> charts.Chart:
    """The sweep's main chart: change by dimension; the damage map of several windows; controls of sets."""
    if not swept.singles():
        return charts.sweep_nulls(swept)
    return charts.sweep_map(swept) if len(swept.windows_swept) > 1 else charts.sweep_effects(swept)


def chosen_dims(text: str, found: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions that `--dims` asks for; None is every dimension.

    Raises:
        BadInput: text that is neither a word nor dimensions.
    """
    words = {"all": None, "found": found, "none": ()}
    if text in words:
        return words[text]
    return plain_dims(text, remedy="name dimensions, and layers with --layers or --windows")


def _named(loaded: LoadedModel, job: SweepJob) -> tuple[int, ...]:
    """Dimensions that the weights as they were loaded name in the stream that is swept; none unless asked for."""
    if job.dims != "found":
        return ()
    return scan_stream(loaded, loaded.stack(job.options.stack).name).dims
