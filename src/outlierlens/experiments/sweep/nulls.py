"""Control sets beside what a sweep tests: which there are, and how a set compares with them.

families = control_families(runner, units, found)
nulls_of(state, families, n_texts=16)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outlierlens.ablation.controls import figures_of, matched_sets, random_families, relabelled, times
from outlierlens.detection.observe.measure import magnitude
from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.result import BY_LAYER, Null
from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.schedule import State
from outlierlens.experiments.sweep.units import Unit
from outlierlens.statistics.p_values import benjamini_hochberg, rank_p

N_RANDOM, N_RANDOM_BY_WINDOW, N_MATCHED = 200, 19, 19


@dataclass(frozen=True)
class Family:
    """The control sets of one kind for the unit `of`, as units themselves; `closeness` as in `Null`."""

    kind: str
    of: Unit
    controls: tuple[Unit, ...]
    closeness: float | None = None


def control_families(runner: Runner, units: Sequence[Unit], found: Sequence[int]) -> list[Family]:
    """Random, ordinary and matched control sets for every tested set; for single dimensions only where not all are swept.

    Sets of one size in one window share their random sets but for each itself, which is none of its own controls. Ordinary
    ones hold no dimension that the weights or the caller named. Too few dimensions for a control are said in `runner.notes`.
    """
    options = runner.options
    several = len({unit.window for unit in units} - {BY_LAYER}) > 1
    n_random = options.n_random if options.n_random is not None else N_RANDOM_BY_WINDOW if several else N_RANDOM
    n_matched = options.n_matched if options.n_matched is not None else 0 if several else N_MATCHED
    wanted = [unit for unit in units if len(unit.dims) > 1 or options.dims is not None or unit.window == BY_LAYER]
    named = {dim for unit in wanted for dim in unit.dims} | set(found)
    families: list[Family] = []
    for unit in wanted if n_random else ():
        _attempt(runner, families, lambda unit=unit: _random(runner, unit, named, n_random))  # type: ignore[misc]
    if n_matched and wanted:
        strength = magnitude(runner.loaded, runner.stack)
        for unit in wanted:
            _attempt(runner, families, lambda unit=unit: [_matched(runner, strength, unit, named, n_matched)])  # type: ignore[misc]
    return families


def _attempt(runner: Runner, families: list[Family], make: Callable[[], list[Family]]) -> None:
    """Add families, or the reason why there are none to the notes."""
    try:
        families += make()
    except BadInput as error:
        note = f"a control family is missing: {error}"
        if note not in runner.notes:
            runner.notes.append(note)


def _random(runner: Runner, unit: Unit, named: set[int], n: int) -> list[Family]:
    families = []
    for kind, sets in random_families(runner.width, unit.dims, avoid=named, n=n, seed=runner.options.seed).items():
        if len(sets) < n:
            note = f"{len(sets)} {kind} sets of {len(unit.dims)} instead of {n}: there are no more"
            runner.notes += [note] if note not in runner.notes else []
        units = [Unit(f"{kind} {i + 1}", unit.window, relabelled(unit.plan, dims)) for i, dims in enumerate(sets)]
        families.append(Family(kind, unit, tuple(units)))
    return families


def _matched(runner: Runner, strength: np.ndarray, unit: Unit, named: set[int], n: int) -> Family:
    blocks = runner.stack.blocks
    sets = matched_sets(strength, unit.plan, avoid=named, n=n, seed=runner.options.seed, blocks=blocks)
    units = [Unit(f"matched {i + 1}", unit.window, item.plan) for i, item in enumerate(sets)]
    closeness = float(np.median([item.closeness for item in sets]))
    return Family("matched", unit, tuple({one.key: one for one in units}.values()), closeness)


def nulls_of(state: State, families: Sequence[Family], n_texts: int) -> tuple[Null, ...]:
    """Each tested set against each of its control families, on the first `n_texts` texts."""
    weights = state.measured.weights[:n_texts]
    known: dict[str, float] = {}

    def measured(unit: Unit) -> float:
        values = state.measured.values(unit.key)[:n_texts]
        if state.functional is not None:
            return state.functional.change(values)
        # A loss that is no number any more is as bad as one that is infinite.
        return float(np.average(np.nan_to_num(values, nan=np.inf, posinf=np.inf), weights=weights))

    def change(unit: Unit) -> float:
        if unit.key not in known:
            known[unit.key] = measured(unit)
        return known[unit.key]

    nulls = []
    for family in families:
        changes, own = np.sort([change(unit) for unit in family.controls]), change(family.of)
        median, high, mean = figures_of(changes)
        nulls.append(
            Null(
                label=family.of.label,
                window=family.of.window,
                kind=family.kind,
                n_texts=n_texts,
                change=np.nan if np.isnan(state.measured.values(family.of.key)[:n_texts]).any() else own,
                changes=tuple(changes.tolist()),
                p=rank_p(own, changes) if family.kind == "random" else None,
                median=median,
                percentile_95=high,
                mean=mean,
                times_mean=times(own, mean),
                closeness=family.closeness,
            )
        )
    q = benjamini_hochberg(np.array([null.p for null in nulls], dtype=float))  # NaN where there is no p
    return tuple(
        replace(null, q=None if null.p is None else float(value)) for null, value in zip(nulls, q, strict=True)
    )
