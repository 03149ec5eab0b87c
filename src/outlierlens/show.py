"""Rows as plain HTML tables for notebooks: no library, everything escaped."""

import html
from collections.abc import Mapping, Sequence
from typing import Any


def html_table(rows: Sequence[Mapping[str, Any]], *, caption: str) -> str:
    """An HTML table of flat rows; text is escaped, floats get four significant digits."""
    if not rows:
        return f"<p>{html.escape(caption)}: nothing found.</p>"
    head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:z.4g}" if isinstance(value, float) else html.escape(str(value))
