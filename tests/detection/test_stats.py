"""Running statistics against numbers worked out by hand, NumPy, and merges in any order."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlierlens.detection import running_statistics as stats
from outlierlens.detection.running_statistics import (
    FEW_ROWS,
    HALF,
    QUANTILE_ERROR,
    SMALLEST,
    GroupStats,
    InputCounts,
    LargeCounts,
    LayerStats,
    LogHistogram,
    Moments,
    Scratch,
    VectorRows,
    no_extremes,
    rows_of,
)
from outlierlens.errors import BadInput

DIM = 8


def rows(n: int, *, text: int = 0, slot: int = 0) -> VectorRows:
    """The `n` tokens of one text, token ids 100 + position."""
    position = torch.arange(n)
    return VectorRows(position, torch.full((n,), slot), (text << 32) | position, 100 + position)


def values(n: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    """float32 [row, dim] with one column near 22,500 in some rows, as a massive activation is."""
    random = np.random.default_rng(seed)
    found = random.normal(size=(n, DIM)) * scale
    found[:, 3] = np.where(random.random(n) < 0.2, 22_500 + 30 * random.normal(size=n), found[:, 3])
    return torch.tensor(found, dtype=torch.float32)


def moments_of(array: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mean, std, skewness and kurtosis by definition, in extended precision."""
    wide = array.astype(np.longdouble)
    centred = wide - wide.mean(0)
    second, third, fourth = ((centred**k).mean(0) for k in (2, 3, 4))
    return wide.mean(0), np.sqrt(second), third / second**1.5, fourth / second**2


def test_moments_by_hand() -> None:
    # mean 4; deviations −3, −2, −1, 6: squares 50, cubes 180, fourth powers 1394.
    found = Moments.of(torch.tensor([[1.0], [2.0], [3.0], [10.0]], dtype=torch.float64))
    assert [float(m) for m in (found.mean, found.m2, found.m3, found.m4)] == [4, 50, 180, 1394]
    assert float(found.std()) == pytest.approx(math.sqrt(12.5))
    assert float(found.skewness()) == pytest.approx(45 / 12.5**1.5)
    assert float(found.kurtosis()) == pytest.approx(348.5 / 156.25)


def exact(points: dict[int, int]) -> tuple[int, Fraction, Fraction, Fraction, Fraction]:
    """Count, mean and centred power sums of {value: how often}, in fractions."""
    count = sum(points.values())
    mean = Fraction(sum(value * times for value, times in points.items()), count)
    return count, mean, *(sum(times * (value - mean) ** k for value, times in points.items()) for k in (2, 3, 4))


def summed(points: dict[int, int]) -> Moments:
    """The same as `Moments`, as if so many rows had been read."""
    count, *sums = exact(points)
    return Moments(count, *(torch.tensor([float(value)], dtype=torch.float64) for value in sums))


def assert_merges_exactly(first: dict[int, int], second: dict[int, int]) -> None:
    both = {value: first.get(value, 0) + second.get(value, 0) for value in first.keys() | second.keys()}
    count, mean, *sums = exact(both)
    merged = summed(first).merged(summed(second))
    assert merged.count == count
    assert float(merged.mean) == pytest.approx(float(mean), rel=1e-12, abs=1e-12 * max(map(abs, both)))
    for k, found, wanted in zip((2, 3, 4), (merged.m2, merged.m3, merged.m4), sums, strict=True):
        # The third power sum may cancel: what counts is its error against the terms that were added.
        size = sum(times * abs(value - mean) ** k for value, times in both.items())
        assert float(found) == pytest.approx(float(wanted), rel=0, abs=1e-12 * float(size)), k


@settings(max_examples=200)
@given(
    *(st.dictionaries(st.integers(-30_000, 30_000), st.integers(1, 10**12), min_size=1, max_size=4) for _ in range(2))
)
def test_moments_merge_like_fractions_at_any_count(first: dict[int, int], second: dict[int, int]) -> None:
    assert_merges_exactly(first, second)


def test_a_group_goes_on_counting_after_millions_of_vectors() -> None:
    group = GroupStats(1, 3.0)
    group.moments = summed({-1: 10**7, 1: 10**7})
    group.add(torch.tensor([[22_500.0]]), rows(1), Scratch())
    assert group.count == 2 * 10**7 + 1
    count, _, second, _, fourth = exact({-1: 10**7, 1: 10**7, 22_500: 1})
    assert float(group.moments.kurtosis()) == pytest.approx(float(count * fourth / second**2), rel=1e-12)


def test_a_dimension_that_never_varies_has_no_shape() -> None:
    found = Moments.of(torch.full((7, 1), 0.1, dtype=torch.float32).double())
    found = found.merged(Moments.of(torch.full((5, 1), 0.1, dtype=torch.float32).double()))
    assert float(found.std()) == 0
    assert math.isnan(float(found.skewness()))
    assert math.isnan(float(found.kurtosis()))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(1, 119), max_size=8, unique=True),
    scale=st.sampled_from([0.01, 1.0, 300.0]),
    random=st.randoms(use_true_random=False),
)
def test_moments_agree_in_any_order_and_batching(seed: int, cuts: list[int], scale: float, random) -> None:
    data = values(120, seed, scale).double()
    parts = [part.clone() for part in torch.tensor_split(data, sorted(cuts))]
    random.shuffle(parts)
    merged = Moments.of(parts[0])
    for part in parts[1:]:
        # Either side may be the accumulated one.
        new = Moments.of(part)
        merged = merged.merged(new) if random.random() < 0.5 else new.merged(merged)
    expected = moments_of(data.numpy())
    found = (merged.mean, merged.std(), merged.skewness(), merged.kurtosis())
    size = np.abs(data.numpy()).max()
    for name, ours, theirs, floor in zip(
        ("mean", "std", "skewness", "kurtosis"), found, expected, (size, 0, 1, 0), strict=True
    ):
        np.testing.assert_allclose(
            ours.numpy(), theirs.astype(float), rtol=1e-9, atol=1e-12 * floor + 1e-15, err_msg=name
        )


def test_float32_power_sums_would_not_do() -> None:
    """The reason for centred float64: E[x²] − E[x]² in float32 loses the spread of a dimension that sits at 22,500."""
    data = torch.tensor(22_500 + np.random.default_rng(0).normal(size=(5000, 1)), dtype=torch.float32)
    naive = (data.square().mean() - data.mean().square()).item()
    ours = float(Moments.of(data.double()).std()) ** 2
    assert abs(naive - 1) > 1
    assert ours == pytest.approx(1, rel=0.05)


def test_of_equal_extremes_the_first_text_and_position_is_kept() -> None:
    a = torch.tensor([[1.0, -5.0], [-2.0, 5.0]])
    late, early = (VectorRows(torch.arange(2), torch.zeros(2, dtype=torch.long), torch.tensor(key), torch.tensor(token))
                   for key, token in (([70, 71], [7, 8]), ([10, 11], [1, 2])))  # fmt: skip
    for first, second in ((late, early), (early, late)):
        found = no_extremes(2).with_chunk(a, first).with_chunk(a, second)
        assert found.key.tolist() == [11, 10]  # |−2| in the second row; |−5| = |5|, so the first row
        assert found.token.tolist() == [2, 1]
        apart = no_extremes(2).with_chunk(a, first).merged(no_extremes(2).with_chunk(a, second))
        assert apart.key.tolist() == [11, 10]
        assert (apart.low.tolist(), apart.high.tolist(), apart.top.tolist()) == ([-2, -5], [1, 5], [2, 5])


def test_an_extreme_that_several_entries_share_is_nobody_s() -> None:
    states = torch.tensor([[0.0, 0, 0], [-1, 0, 0], [1, 1, -3], [2, 2, 2], [-5, 4, -5]])
    group = GroupStats(3, n_sigma=3.0)
    before = states.clone()
    group.add(states, rows(5), Scratch())
    assert torch.equal(states, before)
    assert group.argmin.tolist() == [1, 0, 1]
    assert group.argmax.tolist() == [0, 1, 0]
    nothing = GroupStats(3, n_sigma=3.0)
    nothing.add(torch.zeros(4, 3), rows(4), Scratch())
    assert math.copysign(1, float(nothing.extremes.top[0])) == 1  # no −0


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 200), exponent=st.floats(-6, 5), share=st.floats(0, 1))
def test_quantiles_are_within_the_stated_error(seed: int, n: int, exponent: float, share: float) -> None:
    random = np.random.default_rng(seed)
    data = (random.normal(size=(n, 2)) * 10.0**exponent + [0, 10.0**exponent]).astype(np.float32)
    histogram = LogHistogram(2)
    histogram.add(torch.tensor(data))
    found = histogram.quantiles([share]).numpy()[:, 0]
    exact = np.sort(data, axis=0)[max(math.ceil(share * n) - 1, 0)].astype(float)
    assert np.all(np.abs(found - exact) <= np.maximum(QUANTILE_ERROR * (1 + 1e-6) * np.abs(exact), SMALLEST))
    middle = float(np.sort(np.abs(data), axis=None)[n - 1])  # rank n of 2n
    assert abs(histogram.median_magnitude() - middle) <= max(QUANTILE_ERROR * (1 + 1e-6) * middle, SMALLEST)


def test_the_error_bound_is_reached_and_no_wider() -> None:
    # 1.0 opens the bin [1, 33/32), whose harmonic centre is 66/65.
    histogram = LogHistogram(1)
    histogram.add(torch.tensor([[1.0]]))
    assert float(histogram.quantiles([0.5])) == pytest.approx(66 / 65)
    assert pytest.approx(1 / 65) == QUANTILE_ERROR


def test_what_lies_outside_the_bins() -> None:
    histogram = LogHistogram(1)
    histogram.add(torch.tensor([[0.0], [-0.0], [1e-30], [-1e-5], [3e38], [-3e38]]))
    assert histogram.counts[HALF].item() == 2  # +0 and 1e-30
    assert histogram.counts[HALF - 1].item() == 2  # −0 and −1e-5
    assert histogram.counts[0].item() == histogram.counts[-1].item() == 1
    assert float(histogram.quantiles([0.5])) == 0


@pytest.mark.parametrize("columns", [None, torch.tensor([0, 2, *range(5, 21)])])
def test_many_rows_are_counted_as_few(columns: torch.Tensor | None) -> None:
    data = torch.tensor(np.random.default_rng(0).standard_t(2, size=(FEW_ROWS, 21)), dtype=torch.float32)
    at_once, singly = LogHistogram(21, columns), LogHistogram(21, columns)
    at_once.add(data)
    for part in data.split(100):
        singly.add(part)
    assert torch.equal(at_once.counts, singly.counts)
    assert int(at_once.counts.sum()) == FEW_ROWS * (21 if columns is None else len(columns))
    assert torch.equal(at_once.all_magnitudes(), singly.all_magnitudes())


def test_an_empty_histogram_has_no_quantile() -> None:
    assert math.isnan(float(LogHistogram(1).quantiles([0.5])))
    assert math.isnan(LogHistogram(1).median_magnitude())


def test_narrowed_histograms_keep_their_columns_and_all_magnitudes() -> None:
    first, second = values(50, 1), values(70, 2)
    whole, columns = LogHistogram(DIM), torch.tensor([1, 3, 6])
    whole.add(first)
    narrow = whole.narrowed(columns)
    whole.add(second)
    narrow.add(second)
    shares = [0.1, 0.5, 0.9]
    assert torch.equal(narrow.quantiles(shares), whole.quantiles(shares)[columns])
    assert torch.equal(narrow.all_magnitudes(), whole.all_magnitudes())
    assert narrow.median_magnitude() == whole.median_magnitude()
    assert torch.equal(narrow.narrowed(torch.tensor([3])).quantiles(shares), whole.quantiles(shares)[3:4])
    with pytest.raises(BadInput, match="different dimensions cannot be merged; narrow both"):
        narrow.merged(whole)


def layer(parts: list[tuple[torch.Tensor, int, int]]) -> LayerStats:
    """A layer that saw each (values, text, number of special tokens at the start)."""
    found = LayerStats(DIM)
    for states, text, n_special in parts:
        all_rows = rows(len(states), text=text)
        ordinary, special = all_rows.part(n_special, len(states)), all_rows.part(0, n_special)
        found.keep_quantiles(2, DIM, states[None], (ordinary, special))
        found.add(states[None], ordinary, special)
    return found


def counted(group: GroupStats, inputs: InputCounts | None = None) -> list[list[float]]:
    """Everything that must be the same exactly."""
    exact = (group.argmin, group.argmax, group.sigma, *vars(group.extremes).values(), group.histogram.counts)
    of_inputs = [[inputs.inputs], inputs.sigma.tolist()] if inputs else []
    return [[group.count], *(tensor.tolist() for tensor in exact), *of_inputs]


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(2, 30), min_size=3, max_size=5))
def test_merging_groups_is_exact_and_associative(seed: int, sizes: list[int]) -> None:
    parts = [(values(n, seed + i), i, i % 3) for i, n in enumerate(sizes)]
    for view in ("all", "without_special"):
        whole, a, b, c = (layer(some).view(view)[0] for some in (parts, parts[:1], parts[1:2], parts[2:]))
        for merged in (a.merged(b).merged(c), a.merged(b.merged(c)), c.merged(a).merged(b)):
            assert counted(merged) == counted(whole)
            np.testing.assert_allclose(merged.moments.kurtosis(), whole.moments.kurtosis(), rtol=1e-9)


def test_merging_leaves_both_sides_alone() -> None:
    a, b = (layer([(values(n, n), n, 0)]).ordinary for n in (9, 5))
    before = counted(a)
    for other in (b, LayerStats(DIM).ordinary):
        merged = a.merged(other)
        merged.add(values(4, 2), rows(4, text=2), Scratch())
        assert counted(a) == before


def test_sigma_shares_by_hand() -> None:
    # One entry of 16 at 15 and the others at −1: mean 0, std sqrt(15) = 3.87, so the entry lies at 3.87 sigma.
    spike = torch.full((16,), -1.0)
    spike[5] = 15
    flat = torch.tensor([1.0, -1.0] * 8)
    constant = torch.full((16,), 0.3)
    found = LayerStats(16)
    found.add(
        torch.stack([spike, flat, constant])[None], rows(3).part(1, 3), rows(3).part(0, 1)
    )  # the spike is special
    found.add(torch.stack([flat, spike, spike])[None], rows(3, text=1).part(1, 3), rows(3, text=1).part(0, 1))
    found.add(flat[None, None], rows(0), rows(1, text=2))
    every, without = found.view("all"), found.view("without_special")
    assert every[0].sigma.tolist() == [0] * 5 + [3] + [0] * 10
    assert without[0].sigma.tolist() == [0] * 5 + [2] + [0] * 10
    assert (every[0].count, without[0].count) == (7, 4)
    # All three inputs hold a token, two of them an ordinary one; the spike is in two inputs, in one an ordinary token.
    assert (every[1].inputs, every[1].sigma[5].item()) == (3, 2)
    assert (without[1].inputs, without[1].sigma[5].item()) == (2, 1)
    assert every[0].argmax[5].item() == 3


@pytest.mark.parametrize(("n_sigma", "hits"), [(3.87, 1), (3.88, 0)])
def test_n_sigma_is_a_threshold(n_sigma: float, hits: int) -> None:
    spike = torch.full((1, 16), -1.0)
    spike[0, 5] = 15  # 3.873 sigma
    group = GroupStats(16, n_sigma)
    group.add(spike, rows(1), Scratch())
    assert group.sigma.sum().item() == hits


@pytest.mark.parametrize("mean", [0.0, 3.0, -300.0, 1e5])
def test_sigma_is_that_of_the_definition(mean: float) -> None:
    states = torch.tensor(np.random.default_rng(1).standard_t(4, size=(50, 64)) + mean, dtype=torch.float32)
    centred = states.double() - states.double().mean(1, keepdim=True)
    by_definition = centred.abs() >= 2 * centred.square().mean(1, keepdim=True).sqrt()
    group = GroupStats(64, 2.0)
    found = torch.zeros(50, 64, dtype=torch.bool)
    found[group.add(states, rows(50), Scratch())] = True
    assert torch.equal(found, by_definition)
    assert torch.equal(group.sigma, by_definition.sum(0))


def test_layers_may_share_their_scratch() -> None:
    shared, states = Scratch(), [values(40, 1), values(9, 2), values(40, 3)]
    together = [LayerStats(DIM, scratch=shared) for _ in states]
    apart = [LayerStats(DIM) for _ in states]
    for layers in (together, apart):
        for found, one in zip(layers, states, strict=True):
            found.keep_quantiles(2, DIM, one[None], (rows(len(one)), rows(0)))
            found.add(one[None], rows(len(one)), rows(0))
    for one, other in zip(together, apart, strict=True):
        assert counted(*one.view("all")) == counted(*other.view("all"))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused(bad: float) -> None:
    states = values(4, 0)
    states[2, 1] = bad
    with pytest.raises(BadInput, match="1 of 4 token vectors hold NaN or infinity; use --dtype float32"):
        GroupStats(DIM, 3.0).add(states, rows(4), Scratch())


def test_counters_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MAX_TOKENS", 10)
    group = GroupStats(DIM, 3.0)
    group.add(values(8, 0), rows(8), Scratch())
    with pytest.raises(BadInput, match="more than 10 token vectors in one result; split the data"):
        group.add(values(3, 1), rows(3), Scratch())
    with pytest.raises(BadInput, match="more than 10 token vectors"):
        group.merged(group)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_float_type_is_counted_in_float32(dtype: torch.dtype) -> None:
    states = values(6, 0).clamp(-100, 100).to(dtype)
    found = LayerStats(DIM)
    found.add(states[None], rows(6), rows(0))
    assert torch.equal(found.ordinary.extremes.low, states.float().amin(0))


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    states = values(40, 3)
    whole = layer([(states, 0, 2)])
    monkeypatch.setattr(stats, "CHUNK_VALUES", 3 * DIM)
    pieces = layer([(states, 0, 2)])
    assert counted(*pieces.view("all")) == counted(*whole.view("all"))
    np.testing.assert_allclose(
        pieces.view("all")[0].moments.kurtosis(), whole.view("all")[0].moments.kurtosis(), rtol=1e-12
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_name_text_and_position_whatever_the_padding(side: str) -> None:
    valid = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    tokens = torch.tensor([[11, 12, 13, 0], [21, 22, 0, 0]])
    if side == "left":
        valid, tokens = valid.flip(1), tokens.flip(1)
    found = rows_of(valid, valid, tokens, (9, 4))  # the second row is the earlier text
    places = [(key >> 32, key & 0xFFFFFFFF) for key in found.key.tolist()]
    assert places == [(4, 0), (4, 1), (9, 0), (9, 1), (9, 2)]
    assert found.slot.tolist() == [0, 0, 1, 1, 1]
    assert tokens.flatten()[found.index].tolist() == found.token.tolist()
    first = [21, 22, 11, 12, 13] if side == "right" else [22, 21, 13, 12, 11]
    assert found.token.tolist() == first


def test_large_counts_by_hand() -> None:
    found = LargeCounts(3)
    found.add(torch.tensor([[5.99, 6.0, -7.0], [0.0, -6.0, 1.0], [9.0, 9.0, math.nan]]), torch.tensor([0, 1]))
    found.add(torch.tensor([[8.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 9.0, 1.0]]), torch.tensor([1, 2]))
    assert found.large.tolist() == [0, 3, 1]
    assert found.share().tolist() == [0, 0.75, 0.25]
    found.add(torch.tensor([[8.0, 6.0, 1.0]]), top=torch.tensor([5.0, 9.0, 2.0]))
    assert found.large.tolist() == [0, 4, 1], "a dimension is not looked at where its bound is below 6"
    assert found.count == 5
