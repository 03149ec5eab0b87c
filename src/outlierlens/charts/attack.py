"""Damage against the number of edited values: `attack(found)`, a line for each kind of edit, random edits beside them."""

import math
from typing import Any

import numpy as np

from outlierlens.attacked import KINDS, Attack, Attacked
from outlierlens.charts.base import Chart, Spec, begun, chart, field, number, round_to, symmetric
from outlierlens.charts.palette import DIM_COLOURS, MUTED, SHAPES

HEIGHT = 330
LINES = {"sensitive": [1, 0], "anywhere": [5, 4]}  # dashes
RANDOM = "random"


def attack(found: Attack, *, name: str = "attack") -> Chart:
    """Change of the task's value with more and more values edited; dots at the end: random edits of the same number."""
    rows = [row for one in (*found.kinds, *found.anywhere) for row in _points(one)]
    drawn = [row for row in rows if row["change"] is not None]
    random = [row for row in _random(found) if row["change"] is not None]
    marks = [{"change": 0.0, "text": "intact"}]
    if found.factor:
        marks.append({"change": round_to((found.factor - 1) * found.intact), "text": f"× {found.factor:g}"})
    ends = [row[key] for row in drawn for key in ("change", "low", "high") if row[key] is not None]
    ends += [row["change"] for row in random] + [mark["change"] for mark in marks]
    scale = symmetric(np.array(ends, dtype=float), factor=60.0)
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found.kinds)]
    x = field(
        "edits", "values changed", scale={"type": "log", "base": 2, "nice": False, "padding": 12},
        axis={"values": list(found.budgets), "grid": False, "format": "d"},
    )  # fmt: skip
    unit = f"change of the {found.task}, {found.unit}" + (" (symmetric log scale)" if scale.log else "")
    y = field("change", unit, scale=scale.scale, axis=scale.axis)
    domain = {"domain": kinds, "range": list(DIM_COLOURS[: len(kinds)])}
    shapes = {"domain": kinds, "range": list(SHAPES[: len(kinds)])}
    colour = field("kind", "", "nominal", scale=domain, legend={"title": None})
    shape = field("kind", "", "nominal", scale=shapes, legend={"title": None})
    dash: Spec = {
        "field": "among", "type": "nominal", "scale": {"domain": list(LINES), "range": list(LINES.values())},
        "legend": {"title": "values"} if found.anywhere else None,
    }  # fmt: skip
    tooltip = [
        field("kind", "edit", "nominal"),
        field("among", "of values", "nominal"),
        field("edits", "values changed"),
        field("change", "change"),
        field("low", "95 % from"),
        field("high", "to"),
        field("value", found.task),
    ]
    bars = [row for row in drawn if row["low"] is not None and row["high"] is not None]
    layers: list[Spec] = [
        {
            "data": {"values": marks},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"y": y},
        },
        {
            "data": {"values": marks},
            "mark": {"type": "text", "x": 4, "dy": -7, "align": "left", "color": MUTED},
            "encoding": {"y": y, "text": {"field": "text", "type": "nominal"}},
        },
        {
            "data": {"values": random},
            "mark": {"type": "point", "shape": "cross", "size": 45, "color": MUTED, "opacity": 0.8, "xOffset": 9},
            "encoding": {"x": x, "y": y, "tooltip": tooltip[:4]},
        },
        {
            "data": {"values": bars},
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.55},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip},
        },
    ]
    columns = ("edit", "of values", "values changed", "change", "95 % from", "to", found.task)
    return chart(
        name=name,
        title=f"{begun(found.task)} against the number of edited values",
        reading=reading(found),
        layers=layers,
        height=HEIGHT,
        columns=columns,
        rows=(
            [row[key] for key in ("kind", "among", "edits", "change", "low", "high", "value")]
            for row in [*rows, *random]
        ),
    )


def reading(found: Attack) -> str:
    """The picture in words: what each kind does with the whole budget, beside random edits."""
    text = (
        f"{begun(found.task)} of {found.provenance.model} on texts that the search did not see, by how many values are edited; "
        f"bars are 95 % intervals. "
    )
    for one in found.kinds:
        full = one.full
        text += f"{begun(one.kind)}: {full.n_edits} edits {_does(found, full.times, full.change)}"
        controls = [f"{number(c.median)} {c.among}" for c in one.controls]
        text += (f" (crosses, random edits: median change {', '.join(controls)})" if controls else "") + ". "
    return text.strip()


def _does(found: Attack, times: float, change: float) -> str:
    return f"multiply it by {number(times)}" if found.factor else f"move it by {number(change)}"


def _points(one: Attacked) -> list[dict[str, Any]]:
    return [
        {
            "kind": one.kind, "among": one.among, "edits": point.n_edits, "change": _finite(point.change),
            "low": _finite(point.low), "high": _finite(point.high), "value": _finite(point.value),
        }
        for point in one.points
        if point.n_edits  # a log axis has no 0
    ]  # fmt: skip


def _random(found: Attack) -> list[dict[str, Any]]:
    return [
        {
            "kind": f"{RANDOM}: {one.kind}", "among": control.among, "edits": control.n_edits, "change": _finite(change),
            "low": None, "high": None, "value": _finite(found.intact + change),
        }
        for one in found.kinds
        for control in one.controls
        for change in control.changes
        if control.n_edits
    ]  # fmt: skip


def _finite(value: float) -> float | None:
    return round_to(value) if math.isfinite(value) else None
