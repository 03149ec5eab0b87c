"""`recover`: its fine-tunings are kept in a run directory, and go on from there."""

from outlierlens.cli import common
from outlierlens.cli.common import check_chart, drawn, resumable, say
from outlierlens.cli.experiment import tell
from outlierlens.experiments.recover.options import RecoverOptions
from outlierlens.results.row_store import alone_in
from outlierlens.results.safe_files import write_bytes
from outlierlens.session import Session


def run(session: Session, options: RecoverOptions) -> None:
    """Fine-tune every arm in the run directory, and show what came of it."""
    output = session.output
    check_chart(output.chart, replace=output.overwrite)
    train, dev = session.splits.splits(offline=session.loading.offline, of_words=False)
    from outlierlens.experiments.recover.measure import RESULT, recover
    from outlierlens.training.finetune.loop import FinetuneOptions

    folder = session.folder("recovery")
    how = FinetuneOptions(
        load=session.load, command=session.command, overwrite=output.overwrite,
        progress=common.warn if output.tells_progress else lambda _: None,
    )  # fmt: skip
    with resumable(folder), alone_in(folder, "recovery"):
        found = recover(session.subject.model, train, dev, folder, options, how)
    if output.chart:
        from outlierlens.experiments.recover.charts import recovery

        write_bytes(output.chart, drawn(output.chart, recovery(found)))
    tell(session, found)
    if output.for_people:
        say(f"result: {folder / RESULT}")
