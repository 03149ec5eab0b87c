"""Self-contained pages with charts: `document`, pieces of them: `fragment`, and one chart alone: `chart_page`.

A page loads nothing. Its policy allows exactly its own two scripts, by hash, and no connection at all. Text from a model or a
data set reaches it through Jinja's escaping or inside JSON with every "<", ">" and "&" written as an escape.

How much room a chart takes on a page, so that it is kept free until the chart is drawn and nothing moves.
"""

import functools
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from outlierlens.view.charts.base import CONFIG, DARK, LIGHT, Chart, Spec, css, visible
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


# --- room of a chart -------------------------------------------------------------------------------------------------


AXIS = 64  # pixels below the marks of a chart: labels, title, and the space above them
PANEL_TITLE = 36
LINE = 18  # of a legend or a title


def room(chart: Chart) -> int:
    """About the height of a chart on a page, in pixels."""
    return _height(chart.spec)


def _height(spec: Spec) -> int:
    parts: list[Spec] = next((spec[key] for key in ("vconcat", "hconcat", "concat") if key in spec), [])
    if parts:
        heights = [_height(part) for part in parts]
        return sum(heights) if "vconcat" in spec else max(heights)
    inner = spec.get("spec", spec)
    height = inner.get("height", 300)
    layers = [inner, *inner.get("layer", [])]
    lines = max(map(_legend_lines, layers))
    titles = [layer.get("encoding", {}).get("x", {}).get("title") for layer in layers]
    lines += max(len(title) - 1 if isinstance(title, list) else 0 for title in titles)
    marks = [layer["mark"] for layer in layers if isinstance(layer.get("mark"), dict)]
    above = max(
        (-mark["y"] for mark in marks if isinstance(mark.get("y"), int | float)), default=0
    )  # names over columns
    title = PANEL_TITLE if inner.get("title") else 0
    return round((height if isinstance(height, int | float) else 300) + AXIS + LINE * lines + max(0, above - 9) + title)


def _legend_lines(spec: Spec) -> int:
    """Lines of the longest legend of a layer."""
    lines = [0]
    for channel in spec.get("encoding", {}).values():
        if isinstance(channel, dict) and channel.get("legend"):
            names = channel.get("scale", {}).get("domain", [])
            columns = channel["legend"].get("columns", CONFIG["legend"]["columns"])
            lines.append(math.ceil(len(names) / columns) if isinstance(names, list) and columns else 1)
    return max(lines)
