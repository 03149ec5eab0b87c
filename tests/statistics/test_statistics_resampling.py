"""Resampling: weights by their distribution, intervals by hand."""

import numpy as np
import pytest
from scipy import stats

from outlierlens.statistics.bootstrap import (
    bca,
    deviation,
    draws,
    finite_quantiles,
    jackknife_error,
    multinomial_weights,
    percentile_interval,
    poisson_times,
    poisson_weights,
    with_training,
)


def test_weights_of_texts_drawn_with_replacement() -> None:
    weights = multinomial_weights(50, 30, seed=4)
    assert weights.shape == (31, 50)
    assert (weights[0] == 1).all()
    assert (weights.sum(1) == 50).all()
    assert (weights == multinomial_weights(50, 30, seed=4)).all()
    assert (weights != multinomial_weights(50, 30, seed=5)).any()


def test_weights_of_a_text_are_the_same_in_any_batch() -> None:
    together = poisson_weights([4, 7], 100, seed=1)
    assert together[0].tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(together[:, [1]], poisson_weights([7], 100, seed=1))
    assert together[1:].mean() == pytest.approx(1.0, abs=0.25)


def test_a_text_is_drawn_by_the_seed_and_its_place_alone() -> None:
    times = poisson_times(5000, 7, seed=0)
    assert np.array_equal(poisson_times(5000, 3, seed=0), times[:, :3])
    assert np.array_equal(poisson_times(40, 7, seed=0), times[:40])
    assert not np.array_equal(poisson_times(5000, 7, seed=1), times)
    # Poisson(1): mean and variance 1, e^-1 of the texts not at all; redraws are independent.
    assert times.mean(0) == pytest.approx(np.ones(7), abs=0.06)
    assert times.var(0) == pytest.approx(np.ones(7), abs=0.12)
    assert (times == 0).mean() == pytest.approx(np.exp(-1), abs=0.01)
    assert np.abs(np.corrcoef(times.T) - np.eye(7)).max() < 0.06
    assert poisson_times(5, 0, seed=0).shape == (5, 0)


def test_percentiles_are_of_what_is_finite() -> None:
    assert percentile_interval(np.arange(101.0)) == (pytest.approx(2.5), pytest.approx(97.5))
    assert np.isnan(percentile_interval(np.array([1.0, np.nan] * 19))).all()
    found = finite_quantiles(np.array([[0.0, 1.0, np.nan, 2.0], [np.nan] * 4]), (0.0, 0.05, 0.5, 0.95, 1.0))
    assert found[0].tolist() == [0.0, 0.1, 1.0, 1.9, 2.0]
    assert np.isnan(found[1]).all()
    low, high = percentile_interval(np.array([[1.0, np.nan], [1.0, np.inf], [1.0, 2.0]]), fewest=3)
    assert (low[0], high[0]) == (1, 1)
    assert np.isnan([low[1], high[1]]).all()


def test_the_jackknife_error_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=10)
    without = np.array([np.delete(values, i).mean() for i in range(10)])
    assert jackknife_error(without) == pytest.approx(stats.sem(values))
    assert np.isnan([jackknife_error(without[:1]), jackknife_error(np.array([1.0, np.inf]))]).all()


def test_an_interval_with_training_by_hand() -> None:
    redrawn = np.array([0.01, 0.03, 0.02, 0.04, 0.0])
    s = np.sqrt(0.00025)  # squares about the mean, 0.02: 0.001 / 4
    assert deviation(redrawn) == pytest.approx(s)
    low, high = with_training(0.5, (0.48, 0.55), redrawn)
    # Side below: e = 0.02 / 1.96 = 0.010204; e^2 = 1.04127e-4, both 3.54127e-4, 4 * (1.416508)^2 = 8.02598 degrees of freedom.
    assert 0.5 - low == pytest.approx(2.30471 * np.sqrt(3.54127e-4), rel=1e-4)
    # Side above: e = 0.05 / 1.96; e^2 = 6.50795e-4, both 9.00795e-4, 4 * (3.60318)^2 = 51.9316.
    assert high - 0.5 == pytest.approx(2.00671 * np.sqrt(9.00795e-4), rel=1e-4)
    assert with_training(0.5, (0.48, 0.55), np.zeros(0)) == (0.48, 0.55)
    assert with_training(0.0, (0.0, 0.0), np.zeros(7)) == (0.0, 0.0)
    # Evaluated texts that say nothing leave Student's interval of the redraws: t of 4 degrees of freedom.
    assert with_training(0.5, (0.5, 0.5), redrawn) == pytest.approx((0.5 - 2.77645 * s, 0.5 + 2.77645 * s), rel=1e-5)
    for unknown in (np.array([0.1]), np.array([0.1, np.nan])):
        assert np.isnan(with_training(0.5, (0.4, 0.6), unknown)).all()


def test_draws_are_multinomial() -> None:
    for sizes in (np.array([7, 2, 1]), np.ones(80, dtype=int), np.arange(1, 90)):
        n = sizes.sum()
        counts = np.concatenate(list(draws(sizes, 4000, 3)))
        assert counts.shape == (4000, len(sizes))
        assert (counts.sum(1) == n).all()
        assert counts.mean(0) == pytest.approx(sizes, rel=0.2)
        assert counts[:, 0].var() == pytest.approx(sizes[0] * (1 - sizes[0] / n), rel=0.1)
        assert np.array_equal(counts, np.concatenate(list(draws(sizes, 4000, 3))))
        assert not np.array_equal(counts, np.concatenate(list(draws(sizes, 4000, 4))))


class Drawn:
    """A value whose draws and jackknife are given."""

    def __init__(self, values: list[float], whole: float, left_out: list[float]):
        self.sizes, self.values, self.whole, self.left_out = np.ones(len(left_out)), values, whole, left_out

    def drawn(self, counts: np.ndarray) -> np.ndarray:
        return np.array(self.values)

    def jackknife(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.left_out), self.sizes

    def elsewhere(self, share: float) -> tuple[float, float]:
        return self.whole - share, self.whole + share


def test_bca_by_hand() -> None:
    """Symmetric: plain percentiles. Efron 1987, eq. 2.3 and 6.6, where bias and acceleration are not 0."""
    values = np.linspace(0, 1, 1001).tolist()
    normal = stats.norm
    low, high = bca(Drawn(values, 0.5, [0.0, 1.0]), seed=0, level=0.9, n_draws=1001)
    assert (low, high) == pytest.approx((0.05, 0.95), abs=1e-3)
    # 60 % of the draws below: bias 0.2533; jackknife values 0, 0, 3: away 1, 1, −2, acceleration −6 / (6 · 6^1.5).
    low, high = bca(Drawn(values, 0.6, [0.0, 0.0, 3.0]), seed=0, level=0.9, n_draws=1001)
    bias, acceleration = normal.ppf(0.6), -1 / 6**1.5
    expected = []
    for edge in (bias + normal.ppf(0.05), bias + normal.ppf(0.95)):
        expected.append(normal.cdf(bias + edge / (1 - acceleration * edge)))
    assert (low, high) == pytest.approx(tuple(expected), abs=2e-3)
    assert low > 0.05
