"""More named dimensions than colours: none of them counts among "the others", and each can be told from the rest."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attention_results
import frequency_results
import geometry_results
import probe_results
import pruning_results
import runs
import synthetic_report as synthetic
from outlierlens import charts
from outlierlens.data.texts import Texts
from outlierlens.detection.observe.measure import ObserveOptions, observe
from outlierlens.detection.observe.result import Observation, StackObservation
from outlierlens.detection.scan.charts import found_first
from outlierlens.experiments.attention.result import Attention, KeyCorrelation
from outlierlens.experiments.frequency.result import Correlations, Frequency, View
from outlierlens.experiments.geometry import result as geometrical
from outlierlens.experiments.probe.result import Contribution
from outlierlens.experiments.track.measure import TrackOptions, track
from outlierlens.models.load import LoadedModel
from outlierlens.report.figures import streams
from outlierlens.report.pair import by_layer
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
        other = int(rest[share[rest].argmax()])
        said = re.search(
            rf"the {end} entry: [^;]*\(most of any other: ([\d.]+)%, (\d+)\)",
            charts.extreme_shares(stack, PLANTED).reading,
        )
        assert said is not None
        assert float(said[1]) == pytest.approx(100 * share[rest].max(), abs=0.051)
        assert share[int(said[2])] == pytest.approx(share[other])
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
    (stream,) = streams(data)
    size = (np.abs(stack.z_scale).mean(axis=0) + np.abs(stack.z_bias).mean(axis=0)) / 2
    assert stream.named == (*sorted(stack.dims, key=lambda dim: -size[dim]), 80, 81, 82, 83)
    assert {row.dim for row in stream.rows} == set(stream.named)
    rest = np.setdiff1d(np.arange(400), stream.named)
    chart = next(one for one in stream.states if one.name == "average-vectors")
    mean = observed.stacks[0].view("all").mean[:, rest]
    assert [row[-2] for row in chart.rows] == pytest.approx(mean.min(axis=1), rel=2e-3)
    assert colours(stream.weights[0]) == {str(d): (*DIM_COLOURS, *[INK] * 13)[i] for i, d in enumerate(stream.named)}


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


def eight_frequency() -> tuple[Frequency, np.ndarray]:
    """Ten dimensions, eight of them named; the later the number, the larger |r|."""
    values = np.stack([np.linspace(0.02, 0.9, 10), -np.linspace(0.01, 0.8, 10)])
    same = Correlations(values, np.full(values.shape, 0.01), np.full(values.shape, 0.5))
    made = frequency_results.frequency()

    def view(one: View) -> View:
        return replace(one, raw=same, log=same, partial=same, signed=values, spearman=values)

    views = {name: view(one) for name, one in made.views.items()}
    return replace(made, hidden_size=10, dims=(9, 8, 7, 2, 3, 4, 5, 6), views=views, clouds=()), values


def test_frequency_bands_hold_none_of_the_named() -> None:
    found, values = eight_frequency()
    chart = charts.frequency_layers(found)
    band = next(layer for layer in chart.spec["layer"] if layer["mark"]["type"] == "area")["data"]["values"]
    for row, one in enumerate(band):
        assert (one["low"], one["high"]) == pytest.approx(np.percentile(values[row, :2], (5, 95)), rel=1e-3)
    inks = {name for name, colour in colours(chart).items() if colour == INK}
    assert inks == {"2", "3"} == written(chart)
    assert "dimension 3 reaches" in chart.reading


def eight_attention() -> Attention:
    """Ten dimensions, eight named; |r| grows with the number."""
    dims = tuple(range(2, 10))
    every = np.stack([np.linspace(0.0, 0.9, 10)] * 2)

    def wide(one: KeyCorrelation) -> KeyCorrelation:
        named = every[:, list(dims)]
        return replace(
            one, every=every, every_off=every, low=named - 0.1, high=named + 0.1, heads=np.stack([named, named], axis=1),
            control=np.zeros((2, 2)), rank=np.ones((2, 8), dtype=int), p=np.full((2, 8), 0.1), overall=named.mean(axis=0),
            overall_low=named[0], overall_high=named[0], overall_rank=np.ones(8, dtype=int), overall_p=np.full(8, 0.1),
            off=named, random=np.zeros((2, 2, 8)),
        )  # fmt: skip

    made = attention_results.attention()
    return replace(made, dims=dims, hidden_size=10, correlations=tuple(map(wide, made.correlations)))


def test_attention_colours_those_that_go_with_it_most() -> None:
    found = eight_attention()
    chart = charts.attention_correlation(found)
    band = chart.spec["layer"][0]["data"]["values"]
    assert [(row["least"], row["most"]) for row in band] == [(0.0, 0.1)] * 2
    assert {name for name, colour in colours(chart).items() if colour == INK} == {"2", "3"}
    heads = next(
        part
        for part in charts.attention(found).spec["vconcat"]
        if "hconcat" in part
        and "title" in part["hconcat"][0]
        and str(part["hconcat"][0]["title"]["text"]).startswith("dim")
    )
    assert [panel["title"]["text"] for panel in heads["hconcat"]] == [f"dim {dim}" for dim in (6, 7, 8, 9)]


def test_what_carries_the_cosine_shows_every_outlier_and_leaves_the_rest() -> None:
    made = geometry_results.geometry()
    parts = {dim: 0.05 + 0.001 * dim for dim in range(8)}
    named = tuple(geometrical.Contribution(dim, part, part) for dim, part in parts.items())
    rows = tuple(replace(row, named=named, top=named[-3:]) if row.fix == "raw" else row for row in made.rows)
    chart = charts.cosine_shares(replace(made, rows=rows))
    for layer, cosine in (("embeddings", 0.1), ("0", 0.6)):
        others = [row[2] for row in chart.rows if row[0] == layer and row[1] == "all others"]
        assert others == pytest.approx([cosine - sum(parts.values())], rel=1e-3)
    assert {name for name, colour in colours(chart).items() if colour == INK} == {"0", "1"}
    assert "all others" in chart.spec["layer"][0]["encoding"]["color"]["legend"]["values"]


def test_the_probe_draws_every_named_dimension() -> None:
    made = probe_results.position_probe()
    layers = tuple(
        replace(
            one, named=tuple(Contribution(dim, 1.0 + dim, 9 - dim) for dim in range(8)), other=Contribution(11, 0.2, 9)
        )
        for one in made.layers
    )
    chart = charts.probe_contributions(replace(made, layers=layers))
    assert {name for name, colour in colours(chart).items() if colour == INK} == {"0", "1"} == written(chart)
    assert legend(chart) == {*map(str, range(2, 8)), "highest other", "mean of all"}
    drawn = {row["line"]: row["value"] for row in chart.spec["layer"][0]["data"]["values"]}
    assert (drawn["dim 0"], drawn["dim 7"], drawn["highest other"]) == (1.0, 8.0, 0.2)


def test_pruned_positions_name_all_outliers() -> None:
    found = pruning_results.check((4, 3, 3, 3, 3, 3, 1, 2, 0), tuple(range(8)))
    chart = found.chart()
    assert {name for name, colour in colours(chart).items() if colour == INK} == {"6", "7"} <= written(chart)
    assert "Outlier 7 is removed in 2 layers" in chart.reading
    assert not chart.spec["layer"][0]["data"]["values"]  # position 8 is whole, and no outlier is among the others


def test_two_models_colour_the_strongest_of_both() -> None:
    ours = synthetic.stack_scan(needles=tuple(range(1, 56, 8)), n_layers=6, hidden_size=400, height=5.0)  # 7
    theirs = synthetic.stack_scan(needles=(60,), n_layers=6, hidden_size=400, height=60.0)
    chart = by_layer(ours, theirs, ("a", "b"), (ours.dims, theirs.dims), name="pair")
    drawn = {row["label"] for row in chart.spec["layer"][1]["data"]["values"]}
    assert drawn == {f"dim {dim}" for dim in (*ours.dims, 60)}
    most = {dim: float(np.abs(ours.z_scale[:, dim]).max()) for dim in ours.dims}
    weakest = sorted(most, key=lambda dim: most[dim])[:2]
    scale = chart.spec["layer"][2]["encoding"]["color"]["scale"]
    assert {name for name, colour in zip(scale["domain"], scale["range"], strict=True) if colour == INK} == {
        f"dim {dim}" for dim in weakest
    }
    assert written(chart) == set(map(str, weakest))


def test_a_run_with_more_than_six_counts_none_of_them_among_the_others(tmp_path: Any) -> None:
    width, needles = 400, dict.fromkeys(range(10, 18), 300)
    made = runs.write_run(tmp_path / "run", (0, 2000, 4000), needles=needles, width=width)
    found = track([made], TrackOptions())
    assert set(found.followed) == set(needles)
    scale = np.asarray(found.scale)
    panel = charts.norm_panel(found, "scale")
    others = np.setdiff1d(np.arange(width), list(needles))
    said = re.search(r"the middle half of the others lies between ([\d.-]+\d) and ([\d.-]+\d)", panel.reading)
    assert said is not None
    assert [float(end) for end in said.groups()] == pytest.approx(
        np.quantile(scale[-1, others], (0.25, 0.75)), abs=0.006
    )
    plain = next(one for one in panel.spec["layer"] if one["mark"].get("strokeWidth") == 0.6)
    assert {row["dim"] for row in plain["data"]["values"]} == set(others.tolist())
    assert written(panel) == set(map(str, found.followed[COLOURED:]))
    assert f"; {found.followed[-1]} (scale and bias) from step" in charts.sigma_panel(found).reading
