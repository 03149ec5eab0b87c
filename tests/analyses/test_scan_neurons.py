"""Neurons that their weights single out: the bound against brute force, a planted one, and random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import D_FF, FAMILIES, build
from mixtures import DIM, EXPERT, MIXTURES, NAME, NEURON, experts_of, mixture
from outlierlens.analyses.scan import scan
from outlierlens.detection.weights import TIMES, ScanOptions, _reach
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects

PLANTED = {"llama": "mlp.down_proj", "phi3": "mlp.down_proj", "gpt2": "mlp.c_proj", "bert": "output.dense"}
PLANTED_NEURON = 5


def test_the_largest_value_is_that_of_an_eigenvector() -> None:
    random = np.random.default_rng(0)
    up, gate = random.standard_normal((2, 7, 12))
    both = np.einsum("ni,nj->nij", up, gate)
    largest = np.abs(np.linalg.eigvalsh((both + both.transpose(0, 2, 1)) / 2)).max(1)
    np.testing.assert_allclose(_reach([up, gate]), 12 * largest)
    np.testing.assert_allclose(_reach([up]), np.sqrt(12) * np.linalg.norm(up, axis=1))


def test_random_rows_are_never_named() -> None:
    for draw in range(200):
        random = np.random.default_rng(draw)
        for rows in ([random.standard_normal((256, 16))], list(random.standard_normal((2, 256, 16)))):
            reach = _reach(rows)
            assert reach.max() < TIMES / 2 * np.median(reach)


@pytest.mark.parametrize("family", PLANTED)
def test_a_planted_neuron_is_named_by_block_and_number(family: str, tmp_path: Path) -> None:
    model: Any = build(FAMILIES[family])
    linear = f".1.{PLANTED[family]}"
    width = FAMILIES[family].config.get("hidden_size") or FAMILIES[family].config["n_embd"]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".1." not in name or weight.ndim != 2 or "att" in name:
                continue
            if name.endswith(f"{linear}.weight"):
                (weight if family != "gpt2" else weight.T)[3, PLANTED_NEURON] = 9.0
            elif weight.numel() != width * width:
                (weight if family != "gpt2" else weight.T)[PLANTED_NEURON] = 3.0
                if family == "phi3":
                    weight[len(weight) // 2 + PLANTED_NEURON] = 3.0
    model.save_pretrained(tmp_path)
    found = scan(str(tmp_path), ScanOptions(stack="mlp"))
    assert not found.stacks
    (neuron,) = found.neurons
    assert neuron.neuron == f"1:{PLANTED_NEURON}"
    assert (neuron.dim, round(neuron.weight, 3)) == (3, 9.0)
    assert (found.about.dims, [row["neuron"] for row in found.records()]) == (
        (f"1:{PLANTED_NEURON}",),
        [f"1:{PLANTED_NEURON}"],
    )


@pytest.mark.parametrize("name", MIXTURES)
def test_a_planted_neuron_of_an_expert_is_named_with_it(name: str, tmp_path: Path) -> None:
    """In files, which hold some types' experts one by one, and in the model, which packs them."""
    model = mixture(name)
    model.save_pretrained(tmp_path)
    stored = scan(str(tmp_path), ScanOptions(stack="mlp"))
    for found in (stored, scan(from_objects(model, name=name), ScanOptions(stack="mlp"))):
        (neuron,) = found.neurons
        assert (neuron.neuron, neuron.dim, neuron.weight) == (NAME, DIM, 30.0)
        assert found.about.dims == (NAME,)
        kinds = {one.stack: (one.n_layers, one.n_experts) for one in found.mlps}
        several = {"deepseek_v3": {"down_proj": (1, 0), "shared_experts.down_proj": (2, 0), "experts.down_proj": (2, 4)},
                   "qwen3_moe": {"down_proj": (1, 0), "experts.down_proj": (2, 4)},
                   "qwen2_moe": {"shared_expert.down_proj": (3, 0), "experts.down_proj": (3, 4)},
                   "llama4_text": {"shared_expert.down_proj": (3, 0), "experts.down_proj": (3, 4)}}  # fmt: skip
        root = "feed_forward" if name == "llama4_text" else "mlp"
        expected = {f"mlp ({root}.{path})": counts for path, counts in several.get(name, {}).items()}
        assert kinds == (expected or {"mlp": (3, 4)})
    assert f"{NAME}" in " ".join(stored.sentences())
    assert " × 4 experts × " in " ".join(stored.sentences())


def test_the_reach_of_an_expert_is_that_of_its_rows(tmp_path: Path) -> None:
    """Gate and up stand one behind the other in Mixtral, and take turns in gpt-oss."""
    for name, gate, up in (
        ("mixtral", slice(0, D_FF), slice(D_FF, None)),
        ("gpt_oss", slice(0, None, 2), slice(1, None, 2)),
    ):
        model = mixture(name)
        found = scan(from_objects(model, name=name), ScanOptions(stack="mlp"))
        packed = experts_of(model).gate_up_proj.detach().double().numpy()
        rows = packed.transpose(0, 2, 1) if name == "gpt_oss" else packed
        rows = rows * model.model.layers[1].post_attention_layernorm.weight.detach().double().numpy()
        reach = np.stack([_reach([one[up], one[gate]]) for one in rows])
        assert found.neurons[0].reach == pytest.approx(reach[EXPERT, NEURON])
        assert found.neurons[0].times_median == pytest.approx(reach[EXPERT, NEURON] / np.median(reach))


def test_where_there_are_no_neurons_one_line_says_so(tmp_path: Path) -> None:
    build(FAMILIES["albert"]).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="has no MLP axis: layers share one block"):
        scan(str(tmp_path), ScanOptions(stack="mlp"))


@pytest.mark.real
def test_smollm2_has_the_neuron_of_its_super_weight() -> None:
    found = scan("smollm2-135m", ScanOptions(stack="mlp")).neurons
    one = next(one for one in found if one.neuron == "11:1229")
    assert one.dim == 507
