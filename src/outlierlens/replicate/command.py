"""`replicate …`: a paper for one model, in one run directory; of a paper of many parts a report is written too."""

from collections.abc import Callable
from typing import Any

from outlierlens.analyses.scan import scan_live
from outlierlens.cli.experiment import resumable, say, tell, with_command
from outlierlens.replicate.glue import REPLICATION, GlueOptions, replicate, sweeps_of
from outlierlens.replicate.luo import LuoOptions, replicate_luo
from outlierlens.replicate.papers import PaperData
from outlierlens.replicate.puccetti import PuccettiOptions, replicate_puccetti
from outlierlens.report.files import CHARTS, OURS, write
from outlierlens.report.result import ReportData
from outlierlens.results.document import load
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import refuse_links, write_text
from outlierlens.session import Session
from outlierlens.view import charts
from outlierlens.view.page import chart_page


def glue(session: Session, options: GlueOptions) -> None:
    """A table of labelled tasks: measure what is missing in the run directory, draw its pictures, and show the tables."""
    output, folder = session.output, session.folder(options.paper)
    with resumable(folder):
        made = replicate(
            session.subject.model, options, folder, load=session.load, overwrite=output.overwrite,
            command=session.command, progress=session.progress,
        )  # fmt: skip
    refuse_links(folder, "*.html")
    drawn = [made.chart(), *([charts.figure2(sweeps_of(folder, made), made.dims)] if options.every else [])]
    pages = [write_text(folder / f"{one.name}.html", chart_page(one)) for one in drawn]
    tell(session, made)
    if output.for_people:
        say(f"result: {folder / REPLICATION}; pages: {', '.join(map(str, pages))}")


def luo(session: Session, options: LuoOptions) -> None:
    """Every experiment of Luo et al. (2021)."""
    data = PaperData(session.reading.data, session.loading.offline)
    _whole(session, lambda **how: replicate_luo(session.loaded, data, options, **how), "observation")


def puccetti(session: Session, options: PuccettiOptions) -> None:
    """Every experiment of Puccetti et al. (2022)."""
    texts, _ = session.texts()
    more = ["sweep"] if "layers" in options.parts else []
    _whole(session, lambda **how: replicate_puccetti(session.loaded, texts, options, **how), *more)


def _whole(session: Session, make: Callable[..., Any], *more: str) -> None:
    """Measure what is missing in the run directory, write the report with `more` of its parts, and show the paper's own."""
    output = session.output
    folder = session.folder(session.name.rpartition(" ")[2])
    with alone_in(folder, "replication"):
        pass  # what cannot be written to is refused before a model is loaded
    with resumable(folder / "rows"):
        found = make(folder=folder, overwrite=output.overwrite, progress=session.progress)
    found = with_command(found, session.command)
    beside = [load(path) for name in more if (path := folder / "parts" / f"{name}.json").is_file()]
    data = ReportData(found.provenance, (scan_live(session.loaded), found, *beside))
    with alone_in(folder, "replication", CHARTS, "parts"):
        written = write(data, folder, overwrite=any((folder / name).exists() for name in OURS))
    tell(session, found)
    if output.for_people:
        say(f"report: {written.page}")
