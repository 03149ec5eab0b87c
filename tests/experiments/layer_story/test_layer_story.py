"""Damage by layer beside correlations by layer: worked out by hand, against scipy, as a command and as a picture."""

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from layer_story_results import LAYERS, NAMED, R, attention, frequency, singles
from outlierlens import charts
from outlierlens.errors import BadInput
from outlierlens.experiments.layer_story.result import layer_story, link_rows, story_rows
from outlierlens.experiments.sweep.result import Sweep
from outlierlens.results.document import from_json, save, to_json


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """Dimensions 2 and 5 and both together, in single layers; damage of 2 grows as its |r| with the raw count."""
    made = singles(NAMED)
    order = np.argsort(np.argsort(np.abs(R[1:, 2])))
    effects = [
        replace(one, change=0.1 * float(order[one.layers[0]]), low=-0.01, high=0.01) if one.dims == (2,) else one
        for one in made.effects
    ]
    return replace(made, effects=tuple(effects))


def test_damage_in_the_order_of_the_correlation_is_told_with_its_p(sweep: Sweep) -> None:
    story = layer_story(sweep, frequency=frequency(sweep), attention=attention(sweep), n_draws=200)
    line = story.line("2")
    np.testing.assert_allclose(line.damage, 0.1 * np.argsort(np.argsort(np.abs(R[1:, 2]))))
    raw = line.link("frequency, raw")
    np.testing.assert_array_equal(raw.value, R[1:, 2])  # without the embeddings, in the order of the blocks
    assert raw.rho == pytest.approx(1)
    # of the 720 orders of six layers two are as extreme: this one and its reverse
    assert raw.p == pytest.approx(2 / math.factorial(LAYERS))
    assert raw.noise_low < raw.noise_high <= 1
    other = line.link("frequency, log")
    expected = stats.spearmanr(line.damage, np.abs(R[::-1][1:, 2]))
    assert other.rho == pytest.approx(expected.statistic)
    assert line.link("attention").low == pytest.approx(R[1:, 2] - 0.1)
    with pytest.raises(BadInput, match="no link 'loss'; there are frequency, raw, frequency, log, attention"):
        line.link("loss")
    with pytest.raises(BadInput, match="no line '9'; there are 2, 5"):
        story.line("9")


def test_a_set_has_the_mean_size_of_its_dimensions_correlations(sweep: Sweep) -> None:
    both = [replace(one, dims=NAMED, label="2, 5") for one in sweep.effects if one.dims == (5,)]
    story = layer_story(replace(sweep, effects=(*sweep.effects, *both)), frequency=frequency(sweep), n_draws=20)
    link = story.line("2, 5").link("frequency, raw")
    np.testing.assert_allclose(link.value, np.abs(R[1:, NAMED]).mean(1))
    assert np.isnan(link.low).all()
    assert math.isnan(link.noise_low)


def test_what_does_not_belong_together_is_refused(sweep: Sweep) -> None:
    found = frequency(sweep)
    with pytest.raises(BadInput, match="windows 'all'; sweep with --windows single"):
        layer_story(replace(sweep, windows="all"), frequency=found)
    with pytest.raises(BadInput, match="give what frequency or attention measured"):
        layer_story(sweep)
    elsewhere = replace(found, provenance=replace(found.provenance, fingerprint="other"))
    with pytest.raises(BadInput, match=r"the sweep is of .*, frequency of .*, with other weights or another stream"):
        layer_story(sweep, frequency=elsewhere)
    with pytest.raises(BadInput, match="swept in each of at least 4 layers; here are 6 layers and 0 dimensions"):
        layer_story(replace(sweep, effects=sweep.effects[:1]), frequency=found)


def test_only_named_dimensions_get_a_line_where_very_many_were_swept() -> None:
    many = singles((*NAMED, 0))
    others = list(itertools.combinations((0, 1, 3, 4, 6, 7), 3))
    effects = [replace(one, dims=dims) for one in many.effects if one.dims == (0,) for dims in others]
    named = [one for one in many.effects if one.dims != (0,)]
    few = layer_story(replace(many, effects=tuple(named + effects[::4])), frequency=frequency(many), n_draws=20)
    assert few.notes == ()
    pairs = [replace(one, dims=one.dims[:2]) for one in effects]
    story = layer_story(replace(many, effects=(*named, *effects, *pairs)), frequency=frequency(many), n_draws=20)
    assert [line.dims for line in story.lines] == [(2,), (5,)]
    assert story.notes == ("30 swept dimensions or sets that nothing names are left out",)


def test_rows_files_picture_and_command(sweep: Sweep, tmp_path: Any, run: Any) -> None:
    story = layer_story(sweep, frequency=frequency(sweep), attention=attention(sweep), n_draws=50)
    assert to_json(from_json(to_json(story))) == to_json(story)
    rows = list(story_rows(story))
    assert len(rows) == 2 * LAYERS
    assert rows[0]["frequency_raw"] == pytest.approx(R[1, 2])
    assert [row["with"] for row in link_rows(story)] == ["frequency, raw", "frequency, log", "attention"] * 2
    drawn = charts.layer_story(story)
    assert len(drawn.spec["vconcat"]) == 4
    assert "2 and frequency, raw: rank correlation over layers +1.00" in drawn.reading
    json.dumps(drawn.spec, allow_nan=False)
    save(sweep, tmp_path / "sweep.json")
    save(frequency(sweep), tmp_path / "frequency.json")
    code, out, _ = run(
        "layer-story", str(tmp_path / "sweep.json"), "--frequency", str(tmp_path / "frequency.json"), "--chart",
        str(tmp_path / "story.svg"),
    )  # fmt: skip
    assert code == 0
    assert "2: over 6 layers, damage and |r| with frequency, raw have a rank correlation of +1.00" in out
    assert (tmp_path / "story.svg").read_text().startswith("<svg")
    code, _, err = run("layer-story", str(tmp_path / "sweep.json"), "--attention", str(tmp_path / "frequency.json"))
    assert code == 1
    assert "holds Frequency, wanted is Attention" in err
