"""Tables read in blocks of rows: the same values as read whole, from every kind of source."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_files
from hub_models import MODEL, one_file, packed
from hub_server import FakeHub
from outlierlens.checkpoints import Checkpoint, open_checkpoint
from outlierlens.checkpoints.base import TensorInfo, row_spans
from outlierlens.checkpoints.stored import LiveCheckpoint
from outlierlens.errors import BadFile

pytest_plugins = ["hub_fixtures"]

RANDOM = np.random.default_rng(2)
TABLE = RANDOM.normal(size=(11, 6)).astype(np.float32)
CUBE = RANDOM.normal(size=(1, 5, 6)).astype(np.float32)
VECTOR = RANDOM.normal(size=6).astype(np.float32)


def rows_of(checkpoint: Checkpoint, name: str, n_rows: int) -> np.ndarray:
    blocks = list(checkpoint.read_rows(name, n_rows))
    assert all(len(block) == n_rows for block in blocks[:-1])
    assert 0 < len(blocks[-1]) <= n_rows
    return np.concatenate(blocks)


def same_as_whole(checkpoint: Checkpoint, name: str) -> None:
    ((_, values),) = checkpoint.read([name])
    whole = values.reshape(-1, values.shape[-1])
    for n_rows in (1, 4, 11, 1000):
        rows = rows_of(checkpoint, name, n_rows)
        assert rows.dtype == whole.dtype
        np.testing.assert_array_equal(rows, whole)


@pytest.fixture(params=["safetensors", "float16", "float64", "bin", "legacy bin", "live", "onnx"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    import torch

    arrays = {"table": TABLE, "cube": CUBE, "vector": VECTOR}
    kind = request.param
    if kind in ("safetensors", "float16", "float64"):
        dtype = {"safetensors": "float32"}.get(kind, kind)
        (tmp_path / "model.safetensors").write_bytes(packed({k: v.astype(dtype) for k, v in arrays.items()}))
    elif kind == "onnx":
        onnx = pytest.importorskip("onnx")
        made = [onnx.numpy_helper.from_array(values, name) for name, values in arrays.items()]
        graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [], [], initializer=made)
        (tmp_path / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    elif kind == "live":
        module = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.tensor(v)) for name, v in arrays.items()})
        yield LiveCheckpoint(module, name="live", config={})
        return
    else:
        tensors = {name: torch.tensor(values) for name, values in arrays.items()}
        torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=kind == "bin")
    with open_checkpoint(str(tmp_path)) as checkpoint:
        yield checkpoint


def test_blocks_of_rows_are_the_tensor(source: Checkpoint) -> None:
    for name in source.tensors:
        same_as_whole(source, name)


def test_only_the_bytes_of_the_table_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(packed({"table": TABLE, "other": np.zeros(999, np.float32)}))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        before = checkpoint.bytes_read
        blocks = checkpoint.read_rows("table", 3)
        next(blocks)
        assert checkpoint.bytes_read - before == 3 * 6 * 4
        list(blocks)
        assert checkpoint.bytes_read - before == TABLE.nbytes


def test_a_file_that_shrinks_while_its_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed({"table": TABLE}))
    with open_checkpoint(str(path)) as checkpoint:
        path.write_bytes(path.read_bytes()[:-30])
        with pytest.raises(BadFile, match="became shorter while it was read"):
            list(checkpoint.read_rows("table", 4))


def test_bfloat16_rows_are_widened(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    values = torch.tensor(TABLE).bfloat16()
    save_file({"table": values}, tmp_path / "model.safetensors")
    with open_checkpoint(str(tmp_path)) as checkpoint:
        np.testing.assert_array_equal(rows_of(checkpoint, "table", 4), values.float().numpy())


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_quantised_rows_of_a_gguf(tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    quantised = gguf.GGMLQuantizationType[kind]
    table = RANDOM.standard_normal((40, 64), dtype=np.float32)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    stored = table.astype(np.float16) if kind == "F16" else table
    raw = stored if kind.startswith("F") else gguf.quants.quantize(table, quantised)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=None if kind.startswith("F") else quantised)
    gguf_files.write(writer)
    with open_checkpoint(str(path)) as checkpoint:
        same_as_whole(checkpoint, "model.embed_tokens.weight")
        assert checkpoint.notes == (() if kind.startswith("F") else (f"values are dequantized from {kind}",))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(BadFile):
        open_checkpoint(str(path))


def test_a_gguf_s_linear_stored_the_other_way_round_comes_in_hugging_face_s_rows(tmp_path: Path) -> None:
    from gguf_files import floats, gguf_file, number, string

    values = np.arange(12, dtype=np.float32).reshape(3, 4)  # stored [out, in]; GPT-2's Conv1D is [in, out]
    entries = [string("general.architecture", "gpt2"), number("gpt2.block_count", 1)]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file(entries, [floats("blk.0.ffn_down.weight", values)]))
    with open_checkpoint(str(path)) as checkpoint:
        (name,) = checkpoint.tensors
        assert name.endswith("h.0.mlp.c_proj.weight")
        np.testing.assert_array_equal(rows_of(checkpoint, name, 3), values.T)


def test_a_gguf_that_shrinks_while_its_rows_are_read(tmp_path: Path) -> None:
    from gguf_files import floats, gguf_file, llama

    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file(llama(), [floats("token_embd.weight", np.ones((64, 8)))]))
    with open_checkpoint(str(path)) as checkpoint:
        path.write_bytes(path.read_bytes()[:-1024])
        with pytest.raises(BadFile, match="became shorter while it was read"):
            list(checkpoint.read_rows("model.embed_tokens.weight", 16))


def test_a_hub_s_table_comes_in_one_request_a_block(hub: FakeHub) -> None:
    hub.add(MODEL, one_file({"table": TABLE, "far": np.zeros(700_000, np.uint8), "last": VECTOR}))
    with open_checkpoint(MODEL) as checkpoint:
        before = checkpoint.requests
        np.testing.assert_array_equal(rows_of(checkpoint, "table", 4), TABLE)
        assert checkpoint.requests - before == 3
        np.testing.assert_array_equal(rows_of(checkpoint, "last", 4), VECTOR[None])


def test_a_hub_s_type_that_cannot_be_read_is_named(hub: FakeHub) -> None:
    import json

    header = json.dumps({"t": {"dtype": "F8_E4M3FNUZ", "shape": [2, 2], "data_offsets": [0, 4]}}).encode()
    raw = struct.pack("<Q", len(header)) + header + b"1234"
    hub.add(MODEL, {"config.json": b"{}", "model.safetensors": raw})
    with open_checkpoint(MODEL) as checkpoint, pytest.raises(BadFile, match="cannot read values of type F8_E4M3FNUZ"):
        list(checkpoint.read_rows("t", 1))


def test_spans_of_rows() -> None:
    info = TensorInfo("F32", (5, 3), 60)
    assert list(row_spans(info, 2)) == [(0, 24, (2, 3)), (24, 48, (2, 3)), (48, 60, (1, 3))]
    assert list(row_spans(TensorInfo("F32", (0, 3), 0), 2)) == []
