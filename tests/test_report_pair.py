"""Two models side by side: who has which outliers, what is comparable, the charts' numbers, files and the command."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import synthetic_report as synthetic
from outlierlens.charts.pair import BINS, by_layer, changes, mean_size, profiles
from outlierlens.cli import report_pair
from outlierlens.errors import BadInput
from outlierlens.report import paired, rerender, write, write_pair
from outlierlens.report.pair import pair_advice, pair_sentences
from outlierlens.report.pair_page import pair_sections, render_pair
from outlierlens.report.results import ReportData
from outlierlens.results import save


def report(needles: tuple[int, ...], *, name: str = "tuned", dims: tuple[int, ...] = (), **shape: Any) -> ReportData:
    scan = synthetic.scan(synthetic.stack_scan(needles=needles, **shape), model=name)
    damages = (synthetic.damage(chosen=2.0, dims=dims),) if dims else ()
    data = synthetic.report_data(scan_result=scan, observed=False, damages=damages)
    return replace(data, provenance=replace(data.provenance, model=name))


@pytest.fixture(scope="module")
def base() -> ReportData:
    return synthetic.report_data()


def test_shared_and_own_outliers_are_told_apart_by_position(base: ReportData) -> None:
    pair = paired(base, report((100, 507, 31), dims=(31, 100, 507)))
    (match,) = pair.matches
    assert (match.both, match.only_ours, match.only_theirs) == ((100, 507), (247,), (31,))
    said = pair_sentences(pair)
    assert said[0] == (
        "smollm2-135m and tuned share 2 outlier dimensions: 100 and 507; 247 only in smollm2-135m; 31 only in tuned."
    )
    assert said[1] == (
        "What each loses: smollm2-135m: perplexity ×992 with 100, 247, 507 off, damaging (19 random triples: ×1.00 in the "
        "median); tuned: perplexity ×7.39 with 31, 100, 507 off, damaging (19 random triples: ×1.00 in the median)."
    )
    table = next(table for table in pair_sections(pair)[0].tables if table.title == "Position by position")
    assert [row[:2] for row in table.rows] == [(100, "both"), (507, "both"), (247, "smollm2-135m"), (31, "tuned")]
    own = dict(zip(table.columns, table.rows[2], strict=True))
    z = base.scan.stacks[0].z_scale[:, 247]
    assert own["smollm2-135m: layers past, scale"] == f"{(np.abs(z) >= 3).sum()} of 30"
    assert abs(own["smollm2-135m: strongest z"]) == np.abs(z).max()
    assert own["tuned: layers past, scale"] == "0 of 30"
    assert own["tuned: p (Holm)"] is None


def test_the_same_model_twice_has_the_same_profile_and_two_names(base: ReportData) -> None:
    pair = paired(base, base)
    assert pair.names == ("smollm2-135m (A)", "smollm2-135m (B)")
    assert pair_sentences(pair)[0].endswith("have the same 3 outlier dimensions: 100, 247 and 507.")
    assert pair.matches[0].correlation == pytest.approx(1)
    assert "they hardly differ in what a scan sees" in pair_sentences(pair)[2]
    assert pair_advice(pair)[0].text.startswith("What protects one protects the other")
    assert pair.notes == ()


def test_models_of_different_width_and_depth_share_no_positions(base: ReportData) -> None:
    small = report((5, 100), name="small", n_layers=6, hidden_size=128)
    pair = paired(base, small)
    (match,) = pair.matches
    assert not match.mapped
    assert (match.both, match.only_ours, match.only_theirs) == ((), (100, 247, 507), (5, 100))
    said = pair_sentences(pair)
    assert said[0] == "Both have outlier dimensions: smollm2-135m has 3 of 576, small has 2 of 128."
    assert "small: not measured" in said[1]
    assert said[-1] == (
        "smollm2-135m has 30 layers × 576 dimensions, small 6 layers × 128 dimensions: positions do not correspond; "
        "layers are shown at their share of the depth."
    )
    layers = next(chart for chart in pair_sections(pair)[0].charts if chart.name == "pair-layers")
    drawn = layers.spec["layer"][1]["data"]["values"]
    assert {row["label"] for row in drawn} >= {"dim 100 of smollm2-135m", "dim 100 of small"}
    assert {row["x"] for row in drawn if row["model"] == "small"} == {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}
    assert "pair-losses" not in render_pair(pair)


def test_none_in_either_or_in_one(base: ReportData) -> None:
    nothing = report(())
    assert pair_sentences(paired(nothing, report((), name="other")))[0] == (
        "Neither tuned nor other has an outlier dimension in its weights."
    )
    assert [step.topic for step in pair_advice(paired(nothing, nothing))] == ["check", "nothing"]
    assert pair_sentences(paired(nothing, base))[0] == (
        "smollm2-135m has 3 outlier dimensions: 100, 247 and 507; tuned has none."
    )


def test_streams_are_matched_by_name_and_what_is_left_is_said(base: ReportData) -> None:
    stacks = [replace(synthetic.stack_scan(needles=(7,)), stack=name) for name in ("encoder", "decoder")]
    both = synthetic.report_data(scan_result=synthetic.scan(*stacks), observed=False, damages=())
    one = synthetic.report_data(scan_result=synthetic.scan(stacks[1]), observed=False, damages=())
    pair = paired(both, replace(one, provenance=replace(one.provenance, model="other")))
    assert [match.name for match in pair.matches] == ["decoder"]
    assert pair.notes == ("smollm2-135m: stream encoder has no counterpart in the other model",)
    assert paired(base, one).matches[0].name == "model and decoder"  # the only stream of each


def test_what_makes_numbers_incomparable_is_said(base: ReportData) -> None:
    damage = replace(base.damages[0], data="other.txt", data_digest="cd" * 32, n_texts=3)
    rule = replace(base.scan.rule, n_sigma=2.0)
    other = replace(base, damages=(damage,), scan=replace(base.scan, rule=rule))
    assert [note.split(" ")[0:4] for note in paired(base, other).notes] == [
        ["the", "two", "scans", "used"], ["losses", "were", "measured", "on"], ["smollm2-135m", "(A)", "was", "measured"],
    ]  # fmt: skip
    masked = replace(base.damages[0], task="masked loss")
    pair = paired(base, replace(base, damages=(masked,)))
    assert "their numbers have different scales" in pair.notes[0]
    assert changes((base.damages[0], masked), ("a", "b"), name="x").title.startswith("Loss with")


def test_commands_of_the_advice_can_be_run(base: ReportData) -> None:
    from outlierlens.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    others = (base, report((31,)), report(()), report((5,), n_layers=6, hidden_size=128), report((5,), dims=(5,)))
    pairs = [paired(one, other) for one in others for other in others]
    said = {command for pair in pairs for step in pair_advice(pair) for command in step.commands}
    assert "outlierlens compare smollm2-135m tuned --values" in said
    for command in said:
        _, name, *words = shlex.split(command)
        commands[name].make_context(name, words)


def test_profiles_are_mean_z_up_and_down_on_one_scale() -> None:
    ours = synthetic.stack_scan(needles=(5,), n_layers=4, hidden_size=16)
    theirs = synthetic.stack_scan(needles=(9,), n_layers=4, hidden_size=16, bias=True, seed=3)
    made = profiles(ours, theirs, ("a", "b"), ((5,), (9,)), name="p")
    sky, _, sigma, marks = (layer["data"]["values"] for layer in made.spec["layer"][:4])
    up = {row["dim"]: row["y"] for row in sky if row["y"] > 0}
    down = {row["dim"]: row["y"] for row in sky if row["y"] < 0}
    assert up == {dim: pytest.approx(np.abs(ours.z_scale[:, dim]).mean(), rel=5e-3) for dim in range(16)}
    both = (np.abs(theirs.z_scale).mean(axis=0) + np.abs(theirs.z_bias).mean(axis=0)) / 2
    assert down == {dim: pytest.approx(-both[dim], rel=5e-3) for dim in range(16)}
    assert [row["y"] for row in sigma] == [ours.n_sigma, -theirs.n_sigma]
    assert [(row["dim"], row["model"]) for row in marks] == [(5, "a"), (9, "b")]


def test_wide_models_are_thinned_to_what_a_picture_can_show_and_keep_their_peaks() -> None:
    wide = synthetic.stack_scan(needles=(8000,), n_layers=12, hidden_size=8192, columns=8192)
    made = profiles(wide, wide, ("a", "b"), ((8000,), (8000,)), name="p")
    sky = made.spec["layer"][0]["data"]["values"]
    assert len(sky) == 2 * BINS
    size = mean_size(wide)
    bins = np.arange(8192) * BINS // 8192
    assert sorted(row["size"] for row in sky if row["y"] > 0) == pytest.approx(
        sorted(size[bins == one].max() for one in range(BINS)), rel=5e-3
    )
    assert len(json.dumps(made.spec)) < 100_000
    assert len(by_layer(wide, wide, ("a", "b"), ((8000,), (8000,)), name="l").rows) == 24


@pytest.mark.usefixtures("no_picture_files")
def test_its_files_and_the_way_there_from_finished_runs(base: ReportData, run: Any, tmp_path: Path) -> None:
    write(base, tmp_path / "base")
    save(report((31,)).scan, tmp_path / "scan.json")
    out = tmp_path / "runs" / "both"
    words = ("report", "--compare", str(tmp_path / "base"), str(tmp_path / "scan.json"), "-o", str(out))
    code, said, err = run(*words)
    assert (code, said) == (0, f"report: {out / 'report.html'}\n"), err
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    assert [one["model"] for one in manifest["models"]] == ["smollm2-135m", "tuned"]
    assert manifest["finding"][0].startswith("smollm2-135m and tuned share no outlier dimension")
    assert {"report.html", "charts/pair-profiles.vl.json", "charts/pair-layers.vl.json"} == set(manifest["files"])
    page = (out / "report.html").read_text("utf-8")
    assert page.count('href="../../base/report.html"') == 2
    assert "no report of its own lies beside this page" in page
    assert shlex.join(["outlierlens", *words]) in page
    code, _, err = run(*words)
    assert code == 1
    assert "holds a report already; name another directory with -o, or use --overwrite" in err
    assert run(*words, "--overwrite", "-q")[:2] == (0, "")
    assert rerender(tmp_path / "base") == (tmp_path / "base" / "report.html").read_text("utf-8")  # untouched
    assert write_pair(paired(base, base), tmp_path / "again").files[1].name == "report.html"


def test_what_cannot_be_compared_is_said_before_any_work(base: ReportData, run: Any, tmp_path: Path) -> None:
    save(base.damages[0], tmp_path / "damage.json")
    code, _, err = run("report", "--compare", "mini-bert", str(tmp_path / "damage.json"), "-o", str(tmp_path / "out"))
    assert code == 1
    assert "holds a Damage; --compare takes models, run directories, results.json or a scan's JSON" in err
    assert not (tmp_path / "out").exists()
    code, _, err = run("report", "mini-bert", "--compare", "a", "b")
    assert (code, err) == (1, "error: --compare takes two models; MODEL belongs to a report of one\n")
    code, _, err = run("report", "--compare", "a", "b", "--card", str(tmp_path / "card.md"))
    assert (code, err) == (1, "error: --compare takes two models; --card belongs to a report of one\n")


@pytest.mark.usefixtures("no_picture_files")
def test_a_model_is_measured_into_a_folder_of_its_own_once(
    base: ReportData, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "outlierlens.cli.job._tracked", lambda _: ()
    )  # its training takes seconds, and is tested elsewhere
    write(base, tmp_path / "base")
    words = ("report", "--compare", "mini-planted", str(tmp_path / "base"), "-o", str(tmp_path / "out"), "--limit", "2",
             "--random", "1", "--matched", "0", "--no-progress")  # fmt: skip
    code, _, err = run(*words)
    assert code == 0, err
    assert (tmp_path / "out" / "a" / "results.json").is_file()
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "Both have outlier dimensions: mini-planted has 8 of 128, smollm2-135m has 3 of 576." in page
    assert 'href="a/report.html"' in page

    def measured_again(*_: Any) -> None:
        raise BadInput("measured again")

    monkeypatch.setattr(report_pair, "run", measured_again)
    (tmp_path / "out" / "report.html").unlink()  # as if it had been stopped before the last step
    assert run(*words)[0] == 0
    code, _, err = run(*words[:-1], "--seed", "1", "--overwrite")
    assert (code, err) == (1, "error: measured again\n")
