"""`outcomes`: what came of several pre-training runs, read from their folders."""

from outlierlens.errors import BadInput
from outlierlens.results.document import load
from outlierlens.session import Session
from outlierlens.training.pretrain.options import OutcomesOptions
from outlierlens.training.pretrain.result import OUTCOME, Outcome, Outcomes


def run(session: Session, options: OutcomesOptions) -> Outcomes:
    """The outcomes of the runs, in the order given; raises BadInput for a file that holds anything else."""
    found = [load(path / OUTCOME if path.is_dir() else path) for path in options.runs]
    for path, value in zip(options.runs, found, strict=True):
        if not isinstance(value, Outcome):
            raise BadInput(f"{path} holds a {type(value).__name__}, not the outcome of a pre-training run")
    return Outcomes(tuple(found))
