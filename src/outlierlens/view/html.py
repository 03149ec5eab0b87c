"""Sections as plain HTML for notebooks: no script, everything escaped. And what a page with scripts needs to load nothing.

page = f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}"> … {escaped_json(data)} … {script}'
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator
from typing import Any

from outlierlens.errors import printable
from outlierlens.view.section import Rows, Section, cell_text


def sections_html(sections: Iterable[Section]) -> str:
    """Headings, sentences and tables; charts are functions of `outlierlens.view.charts`."""
    return "".join(_section(section) for section in sections)


def _section(section: Section) -> str:
    said = "".join(f"<p>{_escaped(sentence)}</p>" for sentence in section.sentences)
    return f"<h3>{_escaped(section.title)}</h3>{said}{''.join(map(_table, section.tables))}"


def _table(table: Rows) -> str:
    head = "".join(f"<th>{_escaped(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in table.rows)
    note = f"<p>{_escaped(table.note)}</p>" if table.note else ""
    title = _escaped(table.title)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cells(row: tuple[Any, ...]) -> Iterator[str]:
    return (f"<td>{_escaped(cell_text(value))}</td>" for value in row)


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
