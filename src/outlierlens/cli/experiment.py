"""The one command of all experiments: words in, `run` of the experiment's home, the result to screen, file and chart."""

import dataclasses
import functools
import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from outlierlens.cli import app, common, reproduce
from outlierlens.cli.common import Progress, check_chart, drawn, resumable, say, warn
from outlierlens.experiments import BY_NAME, BY_RESULT, Experiment
from outlierlens.results.row_store import alone_in, rows_aside
from outlierlens.results.safe_files import alone, check_file, write_together
from outlierlens.session import Session

if TYPE_CHECKING:
    from outlierlens.report.result import ReportData


def __getattr__(name: str) -> App:
    """What reads the words of the command `name`."""
    if name not in BY_NAME:
        raise AttributeError(name)
    row = BY_NAME[name]
    return app.command(row.name, row.about, row.asks(), functools.partial(_run, row))


def _run(experiment: Experiment, *, options: Any = None, **groups: Any) -> None:
    names = {"task": "reading", "splits": "reading", "source": "loading"}
    session = Session(
        **{names.get(group, group): one for group, one in groups.items()}, name=experiment.name, command=reproduce()
    )
    session.notice = (lambda _: None) if session.output.quiet else common.warn
    wanted, label = session.output.tells_progress, f"{experiment.name}: reading"
    file = session.output.output if experiment.writes == "file" else None
    asked = [getattr(options, name, None) for name in (*experiment.places, *experiment.pictures)]
    with ExitStack() as inside:
        inside.enter_context(common.unusable_is_2() if experiment.gate else nullcontext())
        session.progress = inside.enter_context(Progress(wanted, label))
        check_file(file, replace=session.output.overwrite)
        for place in dict.fromkeys(filter(None, (file, session.output.chart, *asked))):
            inside.enter_context(alone(place))
        run = experiment.run()
        gc.freeze()  # what was imported stays
        gc.enable()  # `main` had no use for it
        if experiment.odd:
            run(session, options)
            return
        found = answer(experiment, session, options, lambda: run(session, options))
    if experiment.gate and getattr(found, experiment.gate):
        raise SystemExit(common.FAILED)


def answer(experiment: Experiment, session: Session, options: Any, run: Callable[[], Any]) -> Any:
    """What `run` finds, shown, written and drawn as the words asked."""
    from outlierlens.results.document import to_json  # brings numpy, which --help does not need

    output = session.output
    charts = {output.chart: experiment.picture}
    charts |= {getattr(options, option): picture for option, picture in experiment.pictures.items()}
    for path in charts:
        check_chart(path, replace=output.overwrite)
    replaced = session.rows.rows if output.overwrite else None
    keeps = session.kept.folder if experiment.derived else session.rows.rows
    with rows_aside(replaced), resumable(keeps, hint="rows" in experiment.takes):
        found = run()
    found = with_command(found, session.command)
    files: dict[Path, str | bytes] = {}
    for path, picture in charts.items():
        if path is not None:
            more = session.draw if path == output.chart else {}
            files[path] = drawn(path, experiment.draw(picture)(found, **more))
    if output.output:
        files[output.output] = to_json(found) + "\n"
    write_together(files)
    tell(session, found, **session.show)
    if session.then is not None:
        session.then()
    return found


def tell(session: Session, found: Any, **show: Any) -> None:
    """Show the result as the words asked; `show` is for its view."""
    from outlierlens.results.document import to_json  # brings numpy, which --help does not need

    if session.output.json:
        print(to_json(found, indent=2))
    elif not session.output.quiet:
        print_sections(BY_RESULT[type(found).__name__], found, verbose=session.output.verbose, **show)


def with_command(found: Any, command: str) -> Any:
    """The result with the command line in its provenance; as it is where only its parts have one."""
    if not hasattr(found, "provenance"):
        return found
    return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, command=command))


def print_sections(experiment: Experiment, found: Any, *, verbose: bool = False, **show: Any) -> None:
    """The sections of a result on stdout, then its notes."""
    from outlierlens.view.render import print_section
    from outlierlens.view.section import notes_of

    for section in experiment.sections()(found, verbose=verbose, **show):
        print_section(section, sys.stdout)
    for note in notes_of(found):
        common.say(f"note: {note}")


def run_paper(session: Session, paper: str, make: "Callable[[Path, Callable[[str], None]], ReportData]") -> None:
    """Measure a paper's parts in a run directory, write the report, and show what it says of `paper`, a field of it."""
    from outlierlens.report.files import CHARTS, OURS, write

    output = session.output
    directory = session.folder(paper)
    with resumable(directory / "parts"):
        made = make(directory, warn if output.tells_progress else lambda _: None)
    with alone_in(directory, "replication", CHARTS, "parts"):
        written = write(made, directory, overwrite=any((directory / name).exists() for name in OURS))
    tell(session, getattr(made, paper))
    if output.for_people:
        say(f"report: {written.page}")
