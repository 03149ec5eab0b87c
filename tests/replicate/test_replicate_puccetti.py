"""Puccetti et al. on a small model: parts are kept, a stopped run goes on, and the page says what they say.

Damage by layer beside correlations by layer: worked out by hand, against scipy, and as a picture.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import tuned_models
from layer_story_results import LAYERS, NAMED, R, attention, frequency, singles
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.data.texts import read_texts
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.replicate.puccetti import PARTS, PuccettiOptions, PuccettiReplication, layer_story, replicate_puccetti
from outlierlens.results.document import load
from outlierlens.results.rows import Estimate
from paper_runs import gone_on

LOAD = LoadOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, words: Any) -> Path:
    """A classifier with planted outliers, and texts whose words are more and less frequent."""
    folder = tmp_path_factory.mktemp("puccetti")
    tuned_models.save_model(folder / "tiny", words)
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, tuned_models.WORDS + 1)
    said = [
        " ".join(f"w{one}" for one in random.choice(tuned_models.WORDS, 6, p=share / share.sum())) for _ in range(40)
    ]
    (folder / "texts.txt").write_text("\n".join(said) + "\n")
    return folder


def made_of(
    place: Path, name: str, *, model: str = "tiny", limit: int | None = None, **asked: Any
) -> PuccettiReplication:
    loaded, texts = load_model(str(place / model), LOAD), read_texts(str(place / "texts.txt"), limit=limit)
    return replicate_puccetti(loaded, texts, PuccettiOptions(**asked), folder=place / name)


@pytest.fixture(scope="module")
def whole(place: Path) -> PuccettiReplication:
    return made_of(place, "whole")


def test_every_part_that_the_model_can_do_is_measured_and_kept(place: Path, whole: PuccettiReplication) -> None:
    assert set(whole.dims) == set(tuned_models.PLANTED)
    assert [one.part for one in whole.measured] == ["frequency", "attention", "layers", "bands"]
    assert any("what the model says without them: left out, for" in note for note in whole.notes)
    assert any("token frequencies are those of the measured texts (240 tokens)" in note for note in whole.notes)
    kept = {path.stem for path in (place / "whole/parts").glob("*.json")}
    assert kept == {"sweep", *(one.part for one in whole.measured)}
    swept, story = load(place / "whole/parts/sweep.json"), whole.part("layers")
    assert swept.windows == "single"
    # every outlier alone and all together, in each of four layers; the story has a line for each
    assert len(swept.effects) == 4 * tuned_models.LAYERS
    labels = dict.fromkeys(row.dims for row in story.by_layer)
    assert [*labels] == [*map(str, sorted(whole.dims)), ", ".join(map(str, whole.dims))]
    assert len(story.by_layer) == len(labels) * tuned_models.LAYERS


def test_a_stopped_run_goes_on_and_other_settings_are_not_mixed_in(
    place: Path, whole: PuccettiReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = place / "stopped/rows"
    again = gone_on(PARTS, "bands", rows, lambda: made_of(place, "stopped"), monkeypatch)
    for mine, other in zip(again.parts, whole.parts, strict=True):
        pd.testing.assert_frame_equal(mine.to_pandas(), other.to_pandas(), rtol=1e-12)
    fewer = made_of(place, "stopped", limit=30, parts=("frequency",))
    assert fewer.part("frequency").about.n_texts == 30
    alone = made_of(place, "fewer", limit=30, parts=("frequency",))
    pd.testing.assert_frame_equal(fewer.part("frequency").to_pandas(), alone.part("frequency").to_pandas())


def test_where_the_weights_name_nothing_the_strongest_are_a_fallback_that_is_said(place: Path, words: Any) -> None:
    tuned_models.save_model(place / "plain", words, planted=False)
    found = made_of(place, "plain-run", model="plain", parts=("frequency",))
    assert len(found.dims) == 2
    assert found.about.named_by == "largest |z| in the weights, as the scan names none"
    assert any("are the 2 of largest |z| in the weights, which is not a finding" in note for note in found.notes)
    alone = made_of(place, "alone", parts=("layers",))
    assert alone.parts == ()
    assert any(
        "a rank correlation over layers needs 4 layers, and frequency or attention" in one for one in alone.notes
    )


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
