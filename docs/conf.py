"""The documentation's site: `make site` builds these pages with Sphinx into build/site.

The pages are plain Markdown that reads on a code host as it stands; what only the site needs is in `_site/`:

atlas       the packaged atlas, as `atlas page` shows it
contents    the navigation, from the lists of index.md
formulas    mathematics as MathML: no script, no font, nothing from outside
reference   pages of commands, Python names and model types, made when the site is built
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "src")]

from outlierlens import __version__  # noqa: E402

project = "outlierlens"
author = "The outlierlens authors"
project_copyright = "The outlierlens authors; Apache-2.0"
release = version = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "_site.atlas",
    "_site.contents",
    "_site.formulas",
    "_site.reference",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["_site"]
smartquotes = False  # quotes stand in the pages as they should be
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_dmath_double_inline = False
myst_heading_anchors = 4  # `page.md#a-heading`, as code hosts make them

nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # a type in a signature that no page tells of is plain text
toc_object_entries = False  # hundreds of names; the tables lead to each
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"outlierlens {__version__}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = (
    False  # it fetches every page found, which browsers refuse where the site is opened from files
)
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
