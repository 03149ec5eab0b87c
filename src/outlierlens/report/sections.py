"""A part of the page that is sentences, charts and tables: what a paper's experiments come to.

Section("luo-probe", "Where positions are read", ("The probe …",), (chart,), (Rows("Accuracy", ("layer", "accuracy"), rows),))
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlierlens.charts import Chart


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
    charts: tuple[Chart, ...] = ()
    tables: tuple[Rows, ...] = ()


SHOWN = 120  # rows of a table on the page; the result's file has all


def rows_of(title: str, rows: Iterable[Mapping[str, Any]], note: str = "", *, without: Iterable[str] = ()) -> Rows:
    """A table of flat rows, with a column for every name that one of them has, in the order in which they come."""
    listed = list(rows)
    heads = [name for name in dict.fromkeys(name for row in listed for name in row) if name not in set(without)]
    cells = tuple(tuple(_known(row.get(name)) for name in heads) for row in listed[:SHOWN])
    left = f"And {len(listed) - SHOWN:,} more rows in the result's file." if len(listed) > SHOWN else ""
    return Rows(title, tuple(name.replace("_", " ") for name in heads), cells, " ".join(filter(None, (note, left))))


def _known(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
