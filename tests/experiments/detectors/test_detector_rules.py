"""The rules of `definitions`: numbers worked out by hand at each threshold, and NumPy, SciPy or brute force as oracles."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import detector_results
from outlierlens.cli.experiment import print_sections
from outlierlens.detection.rules import ActivationRules
from outlierlens.detection.running_statistics import QUANTILE_ERROR, SMALLEST, LargeCounts, LogHistogram
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.detectors import rules
from outlierlens.experiments.detectors.options import Settings
from outlierlens.experiments.detectors.result import MODEL, RANDOM, ROTATED, jaccard
from outlierlens.experiments.detectors.rules import LayerSums, SequenceKurtosis
from outlierlens.experiments.detectors.view import verdict
from outlierlens.report.result import Joined, joined_sections, with_result
from outlierlens.training.pretrain.build import kurtosis
from outlierlens.vectors.cosines import contributions, mean_cosine, unit


def test_systematic_is_above_the_ratio_and_not_at_it() -> None:
    flags = rules.systematic(np.array([[2000.0, 2001.0, 1.0], [0.0, 0.0, 0.0]]), np.array([2.0, 0.0]), 1000)
    assert flags.holds.tolist() == [[False, True, False], [False] * 3]  # a layer of zeros has no outlier
    np.testing.assert_allclose(flags.strength[0], [1000, 1000.5, 0.5])


def test_rudman_takes_five_times_the_mean_variance() -> None:
    # nine dimensions of variance 1 and one of 9: the mean is 1.8, of which 9 is exactly five times
    at = np.array([[1.0] * 9 + [9.0], [1.0] * 9 + [8.9], [0.0] * 10])
    flags = rules.rudman(at, 5)
    assert [np.flatnonzero(row).tolist() for row in flags.holds] == [[9], [], []]
    assert flags.strength[0, 9] == 5


def test_timkey_needs_a_share_and_a_cosine_to_share() -> None:
    parts = np.array([[0.25, 0.2, 0.5, 0.05], [0.01, 0.0, 0.03, 0.0], [-0.5, 0.1, 0.1, 0.1]])
    flags = rules.timkey(parts, 0.25, 0.05)
    assert [np.flatnonzero(row).tolist() for row in flags.holds] == [[0, 2], [], []]
    assert rules.timkey(parts, 0.25, 0.04).holds[1].tolist() == [True, False, True, False]


def test_macocco_compares_the_median_with_the_quantile() -> None:
    medians = np.array([[1.0, 2.0, 2.01, np.nan]])
    assert rules.macocco(medians, np.array([2.0])).holds.tolist() == [[False, False, True, False]]
    assert not rules.macocco(medians, np.array([0.0])).holds.any()  # nothing to be larger than


def test_he_by_hand_and_as_the_training_penalty_has_it() -> None:
    energy = np.array([[5.0, 1, 1, 1]])  # s = 2.5, 0.5, 0.5, 0.5: variance (2.25 + 3 · 0.25) / 4 = 0.75
    assert rules.he_parts(energy)[0].tolist() == [0.5625, 0.0625, 0.0625, 0.0625]
    assert rules.he(energy, 1.75, 0.5).holds.tolist() == [[True, False, False, False]]
    assert not rules.he(energy, 1.7501, 0.5).holds.any()
    states = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 8)
    parts = rules.he_parts(states.double().square().sum(0).numpy()[None])
    assert parts.sum() + 1 == pytest.approx(float(kurtosis(states)), rel=1e-5)


def test_a_dimension_smaller_than_the_mean_never_carries_he_s_kurtosis() -> None:
    energy = np.array([[3.0, 3.0, 3.0, 3.0, 0.0]])
    assert rules.he(energy, 1.0, 1.0).holds.tolist() == [[True, True, True, True, False]]


@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0.01, 1))
def test_carriers_are_the_fewest_that_reach_the_share(seed: int, width: int, share: float) -> None:
    values = np.random.default_rng(seed).integers(0, 5, size=(1, width)).astype(float)  # with ties and zeros
    chosen = rules.carriers(values, share, values.sum(1))[0]
    wanted, kept = share * values.sum(), values[0][chosen]
    if not values.sum() > 0:
        assert not chosen.any()
        return
    assert kept.sum() >= wanted * (1 - 1e-9)
    assert kept.sum() - kept.min() < wanted * (1 + 1e-9)  # without its smallest it would not
    assert not (values[0][~chosen] > kept.min()).any()


def test_bondarenko_kurtosis_is_scipy_s_and_its_parts_add_up() -> None:
    random = np.random.default_rng(0)
    sums, expected = SequenceKurtosis(6), []
    for n in (4, 9, 2):
        values = random.standard_t(3, size=(n, 6))
        expected.append(stats.kurtosis(values, axis=None, fisher=False))
        sums.add(torch.from_numpy(values))
    sums.add(torch.full((3, 6), 2.0, dtype=torch.float64))  # does not vary: has none
    sums.add(torch.zeros((0, 6), dtype=torch.float64))
    assert sums.n == 3
    assert sums.parts().sum() == pytest.approx(np.mean(expected))
    assert sums.largest == pytest.approx(max(expected))
    nothing = SequenceKurtosis(2)
    assert np.isnan(nothing.parts()).all()
    assert math.isnan(nothing.largest)
    assert math.isnan(nothing.mean_inf_norm)


def test_bondarenko_rule_at_the_threshold_and_without_a_tap() -> None:
    fourth = np.array([[6.0, 3.0, 1.0], [np.nan] * 3])
    assert rules.bondarenko(fourth, 10.0, 0.6).holds.tolist() == [[True, False, False], [False] * 3]
    assert rules.bondarenko(fourth, 10.0, 0.61).holds[0].tolist() == [True, True, False]
    assert not rules.bondarenko(fourth, 10.001, 0.6).holds.any()


def test_layer_sums_against_brute_force() -> None:
    random = np.random.default_rng(1)
    texts = [random.normal(size=(n, 5)) + 1 for n in (3, 1, 6)]
    texts[0][1] = 0  # a vector without direction
    sums = LayerSums(5)
    for text in texts:
        sums.add(torch.from_numpy(text), torch.from_numpy(text[-1]))
    every = np.concatenate(texts)
    np.testing.assert_allclose(sums.contributions(), contributions(unit(every)), atol=1e-12)
    assert sums.contributions().sum() == pytest.approx(mean_cosine(unit(every))[0])
    assert sums.mean_abs == pytest.approx(np.abs(every).mean())
    np.testing.assert_allclose(sums.energy.numpy(), (every**2).sum(0))
    np.testing.assert_allclose(sums.variances(), np.stack([text[-1] for text in texts]).var(0))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_quantiles_of_magnitudes(seed: int, share: float) -> None:
    values = np.random.default_rng(seed).standard_cauchy((37, 3)).astype(np.float32)
    histogram = LogHistogram(3)
    histogram.add(torch.from_numpy(values))

    def at_rank(sizes: np.ndarray) -> float:
        return float(np.sort(sizes.ravel())[max(1, math.ceil(share * sizes.size)) - 1])

    found = [*histogram.magnitude_quantiles(share).tolist(), histogram.magnitude_quantile(share)]
    right = [*(at_rank(np.abs(values[:, dim])) for dim in range(3)), at_rank(np.abs(values))]
    for one, other in zip(found, right, strict=True):
        assert abs(one - other) <= max(QUANTILE_ERROR * (1 + 1e-6) * other, SMALLEST)
    assert math.isnan(LogHistogram(1).magnitude_quantile(0.5))
    assert torch.isnan(LogHistogram(1).magnitude_quantiles(0.5)).all()


def test_the_magnitude_of_llm_int8_is_a_parameter() -> None:
    counts = LargeCounts(2, size=3.0)
    counts.add(torch.tensor([[3.0, 2.9], [-4.0, 1.0]]), torch.arange(2))
    assert counts.share().tolist() == [1.0, 0.0]
    with pytest.raises(BadInput, match="int8_size is 0; it must be positive"):
        ActivationRules(int8_size=0)


def test_thresholds_by_name() -> None:
    changed = Settings.parse(["rudman_factor=4", "massive-size=50", "luo_rank=3"])
    assert (changed.rudman_factor, changed.rules.massive_size, changed.luo_rank) == (4.0, 50.0, 3)
    assert changed.values["massive_size"] == 50
    assert Settings().values | {"rudman_factor": 4.0, "massive_size": 50.0, "luo_rank": 3.0} == changed.values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rudman=4", r"cannot read threshold 'rudman=4'; write NAME=VALUE, with one of .*rudman_factor"),
        ("rudman_factor", "cannot read threshold"),
        ("rudman_factor=x", "rudman_factor is 'x'; it must be a number"),
        ("luo_rank=1.5", "luo_rank is '1.5'; it must be a whole number"),
        ("luo_rank=0", "luo_rank is 0; it must be at least 1"),
        ("super_spike=-1", r"super_spike is -1.0; it must be positive"),
        ("macocco_quantile=1.1", r"macocco_quantile is 1.1; it must be in \(0, 1\]"),
        ("luo_share=2", r"luo_share is 2.0; it must be in \(0, 1\]"),
    ],
)
def test_thresholds_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Settings.parse([text])


def test_agreement_by_hand() -> None:
    found = detector_results.detectors()
    # {2}, {2, 3}, {1, 2}
    expected = [[1, 1 / 2, 1 / 2], [1 / 2, 1, 1 / 3], [1 / 2, 1 / 3, 1]]
    np.testing.assert_allclose(found.agreement(), expected)
    np.testing.assert_allclose(found.agreement("0"), [[1, 0, 1], [0, np.nan, 0], [1, 0, 1]])
    assert np.isnan(found.agreement(condition=ROTATED)).all()  # one does not apply, two find nothing
    assert np.isnan(found.agreement(condition=RANDOM)[0, 1])
    assert found.agreement(condition=RANDOM)[2, 2] == 1
    assert list(found.votes()) == [2, 1, 3]
    assert found.votes()[2] == ("kovaleva", "massive", "timkey")
    assert found.conditions == (MODEL, RANDOM, ROTATED)
    # two of four dimensions each, at least one in common: 1 − 1/6
    assert found.shared_by_chance("massive", "timkey") == pytest.approx(5 / 6)
    assert math.isnan(found.shared_by_chance("kovaleva", "massive", ROTATED))
    assert len(list(found.records())) == 8
    for wrong, message in (
        (lambda: found.agreement("9"), "no layer '9'; there are embeddings, 0, 1"),
        (lambda: found.of("luo"), "no definition 'luo'; there are kovaleva, massive, timkey"),
        (lambda: found.of("massive", "shuffled weights"), "condition 'shuffled weights' was not measured"),
        (lambda: found.values_of("shuffled weights"), "condition 'shuffled weights' has no values"),
        (lambda: found.super_weights and found.super_weights.trial("× 9"), "no trial '× 9'; there are intact, zeroed"),
    ):
        with pytest.raises(BadInput, match=message):
            wrong()


def test_jaccard_of_nothing() -> None:
    assert math.isnan(jaccard(frozenset(), frozenset()))
    assert math.isnan(jaccard(None, frozenset({1})))
    assert jaccard(frozenset({1}), frozenset()) == 0


def test_a_result_keeps_super_weights() -> None:
    found = detector_results.detectors()
    assert found.super_weights.restores == pytest.approx(0.5)


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(BY_NAME["detectors"], detector_results.detectors(), verbose=True, layer="0")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "kovaleva 1 2 0–1 0 –" in lines
    assert "timkey 2 1, 2 0–1 1 0" in lines
    assert "timkey 0.5 0.33 1" in lines
    assert lines.count("Agreement (Jaccard), layer 0") == 1
    assert "2 3 kovaleva, massive, timkey 1200 0.1 to 1 %" in lines
    large = "Dimension 2 is largest in layer 0: |h| 900, 1,200 times the median"
    assert f"{large}, and above 10 times the median on 0.1 to 1 % of the tokens." in lines
    assert "zeroed 6 +3 +2.5 to +3.4" in lines
    assert "Putting back 16 super activations undoes 50 % of the damage." in lines
    assert "1 2 7 9.5 1 90 800 'the' 1 98 % 4" in lines
    assert "timkey blocks part timkey_share=0.05" in lines
    assert "Where a rule leaves room: timkey: the share." in lines
    assert "timkey Timkey 2021 any paper" in lines
    assert lines[-1] == "note: a note"


def test_pictures_say_what_they_show() -> None:
    from outlierlens import charts

    found = detector_results.detectors()
    chart = charts.detectors(found)
    assert "Dimension 2 is found by 3." in chart.reading
    assert "Under random initialisation, timkey still finds any." in chart.reading
    assert "Under rotated basis, none still finds any." in chart.reading
    assert len(chart.spec["vconcat"]) == 5
    drawn = {
        (row["condition"], row["layer"]): row["gamma"] for row in chart.spec["vconcat"][4]["layer"][0]["data"]["values"]
    }
    assert drawn[MODEL, "1"] == pytest.approx(found.values_of().gamma[found.layers.index("1")], rel=1e-3)
    assert {condition for condition, _ in drawn} == {MODEL, RANDOM}
    cells = chart.spec["vconcat"][0]["data"]["values"]
    assert {(c["one"], c["other"]): c["jaccard"] for c in cells}[("massive", "timkey")] == 0.333
    weights = charts.super_weights(detector_results.detectors())
    assert "layer 1, [2, 7]: weight 9.50, the largest of its matrix, makes 98% of an output of 800" in weights.reading
    assert (
        "from 3.00 to 6.00 nats per token (+2.500 to +3.400), with the activation put back to 4.50" in weights.reading
    )
    assert len(weights.spec["vconcat"]) == 2


def test_a_section_of_the_report_begins_with_the_verdict() -> None:
    found = detector_results.detectors()
    first, second = joined_sections(with_result(with_result(Joined(), found), replace(found, n_texts=21)))
    assert (first.name, second.name) == ("detectors", "detectors-2")
    assert first.sentences[0].startswith("Dimension 2: outlier by at least half of the 3 definitions")
    assert [chart.name for chart in second.charts] == ["detectors-2", "detectors-2-super-weights"]
    assert first.tables[0].rows[0] == ("kovaleva", 1, "2", "0–1", 0, None)
    assert first.tables[-1].rows[1] == ("zeroed", 6.0, 3.0, (2.5, 3.4))
    apart = replace(
        found, found=tuple(replace(one, dims=()) if one.definition != "timkey" else one for one in found.found)
    )
    assert verdict(apart).startswith("The definitions do not agree on any dimension: 1 of 3 find some")
    nothing = replace(found, found=tuple(replace(one, dims=()) for one in found.found))
    assert verdict(nothing) == "No published definition finds an outlier dimension."
