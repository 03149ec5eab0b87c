"""Self-contained pages with charts: `document`, pieces of them: `fragment`, and one chart alone: `chart_page`.

A page loads nothing. Its policy allows exactly its own two scripts, by hash, and no connection at all. Text from a model or a
data set reaches it through Jinja's escaping or inside JSON with every "<", ">" and "&" written as an escape.
"""

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from outlierlens.view.charts.base import DARK, LIGHT, Chart, css, visible
from outlierlens.view.charts.room import room
from outlierlens.view.render import escaped_json, policy
from outlierlens.view.section import cell_text, number

HTML = Path(__file__).parent / "html"  # templates of every page, its style and its scripts


def chart_page(chart: Chart) -> str:
    """One chart as a self-contained HTML document, under the same policy as a report."""
    return document(HTML, "chart.html.jinja", [chart], chart=chart)


def document(folder: Path, template: str, charts: Sequence[Chart], **values: Any) -> str:
    """A self-contained page: what a template in `folder` makes of `values`, and all that draws `charts` in it."""
    draws, script = runtime(), _file("script.js")
    page = fragment(
        folder,
        template,
        policy=policy(draws, script),
        style=Markup(_coloured_style()),
        runtime=Markup(draws),
        script=Markup(script),
        specs=Markup(escaped_json({chart.name: chart.spec for chart in charts})),
        **values,
    )
    # A lone surrogate, which a JSON file can hold, is no character and cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def fragment(folder: Path, template: str, **values: Any) -> str:
    """A piece of HTML: what a template in `folder` makes of `values`; it may use those of every page."""
    return _environment(folder).get_template(template).render(**values)


def runtime() -> str:
    """The script that draws charts from their specifications."""
    return _file("vega.js")


def style() -> str:
    """The style sheet of a page, without its colours."""
    return _file("style.css")


@functools.cache
def _file(name: str) -> str:
    return (HTML / name).read_text("utf-8").replace("\r\n", "\n")


def _coloured_style() -> str:
    """The style sheet after the colours: light, dark on a screen whose reader prefers it, always light on paper."""
    dark = f":root{{color-scheme:dark;{css(DARK)}}}"
    colours = f":root{{{css(LIGHT)}}}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
    return colours + style()


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, HTML]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "visible": visible, "cell": _cell, "moment": _moment, "room": room}
    return environment


def _moment(created: str) -> str:
    """A time stamp for reading: "2026-11-22 06:40 UTC"; as it is where it is none."""
    try:
        return datetime.fromisoformat(created).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return visible(created)


def _cell(value: Any) -> str:
    return visible(cell_text(value))
