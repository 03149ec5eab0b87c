"""`OutlierCallback` in a real Trainer: accumulation, reporters, resuming after a kill, several processes."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

import watch_training
from outlierlens import OutlierCallback
from outlierlens.data.texts import Texts
from outlierlens.errors import BadInput
from outlierlens.options import WatchOptions
from outlierlens.results.row_store import read_rows
from outlierlens.training.watch_rows import read_activity, read_watch
from watch_training import EVERY, IDS, model_of, trainer_of


def quiet(**settings: Any) -> WatchOptions:
    return WatchOptions(**{"every": EVERY, "probe": IDS, "notice": lambda line: None, **settings})


class Reporter(TrainerCallback):
    """Keeps what reaches it, like TensorBoard's callback and its kind."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, Any]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.setdefault(state.global_step, dict(logs))


class Gradients(TrainerCallback):
    """Keeps the norms' gradients that the optimizer is about to use."""

    def __init__(self) -> None:
        self.scale: list[np.ndarray] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        grads = [layer.output.LayerNorm.weight.grad for layer in model.bert.encoder.layer]
        self.scale.append(torch.stack(grads).square().sum(0).sqrt().numpy())


class Kill(TrainerCallback):
    """Ends training at once in the middle of a step, as a kill would."""

    def __init__(self, step: int):
        self.step = step

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def run(folder: Path, *, watched: bool = True, **settings: Any) -> Any:
    trainer = trainer_of(folder / "out", **settings)
    if watched:
        OutlierCallback(folder / "rows.jsonl", quiet()).attach(trainer)
    trainer.train()
    return trainer


def test_rows_gradients_and_curves_of_a_run_with_accumulation(tmp_path: Path) -> None:
    gradients = Gradients()
    trainer = trainer_of(tmp_path / "out", max_grad_norm=1e-3)
    trainer.add_callback(gradients)
    OutlierCallback(tmp_path / "rows.jsonl", quiet()).attach(trainer)
    trainer.train()
    path, seen = read_watch(tmp_path / "rows.jsonl"), read_activity(tmp_path / "rows.jsonl")
    assert path.steps.tolist() == [0, 2, 4, 6, 8, 10, 12]
    live = [layer.output.LayerNorm for layer in trainer.model.bert.encoder.layer]
    np.testing.assert_array_equal(path.scale[-1], torch.stack([norm.weight.detach() for norm in live]))
    np.testing.assert_array_equal(path.bias[-1], torch.stack([norm.bias.detach() for norm in live]))
    # Clipped: 1e-3 bounds them all.
    np.testing.assert_allclose(seen.gradient_scale[1:], gradients.scale[1::2], rtol=1e-6)
    assert 0 < seen.gradient_scale[1:].max() < 1e-3
    logged = {log["step"]: log for log in trainer.state.log_history if "loss" in log}
    assert path.curves["loss"].steps.tolist() == [3, 6, 9, 12] == sorted(logged)
    assert path.curves["loss"].values.tolist() == [logged[step]["loss"] for step in (3, 6, 9, 12)]
    assert set(path.curves) == {"loss", "grad_norm", "learning_rate"}
    np.testing.assert_allclose(seen.learning_rate[1:], [0.01 * (1 - step / 12) for step in range(1, 12, 2)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the trainer of a run without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def test_a_watched_trainer_is_the_same_trainer(tmp_path: Path, whole: tuple[Path, Any]) -> None:
    plain, watched = run(tmp_path, watched=False), whole[1]
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    losses = [[log["loss"] for log in t.state.log_history if "loss" in log] for t in (plain, watched)]
    assert losses[0] == losses[1]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """MLflow as far as the Trainer's own integration calls it."""
    fake = MagicMock(__spec__=ModuleSpec("mlflow", None), __version__="3.1")
    limits = fake.utils.validation
    limits.MAX_PARAM_VAL_LENGTH, limits.MAX_PARAMS_TAGS_PER_BATCH = 500, 100
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def test_attached_it_reaches_every_reporter_and_else_those_behind_it(tmp_path: Path, mlflow: MagicMock) -> None:
    seen = {}
    lines: list[str] = []
    for attached in (True, False):
        before, behind = Reporter(), Reporter()
        trainer = trainer_of(tmp_path / str(attached), report_to=["mlflow"] * attached)
        trainer.add_callback(before)
        callback = OutlierCallback(tmp_path / f"{attached}.jsonl", quiet(notice=lines.append, dims=(3,)))
        if attached:
            assert callback.attach(trainer) is callback
            callback.attach(trainer)  # twice is once
            assert trainer.callback_handler.callbacks.count(callback) == 1
        else:
            trainer.add_callback(callback)
            trainer.add_callback(behind)
            behind = trainer.callback_handler.callbacks[-1]
        trainer.train()
        seen[attached] = before.seen
        history = {log["step"]: log for log in trainer.state.log_history if "loss" in log}
        assert "outliers/dim_3/z_scale" in history[3]
        if not attached:
            assert "outliers/dim_3/z_scale" in behind.seen[3]
    # Step 3's log carries what step 2 recorded, step 6's what step 6 did.
    path, activity = read_watch(tmp_path / "True.jsonl"), read_activity(tmp_path / "True.jsonl")
    for step, place in ((3, 1), (6, 3)):
        expected = path.measured(place).z_scale[:, 3].mean()
        assert seen[True][step]["outliers/dim_3/z_scale"] == pytest.approx(expected)
        (logged,) = (call.kwargs for call in mlflow.log_metrics.call_args_list if call.kwargs["step"] == step)
        assert logged["metrics"]["outliers/dim_3/z_scale"] == pytest.approx(expected)
        for name in ("largest_state", "largest_logit"):
            values = getattr(activity, name)[place]
            assert [logged["metrics"][f"outliers/layer_{layer}/{name}"] for layer in range(3)] == values.tolist()
        for name in ("update_scale", "update_bias"):
            assert logged["metrics"][f"outliers/dim_3/{name}"] == getattr(activity, name)[place, 3] > 0
    assert not [name for name in seen[False][3] if name.startswith("outliers/")]
    assert [line.split(":")[0] for line in lines if "attach" in line] == ["OutlierCallback was not attached"]


def test_an_evaluation_is_a_curve_and_takes_no_numbers_away(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "out", eval_strategy="steps", eval_steps=2, logging_steps=4)
    reporter = Reporter()
    trainer.add_callback(reporter)
    OutlierCallback(tmp_path / "rows.jsonl", quiet()).attach(trainer)
    trainer.train()
    curves = read_watch(tmp_path / "rows.jsonl").curves
    assert curves["eval_loss"].steps.tolist() == [2, 4, 6, 8, 10, 12]
    assert not [name for name in curves if "runtime" in name or "second" in name]
    assert "outliers/inf_norm" not in reporter.seen[2]
    assert "outliers/inf_norm" in reporter.seen[4]
    trainer.evaluate()  # after training, when the rows are closed


@pytest.mark.parametrize("killed_at", [5, 7, 10])
def test_resumed_from_a_checkpoint_rows_and_losses_are_those_of_a_run_without_a_stop(
    tmp_path: Path, whole: tuple[Path, Any], killed_at: int
) -> None:
    folders = (whole[0], tmp_path / "stopped")
    trainer = trainer_of(tmp_path / "stopped" / "out")
    first = OutlierCallback(tmp_path / "stopped" / "rows.jsonl", quiet()).attach(trainer)
    trainer.add_callback(Kill(killed_at))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert first.watcher is not None
    first.watcher.close()
    again = trainer_of(tmp_path / "stopped" / "out")
    OutlierCallback(tmp_path / "stopped" / "rows.jsonl", quiet()).attach(again)
    again.train(resume_from_checkpoint=True)
    rows = [read_rows(folder / "rows.jsonl")[1] for folder in folders]
    assert [key for key in rows[0] if key.startswith("step")] == [f"step {step}" for step in range(0, 13, 2)]
    steps = [{key: value for key, value in done.items() if key.startswith("step ")} for done in rows]
    assert steps[0] == steps[1]  # every bit of every vector
    keys = [line[:30] for line in (tmp_path / "stopped" / "rows.jsonl").read_text().splitlines()]
    assert len(set(keys)) == len(keys)
    assert set(rows[0]) == set(rows[1])
    # The Trainer averages a loss since the last log or, resumed, since the checkpoint: the first one differs.
    curves = [read_watch(folder / "rows.jsonl").curves["loss"] for folder in folders]
    checkpoint = killed_at // 4 * 4
    same = [step for step in (3, 6, 9, 12) if step <= checkpoint or step - 3 >= checkpoint]
    assert len(same) >= 3
    for step in same:
        values = [float(curve.values[list(curve.steps).index(step)]) for curve in curves]
        assert values[0] == values[1], step
    pairs = zip(whole[1].model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_begun_anew_in_the_same_folder_nothing_of_the_first_run_is_mixed_in(tmp_path: Path) -> None:
    run(tmp_path, max_steps=4)
    before = read_rows(tmp_path / "rows.jsonl")[1]
    run(tmp_path, max_steps=2, seed=9)
    after = read_rows(tmp_path / "rows.jsonl")[1]
    assert [key for key in after if key.startswith("step")] == ["step 0", "step 2"]
    assert after["step 2"] != before["step 2"]
    assert read_rows(tmp_path / "rows.replayed-1.jsonl")[1] == before


def test_a_training_that_failed_is_begun_again_in_this_process_with_another_callback(tmp_path: Path) -> None:
    failed = trainer_of(tmp_path / "out")
    failed.add_callback(Kill(3))
    kept = OutlierCallback(tmp_path / "rows.jsonl", quiet()).attach(failed)
    with pytest.raises(KeyboardInterrupt):
        failed.train()
    assert kept.watcher is not None
    run(tmp_path, max_steps=4)
    assert kept.watcher is None
    assert [key for key in read_rows(tmp_path / "rows.jsonl")[1] if key.startswith("step")] == [
        "step 0",
        "step 2",
        "step 4",
    ]


def test_two_callbacks_of_one_trainer_record_what_each_does_alone(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    run(tmp_path / "alone", max_steps=6)
    trainer = trainer_of(tmp_path / "out", max_steps=6)
    for name in ("first", "second"):
        OutlierCallback(tmp_path / f"{name}.jsonl", quiet()).attach(trainer)
    trainer.train()
    alone, *both = (read_rows(tmp_path / f"{name}.jsonl")[1] for name in ("alone/rows", "first", "second"))
    assert any(name.startswith("outliers/") for name in trainer.state.log_history[0])
    assert all(found == alone for found in both)


def test_two_callbacks_of_one_trainer_do_not_share_a_file(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "out")
    first = OutlierCallback(tmp_path / "rows.jsonl", quiet())
    OutlierCallback(tmp_path / "rows.jsonl", quiet()).attach(trainer)
    first.attach(trainer)
    with pytest.raises(BadInput, match="another run is writing to it"):
        trainer.train()
    assert first.watcher is not None
    first.watcher.close()


def test_a_decoder_is_followed_by_the_weights_that_scan_reads(tmp_path: Path) -> None:
    trainer = run(tmp_path, model=model_of("llama"), max_steps=2)
    path = read_watch(tmp_path / "rows.jsonl")
    assert (path.view, path.site, path.bias) == ("last", "mlp.down_proj", None)
    live = torch.stack([layer.mlp.down_proj.weight.detach().norm(dim=1) for layer in trainer.model.model.layers])
    np.testing.assert_allclose(path.scale[-1], live, rtol=1e-6)
    seen = read_activity(tmp_path / "rows.jsonl")
    assert (seen.gradient_scale.shape, seen.gradient_bias.shape) == ((2, path.width), (2, 0))


def test_the_trainer_s_tokenizer_reads_the_probe(tmp_path: Path, words: Any) -> None:
    trainer = trainer_of(tmp_path / "out", max_steps=1)
    trainer.processing_class = words()
    trainer.callback_handler.processing_class = trainer.processing_class
    OutlierCallback(tmp_path / "rows.jsonl", quiet(probe=Texts("made up", ("w0 w1 w2",)), every=1)).attach(trainer)
    trainer.train()
    assert read_activity(tmp_path / "rows.jsonl").inf_norm.shape == (2, 3)


def test_two_processes_record_what_one_does_with_twice_the_accumulation(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    watch_training.in_two(watch_training.train, tmp_path / "two", 1)
    watch_training.train(tmp_path / "one", 2)
    one, two = (read_watch(tmp_path / name / "rows.jsonl") for name in ("one", "two"))
    assert one.steps.tolist() == two.steps.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(one.scale[0], two.scale[0])
    assert not np.array_equal(one.scale[0], one.scale[2])
    np.testing.assert_allclose(one.scale, two.scale, atol=2e-5)
    seen = [read_activity(tmp_path / name / "rows.jsonl") for name in ("one", "two")]
    np.testing.assert_allclose(seen[0].gradient_scale, seen[1].gradient_scale, rtol=2e-3, atol=1e-6)
    assert len((tmp_path / "two" / "rows.jsonl").read_text().splitlines()) == len(
        (tmp_path / "one" / "rows.jsonl").read_text().splitlines()
    )
