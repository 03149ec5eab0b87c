"""What every dimension does when it is switched off: in the papers' style, ranked, and beside the gradient's estimate.

sweep_effects(swept)                         # x = dimension, y = change; intervals, band of the ordinary ones, names
sweep_ranked(swept)                          # the same from the largest down, where the elbow shows
sweep_first_order(swept)                     # measured against the first-order estimate

Changes are drawn on a symmetric logarithmic scale where one is far above the rest; the axis says so. The scale, its axis
and the dots with their intervals are those of the other charts too.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.result import Effect, Sweep, names
from outlierlens.statistics.means import interval_text
from outlierlens.statistics.ranks import pearson, spearman
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    BAND,
    FAINT,
    MUTED,
    PLAIN_NUMBER,
    Chart,
    Range,
    Spec,
    begun,
    chart,
    field,
    label,
    looks,
    round_to,
    rounded,
    symmetric,
)
from outlierlens.view.charts.draw import dim_marks, names_beside
from outlierlens.view.section import few

BAND_FROM = 20  # fewer ordinary dimensions make no band of 5 to 95 %
HEIGHT = 330
ABOVE = 2  # of `PLACES`: a falling curve goes on to the right
COLUMNS = ("dimension", "change", "95 % from", "to", "texts", "stopped", "p", "q", "q among found", "× random")
MAX_MARKS = 1024  # ordinary dimensions drawn one by one
MAX_TICKS = 13


def sweep_effects(
    sweep: Sweep, window: str | None = None, named: Sequence[int] | None = None, *, name: str = "sweep-effects"
) -> Chart:
    """Change by dimension (Kovaleva et al. 2021, figure 2) with intervals, in one layer window (the first, unless given).

    `named` are the dimensions with a name and colour: those that the weights name and the strongest, unless given.

    Raises:
        BadInput: no single dimension was measured in the window.
    """
    window, effects = measured(sweep, window)
    named = names(sweep, window) if named is None else named
    plain = [e for e in effects if e.dims[0] not in named]
    drawn, thinned = thin(plain)
    marked = [e for e in effects if e.dims[0] in named]
    scale = scale_of(drawn + marked)
    x, y = draw.dim_axis(sweep.width), change_axis(sweep, scale)
    places = [(e.dims[0] / sweep.width, height_in(scale, e.change)) for e in marked]
    layers = [*_band(sweep, effects, y), *dots([row(e) for e in drawn], x, y, sweep)]
    rows = [row(e) for e in marked]
    layers += [*marks(rows, named, sweep, x, y), *names_beside(rows, places, sweep.found, x, y)]
    reading = f"Each dot is one {sweep.kind} switched off ({window}), each bar its {level(sweep)} interval. "
    reading += _largest(effects, sweep) + _ordinary(sweep, effects) + _names_say(sweep, marked) + thinned
    return chart(
        name=name,
        title=f"{begun(sweep.measured)} with one {sweep.kind} off at a time ({sweep.mode}, {window})",
        reading=reading + _lost(sweep, window),
        layers=layers,
        height=HEIGHT,
        columns=COLUMNS,
        rows=(_numbers(e) for e in sorted(effects, key=lambda e: -e.change)),
    )


def sweep_ranked(
    sweep: Sweep, window: str | None = None, named: Sequence[int] | None = None, *, name: str = "sweep-ranked"
) -> Chart:
    """Changes from the largest down, rank on a logarithmic scale: how many dimensions matter, and by how much."""
    window, effects = measured(sweep, window)
    named = names(sweep, window) if named is None else named
    ranked = sorted(effects, key=lambda e: (-e.change, e.dims))
    rank = {e.dims[0]: place for place, e in enumerate(ranked, 1)}
    drawn, thinned = thin([e for e in ranked if e.dims[0] not in named])
    marked = [e for e in ranked if e.dims[0] in named]
    scale = scale_of(drawn + marked)
    last = len(ranked)
    ticks = [tick for tick in (m * 10**p for p in range(7) for m in (1, 2, 5)) if tick <= last]
    axis = {"grid": False, "values": ticks, "labelExpr": PLAIN_NUMBER}
    across = {"type": "log", "domain": [0.85, last * 1.15], "nice": False}
    x, y = field("rank", f"rank of the {sweep.kind} (log scale)", scale=across, axis=axis), change_axis(sweep, scale)
    width = math.log(last * 1.15 / 0.85)
    places = [(math.log(rank[e.dims[0]] / 0.85) / width, height_in(scale, e.change)) for e in marked]
    rows = [row(e) | {"rank": rank[e.dims[0]]} for e in marked]
    layers = dots([row(e) | {"rank": rank[e.dims[0]]} for e in drawn], x, y, sweep)
    layers += [*marks(rows, named, sweep, x, y), *names_beside(rows, places, sweep.found, x, y, ABOVE)]
    above = [e for e in ranked if e.low > 2 * sweep.tolerance]
    reading = (
        f"The {last:,} {sweep.kind}s from the largest change down, with {level(sweep)} intervals. "
        f"{len(above):,} of them {'lies' if len(above) == 1 else 'lie'} above twice the tolerance "
        f"({2 * sweep.tolerance:g} {sweep.of_change}) with the whole interval. "
    )
    return chart(
        name=name,
        title=f"Ranked: how many {sweep.kind}s matter",
        reading=reading + _ranks_say(sweep, rank) + thinned + _lost(sweep, window),
        layers=layers,
        height=HEIGHT - 40,
        columns=("rank", *COLUMNS),
        rows=([rank[e.dims[0]], *_numbers(e)] for e in ranked),
    )


def sweep_first_order(
    sweep: Sweep, window: str | None = None, named: Sequence[int] | None = None, *, name: str = "sweep-first-order"
) -> Chart:
    """Measured change against the first-order (gradient) estimate of each dimension, with their correlations.

    Raises:
        BadInput: fewer than three dimensions have both.
    """
    window, effects = measured(sweep, window)
    effects = [e for e in effects if e.first_order is not None and math.isfinite(e.first_order)]
    if len(effects) < 3:
        raise BadInput("this sweep holds first-order estimates of fewer than three dimensions; sweep with gradients")
    named = names(sweep, window) if named is None else named
    drawn, thinned = thin([e for e in effects if e.dims[0] not in named])
    marked = [e for e in effects if e.dims[0] in named]
    estimates = np.array([e.first_order for e in effects], dtype=float)
    changes = np.array([e.change for e in effects])
    across, up = scale_from(np.append(estimates, 0.0)), scale_of(effects)
    title = titled("first-order estimate from gradients", sweep, across)
    x = field("first", title, scale=across.scale, axis=across.axis or {"tickCount": 8})
    y = change_axis(sweep, up, "measured change")
    low, high = max(estimates.min(), changes.min()), min(estimates.max(), changes.max())
    equal = [{"first": round_to(v), "change": round_to(v)} for v in _line(low, high)]
    line: Spec = draw.line(equal, x=x, y=y | {"field": "change"}, color=MUTED, strokeDash=draw.DASHED)
    places = [(height_in(across, float(e.first_order or 0)), height_in(up, e.change)) for e in marked]
    rows = [row(e) for e in marked]
    layers = [line, *dots([row(e) for e in drawn], x, y, sweep), *marks(rows, named, sweep, x, y)]
    layers += names_beside(rows, places, sweep.found, x, y)
    r, rho = pearson(estimates, changes), float(spearman(estimates, changes))
    strongest = max(effects, key=lambda e: abs(e.change))
    reading = (
        f"One backward pass over {sweep.cost.gradient_texts:,} texts estimates every dimension at once; on the dashed "
        f"line estimate and measurement are equal. Pearson r = {r:.2f}, Spearman r = {rho:.2f} over "
        f"{len(effects):,} dimensions. {few(strongest.dims)}: estimated {strongest.first_order:+.3g}, measured "
        f"{strongest.change:+.3g}. The estimate orders the work and narrows intervals; it is never the result. "
    )
    return chart(
        name=name,
        title="Measured against the gradient's estimate",
        reading=(reading + thinned).strip(),
        layers=layers,
        height=HEIGHT,
        columns=("off", "first order", "measured", f"{level(sweep)} from", "to"),
        rows=(
            [e.label, round_to(float(e.first_order or 0)), round_to(e.change), round_to(e.low), round_to(e.high)]
            for e in sorted(effects, key=lambda e: -abs(e.change))
        ),
    )


def _numbers(e: Effect) -> list[str | int | float | None]:
    figures = [round_to(v) for v in (e.change, e.low, e.high)]
    tests = [None if v is None else round_to(v, 3) for v in (e.p, e.q, e.q_found, e.times_random)]
    return [e.label, *figures, e.n_texts, e.stopped, *tests]


def _band(sweep: Sweep, effects: list[Effect], y: Spec) -> list[Spec]:
    """Where the middle nine tenths of the dimensions lie that the weights do not name, and their median."""
    changes = np.array([e.change for e in effects if e.dims[0] not in sweep.found])
    if len(changes) < BAND_FROM:
        return []
    low, middle, high = np.percentile(changes, (5, 50, 95))
    band = [rounded(change=low, to=high, middle=middle)]
    return [
        draw.rect(band, **draw.between("change", "to", y=y), color=BAND, opacity=0.55),
        draw.rule(band, y=y | {"field": "middle"}, color=MUTED, strokeDash=[5, 3]),
    ]


def _largest(effects: list[Effect], sweep: Sweep) -> str:
    first = sorted(effects, key=lambda e: (-e.change, e.dims))[:3]
    said = [f"{e.dims[0]} {e.change:+.3g} ({interval_text(e.low, e.high, '+.3g')})" for e in first]
    return f"Largest: {', '.join(said)} {sweep.of_change}. "


def _ordinary(sweep: Sweep, effects: list[Effect]) -> str:
    changes = np.array([e.change for e in effects if e.dims[0] not in sweep.found])
    if len(changes) < BAND_FROM:
        return ""
    low, middle, high = np.percentile(changes, (5, 50, 95))
    return (
        f"Of the {len(changes):,} dimensions that the weights do not name the middle 90 % lie between {low:+.2g} and "
        f"{high:+.2g} (band), the median is {middle:+.2g} (dashes). "
    )


def _names_say(sweep: Sweep, marked: list[Effect]) -> str:
    found = [e.dims[0] for e in marked if e.dims[0] in sweep.found]
    rest = [e.dims[0] for e in marked if e.dims[0] not in sweep.found]
    text = f"Bold numbers: named by the weights beforehand ({few(found)}). " if found else ""
    if not rest:
        return text
    top = set(names(sweep, marked[0].window)) >= set(rest)
    return (
        text
        + f"Other numbers: among the {sweep.top_k} largest{'' if top else ', or named by what else was measured'}. "
    )


def _ranks_say(sweep: Sweep, rank: dict[int, int]) -> str:
    said = [f"{dim} is number {rank[dim]:,}" for dim in sweep.found if dim in rank]
    return f"Of the dimensions that the weights name (bold), {', '.join(said)}. " if said else ""


def _lost(sweep: Sweep, window: str) -> str:
    dims = [e.dims[0] for e in sweep.singles(window) if not math.isfinite(e.change)]
    if not dims:
        return ""
    return f"With {few(dims)} off the {sweep.measured} is infinite or undefined, which no scale can show."


def _line(low: float, high: float) -> list[float]:
    """Points of the line of equality; many, because two different symmetric scales bend it."""
    return np.unique(np.concatenate([np.linspace(low, high, 60), *_decades(low, high)])).tolist() if low < high else []


def _decades(low: float, high: float) -> list[np.ndarray]:
    top = max(abs(low), abs(high))
    sizes = np.geomspace(top / 1e4, top, 40)
    return [
        sizes[(sizes >= low) & (sizes <= high)],
        -sizes[(-sizes >= low) & (-sizes <= high)],
        np.zeros(int(low <= 0 <= high)),
    ]


def measured(sweep: Sweep, window: str | None) -> tuple[str, list[Effect]]:
    """The window (the first, where None) and its single dimensions with a finite change; raises BadInput for none."""
    swept = sweep.windows_swept
    window = window if window is not None else swept[0] if swept else ""
    if window not in swept:
        raise BadInput(f"no window {window!r} in this sweep; it has {', '.join(swept) or 'none'}")
    effects = [e for e in sweep.singles(window) if math.isfinite(e.change)]
    if not effects:
        raise BadInput(f"no single dimension was measured in {window}; sweep without dims=() to draw dimensions")
    return window, effects


def thin(effects: Sequence[Effect]) -> tuple[list[Effect], str]:
    """All effects, or of more than `MAX_MARKS` the half that is most extreme and an even sample; with words that say so."""
    if len(effects) <= MAX_MARKS:
        return list(effects), ""
    extreme = sorted(range(len(effects)), key=lambda i: -abs(effects[i].change))[: MAX_MARKS // 2]
    rest = sorted(set(range(len(effects))) - set(extreme))
    # Not every n-th: a step that divides the width of a head would see the same place of every head.
    sample = {rest[int((k * 0.6180339887) % 1 * len(rest))] for k in range(MAX_MARKS // 2)}
    kept = [effects[i] for i in sorted({*extreme, *sample})]
    text = (
        f"Drawn are the {len(extreme):,} largest changes of the {len(effects):,} dimensions without a name and an even "
        f"sample of {len(sample):,} of the others; band, ranks and counts are of all. "
    )
    return kept, text


def scale_of(effects: Iterable[Effect]) -> Range:
    """The scale of changes and their intervals, zero among them."""
    effects = list(effects)
    ends = [end for e in effects for end in (e.low, e.high) if math.isfinite(end)]
    return scale_from(np.array([e.change for e in effects] + [0.0]), np.array(ends))


def scale_from(values: np.ndarray, ends: np.ndarray | None = None) -> Range:
    """`symmetric` over values and the `ends` of intervals, with ticks at 1 and 3 of each decade."""
    everything = values if ends is None else np.concatenate([values, ends])
    scale = symmetric(everything, factor=30.0)
    if not scale.log:
        low, high = float(everything.min()), float(everything.max())
        pad = 0.06 * (high - low) or 1.0
        domain = [round_to(low - pad if low < 0 else 0.0), round_to(high + pad)]
        return Range({"domain": domain, "nice": False}, {}, False)
    low, high = scale.scale["domain"]
    constant, top = scale.scale["constant"], max(-low, high)
    powers = range(math.floor(math.log10(constant)), math.ceil(math.log10(top)) + 1)
    for steps in ((1, 3), (1,)):
        sizes = [float(f"{m}e{p}") for p in powers for m in steps if 0.9 * constant <= m * 10.0**p]
        ticks = [-s for s in reversed(sizes) if -s >= low] + [0.0] + [s for s in sizes if s <= high]
        if len(ticks) <= MAX_TICKS:
            break
    else:
        ticks = scale.axis["values"]
    return Range(scale.scale, {"values": ticks, "labelExpr": PLAIN_NUMBER, "labelOverlap": "greedy"}, True)


def stated(scale: Range) -> str:
    """What an axis title says of the scale: nothing where it is linear."""
    return f"symmetric log scale, near linear within ±{scale.scale['constant']:.2g}" if scale.log else ""


def change_axis(sweep: Sweep, scale: Range, what: str = "") -> Spec:
    """The y encoding of a change."""
    title = titled(what, sweep, scale)
    return field("change", title, scale=scale.scale, axis=scale.axis or {"tickCount": 7})


def titled(what: str, sweep: Sweep, scale: Range) -> list[str]:
    """An axis title of one or two lines: one long line would be cut off on a narrow screen.

    `what` is the change of what was measured where it is "".
    """
    change = f"lost {sweep.measured}" if sweep.metric else f"change of the {sweep.task}, {sweep.of_change}"
    return [f"{what}, {sweep.of_change}" if what else change, *([stated(scale)] if scale.log else [])]


def level(sweep: Sweep) -> str:
    """The level of the intervals: "95 %"."""
    return f"{100 * sweep.level:g} %"


def height_in(scale: Range, value: float) -> float:
    """Where a value stands on the scale, from 0 to 1."""
    low, high = scale.scale["domain"]
    if scale.log:
        constant = scale.scale["constant"]
        low, high, value = (math.copysign(math.log1p(abs(v) / constant), v) for v in (low, high, value))
    return (value - low) / (high - low)


def row(effect: Effect) -> Spec:
    """An effect as a datum of a chart."""
    made: Spec = {"off": effect.label, "dim": effect.dims[0], "texts": effect.n_texts}
    made |= rounded(change=effect.change, low=effect.low, high=effect.high)
    for key, value in (("p", effect.p), ("q", effect.q), ("qf", effect.q_found), ("first", effect.first_order)):
        if value is not None:
            made[key] = round_to(value, 3)
    return made


def tooltip(sweep: Sweep, rows: Sequence[Spec]) -> list[Spec]:
    """What hovering over one of these dimensions shows: what each of them has."""
    optional = {"p": "rank p", "q": "q, all dimensions", "qf": "q, named by the weights", "first": "first order"}
    return draw.columns(
        off="off:N", change=f"change, {sweep.of_change}", low=f"{level(sweep)} from", high="to", texts="texts",
        **{key: title for key, title in optional.items() if rows and all(key in one for one in rows)},
    )  # fmt: skip


def dots(rows: list[Spec], x: Spec, y: Spec, sweep: Sweep) -> list[Spec]:
    """The dimensions without a name: a dot and a thin bar each."""
    faint = {"color": FAINT, "strokeWidth": 1, "opacity": 0.55 if len(rows) <= 256 else 0.35}
    return [
        draw.sharing(
            rows,
            draw.rule(None, draw.SETTLED, x=x, **draw.between(y=y), **faint),
            draw.circle(None, x=x, y=y, tooltip=tooltip(sweep, rows), color=MUTED, size=22, opacity=0.75),
        )
    ]


def marks(rows: list[Spec], named: Sequence[int], sweep: Sweep, x: Spec, y: Spec) -> list[Spec]:
    """The named dimensions, data of `row`: mark and interval in their colour and shape, or in ink."""
    shown = looks(named, [one["dim"] for one in rows])
    colour = draw.dim_colour(shown, legend=False)
    layers: list[Spec] = []
    for of_weights in (True, False):  # apart, because only those that the weights name have a q among them
        some = [one | {"name": label(one["dim"])} for one in rows if ("qf" in one) == of_weights]
        if some:
            bars = draw.rule(None, draw.SETTLED, x=x, **draw.between(y=y), color=colour, strokeWidth=2)
            layers.append(draw.sharing(some, bars, *dim_marks(None, shown, x, y, tooltip(sweep, some), size=80)))
    return layers
