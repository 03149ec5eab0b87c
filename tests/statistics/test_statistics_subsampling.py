"""Intervals of correlations: values and errors against scipy and a jackknife, coverage, groups, and what they refuse to say."""

import math

import numpy as np
import pytest
from scipy import stats

from outlierlens.data.labelled.labels import families
from outlierlens.statistics.subsampling import Parts, correlation_interval, measured
from outlierlens.tasks.metrics import Statistic, interval

METRICS = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}


def made(seed: int, n: int, step: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(truth, one model's predictions, another's), in steps so that there are ties."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=n)
    one = truth + 0.5 * random.normal(size=n)
    other = one + 0.5 * random.normal(size=n)
    return tuple(np.round(part / step) * step if step else part for part in (truth, one, other))  # type: ignore[return-value]


def parts_of(rows: list[np.ndarray]) -> Parts:
    """Parts whose items are independent."""
    starts = np.cumsum([0, *map(len, rows)])
    return Parts(
        np.concatenate(rows), starts[:-1], np.arange(starts[-1]), np.repeat(np.arange(len(rows)), np.diff(starts))
    )


@pytest.mark.parametrize("step", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("metric", METRICS)
def test_values_are_those_of_scipy_and_errors_those_of_a_jackknife(metric: str, step: float) -> None:
    truth, one, other = made(0, 300, step)
    random = np.random.default_rng(1)
    rows = [random.permutation(300)[:size] for size in (60, 120, 200)]
    other = other * 1e6 + 1e3  # no scale matters
    theirs = METRICS[metric]
    values, errors = measured(metric, (truth, one, other), parts_of(rows))
    for value, error, some in zip(values, errors, rows, strict=True):

        def change(kept: np.ndarray) -> float:
            return float(theirs(truth[kept], one[kept]).statistic - theirs(truth[kept], other[kept]).statistic)

        assert value == pytest.approx(change(some), abs=1e-12)
        without = np.array([change(np.delete(some, place)) for place in range(len(some))])
        n = len(some)
        assert error == pytest.approx(math.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()), rel=0.05)
    alone, errors = measured(metric, (truth, one), parts_of(rows))
    r = np.array([theirs(truth[some], one[some]).statistic for some in rows])
    assert np.tanh(alone) == pytest.approx(r)
    if metric == "pearson" and not step:  # of normal values the error of Fisher's z is about 1/√n
        assert errors == pytest.approx([len(some) ** -0.5 for some in rows], rel=0.2)


@pytest.mark.parametrize("metric", METRICS)
def test_constants_correlate_with_nothing(metric: str) -> None:
    truth, one, _ = made(2, 40)
    flat = np.full(40, 1e8)
    values, errors = measured(metric, (truth, flat), parts_of([np.arange(40)]))
    assert (values, errors) == ([0], [0])
    values, _ = measured(metric, (truth, one, flat), parts_of([np.arange(40)]))
    assert values == pytest.approx([METRICS[metric](truth, one).statistic])


def test_groups_add_up() -> None:
    """Of items that are copies of one another the error is that of the originals."""
    truth, one, other = made(3, 100)
    copies = np.repeat(np.arange(100), 3)
    parts = Parts(np.arange(300), np.array([0]), np.arange(0, 300, 3), np.zeros(100, dtype=int))
    for metric in METRICS:
        many = measured(metric, (truth[copies], one[copies], other[copies]), parts)
        once = measured(metric, (truth, one, other), parts_of([np.arange(100)]))
        assert many[0] == pytest.approx(once[0])
        assert many[1] == pytest.approx(once[1])


@pytest.mark.parametrize("kind", ["t3", "log-normal"])
@pytest.mark.parametrize("metric", METRICS)
def test_correlations_and_differences_are_covered_whatever_the_tails(metric: str, kind: str) -> None:
    """More cases, larger samples and more draws: benchmarks/intervals.py."""
    random = np.random.default_rng(7)

    def noise(size: int) -> np.ndarray:
        found = random.standard_t(3, size) / math.sqrt(3) if kind == "t3" else random.lognormal(0, 1, size) / 2.2
        return np.asarray(found)

    def sample(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        truth, shared = random.standard_normal(n), noise(n)
        one, other = (truth + factor * (shared + 0.5 * noise(n)) for factor in (0.5, 0.8))
        return truth, one, other

    truth, one, other = sample(1_000_000)
    alone = METRICS[metric](truth, one).statistic
    real = np.array([[alone], [alone - METRICS[metric](truth, other).statistic]])
    trials = 120
    ends = []
    for _ in range(trials):
        truth, one, other = sample(598)
        given = ((one,), (one, other))
        ends.append([correlation_interval(metric, truth, some, seed=0, n_draws=200) for some in given])
    low, high = np.transpose(ends)
    miss = np.mean((real < low) | (high < real), axis=1)  # of which nothing is said misses nothing
    assert miss.max() < 0.07 + 2 * math.sqrt(0.93 * 0.07 / trials)


def test_pairs_that_share_sentences_are_drawn_together() -> None:
    """What a model gets wrong in a sentence it gets wrong in each of its three pairs: intervals by pair are too narrow."""
    random = np.random.default_rng(11)
    trials, inside = 80, {"pairs": 0, "families": 0}
    for _ in range(trials):
        sentence = np.repeat(np.arange(600), 3)
        partner = np.arange(1800) + 600  # the other sentence stands in no other pair
        truth = random.standard_normal(600)[sentence] + 0.5 * random.standard_normal(1800)
        wrong = random.standard_normal((2, 600))[:, sentence] + 0.3 * random.standard_normal((2, 1800))
        one, other = truth + 0.7 * wrong  # alike in the population: the true change is 0
        family = families(sentence.tolist(), partner.tolist())
        assert len(np.unique(family)) == 600
        for name, groups in (("pairs", None), ("families", family)):
            low, high = correlation_interval("spearman", truth, (one, other), groups=groups, seed=0, n_draws=200)
            inside[name] += low <= 0 <= high
    assert inside["families"] > 0.93 * trials - 2 * math.sqrt(0.93 * 0.07 * trials)
    assert inside["pairs"] < 0.85 * trials


def test_families_hang_together_over_others() -> None:
    found = families(["a", "b", "c", "d"], ["b", "x", "y", "a"])
    assert found[0] == found[1] == found[3] != found[2]
    assert len(np.unique(families(["a", "b"], ["c", "d"]))) == 2
    assert np.array_equal(families(["a", "b"], ["a", "b"]), [0, 1])  # a pair of equal sentences is one pair
    # A chain of a thousand pairs is one family, a word is no sentence.
    chain = [str(i) for i in range(1000)]
    assert not families(chain[:-1], chain[1:]).any()
    assert len(np.unique(families(["a"] * 2, ["b", "c"], [("b",), ("c",)]))) == 1
    assert len(np.unique(families(["a", "d"], ["b", "c"], [("b",), ("a",)]))) == 2


def test_what_settles_nothing_is_said() -> None:
    truth, one, other = made(5, 700)
    few = slice(0, 597)
    for metric, formula in METRICS.items():
        low, high = correlation_interval(metric, truth, (one, other), seed=0, n_draws=200)
        assert low < formula(truth, one).statistic - formula(truth, other).statistic < high
        assert np.isnan(correlation_interval(metric, truth[few], (one[few], other[few]), seed=0)).all()
        assert np.isnan(correlation_interval(metric, truth, (one, other), groups=np.arange(700) // 2, seed=0)).all()
        broken = np.where(np.arange(700) == 3, np.nan, one)
        assert np.isnan(correlation_interval(metric, truth, (broken, other), seed=0)).all()
        assert np.isnan(correlation_interval(metric, truth, (truth,), seed=0)).all()  # nothing varies about a line
        one_moved = np.where(np.arange(700) == 3, 9.0, one)  # most parts do not hold the one item that moved
        assert np.isnan(correlation_interval(metric, truth, (one_moved, one), seed=0, n_draws=200)).all()
        assert correlation_interval(metric, truth[few], (one[few], one[few]), seed=0) == (0, 0)


@pytest.mark.parametrize("metric", METRICS)
def test_statistics_and_scores_use_them(metric: str) -> None:
    truth, one, other = made(6, 800, 0.25)
    family = np.arange(800) // 1
    statistic = Statistic(metric, truth, family)
    found = statistic.change(one, other, seed=3)
    assert found.low < found.value < found.high
    assert found == statistic.change(one, other, seed=3)
    assert found != statistic.change(one, other, seed=4)
    back = statistic.change(other, one, seed=3)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))
    wide, narrow = (statistic.change(one, other, seed=3, level=level) for level in (0.99, 0.8))
    assert wide.low < narrow.low < narrow.high < wide.high
    alone = interval(metric, truth, (one,), seed=3, groups=family)
    assert alone[0] < METRICS[metric](truth, one).statistic < alone[1] < 1
