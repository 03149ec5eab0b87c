"""How often 95 % intervals of position probes hold the truth, and how many redraws of training that takes.

    OMP_NUM_THREADS=1 python benchmarks/probe.py --trials 300         # two minutes of one core
    OMP_NUM_THREADS=1 python benchmarks/probe.py --trials 1000 --redraws 2 7

The population is made up: a token's vector is what its position adds, what its word adds, what all tokens of its text share,
and one dimension that is large and nearly constant, as the outliers of BERT are. Each trial draws training texts and evaluated
ones anew, trains a probe on them as the library does, one that never sees the large dimension, and the redraws of both; then it
asks the library for intervals. The truth is the mean, over the trials, of what the probes get on a large sample. A case
fails where less than 93 % of its intervals hold the truth, by more than two Monte Carlo standard errors; the exit code is 1
where one does at the command's own number of redraws.
"""

import math
import sys
from dataclasses import dataclass, replace

import numpy as np
import torch
from timing import asked

from outlierlens.analyses.probe import ProbeOptions
from outlierlens.analyses.probe_training import JudgedProbes, Plan, Probes, scales_of
from outlierlens.statistics.bootstrap import poisson_times

LEAST = 0.93
LARGE = 0  # the dimension
ACCURACY, CLIPPED, RETRAINED = "accuracy", "clipped − raw", "trained again − raw"


@dataclass(frozen=True)
class Case:
    """A population and a way to train.

    Attributes:
        n_train, n_dev: texts. longest: tokens of a text. width: dimensions. noise: s.d. of what a word adds; what a text adds
        has half of it. large: size of the large dimension, its s.d. is a tenth. batch, epochs, rate: of training.
    """

    n_train: int
    n_dev: int = 200
    longest: int = 8
    width: int = 12
    noise: float = 1.0
    large: float = 8.0
    batch: int = 128
    epochs: int = 1
    rate: float = 0.03


CASES = {
    "400 texts": Case(400),
    "1,600 texts, 3,000 evaluated": Case(1600, 3000),
    "30 texts": Case(30),
    "400 texts, 5 epochs": Case(400, epochs=5),
    "400 texts, steps of 16 tokens": Case(400, batch=16, rate=0.01),
    "400 texts, little noise": Case(400, noise=0.5),
}


class Population:
    """Texts of a case, drawn anew at every call."""

    def __init__(self, case: Case, seed: int):
        self.case, self.random = case, np.random.default_rng([seed, 3])
        # What positions add is the population's own, and the same in every trial: neighbours are alike.
        steps = np.random.default_rng(11).standard_normal((case.longest, case.width)).cumsum(0)
        self.code = steps - steps.mean(0)
        self.code[:, LARGE] = 0

    def drawn(self, n_texts: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """(states [1, token, dim], positions [token], text [token])."""
        lengths = self.random.integers(2, self.case.longest + 1, n_texts)
        text = np.repeat(np.arange(n_texts), lengths)
        positions = np.concatenate([np.arange(length) for length in lengths])
        shared = self.random.standard_normal((n_texts, self.case.width))[text] / 2
        own = self.random.standard_normal((len(text), self.case.width))
        states = self.code[positions] + self.case.noise * (own + shared)
        states[:, LARGE] = self.case.large * (1 + own[:, LARGE] / 10)
        return torch.from_numpy(states.astype(np.float32))[None], torch.from_numpy(positions), text


def trained(population: Population, n_redraws: int, seed: int) -> Probes:
    """A probe and one without the large dimension, with their redraws."""
    case = population.case
    states, positions, text = population.drawn(case.n_train)
    plan = Plan((0, 0), ((), (LARGE,)), case.width, case.longest, n_redraws)
    times = torch.from_numpy(poisson_times(case.n_train, n_redraws, seed=seed))[torch.from_numpy(text)]
    probes = Probes(plan, scales_of(states), learning_rate=case.rate)
    for _ in range(case.epochs):
        order = torch.from_numpy(population.random.permutation(len(text)))
        for some in order.split(case.batch):
            probes.step(states[:, some], positions[some], times[some])
    return probes


def named(read: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor) -> np.ndarray:
    """Whether each of the three variants names the position [variant, token] from `read` [token, dim] with `weight`
    [2, dim, position]."""
    clipped = read.clone()
    clipped[:, LARGE] = 0
    said = torch.stack(
        [(read @ weight[0]).argmax(-1), (clipped @ weight[0]).argmax(-1), (clipped @ weight[1]).argmax(-1)]
    )
    found: np.ndarray = (said == positions).numpy()
    return found


def trial(
    case: Case, n_redraws: int, seed: int, large: tuple[torch.Tensor, torch.Tensor]
) -> tuple[JudgedProbes, np.ndarray]:
    """What the probes of one training set get on its evaluated texts, and on a `large` sample of them [variant]."""
    population = Population(case, seed)
    probes = trained(population, n_redraws, seed)
    states, positions, text = population.drawn(case.n_dev)
    read = states[0] / probes.scale
    right = named(read, probes.weight, positions)
    again = [named(read, probes.redrawn[:, :, redraw], positions).mean(-1) for redraw in range(n_redraws)]
    n = np.bincount(text)
    judged = JudgedProbes(
        n=n,
        right=np.stack([np.bincount(text, one) for one in right]).astype(np.int64),
        near=np.zeros((3, len(n)), dtype=np.int64),
        n_at=np.zeros(0),
        right_at=np.zeros((3, 0)),
        loss=np.zeros(3),
        contribution=np.zeros(0),
        weight=np.zeros(0),
        redrawn=np.array(again).reshape(n_redraws, 3),
    )
    return judged, named(large[0] / probes.scale, probes.weight, large[1]).mean(-1)


def coverage(case: Case, trials: int, redraws: tuple[int, ...]) -> dict[tuple[str, int], tuple[float, float]]:
    """{(what, redraws): (share of intervals that hold the truth, median width)}; with 0 redraws over evaluated texts alone."""
    states, positions, _ = Population(case, 10**6).drawn(5000)
    found = [trial(case, max(redraws), seed, (states[0], positions)) for seed in range(trials)]
    truth = np.mean([shares for _, shares in found], axis=0)
    wanted = {ACCURACY: truth[0], CLIPPED: truth[1] - truth[0], RETRAINED: truth[2] - truth[0]}
    made = {}
    for n in redraws:
        some = [replace(one, redrawn=one.redrawn[:n]) for one, _ in found]
        for what, value in wanted.items():
            scores = [
                one.accuracy(0, seed=0) if what == ACCURACY else one.change(1 if what == CLIPPED else 2, 0, seed=0)
                for one in some
            ]
            hold = [score.low <= value <= score.high for score in scores]
            made[what, n] = float(np.mean(hold)), float(np.median([score.high - score.low for score in scores]))
    return made


def main() -> int:
    """Run every case; exit code 1 where one fails."""
    given = asked(__doc__, trials=20, redraws=[3, 5, 7, 9])
    usual = ProbeOptions().redraws
    redraws = tuple(sorted({0, usual, *given.redraws}))
    error = math.sqrt(LEAST * (1 - LEAST) / given.trials)
    print(
        f"{given.trials} trials; Monte Carlo error {error:.1%}; share of intervals that hold the truth (median width in points)"
    )
    print(f"{'case':<32} {'of':<20}" + "".join(f"{f'{one} redraws':>16}" for one in redraws))
    good = True
    for name, case in CASES.items():
        found = coverage(case, given.trials, redraws)
        for what in (ACCURACY, CLIPPED, RETRAINED):
            cells = [f"{found[what, one][0]:>8.1%} ({100 * found[what, one][1]:.2f})" for one in redraws]
            fails = found[what, usual][0] < LEAST - 2 * error
            good &= not fails
            print(
                f"{name:<32} {what:<20}" + "".join(f"{cell:>16}" for cell in cells) + ("  FAILS" if fails else ""),
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
