"""Charts of attention say what the result holds; the benchmark measures what it says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attention_results
from outlierlens import charts
from outlierlens.errors import BadInput
from outlierlens.experiments.attention.charts import attention_example, attention_heads, ticks
from script_modules import script


def values(spec: dict[str, Any], at: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["layer"][at]["data"]["values"]
    return found


def test_correlations_stand_over_the_band_of_all_other_dimensions() -> None:
    chart = charts.attention_correlation(attention_results.attention(), "all")
    band = values(chart.spec, 0)
    assert (band[0]["least"], band[0]["median"], band[0]["most"]) == (-0.1, 0.0, 0.1)
    assert band[1]["most"] == 0.2  # the dimension that never varies is in no band
    points = values(chart.spec, -1)
    assert [(point["layer"], point["value"], point["low"]) for point in points] == [("0", 0.7, 0.6), ("1", -0.1, -0.2)]
    assert (
        "Dimension 1 has 0.70 at most (layer 0, rank 1); over all layers mean |r| 0.40, rank p 0.25." in chart.reading
    )
    assert chart.rows[0] == ("0", "dim 1", 0.7, 0.6, 0.8, 1, 0.25, None)


def test_sinks_show_intact_outliers_off_and_the_range_of_random_draws() -> None:
    found = attention_results.attention()
    chart = charts.attention_sinks(found)
    assert [panel["layer"][1]["encoding"]["y"]["title"] for panel in chart.spec["hconcat"]] == [
        "first token", "special tokens", "delimiters", "entropy / log keys"
    ]  # fmt: skip
    first = [row for row in chart.spec["hconcat"][0]["layer"][1]["data"]["values"] if row["layer"] == "0"]
    assert {row["line"]: row["value"] for row in first} == {
        "intact": 0.6, "outliers off": 0.3, "random dimensions off": pytest.approx(0.5963, abs=1e-4), "all keys alike": 0.1
    }  # fmt: skip
    assert "On the first token fall 35% intact and 20% with the outliers off" in chart.reading
    assert "50% and 25% of the heads give it more than 0.3, with random dimensions off 50% to 50%" in chart.reading
    assert chart.rows[0] == ("first token", "0", 0.6, 0.58, 0.62, 0.3, -0.3, -0.31, -0.29, 0.5963)
    without = charts.attention_sinks(replace(found, n_special=0))
    assert len(without.spec["hconcat"]) == 3


def test_an_axis_names_at_most_sixteen_layers() -> None:
    found = attention_results.attention()
    assert ticks(found) == ["0", "1"]
    assert len(ticks(replace(found, layers=tuple(map(str, range(16)))))) == 16
    assert ticks(replace(found, layers=tuple(map(str, range(30)))))[:3] == ["0", "2", "4"]


def test_heads_and_maps() -> None:
    found = attention_results.attention()
    chart = attention_heads(found)
    assert "Strongest is head 0 of layer 0 with dimension 1, 0.80." in chart.reading
    cells = chart.spec["hconcat"][0]["data"]["values"]
    assert [cell["kind"] for cell in cells] == ["positive r", "positive r", "negative r", "positive r"]
    maps = attention_example(found)
    assert [len(line["hconcat"]) for line in maps.spec["vconcat"]] == [2, 2]
    assert maps.spec["vconcat"][0]["hconcat"][0]["data"]["values"][0] == {
        "query": "0 a",
        "key": ["0 a"],
        "weight": [1.0],
    }
    # Head 0 has the maps of head 1 with the outlier off: a quarter of one of two queries' attention.
    assert "Head 0 changes most: 12% of its attention moves elsewhere, 12% in the mean head." in maps.reading
    with pytest.raises(BadInput, match="name one with --example"):
        attention_example(replace(found, example=None))
    many = replace(
        found.example, intact=np.tile(np.eye(2), (14, 1, 1)), off=np.stack([np.eye(2)[::-1]] * 3 + [np.eye(2)] * 11)
    )  # type: ignore[type-var]
    drawn = attention_example(replace(found, example=many))
    assert [len(line["hconcat"]) for line in drawn.spec["vconcat"]] == [4] * 6
    assert "Drawn are the 12 of 14 heads that change most." in drawn.reading


@pytest.mark.skipif(not charts.can_export(), reason="pictures need vl-convert")
def test_the_whole_is_a_picture() -> None:
    chart = charts.attention(attention_results.attention())
    assert charts.picture(chart, "svg").startswith(b"<svg")
    assert "attention received and outlier dimensions" in chart.title


def test_benchmark(words: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    from architectures import FAMILIES, config_of

    BertModel(config_of(FAMILIES["bert"])).save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    module = script("benchmarks/attention.py")
    monkeypatch.setattr(module, "MOST", 1e9)
    monkeypatch.setattr(module, "MORE", 1e3)
    asked: list[int] = []
    monkeypatch.setattr(module, "peak", lambda _, n: asked.append(n) or 100.0 + n)
    texts = tmp_path / "texts.txt"
    texts.write_text(("w0 w1 w2 w3 " * 20 + "\n") * 6)
    call = [
        str(tmp_path),
        "--data",
        str(texts),
        "--texts",
        "6",
        "--rounds",
        "2",
        "--max-length",
        "16",
        "--threads",
        "1",
    ]
    assert module.main(call) == 0
    said = capsys.readouterr().out
    assert asked == [128, 512]
    assert "6 texts, 96 tokens, cpu, 1 threads, float32" in said
    assert "eager over sdpa:" in said
    assert "ours over eager with weights:" in said
    assert "largest memory: 228 MB with 128 texts, 612 MB with 512" in said
    monkeypatch.setattr(module, "MORE", 10.0)
    assert module.main(call) == 1
    capsys.readouterr()
    assert module.main([*call, "--memory-only"]) == 0
    assert float(capsys.readouterr().out) > 10
    assert module.main([str(tmp_path / "nowhere")]) == 2
