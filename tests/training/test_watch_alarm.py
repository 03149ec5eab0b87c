"""Early warnings on simulated trainings, in a loop and in a Trainer of one and of two processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

import watch_training
from architectures import FAMILIES, build
from outlierlens import OutlierCallback
from outlierlens.commands import watch
from outlierlens.detection.rules import Rule, zscore
from outlierlens.options import WatchOptions
from outlierlens.training.watch_alarm import MEASURED, Alarm, AlarmError, Approach, EarlyWarning
from script_modules import script
from watch_training import IDS, Pushed, model_of, trainer_of

LAYERS, WIDTH, DIM = 4, 64, 7
EASY = Approach(near=0.7, records=1, speed=0.0)


def rows_of(strengths: list[float], layers: int = 2, speeds: list[float] | None = None) -> list[np.ndarray]:
    """Values [layer, dim] in which |z| of dimension 7 is that share of 3 in so many layers, and all move so fast together."""
    rows, moved = [], 0.0
    for record, strength in enumerate(strengths):
        values = np.random.default_rng(0).normal(size=(LAYERS, WIDTH)) * 0.5
        values[:, DIM] = 0.0
        for layer in range(layers):
            low, high = 0.0, 100.0
            for _ in range(60):
                values[layer, DIM] = (low + high) / 2
                low, high = (
                    (low, values[layer, DIM])
                    if zscore(values)[layer, DIM] > 3 * strength
                    else (values[layer, DIM], high)
                )
        moved += (speeds or [100.0] * len(strengths))[record]
        rows.append(values + moved)  # z does not see what all share
    return rows


@pytest.mark.parametrize(
    ("strengths", "layers", "alarms"),
    [
        ([0.5, 0.82, 0.85, 0.9, 0.95], 2, [3]),  # the third record in a row, once
        ([0.5, 0.82, 0.85, 0.9, 0.95], 1, []),  # half of four layers are two
        ([0.82, 0.9, 0.88, 0.85], 2, []),  # it falls back
        ([0.82, 0.85, 0.79, 0.9, 0.91, 0.92], 2, [5]),  # begun again after a break
        ([0.82, 0.9, 1.02, 0.9, 0.95, 0.97], 2, []),  # it had left before
        ([0.79] * 9, 2, []),
    ],
)
def test_what_is_near_for_long_enough_is_announced_once(strengths: list[float], layers: int, alarms: list[int]) -> None:
    for kinds, kind in ((("scale",), "scale"), (("scale", "bias"), "bias")):
        warning = EarlyWarning(Rule(), Approach(near=0.8, records=3, speed=0.0))
        flat = np.tile(np.linspace(-1, 1, WIDTH), (LAYERS, 1))
        seen = [
            warning.see(10 * record, {name: row if name == kind else flat for name in kinds})
            for record, row in enumerate(rows_of(strengths, layers))
        ]
        found = [alarm for some in seen for alarm in some]
        assert [(alarm.step, alarm.dim, alarm.kind) for alarm in found] == [(10 * n, DIM, kind) for n in alarms]
        for alarm, record in zip(found, alarms, strict=True):
            assert alarm.strength == pytest.approx(3 * strengths[record])


def test_nothing_is_announced_once_the_weights_hardly_move() -> None:
    strengths = [*[0.5] * 7, 0.81, 0.85, 0.9, 0.91]
    for last, alarms in ((100.0, 1), (60.0, 1), (40.0, 0)):
        warning = EarlyWarning(Rule(), Approach(near=0.8, records=3, speed=0.5))
        # Over three records: 300 at the fastest, and at the end three times the last one.
        rows = rows_of(strengths, speeds=[0.0, 100.0, 100.0, 100.0, *[last] * 7])
        found = [alarm for step, row in enumerate(rows) for alarm in warning.see(step, {"scale": row})]
        assert [alarm.step for alarm in found] == [9] * alarms, last


def test_the_benchmark_counts_what_comes_true_and_who_is_left_alone() -> None:
    benchmark = script("benchmarks/watch_alarm.py")

    def run(strengths: list[float]) -> Any:
        rows = np.stack(rows_of(strengths))
        past = np.zeros((len(rows), WIDTH), dtype=bool)
        past[:, DIM] = np.array(strengths) >= 1
        return benchmark.Run(10 * np.arange(len(rows)), {"scale": rows}, {"scale": past})

    leaves = run([0.5, 0.82, 0.85, 0.9, 0.95, 0.97, 1.1, 1.2, 1.3, 0.9])  # announced at record 3, past from 6 on
    jumps = run([0.5, 0.5, 1.1, 1.2, 1.3])  # an emergence that nothing announces
    touches = run([0.5, 0.82, 0.85, 0.9, 1.1, 0.9])  # comes true, and is no emergence of three records
    nears, silent = run([0.5, 0.82, 0.85, 0.9, 0.9]), run([0.5, 0.6])  # both clean
    approach = Approach(near=0.8, records=3, speed=0.0)
    found = benchmark.counted([leaves, jumps, touches, nears, silent], approach)
    assert found == benchmark.Count(clean=2, alarmed=1, raised=3, true=2, emerged=2, leads=((30, 3),))
    far = run([0.5, 0.82, 0.85, 0.9, *[0.8] * benchmark.HORIZON, 1.1])
    assert benchmark.counted([far], approach)[2:4] == (1, 0)  # one record later than it had to
    assert not found.trusted
    assert benchmark.Count(clean=10, alarmed=1, raised=10, true=7).trusted
    names = {benchmark.recipe_of(number, []).name for number in benchmark.RUNS}
    assert len(names) == len(benchmark.RUNS) > 40


def pushed_loop(path: Path, on_alarm: Any, steps: range, model: Any = None) -> tuple[list[str], Any]:
    """(lines, watcher) of a loop of no training, in which one dimension grows."""
    lines: list[str] = []
    model = model or build(FAMILIES["bert"], "MaskedLM")
    options = WatchOptions(every=2, probe=IDS, notice=lines.append, on_alarm=on_alarm, approach=EASY)
    with watch(model, path, options, start=steps.start - 1) as watcher:
        for step in steps:
            Pushed.push_(model)
            watcher.step(step)
            if watcher.alarmed:
                break
    return lines, watcher


def test_a_loop_hears_of_it_and_a_resumed_one_not_again(tmp_path: Path) -> None:
    heard: list[tuple[Alarm, ...]] = []
    lines, watcher = pushed_loop(tmp_path / "a.jsonl", heard.append, range(1, 41))
    ((alarm,),) = heard
    assert (alarm.dim, alarm.kind, watcher.alarms) == (Pushed.DIM, "scale", (alarm,))
    assert [line for line in lines if "nears" in line] == [str(alarm)]
    assert [line for line in lines if line == MEASURED] == [MEASURED]
    assert WatchOptions().on_alarm == "log"
    model = build(FAMILIES["bert"], "MaskedLM")
    with pytest.raises(AlarmError, match=rf"^step {alarm.step}: dimension {Pushed.DIM} nears the threshold"):
        pushed_loop(tmp_path / "b.jsonl", "raise", range(1, 41), model)
    assert (tmp_path / "b.jsonl").read_text() == (tmp_path / "a.jsonl").read_text()  # its row is there
    lines, watcher = pushed_loop(tmp_path / "b.jsonl", "raise", range(alarm.step + 1, alarm.step + 31), model)
    assert not [line for line in lines if "nears" in line]
    assert [line for line in lines if f"dimension {Pushed.DIM} is past" in line]


def test_between_records_a_tensor_is_touched_only_right_before_one(tmp_path: Path) -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model = build(FAMILIES["bert"], "MaskedLM")
    loss = torch.ones(())
    with watch(model, tmp_path / "w.jsonl", WatchOptions(every=3, probe=IDS)) as watcher:
        calls = []
        for _ in range(8):
            with Seen() as seen:
                watcher.step(loss=loss)
            calls.append(seen.calls)
    assert [bool(n) for n in calls] == [False, True, True, False, True, True, False, True]


def test_the_trainer_logs_saves_or_stops(tmp_path: Path) -> None:
    logged: list[dict[str, Any]] = []

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            logged.append(dict(logs))

    for asked in ("log", "checkpoint", "raise"):
        lines: list[str] = []
        trainer = trainer_of(tmp_path / asked, model_of(), max_steps=24, save_strategy="no", learning_rate=1e-6)
        trainer.add_callback(Pushed())
        trainer.add_callback(Reporter())
        options = WatchOptions(every=2, probe=IDS, notice=lines.append, on_alarm=asked, approach=EASY)
        OutlierCallback(tmp_path / f"{asked}.jsonl", options).attach(trainer)
        if asked == "raise":
            with pytest.raises(AlarmError):
                trainer.train()
        else:
            trainer.train()
        said = [line for line in lines if "nears" in line]
        step = int(said[0].split(":")[0].split()[1])
        saved = [folder.name for folder in (tmp_path / asked).glob("checkpoint-*")]
        assert (f"checkpoint-{step}" in saved) == (asked == "checkpoint")
        assert (trainer.state.global_step == 24) == (asked != "raise")
        if asked == "log":
            counts = [row["outliers/alarms"] for row in logged if "outliers/alarms" in row]
            assert (counts[0], counts[-1]) == (0, len(said))


def test_every_process_saves_at_the_alarm_of_one(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    watch_training.in_two(watch_training.alarm, tmp_path / "two", 1)
    (tmp_path / "one").mkdir()
    watch_training.alarm(tmp_path / "one", 2)
    kept = [sorted(folder.name for folder in (tmp_path / name / "out").glob("checkpoint-*")) for name in ("one", "two")]
    assert kept[0] == kept[1]
    for folder in (tmp_path / "two" / "out").glob("checkpoint-*"):
        assert {file.name for file in folder.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
    assert kept[1]
