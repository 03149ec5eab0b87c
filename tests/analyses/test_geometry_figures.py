"""Pure measures of geometry: numbers worked out by hand, brute force, and what must hold for any vectors."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.analyses.geometry_figures import effective_rank, iso_scores, own_scatters, scatters
from outlierlens.errors import BadInput
from outlierlens.statistics.bootstrap import multinomial_weights
from outlierlens.vectors.cosines import (
    contributions,
    estimate,
    informativity,
    jackknife,
    mean_cosine,
    pair_cosines,
    self_similarity,
    to_the_mean,
    unit,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def brute(units: np.ndarray, weights: np.ndarray) -> float:
    """Weighted mean cosine of all pairs, one by one."""
    pairs = list(itertools.combinations(range(len(units)), 2))
    above = sum(weights[i] * weights[j] * float(units[i] @ units[j]) for i, j in pairs)
    return above / sum(weights[i] * weights[j] for i, j in pairs)


def test_three_vectors_by_hand() -> None:
    units = unit(np.array([[2.0, 0.0], [0.0, 5.0], [3.0, 4.0]]))
    assert units.tolist() == [[1, 0], [0, 1], [0.6, 0.8]]
    # cosines are 0, 0.6 and 0.8
    assert mean_cosine(units)[0] == pytest.approx(1.4 / 3)
    # dimension 0: 1·0 + 1·0.6 + 0·0.6; dimension 1: 0·1 + 0·0.8 + 1·0.8
    assert contributions(units) == pytest.approx([0.6 / 3, 0.8 / 3])
    assert pair_cosines(units).tolist() == [0.0]
    assert unit(np.zeros((1, 2))).tolist() == [[0, 0]]


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 10_000))
def test_weighted_mean_cosine_is_brute_force_and_contributions_sum_to_it(n: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    units = unit(random.normal(size=(n, width)) + random.normal(size=width))
    weights = random.integers(0, 4, size=(3, n)).astype(float)
    weights[:, :2] += 1
    found = mean_cosine(units, weights)
    assert found == pytest.approx([brute(units, row) for row in weights], abs=1e-12)
    assert contributions(units).sum() == pytest.approx(mean_cosine(units)[0], abs=1e-12)


def test_a_sentence_drawn_twice_is_no_pair_with_itself() -> None:
    units = np.eye(3)
    assert mean_cosine(units, np.array([[2.0, 2.0, 0.0], [3.0, 0.0, 0.0]])).tolist() == pytest.approx(
        [0.0, np.nan], nan_ok=True
    )


def test_anisotropy_of_gaussian_vectors_is_zero_within_its_interval() -> None:
    for seed in range(5):
        units = unit(normal(400, 48, seed=seed))
        found = estimate(mean_cosine(units, multinomial_weights(400, 200, seed)))
        assert found.low < 0 < found.high
        assert found.high - found.low < 0.01
    # … and of the same vectors moved away from the origin by their own spread it is ½, far from 0
    moved = mean_cosine(unit(normal(400, 4096) + 1.0), multinomial_weights(400, 50, 0))
    assert moved[0] == pytest.approx(0.5, abs=0.01)
    assert estimate(moved).low > 0.48


def test_an_interval_covers_the_true_cosine_about_as_often_as_it_says() -> None:
    width, n, covered = 16, 60, 0
    away = np.zeros(width)
    away[0] = 2.0
    many = unit(normal(40_000, width, seed=1) + away).mean(0)
    truth = float(many @ many)
    for seed in range(100):
        units = unit(normal(n, width, seed=100 + seed) + away)
        found = estimate(mean_cosine(units, multinomial_weights(n, 200, seed)))
        covered += found.low <= truth <= found.high
    assert 87 <= covered <= 100


def test_self_similarity_by_hand_and_by_brute_force() -> None:
    units = unit(np.array([[1.0, 0], [0, 1], [3, 4], [1, 0], [1, 0]]))
    # word 0: cosines 0, 0.6, 0.8; word 1: 1
    assert self_similarity(units, np.array([0, 0, 0, 1, 1]))[0] == pytest.approx((1.4 / 3 + 1) / 2)
    random = np.random.default_rng(3)
    word = random.integers(0, 7, size=60)
    units = unit(random.normal(size=(60, 5)) + 1)
    weights = random.integers(0, 3, size=(4, 60)).astype(np.float32)
    weights[0] = 1
    expected = []
    for row in weights.astype(float):
        known = [w for w in range(7) if (row[word == w] > 0).sum() > 1]
        expected.append(np.mean([brute(units[word == w], row[word == w]) for w in known]))
    assert self_similarity(units, word, weights) == pytest.approx(expected, abs=1e-12)


def test_a_word_with_one_context_has_no_self_similarity() -> None:
    with pytest.raises(BadInput, match="at least 2 contexts of every word; lower min_sentences"):
        self_similarity(np.eye(3), np.array([0, 0, 1]))
    with pytest.raises(BadInput, match="at least 2 vectors, got 1; give more text"):
        mean_cosine(np.eye(3)[:1])
    with pytest.raises(BadInput, match="at least 2 vectors, got 1"):
        contributions(np.eye(3)[:1])


def test_intra_sentence_similarity_by_hand() -> None:
    vectors = np.array([[1.0, 0], [0, 1], [9, 9], [2, 0], [1, 0], [0, 0]])
    found = to_the_mean(vectors, np.array([0, 2, 3, 5]))
    # two orthogonal tokens stand at 45° to their mean; one token says nothing, nor does a vector of length 0
    assert found == pytest.approx([np.sqrt(0.5), np.nan, 1.0, np.nan], nan_ok=True)
    assert to_the_mean(np.array([[0.0, 0], [1, 0]]), np.array([0])) == pytest.approx([0.5])


def test_informativity_tells_a_dimension_that_says_everything_from_one_that_says_nothing() -> None:
    vectors = normal(300, 20)
    vectors[:, 7] *= 100
    units = unit(vectors)
    pairs = np.stack([np.arange(0, 300, 2), np.arange(1, 300, 2)], axis=1)
    loud = informativity(units, pairs, (7, 1, 2, 3, 4))
    assert set(loud) == {1, 3, 5}
    assert loud[1] < 0.2
    quiet = informativity(unit(normal(300, 400)), pairs, (7, 1, 2, 3, 4))
    assert quiet[1] > 0.97
    assert quiet[1] >= quiet[3] >= quiet[5] > 0.9
    rest = np.delete(vectors, 7, axis=1)
    expected = np.corrcoef(pair_cosines(units), pair_cosines(unit(rest)))[0, 1] ** 2
    assert loud[1] == pytest.approx(expected, abs=1e-9)


def iso_score(covariance: np.ndarray) -> float:
    """(trace² / |C|² − 1) / (n − 1), of a covariance."""
    return float((np.trace(covariance) ** 2 / (covariance**2).sum() - 1) / (len(covariance) - 1))


def drawn_scores(vectors: np.ndarray, size: int, n_groups: int = 10) -> np.ndarray:
    """IsoScores of sentences of `size` vectors each: of all, and without each group."""
    n = len(vectors) // size
    group = np.arange(n) % n_groups
    starts = np.arange(n) * size
    return iso_scores(scatters(vectors, np.repeat(group, size)), own_scatters(vectors, starts), group)


def test_iso_score_takes_pairs_of_different_sentences_alone() -> None:
    vectors = normal(60, 4) * [1, 2, 3, 4] + 7
    away = vectors - vectors.mean(0)
    own = [away[start : start + 5].T @ away[start : start + 5] for start in range(0, 60, 5)]
    for score, left_out in zip(drawn_scores(vectors, 5, 3), (-1, 0, 1, 2), strict=True):
        kept = [i for i in range(12) if i % 3 != left_out]
        pairs = [(i, j) for i in kept for j in kept if i != j]
        trace = sum(np.trace(own[i]) * np.trace(own[j]) for i, j in pairs)
        square = sum((own[i] * own[j]).sum() for i, j in pairs)
        assert score == pytest.approx((trace / square - 1) / 3)
    with pytest.raises(BadInput, match="at least 2 dimensions, got 1"):
        drawn_scores(normal(60, 1), 5)
    with pytest.raises(BadInput, match="at least 2 vectors of 2 sentences, got 1"):
        scatters(vectors[:1], np.zeros(1, dtype=int))
    assert np.isnan(iso_scores(np.zeros((2, 3, 3)), np.zeros((2, 4)), np.arange(4) % 2)).all()


@settings(max_examples=30)
@given(st.integers(2, 8), st.integers(0, 10_000))
def test_iso_score_is_what_the_paper_s_steps_give(width: int, seed: int) -> None:
    """Of so many vectors that the few of a sample do not matter."""
    scale = np.random.default_rng(seed).uniform(0.1, 5, size=width)
    variances = scale**2
    scaled = variances * np.sqrt(width) / np.linalg.norm(variances)
    distance = np.linalg.norm(scaled - 1) / np.sqrt(2 * (width - np.sqrt(width)))
    phi = (width - distance**2 * (width - np.sqrt(width))) ** 2 / width**2
    expected = (width * phi - 1) / (width - 1)
    assert iso_score(np.diag(variances)) == pytest.approx(expected, abs=1e-9)
    assert drawn_scores(normal(20_000, width, seed=seed) * scale, 4)[0] == pytest.approx(expected, abs=0.05)


def test_iso_score_does_not_depend_on_how_few_vectors_there_are() -> None:
    """Isotropic vectors have 1; of 400 in 50 dimensions the covariance itself says 0.89."""
    found = [drawn_scores(normal(400, 50, seed=seed), 2)[0] for seed in range(30)]
    assert np.mean(found) == pytest.approx(1, abs=0.01)
    assert iso_score(np.cov(normal(400, 50).T)) < 0.91
    loud = normal(2000, 50)
    loud[:, 3] *= 50
    assert drawn_scores(loud, 4)[0] < 0.01


def test_intervals_of_iso_scores_cover() -> None:
    """The interval about the covariance's own score covered 0 to 91 %: it is too small."""
    width, n, size = 24, 150, 4
    scale = np.arange(1, width + 1.0) ** -0.2
    truth = iso_score(np.diag(scale**2))
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(150):
        sentence = np.repeat(random.standard_normal((n, width)), size, axis=0)
        found = drawn_scores((0.7 * sentence + 0.7 * random.standard_normal((n * size, width))) * scale, size)
        one = jackknife(found, n)
        inside += one.low <= truth <= one.high
    assert inside > 0.93 * 150 - 2 * np.sqrt(0.93 * 0.07 * 150)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(np.eye(6)) == pytest.approx(6)
    assert effective_rank(np.diag([4.0, 0, 0])) == pytest.approx(1)
    # singular values 1 and 3: shares ¼ and ¾
    assert effective_rank(np.diag([1.0, 9.0])) == pytest.approx(np.exp(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75))))
    assert np.isnan(effective_rank(np.zeros((2, 2))))


def test_a_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = normal(10)
    left = np.array([np.delete(values, i).mean() for i in range(10)])
    found = jackknife(np.append(values.mean(), left), 100)
    error = values.std(ddof=1) / np.sqrt(10)
    assert found.value - found.low == pytest.approx(2.262 * error)
    assert found.high - found.value == pytest.approx(2.262 * error)
    few = jackknife(np.append(values.mean(), left), 99)
    assert few.value == found.value
    assert np.isnan([few.low, few.high]).all()  # so few sentences are not settled


def test_changes_are_paired() -> None:
    values = np.concatenate([[1.0], normal(100)])
    found = estimate((values + 3) - values)
    assert (found.value, found.low, found.high) == pytest.approx((3, 3, 3))
    assert estimate(values + 3).low < 3 < estimate(values + 3).high
