"""Layers of a picture in few words: what is drawn, from which rows, where, and how it looks.

draw.line(rows, x=x, y=y, color=colour, strokeWidth=2)       # a dict is an encoding, any other value a look of the mark
draw.points(rows, x=x, y=y, color=MUTED, size=55, tooltip=what)
draw.rule(rows, x=x, **draw.between(y=y), color=colour)      # from the field "low" to the field "high"
draw.text(rows, "says", x=x, y=y, dy=-14)                    # `draw.haloed` is the same on a rim in the page's colour
draw.level(0, y=y, strokeDash=draw.DASHED)                     # one line across the picture

what = draw.columns(layer="layer:O", name="dimension:N", value="r", low="95 % from", high="to")
chart(..., layers=[draw.points(rows, x=x, y=y, tooltip=what)], **what.table(rows))
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from outlierlens.view.charts.base import Cell, Looks, Spec, field, label, round_to
from outlierlens.view.charts.palette import DIM_COLOURS, INK, MUTED, SHAPES, SURFACE

Rows = Sequence[Mapping[str, Any]]
KINDS = {"N": "nominal", "O": "ordinal"}
ENDS = {"low": "95 % from", "high": "to"}
"""Columns of an interval, as in `columns(value="r", **ENDS)`; `CHANGE` those of a change from raw vectors."""
CHANGE = {"change": "change from raw", "change_low": "95 % from", "change_high": "to"}
SETTLED = [{"filter": "isValid(datum.low) && isValid(datum.high)"}]
"""The transform of a layer of bars over rows of which some have no interval."""
HALO = {"stroke": SURFACE, "strokeWidth": 4, "strokeJoin": "round"}
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


def haloed(rows: Rows | None, says: str, *, color: str = INK, **how: Any) -> list[Spec]:
    """`text` that stays legible over other marks: twice, below it a rim in the colour of the page."""
    return [text(rows, says, **how, **ink) for ink in (HALO | {"color": SURFACE}, {"color": color})]


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
