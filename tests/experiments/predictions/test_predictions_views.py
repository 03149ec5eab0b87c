"""`predictions` on the command line, and its charts."""

import json
from pathlib import Path
from typing import Any

import pytest

import planted_heads as planted
import predicted_results
from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.charts import (
    prediction_curves,
    prediction_shifts,
    predictions,
)
from outlierlens.experiments.predictions.result import MEASURES
from outlierlens.results.document import load


@pytest.fixture
def folder(tmp_path: Path, words: Any) -> Path:
    """A planted model with its tokenizer, counts and texts."""
    from outlierlens.data.token_counts import write_counts

    loaded = planted.causal(words)
    loaded.model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(tmp_path / "model")  # type: ignore[union-attr]
    write_counts(planted.counts(), tmp_path / "counts.parquet")
    (tmp_path / "texts.txt").write_text("w1 w2 w3\nw4 w0 w0 w9\nw7 w8\n")
    return tmp_path


def test_the_command_tells_the_direction_and_writes_what_it_found(folder: Path, run: Any) -> None:
    words = ["predictions", folder / "model", "--counts", folder / "counts.parquet", "--data", folder / "texts.txt"]
    words += ["--dims", planted.FREQUENCY, "--random", 2, "--bootstrap", 20, "-o", folder / "out.json", "--verbose"]
    words += ["--chart", folder / "chart.json", "--dtype", "float32", "--no-progress"]
    code, out, _ = run(*map(str, words))
    assert code == 0
    (row,) = [line.split() for line in out.splitlines() if " last_hidden " in line and "rarer" in line]
    assert row[:4] == ["next", "last_hidden", "rarer", "0.03097"]
    assert "next 6 tokens of 3 texts; frequencies of" in out
    assert "last_hidden and logits are one" in out
    assert "w0 100%" in out
    found = load(folder / "out.json")
    assert found.shift("next", "last_hidden").direction == "rarer"
    assert found.provenance.command.startswith("outlierlens predictions ")
    assert len(list(found.records())) == 2 * len(MEASURES)
    assert json.loads((folder / "chart.json").read_text())["vconcat"]


def test_the_command_s_errors(folder: Path, run: Any) -> None:
    words = ["predictions", str(folder / "model"), "--data", str(folder / "texts.txt"), "--dims", "3", "--no-progress"]
    code, _, err = run(*words, "--counts", str(folder / "none.parquet"))
    assert code == 1
    assert "no such file of token counts" in err
    code, _, err = run(*words, "--counts", str(folder / "counts.parquet"), "--input", "masked")
    assert code == 1
    assert "input 'masked' is not for a causal model" in err
    code, _, err = run(*words, "--counts", "c", "--intervention", "all")
    assert code == 1
    assert "unknown intervention 'all'" in err


def test_a_result_says_its_numbers_and_what_it_has_not() -> None:
    found = predicted_results.predictions()
    assert [shift.direction for shift in found.shifts] == ["more frequent", "rarer"]
    assert found.shift("unmasked", "layers").times == pytest.approx(2.0138, abs=1e-4)
    assert found.shift("unmasked", "layers").changes["log_frequency"].random_median == pytest.approx(0.025)
    with pytest.raises(BadInput, match=r"no intervention 'x'.*unmasked / layers, unmasked / logits"):
        found.shift("unmasked", "x")
    with pytest.raises(BadInput, match="no input 'next' in this result; there are unmasked"):
        found.of("next")


def test_charts_say_what_they_draw() -> None:
    made = predicted_results.predictions()
    shifts = prediction_shifts(made)
    assert shifts.rows == (
        ("unmasked: all layers", 0.7, 0.6, 0.8, 0.025, 0.3333),
        ("unmasked: logits", -0.4, -0.5, -0.3, 0.025, 0.3333),
    )
    assert "Unmasked: all layers +0.70 (+0.60 to +0.80), random +0.03" in shifts.reading
    dots = shifts.spec["layer"][1]["data"]["values"]
    assert [dot["change"] for dot in dots] == [0.0, 0.05, 0.0, 0.05]
    assert prediction_shifts(made, "entropy").title == "Change of entropy"
    with pytest.raises(BadInput, match="unknown measure 'x'"):
        prediction_shifts(made, "x")
    curves = prediction_curves(made, "unmasked")
    assert curves.rows[:2] == (("corpus", 1, 0.2), ("corpus", 10, 0.02))  # behind the last rank nothing is drawn
    assert "intact 40 different tokens, the commonest 20.0%" in curves.reading
    covered = prediction_curves(made, "unmasked", "corpus")
    assert covered.rows[:3] == (("corpus", 1, 0.1), ("corpus", 10, 0.5), ("corpus", 100, 1.0))
    assert "Of the 10 most frequent, which are 50% of the corpus: intact 50%" in covered.reading
    with pytest.raises(BadInput, match="by rank or corpus, not by 'x'"):
        prediction_curves(made, "unmasked", "x")
    whole = predictions(made)
    assert len(whole.spec["vconcat"]) == 2
    assert whole.total == 2 * len(MEASURES)
    assert all(part.reading in whole.reading for part in (shifts, curves, covered))
