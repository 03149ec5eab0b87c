"""Damage against the number of edited values: `attack(found)`, a line for each kind of edit, random edits beside them."""

from typing import Any

from outlierlens.experiments.attack.result import KINDS, Attack, Attacked
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import PLAIN_NUMBER, Chart, Spec, begun, chart, field, log_ticks, round_to, rounded
from outlierlens.view.charts.palette import MUTED
from outlierlens.view.words import number

HEIGHT = 330
LINES = {"sensitive": [1, 0], "anywhere": [5, 4]}  # dashes


def attack(found: Attack, *, name: str = "attack") -> Chart:
    """Damage with more and more values allowed to change; crosses: random edits of the same number.

    A loss is drawn as a multiple of the intact one, on a logarithmic scale; how far vectors move as it is.
    """
    rows = [row for one in (*found.kinds, *found.anywhere) for row in _points(found, one)]
    drawn = [row for row in rows if row["height"] is not None]
    random = [row for row in _random(found) if row["height"] is not None]
    marks: list[Spec] = [{"height": 1.0 if found.factor else 0.0, "text": "intact"}]
    if found.factor:
        marks.append({"height": found.factor, "text": f"× {found.factor:g}"})
        unit = [f"{found.task}, times the", "intact one (log scale)"]
        heights = [row["height"] for row in drawn]
        top, low = max([*heights, found.factor]), min([*heights, 1.0])
        ticks = [tick for tick in log_ticks(low, top) if low / 2 <= tick <= 2 * top]
        scale: Spec = {"type": "log", "domain": [round_to(0.8 * low), round_to(1.3 * top)], "nice": False}
        axis: Spec = {"values": ticks, "labelExpr": PLAIN_NUMBER}
    else:
        unit, scale, axis = [f"{found.task},", found.unit], {"zero": True}, {}
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found.kinds)]
    x = field(
        "budget",
        "values that may be changed",
        scale={"type": "log", "base": 2, "nice": False, "padding": 14},
        axis={"values": list(found.budgets), "grid": False, "format": "d"},
    )
    y = field("height", unit, scale=scale, axis=axis)
    colour, shape = draw.both("kind", kinds)
    dash = draw.by("among", LINES, title="values")
    dash |= {} if found.anywhere else {"legend": None}
    what = draw.columns(
        kind="edit:N", among="of values:N", edits="values changed", change="change", **draw.ENDS, value=found.task
    )
    bars = [row for row in drawn if row["bottom"] is not None and row["top"] is not None]
    layers: list[Spec] = [
        draw.rule(marks, y=y, color=MUTED, strokeDash=draw.DASHED),
        draw.text(marks, "text", y=y, x="width", dx=-4, dy=-12, align="right", color=MUTED),
        draw.mark("point", random, x=x, y=y, tooltip=what[:4], shape="cross", size=45, color=MUTED, opacity=0.8),
        draw.rule(bars, x=x, **draw.between("bottom", "top", y=y), color=colour, strokeWidth=1.5, opacity=0.55),
        draw.line(drawn, x=x, y=y, color=colour, strokeDash=dash, strokeWidth=2),
        draw.points(drawn, x=x, y=y, color=colour, shape=shape, tooltip=what, size=70),
    ]
    return chart(
        name=name,
        title=f"{begun(found.task)} against the number of edited values",
        reading=reading(found),
        layers=layers,
        height=HEIGHT,
        **what.table([*rows, *random]),
    )


def reading(found: Attack) -> str:
    """The picture in words: what each kind does with the whole budget, beside random edits."""
    text = (
        f"{begun(found.task)} of {found.provenance.model} on texts that the search did not see, by how many values are edited; "
        f"bars are 95 % intervals. "
    )
    for one in found.kinds:
        full = one.full
        does = f"multiply it by {number(full.times)}" if found.factor else f"move it by {number(full.change)}"
        text += f"{begun(one.kind)}: {full.n_edits} edits {does}"
        controls = [f"{number(c.median)} {c.among}" for c in one.controls]
        text += (f" (crosses, random edits: median change {', '.join(controls)})" if controls else "") + ". "
    return text.strip()


def _points(found: Attack, one: Attacked) -> list[dict[str, Any]]:
    return [
        {"kind": one.kind, "among": one.among, "budget": point.budget, "edits": point.n_edits}
        | rounded(change=point.change, low=point.low, high=point.high, value=point.value)
        | {
            end: _height(found, value)
            for end, value in (("height", point.change), ("bottom", point.low), ("top", point.high))
        }
        for point in one.points
    ]


def _random(found: Attack) -> list[dict[str, Any]]:
    return [
        {"kind": f"random {one.kind}", "among": control.among, "budget": found.budget, "edits": control.n_edits}
        | rounded(change=change, value=found.intact + change)
        | {"height": _height(found, change)}
        for one in found.kinds
        for control in one.controls
        for change in control.changes
    ]


def _height(found: Attack, change: float) -> float | None:
    """Where a change stands in the picture: as a multiple of an intact loss, or as it is; None where it cannot be drawn."""
    height = 1 + change / found.intact if found.factor else change
    return None if found.factor and height <= 0 else round_to(height)
