"""The few words that pictures are made of: layers, columns and panels."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from outlierlens.view.charts import draw
from outlierlens.view.charts.base import chart, field, symmetric
from outlierlens.view.charts.draw import above, beside, composed, grid, interval_dots, panel

X, Y = field("x", "across"), field("y", "up")
ROWS = [{"x": 1, "y": 2.0, "low": 1.5, "high": 2.5}, {"x": 2, "y": 3.0, "low": None, "high": None}]


def test_a_dict_is_an_encoding_and_any_other_value_a_look():
    what = draw.columns(x="across")
    made = draw.line(ROWS, x=X, color={"value": "red"}, strokeDash=[4, 3], tooltip=what)
    assert made == {
        "data": {"values": ROWS},
        "mark": {"type": "line", "strokeDash": [4, 3]},
        "encoding": {"x": X, "color": {"value": "red"}, "tooltip": [X]},
    }
    assert "data" not in draw.rule(None, x=X)
    assert draw.points(ROWS, x=X)["mark"] == {"type": "point", "filled": True, "opacity": 1}
    assert draw.points(ROWS, opacity=0.5)["mark"]["opacity"] == 0.5


def test_columns_are_tooltip_head_and_rows_of_one_declaration():
    share = field("share", "share", format=".1%")
    what = draw.columns(name="dimension:N", layer="layer:O", value="r: mean", share=share, p="rank p")
    assert [(one["field"], one["title"], one["type"]) for one in what] == [
        ("name", "dimension", "nominal"), ("layer", "layer", "ordinal"), ("value", "r: mean", "quantitative"),
        ("share", "share", "quantitative"), ("p", "rank p", "quantitative"),
    ]  # fmt: skip
    rows = [{"name": "dim 5", "layer": "0", "value": 0.123456, "share": math.nan, "unseen": 1}]
    assert what.table(rows) == {
        "columns": ("dimension", "layer", "r: mean", "share", "rank p"),
        "rows": [("dim 5", "0", 0.1235, None, None)],
    }
    assert what[2:3] == [field("value", "r: mean")]
    assert draw.columns(value="v").table([SimpleNamespace(value=1.23456789)], digits=6)["rows"] == [(1.23457,)]
    with pytest.raises(AttributeError):
        draw.columns(value="v").table([SimpleNamespace(other=1)])


def test_levels_extents_and_words():
    assert draw.level(0, y=Y)["data"] == {"values": [{"y": 0}]}
    assert draw.between("a", "b", y=Y) == {"y": Y | {"field": "a"}, "y2": {"field": "b"}}
    rim, words = draw.haloed(ROWS, "says", x=X, dx=4)
    assert rim["encoding"] == words["encoding"] == {"x": X, "text": {"field": "says", "type": "nominal"}}
    assert (rim["mark"]["stroke"], "stroke" in words["mark"]) == (draw.SURFACE, False)
    bars, dots = interval_dots(ROWS, X, Y, draw.columns(x="across"))
    assert (bars["data"]["values"], dots["data"]["values"]) == (ROWS[:1], ROWS)  # no bar where there is no interval


def test_dots_of_a_strip_stand_apart():
    places = [draw.spread(i) for i in range(50)]
    assert all(0 <= place < 1 for place in places)
    assert min(abs(a - b) for i, a in enumerate(places) for b in places[:i]) > 0.01


def test_a_scale_says_in_the_last_line_of_a_title_that_it_bends():
    values = np.array([0.1, 0.2, 1000.0])
    bent = symmetric(values)
    assert bent.log
    assert bent.encoding("v", ["change", "nats"], padding=5)["title"] == ["change", "nats (symmetric log scale)"]
    even = symmetric(values[:2])
    assert even.encoding("v", "change", padding=5) == field(
        "v", "change", scale={"zero": False, "nice": True, "padding": 5}, axis={}
    )


def test_panels_keep_what_they_hold_and_the_frame_stands_once():
    layers = [draw.points(ROWS, x=X, y=Y)]
    what = draw.columns(x="across", y="up")
    one = chart(name="one", title="One", reading="One.", layers=layers, height=50, **what.table(ROWS))
    part = panel(layers, 200, 50, "One")
    assert part == {"width": 200, "height": 50, "layer": layers, "title": part["title"]}
    assert part["title"]["text"] == "One"
    body = above([beside([part, part], 10, apart=("color",)), panel(layers, 5, 6)], 20)
    both = composed(name="both", title="Both", reading="Two.", body=body, **one.numbers)
    assert both.spec["vconcat"][0]["resolve"] == {"scale": {"color": "independent"}}
    assert both.spec["description"] == "Two."
    assert (both.columns, both.rows, both.total) == (one.columns, one.rows, 2)
    assert [len(row["hconcat"]) for row in grid([part] * 5, 2, across=1, down=2)["vconcat"]] == [2, 2, 1]
