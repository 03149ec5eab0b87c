"""What is said of a result, once for every surface: sections of sentences, charts and tables.

Section("probe", "Where positions are read", ("The probe …",), (chart,), (Rows("Accuracy", ("layer", "accuracy"), rows),))

A cell says what it is by its type, which says how it is written:

Change(0.25), Interval(0.1, 0.4), Span(0.8, 0.9), Share(0.05), FineShare(0.052), Count(9000), P(0.003), 0.12, "emb", None
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from outlierlens.statistics.words import interval_text

if TYPE_CHECKING:
    from outlierlens.view.charts.base import Chart


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


class Exact(float):
    """A value as a model holds it, with the nine digits that tell any two of float32 apart."""

    def written(self) -> str:
        return f"{self:.9g}"


class P(float):
    """A p-value, in [0, 1]."""

    def written(self) -> str:
        return f"{self:.2g}"


class Of(NamedTuple):
    """So many of so many: 4/30."""

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
    """A 95 % interval of a value that is no change; not finite where it is not settled."""

    low: float
    high: float

    def written(self) -> str:
        return interval_text(*self, ".3g")


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


Cell = str | int | float | Interval | Span | ShareInterval | Spread | Of | tuple[int, ...] | tuple[str, ...] | None


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


NAMED = ("scans", "stacks")
PARTS = (*NAMED, "tuned", "tables", "parts")  # of results, by the name of their field


def notes_of(found: Any) -> tuple[str, ...]:
    """Remarks of a result and of its parts, each once; of several streams or models with their names."""
    return tuple(dict.fromkeys(_notes(found)))


def _notes(found: Any) -> Iterator[str]:
    yield from getattr(found, "notes", ())
    for name in PARTS:
        parts = getattr(found, name, ())
        for part in parts:
            said = f"{_name(part)}: " if len(parts) > 1 and name in NAMED else ""
            yield from (said + note for note in _notes(part))


def _name(part: Any) -> str:
    return str(part.stack if hasattr(part, "stack") else part.provenance.model)


SHOWN = 120  # rows of a table on the page; the result's file has all


def rows_of(title: str, rows: Iterable[Mapping[str, Any]], note: str = "", *, without: Iterable[str] = ()) -> Rows:
    """A table of flat rows, with a column for every name that one of them has, in the order in which they come."""
    listed = list(rows)
    heads = [name for name in dict.fromkeys(name for row in listed for name in row) if name not in set(without)]
    cells = tuple(tuple(row.get(name) for name in heads) for row in listed[:SHOWN])
    left = f"And {len(listed) - SHOWN:,} more rows in the result's file." if len(listed) > SHOWN else ""
    return Rows(title, tuple(name.replace("_", " ") for name in heads), cells, " ".join(filter(None, (note, left))))
