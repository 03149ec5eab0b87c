"""`track`: the result, and a report of it, go to a folder."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from outlierlens.cli.common import check_chart, drawn, say
from outlierlens.cli.experiment import tell
from outlierlens.errors import BadInput
from outlierlens.experiments.track.options import TrackCall
from outlierlens.results.document import to_json
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import alone, new_folder, write_bytes
from outlierlens.session import Session

TRACK = "track.json"


def run(session: Session, options: TrackCall) -> None:
    """Track the checkpoints, and write, draw and show what was found."""
    output, source = session.output, session.loading
    folder = output.output
    check_chart(output.chart, replace=output.overwrite)
    _check_folder(folder, output.overwrite)
    from outlierlens.experiments.track.measure import track_and_scan

    how = replace(
        options.how, row=source.row, subfolder=source.subfolder, token=source.token, offline=source.offline,
        progress=session.progress, notice=session.notice,
    )  # fmt: skip
    with ExitStack() as inside:
        if folder:
            inside.enter_context(alone(folder, what="track"))
            if folder.is_dir():
                inside.enter_context(alone_in(folder, "track", "charts"))
        found, scan = track_and_scan(options.checkpoints, how, command=session.command)
        if output.chart:
            from outlierlens.experiments.track.charts import emergence

            write_bytes(output.chart, drawn(output.chart, emergence(found)))
        if folder:
            from outlierlens.report import ReportData, write

            data = ReportData(provenance=found.provenance, scan=scan, tracks=(found,))
            place = folder if folder.is_dir() else inside.enter_context(new_folder(folder))
            write(data, place, overwrite=True, more={TRACK: to_json(found) + "\n"})
    tell(session, found)
    if output.for_people and folder:
        say(f"report: {folder / 'report.html'}")
    if output.for_people and output.chart:
        say(f"chart: {output.chart}")


def _check_folder(folder: Path | None, overwrite: bool) -> None:
    """Refuse before anything is read."""
    if folder and folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder with -o")
    there = [name for name in (TRACK, "results.json", "report.html") if folder and (folder / name).exists()]
    if there and not overwrite:
        raise BadInput(f"{folder} holds {there[0]} already; name another folder with -o, or use --overwrite")
