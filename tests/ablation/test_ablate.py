"""Ablations in every family: what is off is off, how many values, and every value comes back bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, batch, build
from outlierlens.ablation.switches import EditSettings, clip, edited_hidden, mean_states, removed_writes, zeroed_weights
from outlierlens.data.texts import batches
from outlierlens.errors import BadInput
from outlierlens.models.hooks import tapped
from outlierlens.models.load import LoadedModel, from_objects


@cache
def loaded(name: str) -> LoadedModel:
    return from_objects(build(FAMILIES[name]), name=name)


def states_of(model: LoadedModel, name: str, stack_name: str) -> dict[int, torch.Tensor]:
    """{layer: block output} of one forward pass."""
    seen: dict[int, torch.Tensor] = {}
    with (
        torch.no_grad(),
        tapped(model.model, [model.stack(stack_name)], lambda _, layer, states: seen.update({layer: states.clone()})),
    ):
        model.model(**batch(FAMILIES[name]))
    return seen


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Every parameter equal and no hook left afterwards."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    yield
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


CASES = [(name, stack) for name, family in FAMILIES.items() for stack in family.values]


@pytest.mark.parametrize(("name", "stack"), CASES)
@pytest.mark.parametrize("ablation", [zeroed_weights, removed_writes, edited_hidden])
def test_restores_after_exit_exception_and_bad_entry(name: str, stack: str, ablation: Any) -> None:
    model = loaded(name)
    with unchanged(model.model):
        with ablation(model, [1, 5], stack=stack):
            pass
        with pytest.raises(RuntimeError, match="inside"), ablation(model, [1, 5], stack=stack):
            raise RuntimeError("inside")
        with pytest.raises(BadInput, match="dimension 999 does not exist"), ablation(model, [1, 999], stack=stack):
            pass
        with ablation(model, [1, 5], stack=stack), ablation(model, [5, 3], stack=stack):
            pass


@pytest.mark.parametrize(("name", "stack"), CASES)
def test_zeroed_weights_and_edits_agree_only_for_post_norm(name: str, stack: str) -> None:
    model = loaded(name)
    bound = model.stack(stack)
    with edited_hidden(model, [5], stack=stack):
        edited = states_of(model, name, stack)
    assert all((edited[layer][..., 5] == 0).all() for layer in range(bound.n_layers))
    with zeroed_weights(model, [5], stack=stack):
        zeroed = states_of(model, name, stack)
    if bound.stack.norm_site == "stream":
        for layer in range(bound.n_layers):
            torch.testing.assert_close(zeroed[layer], edited[layer])
    else:
        assert any((zeroed[layer][..., 5] != 0).any() for layer in range(bound.n_layers))


@pytest.mark.parametrize(("name", "stack"), CASES)
def test_touched_values_are_those_of_the_last_operation(name: str, stack: str) -> None:
    model = loaded(name)
    bound = model.stack(stack)
    parameters = dict(model.model.named_parameters(remove_duplicate=False))
    per_dim = sum(
        parameters[param.name].numel() // parameters[param.name].shape[param.axis]
        for layer in bound.weight_layers
        for param in (*bound.scale[layer], *bound.bias[layer])
    )
    with zeroed_weights(model, [0, 7], stack=stack) as touched:
        assert touched == 2 * per_dim
    assert per_dim == sum(_values(name, stack, bound))


def _values(name: str, stack: str, bound: Any) -> list[int]:
    per_layer = FAMILIES[name].values[stack]
    return [per_layer[layer] for layer in bound.weight_layers] if len(per_layer) > 1 else list(per_layer)


def test_removed_writes_leave_nothing_but_the_embeddings() -> None:
    model = loaded("llama")
    with removed_writes(model, [5]):
        states = states_of(model, "llama", "model")
    for layer in range(model.stack().n_layers):
        assert torch.equal(states[layer][..., 5], states[-1][..., 5])
    with removed_writes(model, [5], embeddings=True):
        states = states_of(model, "llama", "model")
    assert all((state[..., 5] == 0).all() for state in states.values())


def test_layers_and_per_layer_sets() -> None:
    model = loaded("bert")
    with zeroed_weights(model, [5], layers=[1]) as touched:
        assert touched == 2
        states = states_of(model, "bert", "model")
    assert (states[1][..., 5] == 0).all()
    assert (states[0][..., 5] != 0).any()
    with zeroed_weights(model, {0: [1], 2: [3, 4]}) as touched:
        assert touched == 6
        states = states_of(model, "bert", "model")
    assert (states[0][..., 1] == 0).all()
    assert (states[2][..., 1] != 0).any()
    assert (states[2][..., [3, 4]] == 0).all()


def test_modes_of_edited_hidden() -> None:
    model = loaded("gpt2")
    intact = states_of(model, "gpt2", "model")
    with edited_hidden(model, [5], "scale", layers=[0], settings=EditSettings(factor=3.0)):
        scaled = states_of(model, "gpt2", "model")
    torch.testing.assert_close(scaled[0][..., 5], 3 * intact[0][..., 5])
    means = np.arange(3 * 16, dtype=float).reshape(3, 16)
    with edited_hidden(model, [5], "mean", settings=EditSettings(means=means)):
        replaced = states_of(model, "gpt2", "model")
    for layer in range(3):
        assert (replaced[layer][..., 5] == means[layer, 5]).all()
    with edited_hidden(model, [5], "resample", layers=[0], settings=EditSettings(seed=3)):
        shuffled = states_of(model, "gpt2", "model")
    assert torch.equal(shuffled[0][..., 5].flatten().sort().values, intact[0][..., 5].flatten().sort().values)
    assert not torch.equal(shuffled[0][..., 5], intact[0][..., 5])
    assert torch.equal(shuffled[0][..., 6], intact[0][..., 6])


@pytest.mark.parametrize(("name", "factor"), [("gpt2", 3.0), ("llama", -0.5), ("bert", 3.0)])
def test_scaled_once_the_stream_holds_so_many_times_what_was_written(name: str, factor: float) -> None:
    model = loaded(name)
    raw: dict[int, torch.Tensor] = {}
    with (
        tapped(model.model, [model.stack("model")], lambda _, layer, states: raw.update({layer: states.clone()})),
        edited_hidden(model, {0: [5], 1: [2, 5], 2: [5]}, "scale once", settings=EditSettings(factor=factor)),
    ):
        for _ in range(2):  # nothing is carried on from pass to pass
            states = states_of(model, name, "model")
    written = raw[0][..., 5]
    for layer in range(3):
        if layer:
            # What a block adds to the stream that it was handed, scaled; behind a norm of the stream nothing goes on.
            written = raw[layer][..., 5] - (0 if name == "bert" else states[layer - 1][..., 5] - written)
        torch.testing.assert_close(states[layer][..., 5], factor * written)
    assert torch.equal(states[0][..., 2], raw[0][..., 2])
    torch.testing.assert_close(states[1][..., 2], factor * raw[1][..., 2])


def test_resample_never_mixes_in_padding(words: Any) -> None:
    model = loaded("bert")
    (padded,) = batches(words(), ["w1 w2 w3 w4 w5 w6", "w7"], max_length=16, batch_size=2)
    seen: dict[int, torch.Tensor] = {}
    stack = [model.stack()]
    with torch.no_grad(), tapped(model.model, stack, lambda _, layer, states: seen.update({layer: states.clone()})):
        model.model(**padded.inputs)
    intact = dict(seen)
    with (
        edited_hidden(model, [5], "resample", layers=[0]),
        torch.no_grad(),
        tapped(model.model, stack, lambda _, layer, states: seen.update({layer: states.clone()})),
    ):
        model.model(**padded.inputs)
    valid = padded.valid
    assert torch.equal(seen[0][valid][:, 5].sort().values, intact[0][valid][:, 5].sort().values)
    assert torch.equal(seen[0][~valid], intact[0][~valid])


def test_mean_states_against_a_loop(words: Any) -> None:
    model = loaded("bert")
    tokenizer = words()
    texts = ["w1 w2 w3", "w4 w5 w6 w7 w8", "w9"]
    wrapped = LoadedModel("bert", model.model, tokenizer, "none", model.stacks)
    found = mean_states(wrapped, batches(tokenizer, texts, max_length=16, batch_size=2))
    rows: list[list[torch.Tensor]] = [[] for _ in range(3)]
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt")
        seen: dict[int, torch.Tensor] = {}
        with (
            torch.no_grad(),
            tapped(model.model, model.stacks, lambda _, layer, states, seen=seen: seen.update({layer: states})),
        ):
            model.model(**encoded)
        for layer in range(3):
            rows[layer].append(seen[layer][0])
    expected = torch.stack([torch.cat(states).double().mean(0) for states in rows]).numpy()
    assert found == pytest.approx(expected, abs=1e-6)


def test_clip_is_post_hoc_and_copies() -> None:
    vectors = np.ones((2, 3, 4), dtype=np.float32)
    assert clip(vectors, [1, 3]).tolist() == [[[1, 0, 1, 0]] * 3] * 2
    assert vectors.all()
    tensor = torch.ones(2, 4)
    assert clip(tensor, [0]).tolist() == [[0, 1, 1, 1]] * 2
    assert tensor.all()
    with pytest.raises(BadInput, match="dimension 4 does not exist; these vectors: dimensions 0 to 3"):
        clip(vectors, [4])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dims": []}, "no dimension to ablate"),
        ({"dims": [3, 3]}, "repeated"),
        ({"dims": [-1]}, "dimension -1 does not exist; stream 'model': dimensions 0 to 15"),
        ({"dims": [1.5]}, "dimension 1.5 does not exist"),
        ({"dims": [True]}, "dimension True does not exist"),
        ({"dims": [1], "layers": [3]}, "layer 3 does not exist; stream 'model' has layers 0 to 2"),
        ({"dims": {0: [1]}, "layers": [0]}, "not both"),
        ({"dims": [1], "stack": "decoder"}, "--stack must be one of model, not 'decoder'"),
    ],
)
def test_bad_requests(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message), zeroed_weights(loaded("bert"), **arguments):
        pass


def test_bad_modes() -> None:
    message = "unknown mode 'clip'; modes are zero, mean, position mean, scale, scale once, resample"
    with pytest.raises(BadInput, match=message), edited_hidden(loaded("bert"), [1], "clip"):  # type: ignore[arg-type]
        pass
    with pytest.raises(BadInput, match='mode "mean" needs'), edited_hidden(loaded("bert"), [1], "mean"):
        pass


def test_bfloat16_and_wrapped_models() -> None:
    model = build(FAMILIES["bert"]).to(torch.bfloat16)
    with unchanged(model), zeroed_weights(model, [2]) as touched:
        assert touched == 6
    wrapped = torch.nn.DataParallel(build(FAMILIES["bert"]))
    wrapped.config = wrapped.module.config
    with zeroed_weights(wrapped, [2]) as touched:
        assert touched == 6


def test_compiled_models_take_weights_and_refuse_hooks() -> None:
    model = build(FAMILIES["bert"])
    compiled = torch.compile(model, backend="eager")
    inputs = batch(FAMILIES["bert"])
    with torch.no_grad():
        intact = compiled(**inputs).last_hidden_state
        with zeroed_weights(compiled, [2]):
            off = compiled(**inputs).last_hidden_state
    assert (off[..., 2] == 0).all()
    assert (intact[..., 2] != 0).any()
    with pytest.raises(BadInput, match="compiled"), edited_hidden(compiled, [2]):
        pass


def test_quantized_weights_are_refused_with_the_reason() -> None:
    model = build(FAMILIES["bert"])
    name = "encoder.layer.0.output.LayerNorm"
    weight = torch.nn.Parameter(torch.ones(16, dtype=torch.int8), requires_grad=False)
    model.get_submodule(name).weight = weight
    with pytest.raises(BadInput, match=r"output\.LayerNorm\.weight is of type torch\.int8"), zeroed_weights(model, [2]):
        pass
