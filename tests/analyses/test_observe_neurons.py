"""`observe --stack mlp`: statistics of what each last linear reads, beside plain hooks, and a planted neuron."""

from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES
from conftest import Words
from mixtures import EXPERT, LAYER, MIXTURES, NAME, NEURON, experts_of, mixture
from outlierlens.analyses.observe import observe
from outlierlens.architectures import Neuron
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.rules import ActivationMeasures, ActivationRules, massive_neurons
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects
from outlierlens.results.document import from_json, to_json
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


@pytest.mark.parametrize("name", MIXTURES)
def test_neurons_of_experts_are_measured_on_their_tokens(name: str) -> None:
    """Beside each text alone, and each expert by hand from what its module is given; and a planted neuron."""
    loaded = from_objects(mixture(name), Words.build(kind="causal"), name=name)
    found = observe(loaded, TEXTS, options(rules=ActivationRules(massive_size=5.0, massive_ratio=20.0)))
    stack = next(one for one in found.stacks if f"{LAYER}:{EXPERT}" in one.layers)
    experts, read = experts_of(loaded.model), dict[int, list[tuple[torch.Tensor, str, int]]]()
    given: list[Any] = []
    hook = experts.register_forward_pre_hook(
        lambda module, args, kwargs: given.append((*args, *kwargs.values())), with_kwargs=True
    )
    for text in TEXTS.texts:
        with torch.no_grad():
            loaded.model(**loaded.tokenizer(text, return_tensors="pt"))
            states = given[-1][0]
            for expert in range(4):
                if name == "llama4_text":
                    some = states.view(4, -1, states.shape[-1])[expert]
                    tokens = some.any(-1).nonzero().flatten().tolist()
                else:
                    some, tokens = states, sorted((given[-1][1] == expert).any(-1).nonzero().flatten().tolist())
                for token in tokens:
                    word = text.split()[token]
                    read.setdefault(expert, []).append((inner(experts, name, some[token], expert), word, token))
    hook.remove()
    statistics = stack.view()
    for expert in range(4):
        row = stack.layers.index(f"{LAYER}:{expert}")
        if expert not in read:
            assert statistics.tokens[row] == 0
            assert np.isnan(statistics.abs_max[row]).all()
            continue
        values = torch.stack([one for one, _, _ in read[expert]]).numpy()
        assert statistics.tokens[row] == len(values)
        np.testing.assert_allclose(statistics.mean[row], values.mean(0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(statistics.abs_max[row], np.abs(values).max(0), rtol=1e-4)
        _, word, position = read[expert][int(np.abs(values[:, NEURON]).argmax())]
        column = stack.dims.index(NEURON)
        assert statistics.abs_max_token[row][column] == word
        assert statistics.abs_max_position[row, column] == position
    first = found.neurons[0]
    assert (first.neuron, first.massive) == (NAME, True)
    tops = [np.abs(torch.stack([one for one, _, _ in some]).numpy()).max(0) for some in read.values()]
    assert first.times_median == pytest.approx(first.abs_max / np.median(np.concatenate(tops)), rel=1e-3)
    assert NAME in found.about.dims
    assert f"the largest neuron is {NAME}, |x| " in " ".join(found.sentences())
    kinds = {"deepseek_v3": 3, "qwen3_moe": 2, "qwen2_moe": 2, "llama4_text": 2}
    assert len(found.stacks) == kinds.get(name, 1)  # dense layers and shared experts stand apart
    assert from_json(to_json(found)).neurons == found.neurons


def inner(experts: Any, name: str, states: torch.Tensor, expert: int) -> torch.Tensor:
    """What the last linear of an expert reads of one token [neuron]."""
    if name == "gpt_oss":
        both = states @ experts.gate_up_proj[expert] + experts.gate_up_proj_bias[expert]
        gated: torch.Tensor = experts._apply_gate(both)
        return gated
    matrix = experts.gate_up_proj[expert].T if name == "llama4_text" else experts.gate_up_proj[expert]
    gate, up = (matrix @ states).chunk(2)
    read: torch.Tensor = experts.act_fn(gate) * up
    return read


def test_experts_that_no_text_reached_are_said() -> None:
    loaded = from_objects(mixture("mixtral"), Words.build(kind="causal"), name="mixtral")
    found = observe(loaded, Texts("one", ("w1",)), options())
    reached = {(one.partition(":")[0], one.partition(":")[2]) for one, n in zip(
        found.stacks[0].layers, found.stacks[0].view().tokens, strict=True) if n}  # fmt: skip
    assert len(reached) == 6  # two of four in each of three layers
    (note,) = (note for note in found.stacks[0].notes if "reached" in note)
    assert note.startswith("no token reached 6 of 12 experts")
    assert {str(one.neuron).rpartition(":")[0] for one in found.neurons} == {":".join(one) for one in reached}
    assert "no token reached 6 of 12 experts" in str(found)


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
    with pytest.raises(BadInput, match="has no MLP axis: layers share one block"):
        observe(tiny("albert"), TEXTS, options())
    with pytest.raises(BadInput, match=r"must be one of encoder\.mlp, decoder\.mlp"):
        observe(loaded, TEXTS, options())
