"""How often p-values are at most 5 % where nothing is to be found: random sets, rules on weights, onsets.

    OMP_NUM_THREADS=1 python benchmarks/nulls.py --scale 1                 # all, 20 minutes on one core; without, a fiftieth
    OMP_NUM_THREADS=1 python benchmarks/nulls.py sets weights --scale 1    # some parts

The data are made here, by rules of their own; the library gives the p-values. Every rate stands beside its Monte Carlo
standard error. Exit code 1 where a null is rejected more often than at the stated rate and two standard errors. Rows marked
"not claimed" show what a null does not cover, rows marked "found" how often a change that is there is seen; neither is judged.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from timing import asked

from outlierlens.ablation.controls import random_sets
from outlierlens.analyses.track_changes import change_point
from outlierlens.detection.rules import LastOperation, Rule, find
from outlierlens.statistics.ranks import rank_p

ALPHA = 0.05
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A null (or what stands beside it): `rejects` says for one seeded draw whether p is at most `alpha`."""

    part: str
    name: str
    n: int
    rejects: Callable[[Random, int], bool]
    alpha: float = ALPHA
    role: str = "null"

    def run(self) -> bool:
        """Print the rate, and return whether the null holds."""
        rate = float(np.mean([self.rejects(np.random.default_rng([self.n, i]), i) for i in range(self.n)]))
        error = sqrt(max(rate, 1 / self.n) * (1 - min(rate, 1 - 1 / self.n)) / self.n)
        holds = self.role != "null" or rate <= self.alpha + 2 * sqrt(self.alpha * (1 - self.alpha) / self.n)
        said = self.role if self.role != "null" else "holds" if holds else "TOO OFTEN"
        print(
            f"{self.part:8} {self.name:74} p <= {self.alpha:g}: {rate:6.2%} ± {error:.2%} of {self.n:,}  {said}",
            flush=True,
        )
        return holds


# Effects of single dimensions [dim]; the change of a set is a function of its dimensions' effects.


def few(random: Random, width: int, n_strong: int) -> np.ndarray:
    """Few dimensions carry nearly all of it, the others next to nothing."""
    effects = random.exponential(0.005, width)
    effects[random.choice(width, n_strong, replace=False)] = random.exponential(0.2, n_strong)
    return effects


class Sets(NamedTuple):
    """Sets of `size` of `width` dimensions, of which `strong` carry it; those that avoid the tested one claim nothing."""

    name: str
    width: int
    size: int
    n: int
    strong: int
    alpha: float = 0.05
    change: str = "sum"
    avoid: bool = False

    def reject(self, random: Random, seed: int) -> bool:
        """Whether the rank of a set that is drawn at random itself is at most `alpha`."""
        effects = few(random, self.width, self.strong)
        if self.change == "steps":  # most sets change nothing, as predictions of few items do
            effects = np.floor(effects * 10)
        tested = random.choice(self.width, self.size, replace=False)
        avoided = tested if self.avoid else ()
        drawn = random_sets(self.width, self.size, n=self.n, seed=seed, other_than=tested, avoid=avoided)
        of = np.max if self.change == "largest" else np.sum
        return rank_p(float(of(effects[tested])), of(effects[np.array(drawn)], axis=1)) <= self.alpha + 1e-12


SETS = (
    Sets("8 of 128 among 24 sets, eight dimensions carry it", 128, 8, 24, 8, 0.04),
    Sets("… among sets that avoid the tested eight", 128, 8, 24, 8, 0.04, avoid=True),
    Sets("8 of 128 among 19 sets, the largest of a set counts", 128, 8, 19, 8, change="largest"),
    Sets("… among sets that avoid the tested eight", 128, 8, 19, 8, change="largest", avoid=True),
    Sets("3 of 576 among 19 sets, three dimensions carry it", 576, 3, 19, 3),
    Sets("2 of 768 among 99 sets, two dimensions carry it", 768, 2, 99, 2),
    Sets("1 of 64 among all 63 others", 64, 1, 99, 4),
    Sets("2 of 8 among all 27 other pairs", 8, 2, 99, 2),
    Sets("8 of 128 among 19 sets, changes in steps with many ties", 128, 8, 19, 8, change="steps"),
)


def sets(scale: float) -> Iterator[Case]:
    """Rank p among random sets."""
    for one in SETS:
        role = "not claimed" if one.avoid else "null"
        yield Case("sets", one.name, round(10_000 * scale), one.reject, one.alpha, role)


# Scale and bias [layer, dim] whose positions agree across layers by chance only.


def tails(random: Random, shape: tuple[int, int]) -> np.ndarray:
    """Heavy tails: every layer has some positions past three sigma."""
    return random.standard_t(3, shape)


def independent(random: Random, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Scale and bias know nothing of each other."""
    return tails(random, shape), tails(random, shape)


def coinciding(random: Random, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Bias is scale turned round."""
    scale = tails(random, shape)
    return scale, -scale


def correlated(random: Random, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Correlation 0.64."""
    scale, bias, shared = (tails(random, shape) for _ in range(3))
    return 0.6 * scale + 0.8 * shared, 0.6 * bias + 0.8 * shared


def spiking(random: Random, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Both spike at the same three positions of each layer, which are others in every layer."""
    scale, bias = random.standard_normal((2, *shape))
    for layer in range(shape[0]):
        places = random.choice(shape[1], 3, replace=False)
        scale[layer, places] += 12
        bias[layer, places] -= 12
    return scale, bias


def named(random: Random, seed: int, *, make: Callable, rule: Rule, shape: tuple[int, int]) -> bool:
    """Whether a rule names any dimension at the level."""
    return any(outlier.p_holm <= ALPHA for outlier in find(LastOperation(*make(random, shape)), rule))


def planted(random: Random, seed: int, *, rule: Rule, shape: tuple[int, int]) -> bool:
    """Whether a rule names the dimension that stands out in three quarters of the layers."""
    made = [values.copy() for values in coinciding(random, shape)]
    for values in made:
        values[: shape[0] * 3 // 4, 7] = 40
    return any(outlier.dim == 7 and outlier.p_holm <= ALPHA for outlier in find(LastOperation(*made), rule))


def weights(scale: float) -> Iterator[Case]:
    """Family-wise error of Holm's p over all dimensions, and what is planted."""
    n = round(400 * scale)
    makes = {
        "independent": independent,
        "coinciding": coinciding,
        "correlated": correlated,
        "spiking together": spiking,
    }
    for shape in ((4, 128), (12, 768)):
        least, size = 1 / shape[0], f"{shape[0]} × {shape[1]}"  # every dimension that passes anywhere has its p
        rules = {
            "kovaleva": Rule(min_layer_fraction=least),
            "kovaleva:same-layer": Rule(min_layer_fraction=least, same_layer=True),
            "puccetti": Rule("puccetti", top_k=shape[1]),
            "luo": Rule("luo"),
        }
        for (dependence, make), (name, rule) in product(makes.items(), rules.items()):
            rejects = partial(named, make=make, rule=rule, shape=shape)
            yield Case("weights", f"{name}, {size}, scale and bias {dependence}", n, rejects)
        for same in (False, True):
            name = f"kovaleva{':same-layer' if same else ''}, {size}, one planted in three quarters"
            found = partial(planted, rule=Rule(same_layer=same), shape=shape)
            yield Case("weights", name, max(50, n // 5), found, role="found")


# Series over training steps.


def drifting(random: Random, n: int, rho: float, tails: bool = False) -> np.ndarray:
    """AR(1) noise of variance 1, from its stationary distribution; rho 1 is a random walk. `tails`: t with 3 degrees."""
    noise = random.standard_t(3, n) / sqrt(3) if tails else random.standard_normal(n)
    new = 1.0 if rho == 1 else sqrt(1 - rho * rho)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + new * noise[i]
    return noise


def onset(
    random: Random, seed: int, *, length: int, rho: float, tails: bool = False, height: float = 0, rise: float = 0
) -> bool:
    """Whether a change is called sure; `height` in standard deviations, over the share `rise` of the run (0: a jump)."""
    steps = np.arange(length) * 100.0
    values, begin = drifting(random, length, rho, tails), random.uniform(0.25, 0.65) * steps[-1]
    values = values + height * np.clip((steps - begin) / (rise * steps[-1] or 1e-9), 0, 1)
    found = change_point(steps, values, direction=1, seed=seed % 200)
    return found is not None and found.sure


def onsets(scale: float) -> Iterator[Case]:
    """p of a change point."""
    n = round(1_000 * scale)

    def case(name: str, n: int, role: str = "null", **how: Any) -> Case:
        return Case("onsets", f"{how['length']} steps, {name}", n, partial(onset, **how), role=role)

    for length in (12, 20, 40, 60):
        for rho in (0.0, 0.5, 0.9, 0.95, 0.98):
            yield case(f"correlation {rho:g}", n, length=length, rho=rho)
        yield case("correlation 0.9, heavy tails", n, "not claimed", length=length, rho=0.9, tails=True)
        yield case("a random walk", n // 2, "not claimed", length=length, rho=1.0)
    for rho in (0.0, 0.98):
        yield case(f"correlation {rho:g}", n // 4, length=120, rho=rho)
    for rho, (rise, shape) in product((0.0, 0.6, 0.8), ((0.0, "in a jump"), (0.2, "over a fifth of the run"))):
        name = f"correlation {rho:g}, six standard deviations {shape}"
        yield case(name, n // 5, "found", length=40, rho=rho, height=6, rise=rise)


PARTS: dict[str, Callable[[float], Iterator[Case]]] = {"sets": sets, "weights": weights, "onsets": onsets}


def main() -> int:
    """Run the parts; exit code 1 where a null is rejected too often."""
    given = asked(__doc__, {"parts": list(PARTS)}, scale=0.02)
    held = [case.run() for part in given.parts for case in PARTS[part](given.scale)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
