"""What the report says of a sweep, by rule from its numbers, and what it shows of it: `views(data)`.

sentences(swept)                             # who leads, how many matter, whether the weights had named them
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from outlierlens import charts
from outlierlens.charts import Chart
from outlierlens.charts.base import number
from outlierlens.charts.sweep_marks import level, names
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.report.phrases import TASKS, factor, listed
from outlierlens.report.results import ReportData
from outlierlens.swept import Effect, Null, Sweep

TABLE = 20
ENOUGH = 5.0  # times the mean of random, which Puccetti et al. (2022) ask for
NAMED_ONE_BY_ONE = 6
HEAVY = 0.05  # nats per token (a factor of 1.05 in perplexity), or cosine distance


@dataclass(frozen=True)
class SweepView:
    """One sweep as the page shows it: title, sentences, charts, and the largest effects."""

    sweep: Sweep
    title: str
    sentences: tuple[str, ...]
    charts: tuple[Chart, ...]
    rows: tuple[Effect, ...]
    level: str

    @property
    def spent(self) -> int:
        """Evaluations of one text without those for controls, the gradient pass counted threefold."""
        cost = self.sweep.cost
        return cost.intact + cost.effects + 3 * cost.gradient_texts


def views(data: ReportData) -> tuple[SweepView, ...]:
    """Every sweep of the report."""
    made = []
    for place, sweep in enumerate(data.sweeps):
        title = _title(sweep)
        if len(data.sweeps) > 1:
            title += f": {sweep.measured}, {sweep.mode}" + (f", {sweep.stack}" if len(data.scan.stacks) > 1 else "")
        named = tuple(dict.fromkeys([*data.named(sweep.stack), *names(sweep)]))
        drawn = _charts(sweep, named, f"{place}-" if place else "")
        made.append(SweepView(sweep, title, sentences(sweep), drawn, sweep.top(TABLE), level(sweep)))
    return tuple(made)


def _title(sweep: Sweep) -> str:
    dims = {e.dims for e in sweep.singles()}
    if not dims:
        return "Sets of dimensions switched off"
    what = "Every dimension switched off" if len(dims) == sweep.width else "Single dimensions switched off"
    return what + (", by layer" if len(sweep.windows_swept) > 1 else "")


def _charts(sweep: Sweep, named: tuple[int, ...], prefix: str) -> tuple[Chart, ...]:
    one: list[Callable[[], Chart]] = [
        lambda: charts.sweep_effects(sweep, named=named, name=f"{prefix}sweep-effects"),
        lambda: charts.sweep_ranked(sweep, named=named, name=f"{prefix}sweep-ranked"),
        lambda: charts.sweep_first_order(sweep, named=named, name=f"{prefix}sweep-first-order"),
    ]
    several: list[Callable[[], Chart]] = [
        lambda: charts.sweep_map(sweep, named, name=f"{prefix}sweep-map"),
        lambda: charts.sweep_windows(sweep, named, name=f"{prefix}sweep-layers"),
    ]
    drawn = []
    for draw in (
        *(one if len(sweep.windows_swept) == 1 else several),
        lambda: charts.sweep_nulls(sweep, name=f"{prefix}sweep-nulls"),
    ):
        with suppress(BadInput):  # nothing of the kind was measured
            drawn.append(draw())
    return tuple(drawn)


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """The sweep in sentences, most important first; the first one stands alone."""
    singles = [e for e in sweep.singles() if math.isfinite(e.change)]
    said = [*_lost(sweep)]
    if singles:
        said += [_leader(sweep, singles), *_found(sweep, singles), _many(sweep, singles)]
    said += list(_sets(sweep))
    unfinished = sum(e.stopped == "unfinished" for e in sweep.effects)
    if unfinished:
        said.append(f"{unfinished:,} of {len(sweep.effects):,} effects are unfinished: their intervals are still wide.")
    elif singles and sweep.method == "adaptive" and not sweep.separated:
        said.append(f"The order of the {sweep.top_k} strongest is not settled.")
    return tuple(said) or ("Nothing was measured.",)


def _lost(sweep: Sweep) -> Iterator[str]:
    lost = [e.label for e in sweep.effects if not math.isfinite(e.change) and e.n_texts]
    if lost:
        yield f"With {listed(lost)} off, each on its own, the {sweep.measured} is infinite or undefined."


def _amount(sweep: Sweep, effect: Effect) -> str:
    """ "+8.4 nats per token (95 % interval +8 to +8.8; perplexity ×4,450)"; "0.64 → 0.61 (lost +0.03; 95 % interval …)"."""
    interval = f"{level(sweep)} interval {interval_text(effect.low, effect.high, '+.3g')}"
    if sweep.metric:
        before, after = (number(1 - value) for value in (sweep.intact, sweep.intact + effect.change))
        return f"{before} → {after} (lost {effect.change:+.3g}, {interval})"
    text = f"{effect.change:+.3g} {sweep.of_change} ({interval}"
    if sweep.task in TASKS:
        text += f"; {TASKS[sweep.task]} ×{factor(effect.change)}"
    return text + ")"


def _leader(sweep: Sweep, singles: list[Effect]) -> str:
    first, *rest = sorted(singles, key=lambda e: (-e.change, e.dims))
    n, windows = len({e.dims for e in singles}), len(sweep.windows_swept)
    among = f"{n:,} dimensions" if n > 1 else "one dimension"
    among += f" in each of {windows} layer windows" if windows > 1 else ""
    if first.low <= 0:
        return (
            f"Of {among} switched off one at a time none is shown to {'lower' if sweep.metric else 'change'} the "
            f"{sweep.measured}: the largest {'loss' if sweep.metric else 'change'}, {first.label}, is {_amount(sweep, first)}."
        )
    text = (
        f"Of {among} switched off one at a time, {first.label} {'lowers' if sweep.metric else 'changes'} the "
        f"{sweep.measured} most: {_amount(sweep, first)}"
    )
    other = next((e for e in rest if e.dims != first.dims), None)
    if other is None or other.change <= 0:
        return text + "."
    ratio = first.change / other.change
    times = f"{ratio:.3g} times" if ratio >= 1.95 else f"{ratio:.2f} times"
    return text + f", {times} the next, {other.label} ({other.change:+.3g})."


def _many(sweep: Sweep, singles: list[Effect]) -> str:
    limit = 2 * sweep.tolerance
    above = sum(e.low > limit for e in singles)
    what = "dimensions" if len(sweep.windows_swept) == 1 else "effects of one dimension in one layer window"
    lie = "lies" if above == 1 else "lie"
    unit = f"of {sweep.metric}" if sweep.metric else sweep.unit
    text = f"{above:,} of {len(singles):,} {what} {lie} above twice the tolerance ({limit:g} {unit}) "
    text += "with the whole interval"
    over = sum(e.change > limit for e in singles)
    text += f", {over:,} by their estimate" if over != above else ""
    plain = [e.change for e in singles if e.dims[0] not in sweep.found]
    return text + (f"; the median of those that the weights do not name is {np.median(plain):+.2g}." if plain else ".")


def _found(sweep: Sweep, singles: list[Effect]) -> Iterator[str]:
    found = [e for e in singles if e.dims[0] in sweep.found]
    if not found:
        if sweep.found and len(sweep.windows_swept) == 1:
            yield f"The weights name {listed(sorted(sweep.found))}, which were not switched off alone."
        elif not sweep.found:
            yield "The weights name no dimension here."
        return
    if len(sweep.windows_swept) > 1:
        best = {
            dim: max((e for e in found if e.dims == (dim,)), key=lambda e: e.change)
            for (dim,) in {e.dims for e in found}
        }
        said = [f"{best[dim].label} ({best[dim].change:+.3g})" for dim in sorted(best)[:NAMED_ONE_BY_ONE]]
        yield f"Where those that the weights name change it most: {listed(said)}."
        return
    order = sorted(singles, key=lambda e: (-e.change, e.dims))
    rank = {e.dims[0]: place for place, e in enumerate(order, 1)}
    found.sort(key=lambda e: rank[e.dims[0]])
    n, k = len(singles), len(found)
    if n < 2:
        return
    if all(rank[e.dims[0]] <= k for e in found):
        verdict = (
            "The weights had named the strongest one" if k == 1 else f"The weights had named exactly the {k} strongest"
        )
    elif rank[found[0].dims[0]] == 1:
        verdict = (
            f"The weights had named the strongest one, and {_inside(rank, found)} of their {k} are among the first {k}"
        )
    else:
        verdict = f"The strongest, {order[0].dims[0]}, is not one that the weights name"
    yield f"{verdict}: {listed([_standing(e, rank, n) for e in found[:NAMED_ONE_BY_ONE]])}."
    if any(e.times_random is not None for e in found):
        enough = sorted(e.dims[0] for e in found if e.times_random is not None and e.times_random >= ENOUGH)
        who = "none of them" if not enough else "all of them" if len(enough) == k > 1 else listed(enough)
        yield f"At least {ENOUGH:g} times the mean change of the other dimensions (Puccetti et al.’s measure): {who}."


def _inside(rank: dict[int, int], found: list[Effect]) -> int:
    return sum(rank[e.dims[0]] <= len(found) for e in found)


def _standing(effect: Effect, rank: dict[int, int], n: int) -> str:
    tests = [f"{mark} = {v:.2g}" for mark, v in (("p", effect.p), ("q", effect.q_found)) if v is not None]
    tests += [f"{effect.times_random:.3g} × the mean of the others"] if effect.times_random is not None else []
    return f"{effect.dims[0]} is number {rank[effect.dims[0]]:,} of {n:,}" + (f" ({', '.join(tests)})" if tests else "")


def _sets(sweep: Sweep) -> Iterator[str]:
    sets: dict[tuple[int, ...], Effect] = {}
    for e in sweep.effects:
        if len(e.dims) > 1 and math.isfinite(e.change) and (e.dims not in sets or e.change > sets[e.dims].change):
            sets[e.dims] = e
    for effect in sorted(sets.values(), key=lambda e: -e.change)[:3]:
        where = "" if effect.window == "all layers" else f", {effect.window}"
        text = f"{listed(effect.dims)} off together{where}: {_amount(sweep, effect)}"
        same = [n for n in sweep.nulls if (n.label, n.window) == (effect.label, effect.window) and n.changes]
        yield text + "".join(_against(null) for null in same) + "."


def _against(null: Null) -> str:
    what = {
        "random": "random sets",
        "ordinary": "sets without outliers",
        "matched": "sets of as extreme weights elsewhere",
    }.get(null.kind, null.kind)
    rank = "" if null.p is None else f" (rank p = {null.p:.2g})"
    return f"; {len(null.changes):,} {what}: {null.median:+.2g} in the median{rank}"


def heavy(sweep: Sweep) -> tuple[Effect, ...]:
    """Of each dimension whose change alone is `HEAVY` or more with its whole interval the largest effect, largest first."""
    best: dict[int, Effect] = {}
    for effect in sorted(sweep.singles(), key=lambda e: (-np.nan_to_num(e.change, nan=np.inf), e.dims)):
        if effect.low >= HEAVY or effect.change == math.inf or (math.isnan(effect.change) and effect.n_texts):
            best.setdefault(effect.dims[0], effect)
    return tuple(best.values())
