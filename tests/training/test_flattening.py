"""Changed corpora: frequencies by hand and as expected, and everything else as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlierlens.errors import BadInput
from outlierlens.training.pretrain.corpus import Flattening, shuffled

SPECIAL = (0, 1)
WORDS = 60


def corpus(seed: int = 0, n_rows: int = 2000, length: int = 32) -> np.ndarray:
    """Rows [CLS] … [SEP] of Zipf-like words 2 to 58; word 59 never occurs."""
    generator = np.random.default_rng(seed)
    chances = 1 / np.arange(1, WORDS - 2)
    words = 2 + generator.choice(WORDS - 3, size=(n_rows, length), p=chances / chances.sum())
    words[:, 0], words[:, -1] = 0, 1
    return words.astype(np.uint16)


def counts_of(rows: np.ndarray) -> np.ndarray:
    return np.bincount(rows.ravel(), minlength=WORDS)


def expected_of(made: Flattening, counts: np.ndarray) -> np.ndarray:
    """Occurrences of every id to expect after the replacement [vocabulary]."""
    moved = np.where(made.frequent, counts * made.share, 0.0)
    after = counts - moved
    after[made.rare] += moved.sum() / len(made.rare)
    return np.asarray(after)


def test_frequent_and_rare_by_hand() -> None:
    counts = np.array([100, 4, 3, 2, 1, 0])  # the first is special
    flattening = Flattening.from_counts(counts, share=0.5, special=(0,))
    # 10 ordinary occurrences; id 1 makes up 0.4 of them, ids 1 and 2 together 0.7: these two are the fewest for a half.
    assert flattening.frequent.tolist() == [False, True, True, False, False, False]
    assert flattening.rare.tolist() == [3, 4]  # what never occurs stays out
    # 2 + 1.5 occurrences move, 1.75 to each rare type.
    assert expected_of(flattening, counts).tolist() == [100, 2, 1.5, 3.75, 2.75, 0]


@pytest.mark.parametrize(("mass", "frequent"), [(0.4, [1]), (0.41, [1, 2]), (0.7, [1, 2]), (0.89, [1, 2, 3])])
def test_frequent_are_the_fewest_types_of_that_mass(mass: float, frequent: list[int]) -> None:
    made = Flattening.from_counts(np.array([100, 4, 3, 2, 1, 0]), share=1.0, special=(0,), frequent_mass=mass)
    assert np.flatnonzero(made.frequent).tolist() == frequent


def test_counts_are_left_as_they_were() -> None:
    counts = np.array([100, 4, 3, 2, 1, 0])
    Flattening.from_counts(counts, share=1.0, special=(0,))
    assert counts.tolist() == [100, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_unigram_distribution_becomes_what_is_expected(share: float) -> None:
    rows = corpus()
    flattening = Flattening.from_counts(counts_of(rows), share=share, special=SPECIAL)
    after = counts_of(flattening(rows, np.random.default_rng(1)))
    expected = expected_of(flattening, counts_of(rows))
    assert after.sum() == expected.sum().round() == rows.size
    # A count that loses is binomial, one that gains a sum of binomials: no variance beyond the expected moves.
    moved = np.abs(expected - counts_of(rows))
    assert (np.abs(after - expected) <= 4.5 * np.sqrt(moved) + 1e-9).all()
    assert after[flattening.frequent].sum() < counts_of(rows)[flattening.frequent].sum()
    if share == 1.0:
        assert after[flattening.frequent].sum() == 0


def test_rare_types_are_put_in_alike() -> None:
    rows = corpus()
    before = counts_of(rows)
    flattening = Flattening.from_counts(before, share=0.5, special=SPECIAL)
    gained = (counts_of(flattening(rows, np.random.default_rng(1))) - before)[flattening.rare]
    statistic = ((gained - gained.mean()) ** 2 / gained.mean()).sum()  # Pearson: mean n - 1, variance 2 (n - 1)
    freedom = len(gained) - 1
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


@given(st.integers(0, 1000), st.floats(0.05, 1.0), st.floats(0.1, 0.9))
def test_nothing_but_frequent_tokens_changes(seed: int, share: float, mass: float) -> None:
    rows = corpus(seed, 20)
    before = rows.copy()
    flattening = Flattening.from_counts(counts_of(rows), share=share, special=SPECIAL, frequent_mass=mass)
    after = flattening(rows, np.random.default_rng(seed))
    np.testing.assert_array_equal(rows, before)
    assert (after.shape, after.dtype) == (rows.shape, rows.dtype)
    changed = after != rows
    assert flattening.frequent[rows[changed]].all()
    assert np.isin(after[changed], flattening.rare).all()
    np.testing.assert_array_equal(np.isin(after, SPECIAL), np.isin(rows, SPECIAL))
    assert (after != 59).all()


def test_each_frequent_occurrence_is_replaced_on_its_own() -> None:
    rows = corpus()
    flattening = Flattening.from_counts(counts_of(rows), share=0.5, special=SPECIAL)
    changed = flattening(rows, np.random.default_rng(1)) != rows
    frequent = flattening.frequent[rows]
    for word in np.flatnonzero(flattening.frequent):
        at = rows == word
        assert abs(changed[at].mean() - 0.5) < 4.5 * np.sqrt(0.25 / at.sum())
    both = frequent[:, :-1] & frequent[:, 1:]  # neighbours
    together = (changed[:, :-1] & changed[:, 1:])[both]
    assert abs(together.mean() - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / together.size)


@given(st.integers(0, 1000))
def test_shuffled_rows_keep_their_tokens_and_their_marks(seed: int) -> None:
    rows = corpus(seed, 30)
    before = rows.copy()
    after = shuffled(rows, SPECIAL, np.random.default_rng(seed))
    np.testing.assert_array_equal(rows, before)
    assert after.dtype == rows.dtype
    np.testing.assert_array_equal(np.sort(after, axis=1), np.sort(rows, axis=1))
    special = np.isin(rows, SPECIAL)
    np.testing.assert_array_equal(after[special], rows[special])
    np.testing.assert_array_equal(np.isin(after, SPECIAL), special)
    assert (after != rows).any()


def test_every_order_is_as_likely() -> None:
    rows = np.tile(np.array([0, 7, 8, 1, 9, 0]), (6000, 1))
    after = shuffled(rows, SPECIAL, np.random.default_rng(0))
    orders, counts = np.unique(after[:, [1, 2, 4]], axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(6000 / 6 * 5 / 6)


@pytest.mark.parametrize("counts", [[9, 0, 0, 0], [9, 5, 0, 0], [0, 0, 0, 0]])
def test_text_without_a_rare_type(counts: list[int]) -> None:
    with pytest.raises(BadInput, match="no rare token type is left to put in; give more text or a lower frequent_mass"):
        Flattening.from_counts(np.array(counts), share=0.5, special=(0,))
