"""The parts that the charts of a sweep share: their scale, their dots with intervals, and names that do not collide."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    PLAIN_NUMBER,
    Range,
    Spec,
    field,
    label,
    looks,
    round_to,
    rounded,
    symmetric,
)
from outlierlens.view.charts.forms import dim_marks
from outlierlens.view.charts.palette import FAINT, MUTED

MAX_MARKS = 1024  # ordinary dimensions drawn one by one
MAX_TICKS = 13


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
