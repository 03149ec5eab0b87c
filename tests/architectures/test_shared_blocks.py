"""Layers that run one block (ALBERT): its weights are off in all of them or in none, in every command that takes layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import explore_models
import tuned_models
from architectures import FAMILIES, build
from conftest import Words
from outlierlens.ablation.controls import matched_sets
from outlierlens.ablation.switches import removed_writes, zero_weights_, zeroed_norms, zeroed_weights
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.predictions import PredictionOptions, predictions
from outlierlens.analyses.prune_lists import ProtectOptions, protect
from outlierlens.analyses.scan import scan
from outlierlens.analyses.sweep.measure import sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.explore.state import Selection
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects
from outlierlens.replicate.glue import GlueOptions, replicate
from outlierlens.report.page import render
from outlierlens.report.result import ReportData
from outlierlens.results.document import load
from outlierlens.tasks.base import TaskOptions
from outlierlens.view.section import number_of_layers, runs
from planted import random_counts

TEXTS = Texts("test", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(4 + i % 5)) for i in range(12)))
TASK = TaskOptions(max_length=32)
# Layers that run one block each, and what an error calls them.
GROUPS = {
    "albert": [((0, 1, 2), "0–2")],
    "albert-groups": [((0, 2), "0, 2"), ((1, 3), "1, 3"), ((4, 6), "4, 6"), ((5, 7), "5, 7")],
}


def model_of(family: str, words: Any) -> LoadedModel:
    return from_objects(build(FAMILIES[family], "MaskedLM"), words(), name=family)


def loss_by_hand(loaded: LoadedModel, layer: int, dim: int) -> float:
    """Mean masked loss with `dim` zero in what one layer gives: the block counts its own turns."""
    from outlierlens.tasks.base import weighted_mean
    from outlierlens.tasks.choice import make_task

    turn = iter(())
    blocks = loaded.stack().blocks
    block = loaded.model.get_submodule(blocks[layer])
    mine = [other for other, path in enumerate(blocks) if path == blocks[layer]]

    def restart(*_: Any) -> None:
        nonlocal turn
        turn = iter(mine)

    def edit(module: Any, args: Any, output: Any) -> Any:
        if next(turn) != layer:
            return None
        states = (output[0] if isinstance(output, tuple) else output).clone()
        states[..., dim] = 0
        return (states, *output[1:]) if isinstance(output, tuple) else states

    hooks = [loaded.model.register_forward_pre_hook(restart), block.register_forward_hook(edit)]
    try:
        return weighted_mean(*make_task(loaded, TEXTS, TASK).per_text())
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("family", GROUPS)
@pytest.mark.parametrize("ablation", [zeroed_weights, zeroed_norms, removed_writes])
def test_weights_are_off_in_all_layers_of_a_block_or_in_none(family: str, ablation: Any, words: Any) -> None:
    loaded = model_of(family, words)
    before = {name: values.clone() for name, values in loaded.model.state_dict().items()}
    for layers, said in GROUPS[family]:
        says = f"layers {said} run one block, whose weights are ablated in all of these layers or in none; name all"
        with pytest.raises(BadInput, match=says), ablation(loaded, [3], layers=layers[:1]):
            pass
        with pytest.raises(BadInput, match=says), ablation(loaded, {**dict.fromkeys(layers, (3,)), layers[0]: (3, 5)}):
            pass
        with ablation(loaded, {**dict.fromkeys(layers, (3, 5)), layers[0]: (5, 3)}) as n_values:
            assert n_values
    with pytest.raises(BadInput, match="run one block"):
        zero_weights_(loaded, [3], layers=[1])
    assert all(torch.equal(values, before[name]) for name, values in loaded.model.state_dict().items())


@pytest.mark.parametrize("family", GROUPS)
def test_a_layer_alone_is_off_in_what_it_gives(family: str, words: Any) -> None:
    loaded = model_of(family, words)
    options = AblateOptions(n_random=0, n_matched=0, avoid=(), task=TASK)
    layers, said = GROUPS[family][0]
    with pytest.raises(BadInput, match=f"layers {said} run one block"):
        ablate(loaded, TEXTS, [3], AblateOptions(layers=layers[:1], task=TASK))
    with pytest.raises(BadInput, match="run one block"):
        sweep(loaded, TEXTS, SweepOptions(windows="single", dims=(3,), task=TASK))
    with pytest.raises(BadInput, match="run one block"):
        sweep(loaded, TEXTS, SweepOptions(dims=(), plans=({layers[1]: (3,)},), task=TASK))
    swept = sweep(
        loaded, TEXTS,
        SweepOptions(
            windows="single", mode="zero", dims=(3,), exact=True, with_found=False, n_random=0, n_matched=0, task=TASK
        ),
    )  # fmt: skip
    assert [effect.layers for effect in swept.effects] == [(layer,) for layer in range(swept.n_layers)]
    for layer, effect in enumerate(swept.effects):
        assert swept.intact.value + effect.change.value == pytest.approx(loss_by_hand(loaded, layer, 3), rel=1e-5)
    # Off in all the layers of a block, weights and what they give are one.
    weights, hidden = (
        ablate(loaded, TEXTS, [3], replace(options, layers=layers, modes=(mode,))).chosen
        for mode in ("weights", "zero")
    )
    assert weights.change.value == pytest.approx(hidden.change.value, rel=1e-4)
    assert weights.n_set == 2
    assert len({effect.change for effect in swept.effects}) == swept.n_layers


def test_matched_sets_are_the_same_in_layers_that_share_their_weights(words: Any) -> None:
    loaded = model_of("albert-groups", words)
    blocks = loaded.stack().blocks
    strength = np.random.default_rng(0).random((8, 16))
    for one in matched_sets(strength, dict.fromkeys(range(8), (3, 5)), avoid=(), n=5, seed=0, blocks=blocks):
        assert len({(blocks[layer], dims) for layer, dims in one.plan.items()}) == 4
    damage = ablate(loaded, TEXTS, [3, 5], AblateOptions(n_random=2, n_matched=4, task=TASK))
    matched = [one for one in damage.controls if one.family == "matched"]
    assert {one.n_set for one in matched} == {damage.chosen.n_set} == {2 * 2 * 4}


def test_other_commands_refuse_a_part_of_a_block_before_they_measure(words: Any, tmp_path: Path) -> None:
    loaded = model_of("albert-groups", words)
    options = PredictionOptions(n_random=1, n_bootstrap=20, inputs=("masked",), task=TASK)
    with pytest.raises(BadInput, match="layers 1, 3 run one block"):
        predictions(loaded, TEXTS, random_counts(), {1: (3,)}, options)
    explorer = explore_models.tiny(words, "albert", "MaskedLM", "masked")
    with pytest.raises(BadInput, match="layers 0–2 run one block"):
        explorer.look(Selection(text=explore_models.TEXT, dims=(3,), first=1, last=2))
    assert explorer.look(Selection(text=explore_models.TEXT, dims=(3,), first=1, last=2, mode="zero"), ("loss",)).losses
    loaded.model.save_pretrained(tmp_path)  # type: ignore[operator]
    made = protect(str(tmp_path), "sparsegpt", ProtectOptions(dims=(3,), layers="all"))
    assert (made.layers, len(set(made.modules))) == ((0, 1, 2, 3), 4)  # a block that several layers run is named once
    assert made.modules[-1] == "albert.encoder.albert_layer_groups.1.albert_layers.1.ffn_output"


def test_a_paper_s_single_layers_are_edited_where_weights_are_shared(tmp_path: Path) -> None:
    model = build(FAMILIES["albert"], "SequenceClassification")
    model.config.id2label = {0: "unacceptable", 1: "acceptable"}
    model.config.label2id = {"unacceptable": 0, "acceptable": 1}
    model.save_pretrained(tmp_path / "model")
    Words.build().save_pretrained(tmp_path / "model")
    tuned_models.write_data(tmp_path / "data")
    options = GlueOptions(
        tasks=("cola",), data=str(tmp_path / "data"), tuned=(f"cola={tmp_path / 'model'}",), dims=(3,), n_random=1,
        n_matched=1, limit=20, layers=True,
    )  # fmt: skip
    made = replicate("tiny", options, tmp_path / "run", load=LoadOptions(dtype="float32", device="cpu"))
    assert "layer by layer, dimensions are ablated in the layer's output, as layers share their weights" in made.notes
    assert [row.layer for row in made.by_layer] == [0, 1, 2]
    (by_layer,) = (load(path) for path in (tmp_path / "run").rglob("*.json") if "layer" in path.stem)
    assert by_layer.mode == "edited_hidden zero"


def test_a_scan_says_what_was_tested(tmp_path: Path, run: Any) -> None:
    said = {}
    for family in GROUPS:
        model = build(FAMILIES[family])
        model.save_pretrained(tmp_path / family)
        Words.build().save_pretrained(tmp_path / family)
        code, said[family], err = run("scan", str(tmp_path / family))
        assert code == 0, err
    assert "all layers run one block, so one vector was tested" in said["albert"]
    assert "one vector was tested" not in said["albert-groups"]
    albert, groups = (scan(str(tmp_path / family)) for family in GROUPS)
    assert albert.stacks[0].shape == "3 layers of 1 distinct block × 16 dimensions"
    assert groups.stacks[0].shape == "8 layers of 4 distinct blocks × 16 dimensions"
    assert f">{groups.stacks[0].shape}<" in render(ReportData(groups.provenance, (groups,)))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS.texts))
    code, out, err = run(
        "observe", str(tmp_path / "albert"), "--rule", "all", "--data", str(tmp_path / "texts.txt"), "--nulls", "none"
    )
    assert code == 0, err
    assert "ranks over layers cannot agree: fewer than two blocks, each counted once, have a norm" in " ".join(
        out.split()
    )


def test_layers_in_words() -> None:
    assert [number_of_layers(n) for n in (1, 3)] == ["1 layer", "3 layers"]
    assert runs((0, 1, 2, 5)) == "0–2, 5"
