"""What a sweep says and shows: its sentences by rule, its tables, what is thinned, and that its pictures compile."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import synthetic_report as synthetic
from outlierlens.analyses.sweep.finding import MAX_MARKS, MAX_NULLS, Sweep, thin
from outlierlens.analyses.sweep.rows import MAX_DRAWS
from outlierlens.results.rows import Estimate


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return synthetic.sweep()


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
    assert f"The chart shows {len(rows):,} of 8,192" in chart.reading
    assert len(json.dumps(chart.spec)) < 600_000


def test_the_sample_is_even_over_the_rest():
    effects = [synthetic.effect(dim, 1e-3 if dim < 8192 - 512 else 1.0) for dim in range(8192)]
    kept = thin(effects)
    sample = np.array([e.dims[0] for e in kept if e.change.value < 1])
    assert len(kept) - len(sample) == 512
    assert np.histogram(sample, 16, (0, 8192 - 512))[0].tolist() == pytest.approx([32] * 16, abs=3)
    assert np.bincount(sample % 64, minlength=64).min() > 0  # every place within a head of 64
    assert thin(effects[:MAX_MARKS]) == effects[:MAX_MARKS]


def test_of_many_draws_the_ends_and_quantiles_between_are_kept(sweep):
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


def test_noise_gets_no_name():
    quiet = synthetic.sweep(strong={}, found=())
    small = (replace(e, change=Estimate(0.01 * e.change.value, -0.01, 0.01)) for e in quiet.effects)
    noise = replace(quiet, effects=tuple(small))
    assert noise.named() == noise.heavy == ()


def test_the_damage_map_has_a_cell_for_each_layer_and_dimension_and_the_largest_of_many() -> None:
    swept = synthetic.layer_sweep()
    (spec,) = (one for one in swept.chart().spec["vconcat"] if one["title"]["text"] == "By layers and dimensions")
    cells = spec["layer"][0]["data"]["values"]
    assert {(cell["dim"], cell["window"]): cell["change"] for cell in cells} == {
        (one.dims[0], one.window): pytest.approx(one.change.value, rel=1e-3) for one in swept.singles()
    }
    assert cells[0]["size"] == max(cell["size"] for cell in cells)
    wide = synthetic.layer_sweep(tuple(range(576)), n_layers=4)
    kept = wide.chart().spec["vconcat"][1]["layer"][0]["data"]["values"]
    sizes = sorted((abs(one.change.value) for one in wide.singles()), reverse=True)
    assert len(kept) == MAX_MARKS < len(sizes)
    assert min(cell["size"] for cell in kept) == pytest.approx(sizes[MAX_MARKS - 1], rel=1e-3)
