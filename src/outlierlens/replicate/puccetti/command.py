"""`replicate puccetti`: every experiment of Puccetti et al. (2022) for one model, in one run directory and one report."""

from collections.abc import Callable
from pathlib import Path

from outlierlens.cli.experiment import run_paper
from outlierlens.replicate.puccetti.measure import PuccettiJob, replicate_puccetti
from outlierlens.replicate.puccetti.options import PuccettiOptions
from outlierlens.report.result import ReportData
from outlierlens.session import Session


def run(session: Session, options: PuccettiOptions) -> None:
    """Measure what is missing in the run directory, and show the whole."""
    read = session.reading

    def make(directory: Path, say: Callable[[str], None]) -> ReportData:
        job = PuccettiJob(
            session.subject.model, read.data, directory, column=read.text_column, limit=read.limit, **vars(options),
            overwrite=session.output.overwrite, command=session.command, say=say, progress=session.progress,
        )  # fmt: skip
        return replicate_puccetti(job, session.load)

    run_paper(session, "puccetti", make)
