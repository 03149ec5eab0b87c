"""What every dimension does when it is switched off: in the papers' style, ranked, and beside the gradient's estimate.

sweep_effects(swept)                         # x = dimension, y = change; intervals, band of the ordinary ones, names
sweep_ranked(swept)                          # the same from the largest down, where the elbow shows
sweep_first_order(swept)                     # measured against the first-order estimate

Changes are drawn on a symmetric logarithmic scale where one is far above the rest; the axis says so.
"""

import math
from collections.abc import Sequence

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts_marks import (
    change_axis,
    dots,
    height_in,
    level,
    marks,
    measured,
    row,
    scale_from,
    scale_of,
    thin,
    titled,
)
from outlierlens.experiments.sweep.result import Effect, Sweep, names
from outlierlens.statistics.ranks import pearson, spearman
from outlierlens.statistics.words import interval_text
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import PLAIN_NUMBER, Chart, Spec, begun, chart, field, round_to, rounded
from outlierlens.view.charts.dim_names import names_beside
from outlierlens.view.charts.palette import BAND, MUTED
from outlierlens.view.words import few

BAND_FROM = 20  # fewer ordinary dimensions make no band of 5 to 95 %
HEIGHT = 330
ABOVE = 2  # of `PLACES`: a falling curve goes on to the right
COLUMNS = ("dimension", "change", "95 % from", "to", "texts", "stopped", "p", "q", "q among found", "× random")


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
    reading = f"Each dot is one dimension switched off ({window}), each bar its {level(sweep)} interval. "
    reading += _largest(effects, sweep) + _ordinary(sweep, effects) + _names_say(sweep, marked) + thinned
    return chart(
        name=name,
        title=f"{begun(sweep.measured)} with one dimension off at a time ({sweep.mode}, {window})",
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
    x, y = field("rank", "rank of the dimension (log scale)", scale=across, axis=axis), change_axis(sweep, scale)
    width = math.log(last * 1.15 / 0.85)
    places = [(math.log(rank[e.dims[0]] / 0.85) / width, height_in(scale, e.change)) for e in marked]
    rows = [row(e) | {"rank": rank[e.dims[0]]} for e in marked]
    layers = dots([row(e) | {"rank": rank[e.dims[0]]} for e in drawn], x, y, sweep)
    layers += [*marks(rows, named, sweep, x, y), *names_beside(rows, places, sweep.found, x, y, ABOVE)]
    above = [e for e in ranked if e.low > 2 * sweep.tolerance]
    reading = (
        f"The {last:,} dimensions from the largest change down, with {level(sweep)} intervals. "
        f"{len(above):,} of them {'lies' if len(above) == 1 else 'lie'} above twice the tolerance "
        f"({2 * sweep.tolerance:g} {sweep.of_change}) with the whole interval. "
    )
    return chart(
        name=name,
        title="Ranked: how many dimensions matter",
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
