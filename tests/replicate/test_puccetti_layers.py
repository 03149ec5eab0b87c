"""Damage by layer beside correlations by layer: worked out by hand, against scipy, and as a picture."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from layer_story_results import LAYERS, NAMED, R, attention, frequency, singles
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.errors import BadInput
from outlierlens.replicate.puccetti import layer_story
from outlierlens.results.rows import Estimate


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """Dimensions 2 and 5 and both together, in single layers; damage of 2 grows as its |r| with the raw count."""
    made = singles(NAMED)
    order = np.argsort(np.argsort(np.abs(R[1:, 2])))
    effects = [
        replace(one, change=Estimate(0.1 * float(order[one.layers[0]]), -0.01, 0.01)) if one.dims == (2,) else one
        for one in made.effects
    ]
    return replace(made, effects=tuple(effects))


def test_damage_in_the_order_of_the_correlation_is_told_with_its_p(sweep: Sweep) -> None:
    story = layer_story(sweep, frequency=frequency(sweep), attention=attention(sweep))
    rows = [row for row in story.by_layer if row.dims == "2"]
    assert [row.damage.value for row in rows] == pytest.approx(
        (0.1 * np.argsort(np.argsort(np.abs(R[1:, 2])))).tolist()
    )
    # without the embeddings, in the order of the blocks
    assert [row.raw.value for row in rows if row.raw] == R[1:, 2].tolist()
    raw = story.link("2", "frequency, raw")
    assert raw.rho.value == pytest.approx(1)
    # of the 720 orders of six layers two are as extreme: this one and its reverse
    assert raw.p == pytest.approx(2 / math.factorial(LAYERS))
    assert raw.noise_low < raw.noise_high <= 1
    other = story.link("2", "frequency, log")
    expected = stats.spearmanr([row.damage.value for row in rows], np.abs(R[::-1][1:, 2]))
    assert other.rho.value == pytest.approx(expected.statistic)
    assert [row.attention.low for row in rows if row.attention] == pytest.approx((R[1:, 2] - 0.1).tolist())
    with pytest.raises(BadInput, match="no link of '2' with 'loss'; there are 2 / frequency, raw, 2 / frequency, log"):
        story.link("2", "loss")


def test_a_set_has_the_mean_size_of_its_dimensions_correlations(sweep: Sweep) -> None:
    both = [replace(one, dims=NAMED, label="2, 5") for one in sweep.effects if one.dims == (5,)]
    story = layer_story(replace(sweep, effects=(*sweep.effects, *both)), frequency=frequency(sweep))
    raw = [row.raw for row in story.by_layer if row.dims == "2, 5" and row.raw]
    np.testing.assert_allclose([one.value for one in raw], np.abs(R[1:, NAMED]).mean(1))
    assert not any(one.settled for one in raw)
    assert math.isnan(story.link("2, 5", "frequency, raw").noise_low)


def test_what_does_not_belong_together_is_refused(sweep: Sweep) -> None:
    found = frequency(sweep)
    with pytest.raises(BadInput, match="windows 'all'; sweep with --windows single"):
        layer_story(replace(sweep, windows="all"), frequency=found)
    with pytest.raises(BadInput, match="give the result of frequency or attention"):
        layer_story(sweep)
    elsewhere = replace(found, provenance=replace(found.provenance, fingerprint="other"))
    with pytest.raises(BadInput, match=r"the sweep is of .*, frequency of .*, with other weights or another stream"):
        layer_story(sweep, frequency=elsewhere)
    with pytest.raises(BadInput, match="swept in each of at least 4 layers; here are 6 layers and 0 dimensions"):
        layer_story(replace(sweep, effects=sweep.effects[:1]), frequency=found)
