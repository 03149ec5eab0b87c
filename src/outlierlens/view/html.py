"""Sections as plain HTML for notebooks: no script, everything escaped."""

import html
from collections.abc import Iterable, Iterator
from typing import Any

from outlierlens.view.section import Rows, Section, cell_text


def sections_html(sections: Iterable[Section]) -> str:
    """Headings, sentences and tables; charts are functions of `outlierlens.view.charts`."""
    return "".join(_section(section) for section in sections)


def _section(section: Section) -> str:
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in section.sentences)
    return f"<h3>{html.escape(section.title)}</h3>{said}{''.join(map(_table, section.tables))}"


def _table(table: Rows) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in table.rows)
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    title = html.escape(table.title)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cells(row: tuple[Any, ...]) -> Iterator[str]:
    return (f"<td>{html.escape(cell_text(value))}</td>" for value in row)
