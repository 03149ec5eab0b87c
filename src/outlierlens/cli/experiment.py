"""The one command of all experiments: words in, `run` of the experiment's home, the result to screen, file and chart."""

import dataclasses
import functools
import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from cyclopts import App

from outlierlens.cli import app, common, reproduce
from outlierlens.cli.common import Progress, check_chart, drawn, resumable
from outlierlens.experiments import BY_NAME, BY_RESULT
from outlierlens.options import build, settings_of
from outlierlens.options.experiment import Experiment
from outlierlens.results.safe_files import alone, check_file, write_together
from outlierlens.session import Session


def __getattr__(name: str) -> App:
    """What reads the words of the command `name`."""
    if name not in BY_NAME:
        raise AttributeError(name)
    row = BY_NAME[name]
    return app.command(row.name, row.about, row.asks(), functools.partial(_run, row))


def _run(experiment: Experiment, *, options: Any = None, **groups: Any) -> None:
    names = {"task": "reading", "splits": "reading", "data": "reading", "source": "loading"}
    session = Session(
        **{names.get(group, group): one for group, one in groups.items()},
        name=experiment.name,
        command=reproduce(),
        resumable=resumable,
    )
    session.notice = (lambda _: None) if session.output.quiet else common.warn
    wanted, label = session.output.tells_progress, f"{experiment.name}: reading"
    file = session.output.output if experiment.writes == "file" else None
    asked = [getattr(options, name, None) for name in experiment.places]
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
        found = answer(experiment, session, lambda: fitting(run, session, options))
    if found is not None and (gate := BY_RESULT[type(found).__name__].gate) and getattr(found, gate, False):
        raise SystemExit(common.FAILED)


def fitting(run: Callable[[Session, Any], Any], session: Session, options: Any) -> Any:
    """What `run` finds; again with half the texts per forward pass wherever memory runs out, until one is too many."""
    while True:
        try:
            return run(session, options)
        except (RuntimeError, MemoryError) as error:
            from outlierlens.models.devices import out_of_memory

            sizes = (session.vectors.batch_size, *(value for _, value in _batch_sizes(options)))
            if not out_of_memory(error) or max(sizes) == 1 or "loaded" not in vars(session):
                raise
        gc.collect()
        session.notice(f"memory ran out at {max(sizes)} texts per forward pass; going on with {max(sizes) // 2}")
        session.vectors = dataclasses.replace(session.vectors, batch_size=max(1, session.vectors.batch_size // 2))
        options = build(options, {path: max(1, value // 2) for path, value in _batch_sizes(options)})


def _batch_sizes(options: Any) -> list[tuple[tuple[str, ...], int]]:
    """(path, value) of each number of texts per forward pass in options; none that an analysis finds by itself."""
    kind: Any = type(options)
    paths = (one.path for one in settings_of(kind).get("batch_size", ()))
    sizes = [(path, functools.reduce(getattr, path, options)) for path in paths]
    return [(path, size) for path, size in sizes if size is not None]


def answer(experiment: Experiment, session: Session, run: Callable[[], Any]) -> Any:
    """The result of `run`, shown, written and drawn as its options say; None where `run` wrote its output itself."""
    from outlierlens.results.document import to_json  # brings numpy, which --help does not need

    output = session.output
    check_chart(output.chart, replace=output.overwrite)
    with resumable(session.kept.folder if experiment.derived else None):
        found = run()
    if found is None:
        return None
    found = with_command(found, session.command)
    files: dict[Path, str | bytes] = {}
    if output.chart is not None:
        files[output.chart] = drawn(output.chart, found.chart())
    if output.output and experiment.writes == "file":
        files[output.output] = to_json(found) + "\n"
    write_together(files)
    tell(session, found)
    if session.then is not None:
        session.then()
    return found


def tell(session: Session, found: Any) -> None:
    """Show the result as the words asked."""
    from outlierlens.results.document import to_json  # brings numpy, which --help does not need

    if session.output.json:
        print(to_json(found, indent=2))
    elif not session.output.quiet:
        print_sections(found, verbose=session.output.verbose)


def with_command(found: Any, command: str) -> Any:
    """The result with the command line in its provenance; as it is where only its parts have one."""
    if not hasattr(found, "provenance"):
        return found
    return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, command=command))


def print_sections(found: Any, *, verbose: bool = False) -> None:
    """The sections of a result on stdout, then its notes."""
    from outlierlens.view.render import print_section
    from outlierlens.view.section import notes_of

    for section in found.sections(verbose=verbose):
        print_section(section, sys.stdout)
    for note in notes_of(found):
        common.say(f"note: {note}")
