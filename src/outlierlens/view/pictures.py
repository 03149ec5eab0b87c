"""Pictures declared over the tables of a finding; axes, tooltips, captions and numbers come from the columns.

    Strips(rows="treatments", x="change", y="treatment", by="dims", draws="random")   # dots with bars, a strip for each y
    Lines(rows="settings", x="bits", y="change", by="scheme", draws="random")         # a line for each of `by`

A picture says what each of its series is, and its caption says the numbers that it shows.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import outlierlens.view.charts.base as charts
import outlierlens.view.charts.draw as d
from outlierlens.errors import BadInput
from outlierlens.statistics.means import interval_text
from outlierlens.view.charts.base import COLOURED, INK, MUTED, Chart, Spec, bar, field, symmetric
from outlierlens.view.charts.draw import above, composed, heading, interval_dots, lines, null_dots, panel
from outlierlens.view.section import cell_text, few, point, round_to, text_of

if TYPE_CHECKING:
    from outlierlens.results.finding import Finding
    from outlierlens.results.rows import Column, Row

WIDTH = 640  # pixels of a panel
STRIP, LINES = 44, 240  # pixels of a strip, and of a panel of lines
SAID = 12  # values that a caption says; of more, the first and the last and the extremes
ROOM = 30  # letters of a line of an axis' title
Datum = dict[str, Any]


def everything(_: Any) -> bool:
    """Choose every row."""
    return True


@dataclass(frozen=True, kw_only=True)
class Picture(ABC):
    """One panel over a table: `rows` names it, `x`, `y`, `by` and `draws` its columns.

    Attributes:
        where: chooses rows. title: of the panel. says: what is written above the mark of a row.
        extra: data that no row holds, by the picture's own field names, such as "nothing done" at factor 1.
        greys: what the grey marks are; {n} is how many, {of} is "alike" or "as 8, 24".
        captioned: whether the caption says its numbers.
    """

    rows: str
    x: str
    y: str
    by: str = ""
    draws: str = ""
    says: Callable[[Any], str] = lambda _: ""
    title: str = ""
    greys: str = "{n} random sets treated {of}"
    captioned: bool = True
    where: Callable[[Any], bool] = everything
    extra: Callable[[Any], list[Datum]] = lambda _: []

    def chosen(self, found: "Finding") -> "list[Row]":
        """The rows that it draws: those of the first `COLOURED` groups; none where nothing of them is a number."""
        rows = [row for row in getattr(found, self.rows) if self.where(row)]
        known = [
            _plain(getattr(row, self.value)) is not None or (self.draws and getattr(row, self.draws)) for row in rows
        ]
        groups = self.groups(rows) if any(known) else []
        return [row for row in rows if self.group(row) in groups]

    def groups(self, rows: "list[Row]") -> list[str]:
        """What `by` tells apart, at most as many as have a colour."""
        return list(dict.fromkeys(map(self.group, rows)))[:COLOURED]

    def group(self, row: "Row") -> str:
        """The group of a row."""
        return text_of(getattr(row, self.by)) if self.by else ""

    @property
    def value(self) -> str:
        """The axis that is measured."""
        return self.y

    def data(self, found: "Finding") -> tuple[list[Datum], list[Datum]]:
        """(a datum for each row, one for each draw of the first group that has any)."""
        rows = self.chosen(found)
        data, grey = [], []
        for row in rows:
            datum: Datum = {"group": self.group(row), "says": self.says(row)}
            datum |= {axis: _plain(getattr(row, axis)) for axis in (self.x, self.y)}
            value = getattr(row, self.value)
            datum |= bar(value.low, value.high) if hasattr(value, "settled") else {"low": None, "high": None}
            data.append(datum)
            if self.draws and datum["group"] == self.greyed(rows):
                grey += [
                    datum | {self.value: round_to(one), "spread": d.spread(i), "which": i}
                    for i, one in enumerate(getattr(row, self.draws))
                    if math.isfinite(one)
                ]
        return data + self.extra(found), grey

    def greyed(self, rows: "list[Row]") -> str:
        """The group whose draws are shown: the first that has any."""
        return next((self.group(row) for row in rows if getattr(row, self.draws)), "")

    def column(self, found: "Finding", name: str) -> "Column":
        """A column of its table."""
        return next(one for one in getattr(found, self.rows)[0].columns() if one.name == name)

    def head(self, found: "Finding", name: str) -> str:
        """What an axis is called."""
        return self.column(found, name).head.format_map(found.about.words)

    def tooltip(self, found: "Finding") -> list[Spec]:
        """Of a mark."""
        group = {"group": f"{self.head(found, self.by)}:N"} if self.by else {}
        kinds = {axis: self.head(found, axis) for axis in (self.x, self.y)}
        rows = self.chosen(found)
        names = {axis: f"{head}:N" if any(isinstance(_plain(getattr(r, axis)), str) for r in rows) else head
                 for axis, head in kinds.items()}  # fmt: skip
        return d.columns(**group, **names, **d.ENDS)

    def legend(self, found: "Finding") -> list[str]:
        """What its marks are, a line each, where no legend says it."""
        rows = self.chosen(found)
        n = max((len(getattr(row, self.draws)) for row in rows), default=0) if self.draws else 0
        several = bool(self.by) and len(self.groups(rows)) > 1
        of = f"as {self.greyed(rows)}" if n and several else "alike"
        mine = self.group(rows[0]) or few(found.about.dims)
        said = (
            f"coloured: {mine}" if mine and not several else "",
            "grey: " + self.greys.format(n=n, of=of) if n else "",
        )
        return [line for line in said if line]

    def caption(self, found: "Finding") -> str:
        """The numbers that it shows, in words; none where the sentences say them."""
        if not self.captioned:
            return ""
        rows = [row for row in self.chosen(found) if isinstance(point(getattr(row, self.value)), int | float)]
        column, other = self.column(found, self.value), self.x if self.value == self.y else self.y
        said = [f"{_label(self, row, other)} {_written(column, getattr(row, self.value))}" for row in rows]
        if len(said) > SAID:
            order = sorted(range(len(rows)), key=lambda i: point(getattr(rows[i], self.value)))
            kept = sorted({0, len(rows) - 1, order[0], order[-1]})
            said = [said[i] for i in kept] + [f"{len(rows) - len(kept):,} more between these"]
        values = [one for row in rows for one in getattr(row, self.draws)] if self.draws else []
        if values:
            kind = column.kind or float
            middle, most = (cell_text(kind(v)) for v in (float(np.median(values)), max(values)))
            said.append(f"{self.greys.format(n=len(values), of='alike')}: median {middle}, largest {most}")
        return f"{self.head(found, self.value)}: {'; '.join(said)}." if said else ""

    @abstractmethod
    def panel(self, found: "Finding") -> Spec:
        """Its layers."""


@dataclass(frozen=True, kw_only=True)
class Strips(Picture):
    """A strip for each value of `y`: a dot with its interval over `x`, and the draws of random sets as grey dots."""

    @property
    def value(self) -> str:
        """The axis that is measured."""
        return self.x

    def panel(self, found: "Finding") -> Spec:
        data, grey = self.data(found)
        order, groups = (list(dict.fromkeys(one[key] for one in data)) for key in (self.y, "group"))
        values = _extent(data, grey, self.x)
        x = symmetric(values, factor=30.0).encoding(self.x, _folded(self.head(found, self.x)), padding=24)
        y, look = d.strips(self.y, order), dict[str, Any]()
        if len(groups) > 1:
            colour, shape = d.both("group", groups)
            look = {"color": colour, "shape": shape, "yOffset": d.nominal("group") | {"scale": {"domain": groups}}}
        dots = (
            d.tick(grey, x=x, y=y, color=MUTED, thickness=2, opacity=0.55) if look else null_dots(grey, x, y, size=36)
        )
        shown = d.known(data, self.x)
        layers: list[Spec] = [
            d.level(0, x=x, strokeDash=d.DASHED),
            dots,
            *interval_dots(shown, x, y, self.tooltip(found), **look),
        ]
        if not look:
            layers.append(d.text([one for one in shown if one["says"]], "says", x=x, y=y, dy=-14, color=INK))
        return panel(_filled(layers), WIDTH, 40 + max(STRIP, 20 * len(groups)) * len(order), self.title)


@dataclass(frozen=True, kw_only=True)
class Lines(Picture):
    """A line for each value of `by` over `x` with the bars of its intervals; draws of random sets as grey lines."""

    def panel(self, found: "Finding") -> Spec:
        data, grey = self.data(found)
        groups = list(dict.fromkeys(one["group"] for one in data))
        ordered = list(dict.fromkeys(one[self.x] for one in data))
        if any(isinstance(one, str) for one in ordered) or self.x == "layer":
            x = d.layer_axis(ordered, self.head(found, self.x)) | {"field": self.x}
        else:
            x = field(self.x, self.head(found, self.x), axis={"tickCount": 7})
            data.sort(key=lambda one: (groups.index(one["group"]), one[self.x]))
        shown = d.known(data, self.y)
        values = _extent(shown, grey, self.y)
        y = symmetric(values).encoding(self.y, _folded(self.head(found, self.y)))
        looks = (charts.colours(groups), charts.shapes(groups)) if self.by == "fix" else ()
        colour, shape = d.both("group", groups, *looks)
        if len(groups) == 1:
            colour["legend"] = shape["legend"] = None
        layers: list[Spec] = [
            d.line(
                _with_shared(data, grey, self.x),
                x=x,
                y=y,
                detail=d.nominal("which"),
                color=MUTED,
                strokeWidth=1,
                opacity=0.6,
            ),
            d.rule(d.known(shown), x=x, **d.between(y=y), color=colour, strokeWidth=1.5),
            *lines(shown, x, y, (colour, shape), self.tooltip(found), size=80),
        ]
        return panel(_filled(layers), WIDTH, LINES, self.title)


def draw(found: "Finding") -> Chart:
    """All pictures of a finding that have rows, one below another; its records are the numbers behind them."""
    drawn = [one for one in found.drawn() if one.chosen(found)]
    if not drawn:
        raise BadInput(f"{found.title}: it has no row that a picture draws")
    numbers, dims = list(found.records()), few(found.about.dims)
    of = f", {found.about.kind}{'s' * (len(found.about.dims) > 1)} {dims}" if dims else ""
    panels = []
    for one in drawn:
        made, legend = one.panel(found), one.legend(found)
        if legend:
            looks = {} if one.title else {"color": MUTED, "fontWeight": "normal"}
            made["title"] = heading(*filter(None, (one.title, legend)), **looks)
        panels.append(made)
    bars = "Bars are 95 % intervals." if re.search(r'"low": -?\d', json.dumps(panels)) else ""
    said = (*found.sentences(), *(one.caption(found) for one in drawn), bars)
    return composed(
        name=found.name,
        title=f"{found.provenance.subject}{of}: {found.title[:1].lower()}{found.title[1:]}",
        reading=" ".join(filter(None, said)),
        body=above(panels, 30, apart=("x", "y", "color", "shape"))
        if len(panels) > 1
        else panels[0] | {"width": "container"},
        **d.columns(**{key: key.replace("_", " ") for key in numbers[0]}).table(numbers),
    )


def _extent(data: list[Datum], grey: list[Datum], axis: str) -> np.ndarray:
    """All values on an axis, the ends of intervals among them, and 0."""
    drawn = [one[key] for one in data for key in (axis, "low", "high")] + [one[axis] for one in grey]
    return np.array([value for value in drawn if value is not None] + [0.0])


def _filled(layers: list[Spec]) -> list[Spec]:
    """The layers that have data: of an empty one a browser cannot tell the extent."""
    return [one for one in layers if one.get("data", {}).get("values", True)]


def _with_shared(data: list[Datum], grey: list[Datum], x: str) -> list[Datum]:
    """Grey lines with what is the same for all draws ("same": nothing done) on each of them."""
    shared = [one for one in data if one.get("same") and grey and one["group"] == grey[0]["group"]]
    copies = [one | {"which": which} for one in shared for which in {row["which"] for row in grey}]
    return sorted([*grey, *copies], key=lambda one: (one["which"], 0 if isinstance(one[x], str) else one[x]))


def _label(picture: Picture, row: "Row", axis: str) -> str:
    return " ".join(filter(None, (picture.group(row), text_of(point(getattr(row, axis))))))


def _written(column: "Column", value: Any) -> str:
    shown = cell_text(column.kind(point(value)) if column.kind else point(value))
    if hasattr(value, "settled") and value.settled:
        form = "+.3g" if shown[:1] in "+-−" else ".3g"
        return f"{shown} ({interval_text(value.low, value.high, form)})"
    return shown


def _folded(head: str) -> list[str]:
    """The title of an axis in lines that a narrow screen does not cut."""
    at = head.rfind(" (")
    return [head[:at], head[at + 1 :]] if len(head) > ROOM and at > 0 else [head]


def _plain(value: Any) -> Any:
    """A value for JSON."""
    value = point(value)
    return round_to(value) if isinstance(value, float) else text_of(value) if isinstance(value, tuple) else value
