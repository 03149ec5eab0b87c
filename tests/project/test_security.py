"""What SECURITY.md promises of models that bring code, of what is written where, and the tests that it names."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from outlierlens.checkpoints import samples
from outlierlens.detection.weights import ScanOptions
from outlierlens.models.load import LoadOptions
from outlierlens.session import Loading

ROOT = Path(__file__).parents[2]
COMMANDS = (
    ("scan",),
    ("observe", "--data", "reviews", "--limit", "2"),
    ("ablate", "--dims", "3", "--data", "reviews", "--limit", "2", "--random", "1", "--matched", "0"),
)
CODE = """
from pathlib import Path
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

Path({mark!r}).touch()


class Config(BertConfig):
    pass


class Model(BertForMaskedLM):
    pass


class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("kind", [LoadOptions, ScanOptions, Loading])
def test_a_token_is_not_shown_with_the_options_that_hold_it(kind: Any) -> None:
    made = kind(token="hf_secret")
    assert made.token == "hf_secret"
    assert "hf_secret" not in repr(made)


class Runs:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What code of the model would make."""
    return tmp_path / "mark"


def with_code(folder: Path, mark: Path, model_type: str) -> Path:
    """The packaged model with code of its own for its config, its model and its tokenizer."""
    shutil.copytree(samples.directory("mini-planted"), folder)
    for name, more in (
        (
            "config.json",
            {"model_type": model_type, "auto_map": {"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"}},
        ),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": ["own.Tokenizer"] * 2}},
        ),
    ):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | more), "utf-8")
    (folder / "own.py").write_text(CODE.format(mark=str(mark)), "utf-8")
    return folder


@pytest.mark.parametrize("model_type", ["bert", "their-bert"])
def test_no_code_that_a_model_brings_is_run(run: Any, tmp_path: Path, mark: Path, model_type: str) -> None:
    folder = with_code(tmp_path / "model", mark, model_type)
    for command, *rest in COMMANDS:
        code, _, error = run(command, str(folder), *rest, "--model-args", "offline")
        assert (code == 0) == (model_type == "bert"), error
        assert not mark.exists(), command


def test_no_pickle_runs(run: Any, tmp_path: Path, mark: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(samples.directory("mini-planted"), folder)
    (folder / "model.safetensors").unlink()
    torch.save({"bert.pooler.dense.bias": torch.ones(2), "more": Runs(mark)}, folder / "pytorch_model.bin")
    for command, *rest in COMMANDS:
        code, _, error = run(command, str(folder), *rest, "--model-args", "offline")
        assert code == 1
        assert "error: " in error
        assert not mark.exists(), command


def test_commands_write_what_is_named_and_nothing_else(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("OUTLIERLENS_RUNS", raising=False)  # rows lie where a user finds them
    for command, *rest in COMMANDS:
        assert run(command, "mini-planted", *rest, "-o", f"out/{command}.json")[0] == 0
    assert run("sweep", "mini-planted", "--data", "reviews", "--limit", "2", "--max-texts", "2")[0] == 0
    found = {path.relative_to(here).parts[0] for path in here.rglob("*") if path.is_file()}
    assert found == {"out", "runs"}
    assert {path.name for path in tmp_path.iterdir()} == {"here"}


def test_the_page_names_tests_that_are_there() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)`", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(named) > 10
    assert all((ROOT / one).is_file() for one in named)
