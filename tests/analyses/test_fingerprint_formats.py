"""One model in every format that is read: no copy looks tampered with, and an edit in each is seen.

The examples for CI: the action's commands run as they stand and fail when they should, and the hooks' do as well.
"""

import json
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

import gguf_files
from hub_models import MODEL, one_file
from hub_server import FakeHub
from memory_checkpoint import Memory, of_model
from outlierlens.analyses.fingerprint import Fingerprint, FingerprintOptions, fingerprint_checkpoint
from outlierlens.analyses.fingerprint_verify import Verification, verify_checkpoint
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.samples import directory

pytest_plugins = ["hub_fixtures"]


@pytest.fixture(scope="module")
def bert() -> Memory:
    return of_model("bert", "MaskedLM")


@pytest.fixture(scope="module")
def baseline(bert: Memory, tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    folder = tmp_path_factory.mktemp("whole")
    with open_checkpoint(safetensors(folder, bert)) as checkpoint:
        return fingerprint_checkpoint(checkpoint, FingerprintOptions(deep=True, dims=(3, 5)))


def safetensors(folder: Path, model: Memory, dtype: str = "float32", n_shards: int = 1) -> str:
    """The model as a folder of safetensors, sharded with an index where `n_shards` is more than 1."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model.config["model_type"]}))
    tensors = {name: torch.tensor(value).to(getattr(torch, dtype)) for name, value in model.arrays.items()}
    if n_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return str(folder)
    files = [f"model-{i + 1:05}-of-{n_shards:05}.safetensors" for i in range(n_shards)]
    weight_map = {name: files[i % n_shards] for i, name in enumerate(tensors)}
    for file in files:
        save_file({name: value for name, value in tensors.items() if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return str(folder)


def torchbin(folder: Path, model: Memory) -> str:
    import torch

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model.config["model_type"]}))
    torch.save({name: torch.tensor(value) for name, value in model.arrays.items()}, folder / "pytorch_model.bin")
    return str(folder)


def onnx_file(folder: Path, model: Memory) -> str:
    onnx = pytest.importorskip("onnx")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model.config["model_type"]}))
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in model.arrays.items()]
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="/relu")
    graph = onnx.helper.make_graph([node], "g", [], [], initializer=stored)
    (folder / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    return str(folder)


def held(path: str, baseline: Fingerprint, deep: bool = False) -> Verification:
    with open_checkpoint(path) as checkpoint:
        return verify_checkpoint(checkpoint, baseline, deep=deep)


FORMATS: dict[str, Any] = {
    "safetensors": safetensors,
    "sharded": lambda folder, model: safetensors(folder, model, n_shards=3),
    "bfloat16": lambda folder, model: safetensors(folder, model, "bfloat16"),
    "float16, sharded": lambda folder, model: safetensors(folder, model, "float16", 2),
    "bin": torchbin,
    "onnx": onnx_file,
}


@pytest.mark.parametrize("form", FORMATS)
def test_no_copy_looks_tampered_with_and_an_edit_does(
    form: str, bert: Memory, baseline: Fingerprint, tmp_path: Path
) -> None:
    same = held(FORMATS[form](tmp_path / "copy", bert), baseline)
    assert same.matches
    assert same.n_not_compared == 0
    assert same.n_values == sum(np.prod(values) for values in _sizes(baseline))
    name = "bert.encoder.layer.1.output.dense.weight"
    edited = bert.edited(name, (5, 7), float(bert.arrays[name][5, 7]) * 1.01 + 0.01)
    (moved,) = held(FORMATS[form](tmp_path / "edited", edited), baseline).moved
    assert (moved.name, moved.index, moved.dim, moved.dangerous) == (name.removeprefix("bert."), (5, 7), 5, True)


@pytest.mark.parametrize("form", ["sharded", "bfloat16", "float16, sharded", "bin", "onnx"])
def test_deep_agrees_across_formats(form: str, bert: Memory, baseline: Fingerprint, tmp_path: Path) -> None:
    same = held(FORMATS[form](tmp_path / "copy", bert), baseline, deep=True)
    assert same.matches, same.verdict
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    edited = FORMATS[form](tmp_path / "edited", bert.edited(name, (5, 7), 3.0))
    assert held(edited, baseline).matches
    found = held(edited, baseline, deep=True)
    assert [fate.name for fate in found.tensors if fate.fails] == [name.removeprefix("bert.")]


def _sizes(found: Fingerprint) -> list[tuple[int, int]]:
    return [entry.size for entry in found.entries if entry.role != "embedding column"]


def test_only_the_recorded_rows_are_read(bert: Memory, baseline: Fingerprint, tmp_path: Path) -> None:
    folder = safetensors(tmp_path / "copy", bert)
    with open_checkpoint(folder) as checkpoint:
        header = checkpoint.bytes_read
        found = verify_checkpoint(checkpoint, baseline)
        assert found.bytes_read - header == 4 * found.n_values


def test_on_a_hub_the_same_bytes_are_fetched_in_few_requests(hub: FakeHub, bert: Memory, baseline: Fingerprint) -> None:
    hub.add(MODEL, one_file(bert.arrays))
    with open_checkpoint(MODEL) as checkpoint:
        before = checkpoint.requests
        found = verify_checkpoint(checkpoint, baseline)
        vectors = [entry for entry in baseline.entries if len(entry.shape) == 1]
        assert found.matches
        assert found.n_values == sum(np.prod(size) for size in _sizes(baseline))
        assert checkpoint.requests - before < len(vectors)  # vectors together, rows tensor by tensor


# --- GGUF --------------------------------------------------------------------------------------------------------

_OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
_LEAVES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def wide(model_type: str) -> Memory:
    """A decoder of two layers, 64 wide, so that Q8_0's blocks fit; named as transformers names it."""
    random = np.random.default_rng(3)
    arrays = {
        "model.embed_tokens.weight": random.normal(size=(12, 64)),
        "model.norm.weight": random.normal(size=64) / 8,
    }
    for layer in range(2):
        for leaf in _LEAVES:
            shape = {"mlp.down_proj": (64, 96), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64)}.get(leaf, (64, 64))
            size = 64 if leaf.endswith("norm") else shape
            arrays[f"model.layers.{layer}.{leaf}.weight"] = random.normal(size=size) / 8
    floats = {name: value.astype(np.float32) for name, value in arrays.items()}
    return Memory(floats, {"model_type": model_type, "num_hidden_layers": 2})


def gguf_file(path: Path, model: Memory, quantize: str = "F32") -> str:
    """What llama.cpp's converter makes of it: norms in float32 (Gemma's as 1 + w), matrices quantized."""
    gguf = pytest.importorskip("gguf")
    model_type = model.config["model_type"]
    writer = gguf.GGUFWriter(path, model_type)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    kind = gguf.GGMLQuantizationType[quantize]
    for name, value in model.arrays.items():
        if name in _OUTER:
            stored = _OUTER[name]
        else:
            _, _, layer, *leaf = name.removesuffix(".weight").split(".")
            stored = f"blk.{layer}.{_LEAVES['.'.join(leaf)]}.weight"
        if value.ndim == 1:
            writer.add_tensor(stored, value + np.float32(model_type == "gemma"))
        elif quantize == "F32":
            writer.add_tensor(stored, value)
        else:
            writer.add_tensor(stored, gguf.quants.quantize(value, kind), raw_dtype=kind)
    gguf_files.write(writer)
    return str(path)


@pytest.mark.parametrize("model_type", ["llama", "gemma"])
@pytest.mark.parametrize("quantize", ["F32", "Q8_0", "Q4_1"])
def test_gguf_against_the_original_and_against_its_converted_copy(
    model_type: str, quantize: str, tmp_path: Path
) -> None:
    whole = wide(model_type)
    original = whole.rounded("BF16") if quantize == "F32" else whole
    options = FingerprintOptions(dims=(2, 40))
    file = gguf_file(tmp_path / "m.gguf", original, quantize)
    found = fingerprint_checkpoint(original, options)
    same = held(file, found)
    assert same.matches, same.verdict
    n_rows = 2 * 2 * (64 + 96)  # of the linears that write
    assert same.n_not_compared == (0 if quantize == "F32" else n_rows)
    assert ("4 of another quantization" in same.verdict) == (quantize != "F32")

    name = "model.layers.1.input_layernorm.weight"
    edited = original.edited(name, (40,), float(original.arrays[name][40]) + 0.01)
    (moved,) = held(gguf_file(tmp_path / "e.gguf", edited, quantize), found).moved
    assert (moved.name, moved.index, moved.dangerous) == (name.removeprefix("model."), (40,), True)

    with open_checkpoint(file) as checkpoint:  # a copy of what the file holds, and edits of that copy
        recorded = fingerprint_checkpoint(checkpoint, options)
        copy = Memory(dict(checkpoint.read(checkpoint.tensors)), original.config)
    for dtype in ("F32", "BF16", "F16"):
        again = verify_checkpoint(copy.rounded(dtype), recorded)
        assert again.matches
        assert again.n_not_compared == 0
    row = "model.layers.0.mlp.down_proj.weight"
    assert verify_checkpoint(copy.edited(row, (2, 33), 0.77), recorded).n_moved == 1


@pytest.mark.real
def test_a_real_gguf_matches_its_converted_copy(sample: Any, tmp_path: Path) -> None:
    from outlierlens.models.folder import model_folder

    with open_checkpoint(sample("smollm2-135m")) as checkpoint:
        found = fingerprint_checkpoint(checkpoint, FingerprintOptions())
    with open_checkpoint(str(model_folder("smollm2-135m"))) as copy:
        same = verify_checkpoint(copy, found)
    assert same.matches, same.verdict
    assert same.n_not_compared == 0
    assert same.n_moved == 0


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
