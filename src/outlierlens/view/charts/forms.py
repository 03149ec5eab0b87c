"""The house's forms: layers for rows of one kind, which several charts share.

lines(rows, x, y, look, what)                # a line and marks for each name, with its colour and shape
interval_dots(rows, x, y, what, color=…)     # a dot with the bar of its interval, one strip below another
null_dots(rows, x, y)                        # random sets behind them
heat(cells, x, y, shade, what)               # a cell for each pair, the stronger the larger
dim_marks(rows, shown, x, y, what)           # a scatter's named dimensions, in their colour and shape
baseline(0.5, "always one label", y=y)       # a level with its name at the right end
"""

from typing import Any

from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Looks, Spec, round_to
from outlierlens.view.charts.draw import Rows
from outlierlens.view.charts.palette import ALARM, MUTED


def lines(
    rows: Rows | None, x: Spec, y: Spec, look: tuple[Spec, Spec], what: list[Spec], *, width: float = 2, size: int = 60
) -> list[Spec]:
    """A line for each name with marks on it; `look` is its colour and shape, as `draw.both` makes them."""
    colour, shape = look
    return [
        draw.line(rows, x=x, y=y, color=colour, strokeWidth=width),
        draw.points(rows, x=x, y=y, color=colour, shape=shape, tooltip=what, size=size),
    ]


def interval_dots(rows: list[Spec], x: Spec, y: Spec, what: list[Spec], *, size: int = 110, **look: Any) -> list[Spec]:
    """A dot for each row with the bar of its interval, where it has one; diamonds in the alarm colour unless `look` differs."""
    shape = look.pop("shape", "diamond")
    look = {"y": y, "color": ALARM, "tooltip": what} | look
    return [
        draw.rule(draw.known(rows), **draw.between(x=x), strokeWidth=2, **look),
        draw.points(rows, x=x, shape=shape, size=size, **look),
    ]


def null_dots(rows: list[Spec], x: Spec, y: Spec, **look: Any) -> Spec:
    """Grey dots of random sets, which have a `spread`, within their strips."""
    dots = {"yOffset": draw.JITTER, "shape": "circle", "size": 55, "color": MUTED, "opacity": 0.6}
    return draw.points(rows, x=x, y=y, **(dots | look))


def heat(cells: Rows | None, x: Spec, y: Spec, shade: Spec, what: list[Spec], **look: Any) -> Spec:
    """A cell for each pair, of the strength that `strength` gives its value."""
    return draw.rect(cells, x=x, y=y, opacity=shade, tooltip=what, **look)


def strength(name: str, top: float, *, faintest: float = 0.02, strongest: float = 1, **legend: Any) -> Spec:
    """Opacity of a cell by the size of a field, from 0 to `top`; without a legend unless there is something to say in it."""
    scale = {"domain": [0, top], "range": [faintest, strongest]}
    return {"field": name, "type": "quantitative", "scale": scale, "legend": legend or None}


def dim_marks(rows: Rows | None, shown: Looks, x: Spec, y: Spec, what: list[Spec], **look: Any) -> list[Spec]:
    """Named dimensions, rows with `name`, in their colour and shape; those beyond the colours in ink; no legend."""
    if rows is not None and not rows:
        return []
    looks = draw.dim_look(shown, legend=False)
    return [draw.points(rows, x=x, y=y, **looks, tooltip=what, **look)]


def baseline(value: float, says: str, *, y: Spec, color: str = MUTED, **rule: Any) -> list[Spec]:
    """A level of the y axis with its name at the right end; `rule` are looks of the line."""
    row = [{y["field"]: round_to(value), "says": says}]
    return [
        draw.rule(row, y=y, color=color, **({"strokeDash": draw.DASHED} | rule)),
        *draw.haloed(row, "says", y=y, align="right", x="width", dx=-4, dy=-8, color=color),
    ]
