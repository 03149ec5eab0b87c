"""Rounded models: linears by hand, what is kept, planted outliers, batches that do not matter, restoration bit for bit."""

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from outlierlens.analyses.quantize import Quantization, QuantizeOptions, quantize, says_of
from outlierlens.analyses.quantize_places import calibrate, find_places, smooth_factors, without_foreign_readers
from outlierlens.analyses.quantize_rounding import Keeping, loss_change, rounded
from outlierlens.analyses.quantize_schemes import fake_quantize, fake_quantize_inputs, parse, parse_all
from outlierlens.analyses.quantize_settings import KEPT, MIXED, ROUNDED, SMOOTHED
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny, turning_texts

TEXTS = turning_texts(4 + 3 * (i % 6) for i in range(18))
PLAIN = parse("int8-tensor/int8-tensor")
PLANTED = 5


@pytest.fixture(scope="module")
def bert() -> LoadedModel:
    return tiny("bert", "MaskedLM")


@pytest.fixture(scope="module")
def planted() -> LoadedModel:
    """A bare BERT whose norms put about 300 into dimension 5 of every token that a block reads, and about 12 elsewhere."""
    loaded = tiny("bert")
    with torch.no_grad():
        norms = [module for name, module in loaded.model.named_modules() if name.endswith("LayerNorm")]
        for norm in norms:
            norm.weight.fill_(12.0)
            norm.bias.zero_()
            norm.bias[PLANTED] = 300.0 if norm is not norms[-1] else 0.0
        for name, weight in loaded.model.named_parameters():
            if name.endswith("weight") and weight.ndim == 2 and "encoder" in name and weight.shape[1] == 16:
                weight[:, PLANTED] = 0.002  # the outlier shifts what is computed, and does not drown it
    return loaded


@pytest.fixture(scope="module")
def found(planted: LoadedModel) -> Quantization:
    recipes = parse_all("none/int8-tensor,int8-channel/int8-token,e4m3-tensor/e4m3-tensor,int8-channel/none")
    options = QuantizeOptions(
        recipes=recipes, dims=(PLANTED,), n_random=3, task=TaskOptions(max_length=16, batch_size=3)
    )
    return quantize(planted, TEXTS, options, calibration=TEXTS.first(3))


def place(loaded: LoadedModel, part: str) -> Any:
    return next(one for one in find_places(loaded, loaded.stacks[0].name) if one.part == part)


def reads(width: int, n_texts: int = 1) -> torch.Tensor:
    return torch.randn(n_texts, 4, width, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("bert", "MaskedLM", "masked"),
        ("llama", "CausalLM", "causal"),
        ("gpt2", "CausalLM", "causal"),
        ("xlnet", "", "masked"),
    ],
)
def test_every_linear_of_the_blocks_is_rounded_and_comes_back(name: str, head: str, kind: str) -> None:
    loaded = tiny(name, head, kind)
    before = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    places = find_places(loaded)
    task = make_task(loaded, TEXTS, TaskOptions(max_length=16))
    intact, _ = task.per_text()
    keeping = Keeping((2, 3), 1.0, {places[0].name: torch.full((places[0].weight().shape[1],), 2.0)})
    with contextlib.suppress(RuntimeError), rounded(loaded, PLAIN, keeping) as tally:
        assert tally.n_linears == len(places)
        changed = {key for key, value in loaded.model.state_dict().items() if not torch.equal(value, before[key])}
        assert {f"{one.name}.weight" for one in places} == changed
        after, _ = task.per_text()
        assert not np.array_equal(after, intact)
        raise RuntimeError  # what is rounded comes back whatever happens inside
    assert all(torch.equal(value, before[key]) for key, value in loaded.model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in loaded.model.modules())
    assert np.array_equal(task.per_text()[0], intact)


def test_a_linear_computes_with_rounded_weights_and_inputs(bert: LoadedModel) -> None:
    one = place(bert, "intermediate.dense")
    x, weight = reads(16), one.weight().clone()
    wanted = linear(fake_quantize_inputs(x, PLAIN.inputs), fake_quantize(weight, PLAIN.weights), one.bias())
    with rounded(bert, PLAIN):
        assert torch.equal(one.module(x), wanted)
        head = bert.model.get_output_embeddings()
        assert torch.equal(head.weight, bert.model.get_input_embeddings().weight)
    assert torch.equal(one.module(x), linear(x, weight, one.bias()))


def test_no_function_of_a_hook_is_asked_about(bert: LoadedModel) -> None:
    """What watches torch's functions (`models.devices` does) sees the linear, and nothing of the rounding."""
    seen: list[Any] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    for part, width in (("intermediate.dense", 16), ("output.dense", 24)):
        one, x = place(bert, part), reads(width)
        with rounded(bert, PLAIN, Keeping((7,), 6.0)), Watch():
            one.module(x)
    assert seen == [linear, linear]


def test_a_kept_dimension_is_a_column_where_it_is_read_and_a_row_where_it_is_written(bert: LoadedModel) -> None:
    read, write = place(bert, "intermediate.dense"), place(bert, "output.dense")
    assert (read.reads, read.writes, write.reads, write.writes) == (True, False, False, True)
    x, inner = reads(16), reads(24)
    x[0, 1, 7] = 300.0
    column, row = torch.arange(16) == 7, (torch.arange(16) == 7)[:, None]
    weights = fake_quantize(read.weight(), PLAIN.weights, exempt=column)
    wanted = linear(fake_quantize_inputs(x, PLAIN.inputs, exempt=column), weights, read.bias())
    rounded_inner = fake_quantize_inputs(inner, PLAIN.inputs)
    written = linear(rounded_inner, fake_quantize(write.weight(), PLAIN.weights, exempt=row), write.bias())
    exact = linear(inner, write.weight(), write.bias())
    with rounded(bert, PLAIN, Keeping(dims=(7,))) as tally:
        assert torch.equal(read.weight()[:, 7], weights[:, 7])
        assert torch.equal(read.module(x), wanted)
        out = write.module(inner)
    assert torch.allclose(out[..., 7], exact[..., 7], atol=1e-6)
    others = torch.arange(16) != 7
    assert torch.equal(out[..., others], written[..., others])
    # Of each block: 3 × 16 columns of attention and 24 of the MLP, 16 weights of each row and 24.
    assert tally.weights_kept == 3 * (3 * 16 + 24 + 16 + 24)
    assert tally.kept == tally.weights_kept / (3 * (4 * 16 * 16 + 2 * 16 * 24))


def test_large_inputs_are_multiplied_exactly_text_by_text(bert: LoadedModel) -> None:
    recipe = parse("int8-channel/int8-token")
    one = place(bert, "intermediate.dense")
    x = reads(16, n_texts=2)
    x[0, 1, 7], x[1, 2, 3] = 6.0, -50.0
    weight, lossy = one.weight().clone(), fake_quantize(one.weight(), recipe.weights)
    wanted = []
    for text, dim in ((x[0], 7), (x[1], 3)):
        large = torch.arange(16) == dim
        small = fake_quantize_inputs(text.masked_fill(large, 0.0)[None], recipe.inputs)[0]
        wanted.append(linear(small, lossy, one.bias()) + linear(text * large, weight))
    with rounded(bert, recipe, Keeping(threshold=6.0)) as tally:
        assert torch.allclose(one.module(x), torch.stack(wanted), atol=1e-5)
    assert tally.kept == 2 / 32


def test_smoothing_divides_what_is_read_and_multiplies_the_weights(bert: LoadedModel) -> None:
    places = find_places(bert)
    seen = calibrate(bert, places, TEXTS, stack=None, max_length=16, batch_size=2)
    query, key, value = (place(bert, f"attention.self.{name}") for name in ("query", "key", "value"))
    assert (query.name, key.name, value.name) in seen.shared
    factors = smooth_factors(places, seen, 0.25)
    most = torch.stack([one.weight().abs().amax(0) for one in (query, key, value)]).amax(0)
    assert torch.allclose(factors[key.name], seen.largest[query.name] ** 0.25 / most**0.75)
    assert torch.equal(factors[key.name], factors[value.name])
    assert place(bert, "output.dense").name not in factors
    x, weight = reads(16), key.weight().clone()
    scale = factors[key.name]
    wanted = linear(
        fake_quantize_inputs(x / scale, PLAIN.inputs), fake_quantize(weight * scale, PLAIN.weights), key.bias()
    )
    with rounded(bert, PLAIN, Keeping(factors=factors)):
        assert torch.equal(key.module(x), wanted)
    # Nothing but rounding is different: in 8-bit floating point with tiny steps the function is the same.
    assert torch.allclose(linear(x / scale, weight * scale), linear(x, weight), atol=1e-5)


def test_the_largest_inputs_are_those_of_tokens_that_are_no_padding(bert: LoadedModel) -> None:
    places = find_places(bert)
    together, alone = (
        calibrate(bert, places, TEXTS, stack=None, max_length=16, batch_size=size).largest for size in (6, 1)
    )
    assert all(torch.allclose(together[name], alone[name], atol=1e-5) for name in alone)


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("bert", "MaskedLM", "masked"),
        ("llama", "CausalLM", "causal"),
        ("opt-post-norm", "CausalLM", "causal"),
        ("xlnet", "", "masked"),
    ],
)  # fmt: skip
def test_no_number_depends_on_which_texts_share_a_batch(name: str, head: str, kind: str) -> None:
    loaded = tiny(name, head, kind)
    values = []
    for size in (1, 6):
        task = make_task(loaded, TEXTS, TaskOptions(max_length=16, batch_size=size))
        with rounded(loaded, PLAIN):
            plain, _ = task.per_text()
        with rounded(loaded, PLAIN, Keeping(threshold=1.5)):
            mixed, _ = task.per_text()
        values.append(np.stack([plain, mixed]))
    assert np.allclose(values[0], values[1], atol=1e-5)
    assert not np.allclose(values[0][0], values[0][1], atol=1e-5)


def test_what_a_decoder_reads_of_the_encoder_is_not_its_stream() -> None:
    loaded = tiny("bart")
    places = find_places(loaded, "decoder")
    seen = calibrate(loaded, places, TEXTS, stack="decoder", max_length=16, batch_size=6)
    reading = {one.part for one in without_foreign_readers(places, seen.shared) if one.reads}
    own = {f"self_attn.{name}_proj" for name in "qkv"}
    assert reading == own | {"encoder_attn.q_proj", "fc1"}


def test_a_planted_outlier_is_what_costs_and_keeping_it_gives_that_back(
    found: Quantization, planted: LoadedModel
) -> None:
    scheme = "none/int8-tensor"
    cost, kept = found.setting(scheme).change.value, found.setting(scheme, KEPT)
    (gain,) = (one for one in found.gains if one.scheme == scheme)
    assert cost > 0
    assert kept.regained.value / cost > 0.9
    assert found.says[scheme] == "keep"
    assert gain.p == 0.25  # before all of three draws
    errors = {(one.setting, one.layer): one.error for one in found.blocks if one.scheme == scheme}
    assert all(errors[KEPT, layer] < 0.1 * errors[ROUNDED, layer] for layer in range(3))
    assert found.verdict.startswith("keep dimension 5 in 16 bit: none/int8-tensor +")
    assert found.setting(scheme, MIXED).change.value < 0.1 * cost
    # SmoothQuant gives the outlier the largest scale of all, in every tensor that is read.
    places = find_places(planted)
    seen = calibrate(planted, places, TEXTS, stack=None, max_length=16, batch_size=16)
    factors = smooth_factors(places, seen, 0.5)
    assert len({id(scale) for scale in factors.values()}) == 6
    assert {int(scale.argmax()) for scale in factors.values()} == {PLANTED}


def test_what_a_scheme_does_not_round_is_not_smoothed(found: Quantization) -> None:
    assert {one.n_linears for one in found.gains} == {18}
    with pytest.raises(
        BadInput, match=r"no 'smoothed' of 'int8-channel/none' in this result; there are none/none / intact"
    ):
        found.setting("int8-channel/none", SMOOTHED)


def test_block_errors_are_those_of_the_states(planted: LoadedModel, found: Quantization) -> None:
    recipe = parse("int8-channel/int8-token")
    power, error, mine = np.zeros(3), np.zeros(3), np.zeros(3)
    for text in TEXTS.texts[:8]:  # error_texts
        ids = planted.tokenizer(text, truncation=True, max_length=16, return_tensors="pt")  # type: ignore[misc]
        with torch.no_grad():
            before = planted.model(**ids, output_hidden_states=True).hidden_states[1:]
            with rounded(planted, recipe):
                after = planted.model(**ids, output_hidden_states=True).hidden_states[1:]
        power += [float(states.square().sum()) for states in before]
        moved = [(states - other).square() for states, other in zip(after, before, strict=True)]
        error += [float(states.sum()) for states in moved]
        mine += [float(states[..., PLANTED].sum()) for states in moved]
    rows = [one for one in found.blocks if (one.scheme, one.setting) == (recipe.name, ROUNDED)]
    assert [one.layer for one in rows] == [0, 1, 2]
    assert [one.error for one in rows] == pytest.approx(error / power, rel=1e-3)
    assert [one.share for one in rows] == pytest.approx(mine / error, rel=1e-3)


def test_the_change_is_paired_and_its_interval_holds_it(bert: LoadedModel) -> None:
    task = make_task(bert, TEXTS, TaskOptions(mask_fraction=0.5))
    before, weights = task.per_text()
    change, low, high = loss_change(bert, task, PLAIN)
    with rounded(bert, PLAIN):
        after, _ = task.per_text()
    assert change == pytest.approx(float(((after - before) * weights).sum() / weights.sum()))
    assert low <= change <= high
    assert (low, high) == loss_change(bert, task, PLAIN)[1:]


def test_changes_and_differences_are_of_the_values_by_text(found: Quantization) -> None:
    weights = np.ones(18)  # of sentence vectors texts weigh alike
    assert found.about.task == "sentence change"
    assert found.settings[0].value.value == pytest.approx(0, abs=1e-6)
    for gain in found.gains:
        plain, kept = (found.setting(gain.scheme, name) for name in (ROUNDED, KEPT))
        mine = [one for one in found.draws if one.scheme == gain.scheme]
        draws = np.array([one.per_text for one in mine])
        texts = np.array(plain.per_text) - kept.per_text
        assert kept.regained.value == pytest.approx(np.average(texts, weights=weights))
        assert gain.beyond_random.value == pytest.approx(np.average(draws.mean(0) - kept.per_text, weights=weights))
        assert kept.regained.low <= kept.regained.value <= kept.regained.high
        assert gain.random == kept.random == tuple(one.change.value for one in mine)
        assert all(len(one.dims) == 1 and PLANTED not in one.dims for one in mine)


def test_activations_name_outliers_where_the_weights_name_none(planted: LoadedModel) -> None:
    options = QuantizeOptions(
        recipes=parse_all("none/int8-tensor"), n_random=0, threshold=None, alpha=None, task=TaskOptions(max_length=16)
    )
    with torch.no_grad():
        biases = [module.bias for name, module in planted.model.named_modules() if name.endswith("LayerNorm")]
        before = [bias.clone() for bias in biases]
        for bias in biases:
            bias[PLANTED] = 20_000.0
        result = quantize(planted, TEXTS, options)
        for bias, old in zip(biases, before, strict=True):
            bias.copy_(old)
    assert result.about.named_by == "the rule massive on activations"
    (gain,) = result.gains
    assert (result.dims, gain.random, gain.p, result.draws) == ((PLANTED,), (), None, ())
    assert math.isnan(gain.beyond_random.value)
    assert [one.setting for one in result.settings] == ["intact", ROUNDED, KEPT]
    assert {one.setting for one in result.blocks} == {ROUNDED, KEPT}


def test_what_is_said_follows_from_the_intervals(found: Quantization) -> None:
    assert says_of(-0.1, 1.0, 1.0) == "free"
    assert says_of(0.1, 1.0, None) == "not tried"
    assert says_of(0.1, 1.0, -0.1) == "no use"
    assert says_of(0.1, 0.0, 1.0) == "no use"
    assert says_of(0.1, 0.1, 0.1) == "keep"
    assert says_of(math.nan, 1.0, 1.0) == "unclear"


def test_what_cannot_be_is_refused(bert: LoadedModel) -> None:
    with (
        pytest.raises(BadInput, match=r"int8-tensor/none quantizes no inputs.*threshold"),
        rounded(bert, parse("int8-tensor/none"), Keeping(threshold=6.0)),
    ):
        pass
    with pytest.raises(BadInput, match=r"groups of 5 do not divide"), rounded(bert, parse("int4-group5/none")):
        pass
    weight = place(bert, "intermediate.dense").weight()
    spoilt = float(weight[0, 0])
    weight[0, 0] = float("inf")
    before = {key: value.clone() for key, value in bert.model.state_dict().items()}
    with pytest.raises(BadInput, match=r"infinite or not a number"), rounded(bert, PLAIN):
        pass
    assert all(torch.equal(value, before[key]) for key, value in bert.model.state_dict().items())
    weight[0, 0] = spoilt
    with pytest.raises(BadInput, match="no scheme"):
        QuantizeOptions(recipes=())


def test_a_half_precision_model_is_told_about() -> None:
    loaded = tiny("bert")
    loaded.model.to(torch.bfloat16)
    options = QuantizeOptions(
        recipes=parse_all("int8-channel/int8-token"), dims=(1,), n_random=1, task=TaskOptions(max_length=8)
    )
    result = quantize(loaded, TEXTS.first(1), options)
    assert any("bfloat16" in note and "--dtype float32" in note for note in result.notes)
    assert any("no interval" in note for note in result.notes)
    assert result.gains[0].says == "unclear"


def test_rows_of_other_settings_are_refused(planted: LoadedModel, tmp_path: Path) -> None:
    recipes, task = parse_all("none/int8-tensor"), TaskOptions(max_length=16)
    options = QuantizeOptions(recipes=recipes, dims=(PLANTED,), n_random=0, task=task)
    given = {"calibration": TEXTS.first(3), "rows": tmp_path / "rows.jsonl"}
    quantize(planted, TEXTS.first(4), options, **given)
    with pytest.raises(BadInput, match="smooth"):
        quantize(planted, TEXTS.first(4), replace(options, alpha=None), **given)
