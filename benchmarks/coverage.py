"""How often intervals contain the true value: of means over a fixed number of texts, and of the adaptive sweep.

    python benchmarks/coverage.py                                                        # small: bounds may be missed by chance
    OMP_NUM_THREADS=1 python benchmarks/coverage.py --trials 4000                        # simulated: means, sweep, winner
    OMP_NUM_THREADS=1 python benchmarks/coverage.py DIR --data FILE                      # a small model, 50 seeds
    python benchmarks/coverage.py DIR --data FILE --matrix changes.npz --first 8 12 16   # measure once, try first looks
    python benchmarks/coverage.py --bulk --seeds 200                                     # simulated: the bulk, 4 populations
    python benchmarks/coverage.py DIR --off 507 --data FILE --limit 400                  # one real dimension, texts drawn again

Simulated texts are drawn anew in every trial, and the true value is that of endlessly many. What says nothing (*not settled*,
or measured on all texts) does not count as covered; how often that is stands beside. Every share has its Monte Carlo error.

--means leaves it at the means; --each does without the bulk; --hold says when the rule's intervals hold, at the
"stop"; --first and --gradients compare texts of the first look and of the gradient pass; --matrix keeps what was measured.

A model is measured exhaustively once, every dimension on every text. The adaptive procedure is then replayed on those
numbers for each seed, which only reorders the texts, by the library's own schedule. Of N texts n are drawn without
replacement, so errors are divided by √(1 − n / N) before they are compared with the interval, which is one for endlessly many.
"""

import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import asked, load

from outlierlens.analyses.ablate import AblateOptions, ablate
from outlierlens.analyses.sweep.estimate import MeanChange, gradient_scale
from outlierlens.analyses.sweep.gradients import FIRST_LOOK, first_order, look_sizes
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.runner import make_runner
from outlierlens.analyses.sweep.schedule import SweepState, adaptive, near
from outlierlens.analyses.sweep.units import INTACT, Differences, Unit, planned
from outlierlens.data.texts import Texts, read_texts
from outlierlens.statistics.means import mean_interval
from outlierlens.tasks.base import TaskOptions


@dataclass(frozen=True)
class Matrix:
    """Per-text changes and their first-order estimates, both [dim, text], and the weights [text]."""

    changes: np.ndarray
    gradients: np.ndarray
    weights: np.ndarray

    @property
    def truth(self) -> np.ndarray:
        """The exhaustive value of every dimension."""
        return np.average(self.changes, axis=1, weights=self.weights)

    def shuffled(self, seed: int) -> "Matrix":
        """The same texts in another order."""
        order = np.random.default_rng(seed).permutation(len(self.weights))
        return Matrix(self.changes[:, order], self.gradients[:, order], self.weights[order])


@dataclass(frozen=True)
class Rule:
    """How the adaptive procedure looks and stops; `hold` is when its intervals hold: at "any" look, or at the "stop"."""

    hold: str = "stop"
    first: int = FIRST_LOOK
    tolerance: float = 0.01
    relative: float = 0.1
    gradients: int = 256
    k: int = 5
    bulk: bool = True


@dataclass(frozen=True)
class Seed:
    """What one replay found."""

    estimates: list[MeanChange]
    covered: np.ndarray  # bool [dim]
    bulk: np.ndarray  # likewise, of those that are known together
    single: np.ndarray  # of those that have an interval of their own
    top: np.ndarray  # of the strongest
    bound: float  # of the share of them that is not covered
    saving: float
    top_agrees: bool
    controlled: float  # share of dimensions that use their gradients


def replay(matrix: Matrix, rule: Rule, seed: int) -> Seed:
    """The adaptive sweep of one order of the texts."""
    now, truth = matrix.shuffled(seed), matrix.truth
    n_units, n_texts = now.changes.shape
    looks = look_sizes(n_texts, rule.first)
    n_gradients = min(rule.gradients, n_texts)
    units = [Unit(str(dim), "all layers", {0: (dim,)}) for dim in range(n_units)]
    options = SweepOptions(
        tolerance=rule.tolerance, relative=rule.relative, top=rule.k, bulk=rule.bulk, seed=seed,
    )  # fmt: skip
    gradients = now.gradients[:, :n_gradients].T if n_gradients else None
    state = SweepState(units, options, looks, Differences(now.weights), gradients)
    state.find_bulk(())
    fill(state, now.changes)
    found = [one for one in state.estimates if one is not None]
    used = [state.measured.n(unit.key) for unit in units]
    covered = np.array([_covers(one, value, n_texts) for one, value in zip(found, truth, strict=True)])
    together = state.together
    members = [unit for unit in range(n_units) if state.is_bulk(unit)]
    return Seed(
        found,
        covered,
        covered[members],
        np.delete(covered, members),
        covered[state.strongest()],
        together.bound if together else float("nan"),
        n_texts * n_units / (sum(used) + max(used) + 3 * n_gradients),
        agrees([one.change for one in found], truth, rule.k, rule.tolerance),
        float(np.mean([state.control(unit) is not None for unit in range(n_units)])),
    )


def fill(state: SweepState, changes: np.ndarray) -> SweepState:
    """Measure what the procedure asks for, until it asks for no more."""
    for _, works in adaptive(state):
        for work in works:
            state.measured.add(work.unit.key, work.start, changes[work.unit.dims[0], work.start : work.stop])
    return state


def _covers(found: MeanChange, truth: float, n_texts: int) -> float:
    """1 or 0; NaN where all texts were measured, which is no estimate any more."""
    if found.n_texts == n_texts:
        return float("nan")
    error = (truth - found.change) / np.sqrt(1 - found.n_texts / n_texts)
    return float(found.low - found.change <= error <= found.high - found.change)


def oracle(matrix: Matrix, rule: Rule) -> float:
    """How many times fewer evaluations one takes who knows all changes and spreads: no fewer than make each interval narrow.

    Ordinary dimensions take one text, the others as many as a normal interval of 95 % needs, with the rule's gradients where
    these serve.
    """
    truth, gradients = matrix.truth, matrix.gradients[:, : rule.gradients]
    spread = matrix.changes.std(axis=1, ddof=1)
    need = (1.96 * spread / np.maximum(rule.tolerance, rule.relative * np.abs(truth))) ** 2
    if rule.gradients:
        scaled = gradient_scale(matrix.changes, matrix.weights, matrix.gradients) * matrix.gradients
        left = np.minimum(1, (matrix.changes - scaled).var(axis=1, ddof=1) / spread**2)
        # What the gradients' own texts leave of the variance that is allowed.
        known = 1 - (1 - left) * need / gradients.shape[1]
        with_them = np.divide(left * need, known, out=need.copy(), where=known > 0)
        need = np.where(with_them < gradients.shape[1], np.minimum(need, with_them), need)
    need[near(truth, truth)] = 1
    return float(matrix.changes.size / (need.sum() + need.max() + 3 * gradients.shape[1]))


def agrees(changes: Sequence[float], truth: np.ndarray, k: int, tolerance: float) -> bool:
    """Whether none of the top `k` is ranked above a dimension whose exhaustive value is larger by the tolerance or more."""
    order = np.argsort(-np.asarray(changes), kind="stable")
    return all(truth[order[rank + 1 :]].max(initial=-np.inf) - truth[order[rank]] < tolerance for rank in range(k))


def table(matrix: Matrix, rule: Rule, n_seeds: int) -> bool:
    """Replay all seeds, print their figures, and return whether the groups are covered to 93 % and the bulk's bound held."""
    seeds = [replay(matrix, rule, seed) for seed in range(n_seeds)]
    large = np.abs(matrix.truth) > 2 * rule.tolerance
    texts = np.array([[one.n_texts for one in seed.estimates] for seed in seeds])
    widths = np.array([[one.half_width for one in seed.estimates] for seed in seeds])
    covered = np.array([seed.covered for seed in seeds])
    saving = np.array([seed.saving for seed in seeds])
    print(f"\nfirst look {rule.first}, {rule.gradients or 'no'} gradient texts (used by "
          f"{np.mean([seed.controlled for seed in seeds]):.0%} of dimensions), "
          f"to hold at {'any look' if rule.hold == 'any' else 'the stop'}")  # fmt: skip
    bulk = [1 - seed.bulk.mean() for seed in seeds if len(seed.bulk)]
    held = [1 - seed.bulk.mean() <= seed.bound for seed in seeds if len(seed.bulk)]
    if bulk:
        print(f"  the bulk, {np.mean([len(seed.bulk) for seed in seeds]):.0f} dimensions in {len(bulk)} of {n_seeds} orders: "
              f"{np.mean(bulk):.1%} further off than said (worst order {np.max(bulk):.1%}); the bound of {seeds[0].bound:.1%} "
              f"held in {np.mean(held):.1%}")  # fmt: skip
    for name, group in (("effects above twice the tolerance", large), ("the rest", ~large)):
        if group.any():
            early = np.isfinite(covered[:, group])
            width = widths[:, group][early].mean()
            print(f"  {name} ({group.sum()}): coverage {np.nanmean(covered[:, group]):.2%} of the {early.mean():.0%} that "
                  f"stopped early, mean half-width {width:.4f}, texts {texts[:, group].mean():.1f}")  # fmt: skip
    print(f"  texts a dimension {texts.mean():.1f} (worst seed {texts.mean(1).max():.1f}) of {len(matrix.weights)}; "
          f"saving {saving.mean():.1f} times (5–95 %: {np.percentile(saving, 5):.1f} to {np.percentile(saving, 95):.1f}); "
          f"top {rule.k} agrees in {sum(seed.top_agrees for seed in seeds)} of {n_seeds} seeds")  # fmt: skip
    print(f"  one who knew every spread and change would save {oracle(matrix, rule):.0f} times")
    good = all(np.nanmean(covered[:, group]) >= 0.93 for group in (large, ~large) if group.any())
    for name, of in (("those with an interval of their own", "single"), (f"the {rule.k} strongest", "top")):
        shares = [np.nanmean(one) for seed in seeds if np.isfinite(one := getattr(seed, of)).any()]
        if shares:
            error = np.std(shares) / np.sqrt(len(shares))
            print(f"  {name}: coverage {np.mean(shares):.1%} ± {error:.1%} in {len(shares)} orders")
            good &= bool(np.mean(shares) >= 0.93 - 2 * error)
    return good and (not held or np.mean(held) >= 0.95)


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
CASES: dict[str, tuple[Draw, float, float]] = {  # values, true mean, standard deviation
    "normal": (lambda random, size: random.normal(0.5, 1, size), 0.5, 1.0),
    "t3": (lambda random, size: random.standard_t(3, size) + 0.5, 0.5, 3**0.5),
    "log-normal, sigma 1": (lambda random, size: random.lognormal(0, 1, size), np.e**0.5, (np.e * (np.e - 1)) ** 0.5),
    "80 % zeros, exponential": (lambda random, size: _rare(random, size, 0.2) * random.exponential(1, size), 0.2, 0.6),
    "80 % zeros, log-normal": (
        lambda random, size: _rare(random, size, 0.2) * random.lognormal(0, 1, size), 0.2 * np.e**0.5,
        (0.2 * np.e**2 - 0.04 * np.e) ** 0.5,
    ),
    "1 % not zero": (lambda random, size: _rare(random, size, 0.01) * random.normal(10, 1, size), 0.1, 1.0),
    "1 % large, the rest noise": (
        lambda random, size: np.where(_rare(random, size, 0.01), random.normal(10, 1, size), random.normal(0, 0.1, size)),
        0.1, 1.0,
    ),
}  # fmt: skip
UNSEEN = "1 % large, the rest noise"  # of one mean alone: where no rare text is drawn nothing shows that there are any


def _rare(random: np.random.Generator, size: tuple[int, ...], share: float) -> np.ndarray:
    return random.random(size) < share


def _line(name: str, covered: np.ndarray, said: float, more: str = "") -> bool:
    """Print a share with its Monte Carlo error; whether it is at least 93 %, two errors allowed."""
    if not len(covered):
        print(f"  {name}: not settled{more}")
        return True
    share = covered.mean()
    error = max(np.sqrt(share * (1 - share) / len(covered)), 1e-9)
    print(f"  {name}: coverage {share:.1%} ± {error:.1%} of the {said:.0%} that are settled{more}", flush=True)
    return bool(share >= 0.93 - 2 * error)


def means(trials: int) -> bool:
    """The interval of a mean over 16, 64 and 256 texts."""
    good = True
    for n in (16, 64, 256):
        print(f"means of {n} texts")
        for name, (draw, truth, _) in CASES.items():
            ends = np.array([mean_interval(values) for values in draw(np.random.default_rng(n), (trials, n))])
            said = ends[:, 0] < ends[:, 1]  # neither NaN nor "no change"
            held = _line(name, (ends[said, 0] <= truth) & (truth <= ends[said, 1]), float(said.mean()))
            good &= held or name == UNSEEN
    return good


def texts_of(given: Any) -> Texts:
    """The lines of more than `--min-words` words, `--limit` of them."""
    read = read_texts(given.data)
    lines = tuple(text for text in read.texts if len(text.split()) > given.min_words)
    return Texts(read.source, lines[: given.limit], read.column)


def real_means(given: Any) -> bool:
    """The interval of a mean over 8, 16, 32 and 64 texts, drawn again from those of a model with dimensions off."""
    if given.matrix and given.matrix.exists():
        changes = np.load(given.matrix)["changes"]
    else:
        texts, task = texts_of(given), TaskOptions(blocks=True, max_length=given.max_length)
        options = AblateOptions(n_random=0, n_matched=0, passage=texts.texts[0], task=task)
        found = ablate(load(given.model), texts, given.off, options)
        changes = np.subtract(found.chosen.per_text, found.intact.per_text)
        if given.matrix:
            np.savez(given.matrix, changes=changes)
    truth, random = changes.mean(), np.random.default_rng(0)
    print(f"{given.off} off: {truth:+.3f} on {len(changes)} texts, standard deviation {changes.std(ddof=1):.2f}")
    good = True
    for n in (8, 16, 32, 64):
        drawn = changes[random.integers(0, len(changes), (given.trials, n))]
        ends = np.array([mean_interval(values) for values in drawn])
        said = ends[:, 0] < ends[:, 1]
        held = (ends[said, 0] <= truth) & (truth <= ends[said, 1])
        low, high = np.percentile(drawn.mean(1), [2.5, 97.5])
        good &= _line(f"{n} texts", held, float(said.mean()), f"; means {low:+.2f} to {high:+.2f}")
    return good


def simulated_sweep(trials: int, n_texts: int = 800, n_units: int = 32) -> bool:
    """The adaptive sweep of units that are all of one case, with tolerances that want about 24, 96 and 300 texts."""
    good = True
    looks = look_sizes(n_texts)
    for wanted in (24, 96, 300):
        print(f"adaptive sweep, a tolerance that wants about {wanted} normal texts")
        for name, (draw, truth, spread) in CASES.items():
            covered, texts = [], []
            for trial in range(trials):
                values = draw(np.random.default_rng([wanted, trial]), (n_units, n_texts))
                state = _swept(values, SweepOptions(tolerance=2 * spread / wanted**0.5, relative=0.0, top=0), looks)
                found = [one for one in state.estimates if one is not None]
                texts += [one.n_texts for one in found]
                covered += [one.low <= truth <= one.high for one in found if one.n_texts < n_texts]
            more = f", {np.mean(texts):.0f} texts"
            good &= _line(name, np.array(covered), len(covered) / len(texts), more)
    return good


def winner(trials: int, n_texts: int = 800, n_units: int = 64) -> bool:
    """The interval of the strongest of 64 effects that are all equal, as `Sweep.top` names it."""
    print("the strongest of 64 equal effects")
    good, looks = True, look_sizes(n_texts)
    for name in ("normal", "t3", "log-normal, sigma 1"):
        draw, truth, spread = CASES[name]
        covered = []
        for trial in range(trials):
            values = draw(np.random.default_rng([64, trial]), (n_units, n_texts))
            state = _swept(values, SweepOptions(tolerance=2 * spread / 64**0.5, relative=0.0), looks)
            first = max(state.again, key=state.change)
            found = state.estimates[first]
            assert found is not None
            if found.n_texts < n_texts:
                covered.append(found.low <= truth <= found.high)
        good &= _line(name, np.array(covered), len(covered) / trials)
    return good


@dataclass(frozen=True)
class Population:
    """576 dimensions on 2,383 texts, of which most are alike and 32 strong, as SmolLM2's were seen to be.

    Texts are sensitive to all dimensions alike (log-normal); what is left is half t and half log-normal.

    Attributes:
        sees: how much of a strong dimension's difference its gradient sees. Of SmolLM2's strongest seven on 48 texts, the
            correlation of both was −0.08 (507), 0.22, −0.06, 0.59, 0.63, 0.76 and 0.66; here it is 1 to 0.8 at a `sees` of 1.
        degrees: of freedom of t. gap: strong ones are apart from the others; else all are log-normal about 0.012 (σ = 1).
    """

    sees: float = 1.0
    degrees: float = 4.0
    gap: bool = True

    def matrix(self, n_dims: int = 576, n_texts: int = 2383, strong: int = 32) -> Matrix:
        """Drawn from seed 576."""
        random = np.random.default_rng(576)
        change = random.normal(0.012, 0.011, n_dims)
        places = random.choice(n_dims, strong, replace=False)
        change[places] = np.geomspace(0.05, 8, strong)
        if not self.gap:
            change = random.lognormal(np.log(0.012), 1, n_dims)
            places = np.flatnonzero(change > 0.05)
        spread = np.exp(random.normal(np.log(0.016), 0.15, n_dims)) + 0.35 * np.minimum(np.abs(change), 1)
        text = random.lognormal(0, 0.35, n_texts)
        size = (n_dims, n_texts)
        skewed = (random.lognormal(0, 1, size) - np.e**0.5) / (np.e * (np.e - 1)) ** 0.5
        tails = random.standard_t(self.degrees, size) / (self.degrees / (self.degrees - 2)) ** 0.5
        noise = (tails + skewed) / 2**0.5
        seen = np.ones((n_dims, 1))
        seen[places] = self.sees
        slopes = spread[:, None] * (0.75 * seen * noise + 0.66 * random.normal(0, 1, size))
        return Matrix(
            change[:, None] * text + spread[:, None] * noise,
            0.8 * seen * change[:, None] * text + slopes,
            np.ones(n_texts),
        )


POPULATIONS = {
    "as SmolLM2, gradients see all": Population(),
    "gradients hardly see the strong": Population(sees=0.1),
    "tails of t with 2.5 degrees": Population(degrees=2.5),
    "no gap between strong and ordinary": Population(gap=False),
}


def _swept(values: np.ndarray, options: SweepOptions, looks: tuple[int, ...]) -> SweepState:
    units = [Unit(str(dim), "all layers", {0: (dim,)}) for dim in range(len(values))]
    return fill(SweepState(units, options, looks, Differences(np.ones(values.shape[1]))), values)


def measure(given: Any, part: Path) -> Matrix:
    """Every dimension of a model on every text, with the library's runner and gradient pass.

    What is measured is kept in `part`, a file of NumPy's, so that a run that was cut off goes on.
    """
    torch.set_num_threads(1)
    loaded = load(given.model)
    options = SweepOptions(task=TaskOptions(blocks=True, max_length=given.max_length))
    runner = make_runner(loaded, texts_of(given), options)
    units = planned(options, runner.stack.n_layers, runner.width, ())[: given.dims]
    span = (0, runner.n_texts)
    intact = runner.values([INTACT.plan], span)[0]
    shape = (len(units), runner.n_texts)
    if not part.exists():
        np.lib.format.open_memmap(part, "w+", np.float64, shape)[:] = np.nan
    changes = np.lib.format.open_memmap(part, "r+")
    if changes.shape != shape:
        raise SystemExit(f"{part} holds {changes.shape} changes, of other texts or another model: take another file")
    for number, unit in enumerate(units):
        if np.isnan(changes[number]).any():
            changes[number] = runner.values([unit.plan], span)[0] - intact
            changes.flush()
        print(f"\rmeasured {number + 1} of {len(units)} dimensions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    gradients = runner.backing_off(lambda: first_order(runner, units, span)).T
    print(f"{loaded.name}: {runner.task.name}, {runner.n_texts} texts ({runner.task.text}), "
          f"intact {np.average(intact, weights=runner.weights):.4f} {runner.task.unit}")  # fmt: skip
    return Matrix(np.array(changes), gradients.astype(float), runner.weights)


def main() -> int:
    """Simulate, or measure a model and replay it; exit code 1 where a coverage is below 93 %."""
    given = asked(
        __doc__, {"model": ""}, trials=40, means=False, bulk=False, each=False, off=[int], data="excerpt", min_words=70,
        max_length=128, limit=int, dims=int, matrix=Path, seeds=50, tolerance=0.01, relative=0.1, first=[FIRST_LOOK],
        gradients=[256, 0], hold=["stop"],
    )  # fmt: skip
    rule = Rule(tolerance=given.tolerance, relative=given.relative, bulk=not given.each)
    if given.bulk:
        held = []
        for name, population in POPULATIONS.items():
            print(f"\n{name}", end="")
            held.append(table(population.matrix(), rule, given.seeds))
        return 0 if all(held) else 1
    if not given.model:
        shown = [means(given.trials)]
        if not given.means:
            shown += [simulated_sweep(max(2, given.trials // 100)), winner(max(2, given.trials // 20))]
        return 0 if all(shown) else 1
    if given.off:
        return 0 if real_means(given) else 1
    if given.matrix and given.matrix.exists():
        with np.load(given.matrix) as kept:
            matrix = Matrix(kept["changes"], kept["gradients"], kept["weights"])
    else:
        with tempfile.TemporaryDirectory() as folder:
            part = given.matrix.with_suffix(".part.npy") if given.matrix else Path(folder) / "changes.npy"
            matrix = measure(given, part)
        if given.matrix:
            np.savez(given.matrix, changes=matrix.changes, gradients=matrix.gradients, weights=matrix.weights)
            part.unlink()
    spread = matrix.changes.std(axis=1, ddof=1)
    correlation = [np.corrcoef(x, g)[0, 1] for x, g in zip(matrix.changes, matrix.gradients, strict=True)]
    print(f"{len(matrix.changes)} dimensions, {len(matrix.weights)} texts; ± max({given.tolerance}, {given.relative:.0%}); "
          f"spread over texts {np.median(spread):.4f} (median dimension), "
          f"correlation with the gradients {np.nanmedian(correlation):.2f}")  # fmt: skip
    cases = itertools.product(given.hold, given.gradients, given.first)
    rules = [replace(rule, hold=hold, gradients=texts, first=first) for hold, texts, first in cases]
    good = [table(matrix, one, given.seeds) for one in rules]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
