"""The residual stream of every family times a power of two: what stays bit for bit, what nearly, and what is refused."""

import copy
from typing import Any

import pytest
import torch

from architectures import FAMILIES, batch
from outlierlens.architectures import live_parameters
from outlierlens.errors import BadInput
from outlierlens.experiments.repair.epsilon import epsilons
from outlierlens.experiments.repair.extent import Extent, stream_exponent, watched
from outlierlens.experiments.repair.plan import Plan, stream_plan
from outlierlens.experiments.repair.rewriting import repaired
from outlierlens.models.load import LoadedModel
from repair_families import EXPONENT, load, output, rescaled

TOP = 65504.0
POST = {name for name, one in FAMILIES.items() if "(post-norm)" in rescaled(one).why}
# What is refused for another reason, and what the check of the command refuses.
FIXED = {"wav2vec2-stable": "positional convolution", "wav2vec2-adapters": "positional convolution"}
FIXED |= {"whisper": "GELU", "gemma3": "projector", "opt": "written in the model's code", "modernbert": "head.norm"}
NEAR = {"gemma2", "gemma3_text", "outlierlens-bert-pre-norm", "outlierlens-bert-pre-rmsnorm"}
SCALED = sorted(FAMILIES.keys() - POST - FIXED.keys())
# Its experts have no kernel for float16 of this size; OLMo 2's linears read the stream itself, and stay as large as it was.
NO_HALF = {"qwen3_moe", "olmo2"}
CLAMPED = {"t5", "t5-gated", "mt5"}  # their code cuts what overflows in float16


def test_every_family_is_told_apart() -> None:
    assert {"bert", "bart", "albert", "xlnet", "opt-post-norm", "wav2vec2"} <= POST
    for name, why in FIXED.items():
        tried = rescaled(FAMILIES[name])
        assert tried.verdict == "no", name
        assert why in tried.why
        assert "\n" not in tried.why
    assert {name for name in SCALED if rescaled(FAMILIES[name]).verdict == "near"} == NEAR
    assert {name for name in SCALED if rescaled(FAMILIES[name]).verdict == "no"} == set()


@pytest.mark.parametrize("name", SCALED)
def test_outputs_stay(name: str) -> None:
    tried = rescaled(FAMILIES[name])
    assert tried.difference <= (1e-5 if name in NEAR else 0.0)


@pytest.mark.parametrize("name", SCALED)
def test_a_planted_overflow_is_repaired(name: str) -> None:
    family = FAMILIES[name]
    loaded, inputs = load(family), batch(family)
    _plant(loaded, inputs)
    wanted = output(loaded.model, inputs)
    assert wanted.isfinite().all()
    if name not in CLAMPED | NO_HALF:
        assert not _half(loaded, inputs).isfinite().all()
    exponent = stream_exponent(_extent(loaded, inputs), "fp16", 4)
    with repaired(loaded, stream_plan(loaded, exponent)):
        found = output(loaded.model, inputs)
        assert name in NO_HALF or _half(loaded, inputs).isfinite().all()
        assert max(_extent(loaded, inputs).layers) <= TOP / 4
    if name in NEAR:
        # 1 + weight is rounded near 1, and then as much larger beside a factor of 2^exponent.
        assert (found - wanted).abs().max() <= max(1e-5, 256 * 2.0 ** (-24 - exponent)) * wanted.abs().max()
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["gpt2", "llama-biases", "gemma", "t5", "olmo2", "dinov2"])
def test_everything_is_put_back(name: str) -> None:
    loaded = load(FAMILIES[name])
    model: Any = loaded.model
    before = {key: value.detach().clone() for key, value in live_parameters(model).items()}
    config, ties = model.config.to_dict(), len(list(model.parameters()))
    with pytest.raises(KeyError), repaired(loaded, stream_plan(loaded, EXPONENT)):
        raise KeyError
    assert model.config.to_dict() == config
    assert len(list(model.parameters())) == ties
    assert all(torch.equal(value, before[key]) for key, value in live_parameters(model).items())


def test_who_sets_which_epsilon() -> None:
    found = epsilons(load(FAMILIES["qwen3"]).model)
    assert "model.layers.2.self_attn.q_norm" in found.keys["rms_norm_eps"]
    assert found.key_of("model.norm") == "rms_norm_eps"
    assert not found.fixed
    assert "model.decoder.final_layer_norm" in epsilons(load(FAMILIES["opt"]).model).fixed


def test_values_that_would_vanish_are_refused() -> None:
    plan = Plan({"weight": -4})
    tiny = torch.tensor([2.0**-24, 1.0], dtype=torch.float16)
    with pytest.raises(BadInput, match="weight: 1 values times a power of two lie outside what float16 holds"):
        plan.changed("weight", tiny)
    assert torch.equal(plan.changed("weight", tiny[1:]), torch.tensor([2.0**-4], dtype=torch.float16))


def _plant(loaded: LoadedModel, inputs: dict[str, Any]) -> None:
    """Multiply what one dimension of the first block's last operation writes by 8 until hidden states exceed float16."""
    for bound in loaded.stacks:
        param = bound.scale[0][0]
        values = live_parameters(loaded.model)[param.name]
        first = sum(one.n_layers for one in loaded.stacks[: loaded.stacks.index(bound)])
        for _ in range(30):
            if _extent(loaded, inputs).layers[first] > TOP:
                break
            with torch.no_grad():
                values.select(param.axis, 5).mul_(8)


def _extent(loaded: LoadedModel, inputs: dict[str, Any]) -> Extent:
    seen = Extent([0.0] * sum(bound.n_layers for bound in loaded.stacks))
    with watched(loaded, seen):
        output(loaded.model, inputs)
    return seen


def _half(loaded: LoadedModel, inputs: dict[str, Any]) -> torch.Tensor:
    return output(copy.deepcopy(loaded.model).half(), inputs)
