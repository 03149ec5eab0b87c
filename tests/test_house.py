"""The house rules that a machine can hold: imports go one way, files stay short, heavy libraries stay out."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import outlierlens
from outlierlens.experiments import EXPERIMENTS

SOURCE = Path(outlierlens.__file__).parent
ROOT = SOURCE.parent.parent

# Lower first: a folder imports only from itself and from those before it. `experiment` is the contract and the table; a file
# of an experiment's folder that is called like one of FILES stands where its name stands here.
ORDER = (
    "errors", "options", "experiment", "statistics", "view", "results", "architectures", "checkpoints", "data", "models",
    "tasks", "ablation", "detection", "vectors", "training", "session", "options.py", "result.py", "charts.py", "view.py",
    "experiments", "report", "replicate", "explore", "cli",
)  # fmt: skip
RANK = {name: rank for rank, name in enumerate(ORDER)}
FILES = ("options", "result", "charts", "view")  # of an experiment's folder; they import no torch
TABLE = ("outlierlens.experiments", "outlierlens.experiments.shared")


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def named(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {named(path): path for path in modules()}
HOMES = {f"outlierlens.{row.home}" for row in EXPERIMENTS}


def file_of(module: str) -> str:
    """What a module of an experiment's folder is by its name: of "charts_marks" too "charts"; "" of other folders."""
    home, _, name = module.rpartition(".")
    stem = name.partition("_")[0]
    return stem if home in HOMES and stem in FILES else ""


def rank(module: str) -> int:
    """Where a module stands in ORDER."""
    if module in TABLE:
        return RANK["experiment"]
    if module.endswith(".command"):
        return RANK["cli"]
    folder = RANK[module.split(".")[1]]
    file = file_of(module)
    return min(folder, RANK[f"{file}.py"]) if file else folder


def imports(text: str) -> set[str]:
    """Modules of outlierlens that a file imports anywhere, annotations excepted."""
    found, ahead = set(), [ast.parse(text)]
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


def home_of(module: str) -> str:
    """The experiment's folder that a module lies in; "" of others."""
    return next((home for home in HOMES if module == home or module.startswith(f"{home}.")), "")


def wrong_imports(module: str, text: str) -> list[str]:
    """What this text may not import as `module`: what stands higher, and experiments that its own row does not `need`."""
    home = home_of(module)
    needs = {
        f"outlierlens.experiments.{name}"
        for row in EXPERIMENTS
        if f"outlierlens.{row.home}" == home
        for name in row.needs
    }
    wrong = []
    for name in sorted(imports(text)):
        other = home_of(name)
        beside = home.startswith("outlierlens.experiments.") and other.startswith("outlierlens.experiments.")
        if other == home != "":
            continue  # a folder's files know one another; what must not import torch is tried below
        if rank(name) > rank(module) or (beside and other not in needs and not module.endswith(".command")):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"outlierlens", "outlierlens.__main__"}))
def test_imports_go_one_way(module: str) -> None:
    wrong = wrong_imports(module, MODULES[module].read_text("utf-8"))
    assert not wrong


def test_a_wrong_import_is_found() -> None:
    upward = "def late():\n    from outlierlens.experiments.sweep.measure import sweep\n"
    assert wrong_imports("outlierlens.models.load", upward) == ["outlierlens.experiments.sweep.measure"]
    assert wrong_imports("outlierlens.experiments.geometry.charts", upward) == ["outlierlens.experiments.sweep.measure"]
    assert not wrong_imports("outlierlens.experiments.sweep.nulls", upward)
    sideways = "from outlierlens.experiments.geometry import layers"
    assert wrong_imports("outlierlens.experiments.sweep.nulls", sideways) == ["outlierlens.experiments.geometry.layers"]
    assert not wrong_imports("outlierlens.models.load", "if TYPE_CHECKING:\n    from outlierlens.cli import app")


def test_no_module_needs_itself() -> None:
    ahead = {module: imports(path.read_text("utf-8")) & MODULES.keys() - {module} for module, path in MODULES.items()}
    TopologicalSorter(ahead).prepare()  # raises CycleError, with the modules of one


def test_the_root_is_small() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 6


# What never imports torch: files by their name, in every experiment's folder, and what reads files without a model.
LIGHT = sorted(
    module.removeprefix("outlierlens.")
    for module in MODULES
    if file_of(module)
    or "".join(module.split(".")[1:2]) in ("statistics", "view", "results", "report", "checkpoints")
    or module in ("outlierlens.detection.rules", "outlierlens.detection.scan.measure",
                  "outlierlens.experiments.integrity.verify",
                  "outlierlens.experiments.origin.measure")
)  # fmt: skip

# Each module is imported by a child that has NumPy alone: forked, for starting Python anew takes longer than the import.
IMPORT = """
import importlib, os, sys
import numpy

for name in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork() == 0:
        importlib.import_module(f"outlierlens.{name}")
        print(name, *(heavy for heavy in ("torch", "transformers", "scipy", "pandas") if heavy in sys.modules), flush=True)
        os._exit(0)
    os.wait()
"""


def test_views_and_results_import_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT, *LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == LIGHT, done.stderr


def test_files_stay_short_and_arguments_few() -> None:
    for path in modules():
        assert len(path.read_text("utf-8").splitlines()) <= 400, f"{path}: find the second idea"
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
                assert count <= 7, f"{path}:{node.lineno} {node.name} has {count} arguments"


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in outlierlens.__all__:
        value = getattr(outlierlens, name)
        assert value.__doc__, name
        if callable(value):
            assert value.__module__.startswith("outlierlens"), name


def test_no_promise_is_left_in_the_code() -> None:
    for path in modules():
        text = path.read_text("utf-8")
        for word in ("raise NotImplementedError", "TODO", "FIXME", "XXX"):
            assert word not in text, f"{path}: {word}"


def test_no_interrupt_can_stop_what_changes_a_model_halfway() -> None:
    for path in modules():
        if any(
            word in (text := path.read_text("utf-8"))
            for word in ("register_forward_", "set_values(", "requires_grad_(")
        ):
            assert "@contextmanager" not in text, (
                f"{path}: changes.temporary is not interrupted while it enters or leaves"
            )


# What a test of another process may wait for is in moments.py; here a worker waits for a file, and one takes its time.
WAITS = {"moments.py": 1, "test_sweep_ray.py": 2}


def test_no_test_depends_on_how_busy_the_machine_is() -> None:
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            named = {keyword.arg for keyword in node.keywords}
            assert path.name == "conftest.py" or not named & {"deadline", "suppress_health_check", "derandomize"}, path
        assert path.read_text("utf-8").count("time.sleep" + "(") == WAITS.get(path.name, 0), path
