"""The report of a sweep: its sentences by rule, its section, and that scan and sweep alone make a page."""

import json
import math
from dataclasses import replace

import pytest

import synthetic_report as synthetic
from browser import CHROMIUM, HOSTILE, Page, browse
from outlierlens import charts
from outlierlens.experiments.sweep.result import Precision
from outlierlens.experiments.sweep.view import sections, sentences
from outlierlens.report import advice, finding, render, rerender, write
from outlierlens.report.advice import heavy
from outlierlens.report.figures import all_charts
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


def test_the_finding_names_the_leader_with_interval_and_says_whether_weights_had_named_it(sweep):
    said = sentences(sweep)
    assert said[0] == (
        "Of 576 dimensions switched off one at a time, 507 changes the causal loss most: +8.4 nats per token "
        "(95 % interval +7.98 to +8.82; perplexity ×4,450), 29 times the next, 100 (+0.29)."
    )
    assert said[1].startswith(
        "The weights had named exactly the 3 strongest: 507 is number 1 of 576 (p = 0.0017, q = 0.005,"
    )
    assert (
        said[2] == "At least 5 times the mean change of the other dimensions (Puccetti et al.’s measure): all of them."
    )
    above, over = sum(e.low > 0.02 for e in sweep.singles()), sum(e.change > 0.02 for e in sweep.singles())
    assert said[3].startswith(
        f"{above} of 576 dimensions lie above twice the tolerance (0.02 nats per token) with the whole interval, {over} by"
    )
    assert said[4].startswith("100, 247 and 507 off together: +9.1 nats per token")
    assert "200 random sets: +0.061 in the median (rank p = 0.005)" in said[4]
    assert said[5:] == ("The order of the 5 strongest is settled.",)


def test_a_dimension_that_the_weights_do_not_name_may_lead():
    said = sentences(synthetic.sweep(strong={40: 2.0, 100: 1.0, 247: 0.5}, found=(100, 300)))
    assert said[1].startswith("The strongest, 40, is not one that the weights name: 100 is number 2 of 576")
    partly = sentences(synthetic.sweep(strong={100: 2.0, 40: 1.0, 247: 0.5}, found=(100, 300)))
    assert partly[1].startswith(
        "The weights had named the strongest one, and 1 of their 2 are among the first 2: 100 is"
    )
    assert partly[2].endswith("measure): 100.")


def test_nothing_found_nothing_strong_is_said_plainly():
    quiet = synthetic.sweep(strong={}, found=())
    effects = tuple(replace(e, change=e.change / 100, low=-0.01, high=0.01) for e in quiet.effects)
    said = sentences(replace(quiet, effects=effects))
    assert said[0].startswith(
        "Of 576 dimensions switched off one at a time none is shown to change the causal loss: the largest"
    )
    assert said[1] == "The weights name no dimension here."
    assert heavy(replace(quiet, effects=effects)) == ()


def test_infinite_unfinished_and_unsettled_are_said(sweep):
    broken = tuple(
        replace(e, change=math.inf, low=math.nan, high=math.inf) if e.dims == (100,) else e for e in sweep.effects
    )
    said = sentences(replace(sweep, effects=broken))
    assert said[0] == "With 100 off, each on its own, the causal loss is infinite or undefined."
    assert "Of 575 dimensions" in said[1]
    assert [e.dims[0] for e in heavy(replace(sweep, effects=broken))][:2] == [100, 507]
    half = tuple(replace(e, stopped="unfinished") if e.dims[0] < 5 else e for e in sweep.effects)
    assert sentences(replace(sweep, effects=half))[-1].startswith("5 of 577 effects are unfinished")
    assert sentences(replace(sweep, separated=False))[-1] == "The order of the 5 strongest is not settled."
    assert sentences(replace(sweep, effects=())) == ("Nothing was measured.",)


def test_layers_sets_alone_and_output_change():
    said = sentences(synthetic.layer_sweep())
    assert said[0].startswith(
        "Of 16 dimensions in each of 30 layer windows switched off one at a time, 507 in layer 3 changes"
    )
    assert said[1].startswith(
        "Where those that the weights name change it most: 100 in layer 3 (+0.174, number 2 of 16 there), 247 in layer 3"
    )
    assert "100, 247 and 507 off together, layer 3: +6.02" in said[3]
    alone = replace(synthetic.sweep(), effects=synthetic.sweep().effects[-1:])
    assert sentences(alone)[0].startswith("100, 247 and 507 off together: +9.1")
    (section,) = sections(alone)
    assert section.title == "Sets of dimensions switched off: causal loss"
    assert [chart.name for chart in section.charts] == ["sweep-nulls"]
    cosine = replace(synthetic.sweep(), task="output change", unit="cosine distance")
    assert "perplexity" not in render(report_of(cosine)).split("<script")[0]
    assert sentences(cosine)[0].endswith(
        "+8.4 cosine distance (95 % interval +7.98 to +8.82), 29 times the next, 100 (+0.29)."
    )


def test_scan_and_sweep_alone_make_a_whole_page(page, sweep):
    data = report_of(sweep)
    text = Page(page).text
    assert finding(data)[1] == sentences(sweep)[0]
    assert "What switching them off does was not measured" not in text
    assert "Every dimension switched off" in text
    assert "In the running model" not in text
    assert "What breaks" not in text
    steps = {step.topic: step for step in advice(data)}
    assert steps["prune"].text.startswith("When you prune or edit, leave dimensions 31, 100,")
    assert steps["prune"].because.startswith("507 off: +8.4 nats per token")
    assert steps["trust"].because == "not measured here: observe"
    assert [tile.value for tile in tiles(data)[:2]] == ["3", "×4,450"]
    assert tiles(data)[1].alarming


def test_the_section_has_every_chart_a_ranked_table_and_how_it_was_made(page, sweep):
    parsed = Page(page)
    pictures = [a["data-chart"] for a in parsed.all("div") if "data-chart" in a]
    assert pictures[1:] == ["sweep-effects", "sweep-ranked", "sweep-first-order", "sweep-nulls"]
    specs = json.loads(next(s for s in parsed.scripts if s.startswith("{")))
    assert set(pictures) == set(specs)
    identifiers = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(set(identifiers)) == len(identifiers)
    table = page[page.index("<h3>Largest changes of 577") :].split("</table>")[0]
    assert table.count("<tr>") == 21
    (section,) = sections(sweep)
    by_weights = section.tables[0].columns.index("by weights")
    assert sum(len(row[0].rstrip("* ").split(", ")) == 1 and row[by_weights] for row in section.tables[0].rows) == 3
    text = parsed.text
    assert "on wikitext-2 test: causal loss in nats per token of 2,261 texts" in text
    assert "where a text is a block of 128 tokens" in text
    assert "narrower than ± the larger of 0.01 and 10 % of the change" in text
    assert "after 8, 12, 16, 24, 32, 48, … 2,261 texts." in text
    assert (
        "√(1 + b / (n + 16)) times as wide as one of 95 %, with b from 3 (normal differences) to 30 (log-normal" in text
    )
    assert f"{sweep.cost.exact:,}, {sweep.cost.saving:.1f} times what was spent here" in text
    assert "can hardly reject anything, whatever the effects" in text
    assert "cd" * 32 in text
    assert page.count("strong in the sweep") == 2  # 31 and 386 in the table of named dimensions


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
    assert "first order" not in text.split("Largest changes")[1].split("How each number")[0]


def test_that_the_strongest_were_measured_again_is_told(page, sweep):
    said = "measured again on later texts, where their 95 % intervals hold all together. Intervals are looked at"
    assert said not in Page(page).text
    again = replace(sweep, effects=tuple(replace(effect, again=40) for effect in sweep.effects))
    assert said in Page(render(report_of(again))).text


def test_two_sweeps_get_sections_and_files_of_their_own(sweep):
    data = report_of(sweep, synthetic.layer_sweep())
    names = [chart.name for chart in all_charts(data)]
    assert len(set(names)) == len(names)
    assert {"sweep-effects", "sweep-2-map", "sweep-2-layers", "sweep-2-nulls"} <= set(names)
    page = render(data)
    assert "Single dimensions switched off, by layer: causal loss" in page
    assert 'id="sweep-2"' in page


def test_a_dimension_looks_the_same_in_the_charts_of_weights_and_of_the_sweep(sweep):
    data = report_of(sweep)
    specs = [
        chart.spec for chart in all_charts(data) if chart.name in ("weights-scale", "sweep-effects", "sweep-ranked")
    ]

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
    assert len(drawn) == 3
    assert drawn[0] == drawn[1] == drawn[2] != set()


def test_results_with_a_sweep_read_back_and_make_the_same_page(sweep, tmp_path):
    again = results.from_json(results.to_json(sweep))
    assert results.to_json(again) == results.to_json(sweep)
    written = write(report_of(sweep), tmp_path / "run")
    assert rerender(written.directory) == written.page.read_text("utf-8")
    if charts.can_export():
        assert (written.directory / "charts" / "sweep-effects.svg").is_file()


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
        data=HOSTILE,
        text=HOSTILE,
        mode=HOSTILE,
        task=HOSTILE,
        unit=HOSTILE,
        stack=HOSTILE,
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
    assert document.count('data-drawn="yes"') == 1 + 4 + 3 + 3
    assert "could not be drawn (" not in Page(document).text
    assert console == []
