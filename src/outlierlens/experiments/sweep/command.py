"""`sweep` as a run directory: rows that only grow, and results, report and chart made from them.

    rows.jsonl       every finished unit of work, appended; what an interrupted run continues from
    sweep.json       the result of `sweep`
    results.json, report.html, charts/, manifest.json      the report of it, as `report` writes one

The same command on a finished directory measures nothing and makes the files again from the rows. While it runs, `SweepView`
says on stderr how far it is, how fast, how long still, and the leader board so far:

    with SweepView(show=True) as view:
        sweep(loaded, texts, options, progress=view)
    view.texts                                # texts evaluated by this run: 0 where the rows held everything

On a terminal the lines are drawn over each other; elsewhere (a batch system's log) there is a line for every new phase and
one each half minute.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from outlierlens.cli import common
from outlierlens.cli.common import check_chart, resumable, say
from outlierlens.cli.experiment import tell
from outlierlens.detection.scan.measure import scan_stream
from outlierlens.errors import BadInput, command
from outlierlens.experiments.sweep.options import Machines, SweepCall, SweepOptions
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.options import FIND
from outlierlens.report import ReportData, write
from outlierlens.report.files import CHARTS, OURS, Written
from outlierlens.report.job import ROWS, scan_of
from outlierlens.results.document import save
from outlierlens.results.row_store import alone_in, remove_rows
from outlierlens.results.safe_files import write_bytes
from outlierlens.session import Session
from outlierlens.view import charts
from outlierlens.view.section import duration

if TYPE_CHECKING:
    from outlierlens.data.texts import Data
    from outlierlens.experiments.sweep.engines import Engine
    from outlierlens.experiments.sweep.measure import SweepProgress
    from outlierlens.experiments.sweep.runner import Runner
    from outlierlens.models.load import LoadOptions

SWEEP = "sweep.json"
SECONDS_BETWEEN_LINES = 30.0


def run(session: Session, call: SweepCall) -> None:
    """Sweep, write the run directory, and say what was found.

    Raises:
        BadInput: rows of other work lie in the directory, or another process is writing to it.
    """
    output = session.output
    options = call.options(session.task_reading)
    check_chart(output.chart, replace=output.overwrite, remedy="remove it")
    directory = session.folder("sweep")
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
        say(f"draw again: {command('report', directory / 'results.json')}")


def _swept(
    session: Session, call: SweepCall, options: SweepOptions, directory: Path, view: "SweepView"
) -> tuple[Sweep, Written]:
    """The sweep, and what was written of it."""
    from outlierlens.experiments.sweep import measure as loop

    output, rows = session.output, directory / ROWS
    texts = session.task_reading.read(offline=session.loading.offline)
    with alone_in(directory, "sweep", CHARTS, ROWS):
        loaded = session.loaded
        found = scan_of(session.subject.model, loaded, session.load, session.command)
        # Dimensions that the weights as they were loaded name in the stream that is swept.
        stack = loaded.axis(options.stack)
        named = scan_stream(loaded, stack.name).dims if call.dims == FIND and not stack.reads else ()
        if output.overwrite:
            remove_rows(rows)
        swept = loop.sweep(
            loaded, texts, replace(options, dims=call.chosen(named)),
            command=session.command, progress=view, rows=rows, engine=_engine(call.machines, texts, session.load),
        )  # fmt: skip
        save(swept, directory / SWEEP)
        data = ReportData(provenance=swept.provenance, scan=found, sweeps=(swept,))
        written = write(data, directory, overwrite=True, also=[rows, directory / SWEEP])
        if output.chart:  # last: the same command goes on where it was killed, unless its chart is there
            write_bytes(output.chart, common.drawn(output.chart, drawn(swept)))
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


class SweepView:
    """Receives each `SweepProgress` and shows it; with `show` off it only remembers the texts evaluated."""

    def __init__(self, show: bool) -> None:
        self.show = show
        self.texts = 0
        self._live: Any = None
        self._phases: set[str] = set()
        self._said = -float("inf")

    def __call__(self, state: "SweepProgress") -> None:
        """Show `state`, or remember it until there is something new to say."""
        self.texts = state.texts
        if not self.show:
            return
        if sys.stderr.isatty():
            self._draw(state)
        elif state.phase not in self._phases or time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._phases.add(state.phase)
            self._said = time.monotonic()
            so_far = "; so far " + ", ".join(board(state)) if state.leaders else ""
            print(headline(state) + so_far, file=sys.stderr, flush=True)

    def _draw(self, state: "SweepProgress") -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        drawn = Table.grid()
        drawn.add_row(Text(headline(state), no_wrap=True))
        drawn.add_row(ProgressBar(total=max(1, state.total), completed=state.done, width=60))
        for line in board(state):
            drawn.add_row(Text(f"  {line}", no_wrap=True))
        self._live.update(drawn, refresh=True)

    def close(self) -> None:
        """Take the lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> "SweepView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def headline(state: "SweepProgress") -> str:
    """How far, how fast and how long still, in words."""
    pieces = f"{state.measured:,} of {state.asked:,}, " if state.asked > 1 else ""
    parts = [f"{state.phase}: {pieces}{state.done:,} of {state.total:,} settled"]
    if state.texts:
        speed = state.texts_per_second
        parts.append(f"{speed:,.0f} texts/s" if speed >= 100 else f"{speed:.3g} texts/s")
    if state.seconds_left is not None:
        parts.append(f"{duration(state.seconds_left)} left")
    return ", ".join(parts)


def board(state: "SweepProgress") -> list[str]:
    """The leader board so far, strongest first: "507: +8.4 ± 0.4"."""
    return [f"{label}: {change:+.4g} ± {half:.2g}" for label, change, half in state.leaders]
