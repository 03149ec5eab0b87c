"""The table of formats: a row and its opener are all that a new format needs to be found, opened, named and run."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from architectures import FAMILIES, build
from conftest import Words
from hub_server import COMMIT
from outlierlens.checkpoints import formats, open_checkpoint, weight_file
from outlierlens.checkpoints.base import Checkpoint, TensorInfo
from outlierlens.checkpoints.formats import Format
from outlierlens.cli.doctor import use_of
from outlierlens.errors import BadFile, Offline, UnknownModel
from outlierlens.models.load import LoadOptions, fingerprint, load_model


class Toy(Checkpoint):
    """Named arrays in numpy's own archive."""

    kind = "toy"

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        self.name, self.config = name, config
        self.total_bytes = self.bytes_read = path.stat().st_size
        with path.open("rb") as file:
            self._values = dict(np.load(file))
        self.tensors = {name: TensorInfo(str(v.dtype), v.shape, v.nbytes) for name, v in self._values.items()}

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._values[name]


ROW = Format("toy", (".npzw", ".toy"), f"{__name__}:Toy", patterns=("*.npzw",), extra="toys")


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, ROW))


def toy(path: Path, **arrays: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


@pytest.mark.parametrize("name", ["model.npzw", "deep/model.npzw", "any.toy"])
def test_a_file_and_its_folder_open_with_the_config_that_belongs_to_them(name: str, tmp_path: Path) -> None:
    path = toy(tmp_path / name, a=np.arange(3.0))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for model in (path, path.parent):
        with open_checkpoint(str(model)) as checkpoint:
            assert (checkpoint.kind, checkpoint.config) == ("toy", {"model_type": "bert"})
            assert dict(checkpoint.read(["a"]))["a"].tolist() == [0, 1, 2]


def test_what_transformers_loads_and_what_is_surely_a_model_come_first(tmp_path: Path) -> None:
    for name in ("z.toy", "x.pt", "onnx/x.onnx", "x.gguf", "pytorch_model.bin", "a.safetensors", "model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
        if name not in ("z.toy", "x.pt"):
            assert weight_file(tmp_path) == tmp_path / name  # before all those above
    for name in ("onnx/x.onnx", "x.gguf", "pytorch_model.bin", "a.safetensors", "model.safetensors"):
        (tmp_path / name).unlink()
    assert weight_file(tmp_path) == tmp_path / "x.pt"
    assert weight_file(toy(tmp_path / "y.npzw").parent) == tmp_path / "y.npzw"


def test_its_first_bytes_tell_a_format_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy(tmp_path / "model.data", a=np.ones(2))
    with pytest.raises(BadFile, match="unknown kind of weight file"):
        open_checkpoint(str(path))
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS[:-1], Format("toy", (), ROW.opener, magic=b"PK\3\4")))
    with open_checkpoint(str(path)) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_sentences_name_it(tmp_path: Path) -> None:
    known = ".safetensors, .bin, .pt, .pth, .ckpt, .gguf, .onnx, .npz, .msgpack, .npzw, .toy"
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadFile, match=f"known endings: {known}$"):
        open_checkpoint(str(tmp_path / "notes.txt"))
    with pytest.raises(BadFile, match=rf"holds no weight file \({known}\)"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(UnknownModel, match=r"gone\.npzw: no such file or directory"):
        open_checkpoint("gone.npzw")
    assert use_of("toys") == "toy files"


def test_it_is_found_in_the_hub_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Offline):
        open_checkpoint("org/model", revision=COMMIT, offline=True)
    toy(tmp_path / "models--org--model" / "snapshots" / COMMIT / "model.npzw", a=np.ones(2))
    with open_checkpoint("org/model", revision=COMMIT, offline=True) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_a_model_in_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    model = build(FAMILIES["bert"], "MaskedLM")
    model.save_pretrained(tmp_path / "plain")
    Words.build().save_pretrained(tmp_path / "toy")
    shutil.copy(tmp_path / "plain" / "config.json", tmp_path / "toy")
    toy(tmp_path / "toy" / "model.npzw", **{name: values.numpy() for name, values in model.state_dict().items()})
    loaded = load_model(str(tmp_path / "toy"), LoadOptions(notice=lambda _: None))
    assert fingerprint(loaded.model) == fingerprint(model)
