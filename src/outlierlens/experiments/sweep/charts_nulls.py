"""Every set of a sweep among its control sets: `sweep_nulls(swept)`."""

import math

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts_marks import scale_from, titled
from outlierlens.experiments.sweep.result import Null, Sweep
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Cell, Chart, Spec, chart, field, round_to, rounded
from outlierlens.view.charts.palette import ALARM, MUTED

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
        {"family": family, "change": round_to(change), "spread": draw.spread(i)}
        for null, family in zip(kept, families, strict=True)
        for i, change in enumerate(quantiles(null.changes))
        if math.isfinite(change)
    ]
    chosen: list[Spec] = [
        {"family": f, "change": round_to(n.change), "texts": n.n_texts, "says": "" if n.p is None else f"p = {n.p:.2g}"}
        | rounded(3, p=n.p)
        for n, f in zip(kept, families, strict=True)
        if math.isfinite(n.change)
    ]
    scale = scale_from(np.array([d["change"] for d in dots + chosen] + [0.0], dtype=float))
    title = titled("", sweep, scale)
    padding = {} if scale.log else {"padding": 18}
    x = field("change", title, scale=scale.scale | padding, axis=scale.axis or {"tickCount": 8})
    y = draw.strips("family", families, 220)
    y["axis"] |= {"labelExpr": "split(datum.label, '|')"}
    what = draw.columns(family="set and controls:N", change="change", p="rank p", texts="texts")
    ends = [d["change"] for d in dots + chosen] or [0.0]
    middle = (min(ends) + max(ends)) / 2
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        draw.circle(dots, x=x, y=y, yOffset=draw.JITTER, tooltip=what[:2], size=30, color=MUTED, opacity=0.5),
        draw.points(chosen, x=x, y=y, tooltip=what, shape="diamond", size=150, color=ALARM),
    ]
    for right in (True, False):
        said = [one for one in chosen if (one["change"] > middle) == right]
        side = {"align": "right", "dx": -11} if right else {"align": "left", "dx": 11}
        layers += draw.haloed(said, "says", x=x, y=y, color=ALARM, fontWeight=700, **side)
    return chart(
        name=name,
        title="Against control sets of the same size",
        reading=_say(sweep, nulls, kept),
        layers=layers,
        height=40 + (58 if len(kept) <= 8 else 40) * len(kept),
        columns=("set", "window", "controls", "number", "texts", "change", "rank p", "median", "95th percentile"),
        rows=map(_numbers, nulls),
    )


def _numbers(null: Null) -> list[Cell]:
    p = None if null.p is None else round_to(null.p)
    figures = [round_to(null.change), p, round_to(null.median), round_to(null.percentile_95)]
    return [null.label, null.window, null.kind, len(null.changes), null.n_texts, *figures]


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
