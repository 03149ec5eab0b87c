"""What is shown of a tracked run: panels, sentences, the report's section and the command."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
import synthetic_report as synthetic
from outlierlens import charts
from outlierlens.cli.experiment import print_sections
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.track.charts_marks import named_dims
from outlierlens.experiments.track.measure import track
from outlierlens.experiments.track.options import TrackOptions
from outlierlens.experiments.track.result import Lead, Plateau, Track
from outlierlens.experiments.track.view import track_sentences
from outlierlens.report import rerender
from outlierlens.report.figures import all_charts
from outlierlens.report.page import chart_page, render
from outlierlens.results.document import from_json, load, to_json
from outlierlens.training.run_files import Curve


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_run(tmp_path_factory.mktemp("runs") / "bert", tuple(range(0, 10_001, 500)), width=64)


@pytest.fixture(scope="module")
def found(run: Path) -> Track:
    return track([run], TrackOptions())


def values(spec: Any, *, key: str) -> list[Any]:
    """All values of `key` in the data of a specification's layers."""
    if isinstance(spec, dict):
        own = [row[key] for row in spec.get("data", {}).get("values", []) if key in row]
        return own + [v for name, part in spec.items() if name != "data" for v in values(part, key=key)]
    return [v for part in spec for v in values(part, key=key)] if isinstance(spec, list) else []


def test_every_dimension_is_a_line_and_the_outlier_is_in_colour(found: Track) -> None:
    panel = charts.norm_panel(found, "scale")
    assert set(values(panel.spec, key="dim")) == set(range(64))
    assert set(values(panel.spec, key="name")) == {"dim 7"}
    lines = [row for layer in panel.spec["layer"] for row in layer["data"]["values"] if row.get("dim") == 7]
    assert [row["value"] for row in lines] == pytest.approx(found.scale[:, 7].tolist(), rel=1e-3)
    assert "7 at 0.60" in panel.reading
    assert "an even choice" not in panel.reading


def test_too_many_lines_are_thinned_and_said_to_be(found: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("charts", "charts_marks"):
        monkeypatch.setattr(sys.modules[f"outlierlens.experiments.track.{module}"], "MAX_POINTS", 21 * 10)
    panel = charts.norm_panel(found, "bias")
    assert len(set(values(panel.spec, key="dim"))) == 11
    assert "an even choice by rank of the 64" in panel.reading


def test_the_loss_can_be_read_as_perplexity(found: Track) -> None:
    panel = charts.loss_panel(found)
    assert panel.columns == ("step", "curve", "loss", "perplexity")
    for _, _, loss, perplexity in panel.rows:
        assert perplexity == pytest.approx(np.exp(loss), rel=1e-3)
    right = panel.spec["layer"][-1]["encoding"]["y"]
    left = panel.spec["layer"][0]["layer"][0]["encoding"]["y"]
    assert np.log(right["scale"]["domain"]) == pytest.approx(left["scale"]["domain"], abs=1e-4)
    assert right["scale"]["type"] == "log"


def test_a_logged_perplexity_stands_for_the_loss(found: Track) -> None:
    curve = Curve(np.array([0, 500]), np.array([np.e**2, np.e]))
    panel = charts.loss_panel(dataclasses.replace(found, curves={"eval_perplexity": curve}))
    assert [row[2] for row in panel.rows] == pytest.approx([1, 2])


def test_events_are_marked_where_they_are(found: Track) -> None:
    said = set(values(charts.sigma_panel(found).spec, key="what"))
    assert {"dimension 7 emerged", "the loss starts its last steep fall", "the loss is within 5 % of its fall"} == said


def test_panels_that_have_nothing_to_show_say_so(found: Track) -> None:
    with pytest.raises(BadInput, match="no loss was logged"):
        charts.loss_panel(dataclasses.replace(found, curves={}))
    with pytest.raises(BadInput, match="no hidden states were recorded"):
        charts.state_panel(found)
    with pytest.raises(BadInput, match="no tokens were recorded"):
        charts.token_panel(found)
    with pytest.raises(BadInput, match=r"output\.LayerNorm has no bias"):
        charts.norm_panel(dataclasses.replace(found, bias=np.zeros((0, 0))), "bias")
    with pytest.raises(BadInput, match="no dimension passed at any step"):
        charts.sigma_panel(dataclasses.replace(found, emergences=()))


def test_every_token_is_a_line_over_the_dimensions_and_the_outlier_is_marked(found: Track) -> None:
    tokens = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    tokens[:, 7] = [-9.0, -8.0, -7.5]
    panel = charts.token_panel(dataclasses.replace(found, tokens=tokens))
    lines, _, marks = (layer["data"]["values"] for layer in panel.spec["layer"])
    assert [line["d"] for line in lines] == [list(range(64))] * 3
    np.testing.assert_allclose([line["v"] for line in lines], tokens, rtol=1e-2)
    assert [(mark["d"], mark["v"], mark["token"]) for mark in marks] == [
        (7, -9, "token 0"), (7, -8, "token 1"), (7, -7.5, "token 2"),
    ]  # fmt: skip
    assert "one of the first 3 tokens of the probe text after layer 2 at step 10,000; marks are" in panel.reading
    assert "9.00 in 7" in panel.reading


def test_all_panels_make_one_picture(found: Track) -> None:
    random = np.random.default_rng(0)
    whole = dataclasses.replace(found, states=random.normal(size=(21, 64)).astype(np.float32), text="the <b>film</b>")
    assert [panel["title"]["text"] for panel in charts.emergence(whole).spec["hconcat"][2]["vconcat"]] == [
        "Hidden state after layer 2"
    ]
    whole = dataclasses.replace(whole, tokens=random.normal(size=(4, 64)).astype(np.float32))
    columns = [
        [panel["title"]["text"] for panel in column["vconcat"]] for column in charts.emergence(whole).spec["hconcat"]
    ]
    assert columns == [
        ["Loss over training", "Distance from the other dimensions"],
        ["Scale of output.LayerNorm, layer 2", "Bias of output.LayerNorm, layer 2"],
        ["Tokens after layer 2, step 10,000", "Hidden state after layer 2"],
    ]
    assert "width" not in charts.emergence(whole).plain()
    assert (
        charts.emergence(whole).spec["hconcat"][2]["resolve"]["scale"]["shape"] == "independent"
    )  # a legend of its own
    if charts.can_export():
        assert charts.picture(charts.emergence(whole), "svg").startswith(b"<svg")
    page = chart_page(charts.emergence(whole))
    assert "the &lt;b&gt;film" in page
    assert "<b>film" not in page


def test_sentences_give_step_interval_and_sign(found: Track) -> None:
    first, when, onset, sign = track_sentences(found)
    assert "21 recorded steps from 0 to 10,000, dimension 7 came to stand 3 sigma out in 50 % of the layers" in first
    assert when.startswith("Dimension 7 stands out for good from step 3,000 on (not yet at step 2,500)")
    assert "the loss starts its last steep fall (step 2,500" in onset
    assert "early sign, not one that training is done" in sign


def changed(found: Track, **more: Any) -> Track:
    return dataclasses.replace(found, emergences=(dataclasses.replace(found.emergences[0], **more),))


def test_sentences_claim_no_more_than_the_numbers_hold(found: Track) -> None:
    assert "which came first" in track_sentences(changed(found, lead=Lead(-100, -600, 400)))[-1]
    assert "only after training was nearly done" in track_sentences(changed(found, lead=Lead(900, 400, 1400)))[-1]
    unsettled = Plateau(9500, 9000, 10_000, 4.0, 5.0, False, "loss")
    assert "too short to tell" in track_sentences(dataclasses.replace(found, plateau=unsettled))[-1]
    assert "is open: no loss curve" in track_sentences(dataclasses.replace(found, plateau=None))[-1]
    nothing = track_sentences(dataclasses.replace(found, emergences=()))
    assert nothing == (
        "Over 21 recorded steps from 0 to 10,000 no dimension comes to stand 3 sigma out in 50 % of the layers.",
    )
    gone = track_sentences(changed(found, passes="neither", step=None, seen=(500, 1500), lead=None))
    assert gone[1] == "Dimension 7 did so between steps 500 and 1,500, but not to the end."
    planted = track_sentences(changed(found, step=0, after=None))
    assert "dimension 7 stands from the first of them on 3 sigma out" in planted[0]
    assert len(planted) == 3
    assert planted[-1] == "Dimensions that stood out at the first recorded step have no onset to compare with the loss."
    alone = track_sentences(changed(found, passes="scale"))
    assert "no dimension passes for scale and bias both; 7 (scale alone)" in alone[0]


def test_an_onset_that_noise_would_show_is_not_settled(found: Track, capsys: pytest.CaptureFixture[str]) -> None:
    onset = found.emergences[0].onset
    assert onset is not None
    print_sections(BY_NAME["track"], found)
    assert f"{onset.step:,} [{onset.low:,}, {onset.high:,}]" in capsys.readouterr().out
    noisy = changed(found, onset=dataclasses.replace(onset, p=0.2), onset_lead=None)
    sentences = track_sentences(noisy)
    assert "when its scale starts to leave is not settled (p = 0.2)" in sentences[1]
    assert not any("starts to leave at step" in one or "last steep fall" in one for one in sentences)
    print_sections(BY_NAME["track"], noisy)
    assert re.search(r"not settled +0\.2", capsys.readouterr().out)
    assert "<bdi>not settled</bdi>" in render(synthetic.report_data(tracks=(noisy,)))


def test_the_report_shows_the_run(found: Track) -> None:
    data = from_json(to_json(synthetic.report_data(tracks=(found,))))
    page = render(data)
    assert re.search(r'<h2 id="emergence">Over training</h2>', page)
    assert {"emergence-loss", "emergence-scale", "emergence-bias", "emergence-sigma"} <= {
        c.name for c in all_charts(data)
    }
    assert track_sentences(found)[0] in page
    assert re.search(r"layer 2; in colour, with the scale at the last step: 7 at [\d.]+; the middle half", page)
    assert 7 in data.named("model")
    assert "stood out over training" in page
    assert render(from_json(to_json(data))) == page
    two = synthetic.report_data(tracks=(found, found))
    assert len({c.name for c in all_charts(two)}) == len(all_charts(two))


def test_named_dimensions_are_those_that_pass(found: Track) -> None:
    assert named_dims(found) == (7,)
    assert named_dims(changed(found, passes="neither", step=None)) == (7,)  # nothing passes: what is followed


def outlierlens(*words: Any) -> None:
    from outlierlens.cli.app import run

    run(["track", *map(str, words)])


def test_the_command_prints_writes_and_draws(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    from outlierlens.cli import main

    monkeypatch.setattr("outlierlens.report.files.can_export", lambda: False)
    words = ["track", str(run), "-o", str(tmp_path / "out"), "--chart", str(tmp_path / "c.json"), "--no-progress"]
    monkeypatch.setattr(sys, "argv", ["outlierlens", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert "dimension 7 came to stand 3 sigma out" in printed
    assert re.search(r"read [\d,]+ of [\d,]+ bytes \([\d.]+ %\)", printed)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "track.json", "results.json", "report.html", "manifest.json", "charts"
    }  # fmt: skip
    assert isinstance(load(tmp_path / "out" / "track.json"), Track)
    assert rerender(tmp_path / "out") == (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "hconcat" in json.loads((tmp_path / "c.json").read_text())
    with pytest.raises(SystemExit):
        main()
    assert "c.json exists" in capsys.readouterr().err
    (tmp_path / ".out.lock").touch()  # of a process that was killed behind the folder's name
    monkeypatch.setattr(sys, "argv", ["outlierlens", *words, "--overwrite"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert {path.name for path in tmp_path.iterdir()} == {"out", "c.json"}


def test_the_command_refuses_before_it_reads(tmp_path: Path) -> None:
    for words, says in (
        (("--chart", "x.gif"), "the ending says what is drawn"),
        (("--steps", "1,a"), "cannot read steps '1,a'; write them as 0,500,1000"),
        (("--dims", "0-3:7"), "names layers; write dimensions alone"),
    ):
        with pytest.raises(BadInput, match=re.escape(says)):
            outlierlens(tmp_path / "none", *words)
    (tmp_path / "track.json").write_text("{}")
    with pytest.raises(BadInput, match=r"holds track.json already; name another folder"):
        outlierlens(tmp_path / "none", "-o", tmp_path)
