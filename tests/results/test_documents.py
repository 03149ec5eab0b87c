"""Every reader of small JSON and TOML files: nested too deeply, and numbers too long to read or say: one line with the file.

Where commands keep what they have measured.

Result files that somebody else made: one line, quickly, in little memory.
"""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlierlens.analyses.finetune import claim
from outlierlens.architectures.stack import load_toml
from outlierlens.data.tables import _json_rows
from outlierlens.errors import BadFile, BadInput, OutlierlensError
from outlierlens.models import folder as model_folder
from outlierlens.results import document as results
from outlierlens.results import safe_files as documents
from outlierlens.results.document import load
from outlierlens.results.row_store import Keep
from outlierlens.training import run_files
from outlierlens.training.pretrain import corpus, loop
from outlierlens.training.pretrain.recipe import read_recipe
from outlierlens.vectors import clip as clipping
from synthetic_report import report_data

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


def test_a_folder_keeps_a_file_for_each_identity(tmp_path: Path) -> None:
    keep = Keep(tmp_path / "qwen2.5-ablate")
    for seed in (0, 1):
        with keep.open({"seed": seed}) as rows:
            assert rows.get("a") is None
            rows.append("a", seed)
    with keep.open({"seed": 1}) as rows:
        assert rows.get("a") == 1
    assert len(list(keep.folder.glob("*.jsonl"))) == 2
    with replace(keep, fresh=True).open({"seed": 0}) as rows:
        assert not rows.done
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"nothing can be kept there .* OUTLIERLENS_RUNS"):
        Keep(tmp_path / "file" / "inside").open({})


REGULAR = r"z_scale\[0\]: not a regular array of numbers"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["x" * 350_000, *["1"] * 1000], REGULAR),  # NumPy would make 1,001 words of 350,000 characters
        ([[1, 2], [3]], REGULAR),
        ([10**400], REGULAR),
        ([10**30], REGULAR),
        ([[[[[[[[[1]]]]]]]]], REGULAR),
        ([{}], REGULAR),
        ([None], REGULAR),
        (["Infinity"], REGULAR),
        ({}, "expected ndarray, found dict"),
    ],
)
def test_an_array_is_of_numbers_and_costs_what_it_holds(value: Any, message: str) -> None:
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    document["findings"][0]["stacks"]["z_scale"][0] = value
    text = json.dumps(document)
    tracemalloc.start()
    try:
        with pytest.raises(BadFile, match=message):
            results.from_json(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": []}, "kind None is not a result"),
        ({"kind": {"a": 1}}, "kind None is not a result"),
        ({"format_version": 10**4000}, "format_version 1000"),
        ({"notes": 7}, "notes: expected tuple"),
    ],
)
def test_what_is_no_result_is_said_in_a_short_line(change: dict[str, Any], message: str) -> None:
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    with pytest.raises(BadFile, match=message) as refused:
        results.from_json(json.dumps(document | change))
    assert len(str(refused.value)) < 1500


def test_numbers_and_names_that_no_float_and_no_utf8_holds() -> None:
    document = json.loads(results.to_json(report_data(observed=False, damages=())))
    document["findings"][0]["stacks"]["n_sigma"][0] = 10**400
    document["findings"][0]["provenance"]["model"] = "caf\udce9"
    with pytest.raises(BadFile, match=r"n_sigma\[0\]: a whole number too large for a float|n_sigma\[0\]: expected"):
        results.from_json(json.dumps(document))
    document["findings"][0]["stacks"]["n_sigma"][0] = 3.0
    text = results.to_json(results.from_json(json.dumps(document)))
    assert rb"caf\udce9" in text.encode("utf-8")
    assert results.from_json(text).scan.provenance.model == "caf\udce9"
