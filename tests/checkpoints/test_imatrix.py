"""Importance matrices of llama.cpp: known numbers, damaged files, and what `observe` says of them."""

from pathlib import Path

import numpy as np
import pytest

from imatrix_files import write_gguf, write_moments
from memory_checkpoint import Memory, of_model
from outlierlens.analyses.observe import Observation
from outlierlens.analyses.observe_imatrix import second_moments
from outlierlens.checkpoints.gguf import read_imatrix
from outlierlens.detection.rules import ActivationRules
from outlierlens.errors import BadFile, BadInput
from outlierlens.results.document import from_json, to_json

DOWN, KEYS = "blk.1.ffn_down.weight", "blk.1.attn_k.weight"
MOMENTS = {KEYS: np.array([1.0, 4.0, 0.25]), DOWN: np.array([9.0, 0.0, 2.0, 1.0])}


def test_sums_and_counts_give_mean_squares(tmp_path: Path) -> None:
    found = read_imatrix(write_moments(tmp_path / "m", MOMENTS))
    assert list(found.entries) == list(MOMENTS)
    for name, wanted in MOMENTS.items():
        np.testing.assert_allclose(found.entries[name].moments, wanted, rtol=1e-7)
        assert found.entries[name].vectors == 16
    assert (found.data, found.n_chunks, found.chunk_size) == ("wiki.txt", 2, 8)


def test_experts_are_weighed_by_what_they_read(tmp_path: Path) -> None:
    # Two experts of two inputs: 3 vectors of Σ x² (3, 6), 1 vector of (5, 2); a third one that read nothing.
    sums = {"blk.0.ffn_down_exps.weight": (np.array([[3.0, 6.0], [5.0, 2.0], [0.0, 0.0]]), np.array([3, 1, 0]))}
    sums["blk.0.ffn_up.weight"] = np.zeros((1, 2)), np.array([0])
    sums["blk.1.ffn_down_exps.weight"] = np.array([[0.0], [8.0], [0.0]]), np.array([0, 2, 0])
    found = read_imatrix(write_gguf(tmp_path / "m", sums))
    np.testing.assert_allclose(found.entries["blk.0.ffn_down_exps.weight"].moments, [2.0, 2.0])
    assert found.entries["blk.0.ffn_down_exps.weight"].vectors == 4
    assert sorted(found.unfed) == [
        "blk.0.ffn_down_exps.weight, expert 2",
        "blk.0.ffn_up.weight",
        "blk.1.ffn_down_exps.weight, experts 0, 2",
    ]


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    one = {KEYS: (np.ones((1, 4)), np.array([2]))}
    with pytest.raises(BadFile, match="is a GGUF file but no importance matrix"):
        read_imatrix(write_gguf(tmp_path / "model", one, kind="model"))
    with pytest.raises(BadFile, match="has 4 values for 3 counts"):
        read_imatrix(write_gguf(tmp_path / "counts", {KEYS: (np.ones((1, 4)), np.ones(3))}))
    with pytest.raises(BadFile, match="holds a value that is not a sum of squares"):
        read_imatrix(write_gguf(tmp_path / "inf", {KEYS: (np.full((1, 4), np.inf), np.ones(1))}))
    with pytest.raises(BadFile, match="no tensor of it has read anything"):
        read_imatrix(write_gguf(tmp_path / "none", {KEYS: (np.zeros((1, 4)), np.zeros(1))}))
    whole = write_gguf(tmp_path / "whole", one).read_bytes()
    (tmp_path / "alone").write_bytes(whole.replace(f"{KEYS}.counts".encode(), f"{KEYS}.county".encode()))
    with pytest.raises(BadFile, match="has no counts beside it"):
        read_imatrix(tmp_path / "alone")
    (tmp_path / "cut").write_bytes(whole[:-40])
    with pytest.raises(BadFile, match="lies outside the file"):
        read_imatrix(tmp_path / "cut")
    (tmp_path / "older").write_bytes(b"\x01\x00\x00\x00" * 20)
    with pytest.raises(BadFile, match="it is no GGUF file or a broken one"):
        read_imatrix(tmp_path / "older")
    with pytest.raises(BadFile, match="no such file"):
        read_imatrix(tmp_path / "absent")


def planted(checkpoint: Memory) -> dict[str, np.ndarray]:
    """Moments of a tiny Llama: neuron 5 of layer 1 and dimension 3 of what layer 2's queries read are massive."""
    widths = {"attn_q": 16, "attn_k": 16, "attn_v": 16, "attn_output": 16, "ffn_gate": 16, "ffn_up": 16, "ffn_down": 24}
    found = {f"blk.{layer}.{part}.weight": np.full(width, 0.01) for layer in range(3) for part, width in widths.items()}
    found["blk.1.ffn_down.weight"][5] = 150.0**2  # root 150 > 100, and 1,500 times the median root 0.1
    found["blk.2.attn_q.weight"][3] = 101.0**2
    found["blk.0.ffn_up.weight"][2] = 99.0**2  # below 100
    found["blk.0.attn_v.weight"][:] = 1.0
    found["blk.0.attn_v.weight"][0] = 500.0**2  # only 500 times the median
    found["output.weight"] = np.full(16, 0.5)
    return found


def test_observe_names_neurons_and_dimensions(tmp_path: Path) -> None:
    checkpoint = of_model("llama", "CausalLM")
    moments = planted(checkpoint) | {"blk.0.strange.weight": np.ones(4)}
    file = write_moments(tmp_path / "m", moments)
    found = Observation(**second_moments(checkpoint, file, ActivationRules()))
    assert len(found.moments) == 3 * 7 + 1
    assert {one.path: one.outliers for one in found.moments if one.outliers} == {
        "model.layers.1.mlp.down_proj": ("1:5",),
        "model.layers.2.self_attn.q_proj": ("3",),
    }
    down = next(one for one in found.moments if one.path == "model.layers.1.mlp.down_proj")
    assert (down.layer, down.part, down.dim, down.width) == (1, "mlp.down_proj", 5, 24)
    assert down.largest == pytest.approx(22500.0)
    assert down.median == pytest.approx(0.01)
    assert any("the family's row does not name, such as blk.0.strange.weight" in note for note in found.notes)
    assert from_json(to_json(found)) == found
    (section,) = found.sections()
    said = " ".join(section.sentences)
    assert "finds neuron 1:5." in said
    assert "finds dimension 3." in said
    (whole,) = found.sections(verbose=True)
    assert [len(one.tables[0].rows) for one in (section, whole)] == [8, 22]
    assert len(list(found.records())) == 22


def test_what_no_token_reached_stands_first(tmp_path: Path) -> None:
    """Of a mixture whose router never picks expert 2 of layer 1, and whose queries of layer 0 have no entry."""
    checkpoint, n = of_model("mixtral", "CausalLM"), 4
    parts = dict.fromkeys(
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"), 16
    )
    experts, down = checkpoint.tensors["model.layers.0.mlp.experts.down_proj"].shape[::2]
    assert experts == n
    sums = {}
    for layer in range(3):
        for part, width in {**parts, "ffn_down_exps": down}.items():
            counts = np.full(n if part.endswith("exps") else 1, 5)
            counts[2:3] = 0 if layer == 1 else 5
            sums[f"blk.{layer}.{part}.weight"] = np.ones((len(counts), width)) * counts[:, None], counts
    del sums["blk.0.attn_q.weight"]
    found = Observation(**second_moments(checkpoint, write_gguf(tmp_path / "m", sums), ActivationRules()))
    assert sorted(found.never_fed) == [f"blk.1.ffn_{part}_exps.weight, expert 2" for part in ("down", "gate", "up")]
    assert found.without_entry == ("blk.0.attn_q.weight",)
    unfed, absent, *_ = found.sentences()
    assert unfed.startswith("No token reached blk.1.ffn_")
    assert unfed.endswith("llama-quantize weighs all inputs alike.")
    assert absent.startswith("No entry of blk.0.attn_q.weight: llama-quantize rounds a linear")
    del sums["blk.2.ffn_down_exps.weight"]
    sums["blk.0.attn_q.weight"] = np.ones((1, 16)), np.array([5])
    without = second_moments(checkpoint, write_gguf(tmp_path / "n", sums), ActivationRules())["without_entry"]
    assert without == ("blk.2.ffn_down_exps.weight",)


def test_a_matrix_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoint = of_model("llama", "CausalLM")
    write_moments(tmp_path / "m", {"blk.0.attn_q.weight": np.ones(99)})
    with pytest.raises(BadInput, match=r"has 99 values of model.layers.0.self_attn.q_proj, whose weight"):
        second_moments(checkpoint, tmp_path / "m", ActivationRules())
    write_moments(tmp_path / "m", {"blk.0.other.weight": np.ones(99)})
    with pytest.raises(BadInput, match=r"no tensor of it is one of memory \(family llama\)"):
        second_moments(checkpoint, tmp_path / "m", ActivationRules())
