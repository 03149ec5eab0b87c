"""Pre-training by recipe: what its loop computes and what it does with a run's folder."""

import json
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.nn import functional
from transformers import TrainingArguments

from outlierlens.errors import BadInput
from outlierlens.models.load import load_model
from outlierlens.training import trainer as training
from outlierlens.training.pretrain import loop
from outlierlens.training.pretrain.build import build
from outlierlens.training.pretrain.corpus import load_tokenizer, prepare
from outlierlens.training.pretrain.recipe import Recipe, read_recipe
from outlierlens.training.pretrain.rows import IGNORED, PackedRows, TrainingRows
from outlierlens.training.run_files import checkpoints, newest_checkpoint, read_log
from outlierlens.training.watch_rows import read_watch
from pretrain_runs import N_PLACES, recipe_in, train

KNOWN, UNKNOWN = math.log(2), math.log(2 * N_PLACES)  # nats left when the place is known, or not


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return recipe_in(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One cache for the file, so that the rows are made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTLIERLENS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def baseline(base: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of 40 steps with checkpoints, and the logs that it passed on."""
    torch.set_num_threads(1)
    seen: list[tuple[int, int, dict[str, float]]] = []
    recipe = base.changed(["training.save_every=10", "training.evaluate_every=20", "training.keep_states=2"])
    run = train(recipe, tmp_path_factory.mktemp("baseline") / "run", on_log=lambda *logged: seen.append(logged))
    return run, seen


def values(run: Any, name: str) -> dict[int, float]:
    return {int(row["step"]): row[name] for row in run.log if name in row}


# What the loop computes


def test_a_run_learns_and_leaves_its_files(baseline: Any) -> None:
    run, seen = baseline
    loss, held_out = values(run, "loss"), values(run, "eval_loss")
    assert list(loss) == [10, 20, 30, 40]
    assert loss[10] > 2.5
    assert KNOWN < loss[40] < 1.1
    assert list(held_out) == [20, 40]
    assert KNOWN < held_out[40] < 1.1
    assert [(step, steps) for step, steps, logged in seen if "loss" in logged] == [(n, 40) for n in (10, 20, 30, 40)]
    names = {
        "recipe.toml",
        "data.json",
        "watch.jsonl",
        "log.json",
        "model",
        *(f"checkpoint-{n}" for n in (10, 20, 30, 40)),
    }
    assert {path.name for path in run.folder.iterdir()} == names
    assert read_recipe(run.folder / "recipe.toml") == run.recipe
    assert tuple(json.loads((run.folder / "log.json").read_text())["log_history"]) == run.log
    assert read_log(run.folder / "log.json")["loss"].steps.tolist() == [10, 20, 30, 40]
    assert [path.name for path in checkpoints(run.folder)] == [f"checkpoint-{n}" for n in (10, 20, 30, 40)]
    # Of the older checkpoints the model alone is kept.
    heavy = {path.parent.name for path in run.folder.glob("checkpoint-*/*.pt*")}
    assert heavy == {"checkpoint-30", "checkpoint-40"}
    assert len(list(run.folder.glob("checkpoint-*/model.safetensors"))) == 4


def test_the_trained_model_loads_and_is_the_last_checkpoint(baseline: Any) -> None:
    run, _ = baseline
    assert not run.model.training
    loaded = load_model(str(run.model_folder))
    ids = torch.tensor([[1, 5, 7, 3, 11, 2]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, run.model(ids).logits)
    assert loaded.tokenizer("w0 w2").input_ids == [1, 5, 7, 2]
    final, last = (
        load_file(folder / "model.safetensors") for folder in (run.model_folder, run.folder / "checkpoint-40")
    )
    assert all(np.array_equal(final[name], last[name]) for name in last)


def test_the_watch_follows_the_run(baseline: Any) -> None:
    run, _ = baseline
    path = read_watch(run.folder / "watch.jsonl")
    assert path.steps.tolist() == [0, 20, 40]
    assert path.curves["loss"].values.tolist() == list(values(run, "loss").values())
    assert path.curves["eval_loss"].steps.tolist() == [20, 40]
    norms = [layer.output.LayerNorm for layer in run.model.bert.encoder.layer]
    np.testing.assert_array_equal(path.scale[-1], torch.stack([norm.weight.detach() for norm in norms]))
    np.testing.assert_array_equal(path.bias[-1], torch.stack([norm.bias.detach() for norm in norms]))
    assert path.states.shape == (3, 16)


def nats(model: Any, batch: dict[str, torch.Tensor]) -> float:
    """Mean nats per masked token, with the whole head computed."""
    with torch.no_grad():
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return float(functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_losses_are_those_of_the_rows_in_their_order(accumulation: int, base: Recipe, tmp_path: Path) -> None:
    recipe = base.changed(
        [
            "training.steps=1",
            "training.log_every=1",
            f"training.accumulation={accumulation}",
            f"training.batch={16 // accumulation}",
            "training.penalty=norm-spread",  # is 0 before the first step
            "training.penalty_strength=1000",
        ]
    )
    run = train(recipe, tmp_path / "run")
    tokens = prepare(recipe, progress=lambda _: None)
    rows = TrainingRows(tokens, recipe, 16)
    parts = np.array_split(np.arange(16), accumulation)
    fresh = build(recipe, tokens.tokenizer)
    expected = np.mean([nats(fresh, rows.collate(part.tolist())) for part in parts])
    assert values(run, "loss")[1] == pytest.approx(expected, rel=1e-5)
    # Held-out rows: the mean over batches, each by its rows; the penalty is no part of it.
    held_out = PackedRows(tokens.validation, tokens, recipe)
    places = [list(range(i, min(i + recipe.training.batch, 40))) for i in range(0, 40, recipe.training.batch)]
    assert len(held_out) == 40
    by_batch = [nats(run.model, held_out.collate(some)) * len(some) for some in places]
    assert values(run, "eval_loss")[1] == pytest.approx(sum(by_batch) / 40, rel=1e-5)


def test_accumulated_batches_are_one_larger_batch(base: Recipe, baseline: Any, tmp_path: Path) -> None:
    run = train(base.changed(["training.batch=4", "training.accumulation=4"]), tmp_path / "run")
    # Means of four means, of a few more or fewer masked tokens each, are not quite the mean of all.
    for step, loss in values(baseline[0], "loss").items():
        assert values(run, "loss")[step] == pytest.approx(loss, rel=0.03)
    assert values(run, "eval_loss")[40] == pytest.approx(values(baseline[0], "eval_loss")[40], rel=0.05)


def test_a_batch_in_which_nothing_can_be_masked_teaches_nothing(base: Recipe, tmp_path: Path) -> None:
    known = Path(base.data.source[0]).read_text().splitlines()
    text = tmp_path / "text.txt"
    text.write_text("\n".join("[SEP] [CLS]" if place % 2 else line for place, line in enumerate(known)))
    settings = ["training.batch=1", "training.steps=20", "training.log_every=1", f"data.source=['{text}']"]
    losses = values(train(base.changed(settings), tmp_path / "run"), "loss")
    assert 0 < sum(loss == 0 for loss in losses.values()) < 20
    assert all(math.isfinite(loss) for loss in losses.values())


def test_without_positions_only_frequencies_are_learned(base: Recipe, tmp_path: Path) -> None:
    run = train(base.changed(["model.positions=none"]), tmp_path / "run")
    assert values(run, "eval_loss")[40] > UNKNOWN - 0.2
    assert not load_file(run.model_folder / "model.safetensors")["bert.embeddings.position_embeddings.weight"].any()


def test_fixed_positions_and_a_head_without_bias_stay_in_training(base: Recipe, tmp_path: Path) -> None:
    recipe = base.changed(["model.positions=sinusoidal", "model.norm=rmsnorm", "model.output_bias=false"])
    run = train(recipe, tmp_path / "run")
    assert values(run, "eval_loss")[40] < UNKNOWN - 0.5
    fresh = build(recipe, load_tokenizer(base.tokenizer.source)).bert.embeddings.position_embeddings.weight
    loaded: Any = load_model(str(run.model_folder)).model
    torch.testing.assert_close(loaded.bert.embeddings.position_embeddings.weight, fresh)
    assert not loaded.get_output_embeddings().bias.any()
    assert not torch.equal(
        loaded.bert.embeddings.word_embeddings.weight,
        build(recipe, load_tokenizer(base.tokenizer.source)).bert.embeddings.word_embeddings.weight,
    )


def test_bfloat16_computes_otherwise_and_keeps_the_weights(base: Recipe, baseline: Any, tmp_path: Path) -> None:
    run = train(base.changed(["training.precision=bfloat16"]), tmp_path / "run")
    ours, exact = values(run, "loss"), values(baseline[0], "loss")
    assert ours[10] != exact[10]
    for step in exact:
        assert ours[step] == pytest.approx(exact[step], rel=0.02)
    stored = load_file(run.model_folder / "model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {"float32"}
    # What is measured afterwards is what was saved, without the rounding of the training.
    ids = torch.from_numpy(np.asarray(run.tokens.validation[:4]).astype(np.int64))
    with torch.no_grad():
        torch.testing.assert_close(run.model(ids).logits, load_model(str(run.model_folder)).model(ids).logits)


def spread(run: Any) -> float:
    """Variance over dims of the final scale, averaged over layers."""
    return float(read_watch(run.folder / "watch.jsonl").scale[-1].var(axis=1).mean())


def shares(run: Any) -> float:
    """Kurtosis over dims of the hidden states, averaged over layers, on some held-out rows."""
    ids = torch.from_numpy(np.asarray(run.tokens.validation[:16]).astype(np.int64))
    with torch.no_grad():
        states = torch.stack(run.model(ids, output_hidden_states=True).hidden_states[1:])  # [layer, batch, token, dim]
    size = states.square().mean((1, 2))
    return float((size.square().mean(1) / size.mean(1).square()).mean())


@pytest.mark.parametrize(("penalty", "measure"), [("norm-spread", spread), ("kurtosis", shares)])
def test_penalties_act(
    penalty: str, measure: Callable[[Any], float], base: Recipe, baseline: Any, tmp_path: Path
) -> None:
    run = train(base.changed([f"training.penalty={penalty}", "training.penalty_strength=30"]), tmp_path / "run")
    floor = 1.0 if penalty == "kurtosis" else 0.0
    assert measure(run) - floor < 0.25 * (measure(baseline[0]) - floor)
    assert values(run, "eval_loss")[40] < 2.0  # and it learns


def test_a_penalty_does_not_see_padding(base: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with two more columns of padding, whose positions nobody reads, has the same loss."""
    compute, losses = loop.RecipeTrainer.compute_loss, list[tuple[float, float]]()

    def twice(self: Any, model: Any, inputs: dict[str, torch.Tensor], *more: Any, **named: Any) -> Any:
        fills = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        padded = {key: torch.nn.functional.pad(one[:, :-2], (0, 2), value=fills[key]) for key, one in inputs.items()}
        short = {key: one[:, :-2] for key, one in inputs.items()}
        if not model.training:
            return compute(self, model, inputs, *more, **named)
        losses.append((compute(self, model, short).item(), compute(self, model, padded).item()))
        return compute(self, model, inputs, *more, **named)

    monkeypatch.setattr(loop.RecipeTrainer, "compute_loss", twice)
    changes = ["training.penalty=kurtosis", "training.penalty_strength=30", "training.steps=2"]
    train(base.changed([*changes, "model.dropout=0.0"]), tmp_path / "run")
    assert len(losses) == 2
    for short, padded in losses:
        assert short == pytest.approx(padded, rel=1e-5)


def test_a_clamped_scale_never_leaves_its_bounds(base: Recipe, baseline: Any, tmp_path: Path) -> None:
    run = train(base.changed(["training.clamp_scale=0.02", "training.watch_every=1"]), tmp_path / "run")
    scale = read_watch(run.folder / "watch.jsonl").scale
    assert scale.shape == (41, 2, 16)
    assert np.abs(scale - 1).max() <= 0.02 + 1e-6
    assert np.abs(scale[-1] - 1).max() > 0.019  # the bound is felt
    assert np.abs(read_watch(baseline[0].folder / "watch.jsonl").scale[-1] - 1).max() > 0.04


def test_the_penalty_finds_the_norms_inside_a_wrapper_for_several_processes(
    base: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = base.changed(["training.penalty=norm-spread", "training.penalty_strength=30", "training.steps=4"])
    bare = train(recipe, tmp_path / "bare")
    compute = loop.RecipeTrainer.compute_loss

    def in_wrapper(self: Any, model: Any, *inputs: Any, **options: Any) -> Any:
        wrapper = torch.nn.DataParallel(model).train(model.training)  # like DDP's, its names begin with "module."
        assert next(wrapper.named_parameters())[0].startswith("module.")
        return compute(self, wrapper, *inputs, **options)

    monkeypatch.setattr(loop.RecipeTrainer, "compute_loss", in_wrapper)
    wrapped = train(recipe, tmp_path / "wrapped")
    assert values(wrapped, "eval_loss") == values(bare, "eval_loss")


class OnFour(TrainingArguments):
    """As on a machine of four GPUs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._n_gpu = 4


def test_one_process_trains_on_one_of_several_gpus(
    base: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "TrainingArguments", OnFour)
    said: list[str] = []
    run = train(base.changed(["training.steps=1"]), tmp_path / "run", progress=said.append)
    assert any("1 of 4 GPUs is used; `accelerate launch" in line for line in said)
    assert run.n_rows == 16
    assert not math.isnan(values(run, "eval_loss")[1])


# The folder


def test_another_recipe_in_the_folder_is_refused_and_overwritten_when_asked(
    base: Recipe, baseline: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(baseline[0].folder, folder)
    other = baseline[0].recipe.changed(["training.steps=10", "training.seed=3"])
    before = sorted(path.name for path in folder.rglob("*"))
    message = (
        r"run holds a run of another recipe \(training\.steps was 40, is 10; training\.seed was 0, is 3\); "
        r"name another folder with -o, or use --overwrite to remove that run"
    )
    with pytest.raises(BadInput, match=message):
        train(other, folder)
    with pytest.raises(BadInput, match=r"another recipe \(another name\)"):
        train(baseline[0].recipe.changed(["name=mine"]), folder)
    assert sorted(path.name for path in folder.rglob("*")) == before
    for name in ("outcome.json", "watch.replayed-1.jsonl", "watchlist.txt"):
        (folder / name).write_text("of the user's or of the run before")
    run = train(other, folder, overwrite=True)
    assert not (folder / "outcome.json").exists()  # it would be taken for that of the new run
    assert sorted(path.name for path in folder.glob("watch*")) == ["watch.jsonl", "watchlist.txt"]
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-10"]
    assert read_watch(folder / "watch.jsonl").curves["loss"].steps.tolist() == [10]
    assert read_recipe(folder / "recipe.toml") == other
    assert values(run, "loss")[10] != values(baseline[0], "loss")[10]


def test_a_text_that_changed_under_its_name_is_noticed(base: Recipe, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    lines = Path(base.data.source[0]).read_text().splitlines()
    text.write_text("\n".join(lines))
    recipe = base.changed([f"data.source={json.dumps([str(text)])}", "training.steps=2"])
    train(recipe, tmp_path / "run")
    text.write_text("\n".join(lines[1:]))
    with pytest.raises(BadInput, match="trained on text that has changed since; bring it back"):
        train(recipe, tmp_path / "run")
    text.write_text("\n".join(lines))
    train(recipe, tmp_path / "run")


def test_folders_that_hold_something_else(base: Recipe, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="full is not empty and holds no run; name another folder with -o"):
        train(base, tmp_path / "full", overwrite=True)
    with pytest.raises(BadInput, match=r"thesis\.tex is a file; name a folder with -o"):
        train(base, tmp_path / "full" / "thesis.tex")
    (tmp_path / "full" / "recipe.toml").write_text("name = ")
    with pytest.raises(BadInput, match=r"recipe\.toml: cannot be read as TOML"):
        train(base, tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "years of work"


def test_a_folder_in_which_a_run_was_killed_at_once_can_be_used(base: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".recipe.toml.4711.part").write_text('name = "ti')  # killed while the recipe was being written
    run = train(base.changed(["training.steps=1"]), folder)
    assert (run.folder / "model" / "model.safetensors").is_file()


def checkpoint(folder: Path, step: int | str, *files: str, state: str = "{}") -> None:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in files:
        (path / name).write_text(state if name == "trainer_state.json" else "")


def test_the_newest_checkpoint_is_whole_and_can_be_resumed(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    everything = ("model.safetensors", "optimizer.pt", "trainer_state.json")
    checkpoint(tmp_path, 20, "model.safetensors", "trainer_state.json")  # pruned
    assert newest_checkpoint(tmp_path) is None
    checkpoint(tmp_path, 100, *everything)
    checkpoint(tmp_path, 30, *everything)
    checkpoint(tmp_path, 110)  # killed before the model, after the optimizer, within the state
    checkpoint(tmp_path, 120, "model.safetensors", "optimizer.pt")
    checkpoint(tmp_path, 130, *everything, state='{"global_step": 1')
    checkpoint(tmp_path, "last", *everything)
    (tmp_path / "checkpoint-140").write_text("a file")
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-20", "checkpoint-30", "checkpoint-100"]
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def test_torn_checkpoints_are_passed_over_and_written_again(baseline: Any, tmp_path: Path) -> None:
    done = baseline[0]
    folder = tmp_path / "run"
    shutil.copytree(done.folder, folder)
    shutil.rmtree(folder / "model")
    (folder / "log.json").unlink()
    state = folder / "checkpoint-40" / "trainer_state.json"
    state.write_bytes(state.read_bytes()[:200])
    (folder / "checkpoint-40" / "optimizer.pt").write_bytes(b"torn")
    said: list[str] = []
    run = train(done.recipe, folder, progress=said.append)
    assert "continuing from checkpoint-30: 40 steps" in said
    assert values(run, "loss") == pytest.approx(values(done, "loss"))
    final, expected = (load_file(one.model_folder / "model.safetensors") for one in (run, done))
    assert all(np.array_equal(final[name], expected[name]) for name in expected)
    assert newest_checkpoint(folder) == folder / "checkpoint-40"


def test_a_run_goes_on_with_as_many_processes_as_it_had(baseline: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(baseline[0].folder, folder)
    for step in (30, 40):
        here = folder / f"checkpoint-{step}"
        shutil.copyfile(here / "rng_state.pth", here / "rng_state_1.pth")
        (here / "rng_state.pth").rename(here / "rng_state_0.pth")
    train(baseline[0].recipe, folder)  # it is finished: no step reads anything
    shutil.rmtree(folder / "checkpoint-40")
    message = r"checkpoint-30: was trained by 2 processes at a time, and now there would be 1, .*; go on with 2"
    with pytest.raises(BadInput, match=message):
        train(baseline[0].recipe, folder)


def test_a_run_that_was_evaluated_at_no_step_is_evaluated_at_its_end(base: Recipe, tmp_path: Path) -> None:
    recipe = base.changed(["training.steps=12", "training.evaluate_every=10", "training.evaluate_rows=16"])
    run = train(recipe, tmp_path / "run")
    assert list(values(run, "eval_loss")) == [10, 12]
    again = train(recipe, tmp_path / "run")
    assert values(again, "eval_loss") == pytest.approx(values(run, "eval_loss"))
    assert values(again, "loss") == values(run, "loss")


def test_resuming_speaks_of_missing_weights_only_where_some_are(
    base: Recipe, baseline: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    for folder in (whole, torn):
        shutil.copytree(baseline[0].folder, folder)
        shutil.rmtree(folder / "checkpoint-40")
    weights = torn / "checkpoint-30" / "model.safetensors"
    stored = load_file(weights)
    assert "cls.predictions.decoder.weight" not in stored  # it is the table of word embeddings
    lost = "cls.predictions.transform.dense.weight"
    save_file({name: values for name, values in stored.items() if name != lost}, weights, {"format": "pt"})
    logger = logging.getLogger("transformers.trainer")
    caplog.set_level(logging.WARNING, logger=logger.name)  # loading a model elsewhere may have raised it
    logger.addHandler(caplog.handler)
    try:
        train(baseline[0].recipe, whole)
        assert not [record for record in caplog.records if "missing keys" in record.message]
        train(baseline[0].recipe, torn)
    finally:
        logger.removeHandler(caplog.handler)
    # Seen twice where transformers passes its records on to the root.
    (warning,) = {record.message for record in caplog.records if "missing keys" in record.message}
    assert warning == f"There were missing keys in the checkpoint model loaded: ['{lost}']."
    assert logger.level == logging.WARNING
