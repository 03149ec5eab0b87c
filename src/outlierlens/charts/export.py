"""Charts as SVG and PNG files, without a browser and without a network: `picture(chart, "png")`."""

import importlib.util
import json
from collections.abc import Sequence
from typing import Literal

from outlierlens.charts.base import Chart
from outlierlens.charts.png import smaller
from outlierlens.errors import need

PNG_SCALE = 2.0
PictureKind = Literal["svg", "png", "vl.json"]


def can_export() -> bool:
    """Whether the library that draws picture files is installed."""
    return importlib.util.find_spec("vl_convert") is not None


def picture(chart: Chart, kind: PictureKind) -> bytes:
    """The chart as a file's bytes, in light colours; raises MissingExtra without vl-convert (not for "vl.json")."""
    return pictures(chart, (kind,))[kind]


def pictures(chart: Chart, kinds: Sequence[PictureKind]) -> dict[PictureKind, bytes]:
    """`picture` of each kind; as SVG and PNG the chart is drawn once."""
    made: dict[PictureKind, bytes] = {}
    if "vl.json" in kinds:
        made["vl.json"] = (json.dumps(chart.plain(), ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    if "svg" in kinds or "png" in kinds:
        convert = need("vl_convert", "charts", "drawing charts as files")
        # No address is allowed: a specification holds its data, and nothing is fetched.
        svg = convert.vegalite_to_svg(chart.plain(), allowed_base_urls=[])
        if "svg" in kinds:
            made["svg"] = svg.encode()
        if "png" in kinds:
            made["png"] = smaller(convert.svg_to_png(svg, scale=PNG_SCALE))
    return made
