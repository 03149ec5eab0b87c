"""Penalties, clamps and planting: numbers by hand, what a step does, and what is left alone."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outlierlens as ol
from architectures import FAMILIES, build
from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.training.pretrain.build import clamp_scale_, kurtosis, norm_spread, planted_


def loaded(family: str = "outlierlens-bert", head: str = "", seed: int = 0) -> LoadedModel:
    return from_objects(build(FAMILIES[family], head, seed=seed), name=family)


def stack_of(family: str = "outlierlens-bert") -> tuple[Any, BoundStack]:
    model = loaded(family)
    return model.model, model.stacks[0]


def values(model: Any, params: Any) -> torch.Tensor:
    """[layer, dim] of one parameter a layer."""
    return torch.stack([model.get_parameter(layer[0].name) for layer in params]).detach()


def snapshot(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def changed(model: Any, before: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    """Names of parameters that differ from `before`, with the places where they do."""
    return {
        name: torch.nonzero(parameter.flatten() != before[name].flatten()).flatten().tolist()
        for name, parameter in model.named_parameters()
        if not torch.equal(parameter, before[name])
    }


def test_norm_spread_by_hand() -> None:
    model, stack = stack_of()
    with torch.no_grad():
        for layer, high in enumerate((1.0, 2.0, 3.0)):
            scale = model.get_parameter(stack.scale[layer][0].name)
            scale.fill_(1.0)
            scale[:4] = 1 + high  # a quarter of 16: variance high² · 1/4 · 3/4
    assert norm_spread(model, [stack]).item() == pytest.approx((1 + 4 + 9) / 3 * 3 / 16)


def test_the_gradient_of_norm_spread_pulls_scales_together() -> None:
    model, stack = stack_of()
    before = values(model, stack.scale)
    norm_spread(model, [stack]).backward()
    for layer in range(3):
        gradient = model.get_parameter(stack.scale[layer][0].name).grad
        # d/dx_j of the variance of 16 values, averaged over 3 layers.
        torch.testing.assert_close(gradient, (before[layer] - before[layer].mean()) * 2 / 16 / 3)
    others = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert others == [layer[0].name for layer in stack.scale]


@pytest.mark.parametrize(
    ("family", "n_norms"),
    [("outlierlens-bert-pre-norm", 6), ("llama", 6), ("gemma", 6), ("olmo2", 3), ("albert", 1), ("bart", 5)],
)
def test_norms_that_are_held_in_other_layouts(family: str, n_norms: int) -> None:
    model = loaded(family)
    norm_spread(model.model, model.stacks).backward()
    held = {name for name, parameter in model.model.named_parameters() if parameter.grad is not None}
    assert len(held) == n_norms
    assert all("norm" in name.lower() and name.endswith(".weight") for name in held)
    before = snapshot(model.model)
    clamp_scale_(model.model, model.stacks, 0.05)
    assert set(changed(model.model, before)) == held
    # Gemma multiplies by 1 + weight: its weights lie around 0.
    middle = 0.0 if family == "gemma" else 1.0
    held_values = torch.cat([model.model.get_parameter(name).detach() for name in held])
    assert float((held_values - middle).abs().max()) <= 0.05 + 1e-6


def test_clamping_by_hand() -> None:
    model, stack = stack_of()
    with torch.no_grad():
        scale = model.get_parameter(stack.scale[1][0].name)
        scale[:5] = torch.tensor([0.2, 0.7, 1.0, 1.3, 4.0])
    clamp_scale_(model, [stack], 0.25)
    assert scale[:5].tolist() == [0.75, 0.75, 1.0, 1.25, 1.25]
    before = snapshot(model)
    clamp_scale_(model, [stack], 0.25)
    assert not changed(model, before)
    clamp_scale_(model, [stack], 0.0)
    assert torch.equal(scale, torch.ones(16))


def test_kurtosis_by_hand() -> None:
    # Mean squares of the dimensions: 1, 4, 25 -> (1 + 16 + 625) / 3 over (30 / 3)².
    states = torch.tensor([[[1.0, 2.0, -7.0], [-1.0, -2.0, 1.0]]])
    assert kurtosis(states).item() == pytest.approx(214 / 100)
    # With the first token alone: 1, 4, 49.
    assert kurtosis(states[0, 0]).item() == pytest.approx((1 + 16 + 2401) / 3 / 18**2)


@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(0.01, 100))
def test_kurtosis_lies_between_1_and_the_width_and_knows_no_scale(seed: int, width: int, factor: float) -> None:
    states = torch.randn(3, 5, width, generator=torch.Generator().manual_seed(seed)) ** 3
    found = kurtosis(states).item()
    assert 1 <= found * (1 + 1e-6) <= width * (1 + 1e-5)
    assert kurtosis(states * factor).item() == pytest.approx(found, rel=1e-4)
    size = np.square(states.double().numpy()).mean((0, 1))
    assert found == pytest.approx((size**2).mean() / size.mean() ** 2, rel=1e-4)
    size_alike = states / torch.from_numpy(np.sqrt(size)).float()
    assert kurtosis(size_alike).item() == pytest.approx(1, abs=1e-4)
    assert kurtosis(states * torch.eye(width)[width // 2]).item() == pytest.approx(width, rel=1e-4)


def test_kurtosis_survives_half_precision_and_has_a_gradient() -> None:
    states = torch.full((1, 2, 4), 1.0)
    states[..., 0] = 300.0  # 300⁴ overflows float16
    expected = (300.0**4 + 3) / 4 / ((300.0**2 + 3) / 4) ** 2
    for dtype in (torch.float16, torch.bfloat16):
        assert kurtosis(states.to(dtype)).item() == pytest.approx(expected, rel=1e-3)
    states.requires_grad_()
    kurtosis(states).backward()
    assert states.grad is not None
    assert float(states.grad[0, 0, 0]) > 0  # a larger outlier is worse
    assert float(states.grad[0, 0, 1]) < 0


@pytest.mark.parametrize("penalty", ["norm-spread", "kurtosis", "clamp"])
def test_each_mitigation_shrinks_a_planted_outlier_in_training(penalty: str) -> None:
    from outlierlens.models.hooks import tapped

    model, stack = stack_of()
    planted_(model, stack, [5], scale=6.0, bias=3.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    ids = torch.arange(3, 31).view(4, 7)

    def measure() -> tuple[float, float, torch.Tensor]:
        seen: list[torch.Tensor] = []
        with tapped(model, [stack], lambda stack, layer, states: seen.append(states) if layer >= 0 else None):
            model(ids)
        unequal = torch.stack([kurtosis(states) for states in seen]).mean()
        spread = norm_spread(model, [stack])
        return spread.item(), unequal.item(), {"norm-spread": spread, "kurtosis": unequal}.get(penalty, spread)

    first = measure()
    for _ in range(40):
        _, _, loss = measure()
        if penalty != "clamp":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            clamp_scale_(model, [stack], 0.5)
    last = measure()
    assert last[2].item() < 0.8 * first[2].item()
    if penalty == "kurtosis":
        assert last[1] < 0.8 * first[1]


def test_planting_touches_nothing_else_and_is_found() -> None:
    model, stack = stack_of()
    before = snapshot(model)
    planted_(model, stack, [3, 11], scale=3.5, bias=-2.0)
    where = changed(model, before)
    assert where == {layer[0].name: [3, 11] for layer in (*stack.scale, *stack.bias)}
    assert torch.equal(values(model, stack.scale)[:, [3, 11]], torch.full((3, 2), 3.5))
    assert torch.equal(values(model, stack.bias)[:, [3, 11]], torch.full((3, 2), -2.0))


def test_planting_into_norms_without_bias_and_norms_of_one_plus_weight() -> None:
    model, stack = stack_of("outlierlens-bert-rmsnorm")
    planted_(model, stack, [4], scale=3.0, bias=0.0)
    assert torch.equal(values(model, stack.scale)[:, 4], torch.full((3,), 3.0))
    model, stack = stack_of("gemma2")
    planted_(model, stack, [4], scale=3.0, bias=0.0)
    assert torch.equal(values(model, stack.scale)[:, 4], torch.full((3,), 2.0))


def test_a_planted_outlier_is_found_by_scan(tmp_path: Path) -> None:
    from outlierlens.models.variants.model import VariantConfig, VariantForMaskedLM

    model = VariantForMaskedLM(VariantConfig(vocab_size=40, hidden_size=64, num_hidden_layers=2, num_attention_heads=2))
    planted_(model, from_objects(model).stacks[0], [50], scale=2.0, bias=-1.0)
    model.save_pretrained(tmp_path)
    assert [outlier.dim for outlier in ol.scan(str(tmp_path)).stacks[0].outliers] == [50]


@pytest.mark.parametrize("dims", [[16], [-1], [3, 3]])
def test_dims_that_cannot_be_planted(dims: list[int]) -> None:
    model, stack = stack_of()
    before = snapshot(model)
    with pytest.raises(BadInput, match=r"does not exist|is repeated"):
        planted_(model, stack, dims, scale=2.0, bias=0.0)
    assert not changed(model, before)


def test_errors_of_planting() -> None:
    with pytest.raises(BadInput, match=r"its norms have no bias to plant -1\.0 in; pass 0"):
        planted_(*stack_of("outlierlens-bert-rmsnorm"), [1], scale=2.0, bias=-1.0)


def test_errors_of_penalties() -> None:
    model, stack = stack_of()
    no_norms = BoundStack(stack.stack, "", stack.blocks, (), (), (), (), (), ())
    with pytest.raises(BadInput, match="its blocks have no norm whose scale could be held"):
        norm_spread(model, [no_norms])
    assert math.isfinite(norm_spread(model, [stack]).item())
