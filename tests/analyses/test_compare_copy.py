"""A quantized copy against its original: errors worked out by hand, a damaged column, formats, and what it does on texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import llama_cpp
from architectures import FAMILIES, build
from memory_checkpoint import Memory, of_model
from outlierlens.analyses.compare_copy import copy_error, stores_codes
from outlierlens.checkpoints import open_checkpoint
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.models.load import load_model

DOWN, QUERY = "model.layers.{}.mlp.down_proj.weight", "model.layers.{}.self_attn.q_proj.weight"


@pytest.fixture
def original() -> Memory:
    return of_model("llama", "CausalLM")


def test_a_matrix_rounded_by_hand_has_its_known_error(original: Memory) -> None:
    name = DOWN.format(1)
    found = copy_error(original, original.with_arrays({**original.arrays, name: original.arrays[name] * 1.5}), (3, 5))
    by_name = {one.name: one.error for one in found.linears}
    assert by_name.pop(name) == pytest.approx(0.5, rel=1e-6)
    assert set(by_name.values()) == {0.0}
    assert (found.first.layer, found.first.largest) == (1, "mlp.down_proj")
    block = {
        key: value for key, value in original.arrays.items() if key.startswith("model.layers.1.") and value.ndim == 2
    }
    whole = sum(float(np.square(one, dtype=np.float64).sum()) for one in block.values())
    expected = 0.5 * np.linalg.norm(original.arrays[name].astype(np.float64)) / np.sqrt(whole)
    assert found.layers[1].error == pytest.approx(expected, rel=1e-6)
    assert [one.error for one in found.layers if one.layer != 1] == [0, 0]
    assert next(found.sentences()).startswith(
        "The error becomes large in block 1: mlp.down_proj differs by 50 % of its norm"
    )


@pytest.mark.parametrize(("name", "axis"), [(QUERY, 1), (DOWN, 0)])
def test_a_damaged_column_is_named_first_and_lies_in_its_dimension(original: Memory, name: str, axis: int) -> None:
    """Every weight has noise; of dimension 5 what one linear reads of it, or writes to it, is far off."""
    random = np.random.default_rng(0)
    noisy = {
        key: value + 1e-3 * random.standard_normal(value.shape) * value.std() for key, value in original.arrays.items()
    }
    np.moveaxis(noisy[name.format(2)], axis, 0)[5] += 1.0
    found = copy_error(original, original.with_arrays(noisy), (5,))
    assert (found.first.layer, found.first.largest) == (
        2,
        name.removeprefix("model.layers.{}.").removesuffix(".weight"),
    )
    (share,) = (one for one in found.shares if one.place == "dimensions")
    assert share.share > 0.99
    assert max(share.random) < 0.01
    assert share.p == pytest.approx(1 / 16)  # 15 other dimensions
    elsewhere = copy_error(original, original.with_arrays(noisy), (6,)).shares[0]
    assert elsewhere.share < 0.01
    assert elsewhere.p > 0.1


def test_noise_alone_names_no_block(original: Memory) -> None:
    random = np.random.default_rng(0)
    noisy = {key: value * (1 + 1e-2 * random.standard_normal(value.shape)) for key, value in original.arrays.items()}
    found = copy_error(original, original.with_arrays(noisy), (5,))
    assert found.first is None
    assert next(found.sentences()).startswith("No block has a large error")
    assert found.median == pytest.approx(1e-2, rel=0.1)


def test_the_error_of_outlier_neurons_is_that_of_their_columns(original: Memory) -> None:
    arrays = dict(original.arrays)
    for part in ("gate_proj", "up_proj"):
        weight = arrays[f"model.layers.1.mlp.{part}.weight"].copy()
        weight[7] *= 100
        arrays[f"model.layers.1.mlp.{part}.weight"] = weight
    large = original.with_arrays(arrays)
    changed = arrays[DOWN.format(1)].copy()
    changed[:, 7] += 3.0
    changed[:, 8] += 4.0
    found = copy_error(large, large.with_arrays({**arrays, DOWN.format(1): changed}), (5,))
    (neurons,) = (one for one in found.shares if one.place == "neurons")
    assert neurons.which == ("1:7",)
    assert neurons.share == pytest.approx(9 / 25, rel=1e-5)
    assert set(np.round(neurons.random, 4)) <= {0.0, round(9 / 25, 4), round(16 / 25, 4)}


def gguf_of(folder: Path, kind: str) -> tuple[Path, Path]:
    """A tiny Llama whose rows are 32 wide, as a folder and as GGUF."""
    sizes = {**FAMILIES["llama"].config, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    model = build(replace(FAMILIES["llama"], config=sizes), "CausalLM")
    model.save_pretrained(folder / "model")
    return folder / "model", llama_cpp.write_gguf(folder / f"{kind}.gguf", model, "llama", quantize=kind)


def test_a_gguf_copy_is_read_in_the_rows_of_its_original(tmp_path: Path) -> None:
    folder, copy = gguf_of(tmp_path, "F32")
    with open_checkpoint(str(folder)) as model, open_checkpoint(str(copy)) as other:
        assert not stores_codes(other)
        assert {one.error for one in copy_error(model, other, (5,)).linears} == {0.0}


def test_the_error_of_q8_0_is_that_of_its_codes(tmp_path: Path) -> None:
    folder, copy = gguf_of(tmp_path, "Q8_0")
    kind = gguf.GGMLQuantizationType.Q8_0
    values = load_file(folder / "model.safetensors")[QUERY.format(1)]
    rounded = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    with open_checkpoint(str(folder)) as model, open_checkpoint(str(copy)) as other:
        assert stores_codes(other)
        assert not stores_codes(model)
        found = copy_error(model, other, (5,))
    (row,) = (one for one in found.linears if one.name == QUERY.format(1))
    # Each row is rounded alone, so that the order of rows, which the converter changes, changes no value.
    assert row.error == pytest.approx(np.linalg.norm(rounded - values) / np.linalg.norm(values), rel=1e-4)
    assert (row.stored, found.stored) == ("Q8_0", {"Q8_0": 21})


def integers(folder: Path, target: Path) -> Path:
    """A copy with a scale per row, as compressed-tensors stores it."""
    tensors, kept = load_file(folder / "model.safetensors"), {}
    for name, values in tensors.items():
        if ".layers." in name and values.ndim == 2:
            scale = np.abs(values).max(1, keepdims=True) / 127
            kept |= {name: np.round(values / scale).astype(np.int8), f"{name}_scale": scale.astype(np.float32)}
        else:
            kept[name] = values
    target.mkdir()
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    config = (folder / "config.json").read_text("utf-8")
    method = '{"quant_method": "compressed-tensors"}'
    (target / "config.json").write_text(config.rstrip()[:-1] + f', "quantization_config": {method}}}', "utf-8")
    return target


def test_a_copy_is_recognized_by_its_codes(tmp_path: Path, run: Any) -> None:
    folder, _ = gguf_of(tmp_path, "F32")
    copy = integers(folder, tmp_path / "int8")
    assert "matrices as I8 × scale" in run("compare", str(folder), str(copy), "--dims", "5")[1]
    values = load_file(folder / "model.safetensors")[DOWN.format(0)]
    scale = np.abs(values).max(1, keepdims=True) / 127
    with open_checkpoint(str(folder)) as model, open_checkpoint(str(copy)) as other:
        (row,) = (one for one in copy_error(model, other, (5,)).linears if one.name == DOWN.format(0))
    wanted = np.linalg.norm(np.round(values / scale) * scale - values) / np.linalg.norm(values)
    assert row.error == pytest.approx(wanted, rel=1e-4)
    for words in ((str(copy), "--no-copy"), (str(folder),)):
        assert "How far the weights moved" in run("compare", str(folder), *words, "--dims", "5")[1]


def test_on_texts_the_original_takes_the_weights_of_its_copy(model_folder: Any, tmp_path: Path) -> None:
    folder = model_folder("llama")
    loaded, other = load_model(folder), load_model(folder)
    with torch.no_grad():
        other.model.get_parameter(DOWN.format(1)).mul_(1.25)
    other.model.save_pretrained(tmp_path)
    texts = Texts("hand", tuple(" ".join(f"w{i + j}" for j in range(8)) for i in range(24)))
    with open_checkpoint(folder) as one, open_checkpoint(str(tmp_path)) as two:
        found = copy_error(one, two, (5,), loaded=loaded, texts=texts)
    (loss,) = found.losses
    states, losses = {}, {}
    for key, each in (("model", loaded), ("copy", other)):
        held, values = [[] for _ in range(3)], []
        for text in texts.texts:
            read = each.tokenizer(text, return_tensors="pt")
            with torch.inference_mode():
                out = each.model(**read, labels=read["input_ids"], output_hidden_states=True)
            values.append(float(out.loss))
            hooked = out.hidden_states[1:3]
            for layer, state in enumerate(hooked):
                held[layer].append(state[0].double())
        states[key], losses[key] = held, values
    assert loss.change.value == pytest.approx(np.mean(losses["copy"]) - np.mean(losses["model"]), abs=1e-5)
    assert loss.change.low <= loss.change.value <= loss.change.high
    for layer in range(2):
        before, after = (torch.cat(states[key][layer][:8]) for key in ("model", "copy"))
        assert found.layers[layer].output == pytest.approx(
            float((after - before).norm() / before.norm()), rel=1e-4, abs=1e-9
        )
        rest = [dim for dim in range(16) if dim != 5]
        part = float((after - before)[:, rest].norm() / before[:, rest].norm())
        assert found.layers[layer].others == pytest.approx(part, rel=1e-4, abs=1e-9)
    assert found.layers[0].output == 0
    with torch.inference_mode():  # the original has its weights back
        assert torch.equal(loaded.model.get_parameter(DOWN.format(1)) * 1.25, other.model.get_parameter(DOWN.format(1)))


def test_what_cannot_be_compared_is_refused_or_said(original: Memory, tmp_path: Path, run: Any) -> None:
    arrays = {name: value for name, value in original.arrays.items() if name != DOWN.format(1)}
    odd = {**arrays, DOWN.format(1): np.ones((16, 25), np.float32)}
    found = copy_error(original, original.with_arrays(odd), (5,))
    assert found.apart == (DOWN.format(1),)
    assert list(found.sentences())[1].startswith("Not compared: 1 matrices")
    folder, _ = gguf_of(tmp_path, "F32")
    tensors = load_file(folder / "model.safetensors")
    tensors[DOWN.format(1).replace("weight", "qweight")] = np.zeros((3, 16), np.int32)
    del tensors[DOWN.format(1)]
    packed = tmp_path / "gptq"
    packed.mkdir()
    save_file(tensors, packed / "model.safetensors", metadata={"format": "pt"})
    (packed / "config.json").write_bytes((folder / "config.json").read_bytes())
    with open_checkpoint(str(folder)) as model, open_checkpoint(str(packed)) as other:
        assert stores_codes(other)
        with pytest.raises(BadInput, match=r"packed by GPTQ or AWQ, such as model\.layers\.1\.mlp\.down_proj"):
            copy_error(model, other)
    assert "packed by GPTQ or AWQ" in run("compare", str(folder), str(packed))[2]
    for words, said in ((["--copy", "--values"], "--copy holds one"), (["--limit", "3"], "--limit belongs to --data")):
        assert said in run("compare", str(folder), str(folder), *words)[2]
