"""Charts of a sweep: what is drawn, what is thinned and said so, scales, and that every specification compiles."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import synthetic_report as synthetic
from outlierlens import charts
from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts import MAX_MARKS, MAX_TICKS, height_in, scale_from, thin
from outlierlens.experiments.sweep.charts_windows import MAX_CELLS, MAX_CONTROLS, MAX_NULLS, quantiles
from outlierlens.experiments.sweep.result import names
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import SURFACE, Range
from outlierlens.view.charts.draw import names_beside


@pytest.fixture(scope="module")
def sweep():
    return synthetic.sweep()


def groups(chart):
    """Data of every layer that holds rows with a dimension, by whether a text is drawn there."""
    return [layer["data"]["values"] for layer in chart.spec["layer"] if "data" in layer]


def drawn(chart):
    """Every row that is drawn as a mark, by dimension."""
    marks = [layer["data"]["values"] for layer in chart.spec["layer"] if "layer" in layer]
    return {row["dim"]: row for rows in marks for row in rows}


def texts(chart):
    """Numbers written beside marks with their weight, halos left out."""
    layers = [layer for layer in chart.spec["layer"] if layer.get("mark", {}).get("type") == "text"]
    return {
        layer["data"]["values"][0]["text"]: layer["mark"]["fontWeight"]
        for layer in layers
        if layer["mark"]["color"] != SURFACE
    }


def test_every_chart_compiles_without_a_warning_of_its_size(sweep):
    pytest.importorskip("vl_convert")
    layers = synthetic.layer_sweep(n_layers=6)
    wide = synthetic.layer_sweep(tuple(range(576)), n_layers=4)
    made = [charts.sweep_effects(sweep), charts.sweep_ranked(sweep), charts.sweep_first_order(sweep)]
    made += [charts.sweep_nulls(sweep), charts.sweep_map(layers), charts.sweep_map(wide), charts.sweep_windows(layers)]
    for chart in made:
        picture = charts.picture(chart, "svg").decode()
        assert picture.startswith("<svg")
        assert "NaN" not in picture
        json.dumps(chart.spec, allow_nan=False)
        assert chart.spec["description"] == chart.reading


def test_effects_draw_every_dimension_with_its_interval_and_name_the_found_and_the_strongest(sweep):
    chart = charts.sweep_effects(sweep)
    rows = drawn(chart)
    assert sorted(rows) == list(range(576))
    assert (rows[507]["change"], rows[507]["low"], rows[507]["high"]) == (8.4, 7.98, 8.82)
    assert rows[507]["qf"] == 0.005
    assert "qf" not in rows[31]
    weight = texts(chart)
    assert {text for text, bold in weight.items() if bold == 700} == {"100", "247", "507"}
    assert {text for text, bold in weight.items() if bold == 400} == {"31", "386"}  # the other two of the five largest
    assert chart.rows[0][:5] == ("507", 8.4, 7.98, 8.82, sweep.effect(507).n_texts)
    assert "Largest: 507 +8.4 (+7.98 to +8.82), 100 +0.29" in chart.reading
    assert "Bold numbers: named by the weights beforehand (100, 247, 507)." in chart.reading


def test_the_band_is_that_of_the_dimensions_that_the_weights_do_not_name(sweep):
    values = [e.change for e in sweep.singles() if e.dims[0] not in synthetic.NEEDLES]
    low, middle, high = np.percentile(values, (5, 50, 95))
    band = charts.sweep_effects(sweep).spec["layer"][0]["data"]["values"][0]
    assert (band["change"], band["middle"], band["to"]) == pytest.approx((low, middle, high), rel=1e-3)
    few = replace(sweep, effects=sweep.effects[:10])
    assert "band" not in charts.sweep_effects(few).reading


def test_one_dimension_far_above_the_rest_leaves_the_rest_apart(sweep):
    axis = charts.sweep_effects(sweep).spec["layer"][0]["encoding"]["y"]
    scale = Range(axis["scale"], axis["axis"], axis["scale"]["type"] == "symlog")
    assert "symmetric log scale, near linear within ±0.0" in axis["title"][1]
    heights = [height_in(scale, value) for value in (0.0, 0.02, 0.1, 8.4)]
    assert np.diff(heights).min() > 0.08  # of the height of the picture
    assert axis["axis"]["values"] == [0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    assert "tickCount" not in axis["axis"]  # it would drop every other of the values
    alike = synthetic.sweep(strong={}, found=())
    axis = charts.sweep_effects(alike).spec["layer"][0]["encoding"]["y"]
    assert axis["title"] == ["change of the causal loss, nats per token"]


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40))
def test_a_scale_holds_all_values_and_few_ticks_inside_it(values):
    scale = scale_from(np.array([*values, 0.0]))
    low, high = scale.scale["domain"]
    assert low <= min(*values, 0.0) * (1 - 1e-3) + 1e-12 or math.isclose(low, min(*values, 0.0), rel_tol=1e-3)
    assert high >= max(*values, 0.0) * (1 - 1e-3) - 1e-12
    ticks = scale.axis.get("values", [0.0])
    assert 1 <= len(ticks) <= 2 * MAX_TICKS
    assert ticks == sorted(ticks)
    assert 0.0 in ticks
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)


def test_of_thousands_the_extreme_and_a_sample_are_drawn_and_that_is_said():
    large = synthetic.sweep(8192)
    chart = charts.sweep_effects(large)
    rows = drawn(chart)
    named = names(large)
    plain = sorted((e for e in large.singles() if e.dims[0] not in named), key=lambda e: -abs(e.change))
    assert {e.dims[0] for e in plain[: MAX_MARKS // 2]} <= set(rows)
    assert len(rows) <= MAX_MARKS + len(named)
    assert f"Drawn are the 512 largest changes of the {len(plain):,} dimensions without a name" in chart.reading
    assert chart.total == 8192
    for made in (chart, charts.sweep_ranked(large), charts.sweep_first_order(large)):
        assert len(json.dumps(made.spec)) < 400_000
    values = [e.change for e in large.singles() if e.dims[0] not in large.found]
    band = chart.spec["layer"][0]["data"]["values"][0]
    assert band["middle"] == pytest.approx(np.median(values), rel=1e-3)  # of all, not of the drawn


def test_the_sample_is_even_over_the_rest():
    effects = [synthetic.effect(dim, 1e-3 if dim < 8192 - 512 else 1.0) for dim in range(8192)]
    kept, said = thin(effects)
    sample = np.array([e.dims[0] for e in kept if e.change < 1])
    assert len(kept) - len(sample) == 512
    assert f"an even sample of {len(sample)} of the others" in said
    assert np.histogram(sample, 16, (0, 8192 - 512))[0].tolist() == pytest.approx([32] * 16, abs=3)
    assert np.bincount(sample % 64, minlength=64).min() > 0  # every place within a head of 64
    assert thin(effects[:MAX_MARKS]) == (effects[:MAX_MARKS], "")


def test_ranked_effects_count_those_above_twice_the_tolerance_with_the_whole_interval(sweep):
    chart = charts.sweep_ranked(sweep)
    above = sum(e.low > 0.02 for e in sweep.singles())
    assert f"{above} of them lie above twice the tolerance (0.02 nats per token)" in chart.reading
    assert "507 is number 1" in chart.reading
    assert [row[:2] for row in chart.rows[:3]] == [(1, "507"), (2, "100"), (3, "247")]
    assert sorted(row["rank"] for row in drawn(chart).values()) == list(range(1, 577))


def test_the_first_order_chart_states_both_correlations_and_that_it_is_no_result(sweep):
    chart = charts.sweep_first_order(sweep)
    singles = sweep.singles()
    estimates, changes = np.array([e.first_order for e in singles]), np.array([e.change for e in singles])
    pearson = np.corrcoef(estimates, changes)[0, 1]
    spearman = np.corrcoef(estimates.argsort().argsort(), changes.argsort().argsort())[0, 1]
    assert f"Pearson r = {pearson:.2f}, Spearman r = {spearman:.2f} over 576 dimensions" in chart.reading
    assert "507: estimated +0.4, measured +8.4" in chart.reading
    equal = chart.spec["layer"][0]["data"]["values"]
    assert all(point["first"] == point["change"] for point in equal)
    without = replace(sweep, effects=tuple(replace(e, first_order=None) for e in sweep.effects))
    with pytest.raises(BadInput, match="fewer than three dimensions; sweep with gradients"):
        charts.sweep_first_order(without)


def test_the_map_has_a_cell_for_each_measured_window_and_dimension_and_blanks_elsewhere():
    sweep = synthetic.layer_sweep(n_layers=6)
    missing = replace(sweep, effects=tuple(e for e in sweep.effects if e.label != "247 in layer 2"))
    chart = charts.sweep_map(missing)
    heat = chart.spec["layer"][0]
    cells = {
        (line["window"], dim): change
        for line in heat["data"]["values"]
        for dim, change in zip(line["dim"], line["change"], strict=True)
    }
    assert len(cells) == 6 * 16 - 1
    assert ("layer 2", 247) not in cells
    assert cells["layer 3", 507] == pytest.approx(sweep.effect(507, "layer 3").change, rel=1e-2)
    assert heat["encoding"]["x"]["scale"]["domain"] == sorted({dim for _, dim in cells})
    assert heat["encoding"]["y"]["scale"]["domain"] == [f"layer {n}" for n in range(6)]
    assert "A blank cell was not measured" in chart.reading
    assert "A blank cell" not in charts.sweep_map(sweep).reading
    assert "The largest: 507 in layer 3 +5.04" in chart.reading
    assert "any other dimension: 100 in layer 3 +0.17" in chart.reading


def test_a_wide_map_keeps_the_largest_of_each_cell_and_says_so():
    sweep = synthetic.layer_sweep(tuple(range(2048)), n_layers=20, width=2048)
    chart = charts.sweep_map(sweep)
    lines = chart.spec["layer"][0]["data"]["values"]
    assert sum(len(line["dim"]) for line in lines) <= MAX_CELLS
    assert len(json.dumps(chart.spec)) < 1e6
    row = lines[3]
    assert row["change"][row["dim"].index(507)] == pytest.approx(sweep.effect(507, "layer 3").change, rel=1e-2)
    step = math.ceil(2048 / (MAX_CELLS // 20))
    assert f"Each cell stands for {step} neighbouring dimensions and shows the largest |change|" in chart.reading
    changes = sweep.map()[7, :step]
    assert abs(lines[7]["change"][0]) == pytest.approx(np.abs(changes).max(), rel=1e-2)
    above = [layer for layer in chart.spec["layer"][1:] if layer["mark"]["type"] == "text"]
    assert {value["dim"] for layer in above for value in layer["data"]["values"]} == set(names(sweep))


@pytest.mark.parametrize(("windows", "at"), [("single", 3), ("from", 0), ("upto", 5)])
def test_lines_by_layer_stand_at_the_layer_that_the_window_names(windows, at):
    sweep = synthetic.layer_sweep(n_layers=6, windows=windows)
    chart = charts.sweep_windows(sweep)
    (rows,) = [layer["data"]["values"] for layer in chart.spec["layer"] if "layer" in layer]
    together = [row for row in rows if row["name"] == "100, 247, 507 together"]
    assert [row["layer"] for row in together] == list(range(6))
    assert max(together, key=lambda row: row["change"])["layer"] == at
    assert {row["name"] for row in rows} == {"100, 247, 507 together", "dim 100", "dim 247", "dim 507"}
    band = chart.spec["layer"][0]["data"]["values"]
    assert [b["layer"] for b in band] == list(range(6))
    null = next(n for n in sweep.nulls if n.window == sweep.windows_swept[2])
    assert band[2]["median"] == pytest.approx(null.median, rel=1e-3)
    assert "Band: the middle 90 % of 19 random sets of 3" in chart.reading


def test_many_other_dimensions_are_the_band_where_they_were_swept():
    sweep = synthetic.layer_sweep(tuple(range(90, 110)) + synthetic.NEEDLES[1:], n_layers=3)
    text = charts.sweep_windows(sweep).reading
    assert "random sets of 3" in text  # nineteen ordinary dimensions are too few
    sweep = synthetic.layer_sweep(tuple(range(90, 130)) + synthetic.NEEDLES[1:], n_layers=3)
    assert "single dimensions that the weights do not name" in charts.sweep_windows(sweep).reading


def test_nulls_mark_the_set_among_all_its_controls(sweep):
    chart = charts.sweep_nulls(sweep)
    dots, chosen = groups(chart)[1:3]
    families = ["100, 247, 507|200 random sets", "100, 247, 507|19 matched sets"]
    assert [sum(d["family"] == family for d in dots) for family in families] == [200, 19]
    assert [(c["family"], c["says"], c["change"]) for c in chosen] == [
        (families[0], "p = 0.005", 9.1),
        (families[1], "p = 0.05", 9.1),
    ]
    assert "rank p 0.005, which can be 0.005 at best" in chart.reading
    assert "Matched weights elsewhere reach 93 %" in chart.reading


def test_many_controls_and_many_sets_are_thinned_and_that_is_said():
    changes = tuple(np.sort(np.random.default_rng(0).normal(size=1000)).tolist())
    kept = quantiles(changes)
    assert len(kept) == MAX_CONTROLS
    assert (kept[0], kept[-1]) == (changes[0], changes[-1])
    assert np.median(kept) == pytest.approx(np.median(changes), abs=0.01)
    sweep = synthetic.layer_sweep()
    sweep = replace(sweep, nulls=(replace(sweep.nulls[0], changes=changes), *sweep.nulls[1:]))
    chart = charts.sweep_nulls(sweep)
    assert len({row["family"] for row in groups(chart)[1]}) == MAX_NULLS
    assert f"The {MAX_NULLS} largest sets of 30 are drawn." in chart.reading
    assert chart.total == 30


def test_infinite_changes_are_said_and_not_drawn(sweep):
    broken = replace(sweep.effect(100), change=math.inf, low=math.nan, high=math.inf)
    effects = tuple(broken if e.dims == (100,) else e for e in sweep.effects)
    half = tuple(replace(e, low=-math.inf, high=math.inf) if e.dims == (3,) else e for e in effects)
    lost = replace(sweep, effects=half)
    for make in (charts.sweep_effects, charts.sweep_ranked):
        chart = make(lost)
        assert 100 not in drawn(chart)
        assert drawn(chart)[3]["low"] is None
        assert "With 100 off the causal loss is infinite or undefined" in chart.reading
        json.dumps(chart.spec, allow_nan=False)
    assert "A blank cell" not in charts.sweep_map(lost).reading  # a column without a number is no column
    null = replace(sweep.nulls[0], change=math.nan, changes=(*sweep.nulls[0].changes[:-1], math.inf))
    json.dumps(charts.sweep_nulls(replace(sweep, nulls=(null, sweep.nulls[1]))).spec, allow_nan=False)


def test_what_cannot_be_drawn_is_said(sweep):
    sets = replace(sweep, effects=sweep.effects[-1:])
    for picture in (charts.sweep_effects, charts.sweep_ranked, charts.sweep_map):
        with pytest.raises(BadInput, match=r"no single dimension was measured.*; sweep without dims=\(\)"):
            picture(sets)
    with pytest.raises(BadInput, match="no window 'layer 99' in this sweep; it has all layers"):
        charts.sweep_effects(sweep, "layer 99")
    with pytest.raises(BadInput, match="has one layer window; sweep with windows single, from or upto"):
        charts.sweep_windows(sweep)
    with pytest.raises(BadInput, match="holds no control sets; sweep a set"):
        charts.sweep_nulls(replace(sweep, nulls=()))
    bare = synthetic.layer_sweep((1, 2), n_layers=3)
    with pytest.raises(BadInput, match="no named dimension or set was measured"):
        charts.sweep_windows(replace(bare, effects=bare.singles()))


def test_noise_gets_no_name():
    quiet = synthetic.sweep(strong={}, found=())
    small = replace(
        quiet, effects=tuple(replace(e, change=0.01 * e.change, low=-0.01, high=0.01) for e in quiet.effects)
    )
    assert names(small) == ()
    assert texts(charts.sweep_effects(small)) == {}


@given(st.lists(st.tuples(st.floats(0.05, 0.9), st.floats(0.1, 0.9)), min_size=1, max_size=5, unique=True))
def test_names_stay_on_the_canvas_and_off_other_names_where_there_is_room(at):
    rows = [{"dim": 100 + i} for i in range(len(at))]
    layers = names_beside(rows, at, (), {}, {})[1::2]
    assert len(layers) == len(rows)
    boxes = []
    for layer, (right, up) in zip(layers, at, strict=True):
        mark = layer["mark"]
        left = right * 740 + mark["dx"] - {"left": 0, "right": 24, "center": 12}[mark["align"]]
        top = (1 - up) * 300 + mark["dy"] - 8
        assert 0 <= left <= 740 - 24
        boxes.append((left, top, left + 24, top + 16))
    apart = all(abs(a[0] - b[0]) > 0.1 or abs(a[1] - b[1]) > 0.15 for i, a in enumerate(at) for b in at[:i])
    if apart:
        assert not any(draw._overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])
