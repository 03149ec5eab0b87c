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

from outlierlens.experiments import EXPERIMENTS

SOURCE = Path(__file__).parents[1] / "src" / "outlierlens"
# Lower first: a folder imports only from itself and from those before it. `experiment` is the contract and the table; a file
# of an experiment's folder that is called like one of FILES stands where its name stands here.
ORDER = (
    "errors", "options", "experiment", "statistics", "view", "results", "architectures", "checkpoints", "data", "models",
    "tasks", "ablation", "detection", "vectors", "training", "session", "analyses", "options.py", "result.py", "charts.py",
    "view.py", "experiments", "report", "replicate", "explore", "cli",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(ORDER)}
FILES = ("options", "result", "charts", "view")  # of an experiment's folder; they import no torch
TABLE = ("outlierlens.experiments", "outlierlens.experiments")
HOMES = {f"outlierlens.{row.home}" for row in EXPERIMENTS}


def module_of(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def file_of(module: str) -> str:
    """What a module of an experiment's folder is by its name: of "charts_marks" too "charts"; "" of other folders."""
    home, _, name = module.rpartition(".")
    stem = name.partition("_")[0]
    return stem if home in HOMES and stem in FILES else ""


def home_of(module: str) -> str:
    """The experiment's folder that a module lies in; "" of others."""
    return next((home for home in HOMES if module == home or module.startswith(f"{home}.")), "")


def folder_of(module: str) -> str:
    """The name in ORDER of the folder, or file of the root, that a module is in."""
    if module in TABLE:
        return "experiment"
    return "cli" if module.endswith(".command") else module.split(".")[1]


def rank(module: str) -> int:
    """Where a module stands in ORDER."""
    file = file_of(module)
    return min(RANK[folder_of(module)], RANK[f"{file}.py"]) if file else RANK[folder_of(module)]


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
    """What this text may not import as `module`: what stands higher, and experiments that its own row does not `need`.

    What an analysis needs may be an experiment still: a file of its own, such as `analyses.attack_edits`, needs the same.
    """
    home = home_of(module) or next((one for one in HOMES if module.startswith(f"{one}_")), "")
    rows = [row for row in EXPERIMENTS if f"outlierlens.{row.home}" == home]
    needs = {f"outlierlens.experiments.{name}" for row in rows for name in row.needs}
    wrong = []
    for name in sorted(imports(text)):
        other = home_of(name)
        beside = home.startswith("outlierlens.experiments.") and other.startswith("outlierlens.experiments.")
        if other == home != "":
            continue  # a folder's files know one another; that FILES import no torch is tried by itself
        if home.startswith("outlierlens.analyses.") and other in needs:
            continue
        if rank(name) > rank(module) or (beside and other not in needs and not module.endswith(".command")):
            wrong.append(name)
    return wrong


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
    folders = [name for name in ORDER if not name.endswith(".py")]
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
    module = "experiments" if folder == "experiment" else folder
    docstring = ast.get_docstring(ast.parse(MODULES[f"outlierlens.{module}"].read_text("utf-8"))) or ""
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
