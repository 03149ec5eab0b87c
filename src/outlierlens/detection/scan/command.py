"""`outlierlens scan`: models that cannot be scanned are told after what the others show; with --propose a draft row."""

from outlierlens.architectures import families
from outlierlens.checkpoints import open_checkpoint
from outlierlens.cli.common import warn
from outlierlens.cli.experiment import answer
from outlierlens.detection.scan.measure import scan
from outlierlens.detection.scan.options import Scanning
from outlierlens.detection.scan.result import Scan, Scans
from outlierlens.errors import BadInput, OutlierlensError, one_line
from outlierlens.experiments import BY_NAME
from outlierlens.results.safe_files import write_text
from outlierlens.session import Session


def run(session: Session, options: Scanning) -> None:
    """Show what is found, then raise for a model that could not be scanned."""
    if options.propose:
        _propose(session, options.models)
        return
    failed: list[OutlierlensError] = []
    answer(BY_NAME["scan"], session, options, lambda: _scans(session, options, failed))
    _raise(failed)


def _scans(session: Session, options: Scanning, failed: list[OutlierlensError]) -> Scan | Scans:
    how = session.scanning(options.scan)
    found = []
    for model in options.models:
        try:
            found.append(scan(model, how, command=session.command))
        except OutlierlensError as error:
            failed.append(error)
    if not found:
        _raise(failed)
    return found[0] if len(options.models) == 1 else Scans(tuple(found))


def _raise(failed: list[OutlierlensError]) -> None:
    for other in failed[:-1]:
        warn(f"error: {one_line(str(other))}")
    if failed:
        raise failed[-1]


def _propose(session: Session, models: tuple[str, ...]) -> None:
    """Print draft rows, or write the one of one model to the file of --output."""
    from outlierlens.models.proposal.propose import propose  # which a scan does not need, and waits for

    source, output = session.loading, session.output
    if output.output and len(models) > 1:
        raise BadInput("--propose -o FILE writes the row of one model; name one, or leave out -o to print all")
    for model in models:
        with open_checkpoint(
            model, revision=source.revision, subfolder=source.subfolder, token=source.token, offline=source.offline
        ) as checkpoint:
            config = checkpoint.config
            if source.family is not None or not isinstance(config.get("model_type"), str):
                named = source.family or families(checkpoint.tensors, config, checkpoint.name)[0]
                config = config | {"model_type": named}
            row = propose(config).toml
        if output.output:
            write_text(output.output, row)
        else:
            print(row, end="")
