"""Charts as SVG and PNG files, without a browser and without a network: `picture(chart, "png")`."""

import importlib.util
import json
from typing import Literal

from outlierlens.charts.base import Chart
from outlierlens.errors import need

PNG_SCALE = 2.0
PictureKind = Literal["svg", "png", "vl.json"]


def can_export() -> bool:
    """Whether the library that draws picture files is installed."""
    return importlib.util.find_spec("vl_convert") is not None


def picture(chart: Chart, kind: PictureKind) -> bytes:
    """The chart as a file's bytes, in light colours; raises MissingExtra without vl-convert (not for "vl.json")."""
    if kind == "vl.json":
        return (json.dumps(chart.plain(), ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    convert = need("vl_convert", "charts", "drawing charts as files")
    # No address is allowed: a specification holds its data, and nothing is fetched.
    svg = convert.vegalite_to_svg(chart.plain(), allowed_base_urls=[])
    return svg.encode() if kind == "svg" else convert.svg_to_png(svg, scale=PNG_SCALE)
