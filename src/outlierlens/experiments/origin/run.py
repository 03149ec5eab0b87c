"""`outlierlens origin`, from its options to its result."""

from dataclasses import replace
from pathlib import Path

from outlierlens.detection.observe.result import Observation
from outlierlens.errors import BadInput
from outlierlens.experiments.origin.measure import dims_of_observation, origin
from outlierlens.experiments.origin.options import Traced
from outlierlens.experiments.origin.result import Origin
from outlierlens.results.document import load
from outlierlens.session import Session


def run(session: Session, options: Traced) -> Origin:
    """Follow what the options name."""
    how = replace(options.how, named_by="--dims", scan=session.scanning(options.how.scan))
    if options.observed is not None:
        how = replace(how, dims=_found_by(options.observed), named_by=f"{options.observed.name} (observe)")
    found = origin(session.subject.model, how)
    session.draw = {"which": options.picture, "stream": options.stack}
    return found


def _found_by(path: Path) -> dict[str, tuple[int, ...]]:
    loaded = load(path)
    if not isinstance(loaded, Observation):
        raise BadInput(
            f"{path} holds a {type(loaded).__name__}, not an Observation; make it with outlierlens observe MODEL -o {path}"
        )
    return dims_of_observation(loaded)
