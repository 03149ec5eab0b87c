"""`observe --stack mlp`: statistics of what each last linear reads, beside plain hooks, and a planted neuron.

The table of an observation: every statistic of both views, in memory, as parquet and from the command line.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from architectures import FAMILIES
from conftest import Words
from mixtures import EXPERT, LAYER, MIXTURES, NAME, NEURON, experts_of, mixture
from observation_results import TWO, VIEWS, observation
from outlierlens.analyses.observe import Observation, observe
from outlierlens.architectures import Neuron
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.observed import FLAT, QUANTILES, StackObservation, Statistics
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


def check(frame: pandas.DataFrame, found: Observation, views: tuple[str, ...] = VIEWS) -> None:
    """Every statistic of every view stands in the row of its stack, layer and dimension."""
    assert len(frame) == len(views) * sum(len(stack.layers) * len(stack.dims) for stack in found.stacks)
    assert not frame.duplicated(["stack", "view", "layer", "dim"]).any()
    by_place = frame.set_index(["stack", "view", "layer", "dim"]).to_dict("index")
    for stack in found.stacks:
        for view in views:
            wanted = stack.view(view)
            for row, layer in enumerate(stack.layers):
                for column, dim in enumerate(stack.dims):
                    values = dict(by_place[stack.stack, view, layer, dim])
                    assert values.pop("tokens") == wanted.tokens[row]
                    assert values.pop("median_abs") == wanted.median_abs[row]
                    assert values.pop("abs_max_token") == wanted.abs_max_token[row][column]
                    quantiles = [values.pop(f"q{share}") for share in QUANTILES]
                    np.testing.assert_array_equal(quantiles, wanted.quantiles[row, column])
                    for name in FLAT:
                        assert values.pop(name) == getattr(wanted, name)[row, column], name
                    assert not values


def test_the_table_holds_every_statistic_of_both_views() -> None:
    names = set(Statistics.__dataclass_fields__) - {"quantiles"}
    columns = {"stack", "view", "layer", "dim", *names, *(f"q{share}" for share in QUANTILES)}
    frame = TWO.to_pandas("statistics")
    assert set(frame.columns) == columns
    assert {"q0.001", "q0.5", "q0.999"} <= columns
    check(frame, TWO)
    assert frame.view.tolist() == ["all"] * 9 + ["without_special"] * 9 + ["all"] * 4 + ["without_special"] * 4
    assert all(frame[name].dtype == np.int64 for name in ("dim", "tokens", "abs_max_position", "abs_max_text"))


def test_a_large_table_is_made_by_columns() -> None:
    found = observation(("model", 30, tuple(range(576))))
    start = time.process_time()
    frame = found.to_pandas("statistics")
    assert time.process_time() - start < 1.0  # about 0.05 s; row by row it takes many times the limit
    assert len(frame) == 31 * 576 * 2


def seen(values: np.ndarray) -> StackObservation:
    """What would be observed of one block's hidden states [token, dim]."""
    ranked = np.sort(values, axis=0)
    places = [max(0, int(np.ceil(share * len(values))) - 1) for share in QUANTILES]
    zeros = np.zeros((1, values.shape[1]))
    made = dict.fromkeys(FLAT, zeros) | {
        "mean": values.mean(0)[None], "std": values.std(0)[None], "abs_max": np.abs(values).max(0)[None],
        "min": values.min(0)[None], "max": values.max(0)[None],
    }  # fmt: skip
    tokens = (("",) * values.shape[1],)
    statistics = Statistics(
        tokens=np.array([len(values)]), abs_max_token=tokens, quantiles=ranked[places].T[None],
        median_abs=np.array([np.median(np.abs(values))]), **made,
    )  # fmt: skip
    width = values.shape[1]
    return StackObservation("model", ("0",), width, tuple(range(width)), {"all": statistics}, (), 1 / 65)


def test_how_large_a_dimension_is_and_on_which_share_of_the_tokens() -> None:
    values = np.random.default_rng(0).normal(size=(1000, 16))
    values[::200, 3] = 500.0  # five tokens of a thousand
    values[:, 7] += 60.0  # every token
    values[::10, 9] = -60.0  # one token of ten
    values[::20, 11], values[1::20, 11] = 500.0, -500.0  # one of twenty at either end
    stack = seen(values)
    median = np.median(np.abs(values))
    sizes = {dim: stack.size_of(dim) for dim in (3, 7, 9, 11, 0)}
    assert {dim: size.tokens for dim, size in sizes.items()} == {
        3: "0.1 to 1 %", 7: "99.9 to 100 %", 9: "5 to 25 %", 11: "6 to 30 %", 0: "0 %"
    }  # fmt: skip
    shares = (np.abs(values) > 10 * median).mean(0)
    assert all(size.low <= shares[dim] <= size.high for dim, size in sizes.items())
    assert (sizes[3].layer, sizes[3].largest) == ("0", 500.0)
    assert sizes[3].times == pytest.approx(500 / median)
    assert stack.size_of(99) is None
    expected = np.sqrt((values.mean(0) ** 2).sum() / values.var(0).sum())
    assert stack.gamma() == pytest.approx([expected])


def test_what_was_not_kept_has_no_share_and_no_gamma() -> None:
    stack = seen(np.random.default_rng(0).normal(size=(20, 4)))
    bare = replace(stack, views={"all": replace(stack.view(), quantiles=np.full((1, 4, len(QUANTILES)), np.nan))})
    assert bare.size_of(3).tokens is None
    assert bare.size_of(3).times == stack.size_of(3).times
    assert np.isnan(TWO.stacks[0].gamma()).all()
