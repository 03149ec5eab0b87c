"""What is said of a result, once for every surface: sections of sentences, charts and tables.

Section("probe", "Where positions are read", ("The probe …",), (chart,), (Rows("Accuracy", ("layer", "accuracy"), rows),))

A cell says what it is by its type, and `cell_text` alone decides how it is written:

Change(0.25), Interval(0.1, 0.4), Share(0.05), P(0.003), 0.123, 12, "embeddings", None
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.charts import Chart


class Change(float):
    """A difference: written with its sign."""


class Share(float):
    """A part of a whole, in [0, 1]: written in per cent."""


class P(float):
    """A p-value, in [0, 1]."""


class Interval(NamedTuple):
    """A 95 % interval of a change; not finite where it is not settled."""

    low: float
    high: float


Cell = str | int | float | Interval | tuple[int, ...] | tuple[str, ...] | None


def cell_text(value: Any) -> str:
    """A cell for reading; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, Interval):
        return interval_text(*value, "+.3g")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if not isinstance(value, float):
        return str(value)
    if isinstance(value, Change):
        return f"{value:+z.3g}"
    if isinstance(value, Share):
        return percent(value)
    if isinstance(value, P):
        return f"{value:.2g}"
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    return f"{value:.2g}" if 0 < size < 1e-4 else f"{value:.4g}"


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
    """A section of the page: its first sentence leads, the others are points; then charts, then tables."""

    name: str
    title: str
    sentences: tuple[str, ...]
    charts: "tuple[Chart, ...]" = ()
    tables: tuple[Rows, ...] = ()


def numbered(section: Section, number: int) -> Section:
    """The section of the result `number` of its kind on a page, from 0: names there must not repeat."""
    if not number:
        return section
    charts = tuple(
        replace(one, name=one.name.replace(section.name, f"{section.name}-{number + 1}", 1)) for one in section.charts
    )
    return replace(section, name=f"{section.name}-{number + 1}", charts=charts)


SHOWN = 120  # rows of a table on the page; the result's file has all


def rows_of(title: str, rows: Iterable[Mapping[str, Any]], note: str = "", *, without: Iterable[str] = ()) -> Rows:
    """A table of flat rows, with a column for every name that one of them has, in the order in which they come."""
    listed = list(rows)
    heads = [name for name in dict.fromkeys(name for row in listed for name in row) if name not in set(without)]
    cells = tuple(tuple(row.get(name) for name in heads) for row in listed[:SHOWN])
    left = f"And {len(listed) - SHOWN:,} more rows in the result's file." if len(listed) > SHOWN else ""
    return Rows(title, tuple(name.replace("_", " ") for name in heads), cells, " ".join(filter(None, (note, left))))
