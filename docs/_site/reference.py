"""The reference of the Python names: from their docstrings, which are written to be read as they stand.

The tables of a generated page (docs/generate.py) name what there is; when the site is built, each name's signature and
docstring is added below them, and names in signatures lead to where they are told of.
"""

import re
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

PAGES = ("api", "api-more", "api-results", "api-types")
NAME = re.compile(r"^\| `([\w.]+)` \| (function|class) \|", re.MULTILINE)
# Outside `code` these would be markup to reStructuredText: |z|, *args, a trailing underscore.
MARKS = re.compile(r"(`[^`]*`)|(?<!\\)([*|])|(?<=\w)(_)(?!\w)")
HEAD = re.compile(r"^(Attributes|Args|Raises|Yields|Returns):$")
ITEM = re.compile(r"^    (\S[^:]*): ?(.*)$")


def add(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a directive for each name in the tables of a reference page."""
    if page not in PAGES:
        return
    lines = []
    for name, kind in NAME.findall(source[0]):
        lines += [f".. auto{kind}:: {name}", "   :members:" if kind == "class" else "", ""]
    source[0] = NAME.sub(lambda row: f"| {{py:obj}}`{short(row[1])} <{row[1]}>` | {row[2]} |", source[0])
    source[0] += "\n## In full\n\n```{eval-rst}\n" + "\n".join(lines) + "\n```\n"


def short(name: str) -> str:
    """A public name as it is used (`ol.scan`), another one with the module it is imported from."""
    return re.sub(r"^outlierlens\.(?=\w+$)", "ol.", name)


def plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would take for markup, and make lists of a docstring's sections."""
    made, inside = [], False
    for line in (MARKS.sub(lambda found: found[1] or "\\" + (found[2] or found[3]), line) for line in lines):
        if line and not line.startswith(" "):
            inside = bool(HEAD.match(line))
        item = ITEM.match(line) if inside else None
        if item:
            made.append(f"* ``{item[1].replace(chr(92), '')}``: {item[2]}")
        elif inside and HEAD.match(line):
            made += [f"**{line[:-1]}**", ""]
        else:
            made.append(line.removeprefix("      ") if inside and line.startswith("      ") else line)
    lines[:] = made


def readable(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returned: str) -> Any:
    """A signature that is Python: a default that has no literal is `...`."""
    return (re.sub(r"<[^<>]+>", "...", signature), returned) if signature else None


def lead(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """The link for a name that is documented under another path than it was imported from."""
    last = node["reftarget"].rpartition(".")[2]
    if node.get("refdomain") != "py" or not last[:1].isupper():
        return None
    objects = env.domains.python_domain.objects
    homes = [(name, one) for name, one in objects.items() if name.endswith(f".{last}")]
    if len({(one.docname, one.node_id) for _, one in homes}) != 1:
        return None
    name, one = homes[0]
    return make_refnode(app.builder, node["refdoc"], one.docname, one.node_id, text, name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.config.default_role = "literal"  # type: ignore[attr-defined]  # `name` is code, as in Markdown
    app.connect("source-read", add)
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-process-signature", readable)
    app.connect("missing-reference", lead)
    return {"parallel_read_safe": True}
