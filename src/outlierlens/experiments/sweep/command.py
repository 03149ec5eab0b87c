"""`sweep` as a run directory: rows that only grow, and results, report and chart made from them.

    rows.jsonl       every finished unit of work, appended; what an interrupted run continues from
    sweep.json       the result of `sweep`
    results.json, report.html, charts/, manifest.json      the report of it, as `report` writes one

The same command on a finished directory measures nothing and makes the files again from the rows.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import resumable, say
from outlierlens.cli.experiment import tell
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.options import Machines, SweepCall, SweepOptions
from outlierlens.experiments.sweep.progress import SweepView
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.report import ReportData, write
from outlierlens.report.files import CHARTS, OURS, Written
from outlierlens.report.job import ROWS, scan_of
from outlierlens.results.document import save
from outlierlens.results.row_store import alone_in, remove_rows
from outlierlens.session import Session
from outlierlens.view import charts

if TYPE_CHECKING:
    from outlierlens.data.texts import Data
    from outlierlens.experiments.sweep.engines import Engine
    from outlierlens.experiments.sweep.runner import Runner
    from outlierlens.models.load import LoadOptions

SWEEP = "sweep.json"


def run(session: Session, call: SweepCall) -> None:
    """Sweep, write the run directory, and say what was found.

    Raises:
        BadInput: rows of other work lie in the directory, or another process is writing to it.
    """
    output = session.output
    options = call.options(session.task_reading)
    check_chart(output.chart, replace=output.overwrite, remedy="remove it")
    directory = output.output or Path("runs") / f"{Path(session.subject.model).name}-sweep"
    rows = directory / ROWS
    ours = [name for name in (*OURS, SWEEP) if (directory / name).exists()]
    if ours and not rows.exists() and not output.overwrite:
        raise BadInput(
            f"{directory} holds {ours[0]} but no {ROWS} to continue from; name another directory with -o, or use "
            f"--overwrite"
        )
    with resumable(rows), SweepView(output.tells_progress) as view:
        swept, written = _swept(session, call, options, directory, view)
    if not view.texts and not output.quiet:
        common.warn(f"{directory} was finished: nothing was measured, all was made again from {ROWS}")
    tell(session, swept, mark=call.mark)
    if output.for_people:
        for note in written.notes:
            say(f"note: {note}")
        if output.chart:
            say(f"chart: {output.chart}")
        say(f"rows: {rows}; result: {directory / SWEEP}; report: {written.page}")
        say(f"draw again: {common.command('report', directory / 'results.json')}")


def _swept(
    session: Session, call: SweepCall, options: SweepOptions, directory: Path, view: SweepView
) -> tuple[Sweep, Written]:
    """The sweep, and what was written of it."""
    from outlierlens.experiments.sweep import measure as loop

    output, rows = session.output, directory / ROWS
    texts = session.task_reading.read(offline=session.loading.offline)
    with alone_in(directory, "sweep", CHARTS, ROWS):
        loaded = session.loaded
        found = scan_of(session.subject.model, loaded, session.load, session.command)
        # Dimensions that the weights as they were loaded name in the stream that is swept.
        named = scan_stream(loaded, loaded.stack(options.stack).name).dims if call.dims == "found" else ()
        if output.overwrite:
            remove_rows(rows)
        swept = loop.sweep(
            loaded, texts, replace(options, dims=call.chosen(named)),
            command=session.command, progress=view, rows=rows, engine=_engine(call.machines, texts, session.load),
        )  # fmt: skip
        save(swept, directory / SWEEP)
        data = ReportData(provenance=swept.provenance, scan=found, sweeps=(swept,))
        written = write(data, directory, overwrite=True, also=[rows, directory / SWEEP])
        if output.chart:
            write_chart(output.chart, drawn(swept))
        return swept, written


def _engine(machines: Machines, texts: "Data", load: "LoadOptions") -> "Callable[[Runner], Engine] | None":
    """What `loop.sweep` takes as its engine."""
    if machines.engine == "local":
        return None
    from outlierlens.experiments.sweep.ray_engine import on_ray

    cpus = 1.0 if machines.cpus_per_worker is None else machines.cpus_per_worker
    return on_ray(
        texts, load,
        address=machines.address, workers=machines.workers, cpus_per_worker=cpus,
        gpus_per_worker=machines.gpus_per_worker,
    )  # fmt: skip


def drawn(swept: Sweep) -> charts.Chart:
    """The sweep's main chart: change by dimension; the damage map of several windows; controls of sets."""
    if not swept.singles():
        return charts.sweep_nulls(swept)
    return charts.sweep_map(swept) if len(swept.windows_swept) > 1 else charts.sweep_effects(swept)
