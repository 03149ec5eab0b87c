"""`replicate luo`: every experiment of Luo et al. (2021) for one model, in one run directory and one report."""

from collections.abc import Callable
from pathlib import Path

from outlierlens.cli.experiment import run_paper
from outlierlens.replicate.luo.data import LuoData
from outlierlens.replicate.luo.measure import LuoJob, replicate_luo
from outlierlens.replicate.luo.options import LuoOptions
from outlierlens.report.result import ReportData
from outlierlens.session import Session


def run(session: Session, options: LuoOptions) -> None:
    """Measure what is missing in the run directory, and show the whole."""

    def make(directory: Path, say: Callable[[str], None]) -> ReportData:
        job = LuoJob(
            session.subject.model, LuoData(session.reading.data, session.loading.offline), directory, **vars(options),
            overwrite=session.output.overwrite, command=session.command, say=say, progress=session.progress,
        )  # fmt: skip
        return replicate_luo(job, session.load)

    run_paper(session, "luo", make)
