"""`layer-story` as the command runs it: from files of results."""

from pathlib import Path
from typing import TypeVar

from outlierlens.errors import BadInput
from outlierlens.experiments.attention.result import Attention
from outlierlens.experiments.frequency.result import Frequency
from outlierlens.experiments.layer_story.options import LayerStoryOptions
from outlierlens.experiments.layer_story.result import LayerStory, layer_story
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.results.document import load
from outlierlens.session import Session

Kind = TypeVar("Kind")


def run(session: Session, options: LayerStoryOptions) -> LayerStory:
    """The results read, and put side by side."""
    return layer_story(
        _read(options.sweep, Sweep),
        frequency=None if options.frequency is None else _read(options.frequency, Frequency),
        attention=None if options.attention is None else _read(options.attention, Attention),
        view="all" if options.special else "without_special",
        seed=options.seed,
    )


def _read(path: Path, kind: type[Kind]) -> Kind:
    """A result of this kind; of a run's results.json the first one in it."""
    found = load(path)
    for one in (found, *getattr(found, "sweeps", ())):
        if isinstance(one, kind):
            return one
    raise BadInput(f"{path} holds {type(found).__name__}, wanted is {kind.__name__}")
