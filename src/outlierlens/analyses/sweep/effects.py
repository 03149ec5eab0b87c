"""From what was measured to rows: functions of the rows kept, but for what a reduced precision does to effects.

effects_of(runner, state, found, nulls)                  # with p-values
nulls_of(state, families, n_texts=16)                    # how each set compares with its control sets
compared_with_float32(runner, state)                     # measured against the same model in float32
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.ablation.controls import figures_of, times
from outlierlens.analyses.sweep.estimate import MeanChange
from outlierlens.analyses.sweep.gradients import rivals
from outlierlens.analyses.sweep.rows import BY_LAYER, Cost, Effect, Null, Precision, Stopped
from outlierlens.analyses.sweep.runner import Runner
from outlierlens.analyses.sweep.schedule import SweepState
from outlierlens.analyses.sweep.units import Unit, UnitFamily
from outlierlens.architectures import refuse_offloaded
from outlierlens.models.changes import temporary
from outlierlens.models.devices import out_of_memory
from outlierlens.results.rows import Estimate
from outlierlens.statistics.ranks import benjamini_hochberg, rank_p, rank_p_among
from outlierlens.tasks.base import mean_estimate
from outlierlens.tasks.metrics import CORRELATIONS

if TYPE_CHECKING:
    from torch import nn

N_SETS, N_TEXTS = 8, 8  # that are computed in float32 too
OF_METRIC = 4, 100  # likewise for a metric: a prediction is the same or another one, which few texts do not show


def effects_of(runner: Runner, state: SweepState, found: Sequence[int], nulls: Sequence[Null]) -> tuple[Effect, ...]:
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
        ranked = ranks.get(number, {"times_random": None if null is None else null.times_mean})
        slopes = None if state.gradients is None else state.gradients[:, number]
        change = estimate.change
        if np.isnan(state.measured.values(unit.key)).any():  # ranked as the worst; no number says how bad
            change = low = high = np.nan
            ranked = {**ranked, "times_random": None}
        first = None if slopes is None else float(np.average(slopes, weights=runner.weights[: len(slopes)]))
        effects.append(Effect(
            label=unit.label, dims=unit.dims, by_layer=unit.by_layer, window=unit.window, layers=unit.layers,
            change=Estimate(change, low, high), n_texts=state.measured.n(unit.key), stopped=stopped, first_order=first,
            found=set(unit.dims) <= set(found), spread=estimate.spread, n_parameters=counts[shape],
            again=estimate.n_texts if number in state.again else 0, **ranked,
        ))  # fmt: skip
    return tuple(effects)


def _stopped(state: SweepState, number: int, n_texts: int) -> Stopped:
    if state.is_bulk(number):
        return "bulk"
    if state.measured.n(state.units[number].key) == n_texts:
        return "all texts"
    return "precise" if state.precise(number) else "unfinished"


def _estimate(state: SweepState, number: int) -> MeanChange:
    found = state.estimates[number]
    assert found is not None, "every unit is measured before it is summed up"
    return found


def _ranks(runner: Runner, state: SweepState, found: Sequence[int]) -> dict[int, dict[str, float | None]]:
    """Of every single dimension its ranks among those of its window, as fields of `Effect`, where all are swept."""
    if runner.options.dims != "all":
        return {}
    windows: dict[str, list[int]] = {}
    for number, unit in enumerate(state.units):
        if len(unit.dims) == 1 and unit.window != BY_LAYER:
            windows.setdefault(unit.window, []).append(number)
    ranks: dict[int, dict[str, float | None]] = {}
    for numbers in windows.values():
        changes = np.array([_estimate(state, number).change for number in numbers])
        named = np.array([state.units[number].dims[0] in found for number in numbers])
        p = rank_p_among(changes)
        q, q_found = benjamini_hochberg(p), benjamini_hochberg(np.where(named, p, np.nan))
        mean = float(np.mean(changes[~named])) if (~named).any() else float("nan")
        for place, number in enumerate(numbers):
            ranks[number] = {
                "p": float(p[place]),
                "q": float(q[place]),
                "q_found": float(q_found[place]) if named[place] else None,
                "times_random": times(float(changes[place]), mean),
            }
    return ranks


def intact_of(intact: np.ndarray, runner: Runner) -> Estimate:
    """The intact model's value on the texts that were used; the interval is over texts."""
    if runner.functional is not None:
        intact = runner.functional.predictions(np.zeros(len(intact)))
        return runner.functional.statistic.score(intact, seed=runner.options.seed)
    return mean_estimate(intact, runner.weights[: len(intact)])


def cost_of(runner: Runner, state: SweepState, families: Sequence[UnitFamily], n_intact: int) -> Cost:
    """Cost of the sweep, from its rows."""
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
    swept = {unit.key for unit in state.units}
    controls = {unit.key: unit for family in families for unit in family.controls if unit.key not in swept}
    nulls, null_tokens = spent([*controls.values()])
    tokens = int(until[n_intact]) + effect_tokens + null_tokens + 3 * passes * int(until[gradient_texts])
    return Cost(
        intact=n_intact + n_margins, effects=effects + again, nulls=nulls, gradient_texts=passes * gradient_texts,
        total=n_intact + n_margins + effects + again + nulls + 3 * passes * gradient_texts,
        exact=len(state.units) * runner.n_texts, tokens=tokens + int(until[n_margins] + again * lengths.mean()),
    )  # fmt: skip


def compared_with_float32(runner: Runner, state: SweepState) -> Precision | None:
    """What float32 says of the intact model and of the strongest and some evenly spread effects; None for a model in it."""
    if runner.loaded.dtype == "float32":
        return None
    if runner.loaded.blocks is not None:
        runner.notes.append("the deviation from float32 was not measured: the model is read block by block")
        return None
    n_sets, n_texts = (N_SETS, N_TEXTS) if runner.functional is None else OF_METRIC
    ranked = sorted(range(len(state.units)), key=lambda number: -state.change(number))
    spread = np.linspace(n_sets // 2, len(ranked) - 1, n_sets - n_sets // 2).astype(int).clip(max=len(ranked) - 1)
    chosen = list(dict.fromkeys([*ranked[: n_sets // 2], *(ranked[place] for place in spread)]))
    span = (0, min(n_texts, runner.n_texts))
    plans = [{}, *(state.units[number].plan for number in chosen)]
    reduced = runner.values(plans, span)
    runner.forget()
    try:
        with _as_float32(runner.loaded.model):
            full = runner.values(plans, span)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        runner.notes.append("the deviation from float32 was not measured: the model in float32 does not fit in memory")
        return None
    finally:
        runner.forget()
    name = runner.loaded.dtype
    weights = runner.weights[span[0] : span[1]]
    if runner.functional is not None:
        values = runner.functional.statistic.metric in CORRELATIONS
        moved = float(np.abs(reduced - full).max() if values else np.mean(reduced != full))
        return Precision(name, moved, len(chosen), span[1], "values" if values else "classes")
    changes = [np.average(values[1:] - values[0], axis=1, weights=weights) for values in (reduced, full)]
    return Precision(
        dtype=name,
        deviation=float(np.max(np.abs(changes[0] - changes[1]))),
        n_sets=len(chosen),
        n_texts=span[1],
        intact=float(np.average(reduced[0] - full[0], weights=weights)),
    )


@temporary
def _as_float32(model: "nn.Module") -> Iterator[None]:
    """The model's floating-point values as float32 inside; going back is exact, for they came from there."""
    refuse_offloaded(model, "a comparison with float32")
    before = {name: value.dtype for name, value in [*model.named_parameters(), *model.named_buffers()]}
    try:
        model.float()
        yield
    finally:
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            value.data = value.data.to(before[name])


def nulls_of(state: SweepState, families: Sequence[UnitFamily], n_texts: int) -> tuple[Null, ...]:
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
        broken = np.isnan(state.measured.values(family.of.key)[:n_texts]).any()
        nulls.append(Null(
            label=family.of.label, window=family.of.window, kind=family.kind, n=len(changes), n_texts=n_texts,
            change=np.nan if broken else own, changes=tuple(changes.tolist()), median=median, percentile_95=high, mean=mean,
            times_mean=times(own, mean), p=rank_p(own, changes) if family.kind == "random" else None,
            closeness=family.closeness,
        ))  # fmt: skip
    q = benjamini_hochberg(np.array([null.p for null in nulls], dtype=float))  # NaN where there is no p
    return tuple(
        replace(null, q=None if null.p is None else float(value)) for null, value in zip(nulls, q, strict=True)
    )
