"""The tables of the Python reference: each documented name, what it is, and the first line of its docstring.

public    the names of the package itself
others    names that the pages import from its modules, charts and errors
results   what is returned, saved and read back
types     what functions take and return, and what results are made of
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
IMPORTED = re.compile(r"^from (outlierlens\.[\w.]+) import ([\w, ]+)$", re.MULTILINE)
HEAD = ["", "| name | is a | what it is or does |", "|---|---|---|"]
GENERATED = "Generated from the docstrings; run `make docs` after a change."


def public() -> str:
    """The page of `outlierlens` itself."""
    import outlierlens

    names = [f"outlierlens.{name}" for name in outlierlens.__all__]
    says = (
        f"`import outlierlens as ol`. {GENERATED} Heavy libraries are imported on first use: `ol.scan` needs no torch."
    )
    return page("Python", says, [("", names)])


def others() -> str:
    """The page of the names that docs import from modules of the package, then charts and errors."""
    from outlierlens import errors
    from outlierlens.view import charts

    drawn = [f"outlierlens.view.charts.{name}" for name in dir(charts)]
    raised = [f"outlierlens.errors.{name}" for name, one in vars(errors).items() if is_error(one)]
    says = f"What the pages import beyond [the names of `outlierlens`](api.md). {GENERATED}"
    parts = [("Modules", imported()), ("Charts", drawn), ("Errors", raised[1:])]
    return page("Python: the other modules", says, parts)


@functools.cache
def imported() -> list[str]:
    """Functions and classes that the pages import from modules of the package, each under one name."""
    import outlierlens

    found = {
        f"{module}.{name.strip()}"
        for path in [*DOCS.glob("*.md"), *DOCS.glob("questions/*.md")]
        if not path.name.startswith("api")
        for module, names in IMPORTED.findall(path.read_text("utf-8"))
        for name in names.split(",")
    }
    known = {id(getattr(outlierlens, name)) for name in outlierlens.__all__}
    names = {id(look_up(name)): name for name in sorted(found, reverse=True) if callable(look_up(name))}
    return sorted(name for one, name in names.items() if one not in known)


def results() -> str:
    """The page of the result classes."""
    says = (
        "Frozen dataclasses: `found.save(path)` writes one as JSON with its version and where it came from, `ol.load(path)`\n"
        "reads it back, without torch. `found.records()` gives its rows, `found.to_pandas()` the same as a data frame, and\n"
        f"a notebook shows the main ones as a table. {GENERATED}"
    )
    return page("Python: results", says, [("", result_names())])


def types() -> str:
    """The page of the classes that functions take and return, and of which results are made."""
    from outlierlens import commands

    functions = [*imported(), *(f"outlierlens.{home}.{name}" for name, home in commands.homes().items())]
    kinds = result_names()
    taken = parts_of(functions, kinds)
    held = parts_of(kinds, [*functions, *taken])
    says = f"What the functions take and return, and what results are made of. {GENERATED}"
    return page("Python: types", says, [("Taken and returned", taken), ("Parts of results", held)])


def result_names() -> list[str]:
    """Every kind of result."""
    from outlierlens.results.document import HOMES

    return [
        "outlierlens.results.document.Result",
        "outlierlens.results.document.Provenance",
        *(f"outlierlens.{home}.{name}" for name, home in HOMES.items()),
    ]


def parts_of(names: list[str], told: Sequence[str] = ()) -> list[str]:
    """The package's classes that signatures and fields of `names` speak of, theirs too, but for those already told of."""
    seen = {look_up(name): name for name in (*names, *told)}
    parts: dict[str, None] = {}
    left = list(names)
    while left:
        for name in spoken_of(left.pop()):
            if look_up(name) not in seen and inspect.isclass(look_up(name)):
                seen[look_up(name)] = name
                parts[name] = None
                left.append(name)
    return sorted(parts)


def spoken_of(name: str) -> set[str]:
    """Names of the package in the annotations of a function's signature or a class's fields, where they are defined."""
    homes = homes_in(str(look_up(name).__module__))
    annotations = getattr(look_up(name), "__annotations__", {}).values()
    words = {word for one in annotations for word in re.findall(r"\w+", inspect.formatannotation(one))}
    bases = [f"{base.__module__}.{base.__qualname__}" for base in getattr(look_up(name), "__bases__", ())]
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


def page(title: str, says: str, parts: list[tuple[str, list[str]]]) -> str:
    """A Markdown page with a table a part."""
    lines = [f"# {title}\n", says]
    for head, names in parts:
        lines += ([f"\n## {head}"] if head else []) + HEAD + [row(name) for name in names]
    return "\n".join(lines) + "\n"


def row(name: str) -> str:
    """A line of a table for one name."""
    one = look_up(name)
    kind = "class" if inspect.isclass(one) else "function"
    says = (inspect.getdoc(one) or "").splitlines()[0].replace("|", "∣")
    return f"| `{name}` | {kind} | {says} |"


def look_up(name: str) -> Any:
    """What a dotted name stands for."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def is_error(one: object) -> bool:
    """Whether it is an error class."""
    return inspect.isclass(one) and issubclass(one, Exception)


PAGES = {"api.md": public, "api-more.md": others, "api-results.md": results, "api-types.md": types}
