"""What switching off does, beside its controls: one strip of dots a family of control sets."""

import math
from collections.abc import Sequence

import numpy as np

from outlierlens.ablation.damage import Condition, Control, Damage
from outlierlens.statistics.words import interval_text, no_interval
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, chart, rounded, symmetric
from outlierlens.view.charts.forms import interval_dots, null_dots
from outlierlens.view.charts.palette import ALARM, MUTED
from outlierlens.view.words import few, number


def losses(damage: Damage, *, name: str = "loss") -> Chart:
    """Change of the task's value with the chosen dimensions off and with each control set off, intact = 0."""
    chosen, off = damage.chosen, damage.chosen.positions
    dims = few(off) if len(off) <= 3 else f"{len(off)} {chosen.kind}s"
    families: list[tuple[str, Sequence[Condition]]] = [(f"chosen: {dims}", (chosen,))]
    families += [(f"{control.kind} ({len(control.conditions)} sets)", control.conditions) for control in _drawn(damage)]
    rows = [
        _row(one, family, 0.5 if len(conditions) == 1 else draw.spread(i), chosen=number == 0, unit=damage.of_change)
        for number, (family, conditions) in enumerate(families)
        for i, one in enumerate(conditions)
    ]
    ends = [end for end in (chosen.change_low, chosen.change_high) if math.isfinite(end)]
    drawn = [row for row in rows if row["change"] is not None]
    values = np.array([row["change"] for row in drawn] + ends + [0.0])
    scale = symmetric(values, factor=30.0)
    # Two lines: one would be cut off on a narrow screen.
    title = [f"lost {damage.measured}"] if damage.metric else [f"change of the {damage.task}", damage.of_change]
    x = scale.encoding("change", title, padding=14)
    y = draw.strips("family", [family for family, _ in families], 190)
    what = draw.columns(
        label="off:N", dims="dimensions:N", change="change", **draw.ENDS, value=damage.task, perplexity="perplexity"
    )
    layers = _layers(drawn, x, y, what if chosen.score.perplexity is not None else what[:-1])
    return chart(
        name=name,
        title=f"{begun(damage.measured)} with {chosen.kind}s off ({damage.mode})",
        reading=reading(damage),
        layers=layers,
        height=60 + 62 * len(families),
        **what.table([_row(damage.intact, "intact", 0.5), *rows]),
    )


def reading(damage: Damage) -> str:
    """The picture in words: the chosen set's change with its interval, and where it stands among each family."""
    chosen = damage.chosen
    if not math.isfinite(chosen.change):
        return (
            f"With {few(chosen.positions)} off the {damage.measured} is infinite or undefined, which no scale can show."
        )
    why = no_interval(damage.n_texts, metric=damage.metric)
    text = (
        f"With {few(chosen.positions)} off the {damage.measured} changes by {chosen.change:+.3g} {damage.of_change} "
        f"(95 % interval {interval_text(chosen.change_low, chosen.change_high, '+.3g', why=why)}). "
    )
    for control in _drawn(damage):
        text += (
            f"{control.kind.capitalize()} sets of the same size: median {control.median:+.3g}, "
            f"95th percentile {control.percentile_95:+.3g}, mean {control.mean:+.3g}"
            + ("" if control.p is None else f"; rank p = {control.p:.3g}")
            + ". "
        )
    return text.strip()


def _drawn(damage: Damage) -> list[Control]:
    """Without ordinary sets: most of them are random ones."""
    return [control for control in damage.controls if control.kind != "ordinary"]


def _row(condition: Condition, family: str, spread: float, *, chosen: bool = False, unit: str = "") -> Spec:
    by_layer = condition.by_layer
    named = condition.neurons or not by_layer
    dims = few(condition.positions) if named else f"other positions in each of {len(by_layer)} layers"
    perplexity = condition.score.perplexity
    return {
        "family": family,
        "label": condition.label,
        "dims": dims,
        **rounded(change=condition.change, value=condition.score.value, perplexity=perplexity),
        **bar(condition.change_low, condition.change_high),
        "says": f"{number(condition.change)} {unit}" if perplexity is None else f"perplexity {number(perplexity)}",
        "spread": round(spread, 3),
        "chosen": chosen,
    }


def chosen_is_rightmost(rows: list[Spec]) -> bool:
    """Whether the chosen set stands right of the middle between the least and the largest change."""
    changes = [r["change"] for r in rows]
    return bool(rows) and rows[0]["change"] > (min(changes) + max(changes)) / 2


def _layers(rows: list[Spec], x: Spec, y: Spec, what: list[Spec]) -> list[Spec]:
    # The text grows away from the nearer edge.
    align = "right" if chosen_is_rightmost(rows) else "left"
    chosen, controls = [r for r in rows if r["chosen"]], [r for r in rows if not r["chosen"]]
    bar_of_chosen, diamond = interval_dots(chosen, x, y, what, yOffset=draw.JITTER, size=170)
    words = {"dy": -16, "align": align, "fontWeight": 700, "color": ALARM}
    return [
        draw.rule([{"change": 0, "text": "intact"}], x=x, color=MUTED, strokeDash=draw.DASHED),
        draw.text([{"change": 0, "text": "intact"}], "text", x=x, y=-8, color=MUTED),
        null_dots(controls, x, y, tooltip=what),
        bar_of_chosen,
        draw.text(chosen, "says", x=x, y=y, yOffset=draw.JITTER, **words),
        diamond,
    ]
