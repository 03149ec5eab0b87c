"""The benchmark of vectors: it measures what it says, on real work, and its exit code tells bounds that are not held."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from script_modules import script
from tuned_models import save_model


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return script("benchmarks/geometry.py")


def test_both_are_measured_and_encode_alike(
    benchmark: ModuleType, words: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    model = str(save_model(tmp_path / "model", words))
    folder = tmp_path / "sts" / "stsb"
    folder.mkdir(parents=True)
    rows = [{"sentence1": f"w{i} w2 w{i % 7}", "sentence2": f"w{i % 5} w3", "score": i % 6} for i in range(30)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    monkeypatch.setattr(benchmark, "MOST", 1e9)
    monkeypatch.setattr(benchmark, "LEAST", 0.0)
    fit = tmp_path / "fit.txt"
    fit.write_text("\n".join(f"w{i % 30} w{i % 11} w{i % 4}" for i in range(60)), "utf-8")
    call = [model, "--fit-data", str(fit), "--data", str(tmp_path / "sts"), "--rounds", "2", "--max-length", "16"]
    assert benchmark.main(call) == 0
    said = capsys.readouterr().out
    assert "30 pairs, 35 sentences, cpu" in said
    assert "all layers x all fixes over the plain pass:" in said
    assert "their seconds over ours:" in said
    assert "in 2 rounds" in said
    monkeypatch.setattr(benchmark, "LEAST", 1e9)
    assert benchmark.main([*call, "--limit", "10", "--rounds", "1"]) == 1
    assert "10 pairs" in capsys.readouterr().out
    assert benchmark.main([model, "--data", str(tmp_path / "nowhere")]) == 2


def test_made_up_pairs_are_all_different_and_as_many_as_asked_for(benchmark: ModuleType) -> None:
    first, second, gold = benchmark.made_up(50)
    assert len({*first, *second}) == 100
    assert 0 <= gold.min() < gold.max() <= 1
    assert benchmark.made_up(50)[0] == first
    assert len(benchmark.read_pairs(None, 20)) == 20
