"""`--chart FILE`: a result drawn to a file, checked before any work.

check_chart(path, replace=overwrite)
write_chart(path, charts.survival(found))
"""

from pathlib import Path
from typing import TYPE_CHECKING

from outlierlens.errors import BadInput, need

if TYPE_CHECKING:
    from outlierlens.view.charts.base import Chart, PictureKind

CHART_KINDS: "dict[str, PictureKind | None]" = {".html": None, ".svg": "svg", ".png": "png", ".json": "vl.json"}


def check_chart(path: Path | None, *, replace: bool, remedy: str = "use --overwrite") -> None:
    """Raise before any work where the chart could not be drawn to `path`.

    Raises:
        BadInput: an ending that says nothing, or a file that exists and may not be replaced; `remedy` says how it may.
        MissingExtra: pictures need a library that is not installed.
    """
    if path is None:
        return
    if path.suffix.lower() not in CHART_KINDS:
        raise BadInput(f"--chart {path}: the ending says what is drawn; use {', '.join(CHART_KINDS)}")
    if path.suffix.lower() in (".svg", ".png"):
        need("vl_convert", "charts", f"drawing {path}")
    if path.exists() and not replace:
        raise BadInput(f"{path} exists; name another file for --chart, or {remedy}")


def write_chart(path: Path, chart: "Chart") -> Path:
    """Draw to `path` what its ending says."""
    from outlierlens.report import chart_page
    from outlierlens.results.safe_files import write_bytes
    from outlierlens.view.charts.base import picture

    kind = CHART_KINDS[path.suffix.lower()]
    return write_bytes(path, chart_page(chart).encode() if kind is None else picture(chart, kind))
