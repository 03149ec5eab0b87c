"""`replicate kovaleva-glue` and `replicate puccetti-glue`: a paper's table of labelled tasks for any model."""

from dataclasses import replace

from outlierlens.cli.common import resumable, say, warn
from outlierlens.cli.experiment import tell
from outlierlens.experiments.sweep.command import SweepView
from outlierlens.replicate.glue.measure import Hooks, Replicating, replicate
from outlierlens.replicate.glue.options import GlueCall
from outlierlens.replicate.glue.pictures import read_replication, write_views
from outlierlens.session import Session


def run(session: Session, asked: GlueCall) -> None:
    """Measure what is missing in the run directory, draw its pictures, and show the tables."""
    output = session.output
    model = session.subject.model
    settings = replace(asked.options.settings, batch=asked.train_batch)
    options = replace(asked.options, settings=settings, tuned=asked.models, labels=asked.names)
    directory = session.folder(asked.paper)
    job = Replicating(
        asked.paper, model, directory, **vars(options), overwrite=output.overwrite, command=session.command
    )
    others = [read_replication(path) for path in asked.beside]
    loud = output.tells_progress
    with resumable(directory):
        made = replicate(job, session.load, Hooks(warn if loud else lambda _: None, lambda: SweepView(loud)))
    pages = write_views(directory, made, others)
    tell(session, made)
    if output.for_people:
        say(f"result: {directory / 'replication.json'}; pages: {', '.join(map(str, pages)) or 'none'}")
