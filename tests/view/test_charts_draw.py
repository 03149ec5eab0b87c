"""The few words that pictures are made of: columns, dots and scales.

What a verdict says where there is no interval, for every kind of result that rests on one.

A repair looks the same in every chart that draws it.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import embed_results
from outlierlens.results.rows import Estimate
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import DIM_COLOURS, INK, colours, field, shapes, symmetric

X, Y = field("x", "across"), field("y", "up")


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


def test_no_bar_where_there_is_no_interval():
    rows = [{"x": 1, "y": 2.0, "low": 1.5, "high": 2.5}, {"x": 2, "y": 3.0, "low": None, "high": None}]
    bars, dots = draw.interval_dots(rows, X, Y, draw.columns(x="across"))
    assert (bars["data"]["values"], dots["data"]["values"]) == (rows[:1], rows)


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


def test_sentence_pairs_say_how_many_settle_a_correlation() -> None:
    found = embed_results.similarity()
    choices = tuple(
        replace(one, change=Estimate(one.change.value), says="not settled") if one.fix == "clip" else one
        for one in found.choices
    )
    (section,) = replace(found, choices=choices).sections()
    said = "sts13, not settled: 28 independent pairs are too few for an interval; read 598 or more."
    assert any(said in table.note for table in section.tables)


USUAL = ("raw", "clip", "standardize", "abtt:3", "whiten")


def test_a_fix_keeps_its_look_whatever_stands_beside_it() -> None:
    looks = dict(zip(USUAL, zip(colours(USUAL), shapes(USUAL), strict=True), strict=True))
    assert looks["raw"] == (INK, "circle")
    assert looks["clip"] == (DIM_COLOURS[0], "diamond")
    for fixes in (("whiten", "raw"), ("raw", "abtt:3"), ("standardize", "whiten", "clip")):
        assert list(zip(colours(fixes), shapes(fixes), strict=True)) == [looks[fix] for fix in fixes]


@pytest.mark.parametrize("fixes", [USUAL, ("raw", "whiten", "whiten:64", "whiten:256", "abtt:1", "abtt:3"), ("x", "y")])
def test_no_two_look_alike(fixes: tuple[str, ...]) -> None:
    assert len(set(colours(fixes))) == len(set(shapes(fixes))) == len(fixes)
