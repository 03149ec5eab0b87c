"""`report --compare`: what is finished is read, the rest is measured on the same texts, and one page shows both.

A model that is measured gets a whole report of its own, in folder a or b of the directory.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from outlierlens.analyses.scan import Scan
from outlierlens.data.texts import read_texts
from outlierlens.errors import BadInput, OutlierlensError
from outlierlens.models.inputs import Progress
from outlierlens.models.load import LoadOptions
from outlierlens.report.both import ReportPair
from outlierlens.report.files import write_both
from outlierlens.report.job import Job, is_finished, refuse_finished, run, suited
from outlierlens.report.options import ReportOptions
from outlierlens.report.result import ReportData
from outlierlens.results.document import load as read

RESULTS = "results.json"
_Side = tuple[ReportData, Path | None]  # results, and the directory of their page


def directory_of(models: Sequence[str]) -> str:
    """What the run directory of these models is called by default: "mini-bert", "mini-bert-and-mini-planted"."""
    return "-and-".join(Path(model).stem if model.endswith(".json") else Path(model).name for model in models)


def report_both(models: tuple[str, str], job: Job, load: LoadOptions, progress: Progress) -> Path:
    """Measure what has no results yet, write the page of both, and return its path.

    Raises:
        BadInput: the directory holds a finished report and `overwrite` is off, or a file holds another result.
    """
    refuse_finished(job)
    finished = [_finished(Path(model)) for model in models]  # both are read before either is measured
    job = _on_same_texts(job, models, finished, load)

    def measured(place: int, length: int) -> _Side:
        options = replace(job.options, model=models[place], max_length=length)
        own = replace(job, options=options, directory=job.directory / "ab"[place])
        if job.overwrite or not _is_of(own):
            again = job.overwrite or is_finished(own.directory)  # else its rows go on
            run(replace(own, overwrite=again), load, progress)
        return _report(own.directory / RESULTS), own.directory

    sides, length = list(finished), job.options.max_length
    for place in (0, 1, 0):  # the first once more where the second reads fewer tokens of a text
        if finished[place] is None and (sides[place] is None or _length(sides[place]) > length):
            sides[place] = measured(place, length)
            length = min(length, _length(sides[place]))
    (ours, first), (theirs, second) = (side for side in sides if side is not None)
    both = ReportPair((ours, theirs), (_link(first, job.directory), _link(second, job.directory)))
    return write_both(both, job.directory, overwrite=True, command=job.command).page


def _on_same_texts(job: Job, models: Sequence[str], finished: Sequence[_Side | None], load: LoadOptions) -> Job:
    """`job` on one text for both: that of the model that is finished, unless others are asked for or it cannot be had."""
    new = [model for model, side in zip(models, finished, strict=True) if side is None]
    alone = _reading(job, data=job.reading.data or suited(*new))
    measured = next((side[0].observation for side in finished if side and side[0].observation), None)
    if measured is None or not new:
        return alone
    seen, own = measured.about, alone
    as_usual = (job.reading.limit, job.options.max_length) == (Job.reading.limit, ReportOptions.max_length)
    if not job.reading.data and as_usual:
        own = _reading(job, data=seen.data, limit=seen.n_texts)
        own = replace(own, options=replace(own.options, max_length=seen.max_length))
    with suppress(OutlierlensError):  # what cannot be read now is said when it is to be measured
        reading = own.reading
        texts = read_texts(reading.data, column=reading.text_column, limit=reading.limit, offline=load.offline)
        if (texts.digest, own.options.max_length) == (seen.data_digest, seen.max_length):
            return own
    load.notice(
        f"note: {measured.provenance.model} was measured on {seen.n_texts:,} texts of {seen.data}, {seen.max_length} tokens "
        f"each; {new[0]} is measured on others ({alone.reading.data}), so what they lose cannot be compared"
    )
    return alone


def _reading(job: Job, **reading: Any) -> Job:
    """The job on other texts."""
    return replace(job, reading=replace(job.reading, **reading))


def _finished(path: Path) -> _Side | None:
    """The results in a run directory or file, and the directory of its page; None for a model that must be run."""
    if (path / RESULTS).is_file():
        return _report(path / RESULTS), path
    if path.suffix == ".json" and path.is_file():
        return _report(path), path.parent if path.name == RESULTS else None
    return None


def _report(path: Path) -> ReportData:
    found = read(path)
    if isinstance(found, Scan):
        return ReportData(found.provenance, (found,))
    if not isinstance(found, ReportData):
        kind = type(found).__name__
        raise BadInput(f"{path} holds a {kind}; --compare takes models, run directories, results.json or a scan's JSON")
    return found


def _is_of(job: Job) -> bool:
    """Whether the job's directory holds what this very command measured before it was stopped, on as many tokens at most."""
    path = job.directory / RESULTS
    if not path.is_file():
        return False
    found = _report(path)
    return found.provenance.command == job.command and _length((found, None)) <= job.options.max_length


def _length(side: _Side | None) -> int:
    """Tokens that were read of each text; 0 where none were."""
    seen = side[0].observation if side else None
    return seen.about.max_length if seen else 0


def _link(directory: Path | None, here: Path) -> str:
    """The address of a report's page, relative to a page in `here`; "" where there is none."""
    if directory is None or not (directory / "report.html").is_file():
        return ""
    try:
        return Path(os.path.relpath(directory / "report.html", here)).as_posix()
    except ValueError:  # on another drive
        return ""
