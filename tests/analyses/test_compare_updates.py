"""Federated updates: shares by hand, planted deltas found, honest noise passed, clients held against each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures import FAMILIES, build
from outlierlens.analyses.compare_updates import UpdateOptions, robust_z, update_check
from outlierlens.errors import BadInput

OUTLIER = 5
WIDTH = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of width 64, saved."""
    from dataclasses import replace

    folder = tmp_path_factory.mktemp("base")
    family = FAMILIES["bert"]
    model = build(replace(family, config=family.config | {"hidden_size": WIDTH}))
    model.save_pretrained(folder)
    return folder


def client(base: Path, folder: Path, seed: int, *, planted: float = 0.0, dtype: torch.dtype | None = None) -> str:
    """The base with noise of 0.001 on everything, and `planted` more on every norm's entry of the outlier dimension."""
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(base / "model.safetensors")
    for name, value in tensors.items():
        value.add_(torch.randn(value.shape, generator=generator), alpha=1e-3)
        if "LayerNorm" in name:
            value[OUTLIER] += planted
    folder.mkdir()
    save_file({k: v.to(dtype) if dtype else v for k, v in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_bytes((base / "config.json").read_bytes())
    return str(folder)


def test_share_of_a_planted_delta_by_hand(base: Path, tmp_path: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    name = "encoder.layer.0.output.LayerNorm.weight"
    tensors[name][OUTLIER] += 3.0
    tensors[name][0] += 4.0
    (tmp_path / "c").mkdir()
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    (tmp_path / "c" / "config.json").write_bytes((base / "config.json").read_bytes())
    found = update_check(str(base), [str(tmp_path / "c")], UpdateOptions(dims=(OUTLIER,), n_draws=99))
    (one,) = found.clients
    assert one.norm == pytest.approx(5.0, rel=1e-5)
    assert one.share == pytest.approx(9 / 25, rel=1e-5)
    assert found.expected == 1 / WIDTH
    assert one.ratio == pytest.approx(9 / 25 * WIDTH, rel=1e-5)
    assert (one.n_changed, one.n_top, one.n_top_outlier) == (2, 2, 1)
    assert one.peak == pytest.approx(3 / 4, rel=1e-5)
    # Two of n entries drawn, n / 64 of them marked: 1 − P(none).
    n, k = found.n_entries, found.n_outlier_entries
    assert one.top_p == pytest.approx(1 - (n - k) * (n - k - 1) / (n * (n - 1)))


def test_honest_noise_passes_and_a_planted_delta_does_not(base: Path, tmp_path: Path, run: Any) -> None:
    good = client(base, tmp_path / "good", 1)
    bad = client(base, tmp_path / "bad", 1, planted=0.05)
    code, out, _ = run("compare", str(base), good, "--updates", "--dims", str(OUTLIER))
    assert (code, "No update touches outlier entries beyond its share" in out) == (0, True)
    # One dimension of 64 is ranked among the 63 others, however many draws: that alone does not reach 0.01.
    (one,) = update_check(str(base), [bad], UpdateOptions(dims=(OUTLIER,), alpha=0.02)).clients
    assert one.share > 0.9
    assert one.p == 1 / WIDTH
    assert len(one.why) == 3  # squared norm, largest entries, largest change
    # Only norms and biases on the stream are read; the whole file with --deep, where the verdict is the same.
    quick = update_check(str(base), [bad], UpdateOptions(dims=(OUTLIER,)))
    deep = update_check(str(base), [good, bad], UpdateOptions(dims=(OUTLIER,), deep=True))
    assert quick.n_entries < 0.1 * deep.n_entries
    assert quick.bytes_read < 0.2 * deep.bytes_read
    assert deep.flagged == (bad,)


def test_deep_counts_rows_and_columns_of_the_dimension(base: Path, tmp_path: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.1.output.dense.weight"][OUTLIER] += 0.5  # a row writes to a dimension
    tensors["embeddings.word_embeddings.weight"][:, OUTLIER] += 0.5
    tensors["encoder.layer.1.attention.self.query.weight"][OUTLIER] += 0.5  # reads; its rows are no stream's dimensions
    (tmp_path / "c").mkdir()
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    (tmp_path / "c" / "config.json").write_bytes((base / "config.json").read_bytes())
    (one,) = update_check(
        str(base), [str(tmp_path / "c")], UpdateOptions(dims=(OUTLIER,), deep=True, n_draws=9)
    ).clients
    on = tensors["encoder.layer.1.output.dense.weight"].shape[1] + len(tensors["embeddings.word_embeddings.weight"])
    assert one.n_changed == on + WIDTH
    assert one.share == pytest.approx(on / (on + WIDTH), rel=1e-4)


def test_one_of_several_clients_stands_out(base: Path, tmp_path: Path) -> None:
    clients = [client(base, tmp_path / f"c{seed}", seed) for seed in range(4)]
    clients.append(client(base, tmp_path / "bad", 9, planted=0.01))
    found = update_check(str(base), clients, UpdateOptions(dims=(OUTLIER,)))
    assert found.flagged == (clients[-1],)
    assert found.clients[0].model == clients[-1]
    assert found.clients[0].z > 3.5
    assert all(abs(one.z or 0.0) < 3.5 for one in found.clients[1:])


def test_what_all_clients_do_is_not_held_against_one(base: Path, tmp_path: Path) -> None:
    # Honest training may move outlier entries more: then at every client.
    clients = [client(base, tmp_path / f"c{seed}", seed, planted=0.006) for seed in range(4)]
    together = update_check(str(base), clients, UpdateOptions(dims=(OUTLIER,)))
    assert together.flagged == ()
    assert update_check(str(base), clients[:1], UpdateOptions(dims=(OUTLIER,))).flagged == (clients[0],)


def test_one_large_edit_in_a_noisy_update_is_flagged_by_its_peak(base: Path, tmp_path: Path) -> None:
    noisy = Path(client(base, tmp_path / "noisy", 1))
    tensors = load_file(noisy / "model.safetensors")
    tensors["embeddings.LayerNorm.weight"][OUTLIER] += 0.02
    save_file(tensors, noisy / "model.safetensors")
    (one,) = update_check(str(base), [str(noisy)], UpdateOptions(dims=(OUTLIER,))).clients
    assert one.why[-1].startswith("its largest change of an outlier entry is ")
    assert one.peak == pytest.approx(0.02 / 0.0034, rel=0.2)  # the largest of 1,300 normal values


def test_no_change_and_no_number(base: Path, tmp_path: Path) -> None:
    same = update_check(str(base), [str(base)], UpdateOptions(dims=(OUTLIER,), n_draws=9))
    assert (same.flagged, same.clients[0].share) == ((), 0.0)
    assert next(same.sentences()).startswith("None of the ")
    tensors = load_file(base / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] = float("nan")
    (tmp_path / "c").mkdir()
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    (tmp_path / "c" / "config.json").write_bytes((base / "config.json").read_bytes())
    (one,) = update_check(str(base), [str(tmp_path / "c")], UpdateOptions(dims=(OUTLIER,), n_draws=9)).clients
    assert one.why == ("has values that are not finite numbers",)


def test_another_model_and_another_format(base: Path, tmp_path: Path) -> None:
    half = client(base, tmp_path / "half", 1, dtype=torch.bfloat16)
    found = update_check(str(base), [half], UpdateOptions(dims=(OUTLIER,), n_draws=9))
    assert found.notes == (f"{half} is stored as BF16, not F32: rounding counts as update",)
    build(FAMILIES["bert"]).save_pretrained(tmp_path / "other")  # 16 wide
    with pytest.raises(BadInput, match=r"LayerNorm.bias is \[16\], not \[64\]; give a model trained from"):
        update_check(str(base), [str(tmp_path / "other")], UpdateOptions(dims=(OUTLIER,)))
    with pytest.raises(BadInput, match="dimension 64 is beyond the 64"):
        update_check(str(base), [half], UpdateOptions(dims=(64,)))
    with pytest.raises(BadInput, match="no outlier dimension is found or given; name some with --dims"):
        update_check(str(base), [half], UpdateOptions(dims=()))


def test_robust_z_by_hand() -> None:
    # Median 2, deviations 1, 0, 0, 1, 8: their median is 1.
    assert robust_z(np.array([1.0, 2.0, 2.0, 3.0, 10.0]))[-1] == pytest.approx(8 / 1.4826)
    assert robust_z(np.array([0.0, 0.0, 0.0, 0.05]))[-1] == pytest.approx(0.5)  # the least spread
