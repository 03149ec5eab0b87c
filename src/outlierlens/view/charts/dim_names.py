"""Numbers of dimensions beside their marks: above a column, at the end of a line, around a point.

names_above(dims, width, x)                  # a column of marks a dimension
names_at_ends(rows, shown, x, y)             # lines in ink, which no legend names
names_beside(rows, at, bold, x, y)           # points anywhere
"""

import math
from collections.abc import Callable, Mapping, Sequence

from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Looks, Spec, label
from outlierlens.view.charts.palette import INK

# Where a name may stand beside its mark: alignment, shift right and down in pixels; the first that is free is taken.
PLACES = (
    *(("left", 9, 0), ("right", -9, 0), ("center", 0, -15), ("center", 0, 15)),
    *(("right", -9, 15), ("left", 9, -15), ("right", -9, -15), ("left", 9, 15)),
)
CANVAS = (740, 300)  # pixels that names are kept apart for
MOST = 24  # numbers of one picture; more could not be read
NEAR = 0.05  # of the height: ends that are nearer have their numbers side by side


def inked_dims(shown: Looks) -> list[int]:
    """Those that `looks` leaves without a colour."""
    return [dim for dim, place in shown.items() if place is None]


def names_above(dims: Sequence[int], width: int, x: Spec) -> list[Spec]:
    """The dimensions' numbers above their columns, of the first `MOST`, on as many lines as their nearness needs."""
    lines: list[list[int]] = []
    for dim in sorted(dims[:MOST]):
        line = next((line for line in lines if dim - line[-1] > 0.07 * width), None)
        if line is None:
            lines.append([dim])
        else:
            line.append(dim)
    look: Spec = {"x": x | {"field": "dim"}, "fontWeight": 700, "fontSize": 13}
    return [
        draw.text([{"dim": dim, "text": str(dim)} for dim in line], "text", y=-9 - 14 * number, **look)
        for number, line in enumerate(lines)
    ]


Span = tuple[float, float]


def names_at_ends(
    rows: list[Spec], shown: Looks, x: Spec, y: Spec, by: Sequence[str] = (), span: Span | None = None
) -> list[Spec]:
    """The numbers of the dimensions in ink, each right of the last mark of its line; side by side where lines end together.

    `rows` are data of `dim_lines`, in the order of `x`; a dimension has a line for each value of the fields `by`. `span` is
    what the y axis spans where neither its scale nor the rows say so.
    """
    words = {label(dim): str(dim) for dim in inked_dims(shown)[:MOST]}
    return words_at_ends(rows, words, x, y, ("name", *by), span)


def words_at_ends(
    rows: list[Spec], words: Mapping[str, str], x: Spec, y: Spec, by: Sequence[str], span: Span | None = None
) -> list[Spec]:
    """As `names_at_ends`, for lines by the fields `by`, the first of which has the keys of `words` where a line gets any."""
    values = [row[y["field"]] for row in rows if row[y["field"]] is not None]
    last = {tuple(row[key] for key in by): row for row in rows if row[y["field"]] is not None}
    height = _heights(y.get("scale", {}), span or (min(values, default=0.0), max(values, default=1.0)))
    ends = sorted((row for row in last.values() if row[by[0]] in words), key=lambda row: height(row[y["field"]]))
    columns: list[list[Spec]] = []  # what stands one above the other
    for row in ends:
        said = row | {"says": words[row[by[0]]]}
        free = next((c for c in columns if height(row[y["field"]]) - height(c[-1][y["field"]]) > NEAR), None)
        if free is None:
            columns.append([said])
        else:
            free.append(said)
    shift, layers = 8, []
    for column in columns:
        look = {"fontSize": 11.5, "fontWeight": 600, "color": INK, "clip": False}
        layers.append(draw.text(column, "says", x=x, y=y, align="left", dx=shift, **look))
        shift += 6 + 7 * max(len(row["says"]) for row in column)
    return layers


def _heights(scale: Spec, span: Span) -> Callable[[float], float]:
    """Where about a value stands on an axis, from 0 to 1."""
    constant = scale.get("constant", 1.0)
    bend: Callable[[float], float] = {
        "log": math.log,
        "symlog": lambda v: math.copysign(math.log1p(abs(v) / constant), v),
    }.get(scale.get("type", ""), float)
    low, high = (bend(end) for end in scale.get("domain", span))
    return lambda value: (bend(value) - low) / ((high - low) or 1.0)


def names_beside(
    rows: list[Spec],
    at: Sequence[tuple[float, float]],
    bold: Sequence[int],
    x: Spec,
    y: Spec,
    first: int = 0,
    canvas: tuple[int, int] = CANVAS,
) -> list[Spec]:
    """The number of each dimension beside its mark, kept apart from other marks and names, on a halo.

    `at` are the marks' positions from 0 to 1, right and up, in `canvas` pixels; numbers of dimensions in `bold` are bold;
    the place in `PLACES` numbered `first` is tried first.
    """
    width, height = canvas
    marked = [(right * width, (1 - up) * height) for right, up in at]
    taken = [(px - 6, py - 6, px + 6, py + 6) for px, py in marked]
    order = (first, *(i for i in range(len(PLACES)) if i != first))
    layers: list[Spec] = []
    for one, (px, py) in zip(rows, marked, strict=True):
        wide = 8.0 * len(str(one["dim"]))
        boxes = []
        for align, dx, dy in PLACES:
            left = px + dx - {"left": 0.0, "right": wide, "center": wide / 2}[align]
            boxes.append((left, py + dy - 8, left + wide, py + dy + 8))
        own = (px - 6, py - 6, px + 6, py + 6)
        others = [box for box in taken if box != own]
        inside = [i for i in order if boxes[i][0] > 0 and boxes[i][2] < width]
        chosen = next((i for i in inside if not any(_overlap(boxes[i], other) for other in others)), first)
        taken.append(boxes[chosen])
        align, dx, dy = PLACES[chosen]
        look: Spec = {"align": align, "dx": dx, "dy": dy, "fontWeight": 700 if one["dim"] in bold else 400}
        layers += draw.haloed([one | {"text": str(one["dim"])}], "text", x=x, y=y, fontSize=12.5, **look)
    return layers


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
