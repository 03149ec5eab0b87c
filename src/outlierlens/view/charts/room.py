"""How much room a chart takes on a page, so that it is kept free until the chart is drawn and nothing moves."""

import math

from outlierlens.view.charts.base import CONFIG, Chart, Spec

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
