"""The command line end to end on a tiny saved model, with the network closed, and its small parsers."""

import re
from pathlib import Path
from typing import Any

import pytest

from outlierlens.checkpoints.samples import SAMPLES
from outlierlens.cli.app import _spelt, program
from outlierlens.cli.experiment import resumable
from outlierlens.cli.overview import overview
from outlierlens.errors import BadInput
from outlierlens.experiments import EXPERIMENTS
from outlierlens.options import parse_bytes, parse_dims, parse_layers


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    lines = [" ".join(f"w{(5 * i + j) % 35}" for j in range(9 + i)) for i in range(5)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("width", [60, 80, 133])
def test_the_first_help_names_every_command_and_fits(width: int) -> None:
    lines = overview(width).split("\n")
    assert max(map(len, lines)) <= width
    named = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    assert len(named) == len({*named})
    assert {*named} == {row.name.split()[0] for row in EXPERIMENTS}
    assert {*named} == {name for name in program() if not name.startswith("-")}
    if width >= 80:
        assert len(named) <= 28
        assert len(lines) <= 60


@pytest.mark.parametrize(
    ("words", "reports"),
    [
        (["mini-bert", "--limit", "4"], True),
        (["./mini"], True),
        (["owner/name"], True),
        (["scan"], False),
        (["lab", "attack"], False),
        (["scna", "mini-bert"], False),
        (["--help-all"], False),
        ([], False),
    ],
)
def test_a_model_in_place_of_a_command_is_reported(words: list[str], reports: bool) -> None:
    assert _spelt(words) == (["report", *words] if reports else words)


def test_a_command_comes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("scan", "mine"):
        (tmp_path / name).mkdir()
    assert _spelt(["scan", "mine"]) == ["scan", "mine"]
    assert _spelt(["mine", "--limit", "4"]) == ["report", "mine", "--limit", "4"]


FAMILY = [("bert", "MaskedLM", "masked"), ("gpt2", "CausalLM", "causal"), ("bert", "", "masked"), ("t5", "", "masked")]


@pytest.mark.usefixtures("no_picture_files")
@pytest.mark.parametrize(("family", "head", "kind"), FAMILY)
def test_report(family: str, head: str, kind: str, model_folder: Any, text: str, run: Any, tmp_path: Path) -> None:
    model, out = model_folder(family, head, kind), tmp_path / "run"
    arguments = ("report", model, "--data", text, "-o", str(out), "--random", "4", "--matched", "2")
    code, stdout, err = run(*arguments, "--dims", "3,5")
    assert code == 0, err
    n_times = (
        17 if family == "t5" else 9
    )  # observed once; with each stream: intact, chosen, 4 random sets and 2 matched ones
    assert re.search(
        rf": \d+ texts, read {n_times} times: about [\d.]+ s; .*rows\.jsonl keeps finished measurements$",
        err,
        re.MULTILINE,
    ), err
    assert stdout.strip().endswith("report.html")
    assert {path.name for path in out.iterdir()} >= {"report.html", "results.json", "manifest.json", "charts"}
    rows = list(out.glob("rows*.jsonl"))
    assert len(rows) == (2 if family == "t5" else 1)
    page = (out / "report.html").read_text("utf-8")
    assert "http://" not in page.replace("http://www.w3.org", "")
    code, _, err = run(*arguments)
    assert code == 1
    assert "holds a report already" in err
    before = page
    (out / "report.html").unlink()
    code, stdout, err = run("report", str(out / "results.json"))
    assert code == 0, err
    assert (out / "report.html").read_text("utf-8") == before


def test_a_report_without_a_model_is_of_the_packaged_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("outlierlens.report.job.run", lambda job, *_: seen.append(job) or tmp_path / "report.html")
    assert run("report")[0] == 0
    (job,) = seen
    assert (job.model, job.reading.data, str(job.directory)) == ("mini-planted", "", "runs/mini-planted")
    assert SAMPLES[job.model].packaged
    assert run("report", "absent.json")[0] == 0  # no file: the name of a model
    assert seen[1].model == "absent.json"


def test_a_report_has_its_charts_as_pictures(model_folder: Any, text: str, run: Any, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    few = ("--data", text, "--random", "4", "--matched", "2", "--dims", "3,5")
    code, _, err = run("report", model_folder("gpt2", "CausalLM", "causal"), "-o", str(tmp_path / "run"), *few)
    assert code == 0, err
    drawn = {path.name for path in (tmp_path / "run/charts").iterdir()}
    names = {name.removesuffix(".vl.json") for name in drawn if name.endswith(".vl.json")}
    assert len(names) >= 5
    assert drawn == {f"{name}.{kind}" for name in names for kind in ("svg", "png", "vl.json")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("308,381", (308, 381)),
        (" 1 , 2 ", (1, 2)),
        ("0-2:5;2:5,6", {0: (5,), 1: (5,), 2: (5, 6)}),
        ("0,3:7", {0: (7,), 3: (7,)}),
    ],
)
def test_dims_as_text(text: str, expected: Any) -> None:
    assert parse_dims(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "1.5", "1:", ":1", "0-:3", "0-99999999:1"])
def test_bad_dims_are_named(text: str) -> None:
    with pytest.raises(BadInput, match=r"cannot read|more than 10,000"):
        parse_dims(text)


def test_layers_and_bytes() -> None:
    assert parse_layers("0-2,7") == (0, 1, 2, 7)
    assert [parse_bytes(text) for text in ("5", "5kB", "1.5MB", "2gb")] == [5, 5000, 1_500_000, 2_000_000_000]
    for bad in ("x", "5TB", "", "-", "nan"):
        with pytest.raises(BadInput, match="cannot read the size"):
            parse_bytes(bad)


@pytest.mark.usefixtures("no_picture_files")
def test_a_token_never_enters_a_result(
    model_folder: Any, text: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    out = tmp_path / "run"
    few = ("--dims", "3", "--random", "1", "--matched", "1", "--model-args", "offline")
    code, _, err = run("report", model_folder("bert", "MaskedLM", "masked"), "--data", text, "-o", str(out), *few)
    assert code == 0, err
    for path in out.rglob("*"):
        assert not path.is_file() or b"hf_SECRET" not in path.read_bytes(), path


@pytest.mark.usefixtures("no_picture_files")
def test_ctrl_c_keeps_the_rows_and_prints_the_command_that_goes_on(
    model_folder: Any, text: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlierlens.tasks.language_model import MaskedLoss

    model, out = model_folder("bert", "MaskedLM", "masked"), tmp_path / "run"
    arguments = ("report", model, "--data", text, "-o", str(out), "--dims", "3", "--random", "6", "--matched", "1")
    measure, calls = MaskedLoss.per_text, []

    def interrupted(task: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(task)

    monkeypatch.setattr(MaskedLoss, "per_text", interrupted)
    code, _, err = run(*arguments, "--overwrite")
    assert code == 130
    assert "rows.jsonl keeps the finished measurements; continue with: outlierlens report" in err
    assert "--overwrite" not in err
    kept = (out / "rows.jsonl").read_text().splitlines()
    assert len(kept) == 1 + 2
    calls.clear()
    monkeypatch.setattr(MaskedLoss, "per_text", lambda task: calls.append(1) or measure(task))
    code, _, err = run(*arguments)
    assert code == 0, err
    rows = (out / "rows.jsonl").read_text().splitlines()
    assert rows[:3] == kept
    assert len(calls) == 1 + len(rows) - 3  # intact, and what was not kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "scale:nan"], "the factor must be a number"),
        (["--modes", "embeddings"], "embeddings belongs to mode writes, not to weights"),
        (["--task", "foo"], "of texts: auto, masked-loss, causal-loss, output-change"),
        (["--data", "t.json"], "t.json: no such file, and no hub id"),
    ],
)
def test_options_that_could_do_nothing_are_refused(
    arguments: list[str], message: str, model_folder: Any, text: str, run: Any
) -> None:
    model = model_folder("bert", "MaskedLM", "masked")
    data = () if "--data" in arguments else ("--data", text)
    code, out, err = run("ablate", model, "--dims", "3", "--random", "2", *data, *arguments)
    assert (code, out) == (2 if arguments[1] == "scale:nan" else 1, "")
    assert message in err


def test_ctrl_c_says_where_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop, resumable(None):
        raise KeyboardInterrupt
    assert (stop.value.code, capsys.readouterr().err) == (130, "interrupted; nothing was kept\n")
