"""`track`: the result, and a report of it, go to a folder."""

from dataclasses import replace
from pathlib import Path

from outlierlens.cli.common import check_chart, say, write_chart
from outlierlens.cli.experiment import tell
from outlierlens.errors import BadInput
from outlierlens.experiments.track.options import TrackCall
from outlierlens.session import Session

TRACK = "track.json"


def run(session: Session, options: TrackCall) -> None:
    """Track the checkpoints, and write, draw and show what was found."""
    output, source = session.output, session.loading
    check_chart(output.chart, replace=output.overwrite)
    _check_folder(output.output, output.overwrite)
    from outlierlens.experiments.track.measure import track_and_scan

    how = replace(
        options.how, row=source.row, subfolder=source.subfolder, token=source.token, offline=source.offline,
        progress=session.progress, notice=session.notice,
    )  # fmt: skip
    found, scan = track_and_scan(options.checkpoints, how, command=session.command)
    written = []
    if output.output:
        from outlierlens.report import ReportData, write
        from outlierlens.results.document import save

        save(found, output.output / TRACK)
        data = ReportData(provenance=found.provenance, scan=scan, tracks=(found,))
        page = write(data, output.output, overwrite=True, also=[output.output / TRACK]).page
        written.append(f"report: {page}")
    if output.chart:
        from outlierlens.experiments.track.charts import emergence

        written.append(f"chart: {write_chart(output.chart, emergence(found))}")
    tell(session, found)
    if output.for_people:
        for line in written:
            say(line)


def _check_folder(folder: Path | None, overwrite: bool) -> None:
    """Refuse before anything is read."""
    if folder and folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder with -o")
    there = [name for name in (TRACK, "results.json", "report.html") if folder and (folder / name).exists()]
    if there and not overwrite:
        raise BadInput(f"{folder} holds {there[0]} already; name another folder with -o, or use --overwrite")
