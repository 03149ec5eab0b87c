"""`outlierlens sweep` end to end on tiny saved models: the run directory, resuming, refusals, output and progress."""

import base64
import hashlib
import html
import importlib.util
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import synthetic_report as synthetic
from outlierlens.cli.experiment import print_sections
from outlierlens.errors import BadInput
from outlierlens.experiments import BY_NAME
from outlierlens.experiments.sweep import command as progress
from outlierlens.experiments.sweep.command import SweepView, board, drawn, headline
from outlierlens.experiments.sweep.result import Precision, Sweep
from outlierlens.experiments.sweep.view import sections, stands_out
from outlierlens.options import parse_sets
from outlierlens.report import chart_page
from outlierlens.results.document import load, save
from outlierlens.tasks.base import TaskReading
from outlierlens.view.section import cell_text, duration

pytestmark = pytest.mark.usefixtures("no_picture_files")
FEW = ("--random", "4", "--matched", "2", "--random-texts", "4", "--max-length", "8", "--gradients", "8")


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(8 + i % 5)) for i in range(24)))
    return str(path)


@pytest.fixture
def swept(model_folder: Any, text: str, run: Any, tmp_path: Path) -> Any:
    """Runs a small sweep of a tiny model and returns (directory, sweep, stdout, stderr)."""

    def call(*arguments: str, model: str = "", out: str = "run") -> tuple[Path, Sweep, str, str]:
        directory = tmp_path / out
        words = (
            "sweep",
            model or model_folder(),
            "--data",
            text,
            *FEW,
            "-o",
            str(directory),
            "--no-progress",
            *arguments,
        )
        code, stdout, stderr = run(*words)
        assert code == 0, stderr
        return directory, load(directory / "sweep.json"), stdout, stderr

    return call


def comparable(sweep: Sweep) -> Sweep:
    """A sweep without what differs from run to run."""
    return replace(
        sweep, provenance=replace(sweep.provenance, created="", command=""), cost=replace(sweep.cost, seconds=0)
    )


@pytest.mark.parametrize(
    ("family", "head", "kind", "task", "a_text"),
    [
        ("gpt2", "CausalLM", "causal", "causal loss", "block of 8 tokens"),
        ("bert", "MaskedLM", "masked", "masked loss", "line of at most 8 tokens"),
        ("bert", "", "masked", "output change", "line of at most 8 tokens"),
    ],
)
def test_every_dimension_of_each_kind_of_model(
    family: str, head: str, kind: str, task: str, a_text: str, model_folder: Any, swept: Any
) -> None:
    directory, sweep, stdout, _ = swept("--json", model=model_folder(family, head, kind))
    document = json.loads(stdout)
    assert (document["kind"], document["task"], document["text"]) == ("Sweep", task, a_text)
    assert [effect.dims for effect in sweep.singles()] == [(dim,) for dim in range(16)]
    assert len(document["effects"]) == len(sweep.effects)
    assert document["effects"][3]["change"] == pytest.approx(sweep.effects[3].change)
    manifest = json.loads((directory / "manifest.json").read_text())
    for name in ("rows.jsonl", "sweep.json", "results.json", "report.html"):
        content = (directory / name).read_bytes()
        assert manifest["files"][name] == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert "outlierlens sweep" in sweep.provenance.command
    (in_report,) = load(directory / "results.json").sweeps
    assert in_report == sweep


def test_a_model_whose_texts_begin_with_a_token_says_so_in_every_place(
    model_folder: Any, text: str, run: Any, swept: Any
) -> None:
    model = model_folder("llama", "CausalLM", "begun")
    directory, sweep, stdout, _ = swept(model=model)
    begins = "every block begins with [CLS], as the tokenizer begins a text: among its 8 tokens, and not predicted"
    assert begins in sweep.notes
    assert f"note: {begins}" in stdout
    assert begins in (directory / "report.html").read_text("utf-8")
    code, stdout, err = run("ablate", model, "--dims", "3", "--data", text, "--max-length", "8", "--random", "1")
    assert code == 0, err
    assert f"note: {begins.replace('block', 'window')}" in stdout


def test_the_table_says_what_was_measured_and_how_to_draw_it_again(swept: Any, run: Any) -> None:
    directory, sweep, stdout, _ = swept("--sets", "3,5")
    best = sweep.top(1)[0]
    assert f" on {sweep.data}: causal loss in nats per token of {sweep.n_texts} texts" in stdout
    assert "where a text is a block of 8 tokens" in stdout
    lines = stdout.splitlines()
    row = lines[next(place for place, line in enumerate(lines) if line.startswith("off  ")) + 1]
    assert row.startswith(best.label)
    assert f"{best.change:+.3g}" in row
    assert re.search(rf"^3, 5 +random +{len(sweep.nulls[0].changes)} +{sweep.nulls[0].n_texts} ", stdout, re.MULTILINE)
    assert f"Cost: {sweep.cost.total:,} evaluations of a text" in stdout
    again = re.search(r"draw again: outlierlens (.*)", stdout)
    assert again
    page = (directory / "report.html").read_text("utf-8")
    (directory / "report.html").unlink()
    code, _, err = run(*shlex.split(again[1]))
    assert code == 0, err
    assert (directory / "report.html").read_text("utf-8") == page
    assert {"rows.jsonl", "sweep.json"} <= set(json.loads((directory / "manifest.json").read_text())["files"])


def test_a_finished_sweep_is_made_again_from_its_rows_alone(swept: Any) -> None:
    directory, sweep, _, err = swept()
    assert "nothing was measured" not in err
    rows = (directory / "rows.jsonl").read_bytes()
    (directory / "report.html").unlink()
    again, same, _, err = swept()
    assert f"{again} was finished: nothing was measured, all was made again from rows.jsonl" in err
    assert (again / "rows.jsonl").read_bytes() == rows
    assert (again / "report.html").exists()
    assert comparable(same) == comparable(sweep)


def test_what_is_wanted_beyond_the_rows_is_measured_and_the_rows_only_grow(swept: Any) -> None:
    directory, few, _, _ = swept("--dims", "3,5", "--no-found-set")
    rows = (directory / "rows.jsonl").read_text()
    _, all_, _, err = swept("--no-found-set")
    assert "nothing was measured" not in err
    assert (directory / "rows.jsonl").read_text().startswith(rows)
    assert [effect.label for effect in few.effects] == ["3", "5"]
    assert len(all_.effects) == 16
    for effect in few.effects:
        assert all_.effect(effect.dims[0]).change == pytest.approx(effect.change, abs=1e-6)
    _, others, _, _ = swept("--dims", "4,6", "--no-found-set")
    _, fresh, _, _ = swept("--dims", "4,6", "--no-found-set", out="fresh")
    for effect, same in zip(others.effects, fresh.effects, strict=True):
        assert effect.first_order == pytest.approx(same.first_order, abs=1e-6)
        assert (effect.change, effect.low) == pytest.approx((same.change, same.low), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "word"), [(["--seed", "1"], "seed"), (["--mode", "zero"], "mode"), (["--max-length", "6"], "task")]
)
def test_another_seed_mode_or_task_is_refused_with_what_differs(
    change: list[str], word: str, swept: Any, run: Any, model_folder: Any, text: str
) -> None:
    directory, _, _, _ = swept("--dims", "3", "--no-found-set")
    rows = (directory / "rows.jsonl").read_bytes()
    few = [
        word for pair in (dict(zip(FEW[::2], FEW[1::2], strict=True)) | {change[0]: change[1]}).items() for word in pair
    ]
    arguments = ("sweep", model_folder(), "--data", text, *few, "-o", str(directory), "--no-progress", "--dims", "3")
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert f"{directory / 'rows.jsonl'} holds rows of other work" in err
    assert word in err
    assert "--overwrite to start again" in err
    assert (directory / "rows.jsonl").read_bytes() == rows
    code, _, err = run(*arguments, "--overwrite")
    assert code == 0, err
    assert (directory / "rows.jsonl").read_bytes() != rows


def test_another_model_or_other_data_are_refused(
    swept: Any, run: Any, model_folder: Any, text: str, tmp_path: Path
) -> None:
    directory, _, _, _ = swept("--dims", "3", "--no-found-set")
    other = tmp_path / "other.txt"
    other.write_text(Path(text).read_text().replace("w1 ", "w2 "))
    ours = [*FEW, "-o", str(directory), "--no-progress", "--dims", "3"]
    code, _, err = run("sweep", model_folder(), "--data", str(other), *ours)
    assert code == 1
    assert re.search(r"rows of other work \(.*data was '[0-9a-f]{64}', is '[0-9a-f]{64}'", err)
    code, _, err = run("sweep", model_folder(moved=0.01), "--data", text, *ours)
    assert code == 1
    assert re.search(r"rows of other work \(.*model was", err)


def test_a_directory_of_something_else_is_left_alone(run: Any, model_folder: Any, text: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").write_text("mine")
    code, _, err = run("sweep", model_folder(), "--data", text, "-o", str(tmp_path / "other"))
    assert code == 1
    assert "holds report.html but no rows.jsonl to continue from" in err
    assert (tmp_path / "other" / "report.html").read_text() == "mine"
    code, _, err = run("sweep", model_folder(), "--data", text, "-o", text)
    assert code == 1
    assert "is a file; name a directory with -o" in err


def test_a_directory_takes_one_sweep_at_a_time(run: Any, model_folder: Any, text: str, tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"):
        code, _, err = run("sweep", model_folder(), "--data", text, "-o", str(tmp_path / "run"))
    assert code == 1
    assert "another sweep is writing to it" in err


def test_dimensions_sets_and_windows_as_asked_for(swept: Any) -> None:
    _, sweep, _, _ = swept("--dims", "none", "--sets", "3,5;7,1", "--no-found-set", out="sets")
    assert [effect.label for effect in sweep.effects] == ["3, 5", "1, 7"]
    assert {null.kind for null in sweep.nulls} == {"random", "ordinary", "matched"}
    _, sweep, stdout, _ = swept("--dims", "5", "--windows", "single", "--no-found-set", out="windows")
    assert [effect.window for effect in sweep.effects] == ["layer 0", "layer 1", "layer 2"]
    assert "3 windows (layer 0 … layer 2)" in stdout
    _, sweep, _, _ = swept("--dims", "5", "--windows", "from", "--layers", "1-2", "--no-found-set", out="from")
    assert [effect.layers for effect in sweep.effects] == [(1, 2), (2,)]


def test_found_means_what_the_weights_name(swept: Any, model_folder: Any) -> None:
    from outlierlens.detection.scan.measure import scan

    model = model_folder("bert", "MaskedLM", "masked")
    named = scan(model).stacks[0].dims
    arguments = ("--dims", "find", "--sets", "3,5")
    _, sweep, stdout, _ = swept(*arguments, model=model)
    assert sweep.found == named
    assert [effect.dims for effect in sweep.singles()] == [(dim,) for dim in named]
    assert ("The weights name no dimension here." in stdout) == (not named)


def test_a_text_may_be_a_line_and_every_text_may_be_measured(swept: Any, text: str) -> None:
    _, sweep, stdout, _ = swept("--lines", "--exact", "--dims", "3,5", "--no-found-set", "--batch-size", "4")
    assert sweep.text == "line of at most 8 tokens" or sweep.text.startswith("line")
    assert sweep.n_texts == len(Path(text).read_text().splitlines())
    assert {effect.n_texts for effect in sweep.effects} == {sweep.n_texts}
    assert sweep.method == "exact"
    assert "times what was spent" not in stdout


@pytest.mark.parametrize("ending", ["html", "svg", "png", "json"])
def test_the_chart_is_drawn_to_a_file(ending: str, swept: Any, tmp_path: Path) -> None:
    if ending in ("svg", "png"):
        pytest.importorskip("vl_convert")
    chart = tmp_path / f"sweep.{ending}"
    _, _, stdout, _ = swept("--chart", str(chart), "--dims", "1,2,3,4,5")
    content = chart.read_bytes()
    starts = {"html": b"<!doctype html>", "svg": b"<svg", "png": b"\x89PNG", "json": b'{"$schema"'}
    assert content.startswith(starts[ending])
    assert f"chart: {chart}" in stdout


def test_a_chart_s_page_is_under_the_policy_of_a_report(tmp_path: Path) -> None:
    page = chart_page(drawn(synthetic.sweep(width=40, strong={7: 2.0}, found=(7,))))
    assert 'data-chart="sweep-effects"' in page
    assert "charts/" not in page.partition("<script")[0]  # no picture lies beside it
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"sha256-{digest}" in html.unescape(page)
    by_layer = chart_page(drawn(synthetic.layer_sweep()))
    assert 'data-chart="sweep-map"' in by_layer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dims", "0-3:5"], "--dims '0-3:5' names layers; name dimensions"),
        (["--dims", "most"], "cannot read dimensions 'most'"),
        (["--sets", "0:3,5"], "cannot read sets '0:3,5'; write 100,247;507,100"),
        (["--mark", "best"], 'Invalid value "best" for --mark. Choose from: "rank", "5x".'),
        (["--full", "--random", "9"], "--full is --random 1000; give one of them"),
        (["--batch-size", "many"], "--batch-size is 'many'; use auto or a number of rows"),
        (["--batch-size", "0"], "--batch-size is 0; it must be at least 1"),
        (["--engine", "slurm"], 'Choose from: "local", "ray".'),
        (["--workers", "2"], "--cpus-per-worker and --gpus-per-worker belong to --engine ray"),
        (["--chart", "x.gif"], "the ending says what is drawn; use .html, .svg, .png, .json"),
        (["--plan", "3,5"], "--plan '3,5' names no layers; write 0-9:896;10-16:678,896, or use --sets"),
        (["--windows", "some"], 'Choose from: "all", "single", "from", "upto".'),
        (["--mode", "half"], 'Invalid value "half" for --mode'),
        (["--tolerance", "0"], "--tolerance is 0.0"),
        (["--task", "glue:rte", "--lines"], "--lines and --mask-seed belong to texts without labels"),
        (["--embeddings"], "embeddings belongs to mode writes, not to mode 'weights'"),
    ],
)
def test_options_are_checked_before_the_model_is_looked_for(arguments: list[str], message: str, run: Any) -> None:
    code, out, err = run("sweep", "no-such-model", *arguments)
    assert (code in (1, 2), out) == (True, "")
    assert message in err


def ray_is(*, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Ray look installed, or not, whatever is."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *of: (object() if there else None) if name == "ray" else find(name, *of),
    )


def test_ray_is_asked_for_with_what_was_given(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine itself is tested elsewhere: here, that the command hands it the texts, the model and the machines."""
    from outlierlens.experiments.sweep import ray_engine
    from outlierlens.experiments.sweep.engines import Local

    asked: dict[str, Any] = {}

    def on_ray(texts: Any, load: Any, **options: Any) -> Any:
        asked.update(options, n_texts=len(texts), offline=load.offline)
        return Local

    monkeypatch.setattr(ray_engine, "on_ray", on_ray)
    ray_is(there=True, monkeypatch=monkeypatch)
    machines = ("--engine", "ray", "--address", "head:6379", "--workers", "3", "--gpus-per-worker", "0.25", "--offline")
    _, sweep, _, _ = swept(*machines, "--dims", "3")
    wanted = {"address": "head:6379", "workers": 3, "cpus_per_worker": 1.0, "gpus_per_worker": 0.25}
    assert asked == {**wanted, "n_texts": 24, "offline": True}
    assert sweep.effect(3).n_texts >= 8


def test_without_ray_the_engine_is_refused_with_the_line_that_installs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(there=False, monkeypatch=monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run("sweep", "no-such-model", "--engine", "ray")
    assert code == 1
    assert "--engine ray needs ray, which is not installed; run in a clone of outlierlens: pip install '.[ray]'" in err


def test_a_chart_that_exists_is_not_replaced(run: Any, tmp_path: Path) -> None:
    (tmp_path / "x.svg").write_text("mine")
    code, _, err = run("sweep", "no-such-model", "--chart", str(tmp_path / "x.svg"))
    assert code == 1
    assert "x.svg exists; name another file for --chart, or remove it" in err


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_keeps_the_rows_and_prints_the_command_that_goes_on(
    number: int, code: int, word: str, swept: Any, run: Any, model_folder: Any, text: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    show: Callable[..., None] = SweepView.__call__

    def watched(view: SweepView, state: Any) -> None:
        show(view, state)
        seen.append(state)
        if state.phase == "effects" and state.texts > 0:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(SweepView, "__call__", watched)
    out = tmp_path / "run"
    arguments = ("sweep", model_folder(), "--data", text, *FEW, "-o", str(out), "--no-progress", "--overwrite")
    asked = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born ignoring Ctrl-C
    try:
        ended, stdout, err = run(*arguments)
    finally:
        signal.signal(signal.SIGINT, asked)
    assert (ended, stdout) == (code, "")
    assert f"{word}; {out / 'rows.jsonl'} keeps what was measured; go on with: outlierlens sweep" in err
    assert "--overwrite" not in err
    assert signal.getsignal(signal.SIGTERM) is before
    kept = (out / "rows.jsonl").read_bytes()
    assert kept.count(b"\n") > 1
    assert not (out / "sweep.json").exists()
    monkeypatch.setattr(SweepView, "__call__", show)
    directory, resumed, _, _ = swept()
    assert (directory / "rows.jsonl").read_bytes().startswith(kept)
    _, whole, _, _ = swept(out="whole")
    for one, other in zip(resumed.effects, whole.effects, strict=True):
        assert one.change == pytest.approx(other.change, abs=1e-6)
        assert one.n_texts == other.n_texts


def test_a_signal_before_the_first_row_says_so(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TaskReading, "read", never)
    code, _, err = run("sweep", "no-such-model", "-o", str(tmp_path / "run"))
    assert code == 143
    assert (
        err
        == f"terminated; nothing was measured yet; start again with: outlierlens sweep no-such-model -o {tmp_path}/run\n"
    )


def test_a_report_shows_sweeps(swept: Any, run: Any, model_folder: Any, text: str, tmp_path: Path) -> None:
    directory, sweep, _, _ = swept()
    out = tmp_path / "report"
    arguments = (
        "report",
        model_folder(),
        "--data",
        text,
        "--dims",
        "3",
        "--random",
        "1",
        "--matched",
        "1",
        "--no-progress",
    )
    code, _, err = run(*arguments, "-o", str(out), "--sweep", str(directory / "sweep.json"))
    assert code == 0, err
    data = load(out / "results.json")
    assert data.sweeps == (sweep,)
    assert not any("in another precision" in note for note in data.notes)
    page = (out / "report.html").read_text("utf-8")
    assert "sweep-effects" in page
    code, _, err = run("report", str(out / "results.json"), "--sweep", str(directory / "sweep.json"))
    assert code == 0, err
    assert load(out / "results.json").sweeps == (sweep,)  # it was there already
    stranger = replace(sweep, provenance=replace(sweep.provenance, fingerprint="00"))
    save(stranger, tmp_path / "stranger.json")
    code, _, err = run("report", str(out / "results.json"), "--sweep", str(tmp_path / "stranger.json"))
    assert (code, "(fingerprint 00), not of" in err) == (1, True)
    other = replace(sweep, provenance=replace(sweep.provenance, fingerprint="00", dtype="bfloat16"))
    save(other, tmp_path / "other.json")
    code, _, err = run("report", str(out / "results.json"), "--sweep", str(tmp_path / "other.json"))
    assert code == 0, err
    data = load(out / "results.json")
    assert data.sweeps == (sweep, other)
    assert any("in another precision than the rest of this report" in note for note in data.notes)


def test_a_report_refuses_what_is_no_sweep_or_of_another_model(
    swept: Any, run: Any, model_folder: Any, tmp_path: Path
) -> None:
    directory, sweep, _, _ = swept("--dims", "3")
    results = str(directory / "results.json")
    code, _, err = run("report", results, "--sweep", results)
    assert code == 1
    assert "holds a ReportData; --sweep takes the sweep.json of a sweep" in err
    save(replace(sweep, width=768), tmp_path / "wide.json")
    code, _, err = run("report", results, "--sweep", str(tmp_path / "wide.json"))
    assert code == 1
    assert "3 layers × 768, which" in err


def test_a_star_is_for_what_was_named_beforehand() -> None:
    sweep = synthetic.sweep()
    starred = [effect.label for effect in sweep.effects if stands_out(effect, sweep, "rank")]
    assert sorted(starred) == ["100", "100, 247, 507", "247", "507"]
    strongest_unnamed = sweep.effect(31)
    assert strongest_unnamed.p is not None
    assert strongest_unnamed.p < 0.05  # among the largest of 576 whatever it does
    assert not stands_out(strongest_unnamed, sweep, "rank")
    assert stands_out(strongest_unnamed, sweep, "5x")  # 0.11 is 6.6 times the mean of the others
    assert not stands_out(replace(strongest_unnamed, times_random=4.9), sweep, "5x")
    assert not stands_out(replace(strongest_unnamed, times_random=None), sweep, "5x")
    for mark, names in (("rank", ["100, 247, 507 *", "507 *"]), ("5x", ["100, 247, 507", "507 *"])):
        (section,) = sections(sweep, mark=mark)  # type: ignore[arg-type]
        assert [row[0] for row in section.tables[0].rows[:2]] == names
        assert "A star: " in section.tables[0].note


def test_the_printed_sweep_names_ranks_saving_precision_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = replace(
        synthetic.sweep(), precision=Precision("bfloat16", 0.0031, 10, 16, intact=-0.0004), notes=("mind the gap",)
    )
    print_sections(BY_NAME["sweep"], sweep)
    out = capsys.readouterr().out
    assert out.index("507 is number 1 of 576") < out.index("100 is number 2") < out.index("247 is number 3")
    exact, spent = sweep.cost.exact, sweep.cost.intact + sweep.cost.effects + 3 * sweep.cost.gradient_texts
    assert f"every text takes {exact:,}, {exact / spent:.1f} times what was spent here" in out
    said = (
        "the intact value differs from float32 by -0.0004, changes by at most 0.0031 nats per token (10 sets, 16 texts)"
    )
    assert f"bfloat16: {said}" in out
    assert out.splitlines()[-1] == "note: mind the gap"


def test_more_rows_where_they_are_asked_for_and_what_is_left_out_is_counted() -> None:
    (section,), (more,) = sections(synthetic.layer_sweep()), sections(synthetic.layer_sweep(), verbose=True)
    assert "507 in layer 3 (+5.04, number 1 of 16 there)" in " ".join(section.sentences)
    assert [len(table.rows) for table in section.tables] == [20, 10]
    assert section.tables[1].note == "20 more in the results."
    assert [len(table.rows) for table in more.tables] == [50, 30]


def test_a_model_that_broke_down_has_no_interval() -> None:
    sweep = synthetic.sweep()
    for change, said in ((float("inf"), "+∞"), (float("nan"), "broken"), (-float("inf"), "−∞")):
        effect = replace(sweep.effects[0], change=change, low=change, high=change)
        (section,) = sections(replace(sweep, effects=(effect,), nulls=()))
        assert [cell_text(cell) for cell in section.tables[0].rows[0][:2]] == ["0", said]
        assert f"{round(100 * sweep.level)} % interval" not in section.tables[0].columns


def state(phase: str = "effects", done: int = 3, texts: int = 40, **more: Any) -> Any:
    given = {
        "measured": 0,
        "asked": 1,
        "texts_per_second": 12.34,
        "seconds_left": 754.0,
        "leaders": (("507", 8.4, 0.4), ("100", 0.29, 0.014)),
    }
    return SimpleNamespace(phase=phase, done=done, total=577, texts=texts, **(given | more))


def test_progress_in_words() -> None:
    assert headline(state()) == "effects: 3 of 577 settled, 12.3 texts/s, 13 min left"
    assert board(state()) == ["507: +8.4 ± 0.4", "100: +0.29 ± 0.014"]
    assert headline(state("intact", 0, 0, seconds_left=None, leaders=())) == "intact: 0 of 577 settled"
    opening = state("ordinary ones", 0, 480, measured=120, asked=1952, seconds_left=None)
    assert headline(opening) == "ordinary ones: 120 of 1,952, 0 of 577 settled, 12.3 texts/s"
    assert headline(state(texts_per_second=1234.5)) == "effects: 3 of 577 settled, 1,234 texts/s, 13 min left"
    assert [duration(s) for s in (0.04, 89, 90, 3600, 18_300)] == ["0.0 s", "89 s", "2 min", "60 min", "5 h 05 min"]


def test_a_log_gets_a_line_a_phase_and_one_each_half_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with SweepView(show=True) as view:
        for second in range(0, 70, 2):
            now[0] = float(second)
            view(state(done=second, texts=second))
        view(state("controls", 0, 98))
        view(state("effects", 70, 99))  # not new, and too soon
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" of ")[0] for line in said] == ["effects: 0", "effects: 30", "effects: 60", "controls: 0"]
    assert said[0].endswith("; so far 507: +8.4 ± 0.4, 100: +0.29 ± 0.014")
    assert view.texts == 99
    with SweepView(show=False) as view:
        view(state())
    assert capsys.readouterr().err == ""
    assert view.texts == 40


def test_a_terminal_gets_a_bar_and_the_leader_board(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with SweepView(show=True) as view:
        view(state())
        drawn = capsys.readouterr()
    assert drawn.out == ""
    assert "effects: 3 of 577 settled" in drawn.err
    assert re.search(r"\n  507: \+8\.4 ± 0\.4 *\n  100: \+0\.29 ± 0\.014", drawn.err)
    assert "━" in drawn.err


def test_sets_as_text() -> None:
    assert parse_sets("100,247; 507,100") == ((100, 247), (507, 100))
    with pytest.raises(BadInput, match="cannot read dimensions '1,2;'"):
        parse_sets("1,2;")
