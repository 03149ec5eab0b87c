"""The pictures of a replication, beside its result: `write_views(directory, made)`.

figure-2.html, outliers-against-random.html       each chart as a page of its own
charts/*.svg, *.png, *.vl.json                     the same as files
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from outlierlens.errors import BadFile, BadInput
from outlierlens.replicate.glue.charts import short
from outlierlens.replicate.glue.measure import RESULT, sweeps_of
from outlierlens.replicate.glue.result import Replication
from outlierlens.report import chart_page
from outlierlens.results.document import load
from outlierlens.results.safe_files import refuse_links, write_bytes, write_text
from outlierlens.view import charts
from outlierlens.view.charts.base import PictureKind, pictures


def write_views(directory: Path, made: Replication, beside: Sequence[Replication] = ()) -> list[Path]:
    """Draw figure 2 from the sweeps in `directory`, and the outliers of `made` and `beside` against random sets.

    Returns the pages that were written; what was not measured is not drawn.
    """
    refuse_links(directory, "charts", "*.html")
    drawn = []
    outliers = tuple(dict.fromkeys(dim for one in made.tables for dim in one.dims))
    with suppress(BadInput):
        drawn.append(charts.figure2(sweeps_of(directory, made), outliers, model=short(made.base)))
    with suppress(BadInput):
        drawn.append(charts.outliers_against_random((made, *beside)))
    kinds: tuple[PictureKind, ...] = ("vl.json", "svg", "png") if charts.can_export() else ("vl.json",)
    pages = []
    for chart in drawn:
        for kind, content in pictures(chart, kinds).items():
            write_bytes(directory / "charts" / f"{chart.name}.{kind}", content)
        pages.append(write_text(directory / f"{chart.name}.html", chart_page(chart)))
    return pages


def read_replication(path: Path) -> Replication:
    """The result in a run directory of `replicate`, or in its file.

    Raises:
        BadFile: no such file, or another result.
    """
    path = path / RESULT if path.is_dir() else path
    found = load(path)
    if not isinstance(found, Replication):
        raise BadFile(f"{path} holds a {type(found).__name__}; name a run directory of replicate")
    return found
