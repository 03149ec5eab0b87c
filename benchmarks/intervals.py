"""How often 95 % intervals of correlations and of their changes hold the truth, at the default sizes of commands.

    python benchmarks/intervals.py                                            # one case
    OMP_NUM_THREADS=1 python benchmarks/intervals.py all --trials 400         # every case, an hour of one core
    OMP_NUM_THREADS=1 python benchmarks/intervals.py pearson --trials 200

Each case draws samples from a population that is known (its value is worked out from a large draw, by SciPy), asks the
library for an interval of each, and counts: intervals that hold the truth, that miss it, and samples of which the library
says that they settle nothing. A case fails where less than 93 % hold the truth or are not settled, by more than two Monte
Carlo standard errors; the exit code is then 1.
"""

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import pearsonr, spearmanr
from timing import asked

from outlierlens.statistics.subsampling import correlation_interval

LEAST = 0.93
Random = np.random.Generator
Ends = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """One kind of sample.

    Attributes:
        name: of what, of what kind of items, how many.
        truth: the value of the population. sample: the library's interval of one sample.
    """

    name: str
    truth: Callable[[Random], float]
    sample: Callable[[Random, int], Ends]


def noise(kind: str, random: Random, size: int) -> np.ndarray:
    """Values of mean 0 and variance 1 [size]."""
    if kind == "normal":
        return random.standard_normal(size)
    if kind == "t3":
        return random.standard_t(3, size) / math.sqrt(3)
    away: np.ndarray = random.lognormal(0, 1, size) - math.exp(0.5)
    return away / math.sqrt((math.e - 1) * math.e)


def scored_pairs(kind: str, random: Random, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(truth, predictions of one model, of another) [item]: what the models get wrong is partly the same."""
    truth, shared = random.standard_normal(n), random.standard_normal(n)
    if kind == "1 % broken":
        one, other = (truth + 0.5 * (shared + 0.3 * random.standard_normal(n)) for _ in range(2))
        return truth, one, np.where(random.random(n) < 0.01, -8 * np.sign(truth), other)
    if kind == "5 % moved":
        one = truth + 0.5 * random.standard_normal(n)
        return truth, one, one + (random.random(n) < 0.05) * random.standard_normal(n)
    if kind == "steps":  # people's scores come in steps
        return np.round(truth * 2) / 2, truth + 0.5 * shared, truth + 0.5 * shared + 0.2 * random.standard_normal(n)
    shared = noise(kind, random, n)
    wrong = [factor * (shared + 0.5 * noise(kind, random, n)) for factor in (0.5, 0.8)]
    return truth, truth + wrong[0], truth + wrong[1]


def sentence_pairs(random: Random, n_families: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(truth, one, other, family) [pair]: pairs share sentences, and what models get wrong in a sentence they get wrong in
    all its pairs. Families of 1 to 400 pairs, most of them small, as in SICK-R (864 families of 4,927 pairs)."""
    sizes = np.minimum(np.ceil(random.pareto(1.3, n_families) * 2), 400).astype(int).clip(1)
    family = np.repeat(np.arange(n_families), sizes)
    n = len(family)
    n_sentences = sizes // 2 + 2
    start = np.cumsum(n_sentences) - n_sentences
    ends = [start[family] + (random.random(n) * n_sentences[family]).astype(int) for _ in range(2)]
    of_sentence = random.standard_normal((2, n_sentences.sum()))
    of_family = random.standard_normal((2, n_families))
    truth = random.standard_normal(n)
    wrong = [
        sum(of_sentence[model][end] for end in ends) / 2
        + 0.7 * of_family[model][family]
        + 0.7 * random.standard_normal(n)
        for model in range(2)
    ]
    return truth, truth + 0.6 * wrong[0], truth + 0.45 * wrong[0] + 0.5 * wrong[1], family


CORRELATIONS = {"pearson": pearsonr, "spearman": spearmanr}


def correlations() -> Iterator[Case]:
    """Pearson's r and Spearman's ρ: of a model, and how far two are apart on the same items. 1,379 pairs are STS-B's, 598 the
    fewest that are said to settle anything; of 300 nothing is said."""

    def case(metric: str, kind: str, n: int, paired: bool) -> Case:
        value = CORRELATIONS[metric]

        def truth(random: Random) -> float:
            found = []
            for _ in range(4):
                gold, one, other = scored_pairs(kind, random, 1_000_000)
                found.append(value(gold, one)[0] - paired * value(gold, other)[0])
            return float(np.mean(found))

        def sample(random: Random, seed: int) -> Ends:
            gold, one, other = scored_pairs(kind, random, n)
            return correlation_interval(metric, gold, (one, other) if paired else (one,), seed=seed % 3)

        return Case(f"{metric}{', paired' if paired else ''}, {kind}, {n:,} pairs", truth, sample)

    for metric in CORRELATIONS:
        for kind in ("normal", "t3", "log-normal", "1 % broken", "5 % moved", "steps"):
            yield case(metric, kind, 1379, True)
        for kind in ("t3", "log-normal", "1 % broken"):
            yield case(metric, kind, 598, True)
        yield case(metric, "1 % broken", 300, True)
        for kind, n in itertools.product(("normal", "t3", "log-normal"), (1379, 598)):
            yield case(metric, kind, n, False)

    def shared_truth(random: Random) -> float:
        found = []
        for _ in range(4):
            gold, one, other, _ = sentence_pairs(random, 200_000)
            found.append(spearmanr(gold, one)[0] - spearmanr(gold, other)[0])
        return float(np.mean(found))

    def shared(random: Random, seed: int) -> Ends:
        gold, one, other, family = sentence_pairs(random, 864)
        return correlation_interval("spearman", gold, (one, other), groups=family, seed=seed % 3)

    yield Case("spearman, paired, pairs that share sentences, 864 families", shared_truth, shared)


def main() -> int:
    """Run the cases whose names hold the words given; exit code 1 where one fails."""
    given = asked(__doc__, {"only": "spearman, paired, steps, 1,379 pairs"}, trials=100, seed=0)
    good = True
    print(f"{'case':<78} {'hold':>7} {'miss':>7} {'not settled':>12} {'error':>7} {'median width':>13} {'seconds':>8}")
    for case in (case for case in correlations() if given.only in case.name or given.only == "all"):
        good &= run(case, given.trials, given.seed)
    return 0 if good else 1


def run(case: Case, trials: int, seed: int) -> bool:
    """Print the figures of a case, and return whether it passes."""
    begun = time.perf_counter()
    truth = case.truth(np.random.default_rng([seed, 1]))
    random = np.random.default_rng([seed, 2])
    ends = np.array([case.sample(random, trial) for trial in range(trials)])
    said = np.isfinite(ends).all(1)
    hold = said & (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    miss = said & ~hold
    error = math.sqrt(LEAST * (1 - LEAST) / trials)
    width = float(np.median(ends[said, 1] - ends[said, 0])) if said.any() else math.nan
    passes = bool(miss.mean() <= 1 - LEAST + 2 * error)
    print(
        f"{case.name:<78} {hold.mean():>7.1%} {miss.mean():>7.1%} {1 - said.mean():>12.1%} {error:>7.1%} {width:>13.4f} "
        f"{time.perf_counter() - begun:>8.0f}{'' if passes else '  FAILS'}",
        flush=True,
    )
    return passes


if __name__ == "__main__":
    sys.exit(main())
