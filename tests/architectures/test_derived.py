"""Types without a row by hand: taken apart when they are first met, kept, and read as the files of the hub name them."""

import random
from pathlib import Path
from typing import Any

import every_type
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from architectures import TEXT
from outlierlens import scan
from outlierlens.architectures import rows, stacks_of
from outlierlens.architectures.experiment.derive import derive
from outlierlens.architectures.rows import fits, read_stacks, structure
from outlierlens.errors import BadFile, UnknownArchitecture

# The first block is dense, the others have experts beside a shared one.
EXPERTS = {
    "model_type": "glm4_moe", **TEXT, "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
DIM = 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of mixed blocks with one dimension planted, as transformers saves it; nothing of its type is kept yet."""
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rows, "packaged", dict)
    torch.manual_seed(0)
    values = dict(EXPERTS)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model: Any = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for layer in model.model.layers:
            writers = [layer.mlp.down_proj.weight] if hasattr(layer.mlp, "down_proj") else [
                layer.mlp.experts.down_proj, layer.mlp.shared_experts.down_proj.weight
            ]  # fmt: skip
            for weight in writers:
                weight.select(-2, DIM).mul_(30)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_type_without_a_row_is_scanned_from_the_files_of_the_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = load_file(folder / "model.safetensors")
    assert "model.layers.1.mlp.experts.3.down_proj.weight" in names  # one by one, while the model packs them
    found = scan(str(folder))
    assert {one.dim for one in found.outliers} == {DIM}
    assert any("derived by experiment" in note for stack in found.stacks for note in stack.notes)
    # The scale of a block is what its last linears hold of a dimension: those of the experts and of the shared one.
    rows = [names["model.layers.0.mlp.down_proj.weight"]]
    scale = torch.cat(rows, 1).norm(dim=1).numpy()
    z = (scale - scale.mean()) / scale.std()
    assert abs(z[DIM]) > 3
    assert int(np.argmax(np.abs(z))) == DIM
    # What was found is kept: the experiment is not made again.
    monkeypatch.setattr("outlierlens.architectures.experiment.derive.derive", None)
    assert scan(str(folder)).outliers == found.outliers


def test_what_is_kept_and_cannot_be_read_is_derived_again(folder: Path) -> None:
    first = stacks_of(EXPERTS)
    (kept,) = (folder.parent / "cache" / "rows").glob("*.json")
    kept.write_text(kept.read_text()[:50])
    assert stacks_of(EXPERTS) == first


def test_a_block_of_no_known_kind_is_refused(folder: Path) -> None:
    names = load_file(folder / "model.safetensors")
    del names["model.layers.1.mlp.shared_experts.down_proj.weight"]
    save_file(names, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        BadFile, match=r"layers\.1 is not a kind of block .* differs from the nearest in mlp\.shared_experts"
    ):
        scan(str(folder))


def test_a_row_serves_configs_that_differ_in_sizes_alone() -> None:
    inner = {"norm": "rms", "experts": 0}
    own = structure({"hidden_size": 64, "parallel": False, "kinds": ["full", "linear"], "inner": inner})
    assert own == {
        "hidden_size": True,
        "parallel": False,
        "kinds": ["full", "linear"],
        "inner": {"norm": "rms", "experts": False},
    }
    assert fits(own, {"hidden_size": 4096, "kinds": ["linear"], "vocab_size": 9, "torch_dtype": "bfloat16"})
    assert fits(own, {"parallel": None, "inner": {"norm": "rms"}, "of_no_such_type": True})
    for other in (
        {"parallel": True},
        {"kinds": ["sliding"]},
        {"inner": {"norm": "layer"}},
        {"inner": {"experts": 4}},
    ):
        assert not fits(own, other)


def test_a_type_that_transformers_lacks_is_refused_with_what_helps() -> None:
    with pytest.raises(
        UnknownArchitecture, match=r"has no model_type 'qwen4'.*pass --model-args arch=row\.toml; near: qwen"
    ):
        stacks_of({"model_type": "qwen4"})


# A row is one of the transformers that it was derived with.
DRAWN = random.Random(0).sample(sorted(rows.packaged()), 30) if rows.version() == transformers.__version__ else []


@pytest.mark.parametrize("model_type", DRAWN)
def test_a_row_of_the_package_is_what_the_experiment_finds(model_type: str) -> None:
    found = derive(every_type.config_of(model_type))
    row = rows.packaged()[model_type][0]  # of its default; others are of common variants
    assert found.row == row
    assert fits(row["structure"], every_type.config_of(model_type))


def test_the_package_has_rows_of_most_types() -> None:
    kept = rows.packaged()
    assert len(kept) > 300
    every = [(model_type, row) for model_type, several in kept.items() for row in several]
    assert all(read_stacks(row, model_type) for model_type, row in every)
    named = {stack["name"] for _, row in every for stack in row["stacks"] if "name" in stack}
    assert {"text", "vision", "encoder", "decoder"} <= named
