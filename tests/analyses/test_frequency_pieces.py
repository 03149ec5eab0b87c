"""Pure pieces of the frequency correlation: against NumPy and SciPy, by hand, and what must hold for any tokens."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from frequency_results import frequency as made_up
from outlierlens.analyses import frequency_sums as sums_module
from outlierlens.analyses.frequency import Contrast, contrast_row, ranks, sampled_spearman
from outlierlens.analyses.frequency_sums import (
    FrequencySums,
    TokenSample,
    TypeTable,
    adjusted,
    contrast,
    of_types,
    partial,
    pearson,
    pearson_signed,
    random_dims,
    rank_p_of,
    regressors,
    spread,
)
from outlierlens.errors import BadInput
from outlierlens.results.rows import Estimate
from outlierlens.statistics.means import critical


class Made:
    """Random texts of unequal length whose dimension 1 holds massive values, and whose dimension 4 never varies."""

    def __init__(self, seed: int = 0, n: int = 9, longest: int = 11, width: int = 6):
        random = np.random.default_rng(seed)
        self.lengths = random.integers(2, longest + 1, size=n)
        valid = np.arange(longest) < self.lengths[:, None]
        self.special = valid & (np.arange(longest) == 0)
        self.ordinary = valid & ~self.special
        self.count = np.floor(10 ** random.uniform(0, 8, size=(n, longest))) * (random.random((n, longest)) > 0.1)
        self.position = np.tile(np.arange(longest), (n, 1)).astype(float)
        self.states = random.normal(size=(n, longest, width)).astype(np.float32)
        self.states[:, :, 2] += np.log1p(self.count) * 0.1
        self.states[:, :, 1] = np.where(random.random((n, longest)) < 0.1, 22_500.0, 3.0) + self.states[:, :, 1]
        self.states[:, :, 4] = 7.5
        self.states[~valid] = 1e6  # padding, which must not count

    def into(self, sums: FrequencySums, weights: np.ndarray, texts: list[int], layer: int = 0) -> None:
        parts = (self.count, self.position, self.ordinary, self.special)
        sums.start(regressors(*(torch.from_numpy(one[texts]) for one in parts)), weights[:, texts])
        sums.add(layer, torch.from_numpy(self.states[texts]))

    def tokens(self, view: str, often: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(h [token, dim], count, position [token]) of a view, texts repeated `often` [text]."""
        mask = self.ordinary if view == "without_special" else self.ordinary | self.special
        order = np.repeat(np.arange(len(mask)), np.ones(len(mask), int) if often is None else often.astype(int))
        chosen = mask[order]
        return self.states[order][chosen].astype(float), self.count[order][chosen], self.position[order][chosen]


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(stats.pearsonr(x, y).statistic)


@pytest.mark.parametrize("view", ["without_special", "all"])
def test_every_draw_is_what_scipy_makes_of_the_repeated_texts(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_module, "CHUNK_VALUES", 150)  # several pieces of a batch
    made = Made()
    weights = np.vstack([np.ones(9), np.random.default_rng(1).poisson(1, (5, 9))])
    sums = FrequencySums(1, 6, 5)
    made.into(sums, weights, [0, 3, 5, 6])
    made.into(sums, weights, [1, 2, 4, 7, 8])
    moments = sums.of(0, view)
    raw, log, given_position = pearson(moments, "raw"), pearson(moments, "log"), partial(moments)
    for draw in range(6):
        h, count, position = made.tokens(view, weights[draw])
        for dim in (0, 1, 2, 3, 5):
            size = np.abs(h[:, dim])
            assert raw[draw, dim] == pytest.approx(correlation(size, count), abs=1e-9)
            assert log[draw, dim] == pytest.approx(correlation(size, np.log1p(count)), abs=1e-9)
            # by residuals of both on the position
            lines = np.stack([np.ones_like(position), position], 1)
            left = [y - lines @ np.linalg.lstsq(lines, y, rcond=None)[0] for y in (size, np.log1p(count))]
            assert given_position[draw, dim] == pytest.approx(correlation(*left), abs=1e-7)
    assert np.isnan([raw[:, 4], log[:, 4], given_position[:, 4]]).all()
    h, count, _ = made.tokens(view)
    expected = [correlation(h[:, dim], np.log1p(count)) for dim in (0, 1, 2)]
    assert pearson_signed(moments)[:3] == pytest.approx(expected, abs=1e-9)
    assert np.isnan(pearson_signed(moments)[4])
    z = np.arctanh(log[1:])
    assert spread(log)[:4] == pytest.approx(z[:, :4].std(0, ddof=1))


def test_a_state_that_is_no_number_is_refused() -> None:
    made = Made()
    made.states[2, 1, 0] = np.nan
    with pytest.raises(BadInput, match="is NaN or infinite; use --dtype float32"):
        made.into(FrequencySums(1, 6, 2), np.ones((3, 9)), list(range(9)))


def test_one_position_alone_has_nothing_to_be_given() -> None:
    made = Made()
    made.position[:] = 3.0
    sums = FrequencySums(1, 6, 1)
    made.into(sums, np.ones((2, 9)), list(range(9)))
    moments = sums.of(0, "all")
    assert partial(moments)[0, :4] == pytest.approx(pearson(moments, "log")[0, :4])


def test_the_spread_over_draws_is_the_error_of_fisher_s_z() -> None:
    """Texts of one independent token: the error of z is 1 / √(n − 3)."""
    random = np.random.default_rng(3)
    n = 400
    x, y = random.normal(size=(n, 1, 1)) + 5, np.exp(random.uniform(0, 8, size=(n, 1)))
    sums = FrequencySums(1, 1, 800)
    here = torch.ones((n, 1), dtype=torch.bool)
    sums.start(
        regressors(torch.from_numpy(y), torch.zeros((n, 1), dtype=torch.float64), here, ~here),
        np.vstack([np.ones(n), random.poisson(1, (800, n))]),
    )
    sums.add(0, torch.from_numpy(x))
    assert spread(pearson(sums.of(0, "all"), "log"))[0] == pytest.approx(1 / np.sqrt(n - 3), rel=0.12)


def test_where_texts_differ_in_topic_few_dimensions_pass_by_chance() -> None:
    """Tokens of a text are alike in their states and in their counts: as if they were independent, a third would pass."""
    random = np.random.default_rng(5)
    n, length, width = 80, 12, 400
    here = torch.ones((n, length), dtype=torch.bool)
    counts = np.exp(2 * random.normal(size=(n, 1)) + random.normal(size=(n, length)) + 8)
    states = random.normal(size=(n, 1, width)) + random.normal(size=(n, length, width)) + 9
    sums = FrequencySums(1, width, 200)
    zero = torch.zeros((n, length), dtype=torch.float64)
    weights = np.vstack([np.ones(n), random.poisson(1, (200, n))])
    sums.start(regressors(torch.from_numpy(counts), zero, here, ~here), weights)
    sums.add(0, torch.from_numpy(states))
    draws = pearson(sums.of(0, "all"), "log")
    z = np.arctanh(draws[0])
    naive = (np.abs(z) * np.sqrt(n * length - 3) > 1.96).mean()
    assert naive > 0.3
    assert 0.02 < (np.abs(z) / spread(draws) > critical(79)).mean() < 0.09
    assert (adjusted(draws[:1], spread(draws)[None], 79) < 0.05).sum() <= 1


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(5, 40), st.integers(1, 9))
def test_the_sample_is_the_tokens_with_the_smallest_keys_however_they_come(seed: int, n: int, step: int) -> None:
    random = np.random.default_rng(seed)
    keys, count, ordinary = random.random(n), random.integers(0, 9, n).astype(float), random.random(n) > 0.3
    values = random.normal(size=(n, 2)).astype(np.float32)
    sample = TokenSample(8, 1, 2)
    for start in range(0, n, step):
        part = slice(start, start + step)
        index, slot = sample.offer(keys[part], count[part], ordinary[part])
        sample.values[0, slot] = values[part][index]
    expected = np.argsort(keys)[:8]
    used = sample.part("all")
    assert used.sum() == min(8, n)
    assert sorted(map(tuple, sample.values[0][used].tolist())) == sorted(map(tuple, values[expected].tolist()))
    assert sorted(sample.count[used]) == sorted(count[expected])
    assert sample.part("without_special").sum() == ordinary[expected].sum()


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 7), st.integers(1, 14))
def test_means_of_types_are_over_all_their_tokens_however_they_come(seed: int, step: int, size: int) -> None:
    random = np.random.default_rng(seed)
    ids, counted = random.integers(0, 12, 60), random.random(60) > 0.2
    values = np.abs(random.normal(size=(60, 3)))
    table = TypeTable(size, 12, (1, 3), seed=seed)
    for start in range(0, 60, step):
        part = slice(start, start + step)
        table.add(0, torch.from_numpy(table.offer(ids[part], counted[part])), torch.from_numpy(values[part]))
    there = np.unique(ids[counted])
    assert table.n_seen == len(there)
    order = np.random.default_rng([seed, 47]).permutation(12)
    assert sorted(table.ids.tolist()) == sorted(there[np.argsort(order[there])][:size].tolist())
    for one, mean in zip(table.ids, table.means(0), strict=True):
        assert mean == pytest.approx(values[counted & (ids == one)].mean(0))


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(6, 30))
def test_rank_correlations_are_scipy_s_with_ties_on_both_sides(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    sizes, count = random.normal(size=(n, 4)), random.integers(0, 5, n).astype(float)
    count[:2] = 0, 9
    sizes[:, 1] = np.round(sizes[:, 1])
    sizes[:, 2] = 3.0
    sample = TokenSample(n, 1, 4)
    index, slot = sample.offer(random.random(n), count, np.arange(n) < n - 2)
    sample.values[0, slot] = sizes[index]
    gathered = SimpleNamespace(sample=sample, sums=SimpleNamespace(width=4))
    for view, chosen in (("all", slice(None)), ("without_special", slice(None, n - 2))):
        found = sampled_spearman(gathered, 0, view)  # type: ignore[arg-type]
        drawn = sizes.astype(np.float32)
        for dim in (0, 3):
            assert found[dim] == pytest.approx(stats.spearmanr(drawn[chosen, dim], count[chosen]).statistic, abs=1e-12)
        if len(np.unique(sizes[chosen, 1])) > 1:
            assert found[1] == pytest.approx(stats.spearmanr(drawn[chosen, 1], count[chosen]).statistic, abs=1e-12)
        assert np.isnan(found[2])
    sample.ordinary[slot] = index < 2
    assert np.isnan(sampled_spearman(gathered, 0, "without_special")).all()  # type: ignore[arg-type]


def test_over_types_every_type_counts_once_and_the_error_is_that_of_new_types() -> None:
    random = np.random.default_rng(0)
    count = np.exp(random.uniform(0, 10, 3000))
    means = np.abs(random.normal(size=(3000, 3))) + 1
    means[:, 1] += 0.1 * np.log1p(count)
    means[:, 2] = 4.0
    value, error = of_types(means, count)
    assert value[:2] == pytest.approx([correlation(means[:, dim], np.log1p(count)) for dim in (0, 1)])
    assert np.isnan([value[2], error[2]]).all()
    drawn = []
    for _ in range(300):
        again = random.integers(0, 3000, 3000)
        drawn.append(np.arctanh(of_types(means[again], count[again])[0][:2]))
    assert error[:2] == pytest.approx(np.std(drawn, axis=0), rel=0.15)
    assert np.isnan(of_types(means[:3], count[:3])).all()


def test_p_values_are_two_sided_and_adjusted_over_everything_that_has_one() -> None:
    values = np.array([[np.tanh(0.3), 0.0], [-np.tanh(0.2), np.nan]])
    found = adjusted(values, np.full((2, 2), 0.1), 99)
    p = 2 * stats.t.sf([3.0, 2.0, 0.0], 99)
    # of three: the smallest times 3, the second times 3 / 2
    assert [found[0, 0], found[1, 0], found[0, 1]] == pytest.approx([3 * p[0], 1.5 * p[1], 1.0])
    assert np.isnan(found[1, 1])


def test_ranks_and_contrasts_by_hand() -> None:
    sizes = np.array([0.1, 0.5, 0.2, 0.5, np.nan])
    assert rank_p_of(sizes, [2], random_dims(5, 1, 0)) == pytest.approx(3 / 5)  # 0.2, and two that are larger
    assert ranks(sizes).tolist() == [4, 2, 3, 2, 5]
    sets = random_dims(5, 2, 0)
    assert sets.shape == (9999, 2)
    assert (sets[:, 0] != sets[:, 1]).all()
    # one pair of ten is as good: {1, 3}
    assert rank_p_of(sizes, [1, 3], sets) == pytest.approx(0.1, abs=0.01)
    draws = np.array([[0.1, -0.5, 0.3, np.nan], [0.2, 0.5, 0.0, np.nan], [0.0, -0.7, 0.2, np.nan]])
    sides = contrast(draws, [1])
    assert sides.tolist() == [[0.5, 0.5, 0.7], pytest.approx([0.2, 0.1, 0.1])]
    # the draws' differences are 0.4 and 0.6
    found = contrast_row(("all", "log", "3"), sides[:, 0], (sides[0] - sides[1])[1:], 0.01, 2.0)
    assert (found.named, found.others, found.difference.value) == pytest.approx((0.5, 0.2, 0.3))
    half = 2 * np.std([0.4, 0.6], ddof=1)
    assert (found.difference.low, found.difference.high) == pytest.approx((0.3 - half, 0.3 + half))
    assert not contrast_row(("all", "spearman", "3"), sides[:, 0], np.zeros(0), 0.01, 2.0).difference.settled


@pytest.mark.parametrize(
    ("difference", "low", "high", "p", "verdict"),
    [
        (0.3, 0.1, 0.5, 0.01, "more"),
        (0.3, -0.1, 0.5, 0.01, "unclear"),  # other texts could say otherwise
        (0.3, 0.1, 0.5, 0.2, "unclear"),  # every fifth dimension does as much
        (0.3, np.nan, np.nan, 0.01, "too few texts"),
        (-0.3, -0.5, -0.1, 0.99, "less"),
        (-0.3, -0.5, -0.1, 0.6, "unclear"),
        (np.nan, np.nan, np.nan, 0.01, "unclear"),
    ],
)  # fmt: skip
def test_a_verdict_needs_other_texts_and_other_dimensions(
    difference: float, low: float, high: float, p: float, verdict: str
) -> None:
    row = Contrast(
        view="all", measure="log", layer="0", named=0.5, others=0.2, difference=Estimate(difference, low, high), p=p
    )
    assert row.verdict == verdict


def test_a_result_says_its_numbers_and_what_it_has_not() -> None:
    found = made_up()
    one = found.row("0", 1)
    assert (one.log.value, one.raw.value, one.signed, one.rank) == (0.6, 0.3, -0.6, 1)
    assert (one.log.low, one.log.high) == pytest.approx(
        (np.tanh(np.arctanh(0.6) - 0.1), np.tanh(np.arctanh(0.6) + 0.1))
    )
    assert (one.types.low, one.types.value) == pytest.approx((np.tanh(np.arctanh(0.42) - 0.1025), 0.42))
    assert one.random == pytest.approx((-0.1, 0.1))
    assert found.most(1) == "0"
    assert found.contrast("raw", "0", "all").difference.value == 0.5
    # raw r of dimensions 0 and 2: (0.025 − 0.05) / 2 and (−0.05 + 0.05) / 2
    assert found.random_mean() == pytest.approx((-0.0125, 0.0))
    assert np.argwhere(found.passes()).tolist() == [[0, 1], [1, 1]]
