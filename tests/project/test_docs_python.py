"""The Python of the docs runs as it is written, page by page, where its names and files are there."""

import ast
import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import outlierlens
from outlierlens.checkpoints import samples
from pretrain_runs import recipe_in

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def text(page: str) -> str:
    """A page of the docs as it is written."""
    return (ROOT / "docs" / f"{page}.md").read_text("utf-8")


def python(page: str, about: str = "") -> str:
    """The Python blocks of a page that hold `about`, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    return "\n".join(block for block in blocks if about in block)


def run(page: str, about: str = "", **known: Any) -> dict[str, Any]:
    """The names after the page's Python about something has run, with `known` there at its beginning."""
    exec(compile(python(page, about), page, "exec"), known)
    return known


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a cache of the test's own."""
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_imported_and_named_is_there(page: Path) -> None:
    tree = ast.parse(python(str(page.relative_to(ROOT))))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outlierlens"):
            home = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(home, name.name) or importlib.import_module(f"{node.module}.{name.name}"), name.name
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ol":
            assert node.attr in outlierlens.__all__
            assert hasattr(outlierlens, node.attr)


def test_watching_a_training(here: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    from outlierlens.training.pretrain.build import build
    from outlierlens.training.pretrain.corpus import load_tokenizer

    recipe = recipe_in(here).changed(["model.width=128"])
    tokenizer = load_tokenizer("mini-bert")  # which knows the words of the probe
    model = build(recipe, tokenizer)
    ids = torch.arange(5, 21).reshape(2, 8)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    rows = [{name: values[row % 2] for name, values in batch.items()} for row in range(200)]
    asked = TrainingArguments(
        output_dir="run", max_steps=100, per_device_train_batch_size=2, report_to="none", disable_tqdm=True,
        save_strategy="no", use_cpu=True, logging_steps=50,
    )  # fmt: skip
    trainer = Trainer(model=model, args=asked, train_dataset=rows, processing_class=tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    given = {"trainer": trainer, "model": model, "tokenizer": tokenizer, "optimizer": optimizer}
    names = run("docs/training.md", "watch", data=[batch] * 100, **given)
    path = names["path"]
    assert path.steps.tolist() == [0, 100]  # of the loop; the Trainer's rows moved aside
    assert list(here.glob("run/watch.replayed-*.jsonl"))
    norms = [layer.output.LayerNorm.weight.detach().numpy() for layer in model.bert.encoder.layer]
    np.testing.assert_array_equal(path.scale[-1], norms)
    assert path.curves["loss"].values[-1] == pytest.approx(names["loss"].item())
    assert names["metrics"]["outliers/kurtosis_entries"] > 1


def test_tracking_a_run(here: Path) -> None:
    trained = samples.directory("mini-bert")
    stored = load_file(trained / "model.safetensors")
    for step in range(100, 1100, 100):
        folder = here / "runs" / "bert" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        shutil.copyfile(trained / "config.json", folder / "config.json")
        for layer in range(4):
            for name in ("weight", "bias"):
                stored[f"bert.encoder.layer.{layer}.output.LayerNorm.{name}"][7] = 9 if step >= 600 else 0
        save_file(stored, folder / "model.safetensors")
    names = run("docs/training.md", "ol.track")
    assert [(one.dim, one.step) for one in names["found"].outliers] == [(7, 600)]
    assert 500 <= names["found"].outliers[0].onset.value <= 600


def test_training_a_recipe_of_ones_own(here: Path) -> None:
    (here / "mine.toml").write_text(recipe_in(here).changed(["training.steps=20"]).to_toml())
    names = run("docs/training.md", "read_recipe")
    outcome = names["outcome"]
    assert outcome.steps == 20
    assert (here / "runs" / "mine" / "model" / "model.safetensors").is_file()
    assert 0 < outcome.text_loss < 4
    assert outcome.worst.value >= outcome.dim_median
    assert outcome.worst_dims[0] in range(16)


def test_the_readme(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("README.md")
    assert names["found"] == (8, 24, 40, 56, 72, 88, 104, 120)
    assert names["damage"].chosen.change.value > 5 * abs(names["damage"].families[0].median)
    assert "nats per token; random sets" in capsys.readouterr().out


def test_the_quickstart(here: Path) -> None:
    assert run("docs/quickstart.md")["damage"].chosen.change.value > 1


def test_the_python_guide_runs_and_is_the_quickstart_notebook(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((ROOT / "examples/notebooks/quickstart.ipynb").read_text("utf-8"))["cells"]
    blocks = re.findall(r"```python\n(.*?)\n```", (ROOT / "docs/python.md").read_text("utf-8"), re.DOTALL)
    written = ["".join(cell["source"]) for cell in cells]
    assert [block for block in blocks if block in written] == blocks
    names = run("docs/python.md")
    assert names["dims"] == (8, 24, 40, 56, 72, 88, 104, 120)
    assert names["damage"].chosen.change.value > 5 * abs(names["damage"].families[0].median)
    assert "nats per token; rank p" in capsys.readouterr().out
    assert outlierlens.load("damage.json").chosen.change == names["damage"].chosen.change
    assert len(names["states"].tokens) == len(names["states"][3])


@pytest.mark.parametrize("page", ["find", "matter", "rank", "trace", "sinks", "quantize", "integrity"])
def test_a_guide(page: str, here: Path) -> None:
    run(f"docs/{page}.md")


def test_clipping_on_the_page_about_embeddings(here: Path) -> None:
    names = run("docs/embeddings.md")
    assert names["share"] > 0.9
    assert (names["clipped"][:, 557] == 0).all()
    assert (names["vectors"][:, 557] < 0).all()


def test_guarded_pruning_on_the_page_about_pruning(here: Path) -> None:
    names = run("docs/prune.md")
    zeros = sum((module.weight == 0).sum().item() for module, _ in names["linears"])
    assert zeros == pytest.approx(0.5 * sum(module.weight.numel() for module, _ in names["linears"]), abs=1)


def test_comparing_on_the_page_about_fine_tuned_models(here: Path) -> None:
    names = run("docs/finetuned.md", "ol.compare")
    assert {one.fate for one in names["found"].changes} == {"went"}
