"""`report`: the main job, and one self-contained page of it; or of two models side by side."""

from dataclasses import replace
from pathlib import Path

from outlierlens.cli.experiment import resumable, say
from outlierlens.errors import BadInput
from outlierlens.options import FIND
from outlierlens.report.files import CHARTS, refuse_others
from outlierlens.report.options import DEFAULT, ReportOptions
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import check_file
from outlierlens.session import Session


def run(session: Session, options: ReportOptions) -> None:
    """Measure, or read finished results; write the page and print its path."""
    output = session.output
    check_file(options.card, replace=output.overwrite)  # before the work, not after it
    if options.card:
        refuse_others(options.card)
    if options.compare:
        of_one = (
            ("MODEL", options.model), ("--result", options.results), ("--card", options.card),
            ("--model-args adapter", session.loading.adapter),
        )  # fmt: skip
        for name, value in of_one:
            if value:
                raise BadInput(f"--compare takes two models; {name} belongs to a report of one")
    options = replace(options, model=options.model or DEFAULT)
    measured_before = options.model.endswith(".json") and Path(options.model).is_file()
    page = (_redrawn if measured_before else _measured)(session, options)
    if not output.quiet:
        say(f"report: {page}")
        if options.card:
            say(f"card: {options.card}")


def _redrawn(session: Session, options: ReportOptions) -> Path:
    """The page of results that were measured before; needs no torch."""
    from outlierlens.report.job import redraw

    if options.dims != FIND or session.reading.data or session.loading.adapter:
        raise BadInput(f"{options.model} holds measured results: --dims, --data and an adapter need the model itself")
    return redraw(Path(options.model), session.output.output, options)


def _measured(session: Session, options: ReportOptions) -> Path:
    from outlierlens.report.both_job import directory_of, report_both
    from outlierlens.report.job import Job, run

    names, output = options.compare or (options.model,), session.output
    job = Job(
        replace(options, model=names[0]), session.folder(of=directory_of(names)),
        session.reading, output.overwrite, session.command,
    )  # fmt: skip
    rows = job.directory / ("a/rows.jsonl" if options.compare else "rows.jsonl")
    with resumable(rows), alone_in(job.directory, "report", CHARTS, "rows*.jsonl", "[ab]"):
        if options.compare:
            return report_both(options.compare, job, session.load, session.progress)
        return run(job, session.load, session.progress)
