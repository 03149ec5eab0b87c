"""Commands say of a model that is read block by block what they say of the whole model."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import outlierlens as ol
from outlierlens.analyses.quantize_schemes import parse_all
from outlierlens.commands import attack, definitions, predictions, prune_test
from outlierlens.errors import BadInput
from outlierlens.models.load import OF_FILES, LoadedModel, LoadOptions, load_model
from outlierlens.results.document import save
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from planted import random_counts, some_texts

TEXTS = some_texts(7, shortest=4)
WHOLE, BY_BLOCK = LoadOptions(by_block=False, attention="eager"), LoadOptions(by_block=True, attention="eager")
FAMILIES = {"llama": "CausalLM", "bert": "MaskedLM", "albert": "MaskedLM", "t5": ""}


def quantized(loaded: LoadedModel, **more: Any) -> Any:
    """Weights and inputs rounded, with noise, errors, a threshold and SmoothQuant's scales."""
    recipes = parse_all("int8-channel/none,int8-tensor/int8-tensor")
    how: dict[str, Any] = {"n_random": 2, "noise_draws": 1, "threshold": 1.0, "n_calibrate": 0}
    return ol.quantize(loaded, TEXTS, recipes=recipes, dims=(3, 5), **how, **more)


# Each with the readings of all weights that it takes: what decides what is measured is a reading of its own.
COMMANDS: dict[str, tuple[Callable[..., Any], int]] = {
    "ablate": (lambda loaded, **more: ol.ablate(loaded, TEXTS, (3, 5), n_random=3, **more), 2),
    "ablate neurons": (lambda loaded, **more: ol.ablate(loaded, TEXTS, {1: (3,)}, stack="mlp", n_random=3, **more), 2),
    "modes": (
        lambda loaded, **more: ol.ablate(loaded, TEXTS, (3, 5), modes=("zero", "mean", "scale-once:2"), **more),
        4,
    ),
    "quantize": (quantized, 5),
    "attention": (lambda loaded, **more: ol.attention(loaded, TEXTS, dims=(3, 5), **more), 1),
    "trace": (lambda loaded, **more: ol.trace(loaded, TEXTS, n_random=2, **more), 30),
    "plan": (lambda loaded, **more: ol.plan(loaded, TEXTS, **more), 12),
    "geometry": (lambda loaded, **more: ol.geometry(loaded, TEXTS, **more), 5),
    "predictions": (
        lambda loaded, **more: predictions(loaded, TEXTS, random_counts(40), (3, 5), n_random=2, **more),
        5,
    ),
    "observe": (lambda loaded, **more: ol.observe(loaded, TEXTS, batch_size=2, **more), 2),
    "range": (lambda loaded, **more: ol.range_of(loaded, TEXTS, batch_size=2, cache=True, **more), 2),
}


def content(finding: Any, place: Path) -> dict[str, Any]:
    """As JSON, without what tells how and when it was made."""
    save(finding, place)
    found = json.loads(place.read_text())
    found.pop("provenance")
    found["notes"] = [note for note in found["notes"] if note != OF_FILES]
    return found


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_findings_are_equal(name: str, family: str, model_folder: Callable[..., str], tmp_path: Path) -> None:
    command, most = COMMANDS[name]
    folder = model_folder(family, FAMILIES[family], "masked" if family == "bert" else "causal")
    whole, split = load_model(folder, WHOLE), load_model(folder, BY_BLOCK)
    found = content(command(split), tmp_path / "split.json")
    wanted = content(command(whole), tmp_path / "whole.json")
    for replies in (each["replies"] for each in (found, wanted) if each.get("replies")):
        replies["begins"] = replies["continued"] = None  # what a decoder goes on to say reads all weights for each word
    silent = [note for note in found["notes"] if note.startswith("the passage is not continued")]
    assert len(silent) == (family == "llama" and name in ("ablate", "ablate neurons"))
    found["notes"] = [note for note in found["notes"] if note not in silent]
    assert found == wanted
    assert split.blocks
    reads = split.blocks.weights.reads
    assert max(map(reads.count, reads)) <= most


@pytest.mark.parametrize("command", [ol.sweep, attack, definitions, partial(prune_test, dims=(3,))])
def test_what_needs_all_weights_at_once_says_so(command: Callable[..., Any], model_folder: Callable[..., str]) -> None:
    split = load_model(model_folder("llama"), BY_BLOCK)
    with pytest.raises(BadInput, match=r"needs the model whole, and it is read block by block; .*by_block=False"):
        command(split, TEXTS)


# --- memory ----------------------------------------------------------------------------------------------------------


def tokens_of(loaded: LoadedModel) -> int:
    return int(make_task(loaded, TEXTS, TaskOptions()).lengths.sum())


def ablated(loaded: LoadedModel, rows: Path | None = None) -> Any:
    return ol.ablate(loaded, TEXTS, (3, 5), n_random=5, n_matched=0, avoid=(), rows=rows)


def test_conditions_go_in_groups_that_fit_into_memory(model_folder: Callable[..., str], tmp_path: Path) -> None:
    folder = model_folder("llama")
    split = load_model(folder, BY_BLOCK)
    assert split.blocks
    n_tokens = tokens_of(split)
    bounded = load_model(folder, replace(BY_BLOCK, memory=split.blocks.bytes_for(3, n_tokens)))
    assert bounded.blocks
    wanted, found = (content(ablated(one), tmp_path / "found.json") for one in (split, bounded))
    assert found == wanted
    reads = bounded.blocks.weights.reads
    assert max(map(reads.count, reads)) == 3 + 1  # the intact model, the chosen set, five random ones; then the passage

    tight = load_model(folder, replace(BY_BLOCK, memory=split.blocks.bytes_for(1, n_tokens) - 1))
    with pytest.raises(BadInput, match=r"tokens through one block take .* give more memory, or fewer texts"):
        ablated(tight)


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = {path!r}
import test_by_block_findings as here
from outlierlens.models.load import LoadOptions, load_model
loaded = load_model({folder!r}, LoadOptions(by_block=True, attention="eager", memory={memory}))
weights = loaded.blocks.weights
fill = weights.fill
def killed(door):
    if door == weights.order[2] and weights.reads.count(door) == 1:
        os.kill(os.getpid(), 9)  # in the middle of the second group
    fill(door)
weights.fill = killed
here.ablated(loaded, Path({rows!r}))
"""


def test_a_killed_run_goes_on_with_the_next_group(model_folder: Callable[..., str], tmp_path: Path) -> None:
    folder, rows = model_folder("llama"), tmp_path / "rows"
    split = load_model(folder, BY_BLOCK)
    assert split.blocks
    memory = split.blocks.bytes_for(3, tokens_of(split))
    script = KILLED.format(path=[*sys.path, str(Path(__file__).parent)], folder=folder, memory=memory, rows=str(rows))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    bounded = load_model(folder, replace(BY_BLOCK, memory=memory))
    assert bounded.blocks
    assert content(ablated(bounded, rows), tmp_path / "two.json") == content(ablated(split), tmp_path / "one.json")
    reads, alone = bounded.blocks.weights.reads, split.blocks.weights.reads
    first = bounded.blocks.weights.order[2]
    assert reads.count(first) == alone.count(first) + 1  # of eight readings two were kept: two groups in place of three


def test_a_model_that_does_not_fit_is_read_block_by_block(
    model_folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = model_folder("llama"), list[str]()
    for free, split in ((10_000, True), (10**9, False), (None, False)):
        monkeypatch.setattr("outlierlens.models.load.free_memory", lambda _, free=free: free)
        assert bool(load_model(folder, LoadOptions(notice=said.append)).blocks) is split
        assert not load_model(folder, LoadOptions(by_block=False)).blocks
    (line,) = said
    assert "GB of weights in float32, and 1e-05 GB of cpu memory free: read block by block" in line
