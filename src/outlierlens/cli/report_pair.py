"""Two models side by side: what is finished is read, the rest is measured, and one page shows both.

    page = report_pair(("base", "runs/tuned"), Job(model="base", directory=Path("runs/both")), LoadOptions(), progress)

A model that is measured gets a whole report of its own, in folder a or b of the directory.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from outlierlens.cli.job import Job, refuse_finished, run
from outlierlens.errors import BadInput
from outlierlens.models import LoadOptions
from outlierlens.report import ReportData, paired, write_pair
from outlierlens.results import load as read
from outlierlens.scanned import Scan

RESULTS = "results.json"


def directory_of(models: Sequence[str]) -> str:
    """What the run directory of these models is called by default: "mini-bert", "mini-bert-and-mini-planted"."""
    return "-and-".join(Path(model).stem if model.endswith(".json") else Path(model).name for model in models)


def report_pair(
    models: tuple[str, str], job: Job, load: LoadOptions, progress: Callable[[str, int, int], None]
) -> Path:
    """Measure what has no results yet, write the page of both, and return its path.

    Raises:
        BadInput: the directory holds a finished report and `overwrite` is off, or a file holds another result.
    """
    refuse_finished(job)
    finished = [_finished(Path(model)) for model in models]  # both are read before either is measured
    sides, pages = [], []
    for letter, model, known in zip("ab", models, finished, strict=True):
        there = known
        if there is None:
            own = replace(job, model=model, directory=job.directory / letter)
            if job.overwrite or not _is_of(own):
                again = job.overwrite or (own.directory / "report.html").exists()  # else its rows go on
                run(replace(own, overwrite=again), load, progress)
            there = (_report(own.directory / RESULTS), own.directory)
        sides.append(there[0])
        pages.append(_link(there[1], job.directory))
    pair = paired(sides[0], sides[1], (pages[0], pages[1]))
    return write_pair(pair, job.directory, overwrite=True, command=job.command).page


def _finished(path: Path) -> tuple[ReportData, Path | None] | None:
    """The results in a run directory or file, and the directory of its page; None for a model that must be run."""
    if (path / RESULTS).is_file():
        return _report(path / RESULTS), path
    if path.suffix == ".json" and path.is_file():
        return _report(path), path.parent if path.name == RESULTS else None
    return None


def _report(path: Path) -> ReportData:
    found = read(path)
    if isinstance(found, Scan):
        return ReportData(found.provenance, found)
    if not isinstance(found, ReportData):
        kind = type(found).__name__
        raise BadInput(f"{path} holds a {kind}; --compare takes models, run directories, results.json or a scan's JSON")
    return found


def _is_of(job: Job) -> bool:
    """Whether the job's directory holds what this very command measured before it was stopped."""
    path = job.directory / RESULTS
    return path.is_file() and _report(path).provenance.command == job.command


def _link(directory: Path | None, here: Path) -> str:
    """The address of a report's page, relative to a page in `here`; "" where there is none."""
    if directory is None or not (directory / "report.html").is_file():
        return ""
    try:
        return Path(os.path.relpath(directory / "report.html", here)).as_posix()
    except ValueError:  # on another drive
        return ""
