'''A row of a table, said once: its fields are the columns, the string below a field is the column's head and what it means.

    class Treatment(Row):
        change: Annotated[Estimate, Change]
        """change of the {task} ({unit}): minus the intact model's value, paired by text"""

From this come tables, `to_pandas`, a picture's axes, tooltips and caption, and the page of the API. Words in braces are
fields of the finding's `About`. Axes of arrays ("text") are checked when a file is read.
'''

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, cast, get_type_hints

import numpy as np

from outlierlens.options import docstrings
from outlierlens.view.section import (
    SHOWN,
    Cell,
    Change,
    Interval,
    Rows,
    Share,
    ShareInterval,
    Span,
    cell_text,
    point,
    text_of,
)

MOST_ACROSS = 24  # columns of a pivot; more cannot be read


class Quiet:
    """Mark of a field that is saved but not a column of a table; values per text are not a column of a data frame either."""


class More:
    """Mark of a field that is a column with --verbose alone."""


class Draws:
    """Mark of a field with one value for each random set: their median and their largest are columns."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval.

    Attributes:
        value: the point estimate; NaN where there is none.
        low, high: ends of the interval; NaN where it is not settled, such as from too few texts.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):  # one NaN, which is equal to itself where estimates are compared
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, math.nan)

    @property
    def settled(self) -> bool:
        """Whether it has an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def side(self, level: float = 0.0) -> int:
        """1 where the whole interval is above `level`, -1 where it is below, else 0."""
        return int(self.low > level) - int(self.high < level)

    def written(self, form: str = "+.3g", *, why: str = "") -> str:
        """ "+0.25 (95 % interval +0.1 to +0.4)"; `why` stands in brackets where there is no interval."""
        ends = f"95 % interval {self.low:{form}} to {self.high:{form}}" if self.settled else why
        return f"{self.value:{form}}" + (f" ({ends})" if ends else "")

    def percent(self) -> str:
        """Of a share: "97 % (91 to 99 %)"."""
        if not math.isfinite(self.value):
            return "an unknown share"
        ends = f" ({round(100 * self.low)} to {round(100 * self.high)} %)" if self.settled else ""
        return f"{round(100 * self.value)} %{ends}"


UNKNOWN = Estimate(math.nan)
ENDS: dict[Any, Any] = {Change: Interval, Share: ShareInterval}  # how an interval is written, by the kind of its value


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row; a kind of row is a frozen dataclass whose fields are its columns."""

    note: ClassVar[str] = ""  # below its table
    axes_apart: ClassVar[bool] = False  # whether an axis may have another size in each row

    @classmethod
    def columns(cls) -> "tuple[Column, ...]":
        """The columns of this kind of row, in the order of its fields."""
        return _columns(cast(Any, cls))

    def flat(self) -> dict[str, Any]:
        """{name: value} for a data frame; an `Estimate` makes three: "change", "change_low", "change_high"."""
        return {key: v for one in self.columns() for key, v in one.flat(getattr(self, one.name))}


@dataclass(frozen=True)
class Column:
    """A field of a row: its name, its head, what it means, and how its cells are written (a type of `view.section`)."""

    name: str
    head: str
    about: str
    kind: type | None
    marks: frozenset[type]

    def cells(self, values: Sequence[Any], *, verbose: bool = False) -> Iterator[tuple[str, list[Cell]]]:
        """(head, cells) of each column that the field makes in a table; none where it has nothing to say."""
        if Quiet in self.marks or (More in self.marks and not verbose) or all(map(_silent, values)):
            return
        if Draws in self.marks:
            yield "random median", [self._cell(float(np.median(draws))) if draws else None for draws in values]
            yield "random largest", [self._cell(max(draws)) if draws else None for draws in values]
            return
        yield self.head, [None if _silent(one) else self._cell(point(one)) for one in values]
        if any(isinstance(one, Estimate) and one.settled for one in values):
            ends = ENDS.get(self.kind, Span)
            yield (
                "95 %",
                [ends(one.low, one.high) if isinstance(one, Estimate) and one.settled else None for one in values],
            )

    def _cell(self, value: Any) -> Cell:
        cell: Cell = self.kind(value) if self.kind else value
        return cell

    def flat(self, value: Any) -> Iterator[tuple[str, Any]]:
        """(name, value) of each column of a data frame."""
        if isinstance(value, Estimate):
            yield from ((self.name, value.value), (f"{self.name}_low", value.low), (f"{self.name}_high", value.high))
        elif Draws in self.marks:
            yield f"{self.name}_median", float(np.median(value)) if value else math.nan
            yield from ((f"{self.name}_largest", max(value, default=math.nan)), (f"n_{self.name}", len(value)))
        elif not (Quiet in self.marks and isinstance(value, tuple | dict | np.ndarray)):
            yield self.name, text_of(value) if isinstance(value, tuple) else math.nan if value is None else value


@cache
def _columns(kind: Any) -> tuple[Column, ...]:
    hints, below = get_type_hints(kind, include_extras=True), docstrings(kind)
    found = []
    for one in fields(kind):
        marks = [mark for mark in getattr(hints[one.name], "__metadata__", ()) if isinstance(mark, type)]
        head, _, about = below.get(one.name, one.name.replace("_", " ")).partition(": ")
        cell = next((mark for mark in marks if mark not in (Quiet, More, Draws)), None)
        found.append(Column(one.name, head, about, cell, frozenset(marks)))
    return tuple(found)


def _silent(value: Any) -> bool:
    return value is None or (isinstance(value, tuple | dict) and not value) or cell_text(point(value)) in ("–", "")


@dataclass(frozen=True)
class Pivot:
    """How a table is laid out over two fields of its rows: `down` (layers), `across` (dimensions), and what a cell holds."""

    down: str
    across: str
    cell: str

    def table(self, title: str, rows: Sequence[Row], note: str, words: Mapping[str, Any]) -> Rows:
        """One line for each value of `down`, none cut off; columns beyond `MOST_ACROSS` are counted below it."""
        columns = {one.name: one for one in rows[0].columns()}
        found = {(getattr(row, self.down), getattr(row, self.across)): getattr(row, self.cell) for row in rows}
        lines, heads = (list(dict.fromkeys(place[axis] for place in found)) for axis in (0, 1))
        column, more = columns[self.cell], len(heads) - MOST_ACROSS
        cells = tuple(
            (
                text_of(line),
                *(
                    next((one for _, (one,) in column.cells([found.get((line, head))])), None)
                    for head in heads[:MOST_ACROSS]
                ),
            )
            for line in lines
        )
        said = (
            note,
            column.head.format_map(words) + ".",
            f"And {more:,} more columns in the result's file." * (more > 0),
        )
        first = columns[self.down].head.format_map(words)
        return Rows(title, (first, *map(text_of, heads[:MOST_ACROSS])), cells, " ".join(filter(None, said)))


def table(title: str, rows: Sequence[Row], note: str, words: Mapping[str, Any], *, verbose: bool = False) -> Rows:
    """Rows as a table, the first `SHOWN` of them; `words` stand in heads: "change of the {task}"."""
    made = [
        (head.format_map(words), cells)
        for column in rows[0].columns()
        for head, cells in column.cells([getattr(row, column.name) for row in rows[:SHOWN]], verbose=verbose)
    ]
    more = f"And {len(rows) - SHOWN:,} more rows in the result's file." if len(rows) > SHOWN else ""
    heads, cells = zip(*made, strict=True)
    return Rows(title, heads, tuple(zip(*cells, strict=True)), " ".join(filter(None, (note, rows[0].note, more))))
