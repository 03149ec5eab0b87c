"""The experiment: budgets are met to the weight, values come back bit for bit, and a needle that matters is found.

Lists for other tools: they can be pasted, name what they should, and change nothing before the tool runs.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml

from architectures import FAMILIES, build
from outlierlens.analyses.plan_exports import TOOLS
from outlierlens.analyses.prune import PruneTest, PruneTestOptions, prune_test
from outlierlens.analyses.prune_guard import Cells, Pruner, Removal
from outlierlens.analyses.prune_lists import ProtectOptions, Tool, protect
from outlierlens.architectures import live_parameters
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.results.rows import Estimate
from planted import tiny, turning_texts

TEXTS = turning_texts(8 + i % 6 for i in range(18))
FEW = {"n_random": 2, "n_scattered": 2, "n_matched": 2}


def needle(family: str, head: str, kind: str) -> LoadedModel:
    """A tiny model whose position 6 is as large in every layer as nothing else, and is what the head reads."""
    loaded = tiny(family, head, kind)
    with torch.no_grad():
        for params in (*loaded.stacks[0].scale, *loaded.stacks[0].bias):
            for param in params:
                live_parameters(loaded.model)[param.name].moveaxis(param.axis, 0)[6] += 12.0
    return loaded


@pytest.fixture(
    scope="module", params=[("bert", "MaskedLM", "masked"), ("llama", "CausalLM", "causal")], ids=lambda p: p[0]
)
def planted(request: pytest.FixtureRequest) -> LoadedModel:
    return needle(*request.param)


@pytest.fixture(scope="module")
def costs() -> PruneTest:
    return prune_test(needle("bert", "MaskedLM", "masked"), TEXTS, PruneTestOptions(dims=(6,), **FEW))


def test_every_condition_prunes_the_same_number_and_puts_it_back(planted: LoadedModel) -> None:
    before = {name: value.clone() for name, value in planted.model.state_dict().items()}
    found = prune_test(planted, TEXTS, PruneTestOptions(dims=(6,), **FEW))
    per_layer = 2 if planted.name == "bert" else 24
    assert found.forced == found.budget == 3 * per_layer
    assert found.n_candidates == 16 * found.budget
    families = ["chosen", "magnitude", "random position", "scattered", "matched"]
    assert [one.family for one in found.controls] == families[1:]
    assert [one.family for one in found.conditions] == ["intact", *families[:2]] + [
        f for f in families[2:] for _ in "ab"
    ]
    assert [one.n_set for one in found.conditions] == [None] + [found.budget] * 8
    intact = found.conditions[0]
    assert intact.change.value == 0
    assert found.magnitude.swaps == 0
    assert found.chosen.change.value == pytest.approx(
        np.average(np.subtract(found.chosen.per_text, intact.per_text), weights=weights_of(planted))
    )
    for use in found.controls[1:]:
        changes = [one.change.value for one in found.conditions if one.family == use.family]
        assert (use.sets, use.median, use.n) == (tuple(changes), pytest.approx(sum(changes) / 2), 2)
        assert use.change == found.chosen.change
    after = planted.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    for one in found.conditions[3:]:
        positions = set().union(*one.plan.values())
        assert one.family != "scattered" or len(positions) == 3  # another position in each layer
        assert 6 not in positions


def weights_of(loaded: LoadedModel) -> np.ndarray:
    from outlierlens.tasks.choice import make_task

    return make_task(loaded, TEXTS).weights


def test_a_budget_beyond_one_position_is_filled_with_the_smallest(planted: LoadedModel) -> None:
    shapes = {name: tuple(value.shape) for name, value in live_parameters(planted.model).items()}
    pruner = Pruner(planted.model, Cells.of(planted.stacks[0], shapes, Removal()))
    plan = {0: (6,), 2: (6, 1)}
    forced = pruner.pruned(plan, 0)
    assert int(forced.sum()) == 3 * int(pruner.cells.total[0])
    for layer, dims in plan.items():
        for param in pruner.cells.params[layer]:
            assert np.moveaxis(pruner.row.parts(forced)[param.name], param.axis, 0)[list(dims)].all()
    taken = pruner.pruned(plan, int(forced.sum()) + 10)
    assert int(taken.sum()) == int(forced.sum()) + 10
    assert taken[forced].all()
    scores, live = pruner.row.values, live_parameters(planted.model)
    others = np.sort(scores[~forced])
    np.testing.assert_array_equal(np.sort(scores[taken & ~forced]), others[:10])
    with pruner.off(taken) as n_off:
        values = np.concatenate([live[name].detach().reshape(-1).numpy() for name in pruner.params])
        assert (values[taken] == 0).all()
        assert n_off == int(taken.sum())
        assert np.count_nonzero(values[~taken] == 0) == 0
    with pytest.raises(RuntimeError, match="inside"), pruner.off(taken):
        raise RuntimeError("inside")
    values = np.concatenate([live[name].detach().reshape(-1).numpy() for name in pruner.params])
    assert (np.abs(values) == scores).all()


def test_sparsity_is_a_share_of_the_candidates() -> None:
    loaded = needle("llama", "CausalLM", "causal")
    options = PruneTestOptions(dims=(6,), sparsity=0.25, n_random=0, n_scattered=0, n_matched=0)
    found = prune_test(loaded, TEXTS, options)
    assert (found.budget, found.forced, found.sparsity) == (288, 72, 0.25)
    assert (found.magnitude.n_set, found.chosen.n_set) == (288, 288)
    # All 72 forced weights are the largest there are, so magnitude took 72 others.
    assert (found.magnitude.swaps, found.chosen.swaps) == (0, 72)
    assert [one.family for one in found.controls] == ["magnitude"]


def test_rows_of_another_budget_are_refused(tmp_path: Path) -> None:
    loaded, none = needle("bert", "MaskedLM", "masked"), {"n_random": 0, "n_scattered": 0, "n_matched": 0}
    prune_test(loaded, TEXTS, PruneTestOptions(dims=(6,), **none), rows=tmp_path / "rows.jsonl")
    with pytest.raises(BadInput, match="budget was 6, is 12"):
        prune_test(loaded, TEXTS, PruneTestOptions(dims=(6, 7), **none), rows=tmp_path / "rows.jsonl")


def test_what_an_experiment_refuses() -> None:
    plain = tiny("bert", "MaskedLM")
    with pytest.raises(BadInput, match="the scan finds no outlier; name positions"):
        prune_test(plain, TEXTS)


def test_the_scan_names_what_the_budget_is_forced_onto() -> None:
    found = prune_test(
        needle("bert", "MaskedLM", "masked"), TEXTS, PruneTestOptions(n_random=0, n_scattered=0, n_matched=0)
    )
    assert found.dims == (6,)
    assert found.about.named_by == "the scan of the weights, at 3 sigma"


def test_a_position_is_condemned_only_where_it_costs_more_than_all_else(costs: PruneTest) -> None:
    def with_changes(chosen: Estimate, magnitude: float = 0.01) -> PruneTest:
        changes = {"chosen": chosen, "magnitude": Estimate(magnitude)}
        rows = [replace(one, change=changes.get(one.family, one.change)) for one in costs.conditions]
        ends = [replace(one, percentile_95=high) for one, high in zip(costs.controls, (magnitude, 0.04), strict=False)]
        return replace(costs, conditions=tuple(rows), controls=tuple(ends))

    costly = with_changes(Estimate(1.5, 1.48, 1.52))
    assert costly.worse
    assert costly.verdict.startswith(
        "safe to prune except position 6: +1.500 nats per token with 6 weights forced onto 6, +0.010"
    )
    assert not with_changes(Estimate(1.5, 1.48, 1.52), magnitude=1.6).worse
    like = with_changes(Estimate(0.03, 0.02, 0.04))
    assert like.verdict.startswith("position 6 can be pruned like others: +0.030")
    few = with_changes(Estimate(1.5))
    few = replace(few, about=replace(few.about, n_texts=8))
    assert few.verdict.startswith(
        "no verdict on position 6, for 8 texts are too few for an interval; read 16 or more: +1.500 nats per token"
    )
    assert not few.worse


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
