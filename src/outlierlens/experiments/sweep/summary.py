"""From what was measured to what is reported: effects with p-values, the intact value, the cost. Functions of the rows."""

from collections.abc import Sequence

import numpy as np

from outlierlens.ablation.controls import times
from outlierlens.experiments.sweep.estimate import Estimate
from outlierlens.experiments.sweep.result import BY_LAYER, Cost, Effect, Null, Stopped
from outlierlens.experiments.sweep.runner import Runner
from outlierlens.experiments.sweep.schedule import State
from outlierlens.experiments.sweep.screen import rivals
from outlierlens.experiments.sweep.units import Unit
from outlierlens.statistics.p_values import benjamini_hochberg, rank_p_among
from outlierlens.tasks.base import scored


def effects_of(runner: Runner, state: State, found: Sequence[int], nulls: Sequence[Null]) -> tuple[Effect, ...]:
    """Every unit's effect, in the order planned."""
    ranks = _ranks(runner, state, found)
    described = [null for kind in ("random", "ordinary") for null in nulls if null.kind == kind]
    by_set = {(null.label, null.window): null for null in described}  # ordinary ones where there are any
    counts: dict[tuple[tuple[int, int], ...], int] = {}
    effects = []
    for number, unit in enumerate(state.units):
        estimate = _estimate(state, number)
        shape = tuple((layer, len(dims)) for layer, dims in sorted(unit.plan.items()))
        if shape not in counts:  # equal for all sets of these sizes in these layers
            with runner.ablation.off(unit.plan) as touched:
                counts[shape] = touched
        stopped = _stopped(state, number, runner.n_texts)
        low, high = (estimate.low, estimate.high) if estimate.settled else (-np.inf, np.inf)
        if stopped == "all texts" and estimate.change == estimate.spread == 0:
            low = high = 0.0  # nothing changed anywhere
        null = by_set.get((unit.label, unit.window))
        p, q, q_found, times_random = ranks.get(number, (None, None, None, None if null is None else null.times_mean))
        slopes = None if state.gradients is None else state.gradients[:, number]
        change = estimate.change
        if np.isnan(state.measured.values(unit.key)).any():  # ranked as the worst; no number says how bad
            change = low = high = np.nan
            times_random = None
        effects.append(
            Effect(
                label=unit.label,
                dims=unit.dims,
                by_layer=unit.by_layer,
                window=unit.window,
                layers=unit.layers,
                change=change,
                low=low,
                high=high,
                spread=estimate.spread,
                n_texts=state.measured.n(unit.key),
                again=estimate.n_texts if number in state.again else 0,
                stopped=stopped,
                first_order=None
                if slopes is None
                else float(np.average(slopes, weights=runner.weights[: len(slopes)])),
                p=p,
                q=q,
                q_found=q_found,
                times_random=times_random,
                n_parameters=counts[shape],
            )
        )
    return tuple(effects)


def _stopped(state: State, number: int, n_texts: int) -> Stopped:
    if state.measured.n(state.units[number].key) == n_texts:
        return "all texts"
    return "precise" if state.precise(number) else "unfinished"


def _estimate(state: State, number: int) -> Estimate:
    found = state.estimates[number]
    assert found is not None, "every unit is measured before it is summed up"
    return found


def _ranks(
    runner: Runner, state: State, found: Sequence[int]
) -> dict[int, tuple[float, float, float | None, float | None]]:
    """(p, q, q among found, times random) of every single dimension among those of its window, where all are swept."""
    if runner.options.dims is not None:
        return {}
    windows: dict[str, list[int]] = {}
    for number, unit in enumerate(state.units):
        if len(unit.dims) == 1 and unit.window != BY_LAYER:
            windows.setdefault(unit.window, []).append(number)
    ranks: dict[int, tuple[float, float, float | None, float | None]] = {}
    for numbers in windows.values():
        changes = np.array([_estimate(state, number).change for number in numbers])
        named = np.array([state.units[number].dims[0] in found for number in numbers])
        p = rank_p_among(changes)
        q, q_found = benjamini_hochberg(p), benjamini_hochberg(np.where(named, p, np.nan))
        mean = float(np.mean(changes[~named])) if (~named).any() else float("nan")
        for place, number in enumerate(numbers):
            among = float(q_found[place]) if named[place] else None
            ranks[number] = (float(p[place]), float(q[place]), among, times(float(changes[place]), mean))
    return ranks


def intact_of(intact: np.ndarray, runner: Runner, seed: int) -> tuple[float, float, float]:
    """(value, low, high) of the intact model on the texts that were used; the interval is over texts."""
    if runner.functional is not None:
        intact = runner.functional.predictions(np.zeros(len(intact)))
        return scored(intact, runner.task.weights, runner.functional.statistic, seed=seed)
    return scored(intact, runner.weights[: len(intact)], None, seed=seed)


def cost_of(runner: Runner, state: State, controls: Sequence[Unit], n_intact: int, seconds: float) -> Cost:
    """What the sweep took, from what was measured."""
    lengths = runner.task.lengths[runner.order]
    until = np.concatenate([[0], np.cumsum(lengths)])
    gradient_texts = 0 if state.gradients is None else len(state.gradients)
    # A screen reads every text once for its margins, then once for the gradient of each.
    n_margins = 0 if state.screen is None else runner.n_texts
    passes = 1 if state.screen is None else rivals(runner)
    gradient_texts = max(gradient_texts, n_margins)

    def spent(units: Sequence[Unit]) -> tuple[int, int]:
        """(texts, tokens)"""
        counts = [state.measured.n(unit.key) for unit in units]
        run = [state.measured.spent(unit.key) for unit in units]
        # Of texts that were left out the mean length is taken.
        shares = (until[count] * part / max(1, count) for count, part in zip(counts, run, strict=True))
        return sum(run), int(sum(shares))

    effects, effect_tokens = spent(state.units)
    again = state.measured.dropped
    nulls, null_tokens = spent(controls)
    tokens = int(until[n_intact]) + effect_tokens + null_tokens + 3 * passes * int(until[gradient_texts])
    return Cost(
        intact=n_intact + n_margins,
        effects=effects + again,
        nulls=nulls,
        gradient_texts=passes * gradient_texts,
        total=n_intact + n_margins + effects + again + nulls + 3 * passes * gradient_texts,
        exact=len(state.units) * runner.n_texts,
        tokens=tokens + int(until[n_margins] + again * lengths.mean()),
        seconds=seconds,
    )
