"""The one command of all experiments: words in, `run` of the experiment's home, the result to screen, file and chart."""

import contextlib
import dataclasses
import functools
import sys
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from cyclopts import App
from typer import Exit
from typer.core import TyperCommand

from outlierlens.cli import common, flags
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, resumable
from outlierlens.experiments import Experiment
from outlierlens.session import Session


class Command(TyperCommand):
    """A row of the table as a command of the program."""

    def __init__(self, row: Experiment) -> None:
        self.row = row
        super().__init__(name=row.name.split()[-1], help=row.about)

    @cached_property
    def app(self) -> App:
        """What reads its words."""
        return flags.command(self.row.name, self.row.about, self.row.asks(), functools.partial(_run, self.row))

    @property
    def params(self) -> list[Any]:
        """Its options, as far as anybody asks of them here: their spellings."""
        named = [option for _, options in self.row.asks().values() for option in options if option.flags]
        return [SimpleNamespace(opts=list(one.flags), secondary_opts=[]) for one in named]

    @params.setter
    def params(self, _: Any) -> None:
        """Typer sets none."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """With the words read once, so that wrong ones are told before anything runs."""
        context = self.context_class(self, info_name=info_name, parent=parent)
        context.args = list(args)
        if not {"-h", "--help"} & set(args):
            flags.call(self.app, args, run=False)
        return context

    def invoke(self, ctx: Any) -> None:
        """Run the experiment."""
        flags.call(self.app, ctx.args)


def _run(experiment: Experiment, *, options: Any = None, **groups: Any) -> None:
    groups |= {
        name: groups.pop(group) for group, name in (("task", "reading"), ("source", "loading")) if group in groups
    }
    session = Session(**groups, command=common.reproduce())
    quiet = session.output.quiet
    session.notice = (lambda _: None) if quiet else common.warn
    gate = common.unusable_is_2() if experiment.gate else contextlib.nullcontext()
    with gate:
        if experiment.odd:
            experiment.run()(session, options)
            return
        found = _found(experiment, session, options)
    if experiment.gate and getattr(found, experiment.gate):
        raise Exit(common.FAILED)


def _found(experiment: Experiment, session: Session, options: Any) -> Any:
    """The result, shown, written and drawn as the words asked."""
    output = session.output
    show = Show.choose("auto", output.json, output.quiet, output.output, output.overwrite)
    check_chart(output.chart, replace=output.overwrite)
    with resumable(session.rows.rows), Progress(not output.no_progress and not output.quiet) as progress:
        session.progress = progress
        found = experiment.run()(session, options)
    found = with_command(found, session.command)
    if output.chart:
        from outlierlens import charts

        write_chart(output.chart, getattr(charts, experiment.picture)(found))
    show.result(found, lambda value: print_sections(experiment, value, verbose=output.verbose, **session.show))
    return found


def with_command(found: Any, command: str) -> Any:
    """The result with the command line in its provenance."""
    return dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, command=command))


def print_sections(experiment: Experiment, found: Any, *, verbose: bool = False, **show: Any) -> None:
    """The sections of a result on stdout, then its notes."""
    from outlierlens.view.terminal import print_section

    for section in experiment.sections()(found, verbose=verbose, **show):
        print_section(section, sys.stdout)
    for note in getattr(found, "notes", ()):
        common.say(f"note: {note}")
