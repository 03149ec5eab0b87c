"""Lists for other tools: they can be pasted, name what they should, and change nothing before the tool runs."""

import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
import yaml

from architectures import FAMILIES, build
from outlierlens.analyses.plan_exports import TOOLS
from outlierlens.analyses.prune_lists import ProtectOptions, Tool, protect
from outlierlens.errors import BadInput


@pytest.fixture
def folder(model_folder: Callable[..., str]) -> Callable[[str], str]:
    """The folder of a saved tiny model by its family."""
    return lambda family: model_folder(family, "")


def test_tools_of_the_command_are_those_that_have_a_form() -> None:
    assert {*get_args(Tool)} == {name for name, row in TOOLS.items() if row.spares}


@pytest.mark.parametrize("tool", get_args(Tool))
def test_lists_can_be_pasted(tool: Any, folder: Any) -> None:
    made = protect(folder("llama"), tool, ProtectOptions(dims=(3, 7)))
    assert made.dims == (3, 7)
    if tool == "torch-pruning":
        compile(made.text, tool, "exec")
        assert made.layers == (0, 1, 2)
        return
    settings = yaml.safe_load(made.text)["sparsity_stage"]["sparsity_modifiers"]["SparseGPTModifier"]
    assert len(made.layers) == 2  # of three: a position is lost that is removed in two
    assert settings["ignore"] == [
        "re:.*lm_head$",
        *(rf"re:.*layers\.{layer}\.mlp\.down_proj$" for layer in made.layers),
    ]


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
    keep = space["KeepChannels"](lambda group: torch.zeros(3), model)
    out = SimpleNamespace(target=SimpleNamespace(module=writer), handler=fake.prune_linear_out_channels)
    inward = SimpleNamespace(target=SimpleNamespace(module=writer), handler=fake.prune_linear_in_channels)
    assert keep(FakeGroup([(out, [5, 7, 8])])).tolist() == [0, float("inf"), 0]
    assert keep(FakeGroup([(inward, [5, 7, 8])])).tolist() == [0, 0, 0]
    assert space["KeepChannels"](lambda group: None, model)(FakeGroup()) is None


def test_layers_of_a_list(folder: Any) -> None:
    every = protect(folder("llama"), "sparsegpt", ProtectOptions(dims=(3,), layers="all"))
    assert every.layers == (0, 1, 2)
    enough = protect(folder("llama"), "sparsegpt", ProtectOptions(dims=(3,)))
    assert len(enough.modules) == 2
    assert "cannot break the constraint" in enough.notes[0]
    bert = protect(folder("bert"), "sparsegpt", ProtectOptions(dims=(3,), layers="all"))
    assert bert.modules == tuple(f"encoder.layer.{layer}.output.dense" for layer in range(3))
    assert "which this tool leaves alone; the modules" in bert.notes[1]


def test_lists_that_cannot_be(folder: Any) -> None:
    with pytest.raises(BadInput, match="the scan finds no outlier to protect"):
        protect(folder("llama"), "sparsegpt", ProtectOptions())
    with pytest.raises(BadInput, match="unknown tool 'scissors'"):
        protect(folder("llama"), "scissors")  # type: ignore[arg-type]
