"""The benchmark of frequency correlations: it measures what it says, and its exit code tells bounds that are not held."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from script_modules import script
from tuned_models import save_model


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return script("benchmarks/frequency.py")


def test_both_passes_and_the_peak_are_measured(
    benchmark: ModuleType, words: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = str(save_model(tmp_path / "model", words)), tmp_path / "texts.txt"
    data.write_text("\n".join(f"w{i % 30} w{i % 11} w{i % 4}" for i in range(60)), "utf-8")
    monkeypatch.setattr(benchmark, "MOST", 1e9)
    peaks = iter((100.0, 104.0, 100.0, 106.0))
    monkeypatch.setattr(benchmark, "peak", lambda *words: next(peaks))
    call = [model, "--data", str(data), "--rounds", "2", "--max-length", "16", "--limit", "40"]
    assert benchmark.main(call) == 0
    said = capsys.readouterr().out
    assert "40 texts, cpu" in said
    assert "ours over the plain pass:" in said
    assert "in 2 rounds" in said
    assert "100 MB with 512 texts, 104 MB with four times as many" in said
    assert benchmark.main([*call, "--rounds", "1"]) == 1  # the peak grows by 6 %
    monkeypatch.setattr(benchmark, "MOST", 0.0)
    assert benchmark.main([*call, "--rounds", "1", "--memory-texts", "0"]) == 1
    capsys.readouterr()
    assert benchmark.main([*call, "--alone"]) == 0
    assert float(capsys.readouterr().out) > 50


def test_made_up_texts_are_as_many_as_asked_for_and_their_counts_are_their_own(
    benchmark: ModuleType, words: Any
) -> None:
    texts = benchmark.made_up(20)
    assert len(set(texts)) == 20
    assert benchmark.made_up(20) == texts
    counts = benchmark.own_counts(words(), ("w1 w2 w1", "w3"))
    assert counts.counts[[6, 7, 8]].tolist() == [2, 1, 1]
    assert counts.special[:3].tolist() == [0, 2, 2]
