"""`outlierlens sweep` end to end on tiny saved models: what it says, going on, refusals, and the report that shows it.

The sweep's inner loop against the plain way: one ablation at a time, by its context manager, the whole network.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.analyses.sweep import measure
from outlierlens.analyses.sweep.finding import Sweep
from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.runner import Runner, make_runner
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.options import parse_sets
from outlierlens.results.document import load, save
from outlierlens.tasks.base import TaskOptions, TaskReading
from planted import model_of

pytestmark = pytest.mark.usefixtures("no_picture_files")
FEW = ("--random", "4", "--matched", "2", "--random-texts", "4", "--max-length", "8")


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(8 + i % 5)) for i in range(24)))
    return str(path)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """The one file of rows that the commands of a test keep."""
    monkeypatch.setenv("OUTLIERLENS_RUNS", str(tmp_path / "runs"))

    def rows() -> Path:
        (file,) = (tmp_path / "runs").glob("*/*.jsonl")
        return file

    return rows


@pytest.fixture
def swept(model_folder: Any, text: str, run: Any, tmp_path: Path, kept: Any) -> Any:
    """Runs a small sweep of a tiny model and returns (sweep, stdout, stderr)."""

    def call(*arguments: str, model: str = "", out: str = "sweep.json") -> tuple[Sweep, str, str]:
        words = ("sweep", model or model_folder(), "--data", text, *FEW, "-o", str(tmp_path / out))
        code, stdout, stderr = run(*words, *arguments)
        assert code == 0, stderr
        return load(tmp_path / out), stdout, stderr

    return call


def test_what_is_wanted_beyond_the_rows_is_measured_and_the_rows_only_grow(swept: Any, kept: Any) -> None:
    few, _, _ = swept("--dims", "3,5", "--no-found-set")
    rows = kept().read_text()
    every, _, err = swept("--no-found-set", out="all.json")
    assert "is taken from there" not in err
    assert kept().read_text().startswith(rows)
    assert [effect.label for effect in few.effects] == ["3", "5"]
    assert len(every.effects) == 16
    for effect in few.effects:
        assert every.effect(effect.dims[0]).change.value == pytest.approx(effect.change.value, abs=1e-6)
    again, _, err = swept("--no-found-set", "--overwrite", out="all.json")
    assert f"{kept()}: what an earlier run measured is dropped (--overwrite)" in err
    assert [effect.n_texts for effect in again.effects] == [effect.n_texts for effect in every.effects]


def test_found_means_what_the_weights_name(swept: Any, model_folder: Any) -> None:
    from outlierlens.analyses.scan import scan

    model = model_folder("bert", "MaskedLM", "masked")
    named = scan(model).stacks[0].dims
    sweep, stdout, _ = swept("--dims", "find", "--sets", "3,5", model=model)
    assert sweep.found == named
    assert [effect.dims for effect in sweep.singles()] == [(dim,) for dim in named]
    assert ("The weights name no dimension here." in stdout) == (not named)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dims", "0-3:5"], "--dims '0-3:5' names layers; name dimensions"),
        (["--dims", "most"], "cannot read dimensions 'most'"),
        (["--sets", "0:3,5"], "cannot read sets '0:3,5'; write 100,247;507,100"),
        (["--precision", "much"], "cannot read --precision 'much'; write exact, or a number such as 0.01"),
        (["--ray", "workers=2"], "write --ray ADDRESS,workers=4, or --ray local,workers=4"),
        (["--chart", "x.gif"], "the ending sets the format; use .html, .svg, .png, .json"),
        (["--plan", "3,5"], "--plan '3,5' names no layers; write 0-9:896;10-16:678,896, or use --sets"),
        (["--mode", "embeddings"], "embeddings belongs to mode writes, not to mode 'weights'"),
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
    from outlierlens.analyses.sweep import ray_engine
    from outlierlens.analyses.sweep.units import LocalEngine

    asked: dict[str, Any] = {}

    def on_ray(texts: Any, load: Any, machines: Any) -> Any:
        asked.update(vars(machines), n_texts=len(texts), offline=load.offline)
        return LocalEngine

    monkeypatch.setattr(ray_engine, "on_ray", on_ray)
    ray_is(there=True, monkeypatch=monkeypatch)
    machines = ("--ray", "head:6379,workers=3,gpus=0.25", "--model-args", "offline")
    sweep, _, _ = swept(*machines, "--dims", "3")
    wanted = {"ray": "head:6379", "workers": 3, "cpus_per_worker": None, "gpus_per_worker": 0.25}
    assert asked == {**wanted, "n_texts": 24, "offline": True}
    assert sweep.effect(3).n_texts >= 8


def test_without_ray_the_engine_is_refused_with_the_line_that_installs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is(there=False, monkeypatch=monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run("sweep", "no-such-model", "--ray", "local")
    assert code == 1
    assert "--ray needs ray, which is not installed; run in a clone of outlierlens: pip install '.[ray]'" in err


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_keeps_the_rows_and_prints_the_command_that_goes_on(
    number: int, code: int, word: str, swept: Any, run: Any, kept: Any, model_folder: Any, text: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    before, keep = signal.getsignal(signal.SIGTERM), measure._SweepRun.keep

    def watched(self: Any, key: str, value: Any) -> Any:
        kept_now = keep(self, key, value)
        if "differences" in value:
            os.kill(os.getpid(), number)
        return kept_now

    monkeypatch.setattr(measure._SweepRun, "keep", watched)
    out = tmp_path / "sweep.json"
    arguments = ("sweep", model_folder(), "--data", text, *FEW, "-o", str(out), "--overwrite")
    asked = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born ignoring Ctrl-C
    try:
        ended, stdout, err = run(*arguments)
    finally:
        signal.signal(signal.SIGINT, asked)
    assert (ended, stdout) == (code, "")
    assert f"{word}; {kept().parent} keeps the finished measurements; continue with: outlierlens sweep" in err
    assert "--overwrite" not in err
    assert signal.getsignal(signal.SIGTERM) is before
    rows = kept().read_bytes()
    assert rows.count(b"\n") > 1
    assert not out.exists()
    monkeypatch.setattr(measure._SweepRun, "keep", keep)
    resumed, _, _ = swept()
    assert kept().read_bytes().startswith(rows)
    whole, _, _ = swept("--overwrite", out="whole.json")
    for one, other in zip(resumed.effects, whole.effects, strict=True):
        assert one.change.value == pytest.approx(other.change.value, abs=1e-6)
        assert one.n_texts == other.n_texts


def test_a_signal_before_the_first_row_says_so(run: Any, kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TaskReading, "read", never)
    code, _, err = run("sweep", "no-such-model")
    assert code == 143
    assert err == "terminated; nothing was measured yet; start again with: outlierlens sweep no-such-model\n"


def test_a_report_shows_sweeps(swept: Any, run: Any, model_folder: Any, text: str, tmp_path: Path) -> None:
    sweep, _, _ = swept()
    saved, out = str(tmp_path / "sweep.json"), tmp_path / "report"
    few = ("--dims", "3", "--random", "1", "--matched", "1")
    code, _, err = run("report", model_folder(), "--data", text, *few, "-o", str(out), "--result", saved)
    assert code == 0, err
    stranger = replace(sweep, provenance=replace(sweep.provenance, fingerprint="00"))
    save(stranger, tmp_path / "stranger.json")
    code, _, err = run("report", str(out / "results.json"), "--result", str(tmp_path / "stranger.json"))
    assert (code, "(fingerprint 00), not of" in err) == (1, True)
    other = replace(sweep, provenance=replace(sweep.provenance, fingerprint="00", dtype="bfloat16"))
    save(other, tmp_path / "other.json")
    code, _, err = run("report", str(out / "results.json"), "--result", str(tmp_path / "other.json"))
    assert code == 0, err
    data = load(out / "results.json")
    assert data.sweeps == (sweep, other)
    assert any("in another precision than the rest of this report" in note for note in data.notes)


def test_sets_as_text() -> None:
    assert parse_sets("100,247; 507,100") == ((100, 247), (507, 100))
    with pytest.raises(BadInput, match="cannot read dimensions '1,2;'"):
        parse_sets("1,2;")


TEXTS = Texts(
    "test", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(n)) for i, n in enumerate((3, 20, 9, 14, 2)))
)
CAUSAL = ("gpt2", "llama", "opt", "gpt_neox", "gemma2", "olmo2", "qwen3", "bloom", "falcon", "mixtral")
MASKED = ("bert", "distilbert", "mpnet", "roberta", "albert", "deberta-v2", "modernbert", "outlierlens-bert-rmsnorm")
MASKED += ("outlierlens-bert-pre-norm", "outlierlens-bert-pre-rmsnorm")


def runner_of(family: str, words: Any, **options: Any) -> Runner:
    causal = family in CAUSAL
    loaded = model_of(family, "CausalLM" if causal else "MaskedLM", words, kind="causal" if causal else "masked")
    task = TaskOptions(max_length=8 if causal else 32, blocks=causal, batch_size=3)
    return make_runner(loaded, TEXTS, SweepOptions(task=task, **options))


def plans_of(runner: Runner) -> list[dict[int, tuple[int, ...]]]:
    layers = range(runner.stack.n_layers)
    last = runner.stack.n_layers - 1
    return [
        {},
        dict.fromkeys(layers, (3,)),
        {last: (1, 5)},
        {0: (2,)},
        dict.fromkeys(layers, (0, 7)),
        {layer: (layer,) for layer in layers},
    ]


@pytest.mark.parametrize("family", CAUSAL + MASKED)
@pytest.mark.parametrize("mode", ["weights", "zero", "scale", "mean"])
def test_many_ablations_in_a_batch_are_those_one_by_one(family: str, mode: str, words: Any) -> None:
    runner = runner_of(family, words, mode=mode)
    span = (0, runner.n_texts)
    plans = plans_of(runner)
    if family == "albert" and mode == "weights":
        plans = [plan for plan in plans if len(plan) in (0, runner.stack.n_layers)][:3]
    found = runner.values(plans, span)
    plain = np.stack([runner.alone(plan, span) for plan in plans])
    np.testing.assert_allclose(found, plain, rtol=2e-5, atol=2e-6)
    assert np.abs(plain[1:] - plain[0]).max(axis=1).min() > 1e-5, "an ablation that does nothing tests nothing"
    if family not in ("albert", "mixtral"):
        assert runner.mixes, runner.notes
    assert not runner.notes or mode == "mean" or family in ("mixtral",)


def test_blocks_that_return_a_tuple_of_one_are_skipped_too(words: Any) -> None:
    runner = runner_of("mpnet", words)
    assert runner.reuses
    assert not runner.notes
    plans: list[Any] = [{2: (1,)}, {1: (3, 4), 2: (5,)}]
    span = (0, min(4, runner.n_texts))
    fast = runner.values(plans, span)
    runner.reuses = False
    runner.forget()
    np.testing.assert_allclose(fast, runner.values(plans, span), rtol=1e-5)
