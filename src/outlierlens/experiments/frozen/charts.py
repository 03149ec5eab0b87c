"""Linear classifiers on frozen vectors, by layer: `frozen(found)`.

A line a repair, raw vectors in ink with their 95 % intervals; a mark with its change where the dev split chooses the layer.
"""

from typing import Any

from outlierlens.experiments.frozen.result import FrozenScores, frozen_rows
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    INK,
    Chart,
    bar,
    chart,
    colours,
    drawn,
    field,
    left_out,
    round_to,
    rounded,
    shapes,
)
from outlierlens.view.charts.draw import baseline, lines
from outlierlens.view.section import number


def frozen(found: FrozenScores, *, name: str = "frozen") -> Chart:
    """The task's metric on the test split by layer, raw against every repair that a picture has a look for."""
    fixes = drawn([one.fix for one in found.fixes])
    numbers = ("test", "low", "high", "dev", "train")
    rows = [
        {"layer": row["layer"], "fix": row["fix"]} | rounded(**{key: row[key] for key in numbers})
        for row in frozen_rows(found)
        if row["fix"] in fixes
    ]
    ends = [row[key] for row in rows for key in ("test", "low", "high")]
    low, high = min(ends), max(ends)
    # A baseline far below would press all lines together; the reading has it in any case.
    below = found.majority < low - (high - low)
    low, high = (low, high) if below else (min(low, found.majority), max(high, found.majority))
    pad = 0.06 * (high - low) or 0.05
    domain = {"domain": [low - pad, high + pad], "nice": False, "zero": False}
    x = draw.layer_axis(found.layers, "layer (block outputs from 0)")
    y = field("test", f"{found.metric} on the test split", scale=domain, axis={"tickCount": 7})
    colour, shape = draw.both("fix", fixes, colours(fixes), shapes(fixes), columns=7)
    what = draw.columns(layer="layer:N", fix="fix:N", test=found.metric, **draw.ENDS, dev="on dev", train="on train")
    raw = [row for row in rows if row["fix"] == "raw"]
    chosen = [
        {"layer": one.selected.layer, "test": round_to(one.selected.value), "fix": one.fix}
        for one in found.fixes
        if one.fix in fixes
    ]
    said = f"always the commonest label {number(found.majority)}"
    layers = [
        *([] if below else baseline(found.majority, said, y=y)),
        draw.rule(raw, x=x, **draw.between(y=y), strokeWidth=1.5, opacity=0.5, color=INK),
        draw.line(raw, x=x, y=y, strokeWidth=6, opacity=0.35, color=INK),
        *lines(rows, x, y, (colour, shape), what),
        draw.mark("point", chosen, x=x, y=y, color=colour, filled=False, size=260, strokeWidth=2, shape="circle"),
    ]
    return chart(
        name=name,
        title=f"{found.task} from frozen vectors of {found.provenance.model}",
        reading=_reading(found) + left_out([one.fix for one in found.fixes]),
        layers=layers,
        height=360,
        columns=("fix", "layer", found.metric, "95 % from", "to", "− raw", "95 % from", "to", "on dev", "on train"),
        rows=map(_numbers, frozen_rows(found)),
    )


def _numbers(row: dict[str, Any]) -> list[Any]:
    scores, others = (row["test"], row["low"], row["high"], row["change"]), (row["dev"], row["train"])
    ends = bar(row["change_low"], row["change_high"]).values()
    return [row["fix"], row["layer"], *map(round_to, scores), *ends, *map(round_to, others)]


def _reading(found: FrozenScores) -> str:
    raw = found.fixes[0].selected
    text = (
        f"Linear classifiers on the mean vector of a text, a layer each. The dev split chooses layer {raw.layer} of raw "
        f"vectors: {found.metric} {number(raw.value)} on test (95 % interval {number(raw.low)} to {number(raw.high)}; always "
        f"the commonest label {number(found.majority)}). "
    )
    for one in found.fixes[1:]:
        at = one.selected
        text += (
            f"{one.fix}, layer {at.layer}: {number(at.value)}, {at.change:+.3f} "
            f"({found.interval(at.change_low, at.change_high)}), {at.verdict}. "
        )
    return text + "Circled: the layer that the dev split chooses. Bars: intervals of raw vectors."
