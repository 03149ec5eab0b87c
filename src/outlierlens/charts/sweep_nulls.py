"""Every set of a sweep among its control sets: `sweep_nulls(swept)`."""

import math

import numpy as np

from outlierlens.charts.base import Chart, Spec, chart, field, round_to
from outlierlens.charts.dim_names import HALO
from outlierlens.charts.losses import GOLDEN
from outlierlens.charts.palette import ALARM, INK, MUTED, SURFACE
from outlierlens.charts.sweep_marks import scale_from, titled
from outlierlens.errors import BadInput
from outlierlens.swept import Null, Sweep

MAX_NULLS = 12  # strips
SHORT = 34  # characters of a strip's name
MAX_CONTROLS = 300  # dots of one strip


def sweep_nulls(sweep: Sweep, *, name: str = "sweep-nulls") -> Chart:
    """Each set's change among the changes of its control sets, on the same texts, with its rank p-value.

    Raises:
        BadInput: nothing was compared with controls.
    """
    nulls = [null for null in sweep.nulls if null.changes and null.kind != "ordinary"]  # most of those are random ones
    if not nulls:
        raise BadInput("this sweep holds no control sets; sweep a set, with n_random or n_matched above 0")
    nulls = [null for null in nulls if any(map(math.isfinite, (null.change, *null.changes)))]
    if not nulls:
        raise BadInput("no change of this sweep's sets is a number, so there is nothing to draw")
    kept = sorted(nulls, key=lambda null: -np.nan_to_num(null.change, nan=np.inf))[:MAX_NULLS]
    kept = [null for null in nulls if any(null is one for one in kept)]
    families = [_family(null) for null in kept]
    dots: list[Spec] = [
        {"family": family, "change": round_to(change), "spread": round((0.5 + i * GOLDEN) % 1, 3)}
        for null, family in zip(kept, families, strict=True)
        for i, change in enumerate(quantiles(null.changes))
        if math.isfinite(change)
    ]
    chosen: list[Spec] = [
        {
            "family": f,
            "change": round_to(n.change),
            "p": None if n.p is None else round_to(n.p, 3),
            "texts": n.n_texts,
            "says": "" if n.p is None else f"p = {n.p:.2g}",
        }
        for n, f in zip(kept, families, strict=True)
        if math.isfinite(n.change)
    ]
    scale = scale_from(np.array([d["change"] for d in dots + chosen] + [0.0], dtype=float))
    title = titled("", sweep, scale)
    padding = {} if scale.log else {"padding": 18}
    x = field("change", title, scale=scale.scale | padding, axis=scale.axis or {"tickCount": 8})
    y: Spec = {
        "field": "family",
        "type": "nominal",
        "title": None,
        "sort": families,
        "axis": {
            "labelExpr": "split(datum.label, '|')",
            "labelLimit": 220,
            "ticks": False,
            "domain": False,
            "labelColor": INK,
            "labelPadding": 8,
        },
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.2},
    }
    jitter = {"field": "spread", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": None}
    tooltip = [field("family", "set and controls", "nominal"), field("change", "change")]
    more = [*tooltip, field("p", "rank p"), field("texts", "texts")]
    ends = [d["change"] for d in dots + chosen] or [0.0]
    middle = (min(ends) + max(ends)) / 2
    layers: list[Spec] = [
        {
            "data": {"values": [{"change": 0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": x},
        },
        {
            "data": {"values": dots},
            "mark": {"type": "circle", "size": 30, "color": MUTED, "opacity": 0.5},
            "encoding": {"x": x, "y": y, "yOffset": jitter, "tooltip": tooltip},
        },
        {
            "data": {"values": chosen},
            "mark": {"type": "point", "shape": "diamond", "size": 150, "color": ALARM, "filled": True, "opacity": 1},
            "encoding": {"x": x, "y": y, "tooltip": more},
        },
    ]
    for right in (True, False):
        said = [one for one in chosen if (one["change"] > middle) == right]
        at = {"type": "text", "align": "right" if right else "left", "dx": -11 if right else 11, "fontWeight": 700}
        says = {"x": x, "y": y, "text": {"field": "says", "type": "nominal"}}
        layers += [
            {"data": {"values": said}, "mark": at | HALO | {"color": SURFACE}, "encoding": says},
            {"data": {"values": said}, "mark": at | {"color": ALARM}, "encoding": says},
        ]
    return chart(
        name=name,
        title="Against control sets of the same size",
        reading=_say(sweep, nulls, kept),
        layers=layers,
        height=40 + (58 if len(kept) <= 8 else 40) * len(kept),
        columns=("set", "window", "controls", "number", "texts", "change", "rank p", "median", "95th percentile"),
        rows=(
            [
                n.label,
                n.window,
                n.kind,
                len(n.changes),
                n.n_texts,
                round_to(n.change),
                None if n.p is None else round_to(n.p),
                *map(round_to, (n.median, n.percentile_95)),
            ]
            for n in nulls
        ),
    )


def _family(null: Null) -> str:
    where = "" if null.window == "all layers" or null.window in null.label else f", {null.window}"
    return f"{_short(null.label)}{where}|{len(null.changes):,} {null.kind} sets"


def _short(label: str) -> str:
    return label if len(label) <= SHORT else label[: SHORT - 1] + "…"


def quantiles(changes: tuple[float, ...], most: int = MAX_CONTROLS) -> list[float]:
    """At most that many of the sorted changes, evenly by rank, both ends among them."""
    if len(changes) <= most:
        return list(changes)
    return [changes[i] for i in np.linspace(0, len(changes) - 1, most).round().astype(int)]


def _say(sweep: Sweep, nulls: list[Null], kept: list[Null]) -> str:
    text = "Dots: the change with each control set off; diamond: with the set itself off, on the same texts. "
    first = max(kept, key=lambda null: np.nan_to_num(null.change, nan=-np.inf))
    text += (
        f"{first.label}: {first.change:+.3g} {sweep.of_change}, its {len(first.changes):,} controls ({first.kind}) "
        f"{first.median:+.3g} in the median, {first.percentile_95:+.3g} at the 95th percentile"
    )
    text += f", {first.times_mean:.3g} times their mean" if first.times_mean is not None else ""
    if first.p is not None:
        text += f"; rank p {first.p:.2g}, which can be {1 / (1 + len(first.changes)):.2g} at best"
    text += ". "
    matched = [null for null in kept if null.kind == "matched" and null.closeness is not None]
    if matched:
        worst = min(matched, key=lambda null: null.closeness or 0.0)
        text += (
            f"Matched weights elsewhere reach {100 * (worst.closeness or 0.0):.0f} % of the magnitudes wanted or more. "
        )
    if any(len(null.changes) > MAX_CONTROLS for null in kept):
        text += f"Of more than {MAX_CONTROLS} controls that many are drawn, evenly by rank, both ends among them. "
    if len(kept) < len(nulls):
        text += f"The {len(kept)} largest sets of {len(nulls)} are drawn. "
    return text.strip()
