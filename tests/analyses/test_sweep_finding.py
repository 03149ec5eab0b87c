"""What a sweep says and shows: its sentences by rule, its tables, what is thinned, and that its pictures compile."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import synthetic_report as synthetic
from outlierlens.analyses.sweep.finding import MAX_MARKS, MAX_NULLS, MORE, TABLE, Sweep, thin
from outlierlens.analyses.sweep.rows import MAX_DRAWS, Precision
from outlierlens.errors import BadInput
from outlierlens.results.rows import Estimate
from outlierlens.view.charts.base import picture


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return synthetic.sweep()


def said_of(sweep: Sweep) -> tuple[str, ...]:
    return tuple(sweep.sentences())


def test_the_finding_names_the_leader_with_interval_and_says_whether_weights_had_named_it(sweep):
    said = said_of(sweep)
    assert said[0] == (
        "Of 576 dimensions switched off one at a time, 507 changes the causal loss most: +8.4 nats per token "
        "(95 % interval +7.98 to +8.82; perplexity ×4,450); the next, 100, +0.29."
    )
    named = "507 (number 1), 100 (number 2) and 247 (number 3)"
    assert said[1] == f"Of these 576 the weights name {named}, counted from the largest change."
    above = sum(e.low > 0.02 for e in sweep.singles())
    assert said[2] == (
        f"{above} of 576 dimensions lie above twice the tolerance (0.02 nats per token) with the whole interval."
    )
    assert said[3].startswith("100, 247 and 507 off together: +9.1 nats per token")
    assert "200 random sets: +0.061 in the median (rank p = 0.005)" in said[3]
    assert said[4] == "The order of the 5 strongest is settled."


def test_a_dimension_that_the_weights_do_not_name_may_lead():
    said = said_of(synthetic.sweep(strong={40: 2.0, 100: 1.0, 247: 0.5}, found=(100, 300)))
    assert said[1].startswith("Of these 576 the weights name 100 (number 2) and 300 (number ")


def test_nothing_found_nothing_strong_is_said_plainly():
    quiet = synthetic.sweep(strong={}, found=())
    effects = tuple(replace(e, change=Estimate(e.change.value / 100, -0.01, 0.01)) for e in quiet.effects)
    said = said_of(replace(quiet, effects=effects))
    assert said[0].startswith(
        "Of 576 dimensions switched off one at a time none is shown to change the causal loss: the largest"
    )
    assert said[1] == "The weights name no dimension here."
    assert replace(quiet, effects=effects).heavy == ()


def test_infinite_unfinished_and_unsettled_are_said(sweep):
    broken = tuple(
        replace(e, change=Estimate(math.inf, math.nan, math.inf)) if e.dims == (100,) else e for e in sweep.effects
    )
    said = said_of(replace(sweep, effects=broken))
    assert said[0] == "With 100 off, each on its own, the causal loss is infinite or undefined."
    assert "Of 575 dimensions" in said[1]
    assert [e.dims[0] for e in replace(sweep, effects=broken).heavy][:2] == [100, 507]
    half = tuple(replace(e, stopped="unfinished") if e.dims[0] < 5 else e for e in sweep.effects)
    assert any(one.startswith("5 of 577 effects are unfinished") for one in said_of(replace(sweep, effects=half)))
    assert "The order of the 5 strongest is not settled." in said_of(replace(sweep, separated=False))
    assert said_of(replace(sweep, effects=())) == ("Nothing was measured.",)


def test_layers_sets_alone_and_output_change():
    said = said_of(synthetic.layer_sweep())
    assert said[0].startswith(
        "Of 16 dimensions in each of 30 layer windows switched off one at a time, 507 in layer 3 changes"
    )
    assert said[1].startswith("Of these 16 the weights name 507 (number 1), 100 (number 2)")
    assert "100, 247 and 507 off together, layer 3: +6.02" in said[3]
    alone = replace(synthetic.sweep(), effects=synthetic.sweep().effects[-1:])
    assert said_of(alone)[0].startswith("100, 247 and 507 off together: +9.1")
    cosine = synthetic.sweep(task="output change", unit="cosine distance")
    assert said_of(cosine)[0].endswith("+8.4 cosine distance (95 % interval +7.98 to +8.82); the next, 100, +0.29.")


def test_cost_saving_and_precision_are_said(sweep):
    cost = sweep.cost
    spent = cost.intact + cost.effects + 3 * cost.gradient_texts
    said = " ".join(said_of(replace(sweep, precision=Precision("bfloat16", 0.0031, 10, 16, intact=-0.0004))))
    assert f"every text takes {cost.exact:,}, {cost.exact / spent:.1f} times what was spent here" in said
    moved = "the intact value differs from float32 by -0.0004, changes by at most 0.0031 nats per token"
    assert f"Computed in bfloat16: {moved} (10 sets, 16 texts)." in said


def cells(chart):
    """Every mark of a single dimension that is drawn, by dimension."""
    found = {}

    def walk(value):
        if isinstance(value, dict):
            for row in value.get("values", ()) if "values" in value else ():
                if isinstance(row, dict) and "dim" in row and "change" in row:
                    found[row["dim"]] = row
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                walk(one)

    walk(chart.spec)
    return found


def test_every_picture_compiles():
    pytest.importorskip("vl_convert")
    wide = synthetic.layer_sweep(tuple(range(576)), n_layers=4)
    for swept in (synthetic.sweep(), synthetic.layer_sweep(n_layers=6), wide, synthetic.sweep(strong={}, found=())):
        chart = swept.chart()
        drawn = picture(chart, "svg").decode()
        assert drawn.startswith("<svg")
        assert "NaN" not in drawn
        json.dumps(chart.spec, allow_nan=False)


def test_every_dimension_is_drawn_with_its_interval_and_the_band_of_the_ordinary_ones(sweep):
    chart = sweep.chart()
    rows = cells(chart)
    assert sorted(rows) == list(range(576))
    assert (rows[507]["change"], rows[507]["low"], rows[507]["high"]) == (8.4, 7.98, 8.82)
    assert sweep.named() == (100, 247, 507, 31, 386)  # the weights', and the other two of the five largest
    values = [e.change.value for e in sweep.singles() if e.dims[0] not in synthetic.NEEDLES]
    assert sweep.band() == pytest.approx(tuple(np.percentile(values, (5, 50, 95))))
    assert "the middle 90 % lie between" in chart.reading
    few = replace(sweep, effects=sweep.effects[:10])
    assert few.band() is None
    assert "middle 90 %" not in few.chart().reading


def test_of_thousands_the_extreme_and_a_sample_are_drawn_and_that_is_said():
    large = synthetic.sweep(8192)
    chart, named = large.chart(), large.named()
    rows = cells(chart)
    plain = sorted((e for e in large.singles() if e.dims[0] not in named), key=lambda e: -abs(e.change.value))
    assert {e.dims[0] for e in plain[: MAX_MARKS // 2]} <= set(rows)
    assert len(rows) <= MAX_MARKS + len(named)
    assert f"Drawn are {len(rows):,} of 8,192" in chart.reading
    assert len(json.dumps(chart.spec)) < 600_000


def test_the_sample_is_even_over_the_rest():
    effects = [synthetic.effect(dim, 1e-3 if dim < 8192 - 512 else 1.0) for dim in range(8192)]
    kept = thin(effects)
    sample = np.array([e.dims[0] for e in kept if e.change.value < 1])
    assert len(kept) - len(sample) == 512
    assert np.histogram(sample, 16, (0, 8192 - 512))[0].tolist() == pytest.approx([32] * 16, abs=3)
    assert np.bincount(sample % 64, minlength=64).min() > 0  # every place within a head of 64
    assert thin(effects[:MAX_MARKS]) == effects[:MAX_MARKS]


@pytest.mark.parametrize("windows", ["single", "from", "upto"])
def test_windows_are_lines_of_what_has_a_name_and_a_table_of_all(windows):
    swept = synthetic.layer_sweep(n_layers=6, windows=windows)
    lines = swept.drawn()[0]
    assert {row.dims for row in lines.chosen(swept)} == {(100,), (247,), (507,), synthetic.NEEDLES}
    (table, _) = swept.shown()
    assert [row[0] for row in table.rows] == list(swept.windows_swept)
    assert table.columns[1:4] == ("100, 247, 507", "507", "100")
    assert table.rows[3][2] == swept.effect(507, swept.windows_swept[3]).change.value
    (more, _) = swept.shown(verbose=True)
    assert (more.title, len(more.rows)) == ("Largest changes of 102", MORE)


def test_the_largest_come_first_and_the_rest_is_counted(sweep):
    table, nulls = sweep.shown()
    assert [row[0] for row in table.rows[:3]] == ["100, 247, 507", "507", "100"]
    assert len(table.rows) == TABLE
    assert table.note == f"{577 - TABLE:,} more in the result's file."
    assert "95 %" in table.columns
    (narrow, _) = replace(sweep, level=0.9).shown()
    assert "90 %" in narrow.columns
    assert "95 %" not in narrow.columns
    assert [row[1] for row in nulls.rows] == ["random", "matched"]


def test_sets_stand_among_their_controls_of_which_some_are_drawn(sweep):
    _, random, matched = sweep.drawn()
    assert [len(one.chosen(sweep)) for one in (random, matched)] == [1, 1]
    assert "200 random sets of the same size: median" in sweep.chart().reading
    changes = tuple(np.sort(np.random.default_rng(0).normal(size=1000)).tolist())
    kept = replace(sweep.nulls[0], changes=changes, n=1000).sample
    assert (len(kept), kept[0], kept[-1]) == (MAX_DRAWS, changes[0], changes[-1])
    assert np.median(kept) == pytest.approx(np.median(changes), abs=0.01)
    layers = synthetic.layer_sweep()
    assert len(layers.drawn()[2].chosen(layers)) == MAX_NULLS


def test_a_model_that_broke_down_is_said_and_not_drawn(sweep):
    broken = replace(sweep.effect(100), change=Estimate(math.inf, math.nan, math.inf))
    wide = replace(sweep.effect(3), change=Estimate(0.01, -math.inf, math.inf))
    effects = tuple(broken if e.dims == (100,) else wide if e.dims == (3,) else e for e in sweep.effects)
    lost = replace(sweep, effects=effects)
    rows = cells(lost.chart())
    assert 100 not in rows
    assert rows[3]["low"] is None
    json.dumps(lost.chart().spec, allow_nan=False)
    null = replace(sweep.nulls[0], change=math.nan, changes=(*sweep.nulls[0].changes[:-1], math.inf))
    json.dumps(replace(sweep, nulls=(null, sweep.nulls[1])).chart().spec, allow_nan=False)


def test_what_cannot_be_drawn_is_said(sweep):
    sets = replace(sweep, effects=sweep.effects[-1:])
    with pytest.raises(BadInput, match=r"no window '' in this sweep|no single dimension was measured"):
        sets.measured()
    with pytest.raises(BadInput, match="no window 'layer 99' in this sweep; it has all layers"):
        sweep.measured("layer 99")
    with pytest.raises(BadInput, match="no row that a picture draws"):
        replace(sets, nulls=()).chart()


def test_noise_gets_no_name():
    quiet = synthetic.sweep(strong={}, found=())
    small = (replace(e, change=Estimate(0.01 * e.change.value, -0.01, 0.01)) for e in quiet.effects)
    assert replace(quiet, effects=tuple(small)).named() == ()


def test_the_damage_map_has_a_cell_for_each_layer_and_dimension_and_the_largest_of_many() -> None:
    swept = synthetic.layer_sweep()
    (spec,) = (one for one in swept.chart().spec["vconcat"] if one["title"]["text"] == "By layers and dimensions")
    cells = spec["layer"][0]["data"]["values"]
    assert {(cell["dim"], cell["window"]): cell["change"] for cell in cells} == {
        (one.dims[0], one.window): pytest.approx(one.change.value, rel=1e-3) for one in swept.singles()
    }
    assert cells[0]["size"] == max(cell["size"] for cell in cells)
    assert "The darkest cell is 507 in layer 3: +5.04" in swept.chart().reading
    wide = synthetic.layer_sweep(tuple(range(576)), n_layers=4)
    kept = wide.chart().spec["vconcat"][1]["layer"][0]["data"]["values"]
    sizes = sorted((abs(one.change.value) for one in wide.singles()), reverse=True)
    assert len(kept) == MAX_MARKS < len(sizes)
    assert min(cell["size"] for cell in kept) == pytest.approx(sizes[MAX_MARKS - 1], rel=1e-3)
    assert f"Drawn are the {MAX_MARKS:,} largest of {len(sizes):,} changes." in wide.chart().reading
