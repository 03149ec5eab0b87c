"""`.bin` files: values, shards and notes are right, and no hostile pickle gets anything done."""

import collections
import json
import os
import pickle
import re
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.torchbin import TorchCheckpoint
from outlierlens.errors import BadFile

torch = pytest.importorskip("torch")

STATE = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a.bias": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "b.weight": torch.tensor([0.5, 65504.0], dtype=torch.float16),
    "b.transposed": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
    "c.wide": torch.tensor([1e300], dtype=torch.float64),
}


def read_all(path: Path) -> dict[str, np.ndarray]:
    with TorchCheckpoint(path, name="m", config={}) as checkpoint:
        return dict(checkpoint.read(checkpoint.tensors))


def refused(path: Path) -> str:
    with pytest.raises(BadFile) as caught:
        TorchCheckpoint(path, name="m", config={})
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("legacy", [False, True])
def test_values_are_widened_and_shapes_kept(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(STATE, path, _use_new_zipfile_serialization=not legacy)
    checkpoint = TorchCheckpoint(path, name="m", config={"model_type": "bert"})
    assert checkpoint.kind == "bin"
    assert checkpoint.config == {"model_type": "bert"}
    assert checkpoint.tensors["a.bias"].dtype == "bfloat16"
    assert checkpoint.tensors["a.weight"].shape == (2, 3)
    assert checkpoint.tensors["a.weight"].nbytes == 24
    values = dict(checkpoint.read(STATE))
    assert values["a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert values["a.bias"].tolist() == [1.5, -2.25]
    assert values["b.weight"].tolist() == [0.5, 65504.0]
    assert values["b.transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert values["c.wide"].tolist() == [1e300]
    assert {name: array.dtype for name, array in values.items() if name != "c.wide"} == dict.fromkeys(
        ("a.weight", "a.bias", "b.weight", "b.transposed"), np.dtype("float32")
    )
    assert values["c.wide"].dtype == np.float64
    assert checkpoint.total_bytes == path.stat().st_size
    assert checkpoint.notes == ()


def test_a_mapped_file_counts_only_the_tensors_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({"small": torch.ones(4), "large": torch.ones(100_000)}, path)
    with TorchCheckpoint(path, name="m", config={}) as checkpoint:
        before = checkpoint.bytes_read
        assert before < 2_000
        dict(checkpoint.read(["small"]))
        assert checkpoint.bytes_read - before == 16


def test_axes_in_front_of_the_last_are_rows_without_reading_all(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    whole = torch.arange(60.0).reshape(3, 4, 5)
    torch.save({"experts": whole, "turned": whole.transpose(0, 1)}, path)
    with TorchCheckpoint(path, name="m", config={}) as checkpoint:
        before = checkpoint.bytes_read
        assert checkpoint.take_rows("experts", (0, 11)).tolist() == whole.reshape(12, 5)[[0, 11]].tolist()
        assert checkpoint.bytes_read - before == 2 * 5 * 4
        for name, value in (("experts", whole), ("turned", whole.transpose(0, 1))):
            rows = np.concatenate(list(checkpoint.read_rows(name, 5)))
            assert rows.tolist() == value.reshape(12, 5).tolist()


def test_values_are_copies_that_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({"w": torch.ones(4)}, path)
    with TorchCheckpoint(path, name="m", config={}) as checkpoint:
        ((_, values),) = checkpoint.read(["w"])
        values[:] = 7
        ((_, again),) = checkpoint.read(["w"])
    path.unlink()
    assert again.tolist() == [1, 1, 1, 1]


def test_a_nested_state_dict_is_unwrapped_and_other_entries_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"epoch": 3, "state_dict": collections.OrderedDict(w=torch.ones(2), step=7)}, path)
    with TorchCheckpoint(path, name="m", config={}) as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
        assert checkpoint.notes == ("model.pt: entries that are not tensors were ignored: step",)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "x-00001.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "x-00002.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x-00001.bin", "b": "x-00002.bin"}}))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert {name: info.shape for name, info in checkpoint.tensors.items()} == {"a": (2,), "b": (3,)}
    index.write_text(json.dumps({"weight_map": {"a": "x-00002.bin", "b": "x-00002.bin"}}))
    with pytest.raises(BadFile, match=r"places 'a' in x-00002\.bin, which does not hold it"):
        TorchCheckpoint(index, name="m", config={})


# --- hostile and broken files ------------------------------------------------------------------------------------


class Payload:
    """Unpickled without care, runs a command."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


@pytest.mark.parametrize("kind", ["zip", "legacy", "bare"])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path: Path, kind: str) -> None:
    path, trace = tmp_path / "evil.bin", tmp_path / "executed"
    content = {"w": torch.ones(2), "x": Payload(f"touch {trace}")}
    if kind == "bare":
        path.write_bytes(pickle.dumps(content["x"]))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    message = refused(path)
    assert "nothing in it was executed" in message
    assert "safetensors" in message
    assert not trace.exists()
    if kind != "bare":
        assert "posix.system" in message or "nt.system" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        ({"w": torch.ones(1).expand(1_000_000, 1_000_000)}, "tensor 'w' claims [1000000, 1000000] but stores 4 bytes"),
        (
            {"w": torch.eye(3).to_sparse()},
            "tensor 'w' is stored as torch._utils._rebuild_sparse_tensor makes it, not as plain",
        ),
        ([torch.ones(2)], "holds a list, not named tensors; save the model's state_dict()"),
        ({"epoch": 3}, "holds no named tensors; save the model's state_dict()"),
        ({5: torch.ones(2)}, "stored under 5, which is not a name; save the model's state_dict()"),
    ],
)
def test_what_is_no_state_of_plain_tensors_is_refused(tmp_path: Path, content: object, expected: str) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    assert path.stat().st_size < 4_000
    assert expected in refused(path)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.bin"
    torch.save({"w": torch.zeros(1_000_000)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    assert path.stat().st_size < 10_000
    assert "is compressed, which PyTorch never does" in refused(path)


def test_a_legacy_storage_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.bin"
    torch.save({"w": torch.ones(1234567)}, path, _use_new_zipfile_serialization=False)
    raw = path.read_bytes()[:1500]
    small, large = b"J" + struct.pack("<i", 1234567), b"\x8a\x07" + (10**15).to_bytes(7, "little")
    assert small in raw
    path.write_bytes(raw.replace(small, large))
    assert "cannot be loaded" in refused(path)


def test_a_directory_that_claims_more_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lies.bin"
    torch.save({"w": torch.zeros(1000)}, path)
    raw = bytearray(path.read_bytes())
    entry = raw.index(b"PK\x01\x02")
    raw[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)  # compressed and plain size of the first entry
    path.write_bytes(raw)
    assert "bytes in a file of" in refused(path)


@pytest.mark.parametrize("cut", [4, 100, 0.5, 0.99])
def test_a_truncated_archive_is_refused(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "cut.bin"
    torch.save(STATE, path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(cut if cut > 1 else len(raw) * cut)])
    assert "truncated?" in refused(path)


@pytest.mark.parametrize("raw", [b"", b"\x80", b"hello, this is no model", b"\x80\x02" + b"(" * 10_000, b"\0" * 64])
def test_garbage_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "garbage.bin"
    path.write_bytes(raw)
    refused(path)


# --- what a file makes the loader do -----------------------------------------------------------------------------


def legacy(body: bytes) -> bytes:
    """A file in the old format whose state is this pickle, without its protocol and end."""
    head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    return b"".join([*head, b"\x80\x02" + body + b".", pickle.dumps([], 2)])


def doubled(n: int) -> bytes:
    """A dict with a tuple as its key that holds itself twice, `n` levels deep: hashing it takes 2 ** n steps."""
    return b"})" + b"q\x01h\x01\x86" * n + b"Ns"


LOADER: dict[str, tuple[bytes, str]] = {
    "a call that allocates": (b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R", r"asks for __builtin__\.bytearray"),
    "a text of gigabytes": (b"X\xff\xff\xff\x7fabc", "cannot be loaded"),
    "a key that is never hashed": (doubled(200), "a tuple of more than 1,000 values"),
    "an empty stack": (b"u", "cannot be loaded"),
    "a memo that is not there": (b"h\x05", "cannot be loaded"),
    "a tensor class that allocates": (b"ctorch\nFloatTensor\nJ\xff\xff\xff\x7f\x85R", "calls|asks for"),
    "an instruction of Python alone": (b"\x82\x01", "an instruction that PyTorch does not write"),
    "a storage of exabytes": (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu\x8a\x08"
        + b"\xff" * 7 + b"\x0fNtQ",
        "cannot be loaded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADER)
@pytest.mark.parametrize("kind", ["zip", "legacy", "bare"])
def test_the_loader_never_sees_what_would_cost_it(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, expected = LOADER[name]
    path = tmp_path / "model.bin"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
    else:
        path.write_bytes(legacy(body) if kind == "legacy" else b"\x80\x02" + body + b".")

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", loaded)
    tracemalloc.start()
    try:
        assert re.search(expected, refused(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


def test_an_archive_whose_entries_share_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({"w": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(archive.infolist()[0].filename, b"another")
    assert "two entries have the same name" in refused(path)
