"""What an atlas knows of a model: lineage from norms against permutations, the packaged rows, and answers without reading."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outlierlens.analyses import atlas_lookup
from outlierlens.analyses.atlas_lookup import ATLAS, Lookup, LookupOptions, costs, likeness, lookup, relatives
from outlierlens.analyses.atlas_rows import AtlasRow, read_rows, write_part
from outlierlens.analyses.scan import scan
from outlierlens.checkpoints import samples
from outlierlens.results.document import from_json


def a_row(name: str, seed: int, layers: int = 4, width: int = 64) -> AtlasRow:
    """Norms of a model: what a dimension has in one layer it has nearly in the next, and two stand out."""
    random = np.random.default_rng(seed)
    base = random.normal(0, 0.1, (2, width))
    base[:, random.choice(width, 2, replace=False)] += 3
    scale, bias = (base[:, None] + random.normal(0, 0.05, (2, layers, width))).astype(np.float16)
    return AtlasRow(name, "r", "model", width=width, layers=layers, scale=1 + scale, bias=bias)


def permuted(row: AtlasRow, seed: int) -> AtlasRow:
    order = np.random.default_rng(seed).permutation(row.width)
    return replace(row, scale=row.scale[:, order], bias=row.bias[:, order])


def test_the_statistic_is_that_of_permuted_dimensions() -> None:
    """z over 4,000 permutations has the mean 0 and the variance 1 that the closed form says, though layers are alike."""
    one, other = a_row("a", 1), a_row("b", 2)
    found = [likeness(one, permuted(other, seed)) for seed in range(4000)]
    z = np.array([each.z for each in found if each])
    assert abs(z.mean()) < 4 / np.sqrt(len(z))
    assert abs(z.std() - 1) < 0.05
    p = np.array([each.p for each in found if each])
    for level in (0.01, 0.05, 0.5):
        assert abs((p <= level).mean() - level) < 4 * np.sqrt(level * (1 - level) / len(p))


def noisy(values: np.ndarray, size: float) -> np.ndarray:
    return (values + np.random.default_rng(9).normal(0, size, values.shape)).astype(np.float16)


def child_of(row: AtlasRow, how: str) -> AtlasRow:
    scale, bias = row.scale, row.bias
    if how == "tuned":
        return replace(row, scale=noisy(scale, 0.03), bias=noisy(bias, 0.03))
    if how == "every second layer":
        return replace(row, scale=noisy(scale[::2], 0.02), bias=noisy(bias[::2], 0.02), layers=2)
    if how == "rounded":
        return replace(row, scale=np.round(scale * 16) / 16, bias=np.round(bias * 16) / 16)
    if how == "outliers pruned":
        return replace(row, scale=np.where(abs(scale - 1) > 2, 1, scale), bias=np.where(abs(bias) > 2, 0, bias))
    other = a_row("second parent", 77)
    return replace(row, scale=0.6 * scale + 0.4 * other.scale, bias=0.6 * bias + 0.4 * other.bias)


@pytest.mark.parametrize("how", ["tuned", "every second layer", "rounded", "outliers pruned", "merged"])
def test_children_name_their_parent_and_strangers_none(how: str) -> None:
    others = [a_row(f"model {seed}", seed) for seed in range(30)]
    child = child_of(others[7], how)
    found = relatives(child, others)
    assert found[0].model == "model 7"
    assert found[0].p_holm < 1e-3
    assert [one.model for one in found if one.p_holm < 1e-3] == ["model 7"]
    stranger = relatives(permuted(child, 3), others)
    assert min(one.p_holm for one in stranger) > 1e-3


def test_what_cannot_be_compared_is_left_out() -> None:
    one = a_row("a", 1)
    assert likeness(one, a_row("wider", 2, width=65)) is None
    assert likeness(one, AtlasRow("failed", width=64, layers=4)) is None
    flat = replace(one, scale=np.ones_like(one.scale), bias=np.zeros_like(one.bias))
    assert likeness(one, flat) is None
    assert likeness(one, replace(one, scale=np.full_like(one.scale, np.inf))) is None


def test_the_packaged_atlas() -> None:
    """Twenty real models of ten families and more, each with licence and origin, in less than a megabyte."""
    rows = list(read_rows(ATLAS))
    assert ATLAS.stat().st_size < 1_000_000
    assert len({row.model for row in rows}) >= 20
    assert len({row.family for row in rows}) >= 10
    assert all(row.license and row.origin and row.failure is None for row in rows)
    for row in rows:
        assert row.scale.shape == (row.layers, row.width)
        for one in row.outliers:
            assert len(one.layers) >= row.layers / 2
            if row.norm_site == "read":  # found in linears, which an atlas does not keep
                continue
            scale = row.scale.astype(float)  # as the rule says, of vectors in half precision
            z = (scale[:, one.dim] - scale.mean(axis=1)) / scale.std(axis=1)
            assert max(z, key=abs) == pytest.approx(one.z_scale, rel=0.01, abs=0.02)
    for cost in costs():
        row = next(row for row in rows if row.model == cost.model)
        assert cost.n_texts > 0
        assert 0 < cost.p <= 1
        assert max(cost.dims) < row.width


def test_names_are_answered_without_reading_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr(atlas_lookup, "open_checkpoint", closed)
    found = lookup("mini-planted")
    assert found.known
    assert found.streams[0].dims == (8, 24, 40, 56, 72, 88, 104, 120)
    assert found.streams[0].parent == "mini-bert"  # trained from the same random values
    assert lookup("sentence-transformers/all-mpnet-base-v2").provenance.model == "mpnet-base"


def test_a_file_names_its_parent_from_its_norms(tmp_path: Path, run: Any) -> None:
    """A copy of mini-planted, tuned a little and its matrices emptied: only norms are read."""
    folder = Path(samples.directory("mini-planted"))
    tensors = load_file(folder / "model.safetensors")
    random = np.random.default_rng(0)
    for name, values in tensors.items():
        tuned = values + random.normal(0, 0.01, values.shape).astype(values.dtype)
        tensors[name] = tuned if values.ndim == 1 else np.zeros_like(values)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    code, out, err = run("atlas", "lookup", str(tmp_path), "--json")
    assert code == 0, err
    found = from_json(out)
    assert isinstance(found, Lookup)
    assert found.streams[0].parent == "mini-planted"
    assert not found.relatives[0].equal


def test_an_atlas_of_ones_own(tmp_path: Path) -> None:
    rows = [replace(row, model="renamed") for row in read_rows(ATLAS) if row.model == "minilm-l6"]
    write_part(tmp_path / "part-000001.parquet", rows)
    found = lookup("renamed", LookupOptions(atlas=tmp_path))
    assert found.known
    assert found.n_models == 1
    assert lookup("mini-bert", LookupOptions(atlas=tmp_path)).streams[0].parent is None


@pytest.mark.real
@pytest.mark.parametrize("name", ["mini-bert", "mini-planted", "minilm-l6", "mpnet-base"])
def test_rows_against_plain_numpy(name: str, sample: Any) -> None:
    """Vectors and outliers of the packaged rows from the file itself, without the package's readers or rules."""
    row = next(row for row in read_rows(ATLAS) if row.model == sample(name))
    tensors = load_file(Path(samples.directory(name)) / "model.safetensors")
    passing = []
    for kind, stored in (("weight", row.scale), ("bias", row.bias)):
        values = np.stack(
            [
                next(
                    tensors[full]
                    for full in tensors
                    if full.endswith(f"layer.{layer}.output.LayerNorm.{kind}") and "attention" not in full
                )
                for layer in range(row.layers)
            ]
        ).astype(np.float64)
        assert np.array_equal(values.astype(np.float16), stored)
        z = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
        passing.append((abs(z) >= 3).sum(axis=0) >= row.layers / 2)
    assert sorted(one.dim for one in row.outliers) == np.flatnonzero(passing[0] & passing[1]).tolist()


def test_the_page_of_the_atlas_is_what_its_script_says() -> None:
    script = Path(__file__).parents[2] / "scripts/atlas_science.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    page = (script.parents[1] / "benchmarks" / "README.md").read_text("utf-8")
    assert f"<!-- python scripts/atlas_science.py -->\n{made.stdout}<!-- end -->" in page


@pytest.mark.parametrize("name", ["mini-planted", "smollm2-135m"])
def test_the_packaged_atlas_names_what_scan_names(name: str, sample: Any) -> None:
    name = sample(name)
    named = {stack.stack: set(stack.dims) for stack in scan(name).stacks}
    assert {stream.stack: set(stream.dims) for stream in lookup(name).streams} == named
