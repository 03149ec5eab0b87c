"""Every reader of small JSON and TOML files: nested too deeply, and numbers too long to read or say: one line with the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlierlens.analyses.finetune import claim
from outlierlens.architectures.stack import load_toml
from outlierlens.data.tables import _json_rows
from outlierlens.errors import BadFile, BadInput, OutlierlensError
from outlierlens.models import folder as model_folder
from outlierlens.results import safe_files as documents
from outlierlens.results.document import load
from outlierlens.training import run_files
from outlierlens.training.pretrain import corpus, loop
from outlierlens.training.pretrain.recipe import read_recipe
from outlierlens.vectors import clip as clipping

DEEP, LONG = "[" * 100_000, "[" + "9" * 5000 + "]"
JSON: dict[str, Callable[[Path], Any]] = {
    "log.jsonl": run_files._lines,
    "log.json": run_files._json,
    "results.json": load,
    "rows.jsonl": lambda path: list(_json_rows(path)),
    "clip.json": lambda path: clipping._file(path, 4),
    "seed-3/rows.jsonl": lambda path: claim(path.parents[1], {}, overwrite=False),
    loop.DATA: lambda path: loop._same_rows(path.parent, "rows"),
}


@pytest.mark.parametrize("text", [DEEP, LONG], ids=["deep", "long"])
@pytest.mark.parametrize("name", JSON)
def test_json_that_python_cannot_read_is_refused_with_its_name(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    (path.parent / "a.json").write_text("{}")
    (tmp_path / "model").mkdir()
    path.write_text(text + "\n")
    with pytest.raises(OutlierlensError) as refused:
        JSON[name](path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", [DEEP, LONG, "[", "7"])
def test_a_note_of_ours_that_cannot_be_read_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / model_folder.MADE_OF).write_text(text)
    assert not model_folder._is_fresh(tmp_path)
    last = tmp_path / "checkpoint-5"
    last.mkdir()
    (last / run_files.STATE).write_text(text)
    assert run_files.checkpoints(tmp_path) == ([] if text != "7" else [last])
    (tmp_path / "held_out.json").write_text(text)
    with pytest.raises(BadFile, match="prepared rows are damaged"):
        corpus._open(tmp_path, 8)


@pytest.mark.parametrize("text", [f"x = {DEEP}", f"x = {LONG}", f"x = 0x{'f' * 5000}", "x", 'x = "\\ud800"'])
@pytest.mark.parametrize("read", [load_toml, read_recipe, lambda path: clipping._file(path, 4)])
def test_toml_likewise(read: Callable[[Path], Any], text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises((BadInput, BadFile)) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: cannot be read as TOML")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_what_is_read_is_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes('\ufeff{"ü": [1, 2.5, null]}'.encode())
    assert documents.read_json(path, a=dict) == {"ü": [1, 2.5, None]}
    with pytest.raises(BadInput, match=r"x\.json: holds a dict, not a list; make it again$"):
        documents.read_json(path, "make it again", BadInput, a=list)
