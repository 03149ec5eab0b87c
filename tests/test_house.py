"""The house rules that a machine can hold: imports go one way, files stay short, heavy libraries stay out."""

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import outlierlens
from outlierlens import commands

SOURCE = Path(outlierlens.__file__).parent
ROOT = SOURCE.parent.parent
# Lower first: a folder, or a file of the root, imports only from itself and from those before it.
ORDER = (
    "errors", "options", "experiments", "statistics", "view", "results", "architectures", "checkpoints", "data", "models",
    "tasks", "ablation", "detection", "vectors", "training", "session", "analyses", "commands", "replicate", "report",
    "explore", "cli",
)  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def rank(module: str) -> int:
    """Where the folder, or the file of the root, that a module is in stands in ORDER."""
    return ORDER.index("cli" if module.endswith(".command") else module.split(".")[1])


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


def graph() -> dict[str, set[str]]:
    """{module: modules of the package that it imports}, the root's own two files left out."""
    named = {name: path for name, path in MODULES.items() if name.count(".") and not name.endswith("__main__")}
    return {name: imports(path.read_text("utf-8")) & MODULES.keys() - {name} for name, path in named.items()}


def changing() -> list[Path]:
    """Modules that change a model of the user's; an experiment changes small random ones that it made."""
    return [path for path in MODULES.values() if path.parent.name != "experiment"]


@pytest.mark.parametrize("module", sorted(graph()))
def test_imports_go_one_way(module: str) -> None:
    wrong = wrong_imports(module, MODULES[module].read_text("utf-8"))
    assert not wrong


def test_a_wrong_import_is_found() -> None:
    upward = "def late():\n    from outlierlens.analyses.sweep.measure import sweep\n"
    assert wrong_imports("outlierlens.models.load", upward) == ["outlierlens.analyses.sweep.measure"]
    assert not wrong_imports("outlierlens.analyses.sweep.units", upward)
    assert not wrong_imports("outlierlens.report.job", upward)
    assert not wrong_imports("outlierlens.models.load", "if TYPE_CHECKING:\n    from outlierlens.cli import app")


def test_no_module_needs_itself() -> None:
    TopologicalSorter(graph()).prepare()  # raises CycleError, with the modules of one


def test_the_root_is_small() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 6


# What never imports torch: files by their name, in every experiment's folder, and what reads files without a model.
LIGHT = sorted(
    module.removeprefix("outlierlens.")
    for module in MODULES
    if "".join(module.split(".")[1:2]) in ("statistics", "view", "results", "analyses", "report", "checkpoints")
    or module in ("outlierlens.detection.rules", "outlierlens.detection.weights")
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
    for path in MODULES.values():
        assert len(path.read_text("utf-8").splitlines()) <= 600, f"{path}: find the second idea"
        if "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
                assert count <= 7, f"{path}:{node.lineno} {node.name} has {count} arguments"


ENGINE = ("results/rows.py", "results/finding.py", "view/pictures.py", "ablation/study.py")


def test_the_engine_of_findings_stays_small() -> None:
    assert sum(len((SOURCE / name).read_text("utf-8").splitlines()) for name in ENGINE) <= 1000


def test_every_class_has_a_name_of_its_own() -> None:
    trees = (ast.parse(path.read_text("utf-8")) for path in MODULES.values())
    named = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert not [name for name, times in named.items() if times > 1]


def test_names_of_classes_keep_to_the_glossary() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Names")[2].partition("\n## ")[0]
    glossary = {word: instead.split(", ") for word, instead in re.findall(r"(\w+) \(not\s+([\w, ]+)\)", page)}
    assert len(re.findall(r"\w+", re.sub(r"\bnot\b", "", page.partition(":")[2]))) <= 40
    named = [node.name for path in MODULES.values() for node in ast.walk(ast.parse(path.read_text("utf-8")))
             if isinstance(node, ast.ClassDef)]  # fmt: skip
    words = {word for name in named for word in re.findall("[A-Z][a-z]+", name)}
    assert glossary.keys() <= words, "a word of the glossary that no class has"
    assert not words & {other for instead in glossary.values() for other in instead}


def test_every_public_name_resolves_and_is_documented() -> None:
    assert len(outlierlens.__all__) <= 34
    assert {*outlierlens.__all__} <= {*dir(commands)}
    for name in dir(commands):
        value = getattr(outlierlens if name in outlierlens.__all__ else commands, name)
        assert value.__doc__, name
        if callable(value):
            assert value.__module__.startswith("outlierlens"), name


def test_a_type_checker_knows_every_public_name() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    known = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    (called,) = (node for node in checked.body if isinstance(node, ast.Assign))
    known |= {name.id for name in ast.walk(called.targets[0]) if isinstance(name, ast.Name)}
    assert known - {"Callable"} == {*outlierlens.__all__}


def test_no_promise_is_left_in_the_code() -> None:
    for path in MODULES.values():
        text = path.read_text("utf-8")
        for word in ("raise NotImplementedError", "TODO", "FIXME", "XXX"):
            assert word not in text, f"{path}: {word}"


def test_no_interrupt_can_stop_what_changes_a_model_halfway() -> None:
    for path in changing():
        if any(
            word in (text := path.read_text("utf-8"))
            for word in ("hang(", "register_forward_", "set_values(", "requires_grad_(")
        ):
            assert "@contextmanager" not in text, (
                f"{path}: changes.temporary is not interrupted while it enters or leaves"
            )


def test_every_hook_of_a_context_does_nothing_in_a_copy_of_the_model() -> None:
    for path in changing():
        if path.name != "folder.py":  # the hook stays, and a copy has it too
            text = path.read_text("utf-8")
            assert not re.search(r"register_forward_\w*hook\(", text), f"{path}: models.changes.hang is there for it"


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


def test_files_of_tests_that_are_named_exist() -> None:
    text = (ROOT / "tests" / "conftest.py").read_text("utf-8")
    assert set(re.findall(r'"(test_\w+)"', text)) <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
