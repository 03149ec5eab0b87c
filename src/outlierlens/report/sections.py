"""A part of the page that is sentences, charts and tables: what a paper's experiments come to.

Section("luo-probe", "Where positions are read", ("The probe …",), (chart,), (Rows("Accuracy", ("layer", "accuracy"), rows),))
"""

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
