"""Fake quantization to the last bit: numbers by hand, torch's functions, torchao's, and all codes of FP8 by brute force.

Noise of the last bit under rounding: a value planted at the edge of a step, batches that do not matter, no steps.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outlierlens.analyses.quantize import Quantization, QuantizeOptions, quantize
from outlierlens.analyses.quantize_rounding import Keeping, NoiseDraws, rounded, token_places
from outlierlens.analyses.quantize_schemes import (
    GGUF,
    LARGEST,
    NAMES,
    SMALLEST,
    Scheme,
    SchemePair,
    fake_quantize,
    fake_quantize_inputs,
    parse,
    parse_all,
    steps,
)
from outlierlens.analyses.quantize_settings import RANDOM, ROUNDED
from outlierlens.data.texts import read_texts
from outlierlens.errors import BadInput
from outlierlens.models.hooks import tapped
from outlierlens.models.load import LoadedModel, load_model
from outlierlens.statistics.means import mean_noise
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import tiny, turning_texts

INTEGERS = ("int8-{}", "int4-{}", "int8-{}-asym", "int4-{}-asym")
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
VALUES = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, -0.0, 1e-30, -1e-38, 1.5, 2.5, 127.0])
MATRICES = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9), elements=VALUES)


def scheme(text: str) -> Scheme:
    return parse(f"{text}/none").weights


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_levels_are_those_worked_out_by_hand() -> None:
    values = torch.tensor([[-127.0, 0.0, 0.4, 0.6, 63.4, 127.0]])  # the step is 1
    assert fake_quantize(values, scheme("int8-tensor")).tolist() == [[-127.0, 0.0, 0.0, 1.0, 63.0, 127.0]]
    halves = torch.tensor([[7.0, 0.5, 1.5, 2.5, -0.5, -7.0]])  # halves go to the even neighbour
    assert fake_quantize(halves, scheme("int4-channel")).tolist() == [[7.0, 0.0, 2.0, 2.0, 0.0, -7.0]]
    # From −5 to 250 in 255 steps of 1; the zero point is −128 + 5.
    shifted = torch.tensor([[-5.0, 0.2, 100.7, 250.0]])
    assert fake_quantize(shifted, scheme("int8-tensor-asym")).tolist() == [[-5.0, 0.0, 101.0, 250.0]]
    assert [one.item() for one in steps(shifted, scheme("int8-tensor-asym"))] == [1.0, -123.0]
    # A range holds 0 even where no value is near it.
    assert fake_quantize(torch.tensor([[15.0, 30.0]]), scheme("int4-tensor-asym")).tolist() == [[16.0, 30.0]]
    # e4m3 has 8 values from 256 to 448 in steps of 32, and from 16 to 32 in steps of 2.
    assert fake_quantize(torch.tensor([[448.0, 300.0, 17.5, -19.0]]), scheme("e4m3-tensor")).tolist() == [
        [448.0, 288.0, 18.0, -20.0]
    ]


def test_four_bits_are_those_worked_out_by_hand() -> None:
    # e2m1 knows 0, 0.5, 1, 1.5, 2, 3, 4, 6; halves go to the even code: 2.5 to 2, 3.5 to 4, 5 to 4, 0.25 to 0, 0.75 to 1.
    halves = torch.tensor([[6.0, 2.5, -3.5, 5.0, 0.25, 0.75, 1.25, -1.75]])
    assert fake_quantize(halves, scheme("e2m1-channel")).tolist() == [[6.0, 2.0, -4.0, 4.0, 0.0, 1.0, 1.0, -2.0]]
    # Steps of MX are powers of two below the largest: 7.9 has the exponent of 4, so the step is 1 and 7.9 saturates at 6.
    assert fake_quantize(torch.tensor([[7.9, 1.0, 8.0, 1.1]]), scheme("e2m1-group2-e8m0")).tolist() == [
        [6.0, 1.0, 8.0, 1.0]
    ]
    # NVFP4: 12 is the tensor's largest, 12 / (6 · 448) its step; the second group's, 0.7 / 6, is 26.1 of these, so 26.
    found = fake_quantize(torch.tensor([[12.0, 1.0, 0.7, 0.35]]), scheme("e2m1-group2-e4m3"))[0].tolist()
    step = 26 * 12 / (6 * 448)
    assert found == pytest.approx([12.0, 1.0, 6 * step, 3 * step])
    # nf4 has the largest of its block as 1, and the middle code as 0.
    assert fake_quantize(torch.tensor([[-2.0, 0.01, 1.5, 0.0]]), scheme("nf4-group4"))[0].tolist() == pytest.approx(
        [-2.0, 0.0, 2 * 0.7229568362236023, 0.0]
    )
    # Three bits, symmetric: −3 to 3.
    assert fake_quantize(torch.tensor([[3.0, 1.4, -2.6]]), scheme("int3-channel")).tolist() == [[3.0, 1.0, -3.0]]
    assert fake_quantize(torch.tensor([[-1.0, 0.4, 2.0]]), scheme("int2-channel-asym")).tolist() == [[-1.0, 0.0, 2.0]]


def test_inputs_in_groups_have_a_tensor_of_their_own_per_text() -> None:
    values = (
        torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 300.0, 0.01])[:, None, None]
    )
    for name in ("nvfp4", "mxfp4", "mxfp8"):
        inputs = parse(name).inputs
        alone = [fake_quantize_inputs(one[None], inputs)[0] for one in values]
        assert same_bits(fake_quantize_inputs(values, inputs), torch.stack(alone))
        valid = torch.ones(3, 5, dtype=torch.bool)
        valid[0, 3:] = False
        values[0, 3:] = 1e6
        assert same_bits(fake_quantize_inputs(values, inputs, valid)[0, :3], alone[0][:3])
        values[0, 3:] = 0.0


def test_grains_share_steps_where_they_say() -> None:
    values = torch.tensor([[127.0, 0.6, 12.7, 0.06], [1.27, 0.006, 0.0, 0.0]])
    assert fake_quantize(values, scheme("int8-tensor")).tolist()[1] == [1.0, 0.0, 0.0, 0.0]
    channel = fake_quantize(values, scheme("int8-channel"))
    assert channel[0].tolist() == [127.0, 1.0, 13.0, 0.0]
    assert channel[1].tolist() == pytest.approx([1.27, 0.01, 0.0, 0.0])
    group = fake_quantize(values, scheme("int8-group2"))
    assert group[0].tolist() == pytest.approx([127.0, 1.0, 12.7, 0.1])


def test_inputs_have_a_step_a_token_or_a_text_and_padding_has_no_part() -> None:
    token = parse("none/int8-token").inputs
    text = parse("none/int8-tensor").inputs
    reads = torch.tensor([[[1.27, 0.3], [127.0, 0.6]], [[2.54, 0.3], [9999.0, 9999.0]]])
    valid = torch.tensor([[True, True], [True, False]])
    by_token = fake_quantize_inputs(reads, token, valid)
    assert by_token[0].tolist() == [pytest.approx([1.27, 0.3]), pytest.approx([127.0, 1.0])]
    by_text = fake_quantize_inputs(reads, text, valid)
    assert by_text[0].tolist() == [[1.0, 0.0], [127.0, 1.0]]
    assert by_text[1, 0].tolist() == pytest.approx(
        [2.54, 0.3], abs=0.011
    )  # the second text has a step of its own: 0.02
    assert torch.equal(fake_quantize_inputs(reads[1:, :1], text)[0, 0], by_text[1, 0])


def test_what_is_exempt_stays_and_widens_no_range() -> None:
    values = torch.tensor([[1000.3, 1.27, 0.014], [0.1, 0.2, 0.3]])
    exempt = torch.tensor([True, False, False])
    kept = fake_quantize(values, scheme("int8-tensor"), exempt=exempt)
    assert kept[:, 0].tolist() == values[:, 0].tolist()
    assert torch.equal(kept[:, 1:], fake_quantize(values[:, 1:], scheme("int8-tensor")))


@settings(max_examples=60)
@given(values=MATRICES, name=st.sampled_from(INTEGERS))
def test_per_tensor_equals_torch_to_the_last_bit(values: np.ndarray, name: str) -> None:
    tensor, chosen = torch.from_numpy(values), scheme(name.format("tensor"))
    step, zero = (one.flatten() for one in steps(tensor.reshape(1, -1), chosen))
    wanted = torch.fake_quantize_per_tensor_affine(tensor, step, zero.int(), *chosen.ends)
    assert same_bits(fake_quantize(tensor, chosen), wanted)


@settings(max_examples=60)
@given(values=MATRICES, name=st.sampled_from(INTEGERS))
def test_per_channel_and_per_token_equal_torch_to_the_last_bit(values: np.ndarray, name: str) -> None:
    tensor, chosen = torch.from_numpy(values), scheme(name.format("channel"))
    step, zero = (one.flatten() for one in steps(tensor, chosen))
    wanted = torch.fake_quantize_per_channel_affine(tensor, step, zero.int(), 0, *chosen.ends)
    assert same_bits(fake_quantize(tensor, chosen), wanted)
    token = SchemePair(None, Scheme(chosen.number, "token", None, chosen.symmetric)).inputs
    assert same_bits(fake_quantize_inputs(tensor[None], token)[0], wanted)


@settings(max_examples=60)
@given(values=MATRICES, number=st.sampled_from(sorted(FP8)), power=st.integers(-20, 4))
def test_fp8_equals_torch_s_cast_to_the_last_bit(values: np.ndarray, number: str, power: int) -> None:
    # With the format's largest value · 2^k among them the step is 2^k, and scaling is exact.
    scale = 2.0**power
    clipped = torch.from_numpy(values).clamp(-LARGEST[number], LARGEST[number])
    tensor = torch.cat([clipped.flatten(), torch.tensor([LARGEST[number]])])[None] * scale
    wanted = (tensor / scale).to(FP8[number]).float() * scale
    assert same_bits(fake_quantize(tensor, scheme(f"{number}-tensor")), wanted)


@pytest.mark.parametrize("number", sorted(FP8))
def test_fp8_is_the_nearest_of_all_its_codes(number: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(FP8[number]).float()
    codes = torch.sort(codes[codes.isfinite()]).values.double()
    random = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(4000, generator=random) * 10.0**power for power in (-6, -3, 0, 2, 4)])
    values = torch.cat([values.clamp(-LARGEST[number], LARGEST[number]), torch.tensor([LARGEST[number]])])
    found = fake_quantize(values[None], scheme(f"{number}-tensor"))[0].double()
    distance = (values.double()[:, None] - codes).abs()
    assert torch.equal((found - values.double()).abs(), distance.amin(1))
    assert torch.isin(found, codes).all()


@settings(max_examples=40)
@given(values=MATRICES, name=st.sampled_from(("int8-{}", "int4-{}-asym", "e4m3-{}", "e5m2-{}")))
def test_a_group_as_long_as_the_row_is_the_channel(values: np.ndarray, name: str) -> None:
    tensor = torch.from_numpy(values)
    group = fake_quantize(tensor, scheme(name.format(f"group{tensor.shape[1]}")))
    assert same_bits(group, fake_quantize(tensor, scheme(name.format("channel"))))


def test_tiny_and_empty_ranges() -> None:
    for text in ("int8-channel", "int4-tensor-asym", "e4m3-channel", "e5m2-tensor"):
        assert fake_quantize(torch.zeros(2, 3), scheme(text)).tolist() == [[0.0] * 3] * 2
        tiny = fake_quantize(torch.full((1, 2), 1e-40), scheme(text))  # below the smallest step: 0 or as it was
        assert bool(tiny.isfinite().all())
        assert bool((tiny.abs() <= SMALLEST).all())
    small = torch.tensor([[1.27e-30, 0.3e-30]])
    assert fake_quantize(small, scheme("int8-channel"))[0].tolist() == pytest.approx([1.27e-30, 0.3e-30])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("text", ["int8-tensor", "int4-channel-asym", "e4m3-group2", "e2m1-group2-e8m0", "nf4-group2"])
def test_what_is_not_finite_is_refused(value: float, text: str) -> None:
    with pytest.raises(BadInput, match=r"infinite or not a number.*--dtype float32"):
        fake_quantize(torch.tensor([[1.0, value]]), scheme(text))


def test_half_precision_is_rounded_in_float32() -> None:
    values = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for text in ("int8-tensor", "int4-group8-asym", "e4m3-channel"):
        found = fake_quantize(values, scheme(text))
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, fake_quantize(values.float(), scheme(text)).to(torch.bfloat16))


@pytest.mark.parametrize("text", ["int8-tensor", "int8-channel-asym", "int4-group4", "int4-group8-asym", "int8-token"])
def test_integers_equal_torchao_s_to_the_last_bit(text: str) -> None:
    primitives: Any = pytest.importorskip("torchao.quantization.quant_primitives")
    random = torch.Generator().manual_seed(1)
    for size in (1e-3, 1.0, 300.0):
        values = torch.randn(6, 16, generator=random) * size
        values[0, 3] *= 50
        token = text.endswith("token")
        chosen = parse(f"none/{text}").inputs if token else scheme(text)
        block = {"tensor": (6, 16), "channel": (1, 16), "token": (1, 16)}.get(chosen.grain, (1, chosen.group or 0))
        kind = primitives.MappingType.SYMMETRIC if chosen.symmetric else primitives.MappingType.ASYMMETRIC
        first, last = chosen.ends
        step, zero = primitives.choose_qparams_affine(values, kind, block, torch.int8, first, last, eps=SMALLEST)
        wanted = primitives._fake_quantize_affine(values, block, step, zero, torch.int8, first, last)
        found = fake_quantize_inputs(values[None], chosen)[0] if token else fake_quantize(values, chosen)
        assert same_bits(found, wanted)


def rows() -> torch.Tensor:
    """Weights over many sizes, with an outlier and a row of zeros."""
    random = torch.Generator().manual_seed(3)
    values = torch.randn(8, 256, generator=random) * torch.exp(torch.randn(8, 256, generator=random))
    values[2, 5], values[4] = 400.0, 0.0
    return values


@pytest.mark.parametrize("name", [*GGUF, "mxfp4"])
def test_types_of_gguf_are_its_own_to_the_last_bit(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name.upper()]
    wanted = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(rows().numpy(), kind), kind))
    assert torch.equal(fake_quantize(rows(), parse(name).weights), wanted)
    kept = torch.zeros(8, 256, dtype=torch.bool)
    kept[2, 5] = True
    found = fake_quantize(rows(), parse(name).weights, exempt=kept)
    assert found[2, 5] == 400.0
    assert (found - rows()).abs()[2].max() < (wanted - rows()).abs()[2, :32].max()


def test_nvfp4_equals_compressed_tensors_to_the_last_bit() -> None:
    quantization: Any = pytest.importorskip("compressed_tensors.quantization")
    helpers: Any = pytest.importorskip("compressed_tensors.quantization.utils")
    forward: Any = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    values = rows()
    for row in (0, 2, 3):
        values = torch.roll(values, row)
        how = quantization.QuantizationArgs(
            num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn
        )
        whole = helpers.generate_gparam(values.min().reshape(1), values.max().reshape(1))
        blocks = values.unflatten(-1, (-1, 16))
        scale, zero = helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), how, global_scale=whole)
        wanted = forward.fake_quantize(values, scale, zero, how, global_scale=whole)
        assert torch.equal(fake_quantize(values, parse("nvfp4").weights), wanted)


@pytest.mark.parametrize(("name", "kind"), [("mxfp4", "float4_e2m1fn_x2"), ("mxfp8", "float8_e4m3fn")])
def test_mx_equals_torchao_s_to_the_last_bit(name: str, kind: str) -> None:
    formats: Any = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    mode = formats.ScaleCalculationMode.FLOOR
    made = formats.MXTensor.to_mx(rows(), getattr(torch, kind), block_size=32, scaling_mode=mode)
    assert torch.equal(fake_quantize(rows(), parse(name).weights), made.dequantize(torch.float32))


def test_nf4_equals_bitsandbytes_to_the_last_bit() -> None:
    functional: Any = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(rows(), blocksize=64, quant_type="nf4")
    assert torch.equal(fake_quantize(rows(), parse("nf4").weights), functional.dequantize_4bit(packed, state))


@pytest.mark.parametrize("number", sorted(FP8))
@pytest.mark.parametrize("grain", ["tensor", "channel"])
def test_fp8_equals_torchao_s_to_the_last_bit(number: str, grain: str) -> None:
    primitives: Any = pytest.importorskip("torchao.quantization.quant_primitives")
    values = torch.randn(6, 16, generator=torch.Generator().manual_seed(2)) * 3
    values[2, 5] = 400.0
    block = (6, 16) if grain == "tensor" else (1, 16)
    step = primitives._choose_scale_float8(values, block, FP8[number])
    codes = primitives._quantize_affine_float8(values, step, FP8[number])
    wanted = primitives._dequantize_affine_float8(codes, step, torch.float32)
    assert same_bits(fake_quantize(values, scheme(f"{number}-{grain}")), wanted)


def test_names_are_read_back() -> None:
    for recipe in (*map(parse, NAMES), parse("int4-group64-asym/int8-token-asym"), parse("none/e5m2-token")):
        assert parse(recipe.name) == recipe
    assert [one.name for one in parse_all("int8-tensor/none,int8-tensor/none, none/int8-token")] == [
        "int8-tensor/none",
        "none/int8-token",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int8-tensor", r"WEIGHTS/INPUTS"),
        ("int8/none", r"cannot read 'int8' in scheme 'int8/none'; write NUMBER-GRAIN"),
        ("int5-tensor/none", r"unknown number 'int5'; numbers are int8, int4, int3, int2, e4m3, e5m2, e2m1"),
        ("int8-row/none", r"unknown grain 'row'"),
        ("int8-group/none", r"a group, and nothing else, has a size"),
        ("int8-tensor32/none", r"a group, and nothing else, has a size"),
        ("int4-group0/none", r"a group, and nothing else, has a size"),
        ("e4m3-tensor-asym/none", r"e4m3 has no zero point"),
        ("none/none", r"none/none rounds nothing"),
        ("int8-token/none", r"weights have no tokens"),
        ("none/int8-channel", r"inputs are quantized per tensor, per token or in groups"),
        ("none/q4_0", r"inputs are quantized per tensor, per token or in groups"),
        ("int4-group32-e8m0/none", r"steps of e8m0 belong to groups of e2m1, e4m3 or e5m2"),
        ("e2m1-channel-e4m3/none", r"steps of e4m3 belong to groups"),
    ],
)
def test_schemes_that_cannot_be_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(text)


def test_groups_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BadInput, match=r"groups of 32 do not divide a row of 48; use group24"):
        fake_quantize(torch.zeros(2, 48), scheme("int4-group32"))


@pytest.mark.parametrize(
    ("typed", "recipe"),
    [
        ("int8", "int8-tensor/int8-tensor"),
        ("W8A8", "int8-channel/int8-token"),
        ("w4a16", "int4-group128/none"),
        ("nf4", "nf4-group64/none"),
        ("nvfp4", "e2m1-group16-e4m3/e2m1-group16-e4m3"),
        ("mxfp4a16", "e2m1-group32-e8m0/none"),
        ("fp8", "e4m3-tensor/e4m3-tensor"),
    ],
)
def test_common_names_of_recipes(typed: str, recipe: str) -> None:
    assert parse(typed) == parse(recipe)


def test_a_name_that_no_recipe_has() -> None:
    with pytest.raises(BadInput, match=r"cannot read scheme 'w4a17'; .* or int8, w8a8, .*near: 'w4a16'"):
        parse("w4a17")


TEXTS = turning_texts(4 + 3 * (i % 6) for i in range(18))


@pytest.fixture
def bert() -> LoadedModel:
    return tiny("bert", "MaskedLM")


class FirstQuery:
    """The first token's first query in the first block, of four texts two by two."""

    n_texts, weights = 4, np.ones(4)

    def __init__(self, loaded: LoadedModel):
        self.loaded, self.model = loaded, loaded.model  # type: ignore[assignment]
        self.query = self.model.bert.encoder.layer[0].attention.self.query

    def feeds(self, texts: range) -> Iterator[Any]:
        for start in range(0, len(texts), 2):
            yield SimpleNamespace(slots=(start, start + 1), ids=torch.tensor([[2, 5, 7], [2, 9, 11]]))

    def sums(self, feed: Any) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        hook = self.query.register_forward_hook(lambda _, __, output: seen.append(output[:, 0, 0].double()))
        self.model(input_ids=feed.ids, attention_mask=torch.ones_like(feed.ids))
        hook.remove()
        return seen[0]


def test_a_value_at_the_edge_of_a_step_moves_by_half_of_it(bert: LoadedModel) -> None:
    """Each token reads 127 in dimension 0, so that a step is 1, and 10.5 in dimension 1, which the query copies: 10 or 11."""
    model: Any = bert.model
    task: Any = FirstQuery(bert)
    with torch.no_grad():
        norm = model.bert.embeddings.LayerNorm
        norm.weight.zero_()
        norm.bias.copy_(torch.tensor([127.0, 10.5, *[0.0] * 14]))
        task.query.weight.zero_()
        task.query.weight[0, 1] = 1.0
        task.query.bias.zero_()
    draws = NoiseDraws(bert, bert.stacks[0], task, 60, 0)
    intact = np.full(4, 10.5)
    assert np.abs(np.array(draws.repeats()) - 10.5).max() < 1e-4, "without steps nothing moves"
    with rounded(bert, parse("none/int8-token")):
        runs = np.array([np.full(4, 10.0), *draws.repeats()])
    with rounded(bert, parse("none/int8-token"), Keeping(dims=(1,))):
        spared = np.array([intact, *draws.repeats()])
    assert set(np.round(runs.ravel(), 3)) == {10.0, 11.0}
    assert np.abs(runs - runs[:, :1]).max() < 1e-9, "what all texts read moves alike in all"
    found = mean_noise(runs, np.ones(4), 1000)
    assert found.floor == pytest.approx(0.5, abs=0.02), "two values per step apart, each half of the time"
    assert found.shared == pytest.approx(found.floor**2)
    kept = mean_noise(spared, np.ones(4), 1000)
    assert kept.floor < 1e-4


def test_noise_is_that_of_the_token_in_its_text_whatever_shares_its_batch(bert: LoadedModel) -> None:
    def first_reads(size: int, draw: int | None) -> list[torch.Tensor]:
        task = make_task(bert, TEXTS, TaskOptions(max_length=16, batch_size=size))
        reads: dict[int, torch.Tensor] = {}
        draws = NoiseDraws(bert, bert.stacks[0], task, 2, 7)
        assert draws.n_texts == 4  # a quarter of 18, four at least
        for feed in task.feeds(range(16)):
            seen: list[torch.Tensor] = []
            noise = contextlib.nullcontext() if draw is None else draws.noisy(draw)
            look = tapped(bert.model, bert.stacks[:1], lambda _, layer, x, to=seen: to.append(x.double()))
            with torch.inference_mode(), noise, look:  # hooks that come later see what those before changed
                task.sums(feed)
            for row, slot in enumerate(feed.slots):
                reads[slot] = seen[0][row, : int(task.lengths[slot])]
        return [reads[slot] for slot in range(16)]

    plain, together, alone, other = (first_reads(*how) for how in ((5, None), (5, 0), (1, 0), (5, 1)))
    noise = np.random.default_rng([7, 0]).standard_normal((16, 16))
    for before, one, two, three in zip(plain, together, alone, other, strict=True):
        assert torch.allclose(one, two, rtol=2e-7, atol=1e-7)
        wanted = before * 1e-6 * torch.from_numpy(noise[: len(before)])
        assert wanted.abs().max() > 1e-6
        assert torch.allclose(one - before, wanted, atol=3e-7)
        assert not torch.allclose(one, three, rtol=2e-7, atol=1e-7)


def test_places_leave_padding_out() -> None:
    states = torch.zeros(2, 4, 3)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert token_places(states, [mask]).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]
    assert token_places(torch.zeros(8, 3), [mask]).tolist() == [0, 0, 0, 1, 0, 1, 2, 2]
    assert token_places(states, []).tolist() == [[0, 1, 2, 3]] * 2
    assert token_places(torch.zeros(1, 2, 2, 3), []).tolist() == [[[0, 1], [2, 3]]]


def measure(draws: int) -> Quantization:
    recipes = parse_all("int8-channel/int8-token,int4-group32/none")
    options = QuantizeOptions(
        recipes=recipes, dims=(8, 24), n_random=1, noise_draws=draws, task=TaskOptions(max_length=32)
    )
    return quantize(load_model("mini-planted"), read_texts("excerpt", limit=18), options)


def test_what_has_steps_has_a_floor_and_what_has_none_has_none() -> None:
    found, again, without = measure(3), measure(3), measure(0)
    assert (found.noise_draws, found.n_noise_texts, without.noise_draws, without.n_noise_texts) == (3, 4, 0, 0)
    assert again.settings == found.settings
    assert math.isnan(found.settings[0].noise)
    for one in (*found.settings[1:], *found.draws):
        if one.scheme == "int4-group32/none":
            assert one.noise < 1e-6, "weights alone: what is read meets no step"
        else:
            assert one.noise > 1e-5
            assert one.regained_noise > 1e-5 or one.setting in (ROUNDED, RANDOM)
    assert found.gains[0].noise > 1e-5
    for with_noise, plain in zip(found.settings[1:], without.settings[1:], strict=True):
        assert math.isnan(plain.noise)
        assert with_noise.per_text == plain.per_text
        if with_noise.scheme != "int4-group32/none":
            assert with_noise.change.low <= plain.change.low < plain.change.high <= with_noise.change.high
    assert replace(found, noise_draws=0).noise_note == without.noise_note != found.noise_note
