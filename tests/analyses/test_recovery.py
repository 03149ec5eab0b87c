"""Losing dimensions and fine-tuning again: what each arm is, that zeros stay where they are held, and that runs go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import finetune_runs
from outlierlens.analyses import recover as analysis
from outlierlens.analyses.finetune import FinetuneOptions, FinetuneSettings
from outlierlens.analyses.recover import RecoverOptions, Recovery, recover, regrown
from outlierlens.detection.rules import LastOperation
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.options import Find
from outlierlens.results.document import load
from outlierlens.results.rows import Estimate
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import interval

DIMS = (3, 7)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """(model fine-tuned to say a text's first word, (train, dev))"""
    folder = tmp_path_factory.mktemp("tuned")
    data = finetune_runs.write_data(folder / "data", 48)
    made = finetune_runs.train(finetune_runs.tiny(folder / "base"), data, folder / "run", epochs=4)
    return made.seeds[0].folder, finetune_runs.examples(data)


def options(dims: tuple[int, ...] | Find = DIMS, **more: Any) -> RecoverOptions:
    settings = FinetuneSettings(epochs=1, batch=8, learning_rate=1e-3, max_length=16)
    return RecoverOptions(dims=dims, settings=settings, **more)


def how(said: list[str] | None = None) -> FinetuneOptions:
    load = LoadOptions(device="cpu", notice=lambda _: None)
    return FinetuneOptions(load=load, progress=(said if said is not None else []).append)


@pytest.fixture(scope="module")
def found(tuned: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recovery, Path]:
    """All arms, and their folder."""
    folder = tmp_path_factory.mktemp("recovery")
    model, (train, dev) = tuned
    return recover(model, train, dev, folder, options(), how()), folder


def norms(folder: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scale and bias of every block's last norm."""
    blocks = load_model(folder, LoadOptions(dtype="float32", device="cpu")).model.base_model.encoder.layer
    last = [block.output.LayerNorm for block in blocks]
    return [(norm.weight.detach().numpy(), norm.bias.detach().numpy()) for norm in last]


def test_the_arms(tuned: Any, found: Any) -> None:
    result, _ = found
    kinds = [(arm.what, arm.state) for arm in result.arms]
    assert kinds == [
        ("none", "intact"), ("chosen", "off"), ("random", "off"), ("none", "again"), ("chosen", "again"), ("chosen", "held"),
        ("random", "again"), ("random", "held"),
    ]  # fmt: skip
    assert [arm.seed for arm in result.arms] == [None, None, None, 42, 42, 42, 42, 42]
    assert all(arm.dims == DIMS for arm in result.arms if arm.what == "chosen")
    control = result.arm("random", "off").dims
    assert len(control) == 2
    assert not set(control) & set(DIMS)
    assert all(arm.dims == control for arm in result.arms if arm.what == "random")
    assert result.reach == pytest.approx(1e-3 * 6 / 2)  # 48 examples, 8 a step
    assert (result.n_train, result.about.n_texts, result.about.metric) == (48, 40, "accuracy")
    assert "off" not in result.settings


def test_each_arm_s_score_is_that_of_its_model(tuned: Any, found: Any) -> None:
    model, (_, dev) = tuned
    result, _ = found
    scores = {}
    for name, path in (("intact", model), ("held", result.arm("chosen", "held").folder)):
        loaded = load_model(path, LoadOptions(dtype="float32", device="cpu"))
        scores[name] = LabelledScore(loaded, dev, TaskOptions(max_length=16)).outputs()
    intact, held = result.arm("none", "intact"), result.arm("chosen", "held")
    assert (intact.value.value, intact.lost) == (scores["intact"].scores["accuracy"], Estimate(0.0, 0.0, 0.0))
    assert held.value.value == scores["held"].scores["accuracy"]
    assert held.lost.value == pytest.approx(intact.value.value - held.value.value)
    ends = interval("accuracy", scores["held"].truth, (scores["held"].predicted,), seed=0)
    assert (held.value.low, held.value.high) == ends
    assert held.lost.low <= held.lost.value <= held.lost.high
    loaded = load_model(model, LoadOptions(dtype="float32", device="cpu"))
    with torch.no_grad():
        for block in loaded.model.base_model.encoder.layer:
            for values in (block.output.LayerNorm.weight, block.output.LayerNorm.bias):
                values[list(DIMS)] = 0
    off = LabelledScore(loaded, dev, TaskOptions(max_length=16)).outputs()
    assert result.arm("chosen", "off").value.value == off.scores["accuracy"]
    assert result.arm("chosen", "off").loss == pytest.approx(off.losses.mean(), rel=1e-5)


def test_what_is_held_stays_zero_and_what_is_free_grows(tuned: Any, found: Any) -> None:
    model, _ = tuned
    result, _ = found
    before = norms(model)
    for what in ("chosen", "random"):
        held, free, off = (result.arm(what, state) for state in ("held", "again", "off"))
        dims = list(held.dims)
        for scale, bias in norms(held.folder):
            assert not scale[dims].any()
            assert not bias[dims].any()
        assert held.each_regrown == off.each_regrown == (0, 0)
        now = norms(free.folder)
        for dim, share in zip(dims, free.each_regrown, strict=True):
            values, olds = (
                np.array([part[dim] for layer in side for part in layer], dtype=float) for side in (now, before)
            )
            assert share == pytest.approx(1 - np.linalg.norm(values - olds) / np.linalg.norm(olds), rel=1e-4)
            # Steps of AdamW are about the learning rate long: it cannot have come far.
            assert 0 < np.abs(values).max() < 3 * result.reach
        assert free.regrown == pytest.approx(np.mean(free.each_regrown))
    assert result.arm("none", "intact").each_regrown == (1, 1)


def test_finished_arms_are_read_and_not_trained_again(tuned: Any, found: Any) -> None:
    model, (train, dev) = tuned
    result, folder = found
    said: list[str] = []
    again = recover(model, train, dev, folder, options(), how(said))
    assert again.arms == result.arms
    assert not any("training," in line for line in said)
    assert sum("finished earlier" in line for line in said) == 5
    assert load(folder / "recovery.json").arms == result.arms
    with pytest.raises(BadInput, match=r"off was \[3, 7\], is \[3, 8\]\); use another directory"):
        recover(model, train, dev, folder, options((3, 8)), how())


def test_regrowth_by_hand() -> None:
    intact = LastOperation(np.array([[3.0, 1], [0, 1]]), np.array([[4.0, 1], [0, 1]]))
    now = LastOperation(np.array([[3.0, 1], [0, 1]]), np.array([[0.0, 1], [0, 1]]))
    assert regrown(intact, now, 0) == pytest.approx(1 - 4 / 5)
    assert regrown(LastOperation(intact.scale), LastOperation(now.scale), 1) == 1
    assert regrown(LastOperation(np.array([[0.0, 1]])), LastOperation(np.array([[0.5, 1]])), 0) == 0


def test_recovered_is_said_only_of_a_loss_beyond_chance(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (_, dev) = tuned
    loaded = load_model(model, LoadOptions(dtype="float32", device="cpu"))
    scorer = analysis._Scorer(loaded, dev, options())

    def added(what: Any, state: Any, dims: tuple[int, ...], right: float, ends: tuple[float, float]) -> float | None:
        outputs = replace(scorer.intact, scores={"accuracy": scorer.intact.scores["accuracy"] - right})
        monkeypatch.setattr(analysis, "LabelledScore", lambda *_: type("S", (), {"outputs": lambda _: outputs})())
        monkeypatch.setattr(analysis, "interval", lambda *_, **__: ends)
        scorer.add(loaded, what=what, state=state, dims=dims, shown=(3,))
        return scorer.arms[-1].recovered

    assert added("chosen", "off", (3,), 0.4, (0.2, 0.5)) is None
    assert added("chosen", "again", (3,), 0.1, (0.0, 0.2)) == pytest.approx(0.75)
    assert added("random", "again", (1,), 0.1, (0.0, 0.2)) is None  # never off alone
    assert added("random", "off", (2,), 0.4, (-0.01, 0.5)) is None
    assert added("random", "held", (2,), 0.1, (0.0, 0.2)) is None  # what was lost may be chance


def test_several_seeds_and_what_the_rule_finds(tuned: Any, tmp_path: Path) -> None:
    model, (train, dev) = tuned
    copied = load_model(model, LoadOptions(dtype="float32", device="cpu"))
    with torch.no_grad():
        for block in copied.model.base_model.encoder.layer:
            block.output.LayerNorm.weight[5] = block.output.LayerNorm.bias[5] = 9.0
    copied.model.save_pretrained(tmp_path / "model")
    copied.tokenizer.save_pretrained(tmp_path / "model")  # type: ignore[union-attr]
    result = recover(
        str(tmp_path / "model"), train, dev, tmp_path / "run", options("find", seeds=(1, 2), n_random=0), how()
    )
    assert result.dims == (5,)
    kinds = [(arm.what, arm.state, arm.seed) for arm in result.arms]
    assert kinds[2:] == [("none", "again", 1), ("none", "again", 2), ("chosen", "again", 1), ("chosen", "again", 2),
                         ("chosen", "held", 1), ("chosen", "held", 2)]  # fmt: skip
    assert result.arms[-1].folder.endswith("chosen-held/seed-2/model")
    with pytest.raises(BadInput, match="no arm 'random', 'off'; there are none / intact, chosen / off"):
        result.arm("random", "off")


def test_what_cannot_be_done(tuned: Any, tmp_path: Path) -> None:
    model, (train, dev) = tuned
    with pytest.raises(BadInput, match=r"the rule finds no dimension in its weights; name some with --dims"):
        recover(model, train, dev, tmp_path / "a", options("find"), how())
    with pytest.raises(BadInput, match="recover sets the dimensions of each fine-tuning itself"):
        RecoverOptions(settings=FinetuneSettings(off=(1,)))
    other = load_model(model, LoadOptions(dtype="float32", device="cpu"))
    other.model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}  # type: ignore[union-attr]
    other.model.save_pretrained(tmp_path / "named")  # type: ignore[operator]
    other.tokenizer.save_pretrained(tmp_path / "named")  # type: ignore[union-attr]
    with pytest.raises(
        BadInput, match="names its outputs LABEL_0, LABEL_1, the task no, yes: fine-tuning again would begin"
    ):
        recover(str(tmp_path / "named"), train, dev, tmp_path / "a", options(), how())
    assert not (tmp_path / "a").exists()
