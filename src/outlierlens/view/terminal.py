"""Sections as text on a terminal; words of models and files are shown as they are, never as markup."""

import io
import sys
from collections.abc import Iterable
from typing import TextIO

from outlierlens.errors import printable
from outlierlens.view.section import Rows, Section, cell_text

WIDTH = 200  # columns, where the output is no terminal


def printed(sections: Iterable[Section], notes: Iterable[str]) -> str:
    """What the command prints of these sections, and the notes behind them."""
    out = io.StringIO()
    for section in sections:
        print_section(section, out)
    return "\n".join([out.getvalue().strip(), *(f"note: {note}" for note in notes)])


def print_section(section: Section, out: TextIO) -> None:
    """Its sentences, a line each, and its tables with their notes."""
    for sentence in section.sentences:
        print(printable(sentence), file=out)
    for table in section.tables:
        print_rows(table, out)


def print_rows(table: Rows, out: TextIO | None = None) -> None:
    """A table; columns of words are aligned left, columns of numbers right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = out or sys.stdout
    if table.title:
        print(f"\n{printable(table.title)}", file=out)  # a title of the drawn table would be broken at its width
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for place, title in enumerate(table.columns):
        words = any(isinstance(row[place], str) for row in table.rows)
        drawn.add_column(Text(title), justify="left" if words else "right")
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell_text(value))) for value in row))
    Console(file=out, width=None if out.isatty() else WIDTH).print(drawn)
    if table.note:
        print(printable(table.note), file=out)
