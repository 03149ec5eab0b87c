"""The engine of findings, on a toy analysis: tables, records, JSON, sections and pictures follow from its rows."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pytest

from outlierlens.errors import BadFile, BadInput
from outlierlens.results.document import Provenance, from_json, to_json
from outlierlens.results.finding import About, Finding
from outlierlens.results.rows import Draws, Estimate, More, Pivot, Quiet, Row
from outlierlens.view.charts.base import picture
from outlierlens.view.pictures import Lines, Strips
from outlierlens.view.render import printed
from outlierlens.view.section import Change, Count, Share


@dataclass(frozen=True, kw_only=True)
class ToyRow(Row):
    dims: tuple[int, ...]
    """dimensions"""
    layer: int
    change: Annotated[Estimate, Change]
    """change of the {task} ({unit}): minus intact"""
    share: Annotated[Estimate, Share]
    """recovered"""
    random: Annotated[tuple[float, ...], Draws, Change] = ()
    n: Annotated[int, Count, More] = 0
    """values"""
    per_text: Annotated[tuple[float, ...], "text", Quiet] = ()


@dataclass(frozen=True, kw_only=True)
class Toy(Finding):
    title = "Toy with dimensions"
    pictures = (
        Strips(rows="rows", x="change", y="layer", by="dims", draws="random"),
        Lines(rows="rows", x="layer", y="change", by="dims", draws="random"),
    )

    rows: tuple[ToyRow, ...]
    """Rows: what a toy says."""
    more: tuple[ToyRow, ...] = ()
    """(Further rows)"""

    def sentences(self) -> Iterator[str]:
        yield f"Layer {self.rows[0].layer} changes by {self.rows[0].change.written()}."


def toy_row(layer: int, change: float, dims: tuple[int, ...] = (3, 7), **more: Any) -> ToyRow:
    estimate = Estimate(change, change - 0.5, change + 0.5)
    how: dict[str, Any] = {"random": (0.25, 0.75), "per_text": (1.0, 2.0), "n": 1234} | more
    return ToyRow(dims=dims, layer=layer, change=estimate, share=Estimate(0.5, 0.25, 0.75), **how)


def toy(**more: Any) -> Toy:
    about = About(
        data="d", task="causal loss", unit="nats per token", dims=("3", "7"), layers=(0, 1), stack="model", n_texts=2
    )
    how: dict[str, Any] = {"rows": (toy_row(0, 2.0), toy_row(1, -1.0))} | more
    return Toy(provenance=Provenance("m", "f"), about=about, **how)


def test_columns_follow_from_fields() -> None:
    (table,) = toy().shown()
    head = "change of the causal loss (nats per token)"
    assert table.columns == (
        "dimensions",
        "layer",
        head,
        "95 %",
        "recovered",
        "95 %",
        "random median",
        "random largest",
    )
    text = printed(toy(more=toy().rows).sections(verbose=True), ())
    assert "values" in text
    assert "1,234" in text
    assert "Further rows" in text
    assert "Further rows" not in printed(toy(more=toy().rows).sections(), ())
    assert "+1.5 to +2.5" in text
    assert "25 to 75 %" in text


def test_a_column_that_says_nothing_is_left_out() -> None:
    one = replace(toy_row(0, 1.0, random=()), share=Estimate(math.nan), change=Estimate(1.0))
    (table,) = toy(rows=(one,)).shown()
    assert table.columns == ("dimensions", "layer", "change of the causal loss (nats per token)")


def test_records_and_frames() -> None:
    first = toy().to_pandas().iloc[0].to_dict()
    assert first["change"] == 2.0
    assert (first["change_low"], first["change_high"]) == (1.5, 2.5)
    assert (first["random_median"], first["random_largest"], first["n_random"]) == (0.5, 0.75, 2)
    assert "per_text" not in first
    assert len(list(toy(more=toy().rows[:1]).records("more"))) == 1
    with pytest.raises(BadInput, match=r"no table 'other'; there are rows"):
        list(toy().records("other"))


def test_one_line_and_its_dimensions() -> None:
    assert repr(toy()) == "<Toy of m>"
    assert toy().dims == (3, 7)
    assert replace(toy(), about=replace(toy().about, dims=("11:1229",))).dims == (1229,)


def test_files_hold_columns_and_come_back() -> None:
    document = json.loads(to_json(toy()))
    assert document["rows"]["layer"] == [0, 1]
    back = from_json(to_json(toy()))
    assert back == toy()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layer": [0]}, "same number of rows"),
        ({"per_text": [[1.0, 2.0], [1.0]]}, r"rows\.per_text\[1\]: its shape is \[1\], but \[text\] is \[2\]"),
        ({"layer": [0, "x"]}, r"rows\.layer\[1\]: expected int"),
        ({"change": [1, 2]}, "expected an object for Estimate"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change: dict[str, Any], says: str) -> None:
    document = json.loads(to_json(toy()))
    document["rows"] |= change
    with pytest.raises(BadFile, match=says):
        from_json(json.dumps(document))


def test_a_missing_column_or_another_form_is_refused() -> None:
    document = json.loads(to_json(toy()))
    for wrong, says in (([{}], "expected columns"), (3, "expected tuple")):
        with pytest.raises(BadFile, match=says):
            from_json(json.dumps(document | {"rows": wrong}))
    del document["rows"]["change"]
    with pytest.raises(BadFile, match="change is missing"):
        from_json(json.dumps(document))


def test_a_pivot_has_every_layer() -> None:
    rows = tuple(toy_row(layer, layer + dim / 10, (dim,)) for layer in range(200) for dim in (3, 7))
    table = Pivot("layer", "dims", "change").table("T", rows, "", toy().about.words)
    assert table.columns == ("layer", "3", "7")
    assert len(table.rows) == 200
    assert table.rows[5] == ("5", Change(5.3), Change(5.7))
    wide = tuple(toy_row(0, 1.0, (dim,)) for dim in range(30))
    assert "And 6 more columns" in Pivot("layer", "dims", "change").table("T", wide, "", toy().about.words).note


def test_nothing_is_drawn_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> Any:
        raise AssertionError("drawn")

    monkeypatch.setattr("outlierlens.view.pictures.draw", refuse)
    assert "Layer 0 changes by +2" in str(printed(toy().sections(), ()))
    (section,) = toy().sections()
    with pytest.raises(AssertionError, match="drawn"):
        _ = section.charts


def test_pictures_compile_and_say_their_numbers() -> None:
    chart = toy().chart()
    assert chart.title == "m, dimensions 3, 7: toy with dimensions"
    assert "0 +2 (+1.5 to +2.5); 3, 7 1 -1 (-1.5 to -0.5)" in chart.reading.replace("−", "-")
    assert "4 random sets treated alike: median +0.5, largest +0.75" in chart.reading
    assert picture(chart, "svg").startswith(b"<svg")
    text = json.dumps(chart.spec)
    assert "grey: 2 random sets treated alike" in text
    assert chart.columns[:3] == ("dims", "layer", "change")


def test_arrays_make_a_record_for_each_cell() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Grid(Finding):
        axes = ("layer", "dim")
        layers: tuple[str, ...]
        mean: np.ndarray

    found = Grid(
        provenance=Provenance("m", "f"), about=About(), layers=("0", "1"), mean=np.array([[1.0, 2.0], [3.0, 4.0]])
    )
    assert list(found.records())[2] == {"layer": "1", "dim": 0, "mean": 3.0}
