"""What is said of a result, once for every surface: sections of sentences, charts and tables; numbers and layers in words.

number_of_layers(1)          # "1 layer"
listed((100, 247))           # "100 and 247"
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from outlierlens.statistics.means import interval_text

if TYPE_CHECKING:
    from outlierlens.view.charts.base import Chart


L = TypeVar("L", int, str)


def number_of_layers(n: int) -> str:
    """ "1 layer", "12 layers"."""
    return f"{n:,} layer{'' if n == 1 else 's'}"


def runs(layers: Sequence[int]) -> str:
    """Ascending layers as "0–2, 5"."""
    found: list[list[int]] = []
    for layer in layers:
        if found and found[-1][-1] == layer - 1:
            found[-1].append(layer)
        else:
            found.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in found)


def by_dims(layers: Mapping[L, tuple[int, ...]]) -> dict[tuple[int, ...], list[L]]:
    """{dimensions: layers that have exactly them} of {layer: dimensions}."""
    found: dict[tuple[int, ...], list[L]] = {}
    for layer, dims in layers.items():
        found.setdefault(dims, []).append(layer)
    return found


def dims_in_layers(layers: Mapping[str, tuple[int, ...]]) -> str:
    """ "557 in 0, 1; 143, 557 in 2" of {layer: dimensions}."""
    return "; ".join(f"{', '.join(map(str, dims))} in {', '.join(at)}" for dims, at in by_dims(layers).items())


def number(value: float) -> str:
    """A number for reading: three significant digits, thousands apart; two decimals below 10."""
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    size = abs(value)
    if size >= 1e6:
        return ("−" if value < 0 else "") + power_of_ten(math.log10(size))
    if size >= 99.95:
        return f"{float(f'{value:.3g}'):,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:z.2f}" if size >= 0.095 or size == 0 else f"{value:z.2g}"


def power_of_ten(exponent: float) -> str:
    """10 to that power for reading: "3.1·10⁹", "∞"."""
    if not math.isfinite(exponent):
        return "∞"
    power = math.floor(exponent)
    lead = 10 ** (exponent - power)
    if round(lead, 1) >= 10:
        lead, power = 1.0, power + 1
    return f"{lead:.1f}·10{str(power).translate(SUPERSCRIPT)}"


LISTED = 12
TASKS = {"causal loss": "perplexity", "masked loss": "the perplexity of masked tokens"}


def listed(dims: Sequence[int | str]) -> str:
    """Dimensions in a sentence: "100, 247 and 507"."""
    shown = [str(dim) for dim in dims[:LISTED]]
    if len(dims) > LISTED:
        return ", ".join(shown) + f" and {len(dims) - LISTED} more"
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def these(dims: Sequence[int | str], what: str = "dimension") -> str:
    """Dimensions, or what else they are, in a sentence, called so: "dimensions 100, 247 and 507"."""
    return f"{what}{'s' if len(dims) > 1 else ''} {listed(dims)}"


def factor(change: float) -> str:
    """exp(change) for reading, without the sign ×: "1.02", "992", "12,300", "3.1·10⁹"."""
    return power_of_ten(change / math.log(10)) if change > math.log(1e6) else number(math.exp(change))


def few(dims: Sequence[Any], most: int = 6) -> str:
    """Dimensions, or neurons, as text, cut after `most`."""
    ordered = sorted(map(str, dims), key=lambda dim: [int(part) for part in dim.split(":")])
    shown = ", ".join(ordered[:most])
    return shown + (f" and {len(dims) - most} more" if len(dims) > most else "")


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def duration(seconds: float) -> str:
    """Seconds for reading: "4.5 s", "45 s", "12 min", "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60:,} h {minutes % 60:02} min"


# --- sections --------------------------------------------------------------------------------------------------------


class Change(float):
    """A difference: written with its sign."""

    def written(self) -> str:
        return f"{self:+z.3g}"


class Share(float):
    """A part of a whole, in [0, 1]: written in per cent."""

    def written(self) -> str:
        return percent(self)


class FineShare(Share):
    """A share whose tenths of a per cent matter."""

    def written(self) -> str:
        return f"{self:.1%}".replace("%", " %")


class Count(int):
    """How many there are: written with commas."""

    def written(self) -> str:
        return f"{self:,}"


class CountChange(Count):
    """A difference of numbers: written with commas and its sign."""

    def written(self) -> str:
        return f"{self:+,}"


class ExactValue(float):
    """A value as a model holds it, with the nine digits that tell any two of float32 apart."""

    def written(self) -> str:
        return f"{self:.9g}"


class P(float):
    """A p-value, in [0, 1]."""

    def written(self) -> str:
        return f"{self:.2g}"


class Fraction(NamedTuple):
    """A number of a total: 4/30."""

    n: int
    of: int

    def written(self) -> str:
        return f"{self.n}/{self.of}"


class Interval(NamedTuple):
    """A 95 % interval of a change; not finite where it is not settled."""

    low: float
    high: float

    def written(self) -> str:
        return interval_text(*self, "+.3g")


class Span(NamedTuple):
    """A 95 % interval of a value that is not a change; not finite where it is not settled."""

    low: float
    high: float

    def written(self) -> str:
        return interval_text(*self, ",.0f" if max(map(abs, self)) >= 1000 else ".3g")


class ShareInterval(NamedTuple):
    """A 95 % interval of a share; not finite where it is not settled."""

    low: float
    high: float

    def written(self) -> str:
        low, high = (100 * end for end in self)
        return interval_text(low, high, ".0f", "0 to 0") + " %" * math.isfinite(low + high)


class Spread(NamedTuple):
    """A value within its range or interval; both are written as the kind of number that the value is."""

    value: float
    low: float
    high: float

    def written(self) -> str:
        low, high = (cell_text(type(self.value)(end)) for end in self[1:])
        return cell_text(self.value) + (f" [{low}, {high}]" if self.low < self.high else "")


Cell = (
    str | int | float | Interval | Span | ShareInterval | Spread | Fraction | tuple[int, ...] | tuple[str, ...] | None
)


def cell_text(value: Any) -> str:
    """A cell for reading; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if hasattr(value, "written"):
        return str(value.written())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    return f"{value:.2g}" if 0 < size < 1e-4 else f"{value:.4g}"


def point(value: Any) -> Any:
    """The value of an estimate, which has ends beside it; anything else as it is."""
    return value.value if hasattr(value, "settled") else value


def text_of(value: Any) -> str:
    """A value as the name of a group: "8, 24" of a tuple, "" of None."""
    return "" if value is None else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def percent(share: float) -> str:
    """A share for reading that says 100 % only of all."""
    return "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


@dataclass(frozen=True)
class Rows:
    """A table: the first cell of a row is its heading; `note` stands below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page: its first sentence leads, the others are points; then charts, then tables.

    `drawn` are its charts, or what draws them when somebody looks: a terminal does not.
    """

    name: str
    title: str
    sentences: tuple[str, ...]
    drawn: "tuple[Chart, ...] | Callable[[], tuple[Chart, ...]]" = ()
    tables: tuple[Rows, ...] = ()

    @cached_property
    def charts(self) -> "tuple[Chart, ...]":
        """Its pictures, drawn once."""
        return self.drawn() if callable(self.drawn) else self.drawn


def numbered(section: Section, number: int) -> Section:
    """The section of the result `number` of its kind on a page, from 0: names there must not repeat."""
    return renamed(section, f"{section.name}-{number + 1}") if number else section


def renamed(section: Section, name: str) -> Section:
    """The section under another name, which its charts' names then begin with."""

    def drawn() -> "tuple[Chart, ...]":
        return tuple(replace(one, name=one.name.replace(section.name, name, 1)) for one in section.charts)

    return replace(section, name=name, drawn=drawn)


PARTS = ("stacks", "tuned", "tables", "parts")  # of results, by the name of their field


def notes_of(found: Any) -> tuple[str, ...]:
    """Remarks of a result and of its parts, each once; of several streams with their names."""
    return tuple(dict.fromkeys(_notes(found)))


def _notes(found: Any) -> Iterator[str]:
    yield from getattr(found, "notes", ())
    for name in PARTS:
        parts = getattr(found, name, ())
        for part in parts:
            said = f"{part.stack}: " if len(parts) > 1 and name == "stacks" else ""
            yield from (said + note for note in _notes(part))


SHOWN = 120  # rows of a table on the page; the result's file has all


def round_to(value: float, digits: int = 4) -> float | None:
    """`value` to that many significant digits, None where it is not finite (JSON has no such number)."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
