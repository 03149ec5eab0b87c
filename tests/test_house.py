"""The house rules that a machine can hold: imports go one way, files stay short, heavy libraries stay out."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import outlierlens

SOURCE = Path(outlierlens.__file__).parent
ROOT = SOURCE.parent.parent

# Lower layers first; a module may import from its own layer and from those below.
LAYERS = [
    {
        "axes",
        "errors",
        "experiment",
        "experiments",
        "_version",
        "documents",
        "interval_words",
        "mode_names",
        "layer_words",
        "options",
        "pace",
        "spelling",
        "statistics",
        "view",
    },
    {
        "results",
        "rows",
        "writing",
        "detect",
        "scanned",
        "comparison",
        "fingerprinted",
        "verified",
        "observation",
        "damage",
        "defined",
        "super_weights",
        "show",
        "swept",
        "trajectory",
        "tracked",
        "watch_rows",
        "pretrained",
        "finetuned",
        "survived",
        "recovered",
        "one_dimension",
        "similar",
        "exported",
        "probed",
        "attended",
        "geometrical",
        "predicted",
        "origins",
        "frozen_scores",
        "explored",
        "replicated",
        "references",
        "luo_replicated",
        "luo_references",
        "puccetti_replicated",
        "frequent",
        "frequency_bands",
        "layer_story",
        "quantized",
        "attacked",
        "updated",
        "pruned",
        "treated",
    },
    {
        "arch",
        "changes",
        "checkpoint",
        "samples",
        "hidden",
        "attention_maps",
        "variants",
        "models",
        "model_class",
        "model_folder",
        "model_tokenizer",
        "weight_copy",
        "heads",
        "model_claims",
        "devices",
        "doctor",
        "tables",
        "vocabulary",
        "token_texts",
        "published_counts",
        "token_counts",
        "token_rows",
        "data",
        "labelled",
        "media",
        "reading",
        "inputs",
        "forward",
        "run_files",
    },
    {
        "stats",
        "histogram",
        "integrity",
        "named",
        "session",
        "task_reading",
        "weights",
        "tracking",
        "change_point",
        "emergence",
        "watcher",
        "watch_crossings",
        "watch_probe",
        "callback",
        "activations",
        "definitions",
        "vectors",
        "clipping",
        "frozen",
        "activation_rules",
        "stats_summary",
        "ablate",
        "position_means",
        "beyond",
        "controls",
        "fill",
        "tasks",
        "bench",
        "sweeps",
        "modes",
        "pretrain",
        "finetune",
        "survival",
        "recovery",
        "stumps",
        "confusion",
        "one_dim",
        "embedder",
        "probing",
        "geometry",
        "attention",
        "predictions",
        "frequency",
        "frequency_geometry",
        "token_bands",
        "counting",
        "similarity",
        "origin",
        "origin_verdict",
        "embedding_tables",
        "EXPERIMENT",
        "training",
        "quantization",
        "attacks",
        "pruning",
    },
    {"charts", "VIEW"},
    {"report"},
    {"replicate", "explore"},
    {"cli", "COMMAND"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
VIEWS = {"charts", "report", "view.html"}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def place(path: Path) -> str:
    """Name of the top-level module or package a file belongs to; by their names what an experiment's folder says and calls."""
    if path == SOURCE / "experiments" / "report" / "view.py":
        return "report"  # what it says of a whole report
    if path.name in ("view.py", "command.py"):
        return path.stem.upper()
    if path.parent.parent == SOURCE / "experiments":
        return "EXPERIMENT"
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Top-level modules of outlierlens that a file imports anywhere, annotations excepted."""
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "outlierlens":
                found |= {f"outlierlens.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("outlierlens.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    home = place(path)
    if home in ("__init__", "__main__"):
        return
    assert home in LEVEL, f"{home} has no layer: give it one in LAYERS"
    upward = {name for name in imports(path) if LEVEL.get(name, -1) > LEVEL[home]}
    assert not upward, f"{path.name} ({home}) imports upward: {upward}"


LIGHT = sorted(
    VIEWS
    | {
        "weights",
        "detect",
        "results",
        "observation",
        "damage",
        "swept",
        "trajectory",
        "tracked",
        "watch_rows",
        "pretrained",
        "finetuned",
        "survived",
        "recovered",
        "exported",
        "one_dimension",
        "probed",
        "attended",
        "geometrical",
        "predicted",
        "frequent",
        "quantized",
        "defined",
        "super_weights",
        "frequency_bands",
        "similar",
        "origins",
        "origin",
        "replicated",
        "references",
        "checkpoint",
        "fingerprinted",
        "verified",
        "integrity.verify",
    }
)

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
        if place(path) == "cli":
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
