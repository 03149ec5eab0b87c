"""A pre-training that is killed at any moment and started again is the one that was not: losses, rows and weights."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import forked
from moments import changed, contents
from outlierlens.results.row_store import read_rows
from outlierlens.training.watch_rows import read_activity, read_watch
from pretrain_runs import recipe_in, train_alone

STEPS, EVERY, SAVE = 60, 5, 10
# What a clock says.
NOT_COMPARED = ("_runtime", "_per_second")


Ran = Callable[..., int]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Train into a folder, in a process of its own; its exit status. Dropout makes every random generator matter."""
    root = tmp_path_factory.mktemp("killed")
    recipe = recipe_in(root).changed(
        [
            f"training.steps={STEPS}",
            "training.batch=8",
            "training.accumulation=2",
            f"training.save_every={SAVE}",
            f"training.evaluate_every={SAVE}",
            f"training.log_every={EVERY}",
            f"training.watch_every={EVERY}",
            "model.dropout=0.2",
        ]  # 960 rows are read of 360: the order of the third epoch counts
    )

    return lambda folder, crash="": forked.status(train_alone, recipe, folder, root / "cache", crash)


@pytest.fixture(scope="module")
def whole(ran: Ran, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without a stop."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert ran(folder) == 0
    return folder


def numbers(log: list[dict[str, float]]) -> dict[tuple[float, str], float]:
    """{(step, name): value} of everything that was logged, each once."""
    found: dict[tuple[float, str], float] = {}
    for row in log:
        for name, value in row.items():
            if name != "step" and not name.endswith(NOT_COMPARED):
                assert (row["step"], name) not in found or name == "epoch", f"{name} of step {row['step']} twice"
                found[row["step"], name] = value
    return found


def assert_same_run(one: Path, other: Path) -> None:
    logs = [numbers(json.loads((folder / "log.json").read_text())["log_history"]) for folder in (one, other)]
    assert logs[0].keys() == logs[1].keys()
    for name, every in (("loss", EVERY), ("eval_loss", SAVE)):
        assert [step for step, key in logs[1] if key == name] == list(range(every, STEPS + 1, every))
    for key in logs[0]:
        assert logs[1][key] == pytest.approx(logs[0][key], rel=1e-5, abs=1e-7), key
    rows = [read_rows(folder / "watch.jsonl")[1] for folder in (one, other)]
    assert set(rows[0]) == set(rows[1])
    lines = [json.loads(line) for line in (other / "watch.jsonl").read_text().splitlines()[1:]]
    assert len({line["key"] for line in lines}) == len(lines)  # no duplicates
    paths: list[Any] = [read_watch(folder / "watch.jsonl") for folder in (one, other)]
    seen = [read_activity(folder / "watch.jsonl") for folder in (one, other)]
    assert paths[1].steps.tolist() == list(range(0, STEPS + 1, EVERY))  # no gaps
    for values in (
        *([getattr(path, name) for path in paths] for name in ("scale", "bias", "states")),
        *([getattr(one_seen, name) for one_seen in seen] for name in vars(seen[0]) if name != "stack"),
    ):
        assert values[0].size
        np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-7)
    assert paths[0].curves.keys() == paths[1].curves.keys() >= {"loss", "eval_loss", "grad_norm"}
    for name, curve in paths[0].curves.items():
        np.testing.assert_array_equal(paths[1].curves[name].steps, curve.steps)
        np.testing.assert_allclose(paths[1].curves[name].values, curve.values, rtol=1e-5, atol=1e-7)
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        np.testing.assert_allclose(weights[1][name], tensor, rtol=1e-4, atol=1e-6, err_msg=name)


def test_killed_at_random_moments_and_resumed(ran: Ran, whole: Path, tmp_path: Path) -> None:
    chance = random.Random(7)
    folder = tmp_path / "run"
    # Before there is a checkpoint: rows of the watch, and nothing to go on from.
    assert ran(folder, f"row {chance.randrange(0, SAVE, EVERY)}") == -signal.SIGKILL
    assert not list(folder.glob("checkpoint-*/trainer_state.json"))
    # Somewhere between two checkpoints, in the middle third.
    second = chance.randrange(STEPS // 3, STEPS * 2 // 3)
    assert ran(folder, f"forward {second}") == -signal.SIGKILL
    # While a checkpoint is being written.
    third = folder / f"checkpoint-{chance.randrange(second + 2 * SAVE, STEPS + 1) // SAVE * SAVE}"
    assert ran(folder, third.name.replace("-", " ")) == -signal.SIGKILL
    assert third.is_dir()
    assert not (third / "trainer_state.json").exists()
    assert not (folder / "model").exists()
    assert ran(folder) == 0
    assert list(folder.glob("watch.replayed-*.jsonl"))
    assert_same_run(whole, folder)


def test_a_finished_run_is_left_as_it_is(ran: Ran, whole: Path) -> None:
    before = contents(whole)
    assert ran(whole) == 0
    assert not changed(before, contents(whole))
