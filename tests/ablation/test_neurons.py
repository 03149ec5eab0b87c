"""Neurons as an axis: names, where rows say they are, switching them off beside plain hooks, and their controls."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, REPRESENTATIVE, batch, build
from outlierlens.ablation.controls import matched_neurons, random_neurons
from outlierlens.ablation.modes import Switch
from outlierlens.ablation.switches import EditSettings, edited_hidden, mean_states, removed_writes, zeroed_weights
from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.architectures import Neuron, neurons_of
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.inputs import TextReading
from outlierlens.models.load import from_objects, load_model
from outlierlens.options import parse_dims
from outlierlens.results.document import from_json, to_json
from planted import tiny, turning_texts

TEXTS = turning_texts(8 + i % 6 for i in range(12))
# (family, stream, the linear that reads the neurons, as a path in the model)
PLACES = [
    ("bert", "mlp", "encoder.layer.1.output.dense"),
    ("gpt2", "mlp", "h.1.mlp.c_proj"),
    ("llama", "mlp", "layers.1.mlp.down_proj"),
    ("gemma", "mlp", "layers.1.mlp.down_proj"),
    ("t5", "encoder.mlp", "encoder.block.1.layer.1.DenseReluDense.wo"),
    ("t5", "decoder.mlp", "decoder.block.1.layer.2.DenseReluDense.wo"),
    ("phi3", "mlp", "layers.1.mlp.down_proj"),
    ("opt", "mlp", "decoder.layers.1.fc2"),
    ("xlnet", "mlp", "layer.1.ff.layer_2"),
    ("wav2vec2-adapters", "mlp", "encoder.layers.1.feed_forward.output_dense"),
]


def loaded(name: str) -> Any:
    return from_objects(build(FAMILIES[name]), name=name)


def run(model: Any, name: str) -> torch.Tensor:
    with torch.no_grad():
        return model.model(**batch(FAMILIES[name]))[0]


def oracle(model: Any, path: str, neurons: list[int], change: Any = torch.zeros_like) -> Any:
    """A plain hook that changes these neurons in what the linear at `path` reads."""

    def before(module: Any, args: Any) -> Any:
        read = args[0].clone()
        read[..., neurons] = change(read[..., neurons])
        return (read, *args[1:])

    return model.model.get_submodule(path).register_forward_pre_hook(before)


def test_names_are_read_and_printed_in_one_way() -> None:
    assert str(Neuron(11, 1229)) == "11:1229"
    assert Neuron.parse(" 11:1229") == Neuron(11, 1229)
    assert str(Neuron(11, 1229, 3)) == "11:3:1229"
    assert Neuron.parse("11:3:1229") == Neuron(11, 1229, 3)
    assert neurons_of({11: (1229, 3), 2: (5,)}) == (Neuron(2, 5), Neuron(11, 3), Neuron(11, 1229))
    for bad in ("1229", "11:", ":3", "a:3", "1:2:3:4", "1::3", "-1:3"):
        with pytest.raises(BadInput, match="such as 11:1229"):
            Neuron.parse(bad)
    assert parse_dims("11:1229,12:40,12:41") == {11: (1229,), 12: (40, 41)}
    assert parse_dims("0:1,2,3:4") == {0: (1, 2), 3: (4,)}
    with pytest.raises(BadInput, match=r"11:3:1229 is a neuron of an expert, .* layer by layer"):
        parse_dims("2:7; 11:3:1229")
    assert parse_dims("10,11:678,5") == {10: (678, 5), 11: (678, 5)}  # layers before the first colon


@pytest.mark.parametrize(("name", "stack", "path"), PLACES)
def test_a_neuron_off_is_what_a_plain_hook_gives(name: str, stack: str, path: str) -> None:
    model = loaded(name)
    intact, before = run(model, name), {k: v.clone() for k, v in model.model.state_dict().items()}
    hook = oracle(model, path, [2, 7])
    expected = run(model, name)
    hook.remove()
    assert not torch.allclose(expected, intact)
    with zeroed_weights(model, {1: (2, 7)}, stack=stack) as touched:
        torch.testing.assert_close(run(model, name), expected)
    linear = model.model.get_submodule(path)
    assert touched == 2 * (linear.bias if linear.bias is not None else linear.weight[:, 0]).numel()
    with edited_hidden(model, {1: (2, 7)}, "zero", stack=stack) as touched:
        torch.testing.assert_close(run(model, name), expected)
    assert touched == 0
    hook = oracle(model, path, [2, 7], lambda old: 3 * old)
    tripled = run(model, name)
    hook.remove()
    with edited_hidden(model, {1: (2, 7)}, "scale", stack=stack, settings=EditSettings(factor=3.0)):
        torch.testing.assert_close(run(model, name), tripled)
    assert all(torch.equal(before[k], v) for k, v in model.model.state_dict().items())
    torch.testing.assert_close(run(model, name), intact)


def test_means_are_of_what_the_linear_reads() -> None:
    model, read = tiny("llama", "CausalLM", "causal"), []
    texts = Texts("made", ("w1 w2 w3 w4 w5", "w7 w8"))
    for text in texts.texts:  # each alone, without padding
        hook = model.model.get_submodule("model.layers.2.mlp.down_proj").register_forward_pre_hook(
            lambda module, args: read.append(args[0][0])
        )
        with torch.no_grad():
            model.model(input_ids=torch.tensor([model.tokenizer(text)["input_ids"]]))
        hook.remove()
    found = mean_states(model, TextReading(model, 16).batches(texts, batch_size=2), stack="mlp")
    expected = torch.cat(read).mean(0).numpy()
    np.testing.assert_allclose(found[2], expected, atol=1e-5)
    with edited_hidden(model, {2: (3,)}, "mean", stack="mlp", settings=EditSettings(means=found)):
        seen: list[torch.Tensor] = []
        hook = model.model.get_submodule("model.layers.2.mlp.down_proj").register_forward_hook(
            lambda module, args, out: seen.append(args[0])
        )
        with torch.no_grad():
            model.model(input_ids=torch.tensor([[5, 6, 7]]))
        hook.remove()
    np.testing.assert_allclose(seen[0][..., 3].numpy(), expected[3], rtol=1e-5)


def test_what_has_no_such_axis_is_told_in_one_line() -> None:
    for name, why in (("mixtral", "has experts"), ("albert", "layers share one block")):
        with pytest.raises(BadInput, match=why):
            loaded(name).axis("mlp")
    with pytest.raises(BadInput, match=r"must be one of encoder\.mlp, decoder\.mlp"):
        loaded("t5").axis("mlp")
    with pytest.raises(
        BadInput, match=r"neurons are read by scan, observe, ablate and sweep;.* residual stream: model"
    ):
        loaded("llama").stack("mlp")
    with pytest.raises(BadInput, match="use mode weights"), removed_writes(loaded("llama"), {0: (1,)}, stack="mlp"):
        pass
    with (
        pytest.raises(BadInput, match="dimension 999 does not exist"),
        zeroed_weights(loaded("llama"), {0: (999,)}, stack="mlp"),
    ):
        pass


def test_random_neurons_are_of_the_same_layers_and_any_of_them() -> None:
    plan, pools = {0: (1,), 2: (3, 4)}, {0: range(6), 2: range(6)}
    found = random_neurons(pools, plan, avoid={2: (5,)}, n=60, seed=3)
    assert len(found["random"]) == 60
    assert all({layer: len(dims) for layer, dims in one.items()} == {0: 1, 2: 2} for one in found["random"])
    assert plan not in found["random"]
    # 6 × 15 sets but the tested one: with so few, all are drawn.
    every = random_neurons(pools, plan, avoid={}, n=1000, seed=3)["random"]
    assert len(every) == 6 * math.comb(6, 2) - 1
    assert any(one[2] != plan[2] and set(one[2]) & set(plan[2]) for one in every)  # exchangeable: may share some
    spared = random_neurons(pools, plan, avoid={2: (5,)}, n=1000, seed=3)["ordinary"]
    assert len(spared) == 5 * math.comb(3, 2)
    assert not any(1 in one[0] or {3, 4, 5} & set(one[2]) for one in spared)
    with pytest.raises(BadInput, match="no other set can be drawn from 1 in"):
        random_neurons({0: range(1)}, {0: (0,)}, avoid={}, n=3, seed=0)


def test_matched_neurons_are_those_of_the_same_layer_that_are_nearest() -> None:
    magnitude = np.array([np.arange(40.0), np.arange(40.0)[::-1]])
    found = matched_neurons(magnitude, {0: (20,), 1: (20,)}, avoid={1: (21,)}, n=12, seed=0)
    for one in found:
        assert 16 <= one.plan[0][0] <= 24
        assert 15 <= one.plan[1][0] <= 25
        assert one.plan[0] != (20,)
        assert one.plan[1][0] not in (20, 21)
    assert len({one.plan[0] for one in found}) > 3
    # Where it stands in another layer is no reason to leave a neuron out.
    assert any(
        one.plan[0] == (21,) for one in matched_neurons(magnitude, {0: (20,), 1: (20,)}, avoid={1: (21,)}, n=40, seed=0)
    )


def test_ablate_names_neurons_by_block_and_number() -> None:
    model = tiny("bert", "")
    with torch.no_grad():
        model.model.get_submodule("encoder.layer.1.output.dense").weight[:, 4] *= 30
    found = ablate(model, TEXTS, {1: (4,)}, AblateOptions(stack="mlp", n_random=15, n_matched=3))
    assert found.about.dims == ("1:4",)
    assert found.chosen.plan == {1: (4,)}
    random, matched = found.family("random"), found.family("matched")
    assert random is not None
    assert matched is not None
    off = {kind: [one.dims for one in found.controls if one.family == kind] for kind in ("random", "matched")}
    assert {name.partition(":")[0] for name in off["random"]} == {"1"}
    assert len({*off["random"]} - {"1:4"}) == 15
    assert random.p == pytest.approx(1 / 16)  # the needle
    assert found.chosen.change.value > 3 * max(random.sets)
    assert not any("1:4" in one for one in off["matched"])
    for mode in ("zero", "mean", "scale:0.5"):
        hidden = ablate(model, TEXTS, {1: (4,)}, AblateOptions(stack="mlp", modes=(mode,), n_random=0, n_matched=0))
        assert hidden.chosen.n_set is None
        same = hidden.chosen.change.value == pytest.approx(found.chosen.change.value, abs=1e-6)
        assert same == (mode == "zero")
    again = from_json(to_json(found))
    assert to_json(again) == to_json(found)
    (section,) = found.sections()
    assert section.title == "Ablation: 1:4"
    assert "1:4" in section.sentences[0]
    assert not any("dimensions" in table.columns for table in section.tables)
    by_layers = ablate(model, TEXTS, [4], AblateOptions(stack="mlp", layers=(1,), n_random=0, n_matched=0))
    assert by_layers.chosen.change == found.chosen.change


def test_a_copy_without_the_neuron_is_the_model_with_it_off(tmp_path: Any) -> None:
    model = tiny("gpt2", "CausalLM", "causal")
    n_values = Switch(model, model.axis("mlp")).save({2: (5,)}, tmp_path / "off")
    assert n_values == model.model.config.hidden_size
    weight = load_model(str(tmp_path / "off")).model.get_submodule("transformer.h.2.mlp.c_proj").weight
    assert not weight[5].any()
    assert weight[4].any()


@pytest.mark.parametrize(
    ("dims", "more", "says"),
    [
        ([4], {}, "named with its block; write --dims 11:4"),
        ({1: (4,)}, {"avoid": (3,)}, "leave it out"),
        ({1: (4,)}, {"modes": ("writes",)}, "use weights"),
        ({1: (4,)}, {"modes": ("norms",)}, "use weights"),
    ],
)
def test_what_belongs_to_dimensions_is_refused(dims: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        ablate(tiny("llama", "CausalLM", "causal"), TEXTS, dims, AblateOptions(stack="mlp", **more))


def test_every_representative_family_is_here() -> None:
    assert {family.name for family in REPRESENTATIVE} - {"mixtral"} <= {name for name, *_ in PLACES}
