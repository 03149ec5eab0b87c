"""A fine-tuning that is killed at any moment and started again is the one that was not: scores, losses and weights."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import forked
from finetune_runs import tiny, train_alone, write_data
from moments import changed, contents
from outlierlens.results.document import load
from outlierlens.results.row_store import read_rows

EPOCHS, PER_EPOCH, SAVE = 3, 12, 5
# The first epochs are each better than the one before, so that every one of them has a model to keep.
SETTINGS = {"epochs": EPOCHS, "save_steps": SAVE, "seeds": (3,), "learning_rate": 2e-3}

Ran = Callable[..., int]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Train into a folder, in a process of its own; its exit status. Dropout makes the generator matter."""
    root = tmp_path_factory.mktemp("killed")
    base = tiny(root / "model", hidden_dropout_prob=0.2)
    data = write_data(root / "data")

    return lambda folder, crash="": forked.status(train_alone, base, data, folder, SETTINGS, crash)


@pytest.fixture(scope="module")
def whole(ran: Ran, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without a stop."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert ran(folder) == 0
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_same_run(one: Path, other: Path) -> None:
    runs = [load(folder / "finetuned.json").seeds[0] for folder in (one, other)]
    assert runs[0].best_epoch == runs[1].best_epoch
    assert [row.epoch for row in runs[1].epochs] == [1.0, 2.0, 3.0]
    for before, now in zip(runs[0].epochs, runs[1].epochs, strict=True):
        for name, value in dataclasses.asdict(before).items():
            assert getattr(now, name) == pytest.approx(value, rel=1e-5, abs=1e-7), name
    ends = [(run.value.low, run.value.high) for run in runs]
    assert ends[1] == pytest.approx(ends[0], nan_ok=True)
    assert runs[0].base_fingerprint == runs[1].base_fingerprint != ""
    assert [*read_rows(other / "seed-3" / "rows.jsonl")[1]] == ["epoch 1", "epoch 2", "epoch 3", "done"]
    places = [folder / "seed-3" / "model" for folder in (one, other)]
    weights = [load_file(place / "model.safetensors") for place in places]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        np.testing.assert_allclose(weights[1][name], tensor, rtol=1e-5, atol=1e-7, err_msg=name)
    kept: list[Any] = [np.load(place / "dev_predictions.npz") for place in places]
    np.testing.assert_allclose(kept[1]["predicted"], kept[0]["predicted"], rtol=1e-5, atol=1e-7)
    assert files(one) == files(other)  # nothing of the stops is left


def test_the_whole_run_keeps_a_model_in_every_epoch(whole: Path) -> None:
    scores = [row.scores["pearson"] for row in load(whole / "finetuned.json").seeds[0].epochs]
    assert scores == sorted(set(scores))
    assert files(whole / "seed-3") >= {"rows.jsonl", "model"}
    assert not list(whole.glob("seed-3/checkpoint-*"))
    assert not list(whole.glob("seed-3/best-*"))


def test_killed_between_steps_within_a_checkpoint_and_in_an_epoch(ran: Ran, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    seed = folder / "seed-3"
    # Before there is anything to go on from.
    assert ran(folder, "step 2") == -signal.SIGKILL
    assert (seed / "rows.jsonl").is_file()
    assert not list(seed.glob("checkpoint-*"))
    # Within the first epoch, a checkpoint behind it.
    assert ran(folder, "step 8") == -signal.SIGKILL
    assert (seed / "checkpoint-5" / "trainer_state.json").is_file()
    # Within the second epoch, while a checkpoint is being written: the Trainer's state, which comes last, is not there.
    assert ran(folder, "checkpoint 20") == -signal.SIGKILL
    assert (seed / "checkpoint-20").is_dir()
    assert not (seed / "checkpoint-20" / "trainer_state.json").exists()
    # At the end of the second, with its row written and no checkpoint behind it.
    assert ran(folder, "step 25") == -signal.SIGKILL
    assert [*read_rows(seed / "rows.jsonl")[1]] == ["epoch 1", "epoch 2"]
    assert ran(folder) == 0
    assert_same_run(whole, folder)


@pytest.mark.parametrize("crashes", [("model 2", "named"), ("removal", "row"), ("step 7", "done")])
def test_killed_while_a_model_is_kept(crashes: tuple[str, ...], ran: Ran, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for crash in crashes:
        assert ran(folder, crash) == -signal.SIGKILL
        # The best model so far is whole, whatever was being done.
        rows = read_rows(folder / "seed-3" / "rows.jsonl")[1].values()
        if not rows:
            continue
        best = max(rows, key=lambda row: float(row["scores"]["pearson"]))["epoch"]
        place = folder / "seed-3" / ("model" if crash == "done" else f"best-{best:g}")
        assert load_file(place / "model.safetensors")
    assert ran(folder) == 0
    assert_same_run(whole, folder)


def test_a_finished_run_is_left_as_it_is(ran: Ran, whole: Path) -> None:
    before = contents(whole)
    assert ran(whole) == 0
    # Of finetuned.json the time alone is another.
    assert changed(before, contents(whole)) <= {"finetuned.json"}
