"""`verify --restore`: recorded values go back bit for bit into a new copy, and what is not recorded is told."""

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from memory_checkpoint import of_model
from outlierlens.checkpoints import open_checkpoint
from outlierlens.checkpoints.stored import Weights
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.integrity.fingerprint import fingerprint
from outlierlens.experiments.integrity.options import FingerprintOptions
from outlierlens.experiments.integrity.restore import restore
from outlierlens.experiments.integrity.result import Fingerprint, Verification
from outlierlens.experiments.integrity.sensitive import bound_stacks, list_sensitive
from outlierlens.experiments.integrity.verify import verify
from outlierlens.experiments.integrity.view import sections

NORM = "bert.encoder.layer.0.output.LayerNorm.weight"
ROW = "bert.encoder.layer.1.output.dense.weight"  # rows 3 and 5 are recorded
QUERY = "bert.encoder.layer.0.attention.self.query.weight"  # nothing of it is
DIMS = (3, 5)


def write(folder: Path, dtype: str = "float32", n_shards: int = 1) -> Path:
    """A tiny BERT as a folder of safetensors with a file beside the weights and one below."""
    model = of_model("bert", "MaskedLM")
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    tensors = {name: torch.tensor(value).to(getattr(torch, dtype)) for name, value in model.arrays.items()}
    if n_shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    files = [f"model-{i + 1:05}-of-{n_shards:05}.safetensors" for i in range(n_shards)]
    weight_map = {name: files[i % n_shards] for i, name in enumerate(tensors)}
    for file in files:
        save_file({name: value for name, value in tensors.items() if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def record(folder: Path, *, deep: bool = False) -> Fingerprint:
    return fingerprint(str(folder), FingerprintOptions(dims=DIMS, deep=deep))


def flip(folder: Path, name: str, places: "list[int] | np.ndarray", bits: "list[int] | np.ndarray") -> None:
    """Turn bit `bits[i]` of value `places[i]` of a stored tensor over."""
    with open_checkpoint(str(folder)) as checkpoint:
        assert isinstance(checkpoint, Weights)
        path, start = checkpoint.place(name)
        info = checkpoint.tensors[name]
    raw = np.memmap(path, dtype=np.uint8, mode="r+")
    for place, bit in zip(places, bits, strict=True):
        raw[start + place * (info.nbytes // info.size) + bit // 8] ^= 1 << (bit % 8)
    raw.flush()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def said(found: Verification) -> str:
    return " ".join(next(iter(sections(found))).sentences)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("dtype", "n_shards"), [("float32", 1), ("float16", 3), ("bfloat16", 1), ("float64", 2)])
def test_flipped_bits_in_every_recorded_tensor(tmp_path: Path, dtype: str, n_shards: int, deep: bool) -> None:
    """A few bits of every recorded entry are turned over; the new folder holds the original's files, byte for byte."""
    whole = write(tmp_path / "whole", dtype, n_shards)
    baseline = record(whole, deep=deep)
    bad = tmp_path / "bad"
    shutil.copytree(whole, bad)
    random = np.random.default_rng(n_shards + deep)
    turned: set[tuple[str, int]] = set()
    with open_checkpoint(str(whole)) as checkpoint:
        dims = {one.name: one for one in baseline.streams}
        entries = list_sensitive(checkpoint, bound_stacks(checkpoint), dims, deep=deep)  # type: ignore[arg-type]
        width = {name: 8 * info.nbytes // info.size for name, info in checkpoint.tensors.items()}
    for entry in entries:
        for _ in range(3):
            at = entry.index(int(random.integers(entry.size[0])), int(random.integers(entry.size[1])))
            place = int(np.ravel_multi_index(at, entry.shape))
            if (entry.stored, place) not in turned:
                flip(bad, entry.stored, [place], [int(random.integers(width[entry.stored]))])
                turned.add((entry.stored, place))
    before = files(bad)
    found = restore(str(bad), baseline, tmp_path / "mended")
    assert found.matches
    assert found.restored is not None
    assert (found.restored.n_values, found.restored.n_rounded) == (len(turned), 0)
    assert found.restored.n_tensors == len({name for name, _ in turned})
    assert files(tmp_path / "mended") == files(whole)
    assert files(bad) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_signs_of_zero_and_nan(tmp_path: Path) -> None:
    """-0 equals 0 for `verify`, and still the recorded bit comes back; so does a value that became NaN."""
    whole = write(tmp_path / "whole")
    flat = load_file(whole / "model.safetensors")
    flat[NORM][:2] = torch.tensor([0.0, -0.0])
    save_file(flat, whole / "model.safetensors", {"format": "pt"})
    baseline = record(whole)
    bad = tmp_path / "bad"
    shutil.copytree(whole, bad)
    flip(bad, NORM, [0, 1], [31, 31])
    flat = load_file(bad / "model.safetensors")
    flat[NORM][7] = float("nan")
    save_file(flat, bad / "model.safetensors", {"format": "pt"})
    found = restore(str(bad), baseline, tmp_path / "mended")
    assert found.restored is not None
    assert found.restored.n_values == 3
    assert files(tmp_path / "mended") == files(whole)


def test_damage_elsewhere_is_told(tmp_path: Path) -> None:
    """A deep fingerprint sees that a query moved and cannot put it back; a plain one says what it does not know."""
    whole = write(tmp_path / "whole")
    plain, deep = record(whole), record(whole, deep=True)
    bad = tmp_path / "bad"
    shutil.copytree(whole, bad)
    flip(bad, QUERY, [9], [30])
    with pytest.raises(BadInput, match=r"matches its fingerprint, so there is nothing to restore"):
        restore(str(bad), plain, tmp_path / "a")
    with pytest.raises(
        BadInput, match=r"1 whole tensors differ, and nothing of that is recorded value by value; fetch"
    ):
        restore(str(bad), deep, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    flip(bad, ROW, [3 * 24 + 1], [30])
    found = restore(str(bad), deep, tmp_path / "b")
    assert found.failed
    assert [one.name for one in found.tensors if one.fails] == [QUERY.removeprefix("bert.")]
    assert "Not restored, for what is recorded does not hold it: encoder.layer.0.attention.self.query.weight" in said(
        found
    )
    found = restore(str(bad), plain, tmp_path / "c")
    assert found.matches
    n_all = sum(value.numel() for value in load_file(whole / "model.safetensors").values())
    # 3 layers × (2 norms × 2 × 16 + 2 biases of 16 + 2 rows of 16 and of 24), 2 further norms, 4 rows of positions
    n_recorded = 3 * (2 * 2 * 16 + 2 * 16 + 2 * (16 + 24)) + 2 * 2 * 16 + 4 * 16
    assert found.restored is not None
    assert found.restored.n_unrecorded == n_all - n_recorded
    assert f"{n_all - n_recorded:,} values were not recorded and are left as they were" in said(found)
    changed, right = (load_file(folder / "model.safetensors") for folder in (tmp_path / "c", whole))
    assert [name for name in right if not torch.equal(right[name], changed[name])] == [QUERY]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_copy_in_another_format(tmp_path: Path, dtype: str) -> None:
    """Of a rounded copy what moved is rounded anew, as a conversion would; the rest keeps its bits."""
    whole, rounded = write(tmp_path / "whole"), write(tmp_path / "rounded", dtype)
    bad = tmp_path / "bad"
    shutil.copytree(rounded, bad)
    flip(bad, ROW, [5 * 24 + 2], [14])
    found = restore(str(bad), record(whole), tmp_path / "mended")
    assert found.matches
    assert found.restored is not None
    assert (found.restored.n_values, found.restored.n_rounded) == (1, 1)
    assert "1 of them rounded to the format of the copy" in said(found)
    assert files(tmp_path / "mended") == files(rounded)


def test_one_file(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole")
    baseline = record(whole)
    bad = tmp_path / "bad.safetensors"
    shutil.copyfile(whole / "model.safetensors", bad)
    shutil.copytree(whole, tmp_path / "there")
    flip(bad, NORM, [3], [31])
    mended = tmp_path / "new" / "mended.safetensors"
    assert restore(str(bad), baseline, mended).matches
    assert mended.read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [path.name for path in mended.parent.iterdir()] == ["mended.safetensors"]


def test_command(tmp_path: Path, run: Any) -> None:
    whole = write(tmp_path / "whole")
    bad, new, baseline = (str(tmp_path / name) for name in ("bad", "mended", "f.json"))
    shutil.copytree(whole, bad)
    flip(Path(bad), NORM, [3], [31])
    assert run("fingerprint", str(whole), "-o", baseline, "--dims", "3,5")[0] == 0
    status, out, _ = run("verify", bad, "--baseline", baseline, "--restore", new)
    assert status == 0
    assert out.startswith(f"Values restored in a copy of {bad}: 1, in encoder.layer.0.output.LayerNorm.weight.")
    assert f"{new} matches its fingerprint" in out
    status, out, told = run("verify", bad, "--baseline", baseline, "--restore", new)
    assert (status, out) == (2, "")
    assert "exists, and a restored copy is always a new one; name another file or folder" in told
    status, out, _ = run("verify", bad, "--baseline", baseline, "--restore", f"{new}2", "--json")
    assert json.loads(out)["restored"]["n_values"] == 1


Case = namedtuple("Case", "make said")
REFUSED = {
    "the folder is there": Case(lambda bad, new: new.mkdir(), "exists, and a restored copy is always a new one"),
    "a link": Case(lambda bad, new: new.symlink_to(bad), "exists, and a restored copy is always a new one"),
    "a pipe in the folder": Case(lambda bad, new: os.mkfifo(bad / "pipe"), "cannot be copied"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(tmp_path: Path, case: Case) -> None:
    bad, new = write(tmp_path / "bad"), tmp_path / "new"
    baseline = record(bad)
    flip(bad, NORM, [3], [31])
    case.make(bad, new)
    with pytest.raises((BadInput, BadFile), match=case.said) as error:
        restore(str(bad), baseline, new)
    assert "\n" not in str(error.value)
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_a_folder_in_itself(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad")
    baseline = record(bad)
    flip(bad, NORM, [3], [31])
    with pytest.raises(BadInput, match="itself; name a folder beside it"):
        restore(str(bad), baseline, bad / "new")


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = write(tmp_path / "bad")
    baseline = record(bad)
    flip(bad, NORM, [3], [31])
    monkeypatch.setattr(shutil, "disk_usage", lambda place: namedtuple("Usage", "free")(1000))
    with pytest.raises(BadInput, match=r"0.00 GB are free there; name a place on another disk"):
        restore(str(bad), baseline, tmp_path / "new")


def pickled(folder: Path) -> Path:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def onnx_file(folder: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    arrays = load_file(folder / "model.safetensors")
    stored = [onnx.numpy_helper.from_array(value.numpy(), name) for name, value in arrays.items()]
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="/relu")
    graph = onnx.helper.make_graph([node], "g", [], [], initializer=stored)
    (folder / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize("make", [pickled, onnx_file])
def test_formats_that_are_not_written(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    whole = write(tmp_path / "whole")
    path = make(whole)
    with pytest.raises(
        BadInput, match="is read, not written; restore the safetensors that it was made of, and convert"
    ):
        restore(str(path), record(whole), tmp_path / "new")


def test_a_damaged_fingerprint_is_not_believed(tmp_path: Path) -> None:
    """One that claims other sizes is refused before a byte is written, from Python too."""
    whole = write(tmp_path / "whole")
    baseline = record(whole)
    (first, *others) = baseline.entries
    for wrong in ({"columns": (10**9,)}, {"values": first.values[:-4]}, {"rows": (-1,)}):
        with pytest.raises(BadFile, match="is damaged"):
            restore(str(whole), replace(baseline, entries=(replace(first, **wrong), *others)), tmp_path / "new")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_verify_alone_restores_nothing(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole")
    assert verify(str(whole), record(whole)).restored is None
