"""Layers of a picture in few words: what is drawn, from which rows, where, and how it looks.

Beside them: numbers of dimensions at a column, a line's end or a point; the house's forms, which several charts share; and
pictures of several panels.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from outlierlens.view.charts.base import (
    ALARM,
    DIM_COLOURS,
    INK,
    MUTED,
    SHAPES,
    TABLE_ROWS,
    Cell,
    Chart,
    Looks,
    Spec,
    field,
    framed,
    label,
    round_to,
)

Rows = Sequence[Mapping[str, Any]]
KINDS = {"N": "nominal", "O": "ordinal"}
ENDS = {"low": "95 % from", "high": "to"}
"""Columns of an interval, as in `columns(value="r", **ENDS)`."""
SETTLED = [{"filter": "isValid(datum.low) && isValid(datum.high)"}]
"""The transform of a layer of bars over rows of which some have no interval."""
DASHED = [4, 3]
GOLDEN = 0.6180339887  # multiples of it, modulo 1, spread dots evenly whatever their number
JITTER: Spec = {"field": "spread", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": None, "legend": None}
"""The offset of a dot within its strip, for rows with `spread`."""


def mark(kind: str, rows: Rows | None, transform: Sequence[Spec] = (), **how: Any) -> Spec:
    """One layer of marks of a kind. Of `how` a dict and the tooltip are encodings, any other value is a look of the mark.

    `rows` is None where the layer takes the data of what it stands in.
    """
    encoding = {key: value for key, value in how.items() if isinstance(value, dict) or key == "tooltip"}
    looks = {key: value for key, value in how.items() if key not in encoding}
    made: Spec = {} if rows is None else {"data": {"values": rows}}
    made |= {"transform": list(transform)} if transform else {}
    return made | {"mark": {"type": kind} | looks, "encoding": encoding}


area, bar, circle = partial(mark, "area"), partial(mark, "bar"), partial(mark, "circle")
line, rect, rule, tick = partial(mark, "line"), partial(mark, "rect"), partial(mark, "rule"), partial(mark, "tick")


def points(rows: Rows | None, **how: Any) -> Spec:
    """Filled marks, opaque unless `opacity` says otherwise."""
    return mark("point", rows, **({"filled": True, "opacity": 1} | how))


def text(rows: Rows | None, says: str, **how: Any) -> Spec:
    """The words in the field `says` of each row."""
    return mark("text", rows, text=nominal(says), **how)


def sharing(rows: Rows, *layers: Spec) -> Spec:
    """Layers, made with None for their rows, over the same rows, which stand in the specification once."""
    return {"data": {"values": rows}, "layer": list(layers)}


def level(
    value: float | None, *, color: str = MUTED, x: Spec | None = None, y: Spec | None = None, **look: Any
) -> Spec:
    """One line across the picture, at a value of the axis `x` or `y`."""
    axis = {"x": x} if x is not None else {"y": y}
    (encoding,) = axis.values()
    assert encoding is not None
    return rule([{encoding["field"]: value}], **axis, color=color, **look)


def between(low: str = "low", high: str = "high", **axis: Spec) -> Spec:
    """The encodings of an extent along one axis, given as x= or y=, from one field to another."""
    ((channel, encoding),) = axis.items()
    return {channel: encoding | {"field": low}, f"{channel}2": {"field": high}}


def nominal(name: str) -> Spec:
    """A field of names as an encoding without a title, such as what a line belongs to."""
    return {"field": name, "type": "nominal"}


def by(name: str, looks: Mapping[str, Any], **legend: Any) -> Spec:
    """A colour, shape or dash for each value of a field, in this order, with an untitled legend."""
    scale = {"domain": list(looks), "range": list(looks.values())}
    return nominal(name) | {"scale": scale, "legend": {"title": None} | legend}


def both(
    name: str, names: Sequence[str], colours: Sequence[str] = DIM_COLOURS, shapes: Sequence[str] = SHAPES, **legend: Any
) -> tuple[Spec, Spec]:
    """Colour and shape, so that colour is never the only sign: `by` for each of these names the next of either."""
    return by(name, dict(zip(names, colours, strict=False)), **legend), by(
        name, dict(zip(names, shapes, strict=False)), **legend
    )


def layer_axis(layers: Sequence[str | int], title: str | None = "layer", **axis: Any) -> Spec:
    """Layers from the embeddings upwards, as an ordinal x axis; `axis` are properties of it."""
    short = {"labelAngle": 0, "grid": False, "labelExpr": "datum.value === 'embeddings' ? 'emb' : datum.value"}
    scale = {"type": "point", "padding": 0.4}
    return field("layer", title, "ordinal", sort=list(layers), scale=scale, axis=short | axis)


def dim_axis(width: int, name: str = "dim", ticks: int = 12) -> Spec:
    """All dimensions of a stream of this width, as an x axis."""
    scale = {"domain": [-1, width], "nice": False}
    return field(name, "dimension", scale=scale, axis={"grid": False, "tickCount": ticks})


def strips(name: str, names: Sequence[str], room: int = 240, *, inner: float = 0.25, outer: float = 0.2) -> Spec:
    """Names down the y axis, a strip each, in this order; `room` pixels for a name, `inner` and `outer` of a strip apart."""
    axis = {"labelLimit": room, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8}
    scale = {"paddingInner": inner, "paddingOuter": outer}
    return field(name, None, "nominal", sort=list(names), axis=axis, scale=scale)


def dim_colour(shown: Looks, *, legend: bool = True) -> Spec:
    """Colour by dimension, of `looks`."""
    return _by_dim(shown, DIM_COLOURS, INK, legend)


def dim_strokes(shown: Looks) -> Spec:
    """Colour by dimension, of `looks`, with a legend of lines."""
    colour = _by_dim(shown, DIM_COLOURS, INK, legend=True)
    return colour | {"legend": colour["legend"] and colour["legend"] | {"symbolType": "stroke", "symbolStrokeWidth": 3}}


def dim_shape(shown: Looks, *, legend: bool = True) -> Spec:
    """Shape by dimension; goes with `dim_colour` so that colour is never the only sign."""
    return _by_dim(shown, SHAPES, "circle", legend)


def dim_look(shown: Looks, *, legend: bool = True) -> dict[str, Spec]:
    """Colour and shape by dimension as `color` and `shape` of a layer."""
    return {"color": dim_colour(shown, legend=legend), "shape": dim_shape(shown, legend=legend)}


def _by_dim(shown: Looks, values: Sequence[str], ink: str, legend: bool) -> Spec:
    coloured = [label(dim) for dim, place in shown.items() if place is not None]
    # Those in ink have their number beside them.
    entries = {"title": None} | ({"values": coloured} if len(coloured) < len(shown) else {})
    return {
        "field": "name",
        "type": "nominal",
        "scale": {
            "domain": [label(dim) for dim in shown],
            "range": [ink if place is None else values[place] for place in shown.values()],
        },
        "legend": entries if legend and coloured else None,
    }


def spread(number: int) -> float:
    """Where in its strip the dot with this number stands, from 0 to 1; see `JITTER`."""
    return round((0.5 + number * GOLDEN) % 1, 3)


def known(rows: Iterable[Spec], *names: str) -> list[Spec]:
    """The rows that have a number in each of these fields; in "low" and "high" unless fields are named."""
    return [row for row in rows if all(row[name] is not None for name in names or ("low", "high"))]


class Columns(list[Spec]):
    """Fields with their titles: a tooltip as it stands, and with rows the table behind a picture."""

    def table(self, rows: Iterable[Any], digits: int = 4) -> dict[str, Any]:
        """`columns` and `rows` for `chart`, numbers to that many significant digits; None where a row lacks a field.

        A row is a datum by field, or a result with the fields as its attributes.
        """
        names = [one["field"] for one in self]
        return {
            "columns": tuple(one["title"] for one in self),
            "rows": [tuple(_cell(row, name, digits) for name in names) for row in rows],
        }


def columns(**titles: str | Spec) -> Columns:
    """Fields by name with their titles. A title ends in ":N" for names and ":O" for ordered names, else it is of numbers; a
    whole `field` may stand for it, such as one with a format."""
    return Columns(_column(name, title) for name, title in titles.items())


def _column(name: str, title: str | Spec) -> Spec:
    if not isinstance(title, str):
        return title
    said, colon, kind = title.rpartition(":")
    return field(name, said, KINDS[kind]) if colon and kind in KINDS else field(name, title)


def _cell(row: Any, name: str, digits: int) -> Cell:
    value: Cell = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
    return round_to(value, digits) if isinstance(value, float) else value


# --- numbers of dimensions beside their marks ------------------------------------------------------------------------

MOST = 24  # numbers of one picture; more could not be read
NEAR = 0.05  # of the height: ends that are nearer have their numbers side by side


def inked_dims(shown: Looks) -> list[int]:
    """Those that `looks` leaves without a colour."""
    return [dim for dim, place in shown.items() if place is None]


def names_above(dims: Sequence[int], width: int, x: Spec) -> list[Spec]:
    """The dimensions' numbers above their columns, of the first `MOST`, on the number of lines that their nearness needs."""
    lines: list[list[int]] = []
    for dim in sorted(dims[:MOST]):
        line = next((line for line in lines if dim - line[-1] > 0.07 * width), None)
        if line is None:
            lines.append([dim])
        else:
            line.append(dim)
    look: Spec = {"x": x | {"field": "dim"}, "fontWeight": 700, "fontSize": 13}
    return [
        text([{"dim": dim, "text": str(dim)} for dim in line], "text", y=-9 - 14 * number, **look)
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
        layers.append(text(column, "says", x=x, y=y, align="left", dx=shift, **look))
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


# --- forms -----------------------------------------------------------------------------------------------------------


def lines(
    rows: Rows | None, x: Spec, y: Spec, look: tuple[Spec, Spec], what: list[Spec], *, width: float = 2, size: int = 60
) -> list[Spec]:
    """A line for each name with marks on it; `look` is its colour and shape, as `draw.both` makes them."""
    colour, shape = look
    return [
        line(rows, x=x, y=y, color=colour, strokeWidth=width),
        points(rows, x=x, y=y, color=colour, shape=shape, tooltip=what, size=size),
    ]


def interval_dots(rows: list[Spec], x: Spec, y: Spec, what: list[Spec], *, size: int = 110, **look: Any) -> list[Spec]:
    """A dot for each row with the bar of its interval, where it has one; diamonds in the alarm colour unless `look` differs."""
    shape = look.pop("shape", "diamond")
    look = {"y": y, "color": ALARM, "tooltip": what} | look
    return [
        rule(known(rows), **between(x=x), strokeWidth=2, **look),
        points(rows, x=x, shape=shape, size=size, **look),
    ]


def null_dots(rows: list[Spec], x: Spec, y: Spec, **look: Any) -> Spec:
    """Grey dots of random sets, which have a `spread`, within their strips."""
    dots = {"yOffset": JITTER, "shape": "circle", "size": 55, "color": MUTED, "opacity": 0.6}
    return points(rows, x=x, y=y, **(dots | look))


def heat(cells: Rows | None, x: Spec, y: Spec, shade: Spec, what: list[Spec], **look: Any) -> Spec:
    """A cell for each pair, of the strength that `strength` gives its value."""
    return rect(cells, x=x, y=y, opacity=shade, tooltip=what, **look)


def strength(name: str, top: float, *, faintest: float = 0.02, strongest: float = 1, **legend: Any) -> Spec:
    """Opacity of a cell by the size of a field, from 0 to `top`; without a legend unless there is something to say in it."""
    scale = {"domain": [0, top], "range": [faintest, strongest]}
    return {"field": name, "type": "quantitative", "scale": scale, "legend": legend or None}


def dim_marks(rows: Rows | None, shown: Looks, x: Spec, y: Spec, what: list[Spec], **look: Any) -> list[Spec]:
    """Named dimensions, rows with `name`, in their colour and shape; those beyond the colours in ink; no legend."""
    if rows is not None and not rows:
        return []
    looks = dim_look(shown, legend=False)
    return [points(rows, x=x, y=y, **looks, tooltip=what, **look)]


# --- panels ----------------------------------------------------------------------------------------------------------


def composed(
    *, name: str, title: str, reading: str, body: Spec, columns: Sequence[str], rows: Iterable[Any], total: int = 0
) -> Chart:
    """A chart of several panels in the house style; `total` is the number of rows where `rows` are already cut."""
    numbers = tuple(tuple(row) for row in rows)
    spec = framed(body, reading)
    return Chart(name, title, reading, spec, tuple(columns), numbers[:TABLE_ROWS], total or len(numbers))


def heading(text: str | list[str], subtitle: str | list[str] = "", **more: Any) -> Spec:
    """The title of a panel; a list is a line each."""
    made = {"text": text, "color": INK, "fontSize": 13, "anchor": "start"}
    if subtitle:
        made |= {"subtitle": subtitle, "subtitleColor": MUTED, "fontSize": 13.5, "subtitleFontSize": 12}
    return made | more


def panel(layers: Sequence[Spec], width: int, height: int, title: str | Spec = "", **more: Any) -> Spec:
    """Layers of one size, in pixels; a title in words becomes a `heading`."""
    made = {"width": width, "height": height, "layer": list(layers)} | more
    return made | ({"title": heading(title) if isinstance(title, str) else title} if title else {})


def above(panels: Sequence[Spec], spacing: int, apart: Sequence[str] = (), **more: Any) -> Spec:
    """Panels one below the other; `apart` are channels with a scale of their own in each."""
    return {"vconcat": list(panels), "spacing": spacing} | _independent(apart) | more


def beside(panels: Sequence[Spec], spacing: int, apart: Sequence[str] = (), **more: Any) -> Spec:
    """Panels side by side; `apart` as in `above`."""
    return {"hconcat": list(panels), "spacing": spacing} | _independent(apart) | more


def grid(panels: Sequence[Spec], per_row: int, *, across: int, down: int) -> Spec:
    """Panels in rows of `per_row`, that many pixels apart."""
    return above([beside(panels[i : i + per_row], across) for i in range(0, len(panels), per_row)], down)


def _independent(channels: Sequence[str]) -> Spec:
    return {"resolve": {"scale": dict.fromkeys(channels, "independent")}} if channels else {}
