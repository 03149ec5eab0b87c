"""Two models side by side: who has which outliers, what is comparable, the charts' numbers, files and the command."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synthetic_report as synthetic
from outlierlens.detection.scan.charts import mean_size
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions
from outlierlens.report import pair_job, paired, rerender, write, write_pair
from outlierlens.report.job import Job
from outlierlens.report.options import ReportOptions
from outlierlens.report.pair import BINS, by_layer, changes, pair_advice, pair_sentences, profiles
from outlierlens.report.pair_page import pair_sections, render_pair
from outlierlens.report.result import ReportData
from outlierlens.results.document import load, save


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
    damage = replace(base.damages[0], about=replace(base.damages[0].about, n_texts=3))
    rule = replace(base.scan.rule, n_sigma=2.0)
    other = replace(base, damages=(damage,), scan=replace(base.scan, rule=rule))
    assert [note.split(" ")[0:4] for note in paired(base, other).notes] == [
        ["the", "two", "scans", "used"], ["smollm2-135m", "(A)", "was", "measured"],
    ]  # fmt: skip
    masked = replace(base.damages[0], about=replace(base.damages[0].about, task="masked loss"))
    pair = paired(base, replace(base, damages=(masked,)))
    assert "their numbers have different scales" in pair.notes[0]
    assert changes((base.damages[0], masked), ("a", "b"), name="x").title.startswith("Loss with")


@pytest.mark.parametrize("what", ["texts", "length", "damage alone"])
def test_what_was_measured_on_different_texts_is_not_put_side_by_side(base: ReportData, what: str) -> None:
    observed, (damage,) = base.observation, base.damages
    assert observed is not None
    changes = {"max_length": 64} if what == "length" else {"data": "other.txt", "data_digest": "cd" * 32, "n_texts": 3}
    other = replace(base, observation=replace(observed, **changes))  # type: ignore[arg-type]
    if what == "damage alone":
        base = replace(base, observation=None)
        about = replace(damage.about, data="other.txt", data_digest="cd" * 32, n_texts=3)
        other = replace(base, damages=(replace(damage, about=about),))
    pair = paired(base, other, ("a/report.html", ""))
    assert pair.texts is not None
    said = pair_sentences(pair)[1]
    assert said.startswith(
        "What each loses and what it reaches while it runs is not compared, for they read different texts:"
    )
    second = "64 tokens each" if what == "length" else "3 texts of other.txt"
    assert "smollm2-135m (A) 16 texts of excerpt" in said
    assert second in said.rpartition("smollm2-135m (B) ")[2]
    page = render_pair(pair)
    for side_by_side in ("pair-losses", "Losses side by side", "Hidden values side by side", "perplexity", "damaging"):
        assert side_by_side not in page.split("<script")[0] + page.split("</script>")[-1], side_by_side
    assert "The numbers stand in the reports of smollm2-135m (A)." in page
    first = pair_advice(pair)[0]
    assert first.commands == ("outlierlens report --compare smollm2-135m smollm2-135m",)
    same = render_pair(paired(base, base))
    assert "Losses side by side" in same
    assert "not compared" not in same


def test_commands_of_the_advice_can_be_run(base: ReportData) -> None:
    from outlierlens.cli.app import read

    others = (base, report((31,)), report(()), report((5,), n_layers=6, hidden_size=128), report((5,), dims=(5,)))
    pairs = [paired(one, other) for one in others for other in others]
    said = {command for pair in pairs for step in pair_advice(pair) for command in step.commands}
    assert "outlierlens compare smollm2-135m tuned --values" in said
    for command in said:
        read(shlex.split(command)[1:])


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


@pytest.mark.usefixtures("no_picture_files")
def test_a_model_is_measured_on_the_texts_of_the_finished_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report on film reviews beside a model that would be measured on the excerpt by itself, and the other way about."""
    monkeypatch.setattr("outlierlens.report.job._tracked", lambda _: ())
    few = ("--random", "1", "--matched", "0", "--no-progress")
    (tmp_path / "films.txt").write_text("A fine film.\nA bad one, and long.\nThe actors are good.\n", "utf-8")
    done = ("report", "mini-planted", "--data", str(tmp_path / "films.txt"), "--limit", "2", "--max-length", "16")
    assert run(*done, *few, "-o", str(tmp_path / "done"))[0] == 0
    pair = ("report", "--compare", str(tmp_path / "done"), "mini-bert", *few)
    code, _, err = run(*pair, "-o", str(tmp_path / "both"))
    assert (code, "note:" in err) == (0, False), err
    one, other = (load(tmp_path / name / "results.json").observation for name in ("done", "both/b"))
    assert (one.data_digest, one.n_texts, one.max_length) == (other.data_digest, other.n_texts, other.max_length)
    assert "Losses side by side" in (tmp_path / "both" / "report.html").read_text("utf-8")
    # Others are asked for, or what was read is no longer there: said first, and not put side by side.
    code, _, err = run(*pair, "--data", "reviews", "--limit", "2", "-o", str(tmp_path / "asked"))
    assert code == 0
    assert "mini-planted was measured on 2 texts of" in err
    assert "mini-bert is measured on others (reviews), and the page will not compare what they lose" in err
    assert "Losses side by side" not in (tmp_path / "asked" / "report.html").read_text("utf-8")
    (tmp_path / "films.txt").write_text("Another text.\n", "utf-8")
    read: list[Any] = []
    monkeypatch.setattr(pair_job, "run", lambda job, *_: read.append(job) or _stop())
    code, _, err = run(*pair, "-o", str(tmp_path / "gone"))
    assert (code, read[0].reading.data, read[0].reading.limit) == (1, "reviews", 16)
    assert "is measured on others (reviews)" in err


@pytest.mark.usefixtures("no_picture_files")
@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        ((512, 512), [("one", 128), ("two", 128)]),
        ((64, 512), [("one", 128), ("two", 64)]),
        ((512, 64), [("one", 128), ("two", 128), ("one", 64)]),
    ],
)
def test_both_read_as_many_tokens_of_a_text_as_the_one_that_reads_fewer(
    base: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], calls: list[Any]
) -> None:
    """Models have so many positions; each run is written down, and once finished not repeated."""
    observed, done = base.observation, []
    assert observed is not None

    def measure(job: Job, *_: Any) -> None:
        done.append((job.model, job.options.max_length))
        length = min(job.options.max_length, dict(zip(("one", "two"), limits, strict=True))[job.model])
        made = replace(base.provenance, model=job.model, command=job.command)
        save(
            replace(base, provenance=made, observation=replace(observed, max_length=length)),
            job.directory / "results.json",
        )
        (job.directory / "report.html").touch()

    monkeypatch.setattr(pair_job, "run", measure)
    job = Job(ReportOptions(model="one"), tmp_path, command="outlierlens report --compare one two")
    page = pair_job.report_pair(("one", "two"), job, LoadOptions(), lambda *_: None)
    assert done == calls
    assert "Losses side by side" in page.read_text("utf-8")
    page.unlink()
    pair_job.report_pair(("one", "two"), job, LoadOptions(), lambda *_: None)
    assert done == calls  # finished: nothing is measured again


def _stop() -> None:
    raise BadInput("far enough")


def test_what_cannot_be_compared_is_said_before_any_work(base: ReportData, run: Any, tmp_path: Path) -> None:
    save(base.damages[0], tmp_path / "damage.json")
    code, _, err = run("report", "--compare", "mini-bert", str(tmp_path / "damage.json"), "-o", str(tmp_path / "out"))
    assert code == 1
    assert "holds a Ablation; --compare takes models, run directories, results.json or a scan's JSON" in err
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
        "outlierlens.report.job._tracked", lambda _: ()
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

    monkeypatch.setattr(pair_job, "run", measured_again)
    (tmp_path / "out" / "report.html").unlink()  # as if it had been stopped before the last step
    assert run(*words)[0] == 0
    code, _, err = run(*words[:-1], "--seed", "1", "--overwrite")
    assert code == 1
    assert err.endswith("error: measured again\n")
