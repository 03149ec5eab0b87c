"""Control sets: different, fair, as large as the tested one; ranks among them are p-values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlierlens.ablation.controls import matched_sets, random_sets
from outlierlens.errors import BadInput
from outlierlens.statistics.ranks import rank_p


@given(st.integers(0, 999), st.integers(1, 4))
def test_random_sets_are_different_sets_of_any_dimensions_but_the_tested_one(seed: int, size: int) -> None:
    tested = set(range(3, 3 + size))
    sets = random_sets(20, size, n=19, seed=seed, other_than=tested)
    assert len(set(sets)) == len(sets) == 19
    assert all(len(set(dims)) == size and list(dims) == sorted(dims) and set(dims) != tested for dims in sets)
    assert set(random_sets(20, size, n=20, seed=seed)) >= set(sets)  # the tested set itself takes one place at most
    spared = random_sets(20, size, n=15, seed=seed, avoid={3, 7})
    assert len(spared) == 15
    assert not any(set(dims) & {3, 7} for dims in spared)


def test_there_are_no_more_random_sets_than_exist() -> None:
    assert sorted(random_sets(4, 2, n=99, seed=0, other_than=(1, 2))) == [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]
    assert sorted(random_sets(5, 1, n=99, seed=0, other_than=(2,), avoid=(2, 4))) == [(0,), (1,), (3,)]
    with pytest.raises(BadInput, match="no other set of 2 can be drawn from 1 of 4 dimensions"):
        random_sets(4, 2, avoid={0, 1, 2}, n=1, seed=0)
    with pytest.raises(BadInput, match="no other set of 2"):
        random_sets(2, 2, n=1, seed=0, other_than=(0, 1))


def test_random_sets_reach_every_dimension_equally() -> None:
    sets = [dims for seed in range(300) for dims in random_sets(10, 2, n=15, seed=seed, avoid={0})]
    counts = np.bincount([dim for dims in sets for dim in dims], minlength=10)
    assert counts[0] == 0
    assert counts[1:] == pytest.approx(np.full(9, 1000), abs=150)


@pytest.mark.parametrize(("avoids", "holds"), [(False, True), (True, False)])
def test_the_rank_of_a_random_set_among_random_sets_is_a_p_value(avoids: bool, holds: bool) -> None:
    """As in mini-planted: eight of 128 dimensions carry nearly all damage, and what is tested is any eight of them.

    Among 24 sets p <= 0.04 at a rate of 0.04; among sets that avoid the tested dimensions more often.
    """
    random, n, hits = np.random.default_rng(1), 2000, 0
    for seed in range(n):
        damage = random.exponential(0.005, 128)
        damage[random.choice(128, 8, replace=False)] = random.exponential(0.2, 8)
        tested = random.choice(128, 8, replace=False)
        sets = random_sets(128, 8, n=24, seed=seed, other_than=tested, avoid=tested if avoids else ())
        hits += rank_p(damage[tested].sum(), damage[np.array(sets)].sum(axis=1)) <= 0.04
    error = np.sqrt(0.04 * 0.96 / n)
    assert bool(hits / n <= 0.04 + 2 * error) is holds
    if holds:
        assert hits / n >= 0.04 - 3 * error  # a p-value that never falls says nothing


def test_matched_sets_are_as_large_and_elsewhere() -> None:
    random = np.random.default_rng(0)
    strength = random.uniform(0, 1, (6, 200))
    strength[:, 9] = 8
    decoys = {layer: 20 + 3 * np.arange(8) + layer for layer in range(6)}
    for layer, dims in decoys.items():
        strength[layer, dims] = 7.5
    for found in matched_sets(strength, dict.fromkeys(range(6), (9,)), avoid={5}, n=10, seed=1):
        chosen = found.plan
        assert 0.7 < found.closeness < 1
        assert set(chosen) == set(range(6))
        picked = [chosen[layer][0] for layer in range(6)]
        assert not set(picked) & {5, 9}
        assert len(set(picked)) == 6  # never the same position twice while fresh ones are left
        # Positions at 7.5 that an earlier layer used are blocked, so at most a few layers fall back to lesser ones.
        assert sum(strength[layer, dim] == 7.5 for layer, dim in enumerate(picked)) >= 4
