"""Masks follow from seed, epoch and sample alone; shares are those of Devlin et al."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlierlens.errors import BadInput
from outlierlens.training.pretrain.rows import IGNORED, Masking, masked

SPECIAL = (0, 1, 2, 3, 4)
MASK = 4
WORDS = 400
MASKING = Masking(share=0.15, mask=MASK, special=SPECIAL, n_vocabulary=WORDS)
ROWS = np.random.default_rng(0).integers(5, WORDS, size=(3000, 62))
ROWS = np.hstack([np.full((3000, 1), 2), ROWS, np.full((3000, 1), 3)]).astype(np.uint16)
KEYS = [(0, sample) for sample in range(len(ROWS))]


def shares(happened: np.ndarray, expected: float) -> float:
    """How many standard errors the share of `happened` lies from `expected`."""
    return float(abs(happened.mean() - expected) / np.sqrt(expected * (1 - expected) / happened.size))


def test_only_chosen_tokens_have_labels_and_only_they_change() -> None:
    ids, labels = masked(ROWS, KEYS, MASKING, seed=0)
    assert ids.dtype == labels.dtype == np.int64
    chosen = labels != IGNORED
    np.testing.assert_array_equal(labels[chosen], ROWS[chosen])
    np.testing.assert_array_equal(ids[~chosen], ROWS[~chosen])
    assert not np.isin(ROWS[chosen], SPECIAL).any()
    assert not np.isin(ids[chosen], [0, 1, 2, 3]).any()  # of the special tokens only [MASK] is put in
    assert ROWS[0, 0] == 2  # the rows themselves stay


def test_of_the_ordinary_tokens_15_percent_are_chosen_of_them_80_10_10() -> None:
    ids, labels = masked(ROWS, KEYS, MASKING, seed=0)
    chosen = labels != IGNORED
    assert shares(chosen[:, 1:-1], 0.15) < 4
    now, before = ids[chosen], ROWS[chosen]
    assert now.size > 20_000
    assert shares(now == MASK, 0.8) < 4
    n_words = WORDS - len(SPECIAL)
    assert shares((now != MASK) & (now != before), 0.1 * (1 - 1 / n_words)) < 4  # one random token in 395 is the same
    assert shares(now == before, 0.1 + 0.1 / n_words) < 4
    # Random tokens are spread evenly: Pearson's statistic has mean 394 and standard deviation sqrt(2 * 394).
    swapped = now[(now != MASK) & (now != before)]
    counts = np.bincount(swapped, minlength=WORDS)[5:]
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert abs(statistic - n_words) < 4 * np.sqrt(2 * n_words)


def test_every_place_is_chosen_alike() -> None:
    _, labels = masked(ROWS, KEYS, MASKING, seed=0)
    by_place = (labels != IGNORED)[:, 1:-1].mean(axis=0)  # [place], of 3,000 rows
    assert np.abs(by_place - 0.15).max() < 4.5 * np.sqrt(0.15 * 0.85 / 3000)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=20), st.integers(0, 2**31 - 1), st.integers(0, 1000))
def test_a_row_is_masked_alike_in_any_batch(places: list[int], seed: int, epoch: int) -> None:
    together = masked(ROWS[places], [(epoch, place) for place in places], MASKING, seed)
    for number, place in enumerate(places):
        alone = masked(ROWS[[place]], [(epoch, place)], MASKING, seed)
        np.testing.assert_array_equal(together[0][number], alone[0][0])
        np.testing.assert_array_equal(together[1][number], alone[1][0])


@pytest.mark.parametrize(
    ("seed", "epoch", "sample"), [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2**22, 0), (2**31 - 1, 0, 0), (0, 0, 2**40 - 1)]
)
def test_another_seed_epoch_or_sample_gives_an_independent_mask(seed: int, epoch: int, sample: int) -> None:
    row = np.tile(ROWS[0, 1:-1], 100)[None]  # 6,200 tokens
    first = masked(row, [(0, 0)], MASKING, 0)[1] != IGNORED
    other = masked(row, [(epoch, sample)], MASKING, seed)[1] != IGNORED
    assert shares(first & other, 0.15**2) < 4


def test_what_a_seed_gives_stays_as_it_is() -> None:
    """The generator's own promise (NumPy keeps streams of Philox): runs of today can be resumed tomorrow."""
    ids, labels = masked(np.arange(5, 25)[None], [(3, 17)], Masking(0.5, MASK, SPECIAL, WORDS), seed=7)
    chosen = {int(place): (int(labels[0, place]), int(ids[0, place])) for place in np.flatnonzero(labels[0] != IGNORED)}
    generator = np.random.Generator(np.random.Philox(key=[7, 3 * 2**40 + 17]))
    choice, fate = generator.random((2, 20))
    words = generator.integers(WORDS - 5, size=20) + 5
    expected = {
        place: (5 + place, MASK if fate[place] < 0.8 else 5 + place if fate[place] < 0.9 else int(words[place]))
        for place in range(20)
        if choice[place] < 0.5
    }
    assert chosen == expected
    assert {MASK} < {now for _, now in chosen.values()}


def test_a_row_with_one_word_has_it_chosen_and_one_without_has_none() -> None:
    rows = np.array([[2, 17, 3, 0], [2, 3, 0, 0]] * 50)
    _, labels = masked(rows, [(0, number) for number in range(100)], Masking(0.01, MASK, SPECIAL, WORDS), seed=0)
    assert (labels[0::2] == [IGNORED, 17, IGNORED, IGNORED]).all()
    assert (labels[1::2] == IGNORED).all()


def test_the_one_that_is_chosen_for_an_empty_row_may_be_any() -> None:
    rows = np.tile(np.arange(5, 13), (800, 1))
    _, labels = masked(rows, KEYS[:800], Masking(1e-9, MASK, SPECIAL, WORDS), seed=0)
    assert ((labels != IGNORED).sum(axis=1) == 1).all()
    counts = (labels != IGNORED).sum(axis=0)  # 100 each to expect
    assert np.abs(counts - 100).max() < 4 * np.sqrt(800 / 8 * 7 / 8)


def test_what_cannot_be_masked() -> None:
    with pytest.raises(BadInput, match="the vocabulary holds special tokens only"):
        Masking(0.15, MASK, SPECIAL, 5)
