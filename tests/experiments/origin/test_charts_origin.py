"""Pictures of where outliers come from, and of average vectors: what is drawn where, and the words beside it."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import origin_models
import synthetic_report as synthetic
from outlierlens import charts
from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput
from outlierlens.experiments.origin.charts import MANY_MARKS, MAX_ROWS_DRAWN
from outlierlens.experiments.origin.charts_panels import coarser, panels_of, percent, share_outside
from outlierlens.experiments.origin.embedding_tables import TablePass, histogram_of
from outlierlens.experiments.origin.measure import OriginOptions, origin
from outlierlens.experiments.origin.result import StackOrigin
from outlierlens.results.document import from_json, to_json

vl_convert = pytest.importorskip("vl_convert")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> StackOrigin:
    return origin_models.found(tmp_path_factory.mktemp("origin") / "model").stacks[0]


def data_of(layer: dict[str, Any]) -> list[dict[str, Any]]:
    return layer["data"]["values"]


def test_every_picture_compiles_also_from_a_result_read_back(tmp_path: Path) -> None:
    found = from_json(to_json(origin_models.found(tmp_path / "model")))
    (stack,) = found.stacks
    for draw in (charts.origin, charts.origin_rows, charts.origin_histograms, charts.origin_ranks):
        chart = draw(stack)
        svg = charts.picture(chart, "svg").decode()
        assert svg.startswith("<svg")
        assert "var(" not in svg
        assert len(chart.columns) == len(chart.rows[0])
        vl_convert.vegalite_to_vega(draw(stack, prefix="x-").plain())
    assert charts.origin(stack).title == "Where dimensions 5, 2 come from"
    plain = origin(str(origin_models.saved(tmp_path / "plain", origin_models.tensors()))).stacks[0]
    assert plain.dims == ()
    assert charts.picture(charts.origin(plain), "svg").startswith(b"<svg")


def test_rows_are_banded_by_their_extremes_and_marked_where_a_named_dimension_is_one(stack: StackOrigin) -> None:
    chart = charts.origin_rows(stack)
    band, lines, marks, words = (data_of(layer) for layer in chart.spec["layer"])
    table = origin_models.planted()["embeddings.position_embeddings.weight"]
    assert [row["low"] for row in band] == pytest.approx(table.min(axis=1), rel=1e-3)
    assert [row["high"] for row in band] == pytest.approx(table.max(axis=1), rel=1e-3)
    assert len(lines) == 2 * origin_models.POSITIONS
    assert {(mark["row"], mark["end"]) for mark in marks if mark["name"] == "dim 5"} == {(0, "smallest entry")}
    expected = {(row, "smallest entry") for row in np.flatnonzero(table.argmin(axis=1) == 2).tolist()}
    expected |= {(row, "largest entry") for row in np.flatnonzero(table.argmax(axis=1) == 2).tolist()}
    neither = {(0, "neither")} if not any(row == 0 for row, _ in expected) else set()
    assert {(mark["row"], mark["end"]) for mark in marks if mark["name"] == "dim 2"} == expected | neither
    assert words[0]["says"] == "dim 5: smallest entry of row 0"
    assert "5 is the smallest entry of row 0 alone (z in row 0: −4.3" in chart.reading
    assert chart.rows[0][:4] == (0, 0, -20.0, 5)
    assert chart.total == origin_models.POSITIONS


def test_long_tables_are_thinned_but_keep_their_ends_and_marks() -> None:
    random = np.random.default_rng(5)
    rows = random.uniform(-1, 1, (3000, 6)).astype(np.float32)
    rows[1500:1600, 3] = 5
    collected = TablePass(6, (3,), keep_rows=True)
    collected.add(rows)
    table = collected.result(kind="position", name="p", stored="F32")
    stack = StackOrigin("model", 6, 1, (3,), (table,), (), ())
    chart = charts.origin_rows(stack)
    drawn = [row["row"] for row in data_of(chart.spec["layer"][0])]
    assert MAX_ROWS_DRAWN <= len(drawn) <= 2 * MAX_ROWS_DRAWN + 16
    assert set(range(16)) | {2999} <= set(drawn)
    marks = chart.spec["layer"][2]
    assert len(data_of(marks)) > MANY_MARKS
    assert marks["mark"]["size"] < 20
    assert set(range(1500, 1600)) <= {mark["row"] for mark in data_of(marks)}
    with pytest.raises(BadInput, match="p has 3,000 rows, too many to keep one by one"):
        charts.origin_rows(replace(stack, tables=(replace(table, rows=None),)))
    with pytest.raises(BadInput, match="has no position table"):
        charts.origin_rows(replace(stack, tables=()))
    with pytest.raises(BadInput, match="neither an embedding table of its width nor an embedding norm"):
        charts.origin_histograms(replace(stack, tables=()))
    with pytest.raises(BadInput, match="no norm of its blocks is known"):
        charts.origin_ranks(stack)


def test_histograms_draw_every_entry_and_the_named_dimensions_own(stack: StackOrigin) -> None:
    panels = panels_of(stack, Rule())
    assert [panel.title for panel in panels] == [
        "token embeddings", "position embeddings", "segment embeddings", "embedding norm, scale", "embedding norm, bias",
    ]  # fmt: skip
    tables = origin_models.planted()
    position = tables["embeddings.position_embeddings.weight"].astype(np.float64)
    token = tables["embeddings.word_embeddings.weight"]
    totals = [token.size, position.size, 2 * origin_models.WIDTH, origin_models.WIDTH, origin_models.WIDTH]
    assert [panel.histogram.total for panel in panels] == totals
    mean = position.mean(axis=0)
    assert panels[1].values == {5: pytest.approx(mean[5], rel=1e-5), 2: pytest.approx(mean[2], rel=1e-5)}
    far = np.abs(position - position.mean()) >= 3 * position.std()
    assert panels[1].shares == {dim: pytest.approx(far[:, dim].mean()) for dim in (5, 2)}
    chart = charts.origin_histograms(stack)
    drawn = [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]
    assert len(drawn) == 5
    _, bars, lines, _, marks, *_ = drawn[1]["layer"]
    assert sum(bar["count"] for bar in data_of(bars)) == position.size
    for bar in data_of(bars):
        assert bar["density"] == pytest.approx(bar["count"] / position.size / (bar["to"] - bar["from"]), rel=1e-3)
    floor = bars["encoding"]["y2"]["datum"]
    mine = [row for row in data_of(lines) if row["name"] == "dim 5"]
    for low, high in zip(mine[::2], mine[1::2], strict=True):  # a step is drawn by its two ends
        count = ((position[:, 5] >= low["from"]) & (position[:, 5] < high["from"])).sum()
        density = count / len(position) / (high["from"] - low["from"])
        assert low["density"] == high["density"] == pytest.approx(max(density, floor), rel=1e-3)
    assert {mark["name"]: mark["from"] for mark in data_of(marks)} == {
        f"dim {dim}": pytest.approx(mean[dim], rel=1e-4) for dim in (5, 2)
    }
    assert f"{100 * far[:, 5].mean():.1f} % of 5's" in chart.reading
    assert chart.rows[2] == (
        "position embeddings", 5, pytest.approx(mean[5], rel=1e-3),
        pytest.approx((mean[5] - position.mean()) / position.std(), rel=1e-2),
        pytest.approx(far[:, 5].mean()), pytest.approx(far.mean(), abs=2e-3),
    )  # fmt: skip
    scale = tables["embeddings.LayerNorm.weight"]
    sigma = (scale[5] - scale.mean()) / scale.std()
    said = [row["says"] for layer in drawn[3]["layer"] for row in data_of(layer) if "says" in row]
    assert f"5: {sigma:+.1f}σ".replace("-", "−") in said
    assert [layer["mark"]["type"] for layer in drawn[3]["layer"][:3]] == ["rect", "bar", "rule"]


def test_the_share_beyond_is_that_of_the_values() -> None:
    random = np.random.default_rng(4)
    for values in (random.normal(2, 0.3, 20_000), random.standard_t(4, 20_000), np.r_[np.zeros(500), 9.0]):
        share = (np.abs(values - values.mean()) >= 3 * values.std()).mean()
        assert share_outside(histogram_of(values), Rule(n_sigma=3.0)) == pytest.approx(share, abs=3e-4)
    assert [percent(share) for share in (0.0, 0.00004, 0.0008, 0.0123)] == ["none", "0.004 %", "0.08 %", "1.2 %"]


def test_many_named_dimensions_have_heights_and_words_of_their_own() -> None:
    rows = np.random.default_rng(5).normal(0, 1, (200, 40)).astype(np.float32)
    dims = tuple(range(3, 12))
    collected = TablePass(40, dims, keep_rows=True)
    collected.add(rows)
    stack = StackOrigin("model", 40, 1, dims, (collected.result(kind="token", name="t", stored="F32"),), (), ())
    panel = charts.origin_histograms(stack).spec["vconcat"][0]["hconcat"][0]
    marks = next(layer for layer in panel["layer"] if layer["mark"]["type"] == "point")
    heights = np.log([mark["density"] for mark in data_of(marks)])
    assert np.diff(np.sort(heights)).min() > 0.08 * (heights.max() - heights.min())
    words = [row["says"] for layer in panel["layer"] if layer["mark"]["type"] == "text" for row in data_of(layer)]
    assert {int(said.split(":")[0]) for said in words} == set(dims)
    assert len({row["name"] for row in data_of(panel["layer"][2])}) == len(dims)


def test_coarser_bins_keep_every_count_in_its_place() -> None:
    values = np.concatenate([np.random.default_rng(1).normal(size=500), [9.0, -7.0]])
    histogram = histogram_of(values)
    some = np.histogram(values[:40], histogram.edges)[0]
    edges, counts, (part,) = coarser(histogram, bars=20, parts=[some])
    assert len(counts) <= 21
    assert (counts.sum(), part.sum()) == (502, 40)
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        assert counts[place] == ((values >= low) & (values < high)).sum()
        assert part[place] == ((values[:40] >= low) & (values[:40] < high)).sum()


def test_ranks_by_layer_with_the_norms_before_and_after(stack: StackOrigin) -> None:
    chart = charts.origin_ranks(stack)
    panels = [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]
    assert [panel["title"]["text"] for panel in panels] == [
        f"{norm}, {part}" for norm in origin_models.NORMS for part in ("scale", "bias")
    ]
    points = data_of(panels[2]["layer"][-1])
    five = {point["layer"]: point for point in points if point["name"] == "dim 5"}
    assert list(five) == ["embeddings", "0", "1"]
    assert [five[layer]["rank"] for layer in ("0", "1")] == [1, 1]
    assert not five["0"]["above"]  # −3 is far below the mean
    assert [row["rank"] for row in data_of(panels[2]["layer"][0])] == [1, 1]  # one dimension is outside in both layers
    assert "5 is first in 4" in chart.reading
    numbers = [row for row in chart.rows if row[:4] == ("output.LayerNorm", "scale", "1", 5)]
    assert [row[4:10] for row in numbers] == [(-3.0, pytest.approx(-4.33, abs=0.05), 1, 20, 1, 1)]


def test_a_decoder_has_no_rows_but_its_final_norm_in_the_ranks(tmp_path: Path) -> None:
    from architectures import FAMILIES, build

    build(FAMILIES["llama"]).save_pretrained(tmp_path / "llama")
    (stack,) = origin(str(tmp_path / "llama"), OriginOptions(dims=(3,))).stacks
    chart = charts.origin(stack)
    assert [part["title"]["text"] for part in chart.spec["vconcat"]] == [
        "Embeddings and the norm after them: named dimensions among all",
        "Rank of the named dimensions in every norm, by layer",
    ]
    panel = charts.origin_ranks(stack).spec["vconcat"][0]["hconcat"][0]
    assert [point["layer"] for point in data_of(panel["layer"][-1])] == ["0", "1", "2", "final"]
    written = charts.origin_ranks(stack).spec["vconcat"][1]["hconcat"][0]
    assert written["title"]["text"] == "mlp.down_proj, norm of the rows that write"


# -- observed averages ---------------------------------------------------------------------------------------------


def test_shares_are_pooled_over_blocks_by_their_tokens() -> None:
    seen = synthetic.observation(n_layers=3, hidden_size=520).stacks[0]
    shares = np.zeros((4, len(seen.dims)))
    shares[:, 2] = [1.0, 0.5, 0.2, 0.0]  # the embeddings' 100 % must not count
    statistics = replace(seen.view("all"), argmin_share=shares, tokens=np.array([100, 10, 20, 30]))
    stack = replace(seen, views={"all": statistics})
    pooled = stack.pooled_shares()
    assert pooled["smallest entry"][2] == pytest.approx((10 * 0.5 + 20 * 0.2) / 60)
    assert pooled["largest entry"].shape == (len(seen.dims),)
    alone = replace(
        statistics, **{key: getattr(statistics, key)[:1] for key in ("argmin_share", "argmax_share", "tokens")}
    )
    only = replace(stack, layers=("embeddings",), views={"all": alone})
    assert np.isnan(only.pooled_shares()["smallest entry"]).all()
    with pytest.raises(BadInput, match="no view 'x'"):
        stack.pooled_shares("x")


def test_vector_panels_draw_every_layer_on_one_scale_and_number_the_ends() -> None:
    seen = synthetic.observation(n_layers=3, hidden_size=520).stacks[0]
    mean = np.random.default_rng(3).normal(0, 0.1, (4, len(seen.dims)))
    mean[1:, 7] = -5.0
    mean[2, 400] = 3.0
    stack = replace(seen, views={"all": replace(seen.view("all"), mean=mean)})
    dims = (stack.dims[7], stack.dims[400])
    chart = charts.vector_panels(stack, dims)
    panels = [panel for row in chart.spec["vconcat"] for panel in row["hconcat"]]
    assert [panel["title"]["text"] for panel in panels] == ["embeddings", "layer 0", "layer 1", "layer 2"]
    domains = {tuple(layer["encoding"]["y"]["scale"]["domain"]) for panel in panels for layer in panel["layer"]}
    assert len(domains) == 1
    assert domains.pop() == pytest.approx((-5 - 0.16 * 8, 3 + 0.16 * 8), rel=1e-3)
    assert len(data_of(panels[2]["layer"][0])) == len(stack.dims) - 2
    assert {row["mean"] for row in data_of(panels[2]["layer"][2])} == {-5.0, 3.0}
    numbered = {row["says"] for layer in panels[2]["layer"][3:] for row in data_of(layer)}
    assert {str(dim) for dim in dims} <= numbered
    assert f"{dims[0]} is the lowest of 3; {dims[1]} is the highest of 1" in chart.reading
    assert ("1", "lowest", 1, dims[0], -5.0) in chart.rows
    assert charts.picture(chart, "svg").startswith(b"<svg")
