"""Charts: what is drawn where, the words beside it, and that every specification compiles."""

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import synthetic_report as synthetic
from outlierlens.analyses.scan import MAX_DOTS, dot_threshold
from outlierlens.errors import BadInput, MissingExtra
from outlierlens.report.files import charts_of
from outlierlens.results.rows import Estimate
from outlierlens.view import charts
from outlierlens.view.charts.base import (
    DARK,
    LIGHT,
    SHAPES,
    concrete,
    decades,
    log_ticks,
    round_to,
    smaller,
    symmetric,
    visible,
)
from outlierlens.view.section import number, power_of_ten

vl_convert = pytest.importorskip("vl_convert")


def values(chart, layer):
    return chart.spec["layer"][layer]["data"]["values"]


def strings(value):
    if isinstance(value, dict):
        return [s for item in value.values() for s in strings(item)]
    if isinstance(value, list):
        return [s for item in value for s in strings(item)]
    return [value] if isinstance(value, str) else []


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_marks_and_text_can_be_read_against_the_surface(palette):
    assert set(palette) == set(LIGHT)
    for name in ("ink", "muted"):
        assert contrast(palette[name], palette["surface"]) >= 4.5, name  # WCAG 2, text
    for name in ["alarm", *(n for n in palette if n.startswith("dim-"))]:
        assert contrast(palette[name], palette["surface"]) >= 3, name  # WCAG 2, graphics
    assert len(set(SHAPES)) == sum(name.startswith("dim-") for name in palette)  # no meaning by colour alone


def test_every_chart_compiles_and_is_written_as_svg_and_png():
    observation = synthetic.observation(n_layers=6, hidden_size=520)
    scan = synthetic.scan(synthetic.stack_scan(n_layers=6, hidden_size=520, bias=True))
    damages = (synthetic.damage(), synthetic.damage(task="output change", intact=0.0, chosen=0.4))
    drawn = charts_of(synthetic.report_data(scan_result=scan, observed=observation, damages=damages))
    assert [chart.name for chart in drawn] == [
        "weights-scale", "weights-bias", "token-vectors", "average-vectors", "extreme-shares", "largest-values",
        "ablation", "ablation-2",
    ]  # fmt: skip
    for chart in drawn:
        plain = chart.plain()
        assert plain["width"] == 820
        assert not [s for s in strings(plain) if "var(" in s]
        vl_convert.vegalite_to_vega(plain)
        svg = charts.picture(chart, "svg").decode()
        assert svg.startswith("<svg")
        assert "var(" not in svg
        assert json.loads(charts.picture(chart, "vl.json")) == plain
    assert charts.picture(drawn[-1], "png").startswith(b"\x89PNG")
    shown = drawn[-1]._repr_mimebundle_()
    assert shown["application/vnd.vegalite.v6+json"] == drawn[-1].plain()
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")


def test_the_page_form_names_colours_and_fits_its_container():
    (chart,) = charts.weight_maps(synthetic.stack_scan())
    assert chart.spec["width"] == "container"
    assert "var(--ol-ink)" in strings(chart.spec)
    assert concrete(["var(--ol-ink)", {"a": "var(--ol-dim-1)"}, "var(--else)", 3]) == [
        LIGHT["ink"], {"a": LIGHT["dim-1"]}, "var(--else)", 3,
    ]  # fmt: skip


def test_weight_map_draws_needles_in_every_layer_and_others_from_two_sigma():
    stack = synthetic.stack_scan(needles=(100, 247, 507))
    (chart,) = charts.weight_maps(stack)
    dots, marks = values(chart, 0), values(chart, 1)
    assert {(m["dim"], m["layer"]) for m in marks} == {(d, layer) for d in (100, 247, 507) for layer in range(30)}
    expected = {(int(layer), int(dim)) for layer, dim in np.argwhere(np.abs(stack.z_scale) >= 2)}
    assert {(d["layer"], d["dim"]) for d in dots} == {(layer, dim) for layer, dim in expected if dim not in stack.dims}
    for mark in marks:
        z = stack.z_scale[mark["layer"], mark["dim"]]
        assert mark["z"] == pytest.approx(z, rel=5e-3)
        assert mark["passes"] == bool(abs(z) >= 3)
    assert "100 in 20 of 30, 247 in 20 of 30, 507 in 20 of 30" in chart.reading
    texts = [t["text"] for layer in chart.spec["layer"][2:] for t in layer["data"]["values"]]
    assert sorted(texts) == ["100", "247", "507"]


def test_weight_map_of_nothing_says_so_and_near_names_get_lines_of_their_own():
    (chart,) = charts.weight_maps(synthetic.stack_scan(needles=()))
    assert "No dimension is an outlier" in chart.reading
    assert len(chart.spec["layer"]) == 1
    (near,) = charts.weight_maps(synthetic.stack_scan(needles=(100, 103, 106)))
    lines = [layer for layer in near.spec["layer"] if layer["mark"]["type"] == "text"]
    assert [layer["mark"]["y"] for layer in lines] == [-9, -23, -37]


@given(st.integers(0, 4), st.integers(1000, 12_000))
def test_the_dot_threshold_bounds_the_number_of_dots(seed, n):
    size = np.abs(np.random.default_rng(seed).normal(0, 3, n))
    floor = dot_threshold(size)
    assert floor >= 2
    assert (size >= floor).sum() <= MAX_DOTS
    assert floor == 2 or (size >= floor - 0.11).sum() >= MAX_DOTS  # no higher than it has to be


def test_token_vectors_hold_every_value_and_name_the_largest():
    observation = synthetic.observation()
    passage = observation.passages[0]
    chart = charts.token_vectors(passage, (100, 247, 507))
    middle = passage.states[len(passage.layers) // 2]
    lines = values(chart, 0)
    assert len(lines) == len(synthetic.TOKENS)
    for line, states in zip(lines, middle, strict=True):
        assert line["d"] == list(passage.dims)
        np.testing.assert_allclose(line["v"], states, rtol=5e-3)
    assert chart.spec["layer"][2]["encoding"]["y"]["scale"]["type"] == "symlog"
    assert "22,500 in 507" in chart.reading
    assert chart.rows[0][:2] == (0, "<|im_start|>")
    assert chart.rows[0][4] == pytest.approx(22_500)
    calm = replace(passage, states=np.clip(passage.states, -5, 5))
    assert "type" not in charts.token_vectors(calm, ()).spec["layer"][0]["encoding"]["y"]["scale"]


def test_average_vectors_band_is_that_of_the_dimensions_not_named():
    stack = synthetic.observation(n_layers=4, hidden_size=520).stacks[0]
    chart = charts.average_vectors(stack, (507,))
    others = np.delete(stack.view("all").mean, 507, axis=1)
    band = values(chart, 0)
    assert [row["layer"] for row in band] == list(stack.layers)
    np.testing.assert_allclose([row["low"] for row in band], others.min(axis=1), rtol=1e-3)
    np.testing.assert_allclose([row["p95"] for row in band], np.percentile(others, 95, axis=1), rtol=1e-3)


def test_a_dimension_has_one_colour_and_shape_in_every_chart():
    data = synthetic.report_data()
    seen = {}
    for chart in charts_of(data):
        for layer in chart.spec["layer"]:
            for channel in ("color", "shape", "stroke"):
                scale = layer["encoding"].get(channel, {}).get("scale")
                for name, look in zip(scale["domain"], scale["range"], strict=True) if scale else ():
                    seen.setdefault((name, "shape" if channel == "shape" else "colour"), set()).add(look)
    assert all(len(found) == 1 for found in seen.values())
    assert {name for name, _ in seen} == {"dim 100", "dim 247", "dim 507"}
    stack = data.observation.stacks[0]
    never = {end: np.array(getattr(stack.view("all"), end)) for end in ("argmin_share", "argmax_share")}
    for shares in never.values():
        shares[:, 3] = 0
    stack = replace(stack, views={"all": replace(stack.view("all"), **never)})
    only = charts.extreme_shares(stack, (3, 507))  # 3 is left out, and 507 keeps the second place's look
    assert only.spec["layer"][-1]["encoding"]["shape"]["scale"] == {"domain": ["dim 507"], "range": ["circle"]}


def test_an_ablation_draws_the_chosen_set_in_every_family_of_controls():
    chart = synthetic.damage().chart()
    assert len(chart.rows) == 1 + 1 + 19 + 5
    panel = chart.spec
    grey, _, dots = panel["layer"][1:4]
    assert len(grey["data"]["values"]) == 19 + 5
    assert [(row["family"], row["change"]) for row in dots["data"]["values"]] == [("random", 6.9), ("matched", 6.9)]
    assert "(symmetric log scale)" in dots["encoding"]["x"]["title"][-1]
    assert panel["title"]["text"] == ["coloured: 100, 247, 507", "grey: control sets"]
    assert chart.title == "smollm2-135m, dimensions 100, 247, 507: ablation"
    assert "changes by +6.9 nats per token" in chart.reading
    assert "rank p = 0.05" in chart.reading
    plain = synthetic.damage(chosen=0.02, random=0.02, matched=0.01).chart()
    assert plain.spec["layer"][3]["encoding"]["x"]["title"] == ["change of the causal loss", "(nats per token)"]


def test_an_infinite_loss_is_said_and_not_drawn():
    damage = synthetic.damage()
    change = Estimate(*(float("inf"),) * 3)
    families = tuple(replace(one, change=change) for one in damage.families)
    chosen = replace(damage.chosen, change=change)
    chart = replace(damage, conditions=(damage.intact, chosen), families=families).chart()
    assert "infinite or undefined" in chart.reading
    assert chart.rows[1][chart.columns.index("change")] is None
    json.dumps(chart.spec, allow_nan=False)
    vl_convert.vegalite_to_vega(chart.plain())


def test_broken_activations_do_not_break_the_charts():
    stack = synthetic.observation(n_layers=4, hidden_size=520).stacks[0]
    largest = stack.view("all").abs_max.copy()
    largest[1, 3], largest[2, 5] = np.nan, np.inf
    stack = replace(stack, views={"all": replace(stack.view("all"), abs_max=largest)})
    chart = charts.largest_values(stack, (507,))
    json.dumps(chart.spec, allow_nan=False)
    assert chart.rows[0][:2] == ("1", 5)


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=40))
def test_a_symmetric_scale_holds_all_values_and_its_ticks(numbers):
    array = np.array(numbers)
    made = symmetric(array)
    if made.log:
        low, high = made.scale["domain"]
        assert low <= array.min() + 1e-9 * abs(array.min())
        assert high >= array.max() - 1e-9 * abs(array.max())
        assert made.scale["constant"] > 0
        assert all(low <= tick <= high for tick in made.axis["values"])
    else:
        size = np.abs(array)
        assert size.max() <= 50 * np.median(size) or size.max() == 0


def test_decades_are_few_and_cover_the_range():
    assert decades(0.5, 1000) == [1, 10, 100, 1000]
    assert len(decades(1e-20, 1e20)) <= 9
    assert decades(1e-20, 1e20)[-1] == 1e20


def test_a_log_axis_within_two_decades_has_more_than_one_tick():
    assert log_ticks(0.586, 4.96) == [0.2, 0.5, 1, 2, 5, 10]
    assert log_ticks(7.0, 7.0) == [5, 10, 20]
    assert len(log_ticks(5e-324, 1e308)) <= 9
    assert log_ticks(0.6, 22_500) == decades(0.2, 67_500)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (1.0, "1.00"), (9.994, "9.99"), (9.996, "10.0"), (22.25, "22.2"), (99.96, "100"), (992.3, "992"),
     (22_026, "22,000"), (999_000, "999,000"), (3.14e9, "3.1·10⁹"), (9.99e11, "1.0·10¹²"), (0.004, "0.004"),
     (float("inf"), "∞"), (-2e7, "−2.0·10⁷")],
)  # fmt: skip
def test_numbers_are_written_for_reading(value, text):
    assert number(value) == text


def test_small_helpers():
    assert power_of_ten(400.5) == "3.2·10⁴⁰⁰"
    assert round_to(float("nan")) is None
    assert round_to(1234.56) == 1235
    assert visible("a\nb\u202e\x00") == "a⏎b⟨U+202E⟩⟨U+0000⟩"
    with pytest.raises(BadInput, match="names a file"):
        charts.Chart("../up", "", "", {}, (), (), 0)


def test_views_import_no_heavy_library():
    code = (
        "import sys, outlierlens.view.charts, outlierlens.report; "
        "print([m for m in ('torch', 'transformers', 'scipy', 'pandas', 'altair', 'vl_convert') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_the_drawing_library_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    (chart,) = charts.weight_maps(synthetic.stack_scan())
    with pytest.raises(MissingExtra, match=re.escape("pip install '.[charts]'")):
        charts.picture(chart, "svg")
    assert charts.picture(chart, "vl.json").startswith(b'{"$schema"')


def test_a_drawn_picture_is_the_renderer_s_with_fewer_bytes() -> None:
    image = pytest.importorskip("PIL.Image")
    values = [{"x": x, "y": x % 7, "c": f"{x % 5}"} for x in range(40)]
    color = {"field": "c", "type": "nominal"}
    spec = {
        "data": {"values": values},
        "mark": "point",
        "encoding": {"x": {"field": "x"}, "y": {"field": "y"}, "color": color},
    }
    before = vl_convert.vegalite_to_png(spec | {"background": "white"}, scale=2)
    after = smaller(before)
    assert len(after) < len(before) / 2
    one, other = (np.asarray(image.open(io.BytesIO(png)).convert("RGB"), dtype=int) for png in (before, after))
    assert one.shape == other.shape
    assert (one == other).mean() > 0.98
    assert np.abs(one - other).max() < 48
    assert image.open(io.BytesIO(after)).info["dpi"] == image.open(io.BytesIO(before)).info["dpi"]
    assert smaller(after) == after  # has a palette already
    clear = vl_convert.vegalite_to_png(spec | {"background": "transparent"}, scale=1)
    assert smaller(clear) == clear


def test_a_picture_of_many_colours_stays() -> None:
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 4), dtype=np.uint8)
    noise[..., 3] = 255
    made = io.BytesIO()
    image.fromarray(noise).save(made, "PNG")
    png = made.getvalue()
    assert smaller(png) == png
