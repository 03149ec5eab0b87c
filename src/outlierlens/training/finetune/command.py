"""`finetune`: its runs are kept in a run directory, and go on from there."""

from dataclasses import replace

from outlierlens.cli.common import resumable, say, warn
from outlierlens.cli.experiment import tell
from outlierlens.errors import command
from outlierlens.options import FIND
from outlierlens.results.row_store import alone_in
from outlierlens.session import Session
from outlierlens.training.finetune.options import Finetuning


def run(session: Session, options: Finetuning) -> None:
    """Fine-tune the model in the run directory, and show what every seed reached."""
    model, output, asked = session.subject.model, session.output, session.splits
    train, dev = asked.splits(offline=session.loading.offline, of_words=not options.recover)
    folder = session.folder("recovery" if options.recover else asked.labelled_task.name.split(":")[-1])

    from outlierlens.training.finetune.folder import RESULT
    from outlierlens.training.finetune.loop import FinetuneOptions, finetune

    loud = output.tells_progress
    how = FinetuneOptions(
        load=session.load, command=session.command, overwrite=output.overwrite, report_to=options.report_to,
        progress=warn if loud else lambda _: None, on_log=_log if loud else None,
    )  # fmt: skip
    if options.recover:
        from outlierlens.analyses.recover import RESULT as RECOVERY
        from outlierlens.analyses.recover import RecoverOptions, recover

        again = RecoverOptions(
            dims=options.settings.off or FIND, stack=options.settings.stack, n_random=options.n_random, seeds=options.seeds,
            settings=replace(options.settings, off=(), hold=False, stack=None),
        )  # fmt: skip
        with resumable(folder), alone_in(folder, "recovery"):
            tell(session, recover(model, train, dev, folder, again, how))
        if output.for_people:
            say(f"result: {folder / RECOVERY}")
        return
    with resumable(folder):
        found = finetune(model, train, dev, folder, options.settings, seeds=options.seeds, options=how)
    tell(session, found)
    if output.for_people:
        best = max(found.seeds, key=lambda one: one.best.scores[found.metric])
        say(f"result: {folder / RESULT}; look at a model: {command('scan', best.folder)}")


def _log(seed: int, step: int, steps: int, logs: dict[str, float]) -> None:
    warn(f"seed {seed}: step {step:,} of {steps:,}: loss {logs['loss']:.4g}")
