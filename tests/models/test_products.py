"""Large products on a CPU: the numbers of float64 to float32 rounding, and which products are meant."""

import pytest

torch = pytest.importorskip("torch")

from outlierlens.models import devices  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch comes without oneDNN"
)


@pytest.fixture
def called(monkeypatch):
    """Shapes of the products that went to oneDNN, as on a processor with AVX-512."""
    seen = []
    linear = devices.linear

    def noted(states, weight, bias=None):
        if devices._fits(states, weight, bias):
            seen.append((tuple(states.shape), tuple(weight.shape)))
        return linear(states, weight, bias)

    monkeypatch.setattr(devices, "_there", lambda: True)
    monkeypatch.setattr(devices, "linear", noted)
    return seen


@pytest.mark.parametrize("shape", [(192,), (1, 192), (3, 5, 192), (0, 192)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_those_of_float64_to_rounding(monkeypatch, shape, turned):
    monkeypatch.setattr(devices, "_there", lambda: True)
    random = torch.Generator().manual_seed(0)
    states, bias = torch.randn(*shape, generator=random), torch.randn(256, generator=random)
    weight = torch.randn(192, 256, generator=random).T if turned else torch.randn(256, 192, generator=random)
    with torch.inference_mode():
        found = devices.linear(states, weight, bias)
    exact = states.double() @ weight.double().T + bias.double()
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)


def test_a_zero_weight_and_a_nan_stay_what_they_are(monkeypatch):
    monkeypatch.setattr(devices, "_there", lambda: True)
    weight, states = torch.randn(256, 192), torch.randn(4, 192)
    weight[7], states[2, 0] = 0, torch.nan
    with torch.inference_mode():
        found = devices.linear(states, weight)
    assert found[[0, 1, 3], 7].tolist() == [0, 0, 0]
    assert found[2].isnan().all()


def test_only_large_float32_parameters_without_gradients_are_meant(called):
    from transformers.pytorch_utils import Conv1D

    large, small, turned = torch.nn.Linear(192, 256), torch.nn.Linear(16, 16), Conv1D(256, 192)
    states = torch.randn(2, 3, 192)
    with devices.fast_products():
        large(states)  # gradients are made
    assert not called
    with torch.inference_mode(), devices.fast_products():
        found = large(states), turned(states)
        small(states[..., :16])
        torch.nn.Linear(192, 256, dtype=torch.bfloat16)(states.bfloat16())
        torch.nn.functional.linear(states, torch.randn(2, 256, 192)[1])  # a slice of a packed expert
    assert called == [((2, 3, 192), (256, 192)), ((6, 192), (256, 192))]
    with torch.inference_mode():
        plain = large(states), turned(states)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert len(called) == 2


def test_gradients_of_states_are_those_of_float64_to_rounding(called):
    random = torch.Generator().manual_seed(0)
    states = torch.randn(4, 192, generator=random, requires_grad=True)
    layer = torch.nn.Linear(192, 256).requires_grad_(False)
    with devices.fast_products():
        (layer(states) ** 2).sum().backward()
    assert called == [
        ((4, 192), (256, 192)),
        ((4, 192), (256, 192)),
        ((4, 256), (192, 256)),
    ]  # its first step twice: outside and inside
    exact = states.detach().double().requires_grad_()
    ((exact @ layer.weight.double().T + layer.bias.double()) ** 2).sum().backward()
    torch.testing.assert_close(states.grad.double(), exact.grad, rtol=1e-5, atol=1e-4)


def test_weights_in_order_give_the_same_bits_and_are_let_go_of(monkeypatch):
    monkeypatch.setattr(devices, "_there", lambda: True)
    random = torch.Generator().manual_seed(0)
    layers = [torch.nn.Linear(192, 256), torch.nn.Linear(256, 192, bias=False)]
    states, turned = torch.randn(300, 192, generator=random), torch.randn(192, 256, generator=random).T

    def run():
        with torch.inference_mode(), devices.fast_products():
            some = devices.linear(states, layers[0].weight[64:])  # a part of a vocabulary
            return layers[1](layers[0](states)), some, devices.linear(states, turned)

    plain = run()
    with devices.ordered_weights():
        for _ in range(2):
            assert all(map(torch.equal, plain, run()))
        with devices.ordered_weights():  # the outer one's are used
            kept = list(devices._ordered.get().values())
        assert [tuple(weight.shape) for weight, _ in kept] == [(192, 192), (256, 192), (192, 256), (256, 192)]
        monkeypatch.setattr(devices, "MOST_ORDERED", sum(weight.numel() for weight, _ in kept) + 1)
        other = torch.nn.Linear(192, 256).requires_grad_(False)
        assert torch.equal(devices.linear(states, other.weight), devices.linear(states, other.weight.clone()))
        assert len(devices._ordered.get()) == 4  # no room for more
    assert devices._ordered.get() is None
    layers[0].weight.data *= 2
    with torch.inference_mode():
        changed = run()[1]
    torch.testing.assert_close(changed, 2 * plain[1])
    monkeypatch.setattr(devices, "_there", lambda: False)
    with devices.ordered_weights():
        assert devices._ordered.get() is None
