"""What is said of a sweep, by rule from its numbers: `sections(found)`, for terminal, page and notebook.

sentences(swept)                             # who leads, how many matter, whether the weights had named them
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts import level
from outlierlens.experiments.sweep.result import Effect, Null, Sweep, names
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.means import interval_text
from outlierlens.view import charts
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import (
    TASKS,
    Change,
    Interval,
    P,
    Rows,
    Section,
    cell_text,
    duration,
    factor,
    few,
    listed,
    number,
    number_of_layers,
    percent,
)

Mark = Literal["rank", "5x"]
TABLE, MORE, CONTROLS = 20, 50, 10  # rows
ENOUGH = 5.0  # times the mean of random dimensions, which Puccetti et al. (2022) ask for
NAMED_ONE_BY_ONE = 6
SPELT = 6  # dimensions of a set that a table spells out
MEANING = {
    "rank": (
        f"A star: rank test at {percent(SIGNIFICANT)}, of dimensions that the weights named and, among random ones, of sets "
        "and listed dimensions (Benjamini–Hochberg over each)."
    ),
    "5x": "A star: at least 5 times the mean of random dimensions or sets (Puccetti et al. 2022).",
}


def sections(
    found: Sweep, *, verbose: bool = False, mark: Mark = "rank", named: Sequence[int] = ()
) -> Iterator[Section]:
    """Who leads, what was measured and at what cost, the largest effects and the controls; with `verbose` more rows.

    `mark` says which rows have a star; `named` are dimensions that charts name beside the sweep's own.
    """
    tables = [_effects(found, MORE if verbose else TABLE, mark)] if found.effects else []
    tables += [_nulls(found, MORE if verbose else CONTROLS)] if found.nulls else []
    said = (*sentences(found), *_what(found), *_cost(found))
    drawn = _charts(found, tuple(dict.fromkeys([*named, *names(found)])))
    yield Section("sweep", f"{_title(found)}: {found.measured}", said, drawn, tuple(tables))


def _title(sweep: Sweep) -> str:
    dims = {e.dims for e in sweep.singles()}
    if not dims:
        return f"Sets of {sweep.kind}s switched off"
    what = f"Every {sweep.kind} switched off" if len(dims) == sweep.width else f"Single {sweep.kind}s switched off"
    return what + (", by layer" if len(sweep.windows_swept) > 1 else "")


def _charts(sweep: Sweep, named: tuple[int, ...]) -> tuple[Chart, ...]:
    one: list[Callable[[], Chart]] = [
        lambda: charts.sweep_effects(sweep, named=named),
        lambda: charts.sweep_ranked(sweep, named=named),
        lambda: charts.sweep_first_order(sweep, named=named),
    ]
    several: list[Callable[[], Chart]] = [
        lambda: charts.sweep_map(sweep, named),
        lambda: charts.sweep_windows(sweep, named),
    ]
    drawn = []
    for draw in (*(one if len(sweep.windows_swept) == 1 else several), lambda: charts.sweep_nulls(sweep)):
        with suppress(BadInput):  # nothing of the kind was measured
            drawn.append(draw())
    return tuple(drawn)


def sentences(sweep: Sweep) -> tuple[str, ...]:
    """The sweep in sentences, most important first; the first one stands alone."""
    singles = [e for e in sweep.singles() if math.isfinite(e.change)]
    said = [*_lost(sweep)]
    said += [_leader(sweep, singles)] if singles else []
    said += [*_found(sweep, singles), *([_many(sweep, singles)] if singles else []), *_sets(sweep)]
    unfinished = sum(e.stopped == "unfinished" for e in sweep.effects)
    if unfinished:
        said.append(f"{unfinished:,} of {len(sweep.effects):,} effects are unfinished: their intervals are still wide.")
    elif singles and sweep.method == "adaptive" and sweep.top_k:
        settled = "settled" if sweep.separated else "not settled"
        said.append(f"The order of the {sweep.top_k} strongest is {settled}.")
    return tuple(said) if sweep.effects else ("Nothing was measured.",)


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
    among = f"{n:,} {sweep.kind}s" if n > 1 else f"one {sweep.kind}"
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
    what = f"{sweep.kind}s" if len(sweep.windows_swept) == 1 else f"effects of one {sweep.kind} in one layer window"
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
        if sweep.found and singles and len(sweep.windows_swept) == 1:
            yield f"The weights name {listed(sorted(sweep.found))}, which were not switched off alone."
        elif not sweep.found and sweep.kind == "dimension":
            yield "The weights name no dimension here."
        return
    if len(sweep.windows_swept) > 1:
        best = {
            dim: max((e for e in found if e.dims == (dim,)), key=lambda e: e.change)
            for (dim,) in {e.dims for e in found}
        }
        said = [_ranked(best[dim], singles) for dim in sorted(best)[:NAMED_ONE_BY_ONE]]
        yield f"Where those that the weights name change it most: {listed(said)}{_and_more(len(best))}."
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
    yield f"{verdict}: {listed([_standing(e, rank, n) for e in found[:NAMED_ONE_BY_ONE]])}{_and_more(k)}."
    if any(e.times_random is not None for e in found):
        enough = sorted(e.dims[0] for e in found if e.times_random is not None and e.times_random >= ENOUGH)
        who = "none of them" if not enough else "all of them" if len(enough) == k > 1 else listed(enough)
        yield f"At least {ENOUGH:g} times the mean change of the other {sweep.kind}s (Puccetti et al.’s measure): {who}."


def _and_more(n: int) -> str:
    return f" and {n - NAMED_ONE_BY_ONE:,} more" if n > NAMED_ONE_BY_ONE else ""


def _ranked(effect: Effect, singles: list[Effect]) -> str:
    there = [e.change for e in singles if e.window == effect.window]
    rank = 1 + sum(change > effect.change for change in there)
    return f"{effect.label} ({effect.change:+.3g}, number {rank:,} of {len(there):,} there)"


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


def _what(sweep: Sweep) -> Iterator[str]:
    what = sweep.measured if sweep.metric else f"{sweep.task} in {sweep.unit}"
    tokens = f" ({sweep.n_tokens:,} tokens)" if sweep.n_tokens > sweep.n_texts else ""
    intact = f"; intact {_intact(sweep)}" if sweep.has_intact else ""
    yield (
        f"{sweep.provenance.model} on {sweep.data}: {what} of {sweep.n_texts:,} texts{tokens}, where a text "
        f"is {article(sweep.text)} {sweep.text}{intact}."
    )
    windows = sweep.windows_swept
    shown = (
        windows[0] if len(windows) == 1 else f"{len(windows)} windows ({windows[0]} … {windows[-1]})" if windows else ""
    )
    yield (
        f"Switched off by {sweep.mode} in stream {sweep.stack} of {number_of_layers(sweep.n_layers)} × {sweep.width:,} "
        f"{sweep.kind}s{f': {shown}' if shown else ''}."
    )
    if sweep.together:
        yield sweep.together.said
    if sweep.method == "adaptive":
        yield f"Measured until the interval is within ± {sweep.tolerance:g} or ± {percent(sweep.relative)} of the change."
    yield from _screened(sweep)


def article(words: str) -> str:
    """ "a" or "an"."""
    return "an" if words[:1] in "aeiou" else "a"


def _intact(sweep: Sweep) -> str:
    """The intact model's value with its interval; of a metric the metric itself."""
    value, low, high = sweep.intact, sweep.intact_low, sweep.intact_high
    if sweep.metric:
        value, low, high = 1 - value, 1 - high, 1 - low
    interval = f" ({cell_text(low)} to {cell_text(high)})" if math.isfinite(high - low) else ""
    return cell_text(value) + interval


def _screened(sweep: Sweep) -> Iterator[str]:
    """What a screened sweep left out, and how sure that is."""
    if sweep.screening is None:
        return
    of = sweep.screening
    if of.measured == of.pairs:
        yield f"Screening left nothing out: all {of.pairs:,} pairs of text and ablation were measured."
        return
    audited = (
        f" Of {of.audited:,} that could have been left out and were drawn at random to be measured {of.flipped:,} had changed: "
        f"at most {100 * of.bound:.2f} % of all left out, at confidence 0.95."
        if of.audited
        else ""
    )
    yield (
        f"Measured on {percent(of.measured / max(1, of.pairs))} of {of.pairs:,} pairs of text and ablation: the others keep "
        f"their predicted class to first order ({of.safety:g} times over).{audited} --exact measures all."
    )


def _cost(sweep: Sweep) -> Iterator[str]:
    cost = sweep.cost
    parts = [f"{cost.effects:,} for effects", f"{cost.nulls:,} for controls", f"{cost.intact:,} intact"]
    if cost.gradient_texts:
        parts.append(f"3 × {cost.gradient_texts:,} for gradients")
    took = f" in {duration(cost.seconds)}" if cost.seconds else ""
    yield f"Cost: {cost.total:,} evaluations of a text ({', '.join(parts)}), {cost.tokens:,} tokens{took}."
    if sweep.method == "adaptive" and math.isfinite(cost.saving):
        yield (
            f"Measuring every effect on every text takes {cost.exact:,}, {number(cost.saving)} times what was spent here "
            "(controls apart)."
        )
    if sweep.precision:
        of = sweep.precision
        unit = f" {sweep.of_change}" if of.of == "changes" else ""
        yield f"Computed in {of.dtype}: {of.said}{unit} ({of.over})."


def _effects(sweep: Sweep, most: int, mark: Mark) -> Rows:
    """The largest effects; columns that say nothing of any of them are left out."""
    shown = sweep.top(most)
    heads = (
        *("off", "change", f"{level(sweep)} interval", "texts", "stopped", "p", "q", "q among named", "× random"),
        *("first order", "by weights"),
    )
    rows = [_row(effect, sweep, mark) for effect in shown]
    kept = [place for place, _ in enumerate(heads) if any(row[place] is not None for row in rows)]
    what = f"Changes: lost {sweep.measured}" if sweep.metric else f"Changes in {sweep.unit}"
    stars = f" {MEANING[mark]}" if any(stands_out(effect, sweep, mark) for effect in shown) else ""
    q = any(effect.q is not None for effect in shown)
    why = (
        " “q” over all dimensions can hardly reject anything, whatever the effects: ranks among the very dimensions tested are "
        "spread evenly by construction. “q among named” is the test that was decided beforehand, over the dimensions alone "
        "that the weights name."
    )
    return Rows(
        f"Largest changes of {len(sweep.effects):,}",
        tuple(heads[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in rows),
        f"{what} against the intact model, the largest first.{stars}{why if q else ''}",
    )


def _row(effect: Effect, sweep: Sweep, mark: Mark) -> tuple[Any, ...]:
    among = random_null(sweep, effect)
    p = effect.p if effect.p is not None else among.p if among else None
    off = effect.label if len(effect.dims) <= SPELT else f"{few(effect.dims, SPELT)} ({effect.window})"
    return (
        f"{off} *" if stands_out(effect, sweep, mark) else off,
        _change(effect.change),
        Interval(effect.low, effect.high) if math.isfinite(effect.change) else None,
        effect.n_texts,
        effect.stopped,
        *(None if value is None else P(value) for value in (p, effect.q, effect.q_found)),
        effect.times_random,
        None if effect.first_order is None or sweep.method != "adaptive" else Change(effect.first_order),
        set(effect.dims) <= set(sweep.found),
    )


def _change(value: float) -> Change | str:
    """A change, or what a model that broke down gives."""
    if math.isfinite(value):
        return Change(0.0 if abs(value) < 1e-12 else value)  # a mean of changes that cancel is 0 but for rounding
    return "broken" if math.isnan(value) else "+∞" if value > 0 else "−∞"


def _nulls(sweep: Sweep, most: int) -> Rows:
    strongest = sorted(sweep.nulls, key=lambda null: -_orderable(null.change))[:most]
    kept = [null for null in sweep.nulls if any(null is one for one in strongest)]
    rows = tuple(
        (
            null.label,
            null.kind,
            len(null.changes),
            null.n_texts,
            *map(_change, (null.change, null.median, null.percentile_95, null.mean)),
            null.times_mean,
            None if null.p is None else P(null.p),
        )
        for null in kept
    )
    heads = ("off", "control", "n", "texts", "change", "median", "95th percentile", "mean", "× mean", "rank p")
    left = len(sweep.nulls) - len(kept)
    note = f"{left:,} more in the results." if left else ""
    return Rows("Against control sets, on the same texts", heads, rows, note)


def _orderable(change: float) -> float:
    """NaN, a model that broke down, above every number."""
    return math.inf if math.isnan(change) else change


def stands_out(effect: Effect, sweep: Sweep, mark: Mark) -> bool:
    """Whether an effect has a star.

    By rank that is asked only of what was named before measuring: the weights' dimensions (q_found), and sets and listed
    dimensions (q among random ones). Of all dimensions some are the largest in any model: their own ranks say nothing.
    """
    if mark == "5x":
        return effect.times_random is not None and effect.times_random >= ENOUGH
    if effect.q_found is not None:
        return effect.q_found <= SIGNIFICANT
    among = random_null(sweep, effect)
    return among is not None and among.q is not None and among.q <= SIGNIFICANT


def random_null(sweep: Sweep, effect: Effect) -> Null | None:
    """The comparison with random sets (or dimensions), where there is one."""
    found = (n for n in sweep.nulls if n.kind == "random" and (n.label, n.window) == (effect.label, effect.window))
    return next(found, None)
