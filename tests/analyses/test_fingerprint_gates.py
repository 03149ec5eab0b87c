"""The examples for CI: the action's commands run as they stand and fail when they should, and the hooks' do as well."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from outlierlens.checkpoints.samples import directory

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "examples" / "github-action" / "action.yml").read_text("utf-8"))
WORKFLOW = yaml.safe_load((ROOT / "examples" / "github-action" / "workflow.yml").read_text("utf-8"))
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, an intact model, one whose dimension 5 is gone in every norm, and a fingerprint."""
    folder = tmp_path_factory.mktemp("gate")
    program = folder / "outlierlens"
    program.write_text(f"#!{sys.executable}\nfrom outlierlens.cli import main\nmain()\n")
    program.chmod(0o755)
    source = directory("mini-bert")
    weights = load_file(source / "model.safetensors")
    pruned = {name: values.copy() for name, values in weights.items()}
    for name, value in pruned.items():
        if re.search(r"layer\.\d+\.output\.LayerNorm", name):
            value[5] = 0
    for name, values in (("intact", weights), ("pruned", pruned)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_bytes((source / "config.json").read_bytes())
        save_file(
            {key: np.ascontiguousarray(value) for key, value in values.items()}, folder / name / "model.safetensors"
        )
    done = shell(folder, "outlierlens fingerprint intact -o intact.json -q")
    assert done.returncode == 0, done.stderr
    return folder


def shell(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=os.environ | {"PATH": path} | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def step(name: str) -> dict[str, Any]:
    (found,) = [one for one in ACTION["runs"]["steps"] if one["name"] == name]
    return found


def given(name: str, inputs: dict[str, str]) -> dict[str, str]:
    """The variables of a step with its inputs put in, as the runner does."""
    return {
        key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], value)
        for key, value in step(name)["env"].items()
    }


@pytest.mark.parametrize(("model", "code"), [("intact", 0), ("pruned", 3)])
def test_the_action_s_verify(place: Path, model: str, code: int) -> None:
    inputs = {"model": model, "baseline": "intact.json", "results": f"results {model[0]}"}
    done = shell(place, step("Verify")["run"], **given("Verify", inputs), HF_HUB_OFFLINE="1")
    assert done.returncode == code, done.stderr
    assert (place / inputs["results"] / "verify.json").is_file()


@pytest.mark.parametrize(("model", "code"), [("pruned", 3)])
def test_the_action_s_prune_check(place: Path, model: str, code: int) -> None:
    inputs = {"model": model, "intact": "intact", "results": "r"}
    done = shell(place, step("Check pruning")["run"], **given("Check pruning", inputs))
    assert done.returncode == code, done.stderr


def test_inputs_reach_the_shell_as_variables_alone(place: Path) -> None:
    for one in ACTION["runs"]["steps"]:
        assert "${{" not in one["run"], one["name"]
        assert set(re.findall(r"\$\{?([A-Z]+)", one["run"])) == set(one["env"]), one["name"]
    done = shell(
        place, step("Verify")["run"], MODEL="$(touch owned)", BASELINE="intact.json", RESULTS="r", HF_HUB_OFFLINE="1"
    )
    assert done.returncode == 2
    assert not (place / "owned").exists()
    names = set(re.findall(r"inputs\.(\w+)", str(ACTION)))
    assert names == set(ACTION["inputs"])


def test_extras_are_put_together(place: Path) -> None:
    script = step("Install")["run"].replace("python -m pip install --quiet", "echo")
    assert shell(place, script, PACKAGE="outlierlens", EXTRAS="").stdout.strip() == "outlierlens"
    assert shell(place, script, PACKAGE="a.whl", EXTRAS="models,onnx").stdout.strip() == "a.whl[models,onnx]"


def test_the_workflow_gives_inputs_that_exist() -> None:
    (used,) = [one for one in WORKFLOW["jobs"]["gate"]["steps"] if one.get("uses", "").startswith("./")]
    wanted = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert wanted <= set(used["with"]) <= set(ACTION["inputs"])
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_hooks_run_and_fail_as_commands_do(place: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (repository,) = yaml.safe_load((ROOT / "examples" / "pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert {one["id"] for one in repository["hooks"]} == set(HOOKS)
    arguments = {
        "outlierlens-verify": "{model} --baseline intact.json",
        "outlierlens-prune-check": "intact {model}",
    }
    for name, hook in HOOKS.items():
        assert re.search(hook["files"], "models/a/model.safetensors")
        assert not re.search(hook["files"], "README.md")
        program, *words = f"{hook['entry']} {arguments[name]}".split()
        assert program == "outlierlens"
        for model, code in (("intact", 0), ("pruned", 3)):
            assert run(*(word.format(model=model) for word in words))[0] == code
