"""What the live page is asked: the state that a link holds, where the page is, and the options of the command.

state = State(text="A film worth seeing.", dims=(8, 24), left=0.5)
State.from_query(state.query()) == state       # a permalink restores it
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from annotated_types import Ge, Le

from outlierlens.errors import BadInput
from outlierlens.options import FIND, Find, Flag, Flat, Option, Options, options_of, parse_layers, parse_names

VIEWS = ("passage", "loss", "guesses", "dimensions", "attention", "anisotropy")
_LONGEST = {int: 9, float: 25}  # letters of a number
EXAMPLES = {
    "A review": (
        "I went into this movie with low expectations and came out smiling. The story is simple, but the actors are so good "
        "that you care about every one of them."
    ),
    "An article": (
        "The river rises in the mountains and flows south for two hundred miles before it reaches the sea. In the spring, when "
        "the snow melts, it floods the fields on both banks."
    ),
    "A list": "One day has one night, two days have two nights, three days have three nights, and four days have four nights.",
}


@dataclass(frozen=True)
class Selection(Options):
    """State of the page: all that a permalink holds."""

    text: str = ""
    """As typed; a page reads its first tokens."""
    dims: tuple[int, ...] = ()
    """The chosen set; none leaves the model intact."""
    left: Annotated[float, Ge(0), Le(1)] = 0.0
    """Factor of the set, in [0, 1]: 0 ablates it by --mode, else each block's output there is multiplied by this."""
    mode: str = "weights"
    """How the set is ablated: weights, norms, zero, mean, resample or writes."""
    first: Annotated[int, Ge(0)] = 0
    """The first layer in which it is ablated."""
    last: Annotated[int | None, Ge(0)] = None
    """The last layer in which it is ablated, itself included; None is the model's last."""
    stack: str = ""
    """Which stream, where there are several: encoder, decoder."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random set."""
    blank: Annotated[int, Ge(0)] = 0
    """Blank whose guesses are shown, from 0."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers it is off in; `last` is filled in."""
        return tuple(range(self.first, (self.last or 0) + 1))

    def query(self) -> str:
        """The part of an address behind its "?", with what differs from the defaults; "" where nothing does."""
        pairs = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                pairs[one.name] = ",".join(map(str, value)) if one.name == "dims" else str(value)
        return urlencode(pairs, errors="replace")

    @classmethod
    def from_query(cls, query: str | Mapping[str, str]) -> "Selection":
        """The state in a query string (or in its pairs); names that are no part of a state are passed over.

        Raises:
            BadInput: a value that cannot be read.
        """
        pairs = dict(parse_qsl(query, keep_blank_values=True)) if isinstance(query, str) else query
        return cls(**{one.name: _read(one, pairs[one.name]) for one in options_of(cls) if one.name in pairs})


def _read(option: Option, text: str) -> Any:
    if option.kind is str:
        return text
    if option.name == "dims":
        return parse_dims(text)
    kind = float if option.kind is float else int
    try:
        return kind(text if len(text) <= _LONGEST[kind] else "")
    except ValueError:
        what = "number" if kind is float else "whole number"
        raise BadInput(f"{option.name} is {text[:60]!r}; it must be a {what}") from None


def parse_dims(text: str) -> tuple[int, ...]:
    """ "308, 381" -> (308, 381), in the order given and each once; "" -> ().

    Raises:
        BadInput: anything but numbers and commas.
    """
    parts = parse_names(text.replace(";", ","))
    if not all(part.isdecimal() and len(part) <= _LONGEST[int] for part in parts):
        raise BadInput(f"cannot read dimensions {text[:60]!r}; write whole numbers such as 308, 381")
    return tuple(dict.fromkeys(map(int, parts)))


# --- options of the command ------------------------------------------------------------------------------------------


def parse_views(text: str) -> tuple[str, ...]:
    """ "loss, guesses" -> ("loss", "guesses"); "all" -> all of them; raises BadInput for others."""
    found = VIEWS if text == "all" else parse_names(text)
    if unknown := [view for view in found if view not in VIEWS]:
        raise BadInput(f"unknown view {unknown[0]!r}; views are {', '.join(VIEWS)}")
    return found


def shown_dims(text: str) -> tuple[int, ...] | Find:
    """Dimensions as the page reads them; "find" as it is."""
    return FIND if text == FIND else parse_dims(text)


def span(layers: str) -> tuple[int, int]:
    """(first, last) of "0-3"; raises BadInput for layers that are not a range."""
    found = parse_layers(layers)
    if not found or list(found) != list(range(found[0], found[-1] + 1)):
        raise BadInput(f"--layers {layers!r} is not a range; explore ablates in a range such as 0-3")
    return found[0], found[-1]


@dataclass(frozen=True)
class Place:
    """Where the page is."""

    port: Annotated[int | None, Ge(1), Le(65535)] = None
    """Port on 127.0.0.1. Default: the first free from 7860."""


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """The state of the page, and how it is shown."""

    place: Annotated[Place, Flat()] = Place()
    """Where the page is."""
    views: Annotated[tuple[str, ...] | None, Flag("--show", read="explore.state:parse_views")] = None
    """Print views and start no page: passage, loss, guesses, dimensions, attention, anisotropy, all."""
    text: str | None = None
    """Text to look at. Default: a shipped one."""
    dims: Annotated[tuple[int, ...] | Find, Flag(read="explore.state:shown_dims", words=FIND)] = FIND
    """308,381, or '' for none; find: those that scan finds, or the strongest."""
    layers: Annotated[tuple[int, int] | None, Flag(read="explore.state:span")] = None
    """Layers in which to ablate: 0-3. Default: all."""
    state: Annotated[Selection, Flat("left", "mode", "stack", "seed", "blank")] = Selection()
    """The other settings that a permalink holds."""

    def looked_at(self, start: Selection) -> Selection:
        """The state asked for; `start` has the text and the dimensions of who names none."""
        first, last = self.layers or (0, None)
        text, dims = start.text if self.text is None else self.text, start.dims if self.dims == FIND else self.dims
        return replace(self.state, text=text, dims=dims, first=first, last=last)
