"""The report of a sweep: its section, and that scan and sweep alone make a page."""

from dataclasses import replace

import pytest

import synthetic_report as synthetic
from browser import CHROMIUM, HOSTILE, Page, browse
from outlierlens.analyses.sweep.rows import Precision
from outlierlens.report import render
from outlierlens.report.page import tiles


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
    assert "The effect of ablating them was not measured" not in text
    assert "Ablated in turn" in text
    assert "In the running model" not in text
    assert "What breaks" not in text
    steps = {step.topic: step for step in data.advice()}
    assert steps["prune"].text.startswith("When you prune or edit, leave dimensions 31, 100,")
    assert steps["prune"].because.startswith("507 ablated: +8.4 nats per token")
    assert steps["trust"].because == "not measured here: observe"
    assert [tile.value for tile in tiles(data)[:2]] == ["3", "×4,450"]
    assert tiles(data)[1].alarming


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
