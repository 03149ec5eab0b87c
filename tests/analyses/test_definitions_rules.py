"""The rules of `definitions`: numbers worked out by hand at each threshold, and NumPy, SciPy or brute force as oracles."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import definition_results
from outlierlens.analyses.definitions import LIMITS, MODEL, DefinitionOptions, parse_thresholds
from outlierlens.analyses.definitions_sums import (
    SequenceKurtosis,
    carriers,
    flags,
    he_parts,
    judged,
)
from outlierlens.detection.rules import ActivationMeasures, ActivationRules
from outlierlens.detection.running_statistics import QUANTILE_ERROR, SMALLEST, LargeCounts, LogHistogram
from outlierlens.errors import BadInput
from outlierlens.training.pretrain.build import kurtosis


def gathered(**known: Any) -> Any:
    """What a pass gathered, of one array [layer, dim]; all else is zero."""
    shape = next(np.shape(value) for value in known.values() if np.ndim(value) == 2)
    layers, none = tuple(map(str, range(shape[0]))), np.zeros(shape)
    measured = ActivationMeasures(layers, none, none, known.pop("abs_max", none), none, np.ones(shape[0]))
    arrays = dict.fromkeys(("medians", "variances", "contributions", "energy", "fourth", "written"), none)
    ends = {"mean_abs": np.ones(shape[0]), "high": np.ones(shape[0])}
    return SimpleNamespace(layers=layers, measured=measured, **(arrays | ends | known))


def flag(name: str, limits: dict[str, float] | None = None, **known: Any) -> tuple[list[list[int]], np.ndarray]:
    """(dimensions where a rule holds, by layer; what it compares [layer, dim])."""
    found = {one: (holds, strength) for one, _, holds, strength in flags(gathered(**known), LIMITS | (limits or {}))}
    holds, strength = found[name]
    return [np.flatnonzero(row).tolist() for row in holds], strength


def test_systematic_is_above_the_ratio_and_not_at_it() -> None:
    sizes = np.array([[2000.0, 2001.0, 1.0], [0.0, 0.0, 0.0]])
    holds, strength = flag("systematic", abs_max=sizes, mean_abs=np.array([2.0, 0.0]))
    assert holds == [[1], []]  # a layer of zeros has no outlier
    np.testing.assert_allclose(strength[0], [1000, 1000.5, 0.5])


def test_rudman_takes_five_times_the_mean_variance() -> None:
    # nine dimensions of variance 1 and one of 9: the mean is 1.8, of which 9 is exactly five times
    at = np.array([[1.0] * 9 + [9.0], [1.0] * 9 + [8.9], [0.0] * 10])
    holds, strength = flag("rudman", variances=at)
    assert holds == [[9], [], []]
    assert strength[0, 9] == 5


def test_timkey_needs_a_share_and_a_cosine_to_share() -> None:
    parts = np.array([[0.25, 0.2, 0.5, 0.05], [0.01, 0.0, 0.03, 0.0], [-0.5, 0.1, 0.1, 0.1]])
    assert flag("timkey", {"timkey_share": 0.25}, contributions=parts)[0] == [[0, 2], [], []]
    assert flag("timkey", {"timkey_share": 0.25, "timkey_cosine": 0.04}, contributions=parts)[0][1] == [0, 2]


def test_macocco_compares_the_median_with_the_quantile() -> None:
    medians = np.array([[1.0, 2.0, 2.01, np.nan]])
    assert flag("macocco", medians=medians, high=np.array([2.0]))[0] == [[2]]
    assert flag("macocco", medians=medians, high=np.array([0.0]))[0] == [[]]  # nothing to be larger than


def test_he_by_hand_and_as_the_training_penalty_has_it() -> None:
    energy = np.array([[5.0, 1, 1, 1]])  # s = 2.5, 0.5, 0.5, 0.5: variance (2.25 + 3 · 0.25) / 4 = 0.75
    assert he_parts(energy)[0].tolist() == [0.5625, 0.0625, 0.0625, 0.0625]
    assert flag("he-kurtosis", {"he_kurtosis": 1.75}, energy=energy)[0] == [[0]]
    assert flag("he-kurtosis", {"he_kurtosis": 1.7501}, energy=energy)[0] == [[]]
    states = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 8)
    parts = he_parts(states.double().square().sum(0).numpy()[None])
    assert parts.sum() + 1 == pytest.approx(float(kurtosis(states)), rel=1e-5)


def test_a_dimension_smaller_than_the_mean_never_carries_he_s_kurtosis() -> None:
    energy, limits = np.array([[3.0, 3.0, 3.0, 3.0, 0.0]]), {"he_kurtosis": 1.0, "carrier_share": 1.0}
    assert flag("he-kurtosis", limits, energy=energy)[0] == [[0, 1, 2, 3]]


def test_a_definition_pools_its_own_layers() -> None:
    variances = np.array([[9.0] + [1.0] * 9, [1.0] * 9 + [9.0]])  # rudman holds in both layers, and is of the last
    found = {name: (pairs, dims) for name, pairs, dims in judged(gathered(variances=variances), DefinitionOptions())}
    assert found["rudman"] == ({"0": {0: 5.0}, "1": {9: 5.0}}, (9,))


@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0.01, 1))
def test_carriers_are_the_fewest_that_reach_the_share(seed: int, width: int, share: float) -> None:
    values = np.random.default_rng(seed).integers(0, 5, size=(1, width)).astype(float)  # with ties and zeros
    chosen = carriers(values, share, values.sum(1))[0]
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
    nothing = SequenceKurtosis(2)
    assert np.isnan(nothing.parts()).all()
    assert math.isnan(nothing.inf_norm)


def test_bondarenko_rule_at_the_threshold_and_without_a_tap() -> None:
    fourth = np.array([[6.0, 3.0, 1.0], [np.nan] * 3])
    for name, array in (("bondarenko-out", "fourth"), ("bondarenko-ffn", "written")):
        assert flag(name, {"carrier_share": 0.6}, **{array: fourth})[0] == [[0], []]
        assert flag(name, {"carrier_share": 0.61}, **{array: fourth})[0][0] == [0, 1]
        assert flag(name, {"bondarenko_kurtosis": 10.001}, **{array: fourth})[0] == [[], []]


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
    given = parse_thresholds(["rudman_factor=4", "massive-size=50", "luo_rank=3"])
    changed = DefinitionOptions(thresholds=given)
    assert changed.limits == LIMITS | {"rudman_factor": 4.0, "massive_size": 50.0, "luo_rank": 3.0}
    assert changed.observing.rules.massive_size == 50
    assert DefinitionOptions().observing.rules == ActivationRules()  # said twice, and the same


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rudman=4", r"no threshold 'rudman'; there are n_sigma, .*rudman_factor"),
        ("rudman_factor", "cannot read threshold 'rudman_factor'; write NAME=NUMBER"),
        ("rudman_factor=x", "cannot read threshold 'rudman_factor=x'"),
        ("luo_rank=1.5", "luo_rank is 1.5; it must be a whole number of at least 1"),
        ("luo_rank=0", "luo_rank is 0; it must be a whole number of at least 1"),
        ("super_spike=-1", r"super_spike is -1; it must be positive"),
        ("massive_size=inf", r"massive_size is inf; it must be positive"),
        ("macocco_quantile=1.1", r"macocco_quantile is 1.1; it must be in \(0, 1\]"),
        ("luo_share=nan", r"luo_share is nan; it must be in \(0, 1\]"),
    ],
)
def test_thresholds_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        DefinitionOptions(thresholds=parse_thresholds([text]))


def test_agreement_by_hand() -> None:
    found = definition_results.definitions()
    # {2}, {2, 3}, {1, 2}
    expected = [[1, 1 / 2, 1 / 2], [1 / 2, 1, 1 / 3], [1 / 2, 1 / 3, 1]]
    np.testing.assert_allclose(found.agreement(), expected)
    np.testing.assert_allclose(found.agreement("0"), [[1, 0, 1], [0, np.nan, 0], [1, 0, 1]])
    assert np.isnan(found.agreement(condition="rotated")).all()  # one does not apply, two find nothing
    assert np.isnan(found.agreement(condition="random")[0, 1])
    assert found.agreement(condition="random")[2, 2] == 1
    assert found.conditions == (MODEL, "random", "rotated")
    assert found.of("timkey", "random").dims == (0,)
    for wrong, message in (
        (lambda: found.of("luo"), "no definition 'luo'; there are kovaleva, massive, timkey"),
        (
            lambda: found.of("massive", "shuffled"),
            "condition 'shuffled' was not measured; there are model, random, rotated",
        ),
    ):
        with pytest.raises(BadInput, match=message):
            wrong()
