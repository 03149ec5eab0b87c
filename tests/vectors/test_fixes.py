"""Moments in any order, and what each linear repair does to vectors, against numpy and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import OAS

from outlierlens.errors import BadInput
from outlierlens.vectors.fixes import (
    BLOCK,
    KINDS,
    FixSpec,
    VectorMoments,
    chosen_shrinkage,
    make_fix,
    moments_of,
    parse_fixes,
)


def correlated(n: int, width: int, seed: int = 0) -> np.ndarray:
    """Vectors with one dimension 1,000 times the others, and a mean far from 0."""
    random = np.random.default_rng(seed)
    made = random.normal(size=(n, width)) @ random.normal(size=(width, width)) + random.normal(size=width) * 5
    made[:, 1] *= 1000
    return made


@settings(max_examples=30)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(0, 99))
def test_moments_are_the_same_in_any_pieces(sizes: list[int], seed: int) -> None:
    parts = [correlated(n, 3, seed + i) for i, n in enumerate(sizes)]
    whole = np.concatenate(parts)
    found = VectorMoments(3)
    for part in parts:
        found.add(part)
    assert found.n == len(whole)
    if len(whole):
        np.testing.assert_allclose(found.mean, whole.mean(0), rtol=1e-9, atol=1e-9)
    if len(whole) > 1:
        np.testing.assert_allclose(found.covariance, np.cov(whole.T), rtol=1e-8, atol=1e-6)


def test_many_vectors_are_taken_in_blocks() -> None:
    vectors = correlated(BLOCK + 5, 2).astype(np.float32)
    np.testing.assert_allclose(moments_of(vectors).covariance, np.cov(vectors.T.astype(np.float64)), rtol=1e-8)


def test_moments_refuse_what_has_no_mean() -> None:
    with pytest.raises(BadInput, match="needs at least 2 vectors to fit on, got 1"):
        _ = moments_of(np.ones((1, 2))).covariance
    with pytest.raises(BadInput, match="NaN or infinite"):
        moments_of(np.array([[1.0, np.nan]]))
    with pytest.raises(BadInput, match=r"expected \[vector, 2\]"):
        VectorMoments(2).add(np.ones((3, 3)))


def test_whitening_gives_identity_covariance() -> None:
    vectors = correlated(500, 8)
    fix = make_fix(FixSpec("whiten"), 8, moments=moments_of(vectors))
    white = fix.apply(vectors)
    np.testing.assert_allclose(np.cov(white.T), np.eye(8), atol=1e-7)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-7)
    assert fix.shrinkage == 0
    first = make_fix(FixSpec("whiten", 3), 8, moments=moments_of(vectors)).apply(vectors)
    # the directions of largest variance come first
    np.testing.assert_allclose(first, white[:, :3], atol=1e-9)


def test_few_vectors_are_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = correlated(20, 8)
    moments = moments_of(vectors)
    sample = np.cov(vectors.T, bias=True)
    squares, trace = np.trace(sample @ sample), np.trace(sample) ** 2
    wanted = ((1 - 2 / 8) * squares + trace) / ((20 + 1 - 2 / 8) * (squares - trace / 8))
    assert chosen_shrinkage(moments) == pytest.approx(wanted, rel=1e-9)
    assert make_fix(FixSpec("whiten"), 8, moments=moments).shrinkage == pytest.approx(wanted, rel=1e-9)
    # scikit-learn leaves out 2 / width, which vanishes in many dimensions
    wide = np.random.default_rng(0).normal(size=(300, 400)) * np.linspace(1, 3, 400)
    assert chosen_shrinkage(moments_of(wide)) == pytest.approx(OAS().fit(wide).shrinkage_, rel=0.02)
    assert chosen_shrinkage(moments_of(correlated(80, 8))) == 0
    monkeypatch.setattr("outlierlens.vectors.fixes.chosen_shrinkage", lambda _: 1.0)
    # wholly shrunk, whitening is one factor for all directions: cosines of centred vectors stay
    away = vectors - vectors.mean(0)
    whole = make_fix(FixSpec("whiten"), 8, moments=moments).apply(vectors)
    np.testing.assert_allclose(whole @ whole.T, away @ away.T / (np.trace(moments.covariance) / 8), rtol=1e-7)


def test_standardized_and_centred_by_hand() -> None:
    vectors = np.array([[0.0, 10, 3], [2, 30, 3]])
    moments = moments_of(vectors)
    assert make_fix(FixSpec("centre"), 3, moments=moments).apply(vectors).tolist() == [[-1, -10, 0], [1, 10, 0]]
    done = make_fix(FixSpec("standardize"), 3, moments=moments).apply(vectors)
    # the unbiased deviations are √2 and 10 √2; the third dimension never varies and carries nothing
    np.testing.assert_allclose(done, np.array([[-1, -1, 0], [1, 1, 0]]) / np.sqrt(2))


def test_all_but_the_top_takes_the_largest_directions_away() -> None:
    vectors = correlated(200, 5)
    done = make_fix(FixSpec("abtt", 2), 5, moments=moments_of(vectors)).apply(vectors)
    _, _, directions = np.linalg.svd(vectors - vectors.mean(0))
    np.testing.assert_allclose(done @ directions[:2].T, 0, atol=1e-6)
    np.testing.assert_allclose(done @ directions[2:].T, (vectors - vectors.mean(0)) @ directions[2:].T, atol=1e-6)
    assert make_fix(FixSpec("abtt"), 5, moments=moments_of(vectors)).name == "abtt:3"


def test_clipping_is_zero_there_and_nothing_elsewhere() -> None:
    vectors = correlated(4, 5)
    done = make_fix(FixSpec("clip"), 5, dims=(1, 4)).apply(vectors)
    assert not done[:, [1, 4]].any()
    np.testing.assert_array_equal(done[:, [0, 2, 3]], vectors[:, [0, 2, 3]])
    np.testing.assert_array_equal(make_fix(FixSpec("raw"), 5).apply(vectors), vectors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fix_is_a_dense_layer_and_commutes_with_the_mean(kind: str) -> None:
    vectors = correlated(300, 6)
    fix = make_fix(FixSpec(kind), 6, moments=moments_of(correlated(100, 6, 1)), dims=(1,))
    np.testing.assert_allclose(vectors @ fix.weight.T + fix.bias, fix.apply(vectors), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(fix.apply(vectors.mean(0)), fix.apply(vectors).mean(0), rtol=1e-6, atol=1e-6)
    assert fix.n_fitted == (0 if kind in ("raw", "clip") else 100)


def test_specifications_are_read_from_text() -> None:
    assert parse_fixes("raw, clip,center,standardise,abtt,whiten:256,raw") == (
        FixSpec("raw"),
        FixSpec("clip"),
        FixSpec("centre"),
        FixSpec("standardize"),
        FixSpec("abtt"),
        FixSpec("whiten", 256),
    )
    assert [one.name for one in parse_fixes("abtt,abtt:5,whiten,raw")] == ["abtt:3", "abtt:5", "whiten", "raw"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("squeeze", "unknown fix 'squeeze'; fixes are raw, clip, centre, standardize, abtt, whiten"),
        ("abtt:x", "cannot read the fix 'abtt:x'; write abtt:3 or whiten:256"),
        ("abtt:0", "a number belongs to abtt and whiten, and is at least 1"),
        ("clip:3", "a number belongs to abtt and whiten"),
    ],
)
def test_what_is_no_fix_is_told(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_fixes(text)


def test_a_fix_that_cannot_be_made_says_why() -> None:
    moments = moments_of(correlated(50, 4))
    with pytest.raises(BadInput, match="fix whiten needs a text to fit on; name one"):
        make_fix(FixSpec("whiten"), 4)
    with pytest.raises(BadInput, match="was fitted on 4 dimensions; the vectors have 5"):
        make_fix(FixSpec("centre"), 5, moments=moments)
    with pytest.raises(BadInput, match="dimension 4 does not exist; the vectors: dimensions 0 to 3"):
        make_fix(FixSpec("clip"), 4, dims=(4,))
    with pytest.raises(BadInput, match="fix abtt:4: the vectors have 4 dimensions"):
        make_fix(FixSpec("abtt", 4), 4, moments=moments)
    with pytest.raises(BadInput, match="all vectors to fit on are alike"):
        make_fix(FixSpec("whiten"), 3, moments=moments_of(np.ones((50, 3))))
