"""Sections as text on a terminal, and as plain HTML for notebooks.

On a terminal, words of models and files are shown as they are, never as markup. In HTML there is no script and everything is
escaped; here stands also what a page with scripts needs to load.
"""

import base64
import hashlib
import html
import io
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from outlierlens.errors import markdown, printable
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
    words = [
        any(isinstance(row[place], str) or hasattr(row[place], "pieces") for row in table.rows)
        for place in range(len(table.columns))
    ]
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


# --- HTML ------------------------------------------------------------------------------------------------------------


def sections_html(sections: Iterable[Section]) -> str:
    """Headings, sentences and tables; charts are functions of `outlierlens.view.charts`."""
    return "".join(_section(section) for section in sections)


def _section(section: Section) -> str:
    said = "".join(f"<p>{_escaped(sentence)}</p>" for sentence in section.sentences)
    return f"<h3>{_escaped(section.title)}</h3>{said}{''.join(map(_table, section.tables))}"


def _table(table: Rows) -> str:
    head = "".join(f"<th>{_escaped(column)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{_escaped(cell_text(value))}</td>" for value in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    note = f"<p>{_escaped(table.note)}</p>" if table.note else ""
    title = _escaped(table.title)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def policy(*scripts: str) -> str:
    """The page's Content-Security-Policy: nothing from anywhere, and of scripts these alone."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'none'; "
        "base-uri 'none'; form-action 'none'"
    )


def escaped_json(value: Any) -> str:
    """JSON that is safe inside a script element: no text in it can end the element or open another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# --- Markdown --------------------------------------------------------------------------------------------------------

MARKDOWN_ROWS = 12  # of a table, where a reader has no way to scroll


def sections_markdown(sections: Iterable[Section]) -> str:
    """Headings, sentences and the first rows of tables, for a model's card; everything is escaped."""
    lines = list[str]()
    for section in sections:
        lines += [f"### {markdown(section.title)}", "", *(f"- {markdown(one)}" for one in section.sentences), ""]
        for table in section.tables:
            left = len(table.rows) - MARKDOWN_ROWS
            note = " ".join(filter(None, (table.note, f"And {left:,} more rows." if left > 0 else "")))
            lines += [
                f"**{markdown(table.title)}**",
                "",
                *table_markdown(table.columns, table.rows[:MARKDOWN_ROWS]),
                "",
            ]
            lines += [markdown(note), ""] if note else []
    return "\n".join(lines)


def table_markdown(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """A table, line by line."""
    cells = [markdown(head) for head in heads]
    yield f"| {' | '.join(cells)} |"
    yield f"|{'---|' * len(cells)}"
    for row in rows:
        yield f"| {' | '.join(markdown(cell_text(cell)) for cell in row)} |"
