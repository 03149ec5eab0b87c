"""Codes are multiplied out or refused, never read as weights; names are read without what stands around them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.stored import LiveCheckpoint, plain_names
from outlierlens.errors import BadFile

NAME = "layers.0.mlp.down_proj.weight"
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def folder(tmp_path: Path, tensors: dict[str, Any], method: str = "", **more: Any) -> str:
    """A folder whose config names a quantizer."""
    told = {"quantization_config": {"quant_method": method, **more}} if method else {}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **told}))
    save_file(
        {name: torch.as_tensor(value).contiguous() for name, value in tensors.items()}, tmp_path / "model.safetensors"
    )
    return str(tmp_path)


def held(model: str, name: str = NAME) -> np.ndarray:
    """The weight, the same whole, by rows and by some rows; nothing but it is listed."""
    with open_checkpoint(model) as checkpoint:
        assert list(checkpoint.tensors) == [name]
        ((_, values),) = checkpoint.read([name])
        assert values.dtype == np.float32
        assert checkpoint.tensors[name].shape == values.shape
        assert checkpoint.holds_floats(name)
        assert checkpoint.packed_by(name) == ""
        flat = values.reshape(-1, values.shape[-1])
        for n_rows in (1, 3, len(flat)):
            blocks = list(checkpoint.read_rows(name, n_rows))
            assert [len(block) for block in blocks[:-1]] == [n_rows] * (len(blocks) - 1)
            np.testing.assert_array_equal(np.concatenate(blocks), flat)
        np.testing.assert_array_equal(checkpoint.take_rows(name, [1, 0]), flat[[1, 0]])
        assert any("multiplied out" in note for note in checkpoint.notes)
    return values


def bytes_of(values: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(dtype)


def test_int8_of_bitsandbytes_by_hand(tmp_path: Path) -> None:
    codes = torch.tensor([[127, -127, 0], [64, 1, -2]], dtype=torch.int8)
    tensors = {NAME: codes, "layers.0.mlp.down_proj.SCB": torch.tensor([2.0, 12.7])}
    tensors["layers.0.mlp.down_proj.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    expected = [[2, -2, 0], [6.4, 0.1, -0.2]]
    np.testing.assert_allclose(held(folder(tmp_path, tensors, "bitsandbytes")), expected, rtol=1e-6)
    tensors["layers.0.mlp.down_proj.weight_format"] = torch.tensor(1, dtype=torch.uint8)
    with pytest.raises(BadFile, match="laid out for a GPU"):
        held(folder(tmp_path, tensors, "bitsandbytes"))


def test_int8_with_scales_and_zero_points_by_hand(tmp_path: Path) -> None:
    codes = torch.tensor([[10, 20, 30, 40], [-1, -2, -3, -4]], dtype=torch.int8)
    rows = {
        NAME: codes,
        f"{NAME}_scale": torch.tensor([[0.5], [2.0]]),
        "layers.0.mlp.down_proj.input_scale": torch.ones(1),
    }
    expected = np.array([[5, 10, 15, 20], [-2, -4, -6, -8]], np.float32)
    np.testing.assert_array_equal(held(folder(tmp_path, rows, "compressed-tensors")), expected)
    one = {NAME: codes, f"{NAME}_scale": torch.tensor(3.0)}
    np.testing.assert_array_equal(held(folder(tmp_path, one, "compressed-tensors")), 3 * codes.numpy())
    groups = {NAME: codes, f"{NAME}_scale": torch.tensor([[1.0, 0.5], [2.0, 4.0]])}
    groups[f"{NAME}_zero_point"] = torch.tensor([[10, 20], [0, -3]], dtype=torch.int8)
    expected = np.array([[0, 10, 5, 10], [-2, -4, 0, -4]], np.float32)
    np.testing.assert_array_equal(held(folder(tmp_path, groups, "compressed-tensors")), expected)
    order = groups | {f"{NAME}_g_idx": torch.tensor([0, 1, 0, 1], dtype=torch.int32)}
    with pytest.raises(BadFile, match="is packed by compressed-tensors"):
        held(folder(tmp_path, order, "compressed-tensors"))


def test_scales_of_blocks_that_do_not_divide_the_rows(tmp_path: Path) -> None:
    codes, scale = torch.ones((130, 200), dtype=torch.int8), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = held(
        folder(tmp_path, {NAME: codes, f"{NAME}_scale_inv": scale}, "blockwise_int8", weight_block_size=[128, 128])
    )
    assert [found[127, 127], found[127, 128], found[128, 127], found[129, 199]] == [1, 2, 3, 4]
    found = held(
        folder(tmp_path, {NAME: codes, f"{NAME}_scale_inv": scale}, "blockwise_int8", weight_block_size=[100, 160])
    )
    assert [found[99, 159], found[99, 160], found[100, 159], found[129, 199]] == [1, 2, 3, 4]
    wrong = {NAME: codes, f"{NAME}_scale_inv": torch.ones((7, 2))}
    with pytest.raises(BadFile, match=r"_scale_inv \[7, 2\] does not fit .*\[130, 200\]; fetch the model again"):
        held(folder(tmp_path, wrong, "blockwise_int8"))


def test_fp8_with_blocks_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1) % 127  # no NaN
    codes, scale = codes.view(torch.float8_e4m3fn), torch.tensor([[0.5, 3.0], [7.0, 0.25]])
    model = folder(tmp_path, {NAME: codes, f"{NAME}_scale_inv": scale}, "fp8", weight_block_size=[128, 128])
    expected = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
    np.testing.assert_array_equal(held(model), expected.numpy())
    # DeepSeek's experts: two of E2M1 in an int8, one power of two for 32 weights.
    halves, powers = (
        torch.arange(-128, 128, dtype=torch.int8).reshape(8, 32),
        bytes_of([[126, 129]] * 8, torch.float8_e8m0fnu),
    )
    model = folder(tmp_path, {NAME: halves, f"{NAME}_scale_inv": powers}, "fp8", weight_block_size=[128, 128])
    expected = Fp8Dequantize(None)._dequantize_one(halves, powers.float(), torch.float32)
    np.testing.assert_array_equal(held(model), expected.numpy())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
def test_every_float_of_a_byte_is_torch_s(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(dtype)
    with open_checkpoint(folder(tmp_path, {"norm.weight": values})) as checkpoint:
        ((_, found),) = checkpoint.read(["norm.weight"])
    np.testing.assert_array_equal(found, values.float().numpy())


def test_nvfp4_by_hand(tmp_path: Path) -> None:
    codes = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8).repeat(
        2, 2
    )  # [2, 32] weights
    scale = torch.tensor([[1.0, 2.0], [0.5, 448.0]]).to(torch.float8_e4m3fn)
    expected = np.array([FP4 * 2, FP4 * 2]) * np.repeat([[1, 2], [0.5, 448]], 16, axis=1)
    modelopt = {NAME: codes, f"{NAME}_scale": scale, f"{NAME}_scale_2": torch.tensor(0.25)}
    np.testing.assert_array_equal(held(folder(tmp_path, modelopt, "modelopt")), np.float32(expected * 0.25))
    other = {f"{NAME}_packed": codes, f"{NAME}_scale": scale, f"{NAME}_global_scale": torch.tensor([8.0])}
    other["layers.0.mlp.down_proj.input_global_scale"] = torch.ones(1)
    np.testing.assert_array_equal(held(folder(tmp_path, other, "compressed-tensors")), np.float32(expected / 8))


def test_mxfp4_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    name = "layers.0.mlp.experts.down_proj"
    random = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 6, 2, 16), dtype=torch.uint8, generator=random)
    scales = torch.randint(120, 134, (3, 6, 2), dtype=torch.uint8, generator=random)
    found = held(folder(tmp_path, {f"{name}_blocks": blocks, f"{name}_scales": scales}, "mxfp4"), name)
    assert found.shape == (3, 64, 6)
    np.testing.assert_array_equal(found, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy())
    large = {f"{name}_blocks": torch.full_like(blocks, 0x77), f"{name}_scales": torch.full_like(scales, 157)}
    assert set(held(folder(tmp_path, large, "mxfp4"), name).ravel()) == {6 * 2.0**30}
    no_number = large | {f"{name}_scales": torch.full_like(scales, 255)}  # OCP: the one power that is NaN
    assert np.isnan(held(folder(tmp_path, no_number, "mxfp4"), name)).all()


@pytest.mark.parametrize("nested", [False, True])
def test_four_bits_of_bitsandbytes_by_hand(tmp_path: Path, nested: bool) -> None:
    table = torch.linspace(-1, 1, 16)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 4, "shape": [3, 3], "dtype": "bfloat16"}
    largest = np.array([2.0, 4.0, 8.0], np.float32)  # of weights 0 to 3, 4 to 7, and 8
    tensors: dict[str, Any] = {NAME: torch.tensor([[0x0F], [0xF0], [0x78], [0x00], [0x50]], dtype=torch.uint8)}
    if nested:
        state |= {"nested_blocksize": 2, "nested_offset": 1.0}
        tensors[f"{NAME}.absmax"] = torch.tensor([1, 2, 3], dtype=torch.uint8)
        tensors[f"{NAME}.nested_quant_map"] = torch.arange(256).float() / 2
        tensors[f"{NAME}.nested_absmax"] = torch.tensor([2.0, 10.0])
        largest = np.array([0.5 * 2 + 1, 1 * 2 + 1, 1.5 * 10 + 1], np.float32)
    else:
        tensors[f"{NAME}.absmax"] = torch.tensor(largest)
    tensors[f"{NAME}.quant_map"] = table
    packed = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    codes = np.array([0, 15, 15, 0, 7, 8, 0, 0, 5])  # the upper half of a byte first
    expected = (table.numpy()[codes] * largest[np.arange(9) // 4]).reshape(3, 3)
    model = folder(tmp_path, tensors | {f"{NAME}.quant_state.bitsandbytes__nf4": packed}, "bitsandbytes")
    np.testing.assert_array_equal(held(model), expected)
    with pytest.raises(
        BadFile, match="packed by bitsandbytes, in four bits without their quant_state, which is not read"
    ):
        held(folder(tmp_path, tensors, "bitsandbytes"))
    wrong = json.dumps(state | {"shape": [300, 3]}).encode()
    tensors[f"{NAME}.quant_state.bitsandbytes__nf4"] = torch.tensor(list(wrong), dtype=torch.uint8)
    with pytest.raises(BadFile, match="does not fit"):
        held(folder(tmp_path, tensors, "bitsandbytes"))


def test_a_block_beyond_the_weight_takes_no_memory(tmp_path: Path) -> None:
    state = json.dumps({"quant_type": "nf4", "blocksize": 10**15, "shape": [3, 3]}).encode()
    tensors = {
        NAME: torch.zeros((5, 1), dtype=torch.uint8),
        f"{NAME}.absmax": torch.tensor([2.0]),
        f"{NAME}.quant_map": torch.linspace(-1, 1, 16),
        f"{NAME}.quant_state.bitsandbytes__nf4": torch.tensor(list(state), dtype=torch.uint8),
    }
    assert held(folder(tmp_path, tensors, "bitsandbytes")).tolist() == [[-2.0] * 3] * 3
    tensors[f"{NAME}.nested_absmax"] = torch.tensor([2.0])  # and the table of its scales is missing
    with pytest.raises(BadFile, match="does not fit"):
        held(folder(tmp_path, tensors, "bitsandbytes"))


MODULE = NAME.removesuffix("weight")
PACKED = {
    "GPTQ": (
        {f"{MODULE}qweight": torch.zeros((2, 4), dtype=torch.int32), f"{MODULE}scales": torch.ones((1, 4))},
        "gptq",
    ),
    "GPTQ or AWQ": ({f"{MODULE}qweight": torch.zeros((2, 4), dtype=torch.int32)}, ""),
    "HQQ": ({f"{MODULE}W_q": torch.zeros((2, 4), dtype=torch.uint8), f"{MODULE}scale": torch.ones(2)}, "hqq"),
    "compressed-tensors": (
        {f"{NAME}_packed": torch.zeros((2, 4), dtype=torch.int32), f"{NAME}_scale": torch.ones((2, 1))},
        "compressed-tensors",
    ),
    "bitnet": ({NAME: torch.zeros((2, 4), dtype=torch.uint8), f"{NAME}_scale": torch.ones(1)}, "bitnet"),
    "eetq": ({NAME: torch.zeros((2, 4), dtype=torch.int8), f"{NAME}_scales": torch.ones(4)}, "eetq"),
    "a quantizer that its config does not name": ({NAME: torch.zeros((2, 4), dtype=torch.int8)}, ""),
}


@pytest.mark.parametrize("scheme", PACKED)
def test_what_is_packed_otherwise_is_refused_by_name(tmp_path: Path, scheme: str) -> None:
    tensors, method = PACKED[scheme]
    model = folder(tmp_path, tensors | {"norm.weight": torch.ones(2), f"{MODULE}bias": torch.ones(2)}, method)
    with open_checkpoint(model) as checkpoint:
        assert NAME in checkpoint.tensors
        assert checkpoint.packed_by(NAME) == scheme
        assert dict(checkpoint.read(["norm.weight"]))["norm.weight"].tolist() == [1, 1]
        assert dict(checkpoint.read([f"{MODULE}bias"]))
        for ask in (lambda: list(checkpoint.read([NAME])), lambda: checkpoint.tensors[NAME].shape):
            with pytest.raises(
                BadFile, match=f"{NAME} is packed by {scheme}, which is not read; name the model that was"
            ):
                ask()


def test_whole_numbers_that_are_no_codes_are_read(tmp_path: Path) -> None:
    tensors = {
        "embeddings.position_ids": torch.arange(4)[None],
        "h.0.attn.bias": torch.ones((1, 1, 2, 2), dtype=torch.uint8),
    }
    tensors |= {"w.weight": torch.ones((2, 2)), "w.weight_scale": torch.ones(2), "logit_scale": torch.tensor(3.0)}
    with open_checkpoint(folder(tmp_path, tensors)) as checkpoint:
        found = dict(checkpoint.read(["embeddings.position_ids", "h.0.attn.bias", "w.weight", "logit_scale"]))
    assert found["embeddings.position_ids"].tolist() == [[0, 1, 2, 3]]
    assert found["logit_scale"] == 3
    assert found["w.weight"].tolist() == [[1, 1], [1, 1]]


def test_codes_of_a_model_in_memory_are_not_its_weights() -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros((2, 2), dtype=torch.int8), requires_grad=False)
    with pytest.raises(BadFile, match="weight is packed by bitsandbytes"):
        list(
            LiveCheckpoint(model, name="m", config={"quantization_config": {"quant_method": "bitsandbytes"}}).read(
                ["weight"]
            )
        )
    model.weight_scale_inv = torch.nn.Parameter(torch.full((1, 1), 2.0))
    model.weight.data = torch.full((2, 2), 3.0).to(torch.float8_e4m3fn)
    found = dict(
        LiveCheckpoint(model, name="m", config={"quantization_config": {"quant_method": "fp8"}}).read(["weight"])
    )
    assert found["weight"].tolist() == [[6, 6], [6, 6]]


PLAIN = ("model.layers.0.mlp.down_proj.weight", "model.embed_tokens.weight", "lm_head.weight")
AROUND = ("_orig_mod.", "module.", "base_model.model.", "model.", "language_model.", "_forward_module.module.")


@pytest.mark.parametrize("inner", AROUND)
@pytest.mark.parametrize("outer", ["", *AROUND])
def test_what_stands_before_names_is_taken_off_in_any_order(outer: str, inner: str) -> None:
    names = [f"{outer}{inner}{name}" for name in PLAIN]
    assert plain_names(names, {}) == dict(zip(PLAIN, names, strict=True))


def test_what_stands_inside_names_is_taken_off_and_what_belongs_there_stays() -> None:
    wrapped = "_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.mlp.down_proj.weight"
    assert list(plain_names([wrapped], {})) == [PLAIN[0]]
    assert list(plain_names(["base_model.model.model.layers.0.mlp.down_proj.base_layer.weight"], {})) == [PLAIN[0]]
    tied = PLAIN[:2]  # a model whose head is its table has nothing but "model." before its names
    assert tuple(plain_names(tied, {})) == tied
    both = [f"language_model.{name}" for name in PLAIN]
    assert list(plain_names(both, {"text_config": {}})) == both
    twice = ["module.a.weight", "module._orig_mod.a.weight"]
    assert list(plain_names(twice, {})) == twice
    assert plain_names([], {}) == {}
