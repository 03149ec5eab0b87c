"""Safetensors: every type against the library, and hostile files of every kind, each one line and exit code 1."""

import json
import re
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from safetensors.torch import save_file as save_torch

from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.formats import SafetensorsCheckpoint, write_header
from outlierlens.errors import BadFile, OutlierlensError

CONFIG = {"model_type": "bert", "num_hidden_layers": 2}


def bert(value: float = 1.0, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """The norms of a two-layer BERT of width 8."""
    names = [f"encoder.layer.{i}.output.LayerNorm.{leaf}" for i in range(2) for leaf in ("weight", "bias")]
    linears = [f"encoder.layer.{i}.output.dense.{leaf}" for i in range(2) for leaf in ("weight", "bias")]
    return {name: np.full(8, value, dtype) for name in names + linears}


def raw(header: Any, body: bytes = b"\0" * 64, *, length: int | None = None) -> bytes:
    """A safetensors file with this header, which need not be sound."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]} | changes


NORM = "encoder.layer.0.output.LayerNorm.weight"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "seven bytes": (b"\1" * 7, "too short"),
    "header of exabytes": (raw({}, length=2**63), "header claims 9,223,372,036,854,775,808 bytes"),
    "header of gigabytes": (raw({}, length=4 * 2**30), "header claims 4,294,967,296 bytes"),
    "header past the end": (raw({"a": entry()}, b"", length=5000), "truncated or not safetensors"),
    "no json": (raw(b"{nonsense"), "not valid JSON"),
    "deep json": (raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "JSON|lacks a sound"),
    "a list": (raw([1]), "holds a list"),
    "not utf-8": (raw(b'{"\xff": 1}'), "not valid JSON"),
    "entry is a number": (raw({NORM: 3}), "lacks a sound dtype, shape or data_offsets"),
    "no offsets": (raw({NORM: {"dtype": "F32", "shape": [8]}}), "lacks a sound"),
    "negative shape": (raw({NORM: entry(shape=[-8])}), "lacks a sound"),
    "boolean shape": (raw({NORM: entry(shape=[True])}), "lacks a sound"),
    "float offsets": (raw({NORM: entry(data_offsets=[0.0, 32.0])}), "lacks a sound"),
    "dtype is a list": (raw({NORM: entry(dtype=["F32"])}), "lacks a sound"),
    "offsets past the end": (raw({NORM: entry(data_offsets=[40, 72])}), "lies outside the file"),
    "offsets of exabytes": (raw({NORM: entry(data_offsets=[0, 2**62])}), "lies outside the file"),
    "offsets backwards": (raw({NORM: entry(data_offsets=[32, 0])}), "lies outside the file"),
    "rank of thousands": (raw({NORM: entry(shape=[1] * 5000)}), "lacks a sound"),
    "shape of terabytes": (raw({NORM: entry(shape=[2**40])}), r"declares F32\[1099511627776\] but holds 32 bytes"),
    "shape that overflows": (raw({NORM: entry(shape=[2**33, 2**33])}), "lacks a sound"),
    "too few bytes": (raw({NORM: entry(data_offsets=[0, 28])}), "but holds 28 bytes"),
    "overlap": (raw({NORM: entry(), "b": entry(data_offsets=[16, 48])}), "overlaps"),
    "integers as text": (raw({NORM: entry(shape=["8"])}), "lacks a sound"),
    "no tensors at all": (raw({}, b""), "no parameter matches"),
    "the same name twice": (
        raw(
            b'{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"a":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}}'
        ),
        "not valid JSON",
    ),
    "the same field twice": (
        raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[16],"data_offsets":[0,64]}}'),
        "not valid JSON",
    ),
    "a hole in front": (
        raw({NORM: entry(data_offsets=[32, 64])}),
        r"bytes \d+ to \d+ belong to no tensor; the file is corrupt",
    ),
    "a hole": (raw({NORM: entry(), "b": entry(data_offsets=[36, 64], shape=[7])}), "belong to no tensor"),
    "bytes behind": (raw({NORM: entry()}, b"\0" * 33), "belong to no tensor"),
    "bytes alone": (raw({}), "belong to no tensor"),
    "metadata that is no text": (
        raw({"__metadata__": {"a": 1}, "a": entry(shape=[16], data_offsets=[0, 64])}),
        "not a map of texts",
    ),
    "beyond JSON": (raw(b'{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64],"x":NaN}}'), "not valid JSON"),
    "an offset of minus zero": (raw(b'{"a":{"dtype":"F32","shape":[16],"data_offsets":[-0,64]}}'), "not valid JSON"),
    "half a character": (raw(b'{"\\ud800":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'), "not valid JSON"),
    "a byte order mark": (
        raw(b'\xef\xbb\xbf{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'),
        "not valid JSON",
    ),
    "too few bytes of a type that is not read": (
        raw({NORM: entry(dtype="F8_E4M3FNUZ")}, b"\0" * 32),
        "but holds 32 bytes",
    ),
    "numbers of thousands of digits": (
        raw(b'{"a":{"dtype":"F32","shape":[%b],"data_offsets":[0,%b]}}' % (b"9" * 4300, b"9" * 4300)),
        "lacks a sound",
    ),
    "unreadable type": (
        raw(
            {
                name: entry(dtype="F8_E4M3FNUZ", shape=[8], data_offsets=[8 * i, 8 * i + 8])
                for i, name in enumerate(bert())
            }
        ),
        "cannot read values of type F8_E4M3FNUZ",
    ),
    "nan": (save(bert(float("nan"))), "is nan at dimension 0"),
    "infinite": (save(bert(float("inf"), np.float16)), "is inf at dimension 0"),
}


def cli(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line, run in this process."""
    from outlierlens.cli import main

    monkeypatch.setattr(sys, "argv", ["outlierlens", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_one_line_and_exit_code_1(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = HOSTILE[name]
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tracemalloc.start()
    try:
        code = cli(["scan", str(tmp_path)], monkeypatch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert peak < 30_000_000


def _index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


INDEXES: dict[str, tuple[Callable[[Path], None], str]] = {
    "parent path": (lambda f: _index(f, {NORM: "../secret.safetensors"}), "is not a plain file name"),
    "absolute path": (lambda f: _index(f, {NORM: "/etc/passwd"}), "is not a plain file name"),
    "drive": (lambda f: _index(f, {NORM: "c:x"}), "is not a plain file name"),
    "dot": (lambda f: _index(f, {NORM: ".."}), "is not a plain file name"),
    "number": (lambda f: _index(f, {NORM: 7}), "is not a plain file name"),
    "missing shard": (lambda f: _index(f, {NORM: "gone.safetensors"}), "named by the index but missing"),
    "no map": (lambda f: _index(f, None), "has no weight_map"),
    "tensor not there": (
        lambda f: (_index(f, {NORM: "a.safetensors"}), (f / "a.safetensors").write_bytes(save({"x": np.zeros(2)})))[0],
        "which does not hold it",
    ),
    "config is a list": (
        lambda f: ((f / "model.safetensors").write_bytes(save(bert())), (f / "config.json").write_text("[]"))[0],
        "holds a list, not an object",
    ),
    "config is huge": (
        lambda f: (
            (f / "model.safetensors").write_bytes(save(bert())),
            (f / "config.json").write_text(" " * 17 * 2**20),
        )[0],
        "too large for a config file",
    ),
    "no weights": (lambda f: None, "holds no weight file"),
    "two files, no index": (
        lambda f: [(f / f"{n}.safetensors").write_bytes(save(bert())) for n in "ab"] and None,
        "2 files match .* and there is no index",
    ),
}


@pytest.mark.parametrize("name", INDEXES)
def test_hostile_folder_is_one_line_and_exit_code_1(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, message = INDEXES[name]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    make(tmp_path)
    assert cli(["scan", str(tmp_path)], monkeypatch) == 1
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_every_type_reads_like_the_library(dtype: torch.dtype, tmp_path: Path) -> None:
    values = (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 10).to(dtype)
    save_torch({"a": values, "b": torch.zeros(0, 3)}, tmp_path / "model.safetensors")
    with open_checkpoint(str(tmp_path / "model.safetensors")) as checkpoint:
        read = dict(checkpoint.read(["a", "b"]))
    assert np.array_equal(read["a"], values.double().numpy())
    assert read["a"].dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert read["b"].shape == (0, 3)


def test_shards_read_like_one_file(tmp_path: Path) -> None:
    tensors = bert(2.0)
    names = sorted(tensors)
    for shard, part in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        (tmp_path / shard).write_bytes(save({name: tensors[name] for name in part}))
    _index(tmp_path, {name: "ab"[i % 2] + ".safetensors" for i, name in enumerate(names)})
    (tmp_path / "whole.safetensors").write_bytes(save(tensors))
    index, single = tmp_path / "model.safetensors.index.json", tmp_path / "whole.safetensors"
    with open_checkpoint(str(index)) as shards, open_checkpoint(str(single)) as whole:
        assert shards.header_digest() == whole.header_digest()
        for name, values in shards.read(names):
            assert np.array_equal(values, tensors[name])


def test_written_header_is_read_back_by_the_library(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "x.safetensors"
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, dtype=np.float16)
    header = write_header({"a": ("F32", (2, 3), a.nbytes), "b": ("F16", (4,), b.nbytes)})
    path.write_bytes(header + a.tobytes() + b.tobytes())
    read = load_file(path)
    assert np.array_equal(read["a"], a)
    assert np.array_equal(read["b"], b)


SOUND = save(bert())


@settings(max_examples=150)
@given(
    cut=st.integers(0, len(SOUND)),
    flips=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4),
)
def test_damaged_files_raise_nothing_but_our_errors(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    content = bytearray(SOUND)
    for position, value in flips:
        content[position] = value
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(content[:cut]) if cut % 3 else bytes(content))
    try:
        checkpoint = SafetensorsCheckpoint(path, name="x", config={})
        for _ in checkpoint.read(checkpoint.tensors):
            pass
    except OutlierlensError:
        pass


def test_an_extra_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(save({"x": np.zeros(2)}))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    with pytest.raises(BadFile, match=r"tensor 'x' also stands in a\.safetensors"):
        SafetensorsCheckpoint(index, name="x", config={})


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if name not in ("no tensors at all", "unreadable type", "nan", "infinite")]
)
def test_what_is_refused_the_library_refuses_too(name: str, tmp_path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[name][0])
    with pytest.raises(BadFile):
        SafetensorsCheckpoint(path, name="m", config={})
    try:
        with safe_open(path, "numpy") as file:
            read = set(file.keys())
    except (SafetensorError, OSError):
        return
    assert name == "rank of thousands", read
