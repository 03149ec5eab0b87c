"""Two models on one page: what became of the outliers, both lists of findings, what is comparable, files and the command."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import synthetic_report as synthetic
from browser import Page
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions
from outlierlens.report import ReportPair, both_job, rerender, write, write_both
from outlierlens.report.job import Job
from outlierlens.report.options import ReportOptions
from outlierlens.report.page import render_both
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


def test_the_same_model_twice_has_two_names(base: ReportData) -> None:
    both = ReportPair((base, base))
    assert both.names == ("smollm2-135m (A)", "smollm2-135m (B)")
    assert both.advice()[0].text.startswith("What protects one protects the other")
    assert both.page_sections()[1].title.startswith("smollm2-135m (A): ")


def test_models_of_different_width_and_depth_are_shown_and_not_compared(base: ReportData) -> None:
    small = report((5, 100), name="small", n_layers=6, hidden_size=128)
    both = ReportPair((base, small))
    said = both.finding()
    assert said[0] == (
        "smollm2-135m has 3 outlier dimensions: 100, 247 and 507; small has 2 outlier dimensions: 5 and 100."
    )
    assert "small: The effect of ablating them was not measured." in said
    assert said[-1].startswith("No dimension is held against its counterpart: smollm2-135m has other streams")
    assert [section.name[:2] for section in both.page_sections()] == ["a-", "a-", "a-", "b-"]


def test_none_in_either(base: ReportData) -> None:
    nothing = report(())
    both = ReportPair((nothing, report((), name="other")))
    assert both.finding()[0] == "tuned → other: no outlier in either model."
    assert [step.topic for step in both.advice()] == ["check", "nothing", "trust", "nothing", "trust"]


def test_another_task_or_rule_is_said(base: ReportData) -> None:
    other = synthetic.changed(base, scan=replace(base.scan, rule=replace(base.scan.rule, n_sigma=2.0)))
    assert "the two scans used different rules or views" in ReportPair((base, other)).finding()[-1]
    masked = replace(base.damages[0], about=replace(base.damages[0].about, task="masked loss"))
    assert (
        "their numbers have different scales"
        in ReportPair((base, synthetic.changed(base, damages=(masked,)))).finding()[1]
    )


@pytest.mark.parametrize("what", ["texts", "length", "damage alone"])
def test_what_was_measured_on_different_texts_is_said_first(base: ReportData, what: str) -> None:
    observed, (damage,) = base.observation, base.damages
    assert observed is not None
    changes = {"max_length": 64} if what == "length" else {"data": "other.txt", "data_digest": "cd" * 32, "n_texts": 3}
    other = synthetic.changed(base, observation=replace(observed, about=replace(observed.about, **changes)))
    if what == "damage alone":
        base = synthetic.changed(base, observation=None)
        about = replace(damage.about, data="other.txt", data_digest="cd" * 32, n_texts=3)
        other = synthetic.changed(base, damages=(replace(damage, about=about),))
    both = ReportPair((base, other), ("a/report.html", ""))
    assert both.texts
    said = both.finding()[1]
    assert said.startswith(
        "What each loses and what it reaches while it runs cannot be compared, for they read different texts:"
    )
    second = "64 tokens each" if what == "length" else "3 texts of other.txt"
    assert "smollm2-135m (A) 16 texts of excerpt" in said
    assert second in said.rpartition("smollm2-135m (B) ")[2]
    assert said in Page(render_both(both)).text
    again = [step for step in both.advice() if step.because == "a loss depends on the text"]
    assert [step.commands for step in again] == [("outlierlens report --compare smollm2-135m smollm2-135m",)]
    assert not ReportPair((base, base)).texts


def test_commands_of_the_advice_can_be_run(base: ReportData) -> None:
    from outlierlens.cli.app import read

    others = (base, report((31,)), report(()), report((5,), n_layers=6, hidden_size=128), report((5,), dims=(5,)))
    pairs = [ReportPair((one, other)) for one in others for other in others]
    said = {command for both in pairs for step in both.advice() for command in step.commands}
    assert "outlierlens compare smollm2-135m tuned --values" in said
    for command in said:
        read(shlex.split(command)[1:])


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
    assert manifest["finding"][0] == "smollm2-135m → tuned: none stayed; 31 came; 100, 247, 507 went."
    charts = {"against-other-checkpoints", "a-weights-scale", "a-ablation", "b-weights-scale"}
    assert {"report.html", *(f"charts/{name}.vl.json" for name in charts)} <= set(manifest["files"])
    page = (out / "report.html").read_text("utf-8")
    assert page.count('href="../../base/report.html"') == 2
    assert shlex.join(["outlierlens", *words]) in page
    code, _, err = run(*words)
    assert code == 1
    assert "holds a report already; name another directory with -o, or use --overwrite" in err
    assert run(*words, "--overwrite", "-q")[:2] == (0, "")
    assert rerender(tmp_path / "base") == (tmp_path / "base" / "report.html").read_text("utf-8")  # untouched
    assert write_both(ReportPair((base, base)), tmp_path / "again").files[1].name == "report.html"


@pytest.mark.usefixtures("no_picture_files")
def test_a_model_is_measured_on_the_texts_of_the_finished_one(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report on film reviews beside a model that would be measured on the excerpt by itself, and the other way about."""
    monkeypatch.setattr("outlierlens.report.job._tracked", lambda _: ())
    few = ("--random", "1", "--matched", "0")
    (tmp_path / "films.txt").write_text("A fine film.\nA bad one, and long.\nThe actors are good.\n", "utf-8")
    done = ("report", "mini-planted", "--data", str(tmp_path / "films.txt"), "--limit", "2", "--max-length", "16")
    assert run(*done, *few, "-o", str(tmp_path / "done"))[0] == 0
    pair = ("report", "--compare", str(tmp_path / "done"), "mini-bert", *few)
    code, _, err = run(*pair, "-o", str(tmp_path / "both"))
    assert (code, "note:" in err) == (0, False), err
    one, other = (load(tmp_path / name / "results.json").observation.about for name in ("done", "both/b"))
    assert (one.data_digest, one.n_texts, one.max_length) == (other.data_digest, other.n_texts, other.max_length)
    assert "they read different texts" not in (tmp_path / "both" / "report.html").read_text("utf-8")
    # Others are asked for, or what was read is no longer there: said first, and not put side by side.
    code, _, err = run(*pair, "--data", "reviews", "--limit", "2", "-o", str(tmp_path / "asked"))
    assert code == 0
    assert "mini-planted was measured on 2 texts of" in err
    assert "mini-bert is measured on others (reviews), so what they lose cannot be compared" in err
    assert "they read different texts" in (tmp_path / "asked" / "report.html").read_text("utf-8")
    (tmp_path / "films.txt").write_text("Another text.\n", "utf-8")
    read: list[Any] = []
    monkeypatch.setattr(both_job, "run", lambda job, *_: read.append(job) or _stop())
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
        about = replace(observed.about, max_length=length)
        save(
            synthetic.changed(base, provenance=made, observation=replace(observed, about=about)),
            job.directory / "results.json",
        )
        (job.directory / "report.html").touch()

    monkeypatch.setattr(both_job, "run", measure)
    job = Job(ReportOptions(model="one"), tmp_path, command="outlierlens report --compare one two")
    page = both_job.report_both(("one", "two"), job, LoadOptions(), lambda *_: None)
    assert done == calls
    assert "they read different texts" not in page.read_text("utf-8")
    page.unlink()
    both_job.report_both(("one", "two"), job, LoadOptions(), lambda *_: None)
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
             "--random", "1", "--matched", "0")  # fmt: skip
    code, _, err = run(*words)
    assert code == 0, err
    assert (tmp_path / "out" / "a" / "results.json").is_file()
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "mini-planted has 8 outlier dimensions: 8, 24, 40, 56, 72, 88, 104 and 120; smollm2-135m has 3" in page
    assert 'href="a/report.html"' in page

    def measured_again(*_: Any) -> None:
        raise BadInput("measured again")

    monkeypatch.setattr(both_job, "run", measured_again)
    (tmp_path / "out" / "report.html").unlink()  # as if it had been stopped before the last step
    assert run(*words)[0] == 0
    code, _, err = run(*words, "--seed", "1", "--overwrite")
    assert code == 1
    assert err.endswith("error: measured again\n")
