"""Intervals of means: by hand, against simulation, and what they refuse to say.

Resampling: weights by their distribution, intervals by hand.
"""

import math

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
from outlierlens.statistics.means import (
    Noise,
    interval_text,
    mean_interval,
    mean_noise,
    n_changed,
    ratio_interval,
    reach,
    unseen,
)

CASES = {
    "normal": (lambda random, size: random.normal(0.5, 1, size), 0.5),
    "t3": (lambda random, size: random.standard_t(3, size) + 0.5, 0.5),
    "log-normal": (lambda random, size: random.lognormal(0, 1, size), math.exp(0.5)),
    "80 % zeros, exponential": (
        lambda random, size: np.where(random.random(size) < 0.8, 0, random.exponential(1, size)),
        0.2,
    ),
    "80 % zeros, log-normal": (
        lambda random, size: np.where(random.random(size) < 0.8, 0, random.lognormal(0, 1, size)),
        0.2 * math.exp(0.5),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [16, 64])
def test_what_is_settled_is_covered(name: str, n: int) -> None:
    draw, truth = CASES[name]
    ends = np.array([mean_interval(values) for values in draw(np.random.default_rng(n), (1200, n))])
    said = ends[:, 0] < ends[:, 1]
    if name.startswith("80 %") and n == 16:
        assert said.mean() < 0.01, "three changed texts say nothing"
        return
    assert said.mean() > 0.7, "the default number of texts settles each of these"
    covered = (ends[said, 0] <= truth) & (truth <= ends[said, 1])
    noise = math.sqrt(0.93 * 0.07 / said.sum())
    assert covered.mean() > 0.93 - 2 * noise


def test_one_text_in_a_hundred_is_not_settled() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        values = np.where(random.random(64) < 0.01, random.normal(10, 1, 64), 0.0)
        low, high = mean_interval(values)
        assert math.isnan(low) or low == high == 0 == np.abs(values).max()


def test_symmetric_values_have_the_interval_of_t() -> None:
    values = np.concatenate([np.arange(1.0, 33), -np.arange(1.0, 33)])
    wanted = stats.t.interval(0.9, 63, loc=0, scale=stats.sem(values))
    assert mean_interval(values, level=0.9) == pytest.approx(wanted)


def test_skewed_values_reach_further_on_their_side() -> None:
    values = np.random.default_rng(1).lognormal(0, 1, 64)
    low, high = mean_interval(values)
    t = stats.t.interval(0.95, 63, loc=values.mean(), scale=stats.sem(values))
    assert low == pytest.approx(t[0])
    assert high > t[1] + 0.1 * (t[1] - t[0])
    # g(t) = t + γ t² / 3 + γ² t³ / 27 + γ / 6 at the ends of Hall's interval is t itself, with the sign turned
    skewness = stats.skew(values, bias=False) / 8
    far = -(high - values.mean()) / stats.sem(values)
    assert far + skewness * far**2 / 3 + skewness**2 * far**3 / 27 + skewness / 6 == pytest.approx(
        -stats.t.ppf(0.975, 63)
    )
    assert mean_interval(-values) == pytest.approx((-high, -low))


def test_weights_repeat_and_scale() -> None:
    values = np.random.default_rng(2).lognormal(0, 1, 40)
    assert mean_interval(values, np.full(40, 7.0)) == pytest.approx(mean_interval(values))
    weights = np.random.default_rng(3).uniform(1, 5, 40)
    low, high = mean_interval(values, weights)
    assert low < np.average(values, weights=weights) < high
    assert mean_interval(3 * values, weights) == pytest.approx((3 * low, 3 * high))
    assert ratio_interval(values * weights, weights) == (low, high)


def test_what_is_not_settled() -> None:
    values = np.arange(1.0, 41)
    for those in (values[:15], np.zeros(0), np.ones(40), np.where(values > 31, values, 0.0), np.append(values, np.inf)):
        assert np.isnan(mean_interval(those)).all()
    assert np.isfinite(mean_interval(np.where(values > 30, values, 0.0))).all()
    assert n_changed(np.where(values > 31, values, 1e-7 * values)) == 9, "rounding is no change"
    assert mean_interval(np.zeros(40)) == (0, 0)


def test_reach_of_arrays_and_words() -> None:
    below, above = reach(np.array([0.0, 0.3, -0.3]), 63, 0.95)
    assert below[0] == above[0] == pytest.approx(stats.t.ppf(0.975, 63))
    assert (above[1], below[1]) == pytest.approx((below[2], above[2]))
    assert unseen(64) == pytest.approx(1 - 0.05 ** (1 / 64))
    assert interval_text(-1e-9, -0.0, ".4f") == "0.0000 to 0.0000"
    assert interval_text(-1e-9, 0.5, "+.3f") == "+0.000 to +0.500"
    assert [interval_text(*ends) for ends in ((1, 2.5), (math.nan, math.nan), (0, 0))] == [
        "+1.000 to +2.500",
        "not settled",
        "no change",
    ]


def test_noise_is_parted_into_what_texts_share_and_what_each_has() -> None:
    ones = np.ones(2)
    # both texts move by 2: nothing is their own
    assert mean_noise(np.array([[1.0, 5.0], [3.0, 7.0]]), ones) == Noise(math.sqrt(2), 2.0, 1)
    # they move apart: the mean stays, and by chance alone it would have a variance of 2 / 2, or of 2 / 8 over eight texts
    assert mean_noise(np.array([[0.0, 0.0], [1.0, -1.0]]), ones) == Noise(pytest.approx(math.sqrt(0.5)), 0.0, 1)
    assert mean_noise(np.array([[0.0, 0.0], [1.0, -1.0]]), ones, 8) == Noise(pytest.approx(math.sqrt(0.125)), 0.0, 1)
    # one of two texts moves by 2: means are 0 and 1, deviations from them 1/2 each
    assert mean_noise(np.array([[0.0, 0.0], [2.0, 0.0]]), ones, 4) == Noise(pytest.approx(0.5), 0.0, 1)
    # weights: the second text moves alone and has a weight of 3 of a mean of 2
    found = mean_noise(np.array([[0.0, 0.0], [0.0, 4.0], [0.0, 2.0]]), np.array([1.0, 3.0]))
    assert found is not None
    assert found.floor == pytest.approx(np.std([0.0, 3.0, 1.5], ddof=1))
    assert mean_noise(np.zeros((1, 4)), np.ones(4)) is None
    broken = mean_noise(np.array([[0.0, math.inf], [0.0, 0.0]]), ones)
    assert broken is not None
    assert math.isnan(broken.floor)
    assert all(map(math.isnan, mean_interval(np.arange(32.0), noise=broken)))


def test_noise_that_texts_share_widens_an_interval() -> None:
    values = np.concatenate([np.arange(1.0, 33), -np.arange(1.0, 33)])
    own, shared = values.var(ddof=1) / 64, 9.0
    degrees = (own + shared) ** 2 / (own**2 / 63 + shared**2 / 3)
    wanted = stats.t.interval(0.95, degrees, loc=0, scale=math.sqrt(own + shared))
    assert mean_interval(values, noise=Noise(4.0, shared, 3)) == pytest.approx(wanted)
    assert mean_interval(values, noise=Noise(4.0, 0.0, 3)) == mean_interval(values)
    assert mean_interval(np.zeros(64)) == (0, 0)
    assert all(map(math.isnan, mean_interval(np.zeros(64), noise=Noise(0.1, 0.01, 3))))


@pytest.mark.parametrize(("own", "shared"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (1.0, 0.5), (0.0, 0.3)])
def test_noise_is_covered_whoever_has_it(own: float, shared: float) -> None:
    """Four runs of 64 texts, noise measured on 16; without it the last two cover 51 % and 55 %."""
    random, covered, n = np.random.default_rng(5), 0, 600
    for _ in range(n):
        runs = random.normal(0, 1, 64) + own * random.normal(0, 1, (4, 64)) + shared * random.normal(0, 1, (4, 1))
        low, high = mean_interval(runs[0], noise=mean_noise(runs[:, :16], np.ones(16), 64))
        covered += low <= 0 <= high
    assert covered / n > 0.93 - 2 * math.sqrt(0.93 * 0.07 / n)


def test_why_there_is_no_interval_and_what_settles_it() -> None:
    from outlierlens.statistics.means import FEWEST_TEXTS, no_interval, settled

    assert no_interval(8) == "8 texts are too few for an interval; read 16 or more"
    assert no_interval(4, "confirming texts", 4) == "4 confirming texts are too few for an interval; read 64 or more"
    assert no_interval(40, "pairs", metric="spearman") == "40 pairs are too few for an interval; read 598 or more"
    assert no_interval(700, "pairs", metric="pearson").startswith(
        "a few of 700 pairs decide the correlation, or a value"
    )
    assert interval_text(math.nan, 1, why="why") == "not settled: why"
    assert no_interval(24, "pictures").startswith("fewer than 10 of 24 pictures change, or a value is not finite")
    values = np.random.default_rng(0).normal(1, 1, FEWEST_TEXTS)
    assert settled(values)
    assert not settled(values[1:])


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
