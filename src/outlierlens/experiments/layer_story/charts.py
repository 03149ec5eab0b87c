"""Damage by layer above the correlations of those layers: `layer_story(story)`.

One panel of damage, then one for each link, all over the same layers; a line per dimension or set, with its 95 % interval.
"""

import math

from outlierlens.experiments.layer_story.result import LayerStory, Line, link_rows, story_rows
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import COLOURED, Chart, Spec, begun, field, rounded
from outlierlens.view.charts.draw import above, composed, lines, panel
from outlierlens.view.section import number

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
    look = draw.both("line", labels, columns=6)
    rows = [*story_rows(story)]
    return composed(
        name=name,
        title=f"{begun(story.task)} lost by layer, and what the layer's |h| goes with",
        reading=_reading(story),
        body=above([_panel(story, drawn, what, look) for what in (None, *(one.what for one in drawn[0].links))], 18),
        **draw.columns(**{key: key for key in rows[0]}).table(rows),
    )


def _largest(line: Line) -> float:
    return max((abs(one) for one in line.damage.tolist() if math.isfinite(one)), default=0.0)


def _panel(story: LayerStory, drawn: list[Line], what: str | None, look: tuple[Spec, Spec]) -> Spec:
    """One panel: damage (`what` is None) or a link."""
    rows = []
    for line in drawn:
        values = (line.damage, line.damage_low, line.damage_high)
        if what is not None:
            link = line.link(what)
            values = (link.value, link.low, link.high)
        for layer, value, low, high in zip(story.layers, *(one.tolist() for one in values), strict=True):
            if math.isfinite(value):
                rows.append({"layer": layer, "line": line.label} | rounded(value=value, low=low, high=high))
    last = what == (drawn[0].links[-1].what if drawn[0].links else None)
    x = draw.layer_axis(story.layers, "layer (blocks from 0)" if last else "", labels=last, ticks=last)
    title: str | list[str] = [f"{story.task}:", f"{story.unit}"] if what is None else TITLES[what]
    y = field("value", title, axis={"tickCount": 5}, scale={"zero": what is None})
    columns = draw.columns(layer="layer:O", line="off:N", value="value", **draw.ENDS)
    layers = [
        draw.level(0, y=y, strokeDash=draw.DASHED),
        draw.rule(draw.known(rows), x=x, **draw.between(y=y), color=look[0], strokeWidth=1.5),
        *lines(rows, x, y, look, columns),
    ]
    return panel(layers, WIDTH, HEIGHT)


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
