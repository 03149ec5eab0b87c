"""The one command of all experiments: words in, `run` of the experiment's home, the result to screen, file and chart."""

import dataclasses
import functools
import sys
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from cyclopts import App
from typer.core import TyperCommand

from outlierlens.cli import common, flags
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, resumable
from outlierlens.experiments import Experiment
from outlierlens.options import options_of
from outlierlens.session import Loading, Output, Reading, Session, Subject


class Command(TyperCommand):
    """A row of the table as a command of the program."""

    def __init__(self, row: Experiment) -> None:
        self.row = row
        super().__init__(name=row.name, help=row.about)

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Its groups of options; imported when they are asked for, since `--help` of the program needs none of them."""
        options = getattr(import_module(f"outlierlens.{self.row.home}.options"), self.row.options)
        return {
            "subject": Subject, "reading": self.row.reading, "options": options, "output": Output, "loading": Loading,
        }  # fmt: skip

    @cached_property
    def app(self) -> App:
        """What reads its words."""
        return flags.command(self.row.name, self.row.about, self.groups, functools.partial(_run, self.row))

    @property
    def params(self) -> list[Any]:
        """Its options, as far as anybody asks of them here: their spellings."""
        named = [option for group in self.groups.values() for option in options_of(group) if option.flags]
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


def _run(
    experiment: Experiment, *, subject: Subject, reading: Reading, options: Any, output: Output, loading: Loading
) -> None:
    session = Session(subject, reading, loading)
    show = Show.choose("auto", output.json, output.quiet, output.output, output.overwrite)
    check_chart(output.chart, replace=output.overwrite)
    measure = import_module(f"outlierlens.{experiment.home}.run").run
    session.notice = (lambda _: None) if output.quiet else common.warn
    with resumable(None), Progress(not output.no_progress and show.format != "quiet") as progress:
        session.progress = progress
        found = measure(session, options)
    found = dataclasses.replace(found, provenance=dataclasses.replace(found.provenance, command=common.reproduce()))
    if output.chart:
        from outlierlens import charts

        write_chart(output.chart, getattr(charts, experiment.picture)(found))
    show.result(found, lambda value: print_sections(experiment, value, verbose=output.verbose))


def print_sections(experiment: Experiment, found: Any, *, verbose: bool = False) -> None:
    """The sections of a result on stdout."""
    from outlierlens.view.terminal import print_section

    for section in import_module(f"outlierlens.{experiment.home}.view").sections(found, verbose=verbose):
        print_section(section, sys.stdout)
    for note in getattr(found, "notes", ()):
        common.say(f"note: {note}")
