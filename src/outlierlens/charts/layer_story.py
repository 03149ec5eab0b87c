"""Damage by layer above the correlations of those layers: `layer_story(story)`.

One panel of damage, then one for each link, all over the same layers; a line a dimension or set, with its 95 % interval.
"""

import math

from outlierlens.charts.base import CONFIG, SCHEMA, TABLE_ROWS, Chart, Spec, begun, field, number, round_to
from outlierlens.charts.palette import COLOURED, DIM_COLOURS, MUTED, SHAPES, SURFACE
from outlierlens.layer_story import LayerStory, Line, link_rows, story_rows

HEIGHT = 190
WIDTH = 740
TITLES = {
    "frequency, raw": ["r of |h| with", "token counts"],
    "frequency, log": ["r of |h| with", "log counts"],
    "attention": ["r of |h| with", "attention received"],
}


def layer_story(story: LayerStory, *, name: str = "layer-story") -> Chart:
    """The picture of a layer story; of many lines the six whose damage is largest anywhere."""
    drawn = sorted(sorted(story.lines, key=lambda line: -_largest(line))[:COLOURED], key=lambda line: line.dims)
    labels = [line.label for line in drawn]
    colour, shape = (
        field(
            "line",
            "",
            "nominal",
            scale={"domain": labels, "range": list(looks[: len(labels)])},
            legend={"title": None, "columns": 6},
        )
        for looks in (DIM_COLOURS, SHAPES)
    )
    panels = [_panel(story, drawn, None, colour, shape)]
    panels += [_panel(story, drawn, one.what, colour, shape) for one in drawn[0].links]
    spec: Spec = {
        "$schema": SCHEMA,
        "description": _reading(story),
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": panels,
        "spacing": 18,
    }
    rows = [*story_rows(story)]
    columns = tuple(rows[0])
    numbers = [
        tuple(round_to(row[key]) if isinstance(row[key], float) else row[key] for key in columns) for row in rows
    ]
    title = f"{begun(story.task)} lost by layer, and what the layer's |h| goes with"
    return Chart(name, title, _reading(story), spec, columns, tuple(numbers[:TABLE_ROWS]), len(numbers))


def _largest(line: Line) -> float:
    return max((abs(one) for one in line.damage.tolist() if math.isfinite(one)), default=0.0)


def _panel(story: LayerStory, lines: list[Line], what: str | None, colour: Spec, shape: Spec) -> Spec:
    """One panel: damage (`what` is None) or a link."""
    rows = []
    for line in lines:
        values = (line.damage, line.damage_low, line.damage_high)
        if what is not None:
            link = line.link(what)
            values = (link.value, link.low, link.high)
        for layer, value, low, high in zip(story.layers, *(one.tolist() for one in values), strict=True):
            if math.isfinite(value):
                row = {"layer": layer, "line": line.label, "value": round_to(value)}
                rows.append(row | {"low": round_to(low), "high": round_to(high)})
    last = what == (lines[0].links[-1].what if lines[0].links else None)
    x = field(
        "layer",
        "layer (blocks from 0)" if last else "",
        "ordinal",
        sort=list(story.layers),
        axis={"labelAngle": 0, "grid": False} | ({} if last else {"labels": False, "ticks": False}),
    )
    title: str | list[str] = [f"{story.task}:", f"{story.unit}"] if what is None else TITLES[what]
    y = field("value", title, axis={"tickCount": 5}, scale={"zero": what is None})
    tooltip = [field("layer", "layer", "ordinal"), field("line", "off", "nominal"), field("value", "value")]
    tooltip += [field("low", "95 % from"), field("high", "to")]
    known = [row for row in rows if row["low"] is not None and row["high"] is not None]
    layers: list[Spec] = [
        {"data": {"values": [{"value": 0}]}, "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
         "encoding": {"y": y}},
        {"data": {"values": known}, "mark": {"type": "rule", "strokeWidth": 1.5},
         "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour}},
        {"data": {"values": rows}, "mark": {"type": "line", "strokeWidth": 2},
         "encoding": {"x": x, "y": y, "color": colour}},
        {"data": {"values": rows}, "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
         "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip}},
    ]  # fmt: skip
    return {"width": WIDTH, "height": HEIGHT, "layer": layers}


def _reading(story: LayerStory) -> str:
    text = (
        f"Above: change of the {story.task} ({story.unit}) with a dimension switched off in one layer alone. Below: how the "
        f"size of its values in that layer's output goes with token frequency or received attention. Bars: 95 % intervals. "
    )
    if len(story.lines) > COLOURED:
        text += f"Drawn are the {COLOURED} of {len(story.lines)} lines with the largest change in any layer. "
    for row in link_rows(story):
        if math.isfinite(row["rho"]):
            text += (
                f"{row['dims']} and {row['with']}: rank correlation over layers {row['rho']:+.2f} "
                f"({row['rho_low']:+.2f} to {row['rho_high']:+.2f}, p {number(row['p'])}). "
            )
    return text.strip()
