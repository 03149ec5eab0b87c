"""Ranks and correlations against scipy, ties on both sides, and what has none."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outlierlens.errors import BadInput
from outlierlens.statistics.ranks import (
    correlations,
    fisher,
    middle_ranks,
    pearson,
    ranks_from_top,
    spearman,
    spearman_interval,
)


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 30))
def test_ranks_are_scipy_s(seed: int, rows: int, n: int) -> None:
    values = np.random.default_rng(seed).integers(-4, 5, (rows, n)) / 2
    for ties, method in (("best", "min"), ("worst", "max")):
        expected = stats.rankdata(-values, method=method, axis=1)
        assert ranks_from_top(values, ties).tolist() == expected.tolist()  # type: ignore[arg-type]
    assert ranks_from_top(values[0]).tolist() == ranks_from_top(values)[0].tolist()
    assert middle_ranks(values).tolist() == stats.rankdata(values, axis=1).tolist()
    assert middle_ranks(values[0]).tolist() == middle_ranks(values)[0].tolist()


def test_a_row_with_nan_has_no_middle_ranks() -> None:
    assert np.isnan(middle_ranks(np.array([[1.0, math.nan], [2.0, 1.0]]))).tolist() == [[True, True], [False, False]]
    assert middle_ranks(np.zeros((2, 0))).shape == (2, 0)


def test_pearson_is_that_of_all_values_and_none_of_a_constant() -> None:
    assert pearson(np.array([[1.0, 2], [3, 5]]), np.array([[2.0, 4], [6, 10]])) == pytest.approx(1.0)
    assert math.isnan(pearson(np.ones(3), np.arange(3.0)))


def test_spearman_and_its_interval_are_the_textbooks() -> None:
    one, other = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    assert spearman(one, other) == pytest.approx(0.8)
    assert spearman(one, one) == 1
    assert np.isnan([spearman(one, np.ones(5)), spearman(one, np.append(other[1:], math.inf))]).all()
    drawn = np.random.default_rng(1).normal(size=(2, 20, 7)).round(1)  # with ties
    expected = [stats.spearmanr(*pair).statistic for pair in zip(*drawn, strict=True)]
    np.testing.assert_allclose(spearman(*drawn), expected)
    low, high = spearman_interval(0.8, 28)
    reach = 1.959964 * math.sqrt(1.32 / 25)
    assert (low, high) == pytest.approx((math.tanh(math.atanh(0.8) - reach), math.tanh(math.atanh(0.8) + reach)))
    assert spearman_interval(1.0, 10) == (1.0, 1.0)
    assert math.isnan(spearman_interval(0.5, 3)[0])
    assert fisher(np.array([0.8, 1.0])) == pytest.approx([math.atanh(0.8), math.atanh(1 - 1e-15)])


def test_correlations_are_scipy_s() -> None:
    random = np.random.default_rng(0)
    targets = random.integers(0, 6, 50) / 2
    said = random.normal(size=(50, 4)) + targets[:, None]
    said[:, 1], said[:, 2] = said[:, 1].round(), 3.3
    for name, theirs in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        found = correlations(name, targets, said)
        assert found[2] == 0
        for dim in (0, 1, 3):
            assert found[dim] == pytest.approx(theirs(targets, said[:, dim]).statistic)
    with pytest.raises(BadInput, match="'mcc' is not a metric of a regression"):
        correlations("mcc", targets, said)
