"""What a program does to a model inside a context: casts, new parameters, copies. All comes back, or an error says so."""

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interrupts import contexts, models
from torch import nn
from torch.nn.utils import parametrizations, prune

from architectures import FAMILIES, batch, build
from outlierlens.ablation.switches import edited_hidden, removed_writes, zeroed_norms, zeroed_weights
from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.analyses.repair_rewriting import untie
from outlierlens.errors import BadInput
from outlierlens.models.changes import SettableParameters, frozen
from outlierlens.models.load import from_objects

HEADS = {"bert": "MaskedLM", "gpt2": "CausalLM", "llama": "CausalLM"}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CONTEXTS: tuple[Callable[[Any], Any], ...] = (
    lambda model: zeroed_weights(model, [5, 6]),
    lambda model: zeroed_norms(model, [5, 7]),
    lambda model: removed_writes(model, [6, 8], embeddings=True),
    lambda model: rounded(from_objects(model), parse("int8-channel/none")),
    lambda model: edited_hidden(model, [5]),
)


def made_anew(model: nn.Module) -> None:
    """Every parameter a new one, by each of its names: what was tied is so no more."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                setattr(module, name, nn.Parameter(parameter.detach().clone()))


def cast_into_new(model: nn.Module) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def swapped(model: nn.Module) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.bfloat16()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def assigned(model: nn.Module) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


CHANGES: tuple[Callable[[Any], Any], ...] = (
    *((lambda model, dtype=dtype: model.to(dtype)) for dtype in DTYPES),
    made_anew,
    cast_into_new,
    assigned,
)


@pytest.mark.parametrize("family", list(HEADS))
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=7),
    order=st.randoms(use_true_random=False),
    fails=st.booleans(),
)
def test_values_come_back_whatever_is_done_inside(family: str, steps: Any, order: Any, fails: bool) -> None:
    changed = build(FAMILIES[family], HEADS[family])
    plain = copy.deepcopy(changed)
    entered: list[Any] = []
    # What may stand in the model: what casts alone make, and what stood there when a context began, cast since it ended.
    held = [copy.deepcopy(plain.state_dict())]
    before: list[dict[str, Any]] = []

    def leave(one: Any, error: BaseException | None = None) -> None:
        with suppress(RuntimeError):
            one.__exit__(type(error) if error else None, error, None)
        held.extend(before)

    for is_change, number in steps:
        if is_change:
            for model in (changed, plain):
                CHANGES[number % len(CHANGES)](model)
            held = [{name: one[name].to(value) for name, value in plain.state_dict().items()} for one in held]
        elif number % 3 and len(entered) < 3:
            before.extend(held)
            entered.append(CONTEXTS[number % len(CONTEXTS)](changed))
            entered[-1].__enter__()
        elif entered:
            leave(entered.pop(order.randrange(len(entered))))
    order.shuffle(entered)
    for one in entered:
        leave(one, RuntimeError("inside") if fails else None)
    expected = plain.state_dict()
    for name, value in changed.state_dict().items():
        assert value.dtype == expected[name].dtype, name
        assert torch.stack([value == one[name].to(value) for one in (expected, *held)]).any(0).all(), name


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, swapped, cast_into_new])
@pytest.mark.parametrize("context", CONTEXTS)
def test_one_cast_inside_is_as_one_outside_bit_for_bit(cast: Any, context: Any) -> None:
    model = build(FAMILIES["gpt2"], "CausalLM")
    expected = copy.deepcopy(model)
    cast(expected)
    with context(model):
        cast(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name


def meta(model: nn.Module) -> None:
    model.to("meta")


def longer(model: Any) -> None:
    model.bert.encoder.layer[1].output.LayerNorm.weight = nn.Parameter(torch.ones(17))


def integers(model: Any) -> None:
    norm = model.bert.encoder.layer[1].output.LayerNorm
    norm.weight = nn.Parameter(torch.ones(16, dtype=torch.int8), requires_grad=False)


def computed(model: Any) -> None:
    nn.utils.parametrize.register_parametrization(model.bert.encoder.layer[1].output.LayerNorm, "weight", nn.Tanh())


def pruned(model: Any) -> None:
    prune.l1_unstructured(model.bert.encoder.layer[1].output.LayerNorm, "weight", 0.3)


def without(model: Any) -> None:
    model.bert.encoder.layer[1].output.LayerNorm = nn.Identity()


@pytest.mark.parametrize("change", [meta, longer, integers, computed, pruned, without])
def test_what_cannot_come_back_is_an_error_and_all_else_is_back(change: Any) -> None:
    model = build(FAMILIES["bert"], "MaskedLM")
    before = {name: value.clone() for name, value in model.named_parameters()}
    held = dict(model.named_parameters())
    with pytest.raises(BadInput, match="cannot come back") as raised, zeroed_weights(model, [5]):
        change(model)
    assert "\n" not in str(raised.value)
    assert "encoder.layer." in str(raised.value)
    for name, value in held.items():  # those that left the model as well
        assert torch.equal(value.to(before[name]), before[name]), name


def test_a_weight_that_is_normed_inside_is_an_error() -> None:
    model = build(FAMILIES["llama"])
    with pytest.raises(BadInput, match=r"layers\.1\.mlp\.down_proj\.weight"), zeroed_weights(model, [5]):
        parametrizations.weight_norm(model.layers[1].mlp.down_proj)


def test_no_linear_stays_rounded_where_one_was_replaced() -> None:

    model = build(FAMILIES["bert"], "MaskedLM")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loaded = from_objects(model)
    with pytest.raises(BadInput, match="cannot come back"), rounded(loaded, parse("int8-channel/none")):
        model.bert.encoder.layer[1].output.dense = nn.Identity()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_head_that_is_untied_inside_is_tied_again_to_what_the_embeddings_are_now() -> None:
    model = build(FAMILIES["gpt2"], "CausalLM")
    with ExitStack() as undo:
        untie(undo, model)
        made_anew(model)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_gradients_come_back_for_parameters_that_were_replaced() -> None:
    model = build(FAMILIES["gpt2"], "CausalLM")
    model.transformer.wpe.weight.requires_grad_(False)
    with frozen(model):
        cast_into_new(model)
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {name for name, one in model.named_parameters() if not one.requires_grad} == {"transformer.wpe.weight"}


def test_what_a_program_of_its_own_sets_comes_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([0.1, 3.0]))
    with ExitStack() as undo:
        SettableParameters(undo, model).set_values("0.bias", (torch.tensor([0]),), 0.0)
        model.half()
        assert model[0].bias.tolist() == [0.0, 3.0]
    assert model[0].bias.tolist() == [torch.tensor(0.1).half().item(), 3.0]


# --- copies ----------------------------------------------------------------------------------------------------


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


HUNG = [name for name in contexts(*models()) if name not in ("resumed", "gradients of some", "as float32")]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved])
@pytest.mark.parametrize("name", HUNG)
def test_a_copy_made_inside_runs_without_the_hooks(name: str, copied: Any) -> None:
    loaded, make = contexts(*models())[name]
    ids = torch.arange(14).reshape(2, 7)
    with torch.no_grad():
        with make():
            values = {key: value.clone() for key, value in loaded.model.state_dict().items()}
            other = copied(loaded.model)
            inside = other(input_ids=ids).logits
        after = other(input_ids=ids).logits
        loaded.model.load_state_dict(values)
        bare = loaded.model(input_ids=ids).logits
    assert torch.equal(inside, bare)
    assert torch.equal(after, bare)


def test_the_model_itself_stays_edited_beside_its_copy() -> None:
    model = build(FAMILIES["bert"])
    with torch.no_grad():
        intact = model(**batch(FAMILIES["bert"])).last_hidden_state
        with edited_hidden(model, [5]):
            other = copy.deepcopy(model)
            assert torch.equal(other(**batch(FAMILIES["bert"])).last_hidden_state, intact)
            assert (model(**batch(FAMILIES["bert"])).last_hidden_state[..., 5] == 0).all()
        with edited_hidden(other, [6]):
            assert (other(**batch(FAMILIES["bert"])).last_hidden_state[..., 6] == 0).all()
        assert torch.equal(other(**batch(FAMILIES["bert"])).last_hidden_state, intact)
