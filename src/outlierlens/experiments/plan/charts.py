"""What a plan gives back: `precision_plan(found)`, loss against the share of weights kept, beside random choices and rules."""

import numpy as np

from outlierlens.experiments.plan.result import Judged, PrecisionPlan
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, chart, field, round_to, symmetric
from outlierlens.view.charts.palette import DIM_COLOURS, INK, MUTED
from outlierlens.view.section import percent
from outlierlens.view.words import number

LOOKS = {
    "plan": (DIM_COLOURS[0], "diamond"),
    "all rounded": (INK, "circle"),
    "random": (MUTED, "cross"),
    "rule": (DIM_COLOURS[1], "square"),
}


def precision_plan(found: PrecisionPlan, *, name: str = "plan") -> Chart:
    """Change of the task's value against the share of weights kept: the plan entry by entry, random choices, tools' rules."""
    rows = [_row("all rounded", found.rounded), *(_row("plan", one) for one in found.curve)]
    rows += [*(_row("random", one) for one in found.random), *(_row("rule", one) for one in found.rules)]
    drawn = [row for row in rows if row["change"] is not None]
    ends = [row[key] for row in drawn for key in ("change", "low", "high") if row[key] is not None]
    y = symmetric(np.array([*ends, 0.0]), factor=30.0).encoding("change", f"change of the {found.task}, {found.unit}")
    x = field("share", "share of the linears' weights kept", axis={"format": ".1%", "grid": False})
    shown = [what for what in LOOKS if any(row["what"] == what for row in rows)]
    colour, shape = (draw.by("what", {what: LOOKS[what][at] for what in shown}) for at in (0, 1))
    what = draw.columns(
        what="setting:N", label="kept:N", linears="linears", share="share of weights", change="change", **draw.ENDS,
        value=found.task,
    )  # fmt: skip
    line = [row for row in drawn if row["what"] in ("plan", "all rounded")]
    rules = [row for row in drawn if row["what"] == "rule"]
    layers: list[Spec] = [
        draw.level(0, y=y, strokeDash=draw.DASHED),
        draw.line(line, x=x, y=y, color=DIM_COLOURS[0], strokeWidth=2),
        draw.rule(draw.known(line + rules), x=x, **draw.between(y=y), color=colour, strokeWidth=1.5),
        draw.points(drawn, x=x, y=y, color=colour, shape=shape, tooltip=what, size=75),
        *draw.haloed(rules, "label", x=x, y=y, dy=-12, align="right"),
    ]
    return chart(
        name=name,
        title=f"{begun(found.task)} against what is kept, {found.scheme}",
        reading=_reading(found),
        layers=layers,
        height=330,
        **what.table(rows),
    )


def _row(what: str, one: Judged) -> Spec:
    return {
        "what": what,
        "label": one.label,
        "linears": one.n_linears,
        "share": round_to(one.share),
        "change": round_to(one.change),
        **bar(one.change_low, one.change_high),
        "value": round_to(one.value),
    }


def _reading(found: PrecisionPlan) -> str:
    text = (
        f"Change of the {found.task} ({found.unit}) against the intact model on {found.n_judging:,} texts that judge; "
        f"bars are 95 % intervals over texts. All rounded: {number(found.rounded.change)}. "
    )
    if found.curve:
        text += f"With the plan, {percent(found.plan.share)} of the weights kept: {number(found.plan.change)}. "
    if found.random:
        text += f"Each cross keeps random entries of the same sizes: {number(found.random_change)} in the mean. "
    return text + " ".join(
        f"{begun(one.label)}: {number(one.change)} with {percent(one.share)} kept." for one in found.rules
    )
