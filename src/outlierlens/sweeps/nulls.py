"""Control sets beside what a sweep tests: which there are, and how a set compares with them.

families = control_families(runner, units, found)
nulls_of(state, families, n_texts=16)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.bench import magnitude
from outlierlens.controls import figures_of, matched_sets, random_sets, rank_p, relabelled, times
from outlierlens.errors import BadInput
from outlierlens.sweeps.estimate import benjamini_hochberg
from outlierlens.sweeps.runner import Runner
from outlierlens.sweeps.schedule import State
from outlierlens.sweeps.units import Unit
from outlierlens.swept import BY_LAYER, Null

N_RANDOM, N_RANDOM_BY_WINDOW, N_MATCHED = 200, 19, 19


@dataclass(frozen=True)
class Family:
    """The control sets of one kind for the units `of`, as units themselves; `closeness` as in `Null`."""

    kind: str
    of: tuple[Unit, ...]
    controls: tuple[Unit, ...]
    closeness: float | None = None


def control_families(runner: Runner, units: Sequence[Unit], found: Sequence[int]) -> list[Family]:
    """Random and matched control sets for every tested set; for single dimensions only where not all are swept.

    A family of random sets serves all sets of one size and window: dimensions that neither the weights nor the caller
    named. Too few free dimensions for a control are said in `runner.notes`.
    """
    options = runner.options
    several = len({unit.window for unit in units} - {BY_LAYER}) > 1
    n_random = options.n_random if options.n_random is not None else N_RANDOM_BY_WINDOW if several else N_RANDOM
    n_matched = options.n_matched if options.n_matched is not None else 0 if several else N_MATCHED
    wanted = [unit for unit in units if len(unit.dims) > 1 or options.dims is not None or unit.window == BY_LAYER]
    named = {dim for unit in wanted for dim in unit.dims} | set(found)
    families: list[Family] = []
    if n_random:
        for some in _alike(wanted):
            _attempt(runner, families, lambda some=some: _random(runner, some, named, n_random))  # type: ignore[misc]
    if n_matched and wanted:
        strength = magnitude(runner.loaded, runner.stack)
        for unit in wanted:
            _attempt(runner, families, lambda unit=unit: _matched(runner, strength, unit, named, n_matched))  # type: ignore[misc]
    return families


def _attempt(runner: Runner, families: list[Family], make: Callable[[], Family]) -> None:
    """Append a family, or the reason why there is none to the notes."""
    try:
        families.append(make())
    except BadInput as error:
        note = f"a control family is missing: {error}"
        if note not in runner.notes:
            runner.notes.append(note)


def _alike(wanted: Sequence[Unit]) -> list[list[Unit]]:
    """Units that one family of random sets serves: of one size in one window; a plan by layer has its own."""
    by_size: dict[tuple[int, str, str], list[Unit]] = {}
    for unit in wanted:
        alike = unit.key if unit.window == BY_LAYER else ""
        by_size.setdefault((len(unit.dims), unit.window, alike), []).append(unit)
    return list(by_size.values())


def _random(runner: Runner, some: Sequence[Unit], named: set[int], n: int) -> Family:
    first, size = some[0], len(some[0].dims)
    if size == 1:  # without replacement: each free dimension once at most
        free = np.setdiff1d(np.arange(runner.width), sorted(named))
        if not len(free):
            raise BadInput("no dimension is free for a random control")
        drawn = np.random.default_rng(runner.options.seed).permutation(free)[:n]
        sets: list[tuple[int, ...]] = [(int(dim),) for dim in drawn]
        if len(sets) < n:
            runner.notes.append(f"{len(sets)} random dimensions instead of {n}: there are no more free ones")
    else:
        sets = list(random_sets(runner.width, size, avoid=named, n=n, seed=runner.options.seed).free)
    units = [Unit(f"random {i + 1}", first.window, relabelled(first.plan, dims)) for i, dims in enumerate(sets)]
    return Family("random", tuple(some), tuple({unit.key: unit for unit in units}.values()))


def _matched(runner: Runner, strength: np.ndarray, unit: Unit, named: set[int], n: int) -> Family:
    sets = matched_sets(strength, unit.plan, avoid=named, n=n, seed=runner.options.seed)
    units = [Unit(f"matched {i + 1}", unit.window, item.plan) for i, item in enumerate(sets)]
    closeness = float(np.median([item.closeness for item in sets]))
    return Family("matched", (unit,), tuple({one.key: one for one in units}.values()), closeness)


def nulls_of(state: State, families: Sequence[Family], n_texts: int) -> tuple[Null, ...]:
    """Each tested set against each of its control families, on the first `n_texts` texts."""
    weights = state.measured.weights[:n_texts]

    def change(unit: Unit) -> float:
        values = state.measured.values(unit.key)[:n_texts]
        if state.functional is not None:
            return state.functional.change(values)
        # A loss that is no number any more is as bad as one that is infinite.
        return float(np.average(np.nan_to_num(values, nan=np.inf, posinf=np.inf), weights=weights))

    nulls = []
    for family in families:
        changes = np.sort([change(unit) for unit in family.controls])
        median, high, mean = figures_of(changes)
        for unit in family.of:
            own = change(unit)
            nulls.append(
                Null(
                    label=unit.label,
                    window=unit.window,
                    kind=family.kind,
                    n_texts=n_texts,
                    change=own,
                    changes=tuple(changes.tolist()),
                    p=rank_p(own, changes),
                    median=median,
                    percentile_95=high,
                    mean=mean,
                    times_mean=times(own, mean),
                    closeness=family.closeness,
                )
            )
    for kind in {null.kind for null in nulls}:
        places = [place for place, null in enumerate(nulls) if null.kind == kind]
        for place, q in zip(places, benjamini_hochberg(np.array([nulls[place].p for place in places])), strict=True):
            nulls[place] = replace(nulls[place], q=float(q))
    return tuple(nulls)
