"""The order of the package's folders: what may import what, and a map of what does.

python scripts/structure.py                          # wrong imports and circles, if there are any
python scripts/structure.py docs/architecture.svg    # the map: a row a folder, shaded by how often it imports each other one
"""

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "outlierlens"
# Lower first: a folder, or a file of the root, imports only from itself and from those before it.
ORDER = (
    "errors", "options", "experiments", "statistics", "view", "results", "architectures", "checkpoints", "data", "models",
    "tasks", "ablation", "detection", "vectors", "training", "session", "analyses", "given", "replicate", "report", "explore",
    "cli",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(ORDER)}


def module_of(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def folder_of(module: str) -> str:
    """The name in ORDER of the folder, or file of the root, that a module is in."""
    return "cli" if module.endswith(".command") else module.split(".")[1]


def rank(module: str) -> int:
    """Where a module stands in ORDER."""
    return RANK[folder_of(module)]


def imports(text: str) -> set[str]:
    """Modules of outlierlens that a file imports anywhere, annotations excepted."""
    found: set[str] = set()
    ahead: list[ast.AST] = [ast.parse(text)]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        ahead += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inside or {node.module}
    return {name for name in found if name.startswith("outlierlens.")}


def wrong_imports(module: str, text: str) -> list[str]:
    """What this text may not import as `module`: what stands higher."""
    return [name for name in sorted(imports(text)) if rank(name) > rank(module)]


def graph(modules: Mapping[str, Path] = MODULES) -> dict[str, set[str]]:
    """{module: modules of the package that it imports}, the root's own two files left out."""
    texts = {name: path.read_text("utf-8") for name, path in modules.items() if name.count(".")}
    return {
        name: imports(text) & modules.keys() - {name} for name, text in texts.items() if not name.endswith("__main__")
    }


CELL, NAMES, ABOUT, TOP = 22, 112, 720, 96  # pixels
SHADES = (0.35, 0.65, 1.0)


def map_of_folders() -> str:
    """An SVG: a row a folder from the lowest to the highest, a column each, darker where the row imports more of the column."""
    folders = list(ORDER)
    counts = Counter(
        (folder_of(module), folder_of(other))
        for module, others in graph().items()
        for other in others
        if folder_of(module) != folder_of(other)
    )
    left = NAMES + len(folders) * CELL + 16
    height = TOP + len(folders) * CELL + 12
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + ABOUT}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Which folder imports which: only ones above it in this list">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for i, name in enumerate(folders):
        y, x = TOP + i * CELL, NAMES + i * CELL
        made.append(f'<text x="{NAMES - 8}" y="{y + 15}" text-anchor="end" fill="#1b1b1b">{name}</text>')
        made.append(f'<text transform="translate({x + 15},{TOP - 6}) rotate(-60)" fill="#555555">{name}</text>')
        made.append(f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="#d9d9d9"/>')
        for k, other in enumerate(folders):
            if counts[name, other]:
                opacity = SHADES[len(str(counts[name, other])) - 1]  # below ten imports, below a hundred, more
                made.append(
                    f'<rect x="{NAMES + k * CELL}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="#1f5fa8" '
                    f'fill-opacity="{opacity}"><title>{name} imports {other}</title></rect>'
                )
        made.append(f'<text x="{left}" y="{y + 15}" fill="#555555">{escape(_about(name))}</text>')
    return "\n".join([*made, "</svg>", ""])


def _about(folder: str) -> str:
    """The first sentence of a folder's docstring, or of a file's."""
    docstring = ast.get_docstring(ast.parse(MODULES[f"outlierlens.{folder}"].read_text("utf-8"))) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").replace("`", "")


def main(words: list[str]) -> int:
    """Draw the map, or print what is wrong; the exit status."""
    if words:
        Path(words[0]).write_text(map_of_folders(), "utf-8")
        return 0
    wrong = {module: wrong_imports(module, MODULES[module].read_text("utf-8")) for module in graph()}
    for module, names in wrong.items():
        if names:
            print(f"{module} may not import {', '.join(names)}")
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        print(f"a circle: {' imports '.join(reversed(error.args[1]))}")
        return 1
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
