"""Outliers before and after fine-tuning: fates, agreement and movement against planted values and NumPy."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from architectures import FAMILIES, build, config_of
from outlierlens.analyses.compare import CompareOptions, compare
from outlierlens.analyses.scan import scan
from outlierlens.detection.rules import Rule, zscore
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadInput
from outlierlens.models.load import from_objects

NORM = "encoder.layer.{}.output.LayerNorm.{}"


def planted(model: Any, dims: dict[int, float]) -> Any:
    """`model` with scale and bias of every last operation set at `dims`."""
    loaded = from_objects(model)
    with torch.no_grad():
        for layer in range(loaded.stacks[0].n_layers):
            for param in (*loaded.stacks[0].scale[layer], *loaded.stacks[0].bias[layer]):
                for dim, value in dims.items():
                    model.get_parameter(param.name).select(param.axis, dim).fill_(value)
    return model


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Saves a bare BERT with dims 6 and 3 planted, and the same with a head in which 3 has gone and 9 has come."""
    base = planted(build(FAMILIES["bert"]), {6: 40.0})
    tuned = build(FAMILIES["bert"], "SequenceClassification")
    tuned.base_model.load_state_dict(base.state_dict())
    with torch.no_grad():
        planted(base, {3: -40.0})
        planted(tuned, {9: 40.0})
        tuned.bert.embeddings.word_embeddings.weight += 0.5
    base.save_pretrained(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "tuned")
    return tmp_path / "base", tmp_path / "tuned"


def test_fates_and_z_across_a_head_and_a_prefix(pair: Any) -> None:
    base, tuned = pair
    assert all(name.startswith(("bert.", "classifier.")) for name in load_file(tuned / "model.safetensors"))
    found = compare(str(base), [str(tuned)], CompareOptions(scan=ScanOptions(rule=Rule(n_sigma=2.0)), dims=(0, 6)))
    assert {one.dim: one.fate for one in found.changes} == {0: "neither", 3: "went", 6: "stayed", 9: "came"}
    (stream,) = found.streams
    assert (stream.stream, stream.stayed, stream.came, stream.went) == ("model", (6,), (9,), (3,))
    assert stream.jaccard == 1 / 3
    assert stream.turned
    three = next(one for one in found.changes if one.dim == 3 and one.part == "scale")
    before, after = (
        zscore(
            np.stack(
                [load_file(path / "model.safetensors")[prefix + NORM.format(layer, "weight")] for layer in range(3)]
            )
        )
        for path, prefix in ((base, ""), (tuned, "bert."))
    )  # [layer, dim]
    assert three.z_before == pytest.approx(before[:, 3].mean(), rel=1e-6)
    assert three.largest_after == pytest.approx(after[np.abs(after[:, 3]).argmax(), 3], rel=1e-6)
    assert (three.layers_before, three.layers_after, three.n_layers) == (3, 0, 3)
    assert three.moved == pytest.approx(np.abs(after - before)[:, 3].mean(), rel=1e-6)
    assert three.moved_most == pytest.approx(np.abs(after - before)[:, 3].max(), rel=1e-6)
    scale = next(row for row in found.agreement if row.part == "scale")
    assert scale.r == pytest.approx(np.corrcoef(before.ravel(), after.ravel())[0, 1], rel=1e-6)
    named = [0, 3, 6, 9]
    assert scale.r_named == pytest.approx(
        np.corrcoef(before[:, named].ravel(), after[:, named].ravel())[0, 1], rel=1e-6
    )
    others = np.setdiff1d(np.arange(16), named)
    assert scale.moved_named == pytest.approx(np.abs(after - before)[:, named].mean(), rel=1e-6)
    assert scale.moved_others == pytest.approx(np.abs(after - before)[:, others].mean(), rel=1e-6)


@pytest.mark.parametrize("piece", [4_000_000, 7])
def test_movement_of_each_group(pair: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlierlens.analyses.compare_updates.PIECE", piece)
    base, tuned = pair
    found = compare(str(base), [str(tuned)], CompareOptions(scan=ScanOptions(rule=Rule(n_sigma=2.0)), dims=(0,)))
    moved = {one.group: one for one in found.movement}
    values = load_file(base / "model.safetensors")
    tables = [values[name] for name in values if name.endswith("_embeddings.weight")]
    n_words = values["embeddings.word_embeddings.weight"].size
    size = float(np.sqrt(sum(np.square(table, dtype=np.float64).sum() for table in tables)))
    assert moved["embeddings"].n_values == sum(table.size for table in tables)
    assert moved["embeddings"].relative == pytest.approx(0.5 * np.sqrt(n_words) / size, rel=1e-5)
    assert moved["matrices"].rms == moved["other vectors"].rms == 0
    # Dims 3, 6 and 9 in three layers: 0 was only asked for, so it counts among the others, which did not move.
    assert moved["scale, outliers"].n_values == moved["bias, outliers"].n_values == 9
    assert moved["scale, other dimensions"].rms == moved["bias, other dimensions"].rms == 0
    old = values[NORM.format(1, "bias")]
    new = load_file(tuned / "model.safetensors")["bert." + NORM.format(1, "bias")]
    assert new[3] != old[3]
    assert (old[6], new[6], old[3], new[9]) == (40.0, 40.0, -40.0, 40.0)
    total = sum(values[name].size for name in values if np.issubdtype(values[name].dtype, np.floating))
    assert sum(one.n_values for one in moved.values()) == total
    assert found.notes[-1].endswith("0 in the base alone, 2 in this one alone")


def test_names_of_old_checkpoints_are_matched(pair: Any) -> None:
    base, tuned = pair
    new = compare(str(base), [str(tuned)])
    path = base / "model.safetensors"
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in load_file(path).items()
    }
    save_file(renamed, path)
    old = compare(str(base), [str(tuned)])
    assert old.movement == new.movement
    assert old.notes == new.notes


def test_rows_of_the_last_linear_where_blocks_end_in_no_norm(tmp_path: Path) -> None:
    base = planted(build(FAMILIES["llama"]), {5: 9.0})
    base.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        base.layers[0].mlp.down_proj.weight[5] += 1.0
    base.save_pretrained(tmp_path / "tuned")
    found = compare(str(tmp_path / "base"), [str(tmp_path / "tuned")])
    moved = {one.group: one for one in found.movement}
    assert [(one.dim, one.fate, one.part) for one in found.changes] == [(5, "stayed", "scale")]
    n_rows, width = len(base.layers), base.layers[0].mlp.down_proj.weight.shape[1]
    assert moved["scale, outliers"].n_values == n_rows * width
    assert moved["scale, outliers"].rms == pytest.approx(np.sqrt(1 / n_rows), rel=1e-5)
    assert moved["scale, other dimensions"].rms == moved["matrices"].rms == 0
    assert "bias, outliers" not in moved


def test_a_map_that_was_cut_gives_the_same_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(FAMILIES["bert"])
    config.update({"hidden_size": 64})
    for name in ("base", "tuned"):
        model = transformers.AutoModel.from_config(config)
        with torch.no_grad():
            for values in model.parameters():
                values.add_(torch.randn_like(values), alpha=0.2)
        model.save_pretrained(tmp_path / name)
    base, tuned = str(tmp_path / "base"), str(tmp_path / "tuned")
    whole = compare(base, [tuned], CompareOptions(dims=(63,)))
    monkeypatch.setattr("outlierlens.detection.weights.MAP_CELLS", 10)
    cut = compare(base, [tuned], CompareOptions(dims=(63,)))
    assert [row.r for row in cut.agreement] == pytest.approx([row.r for row in whole.agreement], abs=1e-6)
    assert cut.changes[0].moved == pytest.approx(whole.changes[0].moved, abs=1e-6)
    scans = [scan(one) for one in (base, tuned)]
    assert len(scans[0].stacks[0].map_dims) == 32
    alone = compare(*scans, CompareOptions(dims=(63,)))
    kept = sorted(set(scans[0].stacks[0].map_dims) & set(scans[1].stacks[0].map_dims))
    of_named = [row for row in alone.agreement if row.moved_named is not None]
    assert len(of_named) == (2 if 63 in kept else 0)
    assert alone.movement == ()


def test_an_unrelated_model_is_remarked(pair: Any, tmp_path: Path) -> None:
    build(FAMILIES["bert"], seed=5).save_pretrained(tmp_path / "other")
    notes = compare(str(pair[0]), [str(tmp_path / "other")]).notes
    assert [one for one in notes if "was probably not fine-tuned from" in one]
    assert len(compare(str(pair[0]), [str(pair[0])]).notes) == 1


def test_all_weights_of_a_hub_s_model_are_read_only_when_allowed(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlierlens.checkpoints.formats.SafetensorsCheckpoint.requests", 2, raising=False)
    base, tuned = (str(path) for path in pair)
    size = (pair[0] / "model.safetensors").stat().st_size
    one = compare(base, [tuned], CompareOptions(scan=ScanOptions(max_read=1000)))
    assert one.movement == ()
    assert "how far the weights moved is left out" in one.notes[-1]
    assert "--model-args max-read=1MB" in one.notes[-1]
    assert compare(base, [tuned], CompareOptions(scan=ScanOptions(max_read=2 * size))).movement


def test_models_that_cannot_be_its_descendants(pair: Any, tmp_path: Path) -> None:
    base = str(pair[0])
    config = FAMILIES["bert"]
    build(FAMILIES["distilbert"]).save_pretrained(tmp_path / "type")
    with pytest.raises(BadInput, match=r"is of type 'bert', .* of type 'distilbert'; give checkpoints of one model"):
        compare(base, [str(tmp_path / "type")])
    for change in ({"num_hidden_layers": 2}, {"hidden_size": 32}):
        other = config_of(config)
        other.update(change)
        transformers.AutoModel.from_config(other).save_pretrained(tmp_path / "other")
        with pytest.raises(
            BadInput, match=r"has other streams \(model 3 × 16\) than .* \(model (2 × 16|3 × 32); layers"
        ):
            compare(base, [str(tmp_path / "other")])


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Saves a tiny family with one dimension planted, or none."""

    def make(family: str = "bert", dim: int | None = None, folder: str = "model") -> Path:
        planted(build(FAMILIES[family]), {} if dim is None else {dim: 40.0}).save_pretrained(tmp_path / folder)
        return tmp_path / folder

    return make


def test_what_stayed_came_and_went_of_two_scans(saved: Any) -> None:
    one, two = scan(str(saved(dim=6, folder="one"))), scan(str(saved(dim=7, folder="two")))
    same = compare(one, one)
    assert {(c.dim, c.fate) for c in same.changes} == {(6, "stayed")}
    assert [(s.jaccard, s.turned) for s in same.streams] == [(1.0, False)]
    moved = compare(one, two)
    assert {(c.dim, c.fate) for c in moved.changes} == {(6, "went"), (7, "came")}
    assert [(s.jaccard, s.turned) for s in moved.streams] == [(0.0, True)]
    assert "the basis may have turned" in next(said for said in moved.sentences() if "Jaccard" in said)
    with pytest.raises(BadInput, match="different rules"):
        compare(one, scan(str(saved(dim=6, folder="x")), ScanOptions(rule=Rule(n_sigma=2))))


def test_sites_of_one_stack_are_compared_each_on_its_own(saved: Any) -> None:
    paths = []
    for folder, module in (("one", "input_layernorm"), ("two", "post_attention_layernorm")):
        path = saved("llama", folder=folder)
        tensors = load_file(path / "model.safetensors")
        for name in tensors:
            if name.endswith(f"{module}.weight"):
                tensors[name][9] = 50
        save_file(tensors, path / "model.safetensors")
        paths.append(str(path))
    found = compare(*(scan(path, ScanOptions(view="reading")) for path in paths))
    assert [(c.site, c.dim, c.fate) for c in found.changes] == [
        ("input_layernorm", 9, "went"),
        ("post_attention_layernorm", 9, "came"),
    ]
    assert [one.jaccard for one in found.streams] == [0.0, 0.0]


def test_no_heavy_library_is_imported(pair: Any) -> None:
    code = (
        "import sys; from outlierlens.analyses.compare import compare\n"
        "compare(sys.argv[1], sys.argv[2:]).chart()\n"
        "print([m for m in ('torch', 'transformers', 'scipy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, pair)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
