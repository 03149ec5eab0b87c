"""A repair looks the same in every chart that draws it."""

import pytest

from outlierlens.view.charts.base import DIM_COLOURS, INK, colours, shapes

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
