"""More named dimensions than colours: none of them counts among "the others", and each can be told from the rest."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import synthetic_report as synthetic
from outlierlens.analyses.observe import Observation, observe
from outlierlens.analyses.scan import found_first
from outlierlens.data.texts import Texts
from outlierlens.detection.activations import ObserveOptions
from outlierlens.detection.observed import StackObservation
from outlierlens.models.load import LoadedModel
from outlierlens.report.files import charts_of
from outlierlens.view import charts
from outlierlens.view.charts import Chart, draw
from outlierlens.view.charts.base import COLOURED, DIM_COLOURS, INK, label, looks, strongest_first
from outlierlens.view.charts.draw import MOST, names_above, names_at_ends

PLANTED = (8, 24, 40, 56, 72, 88, 104, 120)  # of mini-planted
NAME = "mini-planted"
TEXTS = (
    "I went into this movie with low expectations.",
    "The actors are good and the ending made me cry.",
    "A bad film.",
)


def layers_of(spec: Any) -> list[dict[str, Any]]:
    """Every layer with data of its own, from panels too."""
    if isinstance(spec, list):
        return [layer for part in spec for layer in layers_of(part)]
    if not isinstance(spec, dict):
        return []
    own = [spec] if "mark" in spec and "values" in spec.get("data", {}) else []
    inner = [part for key in ("layer", "hconcat", "vconcat") for part in spec.get(key, [])]
    inherited = [{"data": spec["data"]} | part for part in inner] if "values" in spec.get("data", {}) else inner
    return own + layers_of(inherited)


def colours(chart: Chart) -> dict[str, str]:
    """{name of a dimension: its colour} over all scales of a picture."""
    found: dict[str, str] = {}
    for layer in layers_of(chart.spec):
        for channel in ("color", "stroke"):
            scale = layer.get("encoding", {}).get(channel, {}).get("scale", {})
            found |= dict(zip(scale.get("domain", ()), scale.get("range", ()), strict=True))
    return {name.removeprefix("dim "): colour for name, colour in found.items() if name.startswith("dim ")}


def legend(chart: Chart) -> set[str]:
    """Dimensions in the legend, where it names some only."""
    entries = [layer.get("encoding", {}).get("color", {}).get("legend") for layer in layers_of(chart.spec)]
    return {value.removeprefix("dim ") for one in entries if one for value in one.get("values", ())}


def written(chart: Chart) -> set[str]:
    """What stands in the picture as text."""
    marks = [layer for layer in layers_of(chart.spec) if layer["mark"]["type"] == "text"]
    keys = {layer["encoding"]["text"]["field"] for layer in marks}
    return {str(row[key]) for layer in marks for row in layer["data"]["values"] for key in keys if key in row}


def among(chart: Chart, dash: list[int]) -> list[float]:
    """Values of the plain line with that dash."""
    line = next(one for one in chart.spec["layer"] if one["mark"].get("strokeDash") == dash)
    return [row[line["encoding"]["y"]["field"]] for row in line["data"]["values"]]


def test_the_first_six_have_colours_and_all_leave_the_others() -> None:
    named = tuple(range(10, 18))
    shown = looks(named, [9, 17, 11, 10, 16])
    assert shown == {10: 0, 11: 1, 16: None, 17: None}
    colour = draw.dim_colour(shown)
    assert colour["scale"] == {
        "domain": ["dim 10", "dim 11", "dim 16", "dim 17"], "range": [*DIM_COLOURS[:2], INK, INK],
    }  # fmt: skip
    assert colour["legend"]["values"] == ["dim 10", "dim 11"]
    assert "values" not in draw.dim_colour(looks(named[:6], named))["legend"]


def test_colours_go_by_strength_where_they_do_not_suffice() -> None:
    strength = {dim: float((dim * 7) % 8) for dim in range(8)}  # 0 7 6 5 4 3 2 1
    assert strongest_first(range(6), strength.__getitem__) == (0, 1, 2, 3, 4, 5)
    assert strongest_first(range(8), strength.__getitem__) == (1, 2, 3, 4, 5, 6, 7, 0)
    assert strongest_first((3, 1, 3), lambda _: 0.0) == (3, 1)
    assert strongest_first(range(8), lambda dim: float("nan") if dim == 1 else strength[dim])[-1] == 1


def test_numbers_at_line_ends_stand_apart() -> None:
    shown = dict.fromkeys(range(4))
    ends = {0: 1.0, 1: 0.99, 2: 0.5, 3: 0.98}
    rows = [{"name": label(dim), "layer": x, "v": value * x} for dim, value in ends.items() for x in (0, 1)]
    layers = names_at_ends(rows, shown, {"field": "layer"}, {"field": "v"})
    columns = [[row["says"] for row in layer["data"]["values"]] for layer in layers]
    assert columns == [["2", "3"], ["1"], ["0"]]
    shifts = [layer["mark"]["dx"] for layer in layers]
    assert shifts == sorted(set(shifts))
    assert all(row["layer"] == 1 for layer in layers for row in layer["data"]["values"])
    assert not names_at_ends(rows, {0: 3}, {"field": "layer"}, {"field": "v"})
    many = names_above(tuple(range(0, 4000, 40)), 4000, {"field": "dim"})
    assert sum(len(layer["data"]["values"]) for layer in many) == MOST


@pytest.fixture(scope="module")
def planted(loaded: LoadedModel) -> Observation:
    return observe(loaded, Texts("three", TEXTS), ObserveOptions())


@pytest.fixture(scope="module")
def states(loaded: LoadedModel) -> np.ndarray:
    """Hidden states [layer, token, dim] of every text, by transformers alone."""
    import torch

    found = []
    for text in TEXTS:
        with torch.inference_mode():
            read = loaded.model(**loaded.tokenizer(text, return_tensors="pt"), output_hidden_states=True)  # type: ignore[misc]
        found.append(torch.stack(read.hidden_states)[:, 0].double().numpy())
    return np.concatenate(found, axis=1)


def test_the_packaged_model_with_eight_is_not_its_own_other(planted: Observation, states: np.ndarray) -> None:
    (stack,) = planted.stacks
    rest = np.setdiff1d(np.arange(128), PLANTED)
    average = charts.average_vectors(stack, PLANTED)
    band = average.spec["layer"][0]["data"]["values"]
    mean = states.mean(axis=1)[:, rest]
    assert [row["low"] for row in band] == pytest.approx(mean.min(axis=1), rel=2e-3)
    assert [row["high"] for row in band] == pytest.approx(mean.max(axis=1), rel=2e-3)
    assert [row[-1] for row in average.rows] == pytest.approx(mean.max(axis=1), rel=2e-3)
    largest = np.abs(states).max(axis=1)
    chart = charts.largest_values(stack, PLANTED)
    assert among(chart, [6, 3]) == pytest.approx(largest[:, rest].max(axis=1), rel=2e-3)
    assert largest[1:, rest].max() < largest[1:, PLANTED].max()
    blocks = states[1:].reshape(-1, 128)
    for end, extremes in (("smallest", blocks.argmin(axis=1)), ("largest", blocks.argmax(axis=1))):
        share = np.bincount(extremes, minlength=128) / len(blocks)
        assert stack.pooled_shares()[f"{end} entry"] == pytest.approx(share)
    ends = np.stack([states.argmin(axis=2), states.argmax(axis=2)])  # [end, layer, token]
    dotted = [
        max(np.bincount(end, minlength=128)[rest].max() for end in ends[:, row]) / states.shape[1] for row in range(5)
    ]
    assert among(charts.extreme_shares(stack, PLANTED), [2, 3]) == pytest.approx(dotted, abs=1e-3)


def test_the_tokens_of_one_input_hold_all_eight_apart(planted: Observation, states: np.ndarray) -> None:
    passage = planted.passages[0]
    row, tokens = 1, len(passage.tokens)
    rest = np.setdiff1d(np.arange(128), PLANTED)
    size = np.abs(states[len(states) // 2, :tokens, rest])  # [other, token]
    chart = charts.token_vectors(passage, PLANTED, layer=passage.layers[row])
    said = re.search(r"; ([\d.]+) in all others \(dimension (\d+)\)", chart.reading)
    assert said is not None
    assert float(said[1]) == pytest.approx(size.max(), rel=5e-3)
    assert int(said[2]) == rest[size.max(axis=1).argmax()]
    assert [one[-2] for one in chart.rows] == pytest.approx(size.max(axis=0), rel=2e-3)
    assert written(chart) == {"104", "120"}


@pytest.mark.parametrize(
    "draw",
    [charts.average_vectors, charts.largest_values, charts.extreme_shares, charts.vector_panels],
    ids=lambda f: f.__name__,
)
def test_the_seventh_and_eighth_are_ink_with_their_numbers(
    planted: Observation, draw: Callable[[StackObservation, tuple[int, ...]], Chart]
) -> None:
    chart = draw(planted.stacks[0], PLANTED)
    drawn = {str(dim): DIM_COLOURS[place] if place < COLOURED else INK for place, dim in enumerate(PLANTED)}
    assert colours(chart) == drawn
    assert legend(chart) == set(map(str, PLANTED[:COLOURED]))
    assert {"104", "120"} <= written(chart)


def test_a_report_of_more_than_twelve_leaves_none_behind() -> None:
    needles = tuple(range(3, 60, 4))  # 15 of 64
    stack = synthetic.stack_scan(needles=needles, n_layers=6, hidden_size=400, bias=True, height=9.0)
    assert len(stack.dims) == 15
    observed = synthetic.observation(n_layers=6, hidden_size=400, massive=(0, 1.0))
    data = synthetic.report_data(
        scan_result=synthetic.scan(stack), observed=observed, damages=(synthetic.damage(dims=(80, 81, 82, 83)),)
    )
    named = data.named("model")
    size = (np.abs(stack.z_scale).mean(axis=0) + np.abs(stack.z_bias).mean(axis=0)) / 2
    assert named == (*sorted(stack.dims, key=lambda dim: -size[dim]), 80, 81, 82, 83)
    rest = np.setdiff1d(np.arange(400), named)
    drawn = {one.name: one for one in charts_of(data)}
    chart = drawn["average-vectors"]
    mean = observed.stacks[0].view("all").mean[:, rest]
    assert [row[-2] for row in chart.rows] == pytest.approx(mean.min(axis=1), rel=2e-3)
    assert colours(drawn["weights-scale"]) == {str(d): (*DIM_COLOURS, *[INK] * 13)[i] for i, d in enumerate(named)}


def test_weight_maps_colour_the_strongest_and_leave_what_does_not_pass_hollow() -> None:
    needles = tuple(range(5, 60, 7))  # 8
    stack = synthetic.stack_scan(needles=needles, n_layers=9, hidden_size=400, bias=False, height=7.0)
    size = np.abs(stack.z_scale).mean(axis=0)
    order = sorted(needles, key=lambda dim: -size[dim])
    assert found_first(stack) == tuple(order)
    (chart,) = charts.weight_maps(stack)
    assert colours(chart) == {str(dim): (*DIM_COLOURS, INK, INK)[place] for place, dim in enumerate(order)}
    ink = [m for m in chart.spec["layer"][1]["data"]["values"] if m["dim"] in order[COLOURED:]]
    assert {m["passes"] for m in ink} == {True, False}
    assert chart.spec["layer"][1]["encoding"]["fill"]["value"] == "transparent"
