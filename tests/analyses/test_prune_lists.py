"""Lists for other tools: they can be pasted, name what they should, and change nothing before the tool runs."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import every_result
import plan_results
import pruning_results
import quantized_results
from architectures import FAMILIES, build
from outlierlens.analyses.prune_lists import TOOLS, ProtectOptions, protect
from outlierlens.errors import BadInput
from outlierlens.results.document import to_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a saved tiny model by its family."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str) -> str:
        path = root / f"{family}-intact"
        if not path.exists():
            build(FAMILIES[family]).save_pretrained(path)
        return str(path)

    return make


@pytest.mark.parametrize("tool", TOOLS)
def test_lists_can_be_pasted(tool: Any, folder: Any) -> None:
    made = protect(folder("llama"), tool, ProtectOptions(dims=(3, 7)))
    assert made.dims == (3, 7)
    if tool in ("sparsegpt", "llm-compressor"):
        recipe = yaml.safe_load(made.text)
        stage, modifier = {
            "sparsegpt": ("sparsity", "SparseGPTModifier"),
            "llm-compressor": ("quantization", "QuantizationModifier"),
        }[tool]
        settings = recipe[f"{stage}_stage"][f"{stage}_modifiers"][modifier]
        assert ("scheme" in settings) == (tool == "llm-compressor")
        # Two of three layers must stay for a position to be removed in fewer than two.
        if tool == "sparsegpt":
            assert len(made.layers) == 2
        ignore = settings["ignore"]
        assert ignore[0] == "re:.*lm_head$"
        assert ignore[1:] == [rf"re:.*layers\.{layer}\.mlp\.down_proj$" for layer in made.layers]
        return
    compile(made.text, tool, "exec")
    space: dict[str, Any] = {}
    if tool == "awq":
        exec(made.text, space)
        assert space["config"].modules_to_not_convert[0] == "lm_head"
    elif tool == "bitsandbytes":
        exec(made.text, space)
        assert space["config"].llm_int8_skip_modules == ["lm_head", *made.modules]
    else:
        assert made.layers == (0, 1, 2)


@pytest.mark.parametrize(("family", "norms"), [("llama", 2), ("phi", 1), ("falcon", 1)])
def test_scales_for_awq_change_nothing_before_quantization(folder: Any, family: str, norms: int) -> None:
    space: dict[str, Any] = {}
    exec(protect(folder(family), "awq", ProtectOptions(dims=(3, 7), factor=4.0, layers="all")).text, space)
    model = build(FAMILIES[family])
    ids = torch.arange(1, 7)[None]
    before = model(ids).last_hidden_state.detach()
    entries = space["awq_results"]["scale"]
    assert len(entries) == 3 * norms
    with torch.no_grad():
        for norm, linears, scales in entries:
            assert scales[[3, 7]].tolist() == [4.0, 4.0]
            assert scales.sum() == 14 + 8
            model.get_submodule(norm).weight /= scales
            if getattr(model.get_submodule(norm), "bias", None) is not None:
                model.get_submodule(norm).bias /= scales
            for linear in linears:
                model.get_submodule(linear).weight *= scales
    torch.testing.assert_close(model(ids).last_hidden_state, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("family", "up"), [("llama", "up_proj"), ("phi3", "gate_up_proj"), ("bert", "")])
def test_lists_of_neurons(folder: Any, family: str, up: str) -> None:
    options = ProtectOptions(stack="mlp", dims={1: (5, 2)}, factor=4.0)
    made = protect(folder(family), "awq", options)
    assert (made.neurons, made.layers, made.dims) == (("1:2", "1:5"), (1,), ())
    (last,) = made.modules
    assert protect(folder(family), "bitsandbytes", options).modules == (last,)
    assert json.dumps(f"re:.*{re.escape(last)}$") in protect(folder(family), "llm-compressor", options).text
    model = build(FAMILIES[family])
    n_neurons = model.get_submodule(last).in_features
    space: dict[str, Any] = {}
    exec(made.text, space)
    if not up:
        assert "no scales" in made.text
    else:
        ids = torch.arange(1, 7)[None]
        before = model(ids).last_hidden_state.detach()
        ((first, (reader,), scales),) = space["awq_results"]["scale"]
        assert (first.rpartition(".")[2], reader) == (up, last)
        with torch.no_grad():
            model.get_submodule(first).weight[-len(scales) :] /= scales[:, None]  # as llm-awq does
            model.get_submodule(last).weight *= scales
        assert (scales == 4).nonzero().flatten().tolist() == [2, 5]
        torch.testing.assert_close(model(ids).last_hidden_state, before, rtol=1e-4, atol=1e-5)
    pruned = protect(folder(family), "torch-pruning", options)
    exec(pruned.text.partition("class ")[0].replace("import torch_pruning as tp", ""), space)
    assert set(space["KEEP"]) == set(pruned.modules)
    for name, rows in space["KEEP"].items():
        assert rows == [row for one in (2, 5) for row in range(one, model.get_submodule(name).out_features, n_neurons)]


class FakeGroup(list):
    """What Torch-Pruning hands to an importance: (dependency, channels) pairs whose items know their root channels."""

    def __getitem__(self, place: Any) -> Any:
        item = super().__getitem__(place)
        return type("Item", (tuple,), {"root_idxs": [0, 1, 2]})(item)


def test_the_importance_for_torch_pruning_never_gives_up_protected_positions(folder: Any, monkeypatch: Any) -> None:
    from types import ModuleType, SimpleNamespace

    fake: Any = ModuleType("torch_pruning")
    fake.importance = SimpleNamespace(Importance=object)
    fake.prune_linear_in_channels, fake.prune_linear_out_channels = object(), object()
    monkeypatch.setitem(sys.modules, "torch_pruning", fake)
    space: dict[str, Any] = {}
    exec(protect(folder("llama"), "torch-pruning", ProtectOptions(dims=(7,))).text, space)
    model = build(FAMILIES["llama"], "CausalLM")
    writer = model.get_submodule("model.layers.1.mlp.down_proj")
    keep = space["KeepPositions"](lambda group: torch.zeros(3), model)
    out = SimpleNamespace(target=SimpleNamespace(module=writer), handler=fake.prune_linear_out_channels)
    inward = SimpleNamespace(target=SimpleNamespace(module=writer), handler=fake.prune_linear_in_channels)
    assert keep(FakeGroup([(out, [5, 7, 8])])).tolist() == [0, float("inf"), 0]
    assert keep(FakeGroup([(inward, [5, 7, 8])])).tolist() == [0, 0, 0]
    assert space["KeepPositions"](lambda group: None, model)(FakeGroup()) is None


def test_layers_of_a_list(folder: Any) -> None:
    every = protect(folder("llama"), "sparsegpt", ProtectOptions(dims=(3,), layers="all"))
    assert every.layers == (0, 1, 2)
    one = protect(folder("llama"), "sparsegpt", ProtectOptions(dims=(3,), layers=(1,)))
    assert one.modules == ("layers.1.mlp.down_proj",)
    assert "could still remove a position in 2 or more" in one.notes[0]
    bert = protect(folder("bert"), "bitsandbytes", ProtectOptions(dims=(3,), layers=(0,)))
    assert bert.modules == ("encoder.layer.0.output.dense",)
    assert bert.notes[0] == "positions 3; 1 of 3 layers (given) are protected"  # it prunes nothing
    assert "this tool leaves norms alone; the modules" in bert.notes[1]
    assert "no scales" in protect(folder("gemma2"), "awq", ProtectOptions(dims=(3,))).text


def test_lists_that_cannot_be(folder: Any) -> None:
    for options, message in (
        (ProtectOptions(), "the scan finds no outlier to protect"),
        (ProtectOptions(dims=(16,)), "dimension 16 does not exist"),
        (ProtectOptions(dims=(3,), layers=(3,)), "layer 3 does not exist"),
        (ProtectOptions(dims=(3,), stack="decoder"), "which stream"),
        (ProtectOptions(dims={1: (3,)}), "add --stack mlp for neurons"),
        (ProtectOptions(stack="mlp"), "the scan finds no neuron to protect"),
        (ProtectOptions(stack="mlp", dims=(3,)), "named with their block"),
        (ProtectOptions(stack="mlp", dims={3: (3,)}), "neuron 3:3 does not exist; there are 3 blocks"),
        (ProtectOptions(stack="mlp", dims={1: (3,)}, layers="all"), "leave it out"),
    ):
        with pytest.raises(BadInput, match=message):
            protect(folder("llama"), "sparsegpt", options)
    with pytest.raises(BadInput, match="unknown tool 'scissors'"):
        protect(folder("llama"), "scissors")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="factor is 0"):
        ProtectOptions(factor=0)


def test_a_list_begins_with_what_was_measured(folder: Any, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    plain = protect(folder("llama"), "bitsandbytes", ProtectOptions(dims=(3,)))
    assert "outlierlens plan measures what helps most per byte" in plain.text
    for found, said in (
        (
            plan_results.found(),
            "# measured: Keep 1 entry (5.0 % of the weights) in 16 bits: +0.8 nats per token → +0.3",
        ),
        (replace(plan_results.found(), steps=()), "no single entry surely gives back 0.01 or more.\n"),
        (quantized_results.quantized(), "# measured: Keep dimension"),
    ):
        path.write_text(to_json(every_result.of_model(found, folder("llama"))))
        made = protect(folder("llama"), "bitsandbytes", ProtectOptions(dims=(3,), measured=path))
        assert said in made.text
    path.write_text(to_json(plan_results.found()))
    with pytest.raises(
        BadInput, match=r"found.json is of mini \(fingerprint 0+\), not of .*llama-intact \(.*outlierlens plan "
    ):
        protect(folder("llama"), "bitsandbytes", ProtectOptions(dims=(3,), measured=path))
    path.write_text(to_json(pruning_results.check()))
    with pytest.raises(BadInput, match="holds no result of plan or quantize"):
        protect(folder("llama"), "bitsandbytes", ProtectOptions(dims=(3,), measured=path))


def test_the_protect_command_writes_a_file(folder: Any, run: Any, tmp_path: Path) -> None:
    out = tmp_path / "ignore.yaml"
    code, stdout, err = run("prune", "protect", folder("llama"), "--for", "sparsegpt", "--dims", "3", "-o", str(out))
    assert code == 0, err
    assert "2 modules of 2 layers" in stdout
    assert yaml.safe_load(out.read_text())
    code, stdout, _ = run(
        "prune", "protect", folder("llama"), "--for", "bitsandbytes", "--dims", "3", "--layers", "0-1"
    )
    assert code == 0
    assert "llm_int8_skip_modules" in stdout
