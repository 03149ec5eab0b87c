"""Figure 2 and the outliers beside random sets: what is drawn and said equals the numbers of the results."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from outlierlens import charts
from outlierlens.errors import BadInput
from outlierlens.replicate.glue.charts import band_of
from outlierlens.view.charts.base import TABLE_ROWS
from synthetic_tasks import OUTLIERS, four, replication, task_sweep


def panels(chart) -> list[dict]:
    return [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]


def values(panel: dict) -> list[dict]:
    """All data of a panel."""
    found, todo = [], list(panel["layer"])
    while todo:
        layer = todo.pop(0)
        found += layer.get("data", {}).get("values", [])
        todo += layer.get("layer", [])
    return found


def test_two_panels_a_row_with_the_metric_and_every_dimension() -> None:
    chart = charts.figure2(four(), model="distilbert-base-cased")
    assert [len(row["hconcat"]) for row in chart.spec["vconcat"]] == [2, 2]
    titles = [panel["title"]["text"] for panel in panels(chart)]
    assert titles == ["glue:rte: accuracy", "glue:cola: mcc", "glue:stsb: pearson", "glue:sst2: accuracy"]
    assert [len({row["dim"] for row in values(panel) if "dim" in row}) for panel in panels(chart)] == [
        768,
        768,
        129,
        129,
    ]
    off = next(row for row in values(panels(chart)[1]) if row.get("dim") == 557)
    assert (off["value"], off["lost"]) == (0.18, 0.31)  # 0.49 − 0.31: up is good
    assert (off["low"], off["high"]) == (0.16, 0.2)
    assert {"value": 0.49} in values(panels(chart)[1])  # the line of the intact model
    assert chart.title == "distilbert-base-cased: one dimension off at a time, 4 tasks"


def test_outliers_are_named_bold_in_their_colour_and_others_by_strength() -> None:
    chart = charts.figure2(four())
    texts = [{row["text"] for row in values(panel) if "text" in row} for panel in panels(chart)]
    assert texts == [{"143", "283", "557"}, {"12", "143", "283", "557"}, {"143", "283", "557"}, {"143", "283", "557"}]
    named = [row for row in values(panels(chart)[1]) if row.get("name")]
    assert {row["name"] for row in named} == {"dim 143", "dim 283", "dim 557"}
    bold = {
        layer["data"]["values"][0]["text"]: layer["mark"]["fontWeight"]
        for layer in panels(chart)[1]["layer"]
        if layer.get("mark", {}).get("type") == "text"
    }
    assert bold == {"557": 700, "283": 700, "143": 700, "12": 400}
    assert charts.figure2(four(), named=(12,)).reading.count("In colour and bold: 12. ") == 1


def test_the_band_is_of_random_dimensions_or_else_of_the_others() -> None:
    rte, _, stsb, sst2 = four()
    band = band_of(rte, OUTLIERS)
    rest = [e.change for e in rte.effects if e.dims[0] not in OUTLIERS]
    assert (band.low, band.high) == pytest.approx(tuple(np.percentile(rest, (5, 95))))
    assert band.of == "765 other dimensions"
    band = band_of(stsb, OUTLIERS)
    assert band.of == "64 random dimensions"
    assert (band.low, band.high) == pytest.approx((-0.0089, 0.0109))
    assert band_of(sst2, OUTLIERS).of == "126 swept dimensions without a name"
    few = task_sweep(dims=(1, 2, 3, 557))
    assert band_of(few, OUTLIERS) is None
    assert not [row for row in values(panels(charts.figure2([few]))[0]) if "to" in row]


def test_figure_2_says_what_it_shows() -> None:
    reading = charts.figure2(four()).reading
    assert "glue:rte: accuracy 0.660 intact, 0.630 without 143 (0.610 to 0.650)" in reading
    assert "0.540 without 557 (0.520 to 0.560); 765 other dimensions between" in reading
    assert "; 143, 557 lie below them." in reading
    assert "Of the others the whole interval lies outside for 0.340 without 12 (0.320 to 0.360)." in reading
    none = task_sweep(strong={}, found=())
    assert "In colour" not in charts.figure2([none]).reading
    assert (
        "; none of the named lies below them"
        in charts.figure2([task_sweep(seed=9, strong=dict.fromkeys(OUTLIERS, 0.0))]).reading
    )


def test_the_table_holds_the_strongest_of_every_task_first() -> None:
    chart = charts.figure2(four())
    assert [row[:2] for row in chart.rows[:4]] == [
        ("glue:rte", 557), ("glue:cola", 557), ("glue:stsb", 557), ("glue:sst2", 143),
    ]  # fmt: skip
    assert len(chart.rows) == TABLE_ROWS
    assert chart.total == 768 * 2 + 129 * 2


def test_a_loss_is_drawn_as_it_is_and_sweeps_without_dimensions_are_refused() -> None:
    chart = charts.figure2([task_sweep(metric="", intact=0.6, strong={557: 0.4})])
    off = next(row for row in values(panels(chart)[0]) if row.get("dim") == 557)
    assert off["value"] == 1.0
    assert "; 557 lies above them" in chart.reading
    assert panels(chart)[0]["title"]["text"] == "glue:rte: nats per example"
    with pytest.raises(BadInput, match="at least one sweep"):
        charts.figure2([])
    with pytest.raises(BadInput, match="no window"):
        charts.figure2([task_sweep(dims=())])


def test_outliers_beside_random_sets() -> None:
    made = [replication(), replication(task="glue:cola", lost=0.01), replication(base="minilm", dims=())]
    chart = charts.outliers_against_random(made)
    assert [entry[:2] for entry in chart.rows] == [
        ("distilbert", "glue:rte"), ("distilbert", "glue:cola"), ("minilm", "glue:rte"),
    ]  # fmt: skip
    assert [entry[-3:-1] for entry in chart.rows] == [(40.0, "yes"), (3.33, "no"), (None, None)]
    assert "At least 5 times random: 1 of 2 (distilbert on rte)." in chart.reading
    assert "distilbert on rte without 143, 283 and 557: 12.0 points (10.0 to 14.0)" in chart.reading.replace(
        "143, 283, 557", "143, 283 and 557"
    )
    assert "No outlier is named in minilm on rte." in chart.reading
    diamonds = next(layer["data"]["values"] for layer in chart.spec["layer"] if layer["mark"].get("shape") == "diamond")
    assert [(d["lost"], d["says"]) for d in diamonds] == [(12.0, "× 40"), (1.0, "× 3.33")]


def test_random_sets_that_cost_nothing_make_no_ratio() -> None:
    chart = charts.outliers_against_random([replication(mean=-0.001)])
    assert chart.rows[0][-3:-1] == (None, "yes")
    diamonds = next(layer["data"]["values"] for layer in chart.spec["layer"] if layer["mark"].get("shape") == "diamond")
    assert diamonds[0]["says"] == "random: no loss"
    bare = replication()
    table = replace(bare.tables[0], rows=bare.tables[0].rows[:2])
    with pytest.raises(BadInput, match="no table here holds random sets"):
        charts.outliers_against_random([replace(bare, tables=(table,))])


def test_both_can_be_drawn_as_files_and_need_no_torch() -> None:
    for chart in (charts.figure2(four()), charts.outliers_against_random([replication()])):
        assert "var(--" not in json.dumps(chart.plain())
        assert charts.picture(chart, "png").startswith(b"\x89PNG")
    code = (
        "import sys; from outlierlens.replicate import papers; from outlierlens.replicate.glue import charts, result; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
