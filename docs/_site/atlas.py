"""The packaged atlas as a searchable page of the site: `atlas/index.html`."""

from pathlib import Path

from sphinx.application import Sphinx

from outlierlens.analyses.atlas import write_site
from outlierlens.analyses.atlas_lookup import ATLAS
from outlierlens.analyses.atlas_rows import read_rows


def write(app: Sphinx, error: Exception | None) -> None:
    """Beside the finished pages."""
    if error is None and app.builder.name == "html":
        folder = Path(app.outdir) / "atlas"
        folder.mkdir(exist_ok=True)
        write_site(read_rows(ATLAS), folder)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
