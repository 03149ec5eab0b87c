"""Tolerance is half a step: what rounding moves against exact arithmetic, copies never flagged, edits caught."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.analyses.fingerprint_values import RoundingSide, bfloat16_of, differ, half_step, round_to

NAMES = ("bfloat16", "float16", "float32")
WORD = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
# Within the range of all three formats.
VALUES = st.floats(-60000, 60000, width=32)
ROW = st.lists(VALUES, min_size=1, max_size=40)
QUICK = settings(max_examples=40)


def row(values: Any) -> np.ndarray:
    return np.array([values], dtype=np.float64)


def test_rounding_by_hand() -> None:
    # 7 bits of mantissa: between 1 and 2 numbers lie 1/128 apart, ties go to the even one.
    assert round_to(row([1 + 1 / 256, 1 + 3 / 256, 1 + 1.01 / 256]), "bfloat16").tolist() == [
        [1.0, 1 + 1 / 64, 1 + 1 / 128]
    ]
    assert half_step(row([1.0, -2.0, 0.75, 0.0]), "bfloat16").tolist() == [[2**-8, 2**-7, 2**-9, 2.0**-134]]
    assert round_to(row([3.4e38, 70000.0]), "float16").tolist() == [[np.inf, np.inf]]
    assert round_to(row([3.4e38]), "bfloat16").tolist() == [[np.inf]]


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
@QUICK
def test_rounding_is_torch_s(values: list[float]) -> None:
    import torch

    given_ = torch.tensor(values, dtype=torch.float32)
    for name in NAMES:
        wanted = given_.to(getattr(torch, name)).double().numpy()
        np.testing.assert_array_equal(round_to(np.array(values), name), wanted)
    np.testing.assert_array_equal(bfloat16_of(given_.numpy()), given_.bfloat16().float().numpy())


@given(VALUES, st.sampled_from(NAMES))
@QUICK
def test_rounding_moves_a_value_by_half_a_step_at_most(value: float, name: str) -> None:
    stored = round_to(row([value]), name)
    assert abs(stored[0, 0] - value) <= half_step(stored, name)[0, 0]
    beyond = stored[0, 0] + np.copysign(half_step(stored, name)[0, 0], stored[0, 0]) * (1 + 2**-20)
    assert round_to(row([beyond]), name) != stored


@given(ROW, st.sampled_from(NAMES), st.sampled_from(NAMES))
@QUICK
def test_copies_of_one_original_never_differ(values: list[float], one: str, other: str) -> None:
    sides = [RoundingSide(round_to(row(values), name), WORD[name]) for name in (one, other)]
    found = differ(*sides)
    assert not found.moved.any()
    assert found.kind == ("same" if np.array_equal(sides[0].values, sides[1].values) else "converted")


@given(ROW, st.sampled_from(("bfloat16", "float16")), st.data())
@QUICK
def test_an_edit_shows_from_half_a_step_on(values: list[float], name: str, data: st.DataObject) -> None:
    before = round_to(row(values), "float32")
    copy = round_to(before, name)
    at = data.draw(st.integers(0, len(values) - 1))
    step = half_step(copy, name)
    for edge, outward in ((copy - step, -np.inf), (copy + step, np.inf)):
        for end, seen in ((edge[0, at], False), (np.nextafter(np.float32(edge[0, at]), np.float32(outward)), True)):
            original = before.copy()
            original[0, at] = end
            moved = differ(RoundingSide(original, "F32"), RoundingSide(copy, WORD[name])).moved
            assert moved[0, at] == seen
            assert moved.sum() == int(seen)


@given(ROW, st.sampled_from(NAMES), st.data())
@QUICK
def test_in_the_same_format_every_bit_counts(values: list[float], name: str, data: st.DataObject) -> None:
    before = round_to(row(values), name)
    at = data.draw(st.integers(0, len(values) - 1))
    after = before.copy()
    # The next number of the format: the smallest edit that there is.
    after[0, at] = round_to(before[0, at] + 2 * half_step(before[0, at], name), name)
    found = differ(RoundingSide(before, WORD[name]), RoundingSide(after, WORD[name]))
    assert found.moved.tolist() == [[i == at for i in range(len(values))]]
    assert found.kind == "moved"


@given(ROW)
@QUICK
def test_a_rounded_copy_that_is_stored_wide_is_converted(values: list[float]) -> None:
    before = round_to(row([*values, 1 + 2**-20, 1 + 2**-20]), "float32")
    assert differ(RoundingSide(before, "F32"), RoundingSide(round_to(before, "bfloat16"), "F32")).kind == "converted"
    edited = round_to(before, "bfloat16")
    edited[0, -1] = 1 + 2**-7
    assert differ(RoundingSide(before, "F32"), RoundingSide(edited, "F32")).moved.sum() == 1
    # One value rounded alone is no copy.
    single = before.copy()
    single[0, -1] = 1.0
    assert differ(RoundingSide(before, "F32"), RoundingSide(single, "F32")).moved.sum() == 1


@given(ROW)
@QUICK
def test_one_plus_w_is_the_same_scale(values: list[float]) -> None:
    before = round_to(row(values), "bfloat16")
    file = (before.astype(np.float32) + np.float32(1)).astype(np.float32)  # what llama.cpp's converter writes
    after = RoundingSide((file + np.float32(-1)).astype(np.float64), "F32", offset=1.0)
    assert not differ(RoundingSide(before, "BF16"), after).moved.any()
    assert not differ(after, RoundingSide(before, "BF16")).moved.any()
    assert not differ(RoundingSide(before, "F32"), after).moved.any()
    moved = after.values + 4 * (half_step(after.values + 1, "float32") + half_step(after.values, "float32"))
    assert differ(RoundingSide(before, "F32"), RoundingSide(moved, "F32", offset=1.0)).moved.all()


def test_numbers_that_are_none_agree_with_themselves_alone() -> None:
    odd = row([np.nan, np.inf, -np.inf, 1.0])
    assert not differ(RoundingSide(odd, "F32"), RoundingSide(odd, "BF16")).moved.any()
    other = row([1.0, np.nan, np.inf, np.inf])
    assert differ(RoundingSide(odd, "F32"), RoundingSide(other, "BF16")).moved.all()
    assert differ(RoundingSide(odd, "F32"), RoundingSide(other, "F32")).moved.all()


def q8(values: np.ndarray) -> np.ndarray:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q8_0
    return np.asarray(gguf.quants.dequantize(gguf.quants.quantize(values.astype(np.float32), kind), kind), np.float64)


@given(st.integers(0, 10_000), st.floats(-6, 3), st.sampled_from(NAMES))
@QUICK
def test_a_copy_of_dequantized_values_is_compared_and_their_origin_is_not(seed: int, scale: float, name: str) -> None:
    random = np.random.default_rng(seed)
    original = round_to(random.standard_t(3, (3, 64)) * 10**scale, name)
    quantized = RoundingSide(q8(original), "Q8_0")
    for found in (
        differ(RoundingSide(original, WORD[name]), quantized),
        differ(quantized, RoundingSide(original, WORD[name])),
    ):
        assert not found.moved.any()
    copy = quantized.values.copy()
    assert differ(quantized, RoundingSide(copy, "F32")).kind == "same"
    copy[1, 5] = np.nextafter(np.float32(copy[1, 5]), np.float32(np.inf))
    assert np.argwhere(differ(quantized, RoundingSide(copy, "F32")).moved).tolist() == [[1, 5]]


def test_coarser_quantizations_are_not_compared_unless_equal() -> None:
    random = np.random.default_rng(0)
    original = random.normal(size=(2, 64))
    coarse = np.round(original * 4) / 4
    assert differ(RoundingSide(original, "F32"), RoundingSide(coarse, "Q4_K")).kind == "not comparable"
    assert differ(RoundingSide(coarse, "Q4_K"), RoundingSide(coarse, "F32")).kind == "same"
    assert differ(RoundingSide(coarse, "Q4_K"), RoundingSide(coarse, "Q4_K")).kind == "same"
    one = coarse.copy()
    one[0, 0] += 0.25
    assert differ(RoundingSide(coarse, "Q4_K"), RoundingSide(one, "Q4_K")).moved.sum() == 1
