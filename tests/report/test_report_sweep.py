"""The report of a sweep: its section, and that scan and sweep alone make a page."""

import json
from dataclasses import replace

import pytest

import synthetic_report as synthetic
from browser import CHROMIUM, HOSTILE, Page, browse
from outlierlens import charts
from outlierlens.analyses.sweep.rows import Precision
from outlierlens.report import render, rerender, write
from outlierlens.report.files import charts_of
from outlierlens.report.page import tiles
from outlierlens.results import document as results


def report_of(*sweeps, **changes):
    return synthetic.report_data(observed=False, damages=(), sweeps=sweeps, **changes)


@pytest.fixture(scope="module")
def sweep():
    return synthetic.sweep()


@pytest.fixture(scope="module")
def page(sweep):
    return render(report_of(sweep))


def test_scan_and_sweep_alone_make_a_whole_page(page, sweep):
    data = report_of(sweep)
    text = Page(page).text
    assert data.finding()[1] == next(sweep.sentences())
    assert "What switching them off does was not measured" not in text
    assert "Switched off in turn" in text
    assert "In the running model" not in text
    assert "What breaks" not in text
    steps = {step.topic: step for step in data.advice()}
    assert steps["prune"].text.startswith("When you prune or edit, leave dimensions 31, 100,")
    assert steps["prune"].because.startswith("507 off: +8.4 nats per token")
    assert steps["trust"].because == "not measured here: observe"
    assert [tile.value for tile in tiles(data)[:2]] == ["3", "×4,450"]
    assert tiles(data)[1].alarming


def test_the_section_has_its_picture_and_a_ranked_table(page, sweep):
    parsed = Page(page)
    pictures = [a["data-chart"] for a in parsed.all("div") if "data-chart" in a]
    assert pictures[1:] == ["switched-off-in-turn"]
    specs = json.loads(next(s for s in parsed.scripts if s.startswith("{")))
    assert set(pictures) == set(specs)
    identifiers = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(set(identifiers)) == len(identifiers)
    table = page[page.index("<h3>Largest changes of 577") :].split("</table>")[0]
    assert table.count("<tr>") == 21
    text = parsed.text
    assert "causal loss (nats per token) on 2,261 texts of wikitext-2 test" in text
    assert "A text is a block of 128 tokens; intact 3.31 (3.27 to 3.35)" in text
    assert f"{sweep.cost.exact:,}, {sweep.cost.saving:.1f} times what was spent here" in text
    assert "narrower than ± the larger of 0.01 and 10 % of the change" in text
    assert "after 8, 12, 16, 24, 32, 48, … 2,261 texts." in text
    assert (
        "√(1 + b / (n + 16)) times as wide as one of 95 %, with b from 3 (normal differences) to 30 (log-normal" in text
    )
    assert "cd" * 32 in text


def test_exact_mode_reduced_precision_and_notes_are_told(sweep):
    exact = replace(
        sweep,
        method="exact",
        looks=(2261,),
        widening=(0.0, 0.0),
        look_level=0.95,
        cost=replace(sweep.cost, gradient_texts=0),
        precision=Precision("bfloat16", 0.0021, 12, 16, intact=0.0004),
        notes=("only the first stream was swept",),
    )
    text = Page(render(report_of(exact))).text
    assert "Every effect is measured on every text" in text
    assert "held to" not in text
    assert (
        "Computed in bfloat16: the intact value differs from float32 by +0.0004, changes by at most 0.0021 nats per token "
        "(12 sets, 16 texts)." in text
    )
    assert "only the first stream was swept" in text


def test_that_the_strongest_were_measured_again_is_told(page, sweep):
    said = "measured again on later texts, where their 95 % intervals hold all together. Intervals are looked at"
    assert said not in Page(page).text
    again = replace(sweep, effects=tuple(replace(effect, again=40) for effect in sweep.effects))
    assert said in Page(render(report_of(again))).text


def test_two_sweeps_get_sections_and_files_of_their_own(sweep):
    data = report_of(sweep, synthetic.layer_sweep())
    names = [chart.name for chart in charts_of(data)]
    assert len(set(names)) == len(names)
    assert {"switched-off-in-turn", "switched-off-in-turn-2"} <= set(names)
    page = render(data)
    assert "Effects by layers" in page
    assert 'id="switched-off-in-turn-2"' in page


def test_a_dimension_looks_the_same_in_the_charts_of_weights_and_of_the_sweep(sweep):
    data = report_of(sweep)
    specs = [chart.spec for chart in charts_of(data) if chart.name in ("weights-scale", "switched-off-in-turn")]

    def looks(value):
        if isinstance(value, dict):
            scale = value.get("scale") or {}
            if value.get("field") == "name" and "range" in scale:
                yield from zip(scale["domain"], scale["range"], strict=True)
            for item in value.values():
                yield from looks(item)
        elif isinstance(value, list):
            for item in value:
                yield from looks(item)

    drawn = [{pair for pair in looks(spec) if pair[0] == "dim 507"} for spec in specs]
    assert len(drawn) == 2
    assert drawn[0] == drawn[1] != set()


def test_results_with_a_sweep_read_back_and_make_the_same_page(sweep, tmp_path):
    again = results.from_json(results.to_json(sweep))
    assert results.to_json(again) == results.to_json(sweep)
    written = write(report_of(sweep), tmp_path / "run")
    assert rerender(written.directory) == written.page.read_text("utf-8")
    if charts.can_export():
        assert (written.directory / "charts" / "switched-off-in-turn.svg").is_file()


def test_a_large_sweep_stays_small():
    page = render(report_of(synthetic.sweep(8192), synthetic.layer_sweep(tuple(range(576)), n_layers=30)))
    assert len(page.encode()) < 4e6


def hostile_sweep(sweep):
    effects = tuple(
        replace(e, label=HOSTILE, window=HOSTILE) if len(e.dims) > 1 else replace(e, window=HOSTILE)
        for e in sweep.effects
    )
    return replace(
        sweep,
        about=replace(sweep.about, data=HOSTILE, task=HOSTILE, unit=HOSTILE, stack=HOSTILE),
        text=HOSTILE,
        mode=HOSTILE,
        notes=(HOSTILE,),
        effects=effects,
        nulls=tuple(replace(null, label=HOSTILE, window=HOSTILE) for null in sweep.nulls),
    )


def test_text_of_a_sweep_never_becomes_markup(sweep):
    page = render(report_of(hostile_sweep(sweep)))
    parsed = Page(page)
    assert len(parsed.scripts) == 3
    assert not parsed.all("img")
    assert "<img" not in page.replace(parsed.scripts[1], "")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_browser_draws_every_chart_of_sweeps_within_the_policy(sweep, tmp_path):
    data = report_of(sweep, synthetic.layer_sweep(n_layers=6), synthetic.layer_sweep(tuple(range(576)), n_layers=4))
    document, console = browse(render(data), tmp_path)
    assert document.count('data-drawn="yes"') == 1 + 1 + 1 + 1
    assert "could not be drawn (" not in Page(document).text
    assert console == []
