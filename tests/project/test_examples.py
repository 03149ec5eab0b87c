"""Every example runs with its cheapest settings and writes what it promises; none reaches behind the public names."""

import ast
import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

import script_modules
from outlierlens.analyses.finetune import FinetuneSettings
from tiny_tokenizers import BYTES, byte_level

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*_20*/*.py"))
INDEX = (EXAMPLES / "README.md").read_text("utf-8")
LINES = 60

# {script: its arguments beside the output}; DATA is the folder of the fixture `data`.
CHEAPEST: dict[str, list[str]] = {
    "kovaleva_2021/figure_1.py": [],
    "kovaleva_2021/figure_2.py": ["--data", "DATA"],
    "kovaleva_2021/figure_3.py": [],
    "kovaleva_2021/figure_4.py": [],
    "kovaleva_2021/filled_text.py": ["--dims", "8", "24", "--limit", "18"],
    "kovaleva_2021/loss.py": ["--random", "19", "--dims", "8", "24", "--limit", "18"],
    "kovaleva_2021/same_position.py": ["--dims", "8", "--limit", "18"],
    "kovaleva_2021/table_3.py": ["--data", "DATA"],
    "luo_2021/figure_5.py": ["--clip", "120"],
    "luo_2021/figure_6.py": ["--clip", "120"],
    "luo_2021/figures_1_and_2.py": ["--limit", "4"],
    "luo_2021/figures_3_and_4.py": [],
    "luo_2021/no_positions.py": [
        "--steps",
        "2",
        "--set",
        "model.layers=1",
        "training.batch=4",
        "training.watch_every=2",
    ],
    "luo_2021/table_1.py": ["--data", "DATA", "--clip", "120"],
    "luo_2021/table_2.py": ["--data", "DATA", "--clip", "120"],
    "luo_2021/table_3.py": ["--data", "DATA", "--clip", "120"],
    "puccetti_2022/attention.py": ["--limit", "4"],
    "puccetti_2022/frequency.py": ["--dims", "8"],
    "puccetti_2022/glue.py": ["--data", "DATA", "--model", "mini-planted"],
    "puccetti_2022/loss_by_layer.py": ["--dims", "8", "--limit", "16"],
    "puccetti_2022/predictions.py": ["--dims", "8", "--limit", "4", "--random", "1"],
    "puccetti_2022/training_text.py": ["--steps", "2", "--recipes", "mini-split", "--set", "model.layers=1"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny data sets in the layout that the scripts name: sst2, wic and sts/stsb."""
    folder = tmp_path_factory.mktemp("data")
    words = ("film", "plot", "end", "cast", "song", "shot")
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {"sst2": {}, "wic": {}, "sts/stsb": {}}
    for split, n in (("train", 24), ("validation", 16), ("test", 20)):
        rows = range(n)
        tables["sst2"][split] = [
            {"sentence": f"a {('bad', 'good')[i % 2]} {words[i % 6]} number {i} of {split}", "label": i % 2}
            for i in rows
        ]
        tables["wic"][split] = [
            {
                "word": words[i % 6], "sentence1": f"the {words[i % 6]} was long {i}", "start1": 4,
                "end1": 4 + len(words[i % 6]), "sentence2": f"one {words[i % 6]} {i} of {split}", "start2": 4,
                "end2": 4 + len(words[i % 6]), "label": i % 2,
            } for i in rows
        ]  # fmt: skip
        tables["sts/stsb"][split] = [
            {"sentence1": f"the {words[i % 6]} {split}", "sentence2": f"a {words[i * i % 6]} {i}", "score": i % 6}
            for i in rows
        ]
    for name, splits in tables.items():
        (folder / name).mkdir(parents=True)
        for split, rows in splits.items():
            (folder / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_runs(
    script: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    # Drawing a file takes a second, and is tested with the charts.
    monkeypatch.setattr("outlierlens.view.charts.picture", lambda chart, kind: json.dumps(chart.plain()).encode())
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    module = script_modules.script(f"examples/{script}")
    if hasattr(module, "QUICK"):
        module.QUICK = FinetuneSettings(epochs=1, batch=8, train_limit=16, max_length=16)  # type: ignore[attr-defined]
    given = [str(data) if one == "DATA" else one for one in CHEAPEST[script]]
    module.main([*given, "-o", "made"])
    written = [path for path in (tmp_path / "made").iterdir() if path.suffix in (".png", ".csv", ".md")]
    assert written
    for path in written:
        assert path.stat().st_size > 60
        if path.suffix == ".csv":
            rows = list(csv.reader(path.read_text("utf-8").splitlines()))
            assert len(rows) > 1
            assert all(len(row) == len(rows[0]) for row in rows)
    assert capsys.readouterr().out.strip()


def test_both_plans_are_made_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("outlierlens.view.charts.picture", lambda chart, kind: json.dumps(chart.plain()).encode())
    script_modules.script("examples/plans/keep.py").main(
        ["--limit", "64", "--candidates", "2", "-o", str(tmp_path / "made")]
    )
    assert {"column.png", "linear.png"} <= {path.name for path in (tmp_path / "made").iterdir()}
    said = capsys.readouterr().out
    assert said.startswith("column: ")
    assert "linear: " in said


def test_the_harness_scores_a_model_intact_without_dimensions_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        monkeypatch.setenv(name, "1")
    pytest.importorskip("lm_eval")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(BYTES), **sizes)).save_pretrained(tmp_path / "model")
    byte_level().save_pretrained(tmp_path / "model")
    words = ("--model", str(tmp_path / "model"), "--dims", "0", "3", "7", "--limit", "8", "-o", str(tmp_path / "copy"))
    found = script_modules.script("examples/harness/cloze.py").main(words)
    assert list(found) == ["intact", "outliers off", "random off", "repaired"]
    assert found["repaired"] == found["intact"]
    assert found["intact"].keys() == {"cloze acc", "cloze acc_norm"}


def test_every_script_has_its_settings_here_and_its_line_in_the_index() -> None:
    assert sorted(CHEAPEST) == SCRIPTS
    assert sorted(re.findall(r"\]\((\w+_20\d\d/\w+\.py)\)", INDEX)) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_is_short_says_what_it_is_and_uses_public_names_alone(script: str) -> None:
    source = (EXAMPLES / script).read_text("utf-8")
    assert len(source.splitlines()) < LINES
    tree = ast.parse(source)
    doc = ast.get_docstring(tree) or ""
    author, _, year = Path(script).parent.name.partition("_")
    assert doc.startswith(f"{author.title()} et al. ({year}), ")
    assert f"python examples/{script}" in doc
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    assert not [name for name in names if name.startswith("_")]
