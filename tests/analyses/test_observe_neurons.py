"""`observe --stack mlp`: statistics of what each last linear reads, beside plain hooks, and a planted neuron."""

from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES
from conftest import Words
from outlierlens.analyses.observe import observe
from outlierlens.architectures import Neuron
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.rules import ActivationMeasures, ActivationRules, massive_neurons
from outlierlens.errors import BadInput
from planted import some_texts, tiny, wrap

TEXTS = some_texts(9, seed=4)


def options(stack: str = "mlp", **more: Any) -> ObserveOptions:
    return ObserveOptions(stack=stack, passage_tokens=0, batch_size=4, **more)


@pytest.mark.parametrize(
    ("name", "stack", "path"),
    [
        ("bert", "mlp", "encoder.layer.{}.output.dense"),
        ("gpt2", "mlp", "h.{}.mlp.c_proj"),
        ("llama", "mlp", "layers.{}.mlp.down_proj"),
        ("gemma", "mlp", "layers.{}.mlp.down_proj"),
        ("phi3", "mlp", "layers.{}.mlp.down_proj"),
        ("t5", "encoder.mlp", "encoder.block.{}.layer.1.DenseReluDense.wo"),
        ("opt", "mlp", "decoder.layers.{}.fc2"),
        ("xlnet", "mlp", "layer.{}.ff.layer_2"),
    ],
)
def test_statistics_are_those_of_plain_hooks(name: str, stack: str, path: str) -> None:
    loaded = wrap(FAMILIES[name], Words.build())
    (found,) = observe(loaded, TEXTS, options(stack)).stacks
    n_layers = loaded.axis(stack).n_layers
    read: list[list[torch.Tensor]] = [[] for _ in range(n_layers)]
    hooks = [
        loaded.model.get_submodule(path.format(layer)).register_forward_pre_hook(
            lambda module, args, layer=layer: read[layer].append(args[0].reshape(-1, args[0].shape[-1]))
        )
        for layer in range(n_layers)
    ]
    for text in TEXTS.texts:  # each alone, so nothing is padded
        ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            loaded.model(input_ids=ids, **({"decoder_input_ids": ids} if "." in stack else {}))
    for hook in hooks:
        hook.remove()
    assert found.layers == tuple(map(str, range(n_layers)))
    statistics = found.view()
    for layer, parts in enumerate(read):
        values = torch.cat(parts).numpy()
        top = np.abs(values).max(0)
        np.testing.assert_allclose(statistics.mean[layer], values.mean(0), atol=1e-6)
        np.testing.assert_allclose(statistics.std[layer], values.std(0), atol=1e-6)
        np.testing.assert_allclose(statistics.abs_max[layer], top, rtol=1e-5)
        np.testing.assert_allclose(found.times_median[layer], top / np.median(top), rtol=1e-4)


def test_a_planted_neuron_is_the_largest_and_named_with_its_block() -> None:
    loaded = tiny("llama", "CausalLM", "causal")
    with torch.no_grad():
        loaded.model.get_submodule("model.layers.1.mlp.up_proj").weight[6] *= 1e6
    found = observe(loaded, TEXTS, options(rules=ActivationRules(massive_ratio=100.0)))
    (stack,) = found.stacks
    ((neuron, row, column),) = stack.strongest(1)
    assert (neuron, row, stack.dims[column]) == (Neuron(1, 6), 1, 6)
    assert next((one.rule, one.dim, one.layers) for one in stack.outliers) == ("massive", 6, ("1",))


def test_each_massive_neuron_stands_in_its_own_layer() -> None:
    top = np.array([[1.0, 500.0, 3.0], [150.0, 900.0, 99.0]])
    nothing = np.zeros_like(top)
    measured = ActivationMeasures(("0", "1"), nothing, nothing, top, nothing, np.array([0.4, 0.1]))
    found = massive_neurons(measured, ActivationRules())
    assert [(one.dim, one.layers, one.strength) for one in found] == [
        (1, ("1",), (900.0,)),
        (1, ("0",), (500.0,)),
        (0, ("1",), (150.0,)),
    ]


def test_one_stream_alone_and_what_is_not_there() -> None:
    loaded = tiny("t5")
    (found,) = observe(loaded, TEXTS, options("encoder")).stacks
    assert (found.stack, found.layers[0], found.by_neuron) == ("encoder", "embeddings", False)
    (other,) = [one for one in observe(loaded, TEXTS, ObserveOptions(batch_size=4)).stacks if one.stack == "encoder"]
    np.testing.assert_array_equal(found.view().mean, other.view().mean)
    with pytest.raises(BadInput, match="has no MLP axis"):
        observe(tiny("mixtral"), TEXTS, options())
    with pytest.raises(BadInput, match=r"must be one of encoder\.mlp, decoder\.mlp"):
        observe(loaded, TEXTS, options())
