"""Whether a model recovers from losing its outlier dimensions: `recovery(found)`.

One row an arm: intact, dimensions off, fine-tuned again free and held at zero, each beside random dimensions treated alike.
"""

import numpy as np

from outlierlens.experiments.recover.result import STATES, Arm, Recovery
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, chart, field, round_to, rounded
from outlierlens.view.charts.forms import interval_dots
from outlierlens.view.charts.palette import ALARM, INK, MUTED
from outlierlens.view.words import few, number


def recovery(found: Recovery, *, name: str = "recovery") -> Chart:
    """The task's metric of every arm with its 95 % interval: intact, off, fine-tuned again free and held; with controls."""
    rows = [_arm_row(arm, found) for arm in found.arms]
    order = list(dict.fromkeys(row["arm"] for row in rows))
    for kind in order:  # runs of one kind share a line, one above the other
        mine = [row for row in rows if row["arm"] == kind]
        for place, row in enumerate(mine):
            row["turn"] = round_to((place + 0.5) / len(mine))
    ends = [value for row in rows for value in (row["low"], row["high"], row["value"]) if value is not None]
    scale = {"zero": False, "nice": True, "domain": [min(ends), max(ends)]}
    x, y = field("value", f"{found.metric} on the dev set", scale=scale), draw.strips("arm", order, 330)
    del y["scale"]
    offset = {"field": "turn", "type": "quantitative", "scale": {"domain": [0, 1]}}
    colour = draw.by("what", {"none": INK, "chosen": ALARM, "random": MUTED}) | {"legend": None}
    what = draw.columns(
        arm="model:N", dims="off:N", seed="seed:N", value=found.metric, **draw.ENDS, lost="lost", lost_low="95 % from",
        lost_high="to", recovered="recovered", regrown="grown back",
    )  # fmt: skip
    layers: list[Spec] = [
        draw.level(rows[0]["value"], x=x, strokeDash=draw.DASHED),
        *interval_dots(rows, x, y, what, yOffset=offset, color=colour, shape="circle", size=90),
    ]
    return chart(
        name=name,
        title=f"{found.task} with {few(found.dims)} off, and fine-tuned again",
        reading=_recovery_reading(found),
        layers=layers,
        height=50 + 34 * len(rows),
        **what.table(rows),
    )


def _arm_row(arm: Arm, found: Recovery) -> Spec:
    said = {"none": "nothing", "chosen": few(found.dims, 3), "random": "random"}[arm.what]
    state = "fine-tuned further" if (arm.what, arm.state) == ("none", "again") else STATES[arm.state]
    lost = bar(arm.lost_low, arm.lost_high)
    regrown = float(np.mean([one.regrown for one in arm.regrowth])) if arm.regrowth else None
    return {
        "arm": state if arm.what == "none" else f"{said}: {state}",
        "what": arm.what,
        "dims": few(arm.dims) if arm.dims else "nothing",
        "seed": arm.seed,
        **rounded(value=arm.value, low=arm.low, high=arm.high, lost=arm.lost, recovered=arm.recovered),
        **{"lost_low": lost["low"], "lost_high": lost["high"]},
        **rounded(3, regrown=regrown),
    }


def _recovery_reading(found: Recovery) -> str:
    text = f"Dashed: the intact model, {found.metric} {number(found.arm('none', 'intact').value)}. "
    for what, state, words in (
        ("chosen", "off", f"With {few(found.dims)} off it loses"),
        ("chosen", "again", "fine-tuned again it still lacks"),
        ("chosen", "held", "fine-tuned again with them held at zero"),
        ("random", "off", "a random set off loses"),
    ):
        arms = [arm for arm in found.arms if (arm.what, arm.state) == (what, state)]
        if arms:
            arm = arms[0]
            text += f"{words} {arm.lost:+.3f} (95 % interval {found.interval(arm)}); "
    regrown = [
        one.regrown for arm in found.arms if (arm.what, arm.state) == ("chosen", "again") for one in arm.regrowth
    ]
    return text + f"the scales and biases are {np.mean(regrown):.0%} back in place. " if regrown else text
