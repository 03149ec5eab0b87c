"""Metrics against scikit-learn and scipy; every resample against the metric of the items it stands for; coverage."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn

from outlierlens.errors import BadInput
from outlierlens.statistics.bootstrap import Sums, bca, mean_value
from outlierlens.statistics.means import no_change
from outlierlens.statistics.ranks import resampled_spearman
from outlierlens.tasks.metrics import Statistic, class_value, interval, paired_interval, score

CLASSES = ("accuracy", "f1", "macro f1", "mcc", "token accuracy", "token f1")
CORRELATIONS = ("pearson", "spearman")


def random_classes(seed: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(truth, one model's predictions, another's): mostly right, mostly alike."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, k, n)
    one = np.where(random.random(n) < 0.8, truth, random.integers(0, k, n))
    return truth, one, np.where(random.random(n) < 0.7, one, random.integers(0, k, n))


def random_values(seed: int, n: int, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(truth, one model's predictions, another's), rounded to `step` so that there are ties; as they are for 0."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=n)
    one = truth + random.normal(size=n) * 0.5
    found = (truth, one, one + random.normal(size=n) * 0.5)
    if step:
        found = tuple(np.round(part / step) * step for part in found)
    return found


def explicit(metric: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """The library's own function, 0 where it says nothing."""
    named: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
        "accuracy": sklearn.accuracy_score,
        "token accuracy": sklearn.accuracy_score,
        "f1": lambda truth, said: sklearn.f1_score(truth, said, zero_division=0),
        "macro f1": lambda truth, said: sklearn.f1_score(truth, said, average="macro", zero_division=0),
        "token f1": lambda truth, said: sklearn.f1_score(truth, said, average="macro", zero_division=0),
        "mcc": sklearn.matthews_corrcoef,
        "pearson": lambda truth, said: stats.pearsonr(truth, said).statistic,
        "spearman": lambda truth, said: stats.spearmanr(truth, said).statistic,
    }

    def call(truth: np.ndarray, said: np.ndarray) -> float:
        if not np.isfinite(said).all():
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = float(named[metric](truth, said))
        return found if math.isfinite(found) else 0.0

    return call


def ends(statistic: Statistic, one: np.ndarray, other: np.ndarray, **draws: Any) -> tuple[float, float]:
    found = statistic.change(one, other, **draws)
    return found.low, found.high


@pytest.mark.parametrize("metric", CLASSES + CORRELATIONS)
def test_scores_are_the_libraries(metric: str) -> None:
    for seed in range(5):
        k = 2 if metric == "f1" else 4
        truth, one, _ = random_values(seed, 31, 0.5) if metric in CORRELATIONS else random_classes(seed, 31, k)
        assert score(metric, truth, one) == pytest.approx(explicit(metric)(truth, one), abs=1e-12)


def test_scores_by_hand() -> None:
    truth, said = np.array([1, 1, 1, 0, 0, 0]), np.array([1, 1, 0, 0, 0, 1])
    assert score("accuracy", truth, said) == pytest.approx(4 / 6)
    assert score("f1", truth, said) == pytest.approx(2 * 2 / (3 + 3))
    assert score("mcc", truth, said) == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3**4))
    assert score("spearman", np.array([1.0, 2.0, 3.0]), np.array([1.0, 9.0, 4.0])) == pytest.approx(0.5)
    statistic = Statistic("accuracy", truth)
    assert statistic.value(said) == pytest.approx(2 / 6)
    assert statistic.change(truth, said, seed=0).value == pytest.approx(2 / 6)  # what is lost counts as positive
    assert statistic.change(said, truth, seed=0).value == pytest.approx(-2 / 6)


def test_what_a_metric_cannot_say_is_zero() -> None:
    truth = np.array([0.0, 1.0, 2.0, 5.0])
    for metric in CORRELATIONS:
        assert score(metric, truth, np.ones(4)) == 0
        assert score(metric, truth, np.array([1.0, np.inf, 2.0, 3.0])) == 0
        assert score(metric, truth, np.array([1.0, np.nan, 2.0, 3.0])) == 0
        assert score(metric, truth[:1], truth[:1]) == 0
    assert score("mcc", np.array([0, 1, 1]), np.array([1, 1, 1])) == 0
    assert score("f1", np.array([0, 0]), np.array([0, 0])) == 0


def test_bad_requests() -> None:
    two = np.array([0, 1])
    with pytest.raises(
        BadInput, match="unknown metric 'auc'; metrics are accuracy, f1, macro f1, mcc, pearson, spearman"
    ):
        score("auc", two, two)
    with pytest.raises(BadInput, match="3 predictions for 2 items"):
        ends(Statistic("mcc", two), two, np.zeros(3), seed=0)
    with pytest.raises(BadInput, match="there is no item to take the mcc of"):
        interval("mcc", two[:0], (two[:0],), seed=0)
    with pytest.raises(BadInput, match="2 and 3 values with 2 weights; there must be the same number of each"):
        paired_interval(two, np.zeros(3), seed=0)
    with pytest.raises(BadInput, match=r"values outside \[0, 1\] are not shares"):
        paired_interval(two, two * 2, seed=0)


def resamples(n: int, seed: int) -> np.ndarray:
    """Numbers of drawn items [draw, item]; among them some of few distinct items, where metrics degenerate."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, n, size=(12, n))
    drawn[0] = 0
    drawn[1] = random.integers(0, min(n, 2), n)
    return drawn


def grouped(value: Sums, table: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """How often each group of equal rows is drawn [draw, group]."""
    adds = value.adds if isinstance(value.adds, np.ndarray) else value.adds.toarray()
    groups = np.unique(table, axis=0, return_inverse=True)[1].ravel()
    if adds.shape == table.shape and np.array_equal(adds, table):
        groups = np.arange(len(table))  # too many kinds of items: each is its own group
    return np.stack([np.bincount(groups[row], minlength=len(value.sizes)) for row in drawn]).astype(float)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 40), k=st.integers(1, 5), metric=st.sampled_from(CLASSES))
def test_resampled_class_metrics(seed: int, n: int, k: int, metric: str) -> None:
    truth, one, other = random_classes(seed, n, min(k, 2) if metric == "f1" else k)
    drawn = resamples(n, seed)
    theirs = explicit(metric)
    pair = class_value(metric, truth, (one, other))
    alone = class_value(metric, truth, (one,))
    expected = [theirs(truth[i], one[i]) - theirs(truth[i], other[i]) for i in drawn]
    values = pair.drawn(grouped(pair, np.stack([truth, one, other], 1), drawn))
    assert values == pytest.approx(np.array(expected), abs=1e-12)
    values = alone.drawn(grouped(alone, np.stack([truth, one], 1), drawn))
    assert values == pytest.approx(np.array([theirs(truth[i], one[i]) for i in drawn]), abs=1e-12)
    assert pair.whole == pytest.approx(theirs(truth, one) - theirs(truth, other), abs=1e-12)


@pytest.mark.parametrize("step", [0.0, 0.5, 2.0])
def test_resampled_ranks(step: float) -> None:
    for seed, n in enumerate((2, 5, 17, 40)):
        truth, one, _ = random_values(seed, n, step)
        drawn = resamples(n, seed)
        counts = np.stack([np.bincount(row, minlength=n) for row in drawn]).astype(float)
        expected = [explicit("spearman")(truth[i], one[i]) for i in drawn]
        assert resampled_spearman(truth, one, counts) == pytest.approx(np.array(expected), abs=1e-8)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 100), whole=st.booleans(), weighted=st.booleans())
def test_resampled_means(seed: int, n: int, whole: bool, weighted: bool) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(-1, 2, n).astype(float) if whole else random.normal(size=n)
    weights = random.integers(1, 4, n).astype(float) if weighted else np.ones(n)
    drawn = resamples(n, seed)
    value = mean_value(values, weights, shares=whole)
    counts = grouped(value, np.stack([values * weights, weights], 1), drawn)
    expected = [np.average(values[i], weights=weights[i]) for i in drawn]
    assert value.drawn(counts) == pytest.approx(np.array(expected), abs=1e-12)


@pytest.mark.parametrize("metric", CLASSES)
def test_the_jackknife_leaves_one_out(metric: str) -> None:
    n = 41
    truth, one, other = random_classes(3, n, 2)
    value = class_value(metric, truth, (one, other))
    theirs = explicit(metric)
    kept = [np.delete(np.arange(n), i) for i in range(n)]
    expected = sorted(theirs(truth[i], one[i]) - theirs(truth[i], other[i]) for i in kept)
    values, sizes = value.jackknife()
    assert sizes.sum() == n
    assert sorted(np.repeat(values, sizes.astype(int))) == pytest.approx(expected, abs=1e-10)


def test_intervals_are_those_of_scipy() -> None:
    """scipy's BCa, with the same half for ties, over resamples that it draws itself."""
    n = 80
    truth, one, other = random_classes(1, n, 2)
    value = class_value("mcc", truth, (one, other))
    groups = np.unique(np.stack([truth, one, other], 1), axis=0, return_inverse=True)[1].ravel()

    def change(items: np.ndarray, axis: int) -> np.ndarray:
        rows = np.atleast_2d(items)
        counts = [np.bincount(groups[row], minlength=len(value.sizes)) for row in rows]
        return value.drawn(np.stack(counts).astype(float)).reshape(items.shape[:-1])

    random = np.random.default_rng(0)
    theirs = stats.bootstrap((np.arange(n),), change, vectorized=True, n_resamples=9000, method="BCa", rng=random)
    low, high = theirs.confidence_interval
    found = ends(Statistic("mcc", truth), one, other, seed=0, n_draws=9000)
    assert found == pytest.approx((low, high), abs=0.05 * (high - low))


def test_no_change_is_no_interval() -> None:
    """0 of n changed: up to u of all may, where (1 − u)^n = 5 %; the rule of three."""
    truth, one, _ = random_classes(2, 1000, 2)
    for metric in CLASSES:
        assert ends(Statistic(metric, truth), one, one, seed=0) == (0, 0)
    wrong = (truth != one).astype(float)
    assert paired_interval(wrong, wrong, seed=0) == (0, 0)
    assert pytest.approx(0.00299, abs=1e-5) == 1 - 0.05 ** (1 / 1000)
    assert no_change(1000, "examples") == "no change on 1,000 examples (at most 0.3 % of all, 95 %)"
    assert no_change(1000, "pairs", 20) == "no change on 1,000 pairs (at most 14 % of all, 95 %)"


def test_what_is_always_right_is_not_certain() -> None:
    for n in (20, 277, 1000):
        truth, _, _ = random_classes(2, n, 2)
        upto = 1 - 0.05 ** (1 / n)
        assert upto == pytest.approx(3 / n, rel=0.08)
        assert interval("accuracy", truth, (truth,), seed=0) == pytest.approx((1 - upto, 1))
        # What an MCC can lose by that many items of one kind, written out as a confusion matrix.
        cells = {(t, p): float(((truth == t) & (truth == p)).sum()) for t in (0, 1) for p in (0, 1)}
        least = 1.0
        for t in (0, 1):
            mass = min(upto * n, cells[t, t])
            least = min(least, matthews(cells | {(t, t): cells[t, t] - mass, (t, 1 - t): mass}))
        assert interval("mcc", truth, (truth,), seed=0) == pytest.approx((least, 1))
    for only in (0, 1):  # one class alone, and always right: another prediction was possible all the same
        same = np.full(len(truth), only)
        assert interval("accuracy", same, (same,), seed=0) == pytest.approx((1 - upto, 1))
    # Of words whole texts are drawn: up to 3/n of the texts, and so of their words, may be of another kind.
    truth, text = np.tile([0, 1, 0, 2], 15), np.repeat(np.arange(15), 4)
    assert interval("token accuracy", truth, (truth,), seed=0, groups=text) == pytest.approx((0.05 ** (1 / 15), 1))
    assert paired_interval(np.zeros(50), np.ones(50), seed=0) == pytest.approx((1 - 2 * (1 - 0.05 ** (1 / 50)), 1))


def test_groups_of_one_item_are_items() -> None:
    truth, one, other = random_classes(5, 60, 3)
    for of in ((one,), (one, other)):
        alone = class_value("macro f1", truth, of, doubt=len(of) == 2)
        grouped = class_value("macro f1", truth, of, doubt=len(of) == 2, groups=np.arange(60))
        assert grouped.whole == pytest.approx(alone.whole)
        ends = [bca(value, seed=0, level=0.95, n_draws=4000) for value in (alone, grouped)]
        assert ends[1] == pytest.approx(ends[0], abs=0.02)
    twice = [np.repeat(part, 2) for part in (truth, one, other)]
    by_two = class_value("macro f1", twice[0], twice[1:], groups=np.repeat(np.arange(60), 2))
    assert bca(by_two, seed=0, level=0.95, n_draws=500) == pytest.approx(
        bca(class_value("macro f1", truth, (one, other), groups=np.arange(60)), seed=0, level=0.95, n_draws=500)
    )


def matthews(cells: dict[tuple[int, int], float]) -> float:
    right = cells[1, 1] * cells[0, 0] - cells[0, 1] * cells[1, 0]
    sides = [cells[1, 1] + cells[0, 1], cells[1, 1] + cells[1, 0], cells[0, 0] + cells[0, 1], cells[0, 0] + cells[1, 0]]
    return right / math.sqrt(math.prod(sides))


@pytest.mark.parametrize("metric", CLASSES)
def test_degenerate_predictions(metric: str) -> None:
    truth, one, _ = random_classes(4, 50, 2)
    statistic = Statistic(metric, truth)
    constant = np.zeros_like(truth)
    low, high = ends(statistic, one, constant, seed=0)
    assert low < statistic.change(one, constant, seed=0).value < high
    low, high = interval(metric, truth, (constant,), seed=0)
    assert low <= score(metric, truth, constant) <= high
    assert np.isnan(ends(Statistic(metric, truth[:1]), one[:1], one[:1], seed=0)).all()
    assert np.isnan(interval(metric, truth[:1], (one[:1],), seed=0)).all()
    assert np.isfinite(ends(Statistic(metric, truth[:2]), one[:2], constant[:2], seed=0)).all()


def test_infinite_losses_have_no_interval() -> None:
    assert np.isnan(paired_interval(np.zeros(4), np.array([1.0, np.inf, 0, 0]), seed=0)).all()
    assert np.isnan(paired_interval(np.full(4, np.inf), np.full(4, np.inf), seed=0)).all()


def test_many_classes_stay_within_memory() -> None:
    """3,000 classes of 6,000 items: tables of items by classes would hold 10⁸ numbers."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 3000, 6000)
    one = np.where(random.random(6000) < 0.9, truth, random.integers(0, 3000, 6000))
    low, high = interval("mcc", truth, (one,), seed=0, n_draws=40)
    assert low < score("mcc", truth, one) < high
    value = class_value("mcc", truth, (one,))
    assert value.whole == pytest.approx(score("mcc", truth, one))


def test_intervals_are_seeded_and_narrow_with_the_level() -> None:
    truth, one, other = random_classes(0, 200, 2)
    statistic = Statistic("mcc", truth)
    assert ends(statistic, one, other, seed=1) == ends(statistic, one, other, seed=1)
    wide, narrow = ends(statistic, one, other, seed=1, level=0.99), ends(statistic, one, other, seed=1, level=0.8)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("n", [100, 277])
@pytest.mark.parametrize("metric", ["accuracy", "mcc", "f1"])
def test_intervals_cover(metric: str, n: int) -> None:
    """The true change lies in 95 % intervals of samples from a known population 90 to 98 % of the time."""
    random = np.random.default_rng(n)
    cells = np.array([(t, p, q) for t in (0, 1) for p in (0, 1) for q in (0, 1)])
    shares = np.array([0.22, 0.05, 0.03, 0.05, 0.04, 0.04, 0.08, 0.49])  # other misses more than one, of class 1 most
    truth, one, other = np.repeat(cells, (shares * 10_000).round().astype(int), axis=0).T
    real = Statistic(metric, truth).change(one, other, seed=0).value
    assert real > 0.01
    trials, inside = 300, 0
    for _ in range(trials):
        some = random.integers(0, len(truth), n)
        low, high = ends(Statistic(metric, truth[some]), one[some], other[some], seed=0, n_draws=500)
        inside += low <= real <= high
    assert 0.90 <= inside / trials <= 0.98


def test_a_few_changes_in_one_direction_are_no_proof() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 277)
    intact = np.where(random.random(277) < 0.65, truth, 1 - truth)

    def off(became_wrong: int, became_right: int) -> np.ndarray:
        other = intact.copy()
        right, wrong = np.flatnonzero(intact == truth), np.flatnonzero(intact != truth)
        for places in (right[:became_wrong], wrong[:became_right]):
            other[places] = 1 - other[places]
        return other

    for metric in ("accuracy", "mcc"):
        statistic = Statistic(metric, truth)
        low, high = ends(statistic, intact, off(3, 0), seed=0)
        assert low < 0 < statistic.change(intact, off(3, 0), seed=0).value < high
        low, high = ends(statistic, intact, off(8, 2), seed=0)
        assert low <= 0 < high
        assert ends(statistic, intact, off(12, 2), seed=0)[0] > 0  # McNemar: p = 0.013
        # What is added is one item each way: turning the change round turns the interval round.
        turned = ends(statistic, off(12, 2), intact, seed=0)
        assert turned[1] < 0
