"""The reference: commands, Python names and model types, written into `docs/reference/` when the site is built.

A command's page is what cyclopts makes of the program, with the examples of its row; Python names are their docstrings, which
are written to be read as they stand. In pages by hand the code `ablate` or `outlierlens ablate MODEL` links to the command's
page, and `ol.scan(…)` to the function's docstring: on a code host both are plain code.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import outlierlens.commands
from outlierlens.architectures import ARCHITECTURES
from outlierlens.architectures.rows import packaged
from outlierlens.checkpoints.trainers import TRAINERS
from outlierlens.cli.app import program, showing_everything
from outlierlens.experiments import BY_NAME
from outlierlens.options.experiment import GROUP_NAMES, title
from outlierlens.results.document import HOMES

FOLDER = Path(__file__).parent.parent / "reference"
IMPORTED = re.compile(r"^from (outlierlens\.[\w.]+) import ([\w, ]+)$", re.MULTILINE)
PART = re.compile(r"^\.\. _cyclopts-outlierlens-([\w-]+):\n\n.+\n.+\n", re.MULTILINE)
# Outside `code` these would be markup to reStructuredText: |z|, *args, a trailing underscore.
MARKS = re.compile(r"(`[^`]*`|\*\*\w[^*\n]*\*\*)|(?<!\\)([*|])|(?<=\w)(_)(?!\w)")
HEAD = re.compile(r"^(Attributes|Args|Raises|Yields|Returns):$")
ITEM = re.compile(r"^    (\S[^:]*): ?(.*)$")


# --- pages -----------------------------------------------------------------------------------------------------------


def pages() -> Iterator[tuple[str, str]]:
    """(name, reStructuredText) of every page."""
    yield "commands", page("Commands", *commands())
    with showing_everything():
        said = PART.split(program.__wrapped__().generate_docs(output_format="rst"))
    parts = dict(zip(said[1::2], said[2::2], strict=True))
    for name, row in BY_NAME.items():
        usage, about, options = parts[slug(name)].partition(row.about)
        usage = usage.replace(f"outlierlens {name} ", "", 1).strip()  # cyclopts says it twice
        calls = "\n".join(f"   $ outlierlens {one}" for one in row.examples)
        examples = f"**Examples:**\n\n.. code-block:: console\n\n{calls}"
        yield slug(name), page(f"outlierlens {name}", usage, escaped(about), examples, escaped(options.strip()))
    yield "python", page("Python", "``import outlierlens as ol``", *listed(python()))
    yield (
        "results",
        page(
            "Results",
            "Frozen dataclasses, which ``found.save(path)`` writes and ``ol.load`` reads.",
            *listed(results()),
        ),
    )
    yield "types", page("Parts of results, and options", *listed(parts_of(python(), results())))
    yield "model-types", page("Model types", *model_types())
    yield "trainers", page("Checkpoints of trainers", *trainers())


def page(head: str, *parts: str) -> str:
    return "\n\n".join([f"{head}\n{'=' * len(head)}", *parts]) + "\n"


def slug(name: str) -> str:
    return name.replace(" ", "-")


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A table with the columns of `head`, which are separated by commas."""
    lines = [f"   * - {escaped(f'{chr(10)}     - '.join(row))}" for row in [tuple(head.split(", ")), *rows]]
    return ".. list-table::\n   :header-rows: 1\n\n" + "\n".join(lines)


def commands() -> Iterator[str]:
    """Every command under its heading."""
    for group in GROUP_NAMES:
        rows = [row for row in BY_NAME.values() if row.group == group]
        listed = (f"* :doc:`{row.name} <{slug(row.name)}>`: {escaped(row.about.splitlines()[0])}" for row in rows)
        yield f"**{title(group)}**\n\n" + "\n".join(listed)


def model_types() -> Iterator[str]:
    yield "A type that is not listed is taken apart when it is first met. *read, write, stream*: where norms stand."
    known = {name: rows[0] for name, rows in packaged().items()}
    by_hand = {
        name: "declared by hand" for name, family in ARCHITECTURES.items() if family.stacks and name not in known
    }
    for name, row in known.items():
        norms = {stack.get("name", "model"): stack.get("norm_site", "read") for stack in row["stacks"]}
        by_hand[name] = "; ".join(f"{stream}: {site}" for stream, site in norms.items())
    rows = ((name, said, "; ".join(known.get(name, {}).get("unsettled", ()))) for name, said in sorted(by_hand.items()))
    yield table("type, streams, not established", rows)


def trainers() -> Iterator[str]:
    rows = []
    for form in TRAINERS:
        inside = f"`{'` in `'.join(reversed(form.inside))}`" if form.inside else "the file itself"
        several = "joined where names are known" if any("{rank}" in file for file in form.files) else ""
        rows.append((form.name, f"`{form.example}`", "refused" if form.refused else inside, several))
    yield table("written by, a file of step 100, where the model lies, several ranks", rows)


# --- Python names ----------------------------------------------------------------------------------------------------


def listed(names: list[str]) -> Iterator[str]:
    """A table of the names, then each in full."""
    yield ".. autosummary::\n   :nosignatures:\n\n" + "\n".join(f"   {name}" for name in names)
    for name in names:
        members = "\n   :members:" if inspect.isclass(look_up(name)) else ""
        yield f".. auto{'class' if members else 'function'}:: {name}{members}"


@functools.cache
def python() -> list[str]:
    """Functions and classes of the package, its commands and its errors, and those that pages import; each under one name."""
    errors = (
        name for name, one in vars(outlierlens.errors).items() if inspect.isclass(one) and issubclass(one, Exception)
    )
    names = [f"outlierlens.{name}" for name in outlierlens.__all__]
    names += [f"outlierlens.commands.{name}" for name in dir(outlierlens.commands)]
    names += [f"outlierlens.errors.{name}" for name in errors]
    for path in sorted(FOLDER.parent.glob("*.md")):
        for module, imported in IMPORTED.findall(path.read_text("utf-8")):
            names += [f"{module}.{name.strip()}" for name in imported.split(",")]
    ours = [name for name in names if callable(one := look_up(name)) and one.__module__.startswith("outlierlens")]
    return list({id(look_up(name)): name for name in reversed(ours)}.values())[::-1]


def results() -> list[str]:
    """Every kind of result."""
    shared = [f"outlierlens.results.document.{name}" for name in ("Result", "Provenance")]
    return shared + [f"outlierlens.{home}.{name}" for name, home in HOMES.items()]


def parts_of(*told: list[str]) -> list[str]:
    """The package's classes in signatures and fields of names, and theirs too, but for those already told of."""
    left = [name for names in told for name in names]
    seen = {look_up(name) for name in left}
    parts = []
    while left:
        for name in spoken_of(left.pop()):
            if inspect.isclass(one := look_up(name)) and one not in seen:
                seen.add(one)
                parts.append(name)
                left.append(name)
    return sorted(parts)


def spoken_of(name: str) -> set[str]:
    """Names of the package in the annotations of a function's signature or a class's fields, where they are defined."""
    one = look_up(name)
    homes = homes_in(str(one.__module__))
    words = re.findall(r"\w+", " ".join(map(inspect.formatannotation, getattr(one, "__annotations__", {}).values())))
    bases = [f"{base.__module__}.{base.__qualname__}" for base in getattr(one, "__bases__", ())]
    inherited = [spoken_of(base) for base in bases if base.startswith("outlierlens.")]
    return {homes[word] for word in words if word in homes}.union(*inherited)


@functools.cache
def homes_in(module: str) -> dict[str, str]:
    """{name that a module knows: where it is defined} of what is the package's own."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    homes = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("outlierlens")
        for alias in node.names
    }
    return homes | {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}


def look_up(name: str) -> Any:
    """What a dotted name stands for."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


# --- how they are read -----------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Without what reStructuredText would take for markup."""
    return MARKS.sub(lambda found: found[1] or "\\" + (found[2] or found[3]), text)


def plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape a docstring, and make lists of its sections."""
    made, inside = [], False
    for line in map(escaped, lines):
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
    homes = [(name, one) for name, one in env.domains.python_domain.objects.items() if name.endswith(f".{last}")]
    if len({(one.docname, one.node_id) for _, one in homes}) != 1:
        return None
    name, one = homes[0]
    return make_refnode(app.builder, node["refdoc"], one.docname, one.node_id, text, name)


def link(app: Sphinx, page: nodes.document, docname: str) -> None:
    """Code that names a command or a function of the package becomes a link to it."""
    if docname.startswith("reference/"):
        return
    objects = app.env.domains.python_domain.objects
    for code in list(page.findall(nodes.literal)):
        words = code.astext().removeprefix("outlierlens ").split()
        name = next((name for n in (2, 1) if (name := " ".join(words[:n])) in BY_NAME), None)
        call = re.match(r"ol\.(\w+)", code.astext())
        if isinstance(code.parent, nodes.reference | nodes.title):
            continue
        if name:
            target = app.builder.get_relative_uri(docname, f"reference/{slug(name)}")
        elif call and (one := objects.get(f"outlierlens.{call[1]}")):
            target = f"{app.builder.get_relative_uri(docname, one.docname)}#{one.node_id}"
        else:
            continue
        code.replace_self(nodes.reference("", "", code.deepcopy(), refuri=target, internal=True))


def write(app: Sphinx) -> None:
    """The pages, where one is not as it was; others that stand there go."""
    FOLDER.mkdir(exist_ok=True)
    made = {FOLDER / f"{name}.rst": text for name, text in pages()}
    for path in set(FOLDER.iterdir()) - made.keys():
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.config.default_role = "literal"  # type: ignore[attr-defined]  # `name` is code, as in Markdown
    app.connect("builder-inited", write)
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-process-signature", readable)
    app.connect("missing-reference", lead)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True}
