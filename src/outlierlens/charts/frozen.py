"""Linear classifiers on frozen vectors, by layer: `frozen(found)`.

A line a repair, raw vectors in ink with their 95 % intervals; a mark with its change where the dev split chooses the layer.
"""

from outlierlens.charts.base import Chart, Spec, bar, chart, field, number, round_to
from outlierlens.charts.fixes import colours, drawn, left_out, scale, shapes
from outlierlens.charts.palette import INK, MUTED
from outlierlens.frozen_scores import FrozenScores, frozen_rows


def frozen(found: FrozenScores, *, name: str = "frozen") -> Chart:
    """The task's metric on the test split by layer, raw against every repair that a picture has a look for."""
    fixes = drawn([one.fix for one in found.fixes])
    numbers = ("test", "low", "high", "dev", "train")
    rows = [
        {"layer": row["layer"], "fix": row["fix"]} | {key: round_to(row[key]) for key in numbers}
        for row in frozen_rows(found)
        if row["fix"] in fixes
    ]
    ends = [row[key] for row in rows for key in ("test", "low", "high")]
    low, high = min(ends), max(ends)
    # A baseline far below would press all lines together; the reading has it in any case.
    below = found.majority < low - (high - low)
    low, high = (low, high) if below else (min(low, found.majority), max(high, found.majority))
    pad = 0.06 * (high - low) or 0.05
    x = field(
        "layer",
        "layer (block outputs from 0)",
        "ordinal",
        sort=list(found.layers),
        axis={"labelAngle": 0, "grid": False},
    )
    domain = {"domain": [low - pad, high + pad], "nice": False, "zero": False}
    y = field("test", f"{found.metric} on the test split", scale=domain, axis={"tickCount": 7})
    colour, shape = (
        field("fix", "", "nominal", scale=scale(fixes, looks), legend={"title": None, "columns": 7})
        for looks in (colours(fixes), shapes(fixes))
    )
    tooltip = [field("layer", "layer", "nominal"), field("fix", "fix", "nominal"), field("test", found.metric)]
    tooltip += [field("low", "95 % from"), field("high", "to"), field("dev", "on dev"), field("train", "on train")]
    said = f"always the commonest label {number(found.majority)}"
    baseline = [] if below else [{"test": round_to(found.majority), "says": said}]
    chosen = [
        {"layer": one.selected.layer, "test": round_to(one.selected.value), "fix": one.fix}
        for one in found.fixes
        if one.fix in fixes
    ]
    layers: list[Spec] = [
        {
            "data": {"values": baseline},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"y": y},
        },
        {
            "data": {"values": baseline},
            "mark": {"type": "text", "align": "right", "x": "width", "dx": -4, "dy": -7, "color": MUTED},
            "encoding": {"y": y, "text": {"field": "says", "type": "nominal"}},
        },
        {
            "data": {"values": [row for row in rows if row["fix"] == "raw"]},
            "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.5, "color": INK},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": [row for row in rows if row["fix"] == "raw"]},
            "mark": {"type": "line", "strokeWidth": 6, "opacity": 0.35, "color": INK},
            "encoding": {"x": x, "y": y},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": colour},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip},
        },
        {
            "data": {"values": chosen},
            "mark": {"type": "point", "filled": False, "size": 260, "strokeWidth": 2, "shape": "circle"},
            "encoding": {"x": x, "y": y, "color": colour},
        },
    ]
    return chart(
        name=name,
        title=f"{found.task} from frozen vectors of {found.provenance.model}",
        reading=_reading(found) + left_out([one.fix for one in found.fixes]),
        layers=layers,
        height=360,
        columns=("fix", "layer", found.metric, "95 % from", "to", "− raw", "95 % from", "to", "on dev", "on train"),
        rows=(
            [row["fix"], row["layer"], *(round_to(row[key]) for key in ("test", "low", "high", "change")),
             *bar(row["change_low"], row["change_high"]).values(), round_to(row["dev"]), round_to(row["train"])]
            for row in frozen_rows(found)
        ),
    )  # fmt: skip


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
