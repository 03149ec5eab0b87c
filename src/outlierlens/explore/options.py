"""What `explore` is asked: what is looked at, and whether a page, views as text or a hub Space comes of it.

Place(port=7870, browser=True)             # where the page is
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from outlierlens.errors import BadInput
from outlierlens.explore.result import VIEWS, State, parse_dims
from outlierlens.options import FIND, Find, Flag, Flat, parse_layers

PORT = 7860  # the first that is tried


def views(text: str) -> tuple[str, ...]:
    """The views that `--show` names."""
    return VIEWS if text == "all" else tuple(part.strip() for part in text.split(","))


def shown_dims(text: str) -> tuple[int, ...] | Find:
    """Dimensions as the page reads them; "find" as it is."""
    return FIND if text == FIND else parse_dims(text)


def span(layers: str) -> tuple[int, int]:
    """(first, last) of "0-3"; raises BadInput for layers that are no range."""
    found = parse_layers(layers)
    if not found or list(found) != list(range(found[0], found[-1] + 1)):
        raise BadInput(f"--layers {layers!r} is no range; explore switches off in a range such as 0-3")
    return found[0], found[-1]


@dataclass(frozen=True)
class Place:
    """Where the page is."""

    port: Annotated[int | None, Ge(1), Le(65535)] = None
    """Port on 127.0.0.1. Default: the first free from 7860."""
    share: bool = False
    """Let anyone with the link in, through a tunnel of gradio's servers. Off."""
    browser: bool = False
    """Open the page in a browser tab."""


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """What is looked at, and how it is shown."""

    place: Annotated[Place, Flat()] = Place()
    """Where the page is."""
    space: Path | None = None
    """Write a folder to push as a hub Space, and start nothing."""
    views: Annotated[tuple[str, ...] | None, Flag("--show", read="explore.options:views")] = None
    """Print views and start no page: passage, loss, guesses, dimension, vectors, attention, anisotropy, life, all."""
    text: str | None = None
    """Text to look at. Default: a shipped one."""
    dims: Annotated[tuple[int, ...] | Find, Flag(read="explore.options:shown_dims", words=FIND)] = FIND
    """308,381, or '' for none; find: what scan finds, or the strongest, which a page opens with switched on."""
    layers: Annotated[tuple[int, int] | None, Flag(read="explore.options:span")] = None
    """Layers to switch off in: 0-3. Default: all."""
    state: Annotated[
        State,
        Flat(
            *("mode", "factor", "left", "stack", "seed", "blank", "dimension", "vector_layer", "vector_token"),
            *("attention_layer", "head"),
        ),
    ] = State()
    """The rest of what a permalink holds."""

    def __post_init__(self) -> None:
        if self.space is not None and (self.views is not None or self.place.share or self.place.port is not None):
            raise BadInput("--space writes a folder and starts nothing; leave out --show, --share and --port")

    def looked_at(self, start: State, found: tuple[int, ...]) -> State:
        """The state asked for: `start`'s text where none is given, and for "find" `found`, but nothing off on a page."""
        first, last = self.layers or (0, None)
        text = start.text if self.text is None else self.text
        standing_out = found if self.views is not None else ()
        dims = standing_out if self.dims == FIND else self.dims
        return replace(self.state, text=text, dims=dims, first=first, last=last)
