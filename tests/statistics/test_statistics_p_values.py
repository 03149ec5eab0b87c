"""p-values and corrections: by hand, by their definition, and against scipy and permutations.

Ranks and correlations against scipy, ties on both sides, and what has none.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outlierlens.errors import BadInput
from outlierlens.statistics.ranks import (
    benjamini_hochberg,
    correlations,
    fisher,
    holm,
    hypergeometric_tail,
    middle_ranks,
    pearson,
    permutation_p,
    position_p,
    rank_among,
    rank_p,
    rank_p_among,
    ranks_from_top,
    spearman,
    spearman_interval,
    two_sided_p,
)


def test_rank_p_by_hand() -> None:
    controls = np.array([1.0, 2.0, 3.0])
    assert [rank_p(chosen, controls) for chosen in (5.0, 2.0, 0.0)] == [1 / 4, 3 / 4, 1.0]
    assert rank_p(5.0, np.array([1.0, math.nan, 3.0])) == 2 / 4, "a control that is no number is the largest"
    assert rank_p(math.nan, controls) is None
    assert rank_among(np.array([[5.0], [0.0]]), controls).tolist() == [[1], [4]]


def test_rank_among_the_others() -> None:
    # Of three others, none is at least 9; 9 alone is at least 4; and both 4 and 9 are at least either of the twos.
    assert rank_p_among(np.array([4, 2, 9, 2])).tolist() == [2 / 4, 4 / 4, 1 / 4, 4 / 4]
    assert rank_p_among(np.array([1, math.nan, math.inf])).tolist() == [1, 2 / 3, 2 / 3]
    assert rank_p_among(np.array([5.0])).tolist() == [1]
    assert rank_p_among(np.array([])).tolist() == []


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30))
def test_a_rank_among_the_others_is_rank_p(changes: list[int]) -> None:
    expected = [rank_p(change, np.array(changes[:i] + changes[i + 1 :])) for i, change in enumerate(changes)]
    assert rank_p_among(np.array(changes)).tolist() == expected


def test_p_of_positions_by_hand() -> None:
    # d = 4; layer 0 flags {0}, layer 1 flags {0, 1}: P(both) = 1/4 · 2/4 = 1/8; P(>= 1) = 1 − 3/4 · 1/2 = 5/8.
    flags = np.array([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=bool)
    assert position_p(flags) == pytest.approx([1 / 8, 5 / 8, 1, 1])


def test_p_of_positions_against_ten_thousand_permutations() -> None:
    random = np.random.default_rng(3)
    n_layers, width, draws = 8, 40, 10_000
    flags = np.zeros((n_layers, width), dtype=bool)
    for layer, n_flagged in enumerate([1, 2, 3, 1, 5, 2, 1, 4]):
        flags[layer, random.choice(width, n_flagged, replace=False)] = True
    observed = flags.sum(axis=0)
    # Every dimension is exchangeable under the null, so each permutation gives `width` draws of the count.
    counts = np.zeros(n_layers + 1)
    for _ in range(draws):
        permuted = random.permuted(flags, axis=1)
        counts += np.bincount(permuted.sum(axis=0), minlength=n_layers + 1)
    tail = np.cumsum(counts[::-1])[::-1] / (draws * width)
    p = position_p(flags)
    for dim in range(width):
        expected = tail[observed[dim]]
        # Four standard errors of a share; draws of one permutation are dependent, hence the wide band.
        error = 4 * np.sqrt(expected * (1 - expected) / (draws * width)) + 5e-5
        assert p[dim] == pytest.approx(expected, abs=3 * error)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_the_tail_is_hypergeometric(a: int, b: int, shared: int) -> None:
    if shared <= min(a, b):
        assert hypergeometric_tail(9, a, b, shared) == pytest.approx(
            float(stats.hypergeom.sf(shared - 1, 9, a, b)), abs=1e-12
        )
    assert hypergeometric_tail(1000, 10, 48, 1) == pytest.approx(stats.hypergeom.sf(0, 1000, 10, 48))


def test_p_of_t_and_of_orders() -> None:
    t = np.array([3.0, -2.0, 0.0, math.nan])
    assert two_sided_p(t, 99) == pytest.approx(2 * stats.t.sf(np.abs(t), 99), nan_ok=True)
    one, other = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    all_orders = [abs(stats.spearmanr(order, other).statistic) for order in itertools.permutations(one)]
    expected = np.mean(np.array(all_orders) >= 0.8 - 1e-12)
    assert permutation_p(one, other, np.random.default_rng(0)) == pytest.approx(expected)
    assert math.isnan(permutation_p(one, np.ones(5), np.random.default_rng(0)))


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_is_between_p_and_bonferroni(values: list[float]) -> None:
    p = np.array(values)
    corrected = holm(p)
    assert (corrected >= p - 1e-15).all()
    assert (corrected <= np.minimum(1, p * len(p)) + 1e-15).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(corrected[order]) >= -1e-15).all()


def test_benjamini_and_hochberg_by_hand() -> None:
    # sorted 0.01, 0.02, 0.04, 0.5 times 4 / rank: 0.04, 0.04, 0.0533, 0.5
    assert benjamini_hochberg(np.array([0.04, 0.5, 0.01, 0.02])) == pytest.approx([0.16 / 3, 0.5, 0.04, 0.04])
    found = benjamini_hochberg(np.array([[0.04, math.nan], [0.5, 0.01]]))  # of three
    assert found == pytest.approx(np.array([[0.06, math.nan], [0.5, 0.03]]), nan_ok=True)


@given(st.lists(st.floats(0, 1), max_size=40))
def test_benjamini_and_hochberg_is_scipys(p: list[float]) -> None:
    expected = stats.false_discovery_control(p) if p else []
    assert benjamini_hochberg(np.array(p)) == pytest.approx(expected, abs=1e-12)


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
