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
    return "\n".join([out.getvalue().strip(), *(printable(f"note: {note}") for note in notes)])


def print_section(section: Section, out: TextIO) -> None:
    """Its sentences, a line each, and its tables with their notes."""
    for sentence in section.sentences:
        print(printable(sentence), file=out)
    for table in section.tables:
        print_rows(table, out)


def print_rows(table: Rows, out: TextIO | None = None) -> None:
    """A table; columns of words are aligned left, columns of numbers right."""
    from rich.cells import cell_len

    out = out or sys.stdout
    if table.title:
        print(f"\n{printable(table.title)}", file=out)  # a title of the drawn table would be broken at its width
    words = [any(isinstance(row[place], str) for row in table.rows) for place in range(len(table.columns))]
    lines = [
        tuple(map(printable, table.columns)),
        *(tuple(printable(cell_text(value)) for value in row) for row in table.rows),
    ]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    if out.isatty() or sum(widths) + 2 * len(widths) - 2 > WIDTH:
        _draw(lines, words, out)
    else:
        for line in lines:
            cells = []
            for text, width, left in zip(line, widths, words, strict=True):
                blanks = " " * (width - cell_len(text))
                cells.append(text + blanks if left else blanks + text)
            print("  ".join(cells), file=out)
    if table.note:
        print(printable(table.note), file=out)


def _draw(lines: list[tuple[str, ...]], words: list[bool], out: TextIO) -> None:
    """Columns folded where they are wider than the terminal together, under bold names."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for title, left in zip(lines[0], words, strict=True):
        drawn.add_column(Text(title), justify="left" if left else "right")
    for line in lines[1:]:
        drawn.add_row(*map(Text, line))
    Console(file=out, width=None if out.isatty() else WIDTH).print(drawn)
