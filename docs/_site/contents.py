"""The site's navigation, from the lists of index.md.

Each `## heading` of index.md followed by a list of links to pages becomes a part of the navigation with that heading,
so that a page is named once, and index.md reads the same on a code host. A page that no list names fails a strict build.
The pages of the reference follow.
"""

import re

from sphinx.application import Sphinx

LINK = re.compile(r"^- \[([^\]]+)\]\(([\w-]+)\.md\)", re.MULTILINE)
REFERENCE = """```{toctree}
:hidden:
:caption: Reference
:glob:

reference/python
reference/results
reference/types
reference/model-types
reference/trainers
reference/commands
reference/*
```"""
OUTSIDE = re.compile(r"\]\(((?:\.\./)+(?:(?:src|examples|benchmarks|scripts)/[^)#]*|[A-Z]+\.md))(?:#[\w-]+)?")


def toctrees(text: str) -> str:
    """Hidden `toctree` directives for the lists of links in a page."""
    parts = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        pages = [f"{title} <{page}>" for title, page in LINK.findall(section)]
        if pages:
            options = [":hidden:", f":caption: {section.splitlines()[0].strip()}"]
            parts.append("\n".join(["```{toctree}", *options, "", *pages, "```"]))
    return "\n\n".join(parts)


def add(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation to the start page as it is read; files beside the docs become downloads."""
    source[0] = OUTSIDE.sub(r"](path:\1", source[0])
    if page == app.config.root_doc:
        source[0] += f"\n\n{toctrees(source[0])}\n\n{REFERENCE}\n"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add)
    return {"parallel_read_safe": True}
