"""Figure 2 and the outliers beside random sets: what is drawn and said equals the numbers of the results."""

import json
from dataclasses import replace

import numpy as np
import pytest

from outlierlens.errors import BadInput
from outlierlens.view import charts
from outlierlens.view.charts.base import TABLE_ROWS
from synthetic_tasks import OUTLIERS, four, replication, task_sweep


def values(panel: dict) -> list[dict]:
    """All data of a panel."""
    found, todo = [], list(panel["layer"])
    while todo:
        layer = todo.pop(0)
        found += layer.get("data", {}).get("values", [])
        todo += layer.get("layer", [])
    return found


def test_a_panel_for_each_task_with_the_metric_and_every_dimension() -> None:
    chart = charts.figure2(four(), OUTLIERS, model="distilbert-base-cased")
    panels = chart.spec["vconcat"]
    titles = [panel["title"]["text"] for panel in panels]
    assert titles == ["accuracy on glue:rte", "mcc on glue:cola", "pearson on glue:stsb", "accuracy on glue:sst2"]
    assert [len({row["dim"] for row in values(panel) if "dim" in row}) for panel in panels] == [768, 768, 129, 129]
    off = next(row for row in values(panels[1]) if row.get("dim") == 557)
    assert (off["change"], off["low"], off["high"]) == (0.31, 0.29, 0.33)
    texts = [{row["text"] for row in values(panel) if "text" in row} for panel in panels]
    assert texts == [{"143", "283", "557"}] * 4
    assert chart.title == "distilbert-base-cased: one dimension ablated at a time, 4 tasks"
    assert all(
        "type" not in layer.get("encoding", {}).get("y", {}).get("scale", {}) for layer in panels[1]["layer"]
    )  # linear


def test_the_strongest_have_a_name_too_and_the_band_is_of_the_others() -> None:
    (panel,) = charts.figure2([four()[1]]).spec["vconcat"]
    assert "12" in {row["text"] for row in values(panel) if "text" in row}
    band = next(row for row in values(panel) if "middle" in row)
    rest = [e.change.value for e in four()[1].effects if e.dims[0] not in OUTLIERS]
    assert (band["change"], band["to"]) == pytest.approx(tuple(np.percentile(rest, (5, 95))), rel=1e-3)


def test_figure_2_says_what_it_shows_and_its_table_holds_the_strongest_of_every_task_first() -> None:
    chart = charts.figure2(four())
    assert "Accuracy on glue:rte: " in chart.reading
    assert "557 +0.12 (+0.1 to +0.14)" in chart.reading
    assert [row[:2] for row in chart.rows[:4]] == [
        ("glue:rte accuracy", "557"), ("glue:cola mcc", "557"), ("glue:stsb pearson", "557"), ("glue:sst2 accuracy", "143"),
    ]  # fmt: skip
    assert len(chart.rows) == TABLE_ROWS
    assert chart.total == 768 * 2 + 129 * 2


def test_sweeps_without_dimensions_are_refused() -> None:
    with pytest.raises(BadInput, match="at least one sweep"):
        charts.figure2([])
    with pytest.raises(BadInput, match="no single dimension"):
        charts.figure2([task_sweep(dims=())])


def diamonds(chart) -> list[dict]:
    panel = chart.spec["vconcat"][0] if "vconcat" in chart.spec else chart.spec
    layers = [layer for layer in panel["layer"] if "says" in str(layer.get("encoding", {}))]
    return [row for layer in layers for row in layer["data"]["values"]]


def test_outliers_beside_random_sets() -> None:
    first, second = replication(), replication(task="glue:cola", lost=0.01)
    chart = replace(first, losses=(*first.losses, *second.losses), models=(*first.models, *second.models)).chart()
    assert [(row["lost"], row["says"]) for row in diamonds(chart)] == [(0.12, "× 40"), (0.01, "× 3.33")]
    assert "at least 5 times what random sets cost in 1 of 2 (rte seed-42)" in chart.reading
    grey = [row for row in values(chart.spec) if "which" in row]
    assert {row["lost"] for row in grey} == {0.003}
    assert len(grey) == 2 * 19


def test_random_sets_that_cost_nothing_make_no_ratio() -> None:
    made = replication(mean=-0.001)
    assert diamonds(made.chart())[0]["says"] == "random: no loss"
    (row,) = made.losses
    alone = replace(made, losses=(replace(row, random=(), times_random=None, passes=None),))
    assert diamonds(alone.chart()) == []
    assert next(alone.sentences()).endswith("in 0 of 0.")


def test_both_can_be_drawn_as_files() -> None:
    for chart in (charts.figure2(four()), replication().chart()):
        assert "var(--" not in json.dumps(chart.plain())
        assert charts.picture(chart, "png").startswith(b"\x89PNG")
