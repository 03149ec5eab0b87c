"""Estimates and their intervals: numbers worked out by hand, SciPy as oracle, and coverage that is simulated."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outlierlens.analyses.sweep.estimate import (
    MeanChange,
    Ranking,
    RareTexts,
    estimate,
    gradient_scale,
    precise,
    unsettled,
    use_gradients,
)
from outlierlens.analyses.sweep.gradients import Widening, look_level, look_sizes, stop_widening, widened
from outlierlens.errors import BadInput
from outlierlens.statistics.means import reach, unsettled_interval

T1, T3 = 12.706204736, 3.182446305  # 97.5 % points of t with 1 and 3 degrees of freedom, from a table


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-6)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 9)), min_size=1, max_size=12))
def test_an_interval_of_few_texts_is_that_of_an_estimate(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    found = estimate(values, weights, 0.95)
    assert unsettled_interval(values * weights, weights) == pytest.approx((found.low, found.high), rel=1e-6, abs=1e-6)


class TestLooks:
    def test_sizes_grow_by_halves_and_end_in_all_texts(self) -> None:
        assert look_sizes(24, 8) == (8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24)
        assert look_sizes(40, first=12) == (12, 13, 15, 16, 18, 19, 21, 22, 24, 27, 30, 33, 36, 39, 40)
        assert look_sizes(9, first=2) == (2, 3, 4, 5, 6, 7, 8, 9)

    def test_few_texts_are_looked_at_once(self) -> None:
        assert [look_sizes(n) for n in (1, 7, 16, 17)] == [(1,), (7,), (16,), (16, 17)]

    def test_no_text_and_a_first_look_of_one_are_refused(self) -> None:
        for n_texts, first in ((0, 8), (9, 1)):
            with pytest.raises(BadInput, match="first look of 2"):
                look_sizes(n_texts, first)

    def test_one_look_needs_no_more_than_the_level(self) -> None:
        assert look_level((40,)) == 0.95
        assert look_level((40,), 0.9) == 0.9

    def test_two_far_apart_looks_are_nearly_independent(self) -> None:
        # Independent looks would need sqrt(0.95) each.
        assert look_level((8, 100_000)) == pytest.approx(math.sqrt(0.95), abs=0.0006)

    def test_equal_looks_of_large_samples_are_pococks(self) -> None:
        # Pocock (1977), table 1: five looks at equal steps, two-sided 5 %, nominal level 0.0158 each.
        assert 1 - look_level((2000, 4000, 6000, 8000, 10000)) == pytest.approx(0.0158, abs=0.0004)

    def test_repeated_looks_miss_in_one_sequence_of_twenty(self) -> None:
        looks = look_sizes(96)
        level = look_level(looks)
        draws = np.random.default_rng(5).normal(size=(20_000, 96))
        missed = np.zeros(len(draws), dtype=bool)
        for n in looks:
            seen = draws[:, :n]
            missed |= np.abs(seen.mean(1)) > stats.t.ppf((1 + level) / 2, n - 1) * seen.std(1, ddof=1) / math.sqrt(n)
        assert missed.mean() == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 20_000))

    @pytest.mark.parametrize("rule", ["wrong", "low", "precise"])
    def test_intervals_hold_at_whatever_look_the_measuring_stops(self, rule: str) -> None:
        looks, truth = look_sizes(64), 0.05
        level, weights = look_level(looks), np.ones(64)
        draws = np.random.default_rng(6).normal(truth, 0.02, size=(1_500, 64))
        covered = 0
        for values in draws:
            for n in looks:
                found = estimate(values[:n], weights, level)
                wrong = not found.low <= truth <= found.high
                low = found.change < 0.047
                if {"wrong": wrong, "low": low, "precise": precise(found, 0.001, 0.2)}[rule]:
                    break
            covered += found.low <= truth <= found.high
        assert covered / 1_500 > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 1_500)


class TestStopWidening:
    def test_one_look_needs_no_more_than_the_level(self) -> None:
        assert stop_widening((40,), 0.9) == Widening(0, 0)
        assert widened(40, 0.9, 0) == 0.9

    def test_lies_between_the_level_and_that_of_any_stop(self) -> None:
        looks = look_sizes(2000)
        found = stop_widening(looks)
        assert 1 < found.normal < found.skewed / 4
        levels = [widened(look, 0.95, found.skewed) for look in looks]
        assert levels == sorted(levels, reverse=True)
        assert 0.98 < levels[0] < look_level(looks)
        assert 0.95 < levels[-1] < 0.952
        ratio = stats.t.ppf(0.5 + widened(48, 0.95, 30) / 2, 47) / stats.t.ppf(0.975, 47)
        assert ratio**2 == pytest.approx(1 + 30 / (48 + 16))

    def test_goes_by_how_skewed_the_differences_are(self) -> None:
        found = stop_widening(look_sizes(2000))
        assert found.sizes[:3] == (16, 18, 20)
        values = np.array([0.0] * 15 + [16.0])  # mean 1, variance 16, third cumulant 16 (15 · −1 + 15³) / (15 · 14)
        skewness = 16 * (15**3 - 15) / 210 / 4**3
        normal = math.sqrt(2 / math.pi * 6 * 16 * 15 / (14 * 17 * 19))  # of normal samples, mean size (Fisher 1930)
        assert found.share(values) == pytest.approx((skewness - normal) / (found.skewness[0] - normal))
        assert found.share(-values) == found.share(values)
        assert found.share(np.ones(20)) == 0
        assert found.share(np.tile([-1.0, 1.0], 8)) == pytest.approx(-normal / (found.skewness[0] - normal))
        for draw, share in ((np.random.default_rng(1).normal, 0), (np.random.default_rng(1).lognormal, 1)):
            assert np.mean([found.share(one) for one in draw(size=(4_000, 16))]) == pytest.approx(share, abs=0.05)
        assert found.of(-1) == found.normal
        assert found.of(0) == found.normal
        assert found.of(0.5) == (found.normal + found.skewed) / 2
        assert found.of(3) == found.skewed

    @pytest.mark.parametrize("relative", [0.1, 0.3])
    def test_holds_where_the_rule_stops_and_the_bare_level_does_not(self, relative: float) -> None:
        looks = look_sizes(256)
        draws = np.random.default_rng(8).normal(size=(6_000, 256))
        seen = np.arange(1, 257)
        means = draws.cumsum(1) / seen
        variances = ((draws**2).cumsum(1) - seen * means**2) / np.maximum(seen - 1, 1)
        at = np.array(looks) - 1
        means, errors = means[:, at], np.sqrt(variances[:, at] / np.array(looks))

        def worst(widening: float) -> float:
            shares = []
            widths = errors * stats.t.ppf(0.975, at) * np.sqrt(1 + widening / (np.array(looks) + 16))
            for spread in (0.6, 1, 1.5, 2, 3, 5):
                for effect, tolerance in ((0.0, 1 / spread), (1 / (spread * relative), 0.0)):
                    narrow = widths <= np.maximum(tolerance, relative * np.abs(effect + means))
                    narrow[:, -1] = True
                    stop = narrow.argmax(1)[:, None]
                    missed = np.abs(np.take_along_axis(means, stop, 1)) > np.take_along_axis(widths, stop, 1)
                    shares.append(1 - missed.mean())
            return min(shares)

        noise = math.sqrt(0.05 * 0.95 / 6_000)
        assert worst(stop_widening(looks, 0.95, relative).normal) > 0.95 - 3 * noise
        assert worst(0) < 0.95 - 2 * noise

    def test_holds_for_skewed_differences_where_the_bare_level_does_not(self) -> None:
        looks = look_sizes(256)
        draws = np.random.default_rng(9).lognormal(size=(1_500, 256))
        truth, spread = math.exp(0.5), math.sqrt(math.e * (math.e - 1))

        def worst(widening: float) -> float:
            shares = []
            for texts in (24, 48, 96, 140):
                held = []
                for values in draws[:400]:
                    for look in looks:
                        found = estimate(values[:look], np.ones(look), widened(look, 0.95, widening))
                        if precise(found, 2 * spread / math.sqrt(texts), 0):
                            break
                    held.append(found.low <= truth <= found.high)
                shares.append(np.mean(held))
            return min(shares)

        assert worst(stop_widening(looks).skewed) > 0.93 - 2 * math.sqrt(0.93 * 0.07 / 400)
        assert worst(0) < 0.93 - 2 * math.sqrt(0.93 * 0.07 / 400)


class TestEstimate:
    def test_mean_of_four(self) -> None:
        found = estimate(np.array([1.0, 2, 3, 4]), np.ones(4), 0.95)
        assert (found.change, found.spread, found.n_texts) == (2.5, near(1.2909944), 4)
        assert found.half_width == near(T3 * 1.2909944 / 2)
        assert (found.low, found.high) == (near(2.5 - 2.0542603), near(2.5 + 2.0542603))

    def test_weighted_mean_of_two(self) -> None:
        # mean 3/4; w (x - mean) / 2 = -0.375 and 0.375, of variance 0.28125, over 2 texts 0.140625 = 0.375 squared
        found = estimate(np.array([0.0, 1]), np.array([1, 3]), 0.95)
        assert found.change == 0.75
        assert found.half_width == near(T1 * 0.375)

    def test_control_variate(self) -> None:
        # residuals 0 and 1, mean 0.5; mean of four gradients 3; variance 2 / 4 + 0.5 (1/2 - 1/4) = 0.625
        found = estimate(np.array([1.0, 3]), np.ones(4), 0.95, gradients=np.array([1.0, 2, 5, 4]))
        assert found.change == 3.5
        assert found.half_width == near(T1 * math.sqrt(0.625))
        assert found.spread == near(math.sqrt(2))  # of the differences themselves

    def test_control_variate_with_weights(self) -> None:
        # no residuals; weighted mean of four gradients 7/8; variance 0.28125 / 4, as of four measured texts
        gradients, weights = np.array([0.0, 1, 1, 1]), np.array([1, 3, 2, 2])
        found = estimate(np.array([0.0, 1]), weights[:2], 0.95, gradients, weights)
        assert found.change == 0.875
        # w (g - 7/8) / 2 = -0.4375, 0.1875, 0.125 and 0.125: cubes sum to -0.0732422, times 4 / 6 the third cumulant, of which
        # the two texts without a value add 2 / 64
        below, _ = reach(-0.0732422 * 4 / 6 * 2 / 64 / (0.28125 / 4) ** 1.5, 1, 0.95)
        assert 0.875 - found.low == near(float(below) * math.sqrt(0.28125 / 4))
        assert found.high - 0.875 == near(T1 * math.sqrt(0.28125 / 4))
        assert estimate(np.array([0.0, 1]), weights, 0.95, gradients) == found

    def test_gradients_of_no_further_texts_are_ignored(self) -> None:
        values, weights = np.array([1.0, 2, 4]), np.ones(3)
        plain = estimate(values, weights, 0.95)
        for gradients in ([9.0, 9, 1], [5.0], []):
            assert estimate(values, weights, 0.95, np.array(gradients)) == plain

    def test_control_variate_is_unbiased_however_wrong(self) -> None:
        values, gradients = np.array([1.0, 4, 9, 16, 70]), np.array([3.0, -5, 2, 2, 100])
        found = [
            estimate(values[list(order[:2])], np.ones(5), 0.9, gradients[list(order[:4])]).change
            for order in itertools.permutations(range(5))
        ]
        assert np.mean(found) == pytest.approx(20)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_half_width_tells_the_error_of_the_control_variate(self, weighted: bool) -> None:
        random = np.random.default_rng(7)
        n, m, runs = 40, 120, 3_000
        changes, variances = [], []
        for _ in range(runs):
            gradients = random.normal(size=m)
            values = gradients[:n] + random.normal(0.3, 0.6, size=n)
            weights = random.integers(5, 25, size=m) if weighted else np.ones(m)
            found = estimate(values, weights, 0.95, gradients)
            changes.append(found.change)
            variances.append((found.half_width / stats.t.ppf(0.975, n - 1)) ** 2)
        assert np.mean(changes) == pytest.approx(0.3, abs=4 * np.std(changes) / math.sqrt(runs))
        # A variance from 3,000 runs is known to 2.6 %; linearisation itself is 1/n = 2.5 % short.
        assert np.mean(variances) == pytest.approx(np.var(changes), rel=0.12)

    @given(st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=30), st.floats(0.6, 0.999))
    def test_equal_weights_give_scipys_interval_or_a_wider_one(self, values: list[float], level: float) -> None:
        for data, equal in ((np.array(values), False), (np.array([*values, *(-x for x in values)]), True)):
            found = estimate(data, np.full(len(data), 7.0), level)
            if np.std(data) <= 1e-9:
                assert found.half_width < 1e-6
                continue
            oracle = stats.ttest_1samp(data, 0).confidence_interval(level)
            assert found.low <= oracle.low + 1e-6
            assert found.high >= oracle.high - 1e-6
            if equal:  # nothing is skewed
                assert (found.low, found.high) == (
                    pytest.approx(oracle.low, abs=1e-6),
                    pytest.approx(oracle.high, abs=1e-6),
                )

    @given(st.data(), st.floats(-50, 50), st.floats(0.1, 10))
    @settings(max_examples=60)
    def test_moves_and_scales_with_the_values(self, data: st.DataObject, shift: float, scale: float) -> None:
        m = data.draw(st.integers(3, 20))
        n = data.draw(st.integers(2, m))
        numbers = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 4))
        values = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n, unique=True)))
        gradients = np.array(data.draw(st.lists(numbers, min_size=m, max_size=m)))
        weights = np.array(data.draw(st.lists(st.integers(1, 30), min_size=m, max_size=m)))
        plain = estimate(values, weights, 0.95, gradients)
        moved = estimate(scale * values + shift, scale * 3 * weights, 0.95, scale * gradients)
        assert moved.change == pytest.approx(scale * plain.change + shift, abs=1e-6)
        assert moved.half_width == pytest.approx(scale * plain.half_width, abs=1e-6)

    @given(st.permutations(range(9)))
    def test_order_of_texts_within_the_sample_is_irrelevant(self, order: list[int]) -> None:
        values, weights = np.arange(9.0) ** 2, np.arange(1, 10)
        found = estimate(values[order], weights[order], 0.95)
        plain = estimate(values, weights, 0.95)
        assert (found.change, found.half_width) == (near(plain.change), near(plain.half_width))

    @given(st.permutations(range(9, 14)))
    def test_texts_not_measured_yet_change_nothing_but_through_the_gradients(self, order: list[int]) -> None:
        random = np.random.default_rng(0)
        values, weights, gradients = random.normal(size=9), random.integers(1, 9, 14), random.normal(size=14)
        later = [*range(9), *order]
        assert estimate(values, weights[later], 0.95) == estimate(values, weights, 0.95)
        found = estimate(values, weights[later], 0.95, gradients[later])
        assert found.change == near(estimate(values, weights, 0.95, gradients).change)

    def test_one_text_has_an_infinite_interval(self) -> None:
        for gradients in (None, np.array([1.0, 2, 3])):
            found = estimate(np.array([3.0]), np.ones(3), 0.95, gradients)
            assert found.half_width == math.inf
            assert found.low == -math.inf
            assert math.isnan(found.spread)
            assert not precise(found, 1e9, 10)

    @pytest.mark.parametrize("bad", [math.inf, math.nan, -math.inf])
    def test_an_exploded_loss_is_infinite_and_settled(self, bad: float) -> None:
        found = estimate(np.array([0.1, bad, 0.2]), np.ones(3), 0.95, np.ones(9), np.ones(9))
        assert found == MeanChange(math.inf, math.inf, math.inf, math.inf, 3)
        assert found.low == found.high == math.inf
        assert precise(found, 0.01, 0.1)

    def test_equal_differences_are_no_proof(self) -> None:
        for value in (0.0, 0.1):
            found = estimate(np.full(200, value), np.arange(1, 201), 0.99)
            assert found.half_width == pytest.approx(0, abs=1e-12)
            assert found.change == near(value)
            assert not found.settled
            assert not precise(found, 0.01, 0.1)

    def test_few_texts_that_changed_settle_nothing(self) -> None:
        values = np.zeros(400)
        values[:9] = 0.1
        assert not precise(estimate(values, np.ones(400), 0.95), 0.01, 0.1)
        values[9] = 0.1
        assert precise(estimate(values, np.ones(400), 0.95), 0.01, 0.1)
        assert precise(estimate(values, np.ones(400), 0.95, smallest=0.1), 0.01, 0.1)

    def test_equal_differences_overrule_gradients(self) -> None:
        found = estimate(np.zeros(8), np.ones(20), 0.99, np.arange(20.0))
        assert (found.change, found.half_width) == (0, 0)

    def test_missing_values_and_weights_are_named(self) -> None:
        for values, weights, gradients in ((0, 3, None), (3, 2, None), (2, 3, np.ones(4))):
            with pytest.raises(BadInput, match=f"from {values} values and {weights} weights"):
                estimate(np.ones(values), np.ones(weights), 0.95, gradients)


class TestDecisions:
    def test_precise_takes_the_larger_of_both_limits(self) -> None:
        assert precise(MeanChange(0.05, 0.0401, 0.0599, 1, 16), 0.01, 0.1)
        assert not precise(MeanChange(0.05, 0.04, 0.0601, 1, 16), 0.01, 0.1)
        assert precise(MeanChange(-0.5, -0.5499, -0.45, 1, 16), 0.01, 0.1)
        assert not precise(MeanChange(-0.5, -0.5501, -0.45, 1, 16), 0.01, 0.1)

    def test_gradients_are_used_where_residuals_vary_less(self) -> None:
        values, weights = np.array([1.0, 2, 4, 3]), np.ones(9)
        assert use_gradients(values, weights, np.array([1.1, 2.2, 3.9, 3.0, 7]))
        assert not use_gradients(values, weights, -values)
        assert not use_gradients(values, weights, np.zeros(4))  # no better than nothing is not worth it
        assert not use_gradients(values, weights, values[:3])
        assert not use_gradients(values, weights, np.array([1, 2, 4, 3, math.nan]))
        assert not use_gradients(np.array([1, math.inf]), weights, np.array([1.0, 2]))
        assert not use_gradients(values[:1], weights, values)

    def test_scale_of_gradients_by_hand(self) -> None:
        # Deviations -1, 1 and -2, 2: slope 4 / 8; -9, 9 and -10, 10: slope 180 / 200; -1, 1 and -0.1, 0.1: slope 10.
        values = np.array([[1.0, 3], [0, 18], [0, 2]])
        gradients = np.array([[7.0, 11, 99], [5, 25, 99], [0, 0.2, 99]])
        assert gradient_scale(values, np.ones(2), gradients) == near(0.9)

    def test_scale_of_weighted_gradients_by_hand(self) -> None:
        # Means 2 / 3 and 4 / 3, of weights 1, 1, 4; w (x - mean) -2, 1, 1 over 3 and w (g - mean) -4, 5, -1 over 3.
        values, gradients = np.array([[0.0, 1, 3 / 4]]), np.array([[0.0, 3, 5 / 4]])
        weights = np.array([1, 1, 4])
        x, g = (weights * (row[0] - np.average(row[0], weights=weights)) for row in (values, gradients))
        assert x * 3 == pytest.approx([-2, 1, 1])
        assert g * 3 == pytest.approx([-4, 5, -1])
        assert gradient_scale(values, weights, gradients) == near((8 + 5 - 1) / (16 + 25 + 1))

    def test_scale_ignores_what_says_nothing(self) -> None:
        values = np.array([[1.0, 3], [4, 9], [1, math.inf], [1, 2]])
        gradients = np.array([[2.0, 6], [1, 1], [1, 2], [1, math.nan]])
        assert gradient_scale(values, np.ones(2), gradients) == near(0.5)
        assert gradient_scale(values[1:], np.ones(2), gradients[1:]) == 1
        assert gradient_scale(values[:, :1], np.ones(2), gradients) == 1

    def test_gradients_that_point_the_wrong_way_are_dropped(self) -> None:
        assert gradient_scale(np.array([[1.0, 3]]), np.ones(2), np.array([[3.0, 1]])) == 0

    @given(st.floats(0.05, 5), st.integers(0, 999))
    @settings(max_examples=30)
    def test_scale_is_found_whatever_units_and_weights(self, scale: float, seed: int) -> None:
        random = np.random.default_rng(seed)
        gradients = random.normal(size=(5, 30)) * random.uniform(0.1, 10, size=(5, 1))
        values = scale * gradients[:, :8] + random.normal(size=(5, 1))
        assert gradient_scale(values, random.integers(1, 9, 30), gradients) == near(scale)

    def test_weights_decide_which_residuals_matter(self) -> None:
        values, gradients = np.array([0.0, 2, 0, 2]), np.array([0.0, 2, 6, 2])  # the third text's is far off
        assert not use_gradients(values, np.ones(4), gradients)
        assert use_gradients(values, np.array([10, 10, 0.01, 10]), gradients)


def settle(units: list[list[float]], k: int, tolerance: float, level: float = 0.95, **more: object) -> set[int]:
    values = [np.array(unit, dtype=float) for unit in units]
    weights = np.ones(max(len(unit) for unit in units))
    estimates = [estimate(unit, weights, level) for unit in values]
    return unsettled(estimates, values.__getitem__, weights, Ranking(k, level, tolerance), **more)  # type: ignore[arg-type]


NOISE = [0.3, -0.3, 0.2, -0.2, 0.1, -0.1]


class TestUnsettled:
    def test_what_texts_have_in_common_cancels(self) -> None:
        # The two intervals overlap widely; text by text the first is 0.1 above the second.
        first = [x + 0.1 + y for x, y in zip(NOISE, [0.01, -0.01] * 3, strict=True)]
        assert settle([first, NOISE], 1, 0.001) == set()

    def test_only_the_top_matters(self) -> None:
        top, close = [x + 9 for x in NOISE], [[x + i / 50 for x in NOISE[i:] + NOISE[:i]] for i in range(3)]
        assert settle([close[0], top, *close[1:]], 1, 0.01) == set()
        assert settle([close[0], top, *close[1:]], 2, 0.01) > {3}
        assert settle([close[0], top, *close[1:]], 0, 0.01) == set()

    def test_infinite_changes_are_settled(self) -> None:
        exploded = [math.inf, *NOISE[1:]]
        assert settle([[x + 9 for x in NOISE], exploded, exploded], 3, 0.01) == set()

    def test_one_text_is_never_enough(self) -> None:
        assert settle([[1.0], [0.0]], 1, 100.0) == {0, 1}

    def test_gradients_help_a_pair_that_both_use_them(self) -> None:
        random = np.random.default_rng(1)
        slopes = random.normal(size=(2, 400))
        exact = [slopes[0] + 0.5, slopes[1]]
        values = [(slope + random.normal(0, 0.01, 400))[:12] for slope in exact]
        weights = np.ones(400)
        plain = [estimate(unit, weights, 0.95) for unit in values]

        def ask(used: list[np.ndarray | None]) -> set[int]:
            return unsettled(plain, values.__getitem__, weights, Ranking(1, 0.95, 0.01), used.__getitem__)

        assert ask([None, slopes[1]]) == {0, 1}
        assert ask(list(slopes)) == set()

    @given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0.01, 1))
    @settings(max_examples=60)
    def test_agrees_with_asking_every_pair(self, seed: int, k: int, tolerance: float) -> None:
        random = np.random.default_rng(seed)
        weights = random.integers(1, 9, 16)
        values = [random.normal(random.normal(), 0.5, random.choice([8, 12, 16])) for _ in range(7)]
        estimates = [estimate(unit, weights, 0.9) for unit in values]
        ranked = sorted(range(7), key=lambda unit: -estimates[unit].change)
        expected: set[int] = set()
        for upper, lower in itertools.combinations(ranked, 2):
            known = estimates[lower].settled and estimates[upper].settled
            apart = known and estimates[lower].high <= estimates[upper].low + tolerance
            if upper not in ranked[:k] or apart:
                continue
            n = min(len(values[upper]), len(values[lower]))
            if estimate(values[lower][:n] - values[upper][:n], weights, 0.9).high > tolerance:
                expected |= {unit for unit in (upper, lower) if len(values[unit]) == n}
        assert unsettled(estimates, values.__getitem__, weights, Ranking(k, 0.9, tolerance)) == expected


class TestRare:
    def test_by_hand(self) -> None:
        # deviations 1 of three units; one of 20 texts of the first is 100 above: adds 100 / 20 there, nothing elsewhere
        plain = np.tile([-1.0, 1.0, 1.0, -1.0], 5)
        odd = np.append(plain[:-1], 100.0)
        rare = RareTexts.among([odd, plain, -3 * plain, np.zeros(20), np.full(20, np.inf)])
        assert rare.share == near(1 / 60)
        away = (100 - np.median(odd)) / np.median(np.abs(odd - np.median(odd))) / 20
        mean, error = away / 3, np.std([away, 0, 0], ddof=1) / math.sqrt(3)
        assert error < mean * math.sqrt(3)  # so the number of texts, one, decides
        assert rare.above == near(mean * (1 + 2) + 2 * mean * math.sqrt(3))
        assert rare.below == 0
        found = estimate(3 * plain, np.ones(20), 0.95)
        surely = 1 + 2 * 1.17 / math.sqrt(20)
        wider = rare.allowed_for(found, 3 * plain)
        assert (wider.change, wider.low, wider.high) == (
            found.change,
            found.low,
            near(found.high + 3 * surely * rare.above),
        )
        own = np.append(
            3 * plain[:-1], 300.0
        )  # adds 5 deviations itself, which leaves the rest of what is to be expected
        of_own = estimate(own, np.ones(20), 0.95)
        assert rare.allowed_for(of_own, own).high == near(of_own.high + 3 * (surely * rare.above - away))
        many = np.tile(plain, 30)
        assert rare.allowed_for(found, many) is found, "600 texts hold ten of one in 60"
        assert RareTexts.among([plain]).allowed_for(found, plain) == found

    def test_one_text_that_is_rare_for_all_units_counts_once(self) -> None:
        random = np.random.default_rng(0)
        values = random.normal(0, 1, (8, 50))
        one, many = values.copy(), values.copy()
        one[:, 3] = 1000.0
        many[np.arange(8), np.arange(8)] = 1000.0
        assert RareTexts.among(list(one)).above > 1.5 * RareTexts.among(list(many)).above

    def test_texts_that_one_unit_has_not_seen_widen_its_interval_until_it_may_stop(self) -> None:
        random = np.random.default_rng(4)
        held = []
        for _ in range(12):
            values = np.where(random.random((32, 24)) < 0.01, 10.0, random.normal(0, 0.1, (32, 24)))
            rare = RareTexts.among(list(values))
            found = [estimate(unit, np.ones(24), 0.95) for unit in values]
            for one, unit in zip(found, values, strict=True):
                wide = rare.allowed_for(one, unit)
                held.append((one.low <= 0.1 <= one.high, wide.low <= 0.1 <= wide.high))
        alone, together = np.mean(held, axis=0)
        assert alone < 0.4
        assert together > 0.93
