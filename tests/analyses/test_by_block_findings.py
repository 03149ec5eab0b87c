"""Commands say of a model that is read block by block what they say of the whole model."""

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
from block_equality import content
from outlierlens.analyses.quantize_schemes import parse_all
from outlierlens.analyses.sweep.runner import Runner
from outlierlens.commands import attack, definitions, predictions, prune_test
from outlierlens.errors import BadInput
from outlierlens.models.block_weights import BlockWeights
from outlierlens.models.blocks import RunMemory, WaitingStates
from outlierlens.models.load import LoadedModel, LoadOptions, load_model
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.choice import make_task
from outlierlens.view.section import duration
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
    "sweep": (
        lambda loaded, **more: ol.sweep(
            loaded, TEXTS, dims=(3, 5), sets=((1, 2),), exact=True, n_random=3, n_matched=2, **more
        ),
        1,
    ),
    "observe": (lambda loaded, **more: ol.observe(loaded, TEXTS, batch_size=2, **more), 2),
    "range": (lambda loaded, **more: ol.range_of(loaded, TEXTS, batch_size=2, cache=True, **more), 2),
}


def without_replies(found: Any) -> Any:
    """What a decoder goes on to say reads all weights for each word: block by block a note says that it is left out."""
    if isinstance(found, dict):
        return {key: None if key in ("begins", "continued") else without_replies(one) for key, one in found.items()}
    if isinstance(found, list):
        return [without_replies(one) for one in found if not str(one).startswith("the passage is not continued")]
    return found


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_findings_are_equal(
    name: str, family: str, model_folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the whole model a sweep mixes several sets in one batch, which sums in another order.
    monkeypatch.setattr(Runner, "check", lambda runner: setattr(runner, "mixes", False))
    command, most = COMMANDS[name]
    folder = model_folder(family, FAMILIES[family], "masked" if family == "bert" else "causal")
    whole, split = load_model(folder, WHOLE), load_model(folder, BY_BLOCK)
    found, wanted = content(command(split)), content(command(whole))
    silent = [note for note in found["notes"] if note.startswith("the passage is not continued")]
    assert len(silent) == (family == "llama" and name in ("ablate", "ablate neurons"))
    assert without_replies(found) == without_replies(wanted)
    assert split.blocks
    reads = split.blocks.weights.reads
    assert max(map(reads.count, reads)) <= most


def test_the_report_is_equal(model_folder: Callable[..., str], tmp_path: Path) -> None:
    folder, made = model_folder("llama"), []
    for name, options in (("whole", WHOLE), ("split", BY_BLOCK)):
        one = load_model(folder, options)
        made.append(ol.report(one, TEXTS, dims=(3, 5), n_random=3, n_matched=2, folder=tmp_path / name))
    found, wanted = (without_replies(content(one)) for one in made[::-1])
    assert found == wanted
    assert one.blocks
    reads = one.blocks.weights.reads
    assert max(map(reads.count, reads)) <= 4  # observed, ablated, and what the passage and the scan read


@pytest.mark.parametrize("command", [partial(ol.sweep, dims=(3,)), attack, definitions, partial(prune_test, dims=(3,))])
def test_what_needs_all_weights_at_once_says_so(command: Callable[..., Any], model_folder: Callable[..., str]) -> None:
    split = load_model(model_folder("llama"), BY_BLOCK)
    with pytest.raises(BadInput, match=r"needs the model whole, and it is read block by block; .*by_block=False"):
        command(split, TEXTS)


# --- memory ----------------------------------------------------------------------------------------------------------


def tokens_of(loaded: LoadedModel) -> int:
    return int(make_task(loaded, TEXTS, TaskOptions()).lengths.sum())


def ablated(loaded: LoadedModel, rows: Path | None = None) -> Any:
    return ol.ablate(loaded, TEXTS, (3, 5), n_random=5, n_matched=0, avoid=(), batch_size=4, rows=rows)


def test_what_is_read_how_long_and_with_what_memory_is_told_before(
    model_folder: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockWeights, "bytes_per_second", lambda _: 1e3)
    monkeypatch.setattr(BlockWeights, "operations_per_second", lambda _: 1e6)
    folder, said = model_folder("llama"), list[str]()
    split = load_model(folder, replace(BY_BLOCK, notice=said.append))
    assert split.blocks
    # 3 layers of 16: queries and outputs 16 × 16, keys and values 8 × 16, three of the MLP 24 × 16, two norms; float32
    matrices = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16
    block, table = 4 * (matrices + 2 * 16), 4 * 40 * 16
    n_tokens = tokens_of(split)
    n = 2 + len({str(one.plan) for one in ablated(split).controls})  # the intact model, the chosen set, and controls
    needs = split.blocks.needs(n, n_tokens)
    assert needs == (split.blocks.needs(0, 0).stays, block, n_tokens * 4 * (4 * 40 + 2 * 16), n * n_tokens * 2 * 16 * 4)
    assert needs.total == needs.stays + 2.5 * needs.block + needs.one_pass + needs.states
    (line,) = (one for one in said if "block by block" in one)
    reading = (3 * block + 2 * table) / 1e3
    computing = 2 * (3 * matrices + 40 * 16) * n_tokens * n / 1e6
    assert f"{n} readings of {n_tokens} tokens, about {duration(max(reading, computing))}: " in line
    assert f"(once) in {duration(reading)}, " in line
    assert f" in {duration(computing)}, at the same time; memory {needs}" in line
    assert str(RunMemory(10**9, 2 * 10**9, 5 * 10**8, 25 * 10**7)) == (
        "6.75 GB = 1 that stay + 2.5 × 2 of the largest block + 0.5 of one pass + 0.25 of states that wait"
    )
    ol.observe(split, TEXTS)
    assert len([one for one in said if "block by block" in one]) == 1


def test_conditions_go_in_groups_that_fit_into_memory(model_folder: Callable[..., str], tmp_path: Path) -> None:
    folder = model_folder("llama")
    split = load_model(folder, BY_BLOCK)
    assert split.blocks
    n_tokens = tokens_of(split)
    bounded = load_model(folder, replace(BY_BLOCK, memory=split.blocks.bytes_for(3, n_tokens)))
    assert bounded.blocks
    wanted, found = (content(ablated(one)) for one in (split, bounded))
    assert found == wanted
    reads = bounded.blocks.weights.reads
    assert max(map(reads.count, reads)) == 3 + 1  # the intact model, the chosen set, five random ones; then the passage


def test_states_that_do_not_fit_wait_in_a_file(
    model_folder: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder("llama")
    split = load_model(folder, BY_BLOCK)
    assert split.blocks
    n_tokens = tokens_of(split)
    least = split.blocks.bytes_for(0, n_tokens)
    placed, held = list[str](), list[int]()
    write, wait = WaitingStates._write, WaitingStates.wait

    def waiting(states: WaitingStates, one: Any) -> None:
        wait(states, one)
        held.append(sum(states.in_memory.values()))

    def written(states: WaitingStates, storage: Any) -> int:
        placed.append(str(states.folder))
        return write(states, storage)

    monkeypatch.setattr(WaitingStates, "wait", waiting)
    monkeypatch.setattr(WaitingStates, "_write", written)
    for room in (0, 5000):  # bytes for states: of none, and of some of the passes
        tight = load_model(folder, replace(BY_BLOCK, memory=least + room))
        assert tight.blocks
        tight.blocks.folder = tmp_path / "run"
        assert content(ablated(tight)) == content(ablated(split))
        assert max(held) <= room
        assert bool(max(held)) is bool(room)
        assert set(placed) == {str(tmp_path / "run")}
        assert not list((tmp_path / "run").iterdir())
        reads = tight.blocks.weights.reads
        assert max(map(reads.count, reads)) == 2  # all conditions together; then the passage
        placed.clear()
        held.clear()

    tight = load_model(folder, replace(BY_BLOCK, memory=least - 1))
    with pytest.raises(BadInput, match=r"one pass through one block takes .* give more memory"):
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
    assert content(ablated(bounded, rows)) == content(ablated(split))
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
