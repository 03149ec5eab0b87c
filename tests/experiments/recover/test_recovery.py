"""Losing dimensions and fine-tuning again: what each arm is, that zeros stay where they are held, and that runs go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import downstream_results
import finetune_runs
from outlierlens import charts
from outlierlens.detection.rules import Measured
from outlierlens.errors import BadInput
from outlierlens.experiments.recover.measure import _recovered, _regrowth, recover
from outlierlens.experiments.recover.options import RecoverOptions
from outlierlens.experiments.recover.result import Recovery
from outlierlens.models.load import LoadOptions, load_model
from outlierlens.options import Find
from outlierlens.results.document import from_json, load, to_json
from outlierlens.tasks.base import TaskOptions
from outlierlens.tasks.classify import LabelledScore
from outlierlens.tasks.metrics import interval
from outlierlens.training.finetune.loop import FinetuneOptions
from outlierlens.training.finetune.options import FinetuneSettings

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
    assert (result.n_train, result.n_dev, result.metric) == (48, 40, "accuracy")
    assert "off" not in result.settings


def test_each_arm_s_score_is_that_of_its_model(tuned: Any, found: Any) -> None:
    model, (_, dev) = tuned
    result, _ = found
    scores = {}
    for name, path in (("intact", model), ("held", result.arm("chosen", "held").folder)):
        loaded = load_model(path, LoadOptions(dtype="float32", device="cpu"))
        scores[name] = LabelledScore(loaded, dev, TaskOptions(max_length=16)).outputs()
    intact, held = result.arm("none", "intact"), result.arm("chosen", "held")
    assert (intact.value, intact.lost, intact.lost_low, intact.lost_high) == (
        scores["intact"].scores["accuracy"],
        0,
        0,
        0,
    )
    assert held.value == scores["held"].scores["accuracy"]
    assert held.lost == pytest.approx(intact.value - held.value)
    assert (held.low, held.high) == interval("accuracy", scores["held"].truth, scores["held"].predicted, seed=0)
    assert held.lost_low <= held.lost <= held.lost_high
    loaded = load_model(model, LoadOptions(dtype="float32", device="cpu"))
    with torch.no_grad():
        for block in loaded.model.base_model.encoder.layer:
            for values in (block.output.LayerNorm.weight, block.output.LayerNorm.bias):
                values[list(DIMS)] = 0
    off = LabelledScore(loaded, dev, TaskOptions(max_length=16)).outputs()
    assert result.arm("chosen", "off").value == off.scores["accuracy"]
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
        assert all(one.regrown == one.scale == one.bias == 0 for one in (*held.regrowth, *off.regrowth))
        assert [one.dim for one in free.regrowth] == dims
        now = norms(free.folder)
        for one in free.regrowth:
            assert one.scale == pytest.approx(np.mean([abs(scale[one.dim]) for scale, _ in now]), rel=1e-5)
            assert one.scale > 0
            assert one.scale_share == pytest.approx(
                np.mean([abs(s[one.dim]) for s, _ in now]) / np.mean([abs(s[one.dim]) for s, _ in before]), rel=1e-5
            )
            values, olds = (
                np.array([part[one.dim] for layer in side for part in layer], dtype=float) for side in (now, before)
            )
            assert one.regrown == pytest.approx(1 - np.linalg.norm(values - olds) / np.linalg.norm(olds), rel=1e-4)
            # Steps of AdamW are about the learning rate long: it cannot have come far.
            assert np.abs(values).max() < 3 * result.reach
    intact = result.arm("none", "intact")
    assert [one.dim for one in intact.regrowth] == list(DIMS)
    assert all(one.regrown == 1 and one.scale_share == one.bias_share == 1 for one in intact.regrowth)


def test_finished_arms_are_read_and_not_trained_again(tuned: Any, found: Any) -> None:
    model, (train, dev) = tuned
    result, folder = found
    said: list[str] = []
    again = recover(model, train, dev, folder, options(), how(said))
    assert again.arms == result.arms
    assert not any("training," in line for line in said)
    assert sum("finished earlier" in line for line in said) == 5
    assert load(folder / "recovery.json").arms == result.arms
    with pytest.raises(BadInput, match=r"off was \[3, 7\], is \[3, 8\].*name another folder with -o"):
        recover(model, train, dev, folder, options((3, 8)), how())


def test_regrowth_by_hand() -> None:
    intact = Measured(np.array([[3.0, 1], [0, 1]]), np.array([[4.0, 1], [0, 1]]))
    now = Measured(np.array([[3.0, 1], [0, 1]]), np.array([[0.0, 1], [0, 1]]))
    one = _regrowth(0, intact, now)
    assert (one.scale, one.bias, one.scale_share, one.bias_share) == (1.5, 0, 1, 0)
    assert one.regrown == pytest.approx(1 - 4 / 5)
    assert one.z_scale == pytest.approx((1 - 1) / 2)  # above in one layer, below in the other
    alone = _regrowth(1, Measured(intact.scale), Measured(now.scale))
    assert (alone.bias, alone.bias_share, alone.z_bias, alone.regrown) == (None, None, None, 1)
    nothing = _regrowth(0, Measured(np.array([[0.0, 1]])), Measured(np.array([[0.5, 1]])))
    assert (nothing.scale_share, nothing.regrown) == (None, 0)


def test_recovered_is_said_only_of_a_loss_beyond_chance(found: Any) -> None:
    result, _ = found
    off, again = result.arm("chosen", "off"), result.arm("chosen", "again")
    off = replace(off, lost=0.4, lost_low=0.2, lost_high=0.5)
    again = replace(again, lost=0.1, recovered=None)
    assert _recovered(again, [off, again]).recovered == pytest.approx(0.75)
    assert _recovered(again, [replace(off, lost_low=-0.01), again]).recovered is None
    assert _recovered(off, [off, again]).recovered is None
    assert _recovered(replace(again, dims=(1, 2)), [off, again]).recovered is None


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
    assert result.arm("chosen", "held", 2).folder.endswith("chosen-held/seed-2/model")
    with pytest.raises(BadInput, match="no arm 'random', 'off'"):
        result.arm("random", "off")


def test_what_cannot_be_done(tuned: Any, tmp_path: Path) -> None:
    model, (train, dev) = tuned
    with pytest.raises(BadInput, match=r"the rule finds no dimension in its weights; name some with --dims"):
        recover(model, train, dev, tmp_path / "a", options("find"), how())
    with pytest.raises(BadInput, match="dimension 32 does not exist"):
        recover(model, train, dev, tmp_path / "a", options((32,)), how())
    with pytest.raises(BadInput, match="recover chooses itself what each fine-tuning switches off"):
        RecoverOptions(settings=FinetuneSettings(off=(1,)))
    with pytest.raises(BadInput, match="n_random is -1"):
        RecoverOptions(n_random=-1)
    other = load_model(model, LoadOptions(dtype="float32", device="cpu"))
    other.model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}  # type: ignore[union-attr]
    other.model.save_pretrained(tmp_path / "named")  # type: ignore[operator]
    other.tokenizer.save_pretrained(tmp_path / "named")  # type: ignore[union-attr]
    with pytest.raises(
        BadInput, match="names its outputs LABEL_0, LABEL_1, the task no, yes: fine-tuning again would begin"
    ):
        recover(str(tmp_path / "named"), train, dev, tmp_path / "a", options(), how())
    assert not (tmp_path / "a").exists()


def test_result_and_chart(found: Any) -> None:
    result, _ = found
    assert to_json(from_json(to_json(result))) == to_json(result)
    rows = list(result.records())
    assert rows[0]["state"] == "intact"
    assert rows[5]["regrown"] == 0
    assert len(rows) == 8
    drawn = charts.recovery(result)
    points = drawn.spec["layer"][2]["data"]["values"]
    assert [point["value"] for point in points] == pytest.approx([arm.value for arm in result.arms], abs=1e-4)
    assert points[3]["arm"] == "fine-tuned further"
    assert points[5]["arm"] == "3, 7: fine-tuned again, held at zero"
    assert "With 3, 7 off it loses" in drawn.reading
    assert drawn.total == 8


def test_the_command(tuned: Any, tmp_path: Path, run: Any) -> None:
    model, (train, _) = tuned
    words = ["--task", "classify", "--data", str(Path(train.source).parent), "--dims", "3,7", "--random", "0"]
    words += ["--epochs", "1", "--batch-size", "8", "--max-length", "16", "--device", "cpu"]
    folder = tmp_path / "run"
    code, out, err = run("recover", model, *words, "-o", str(folder), "--chart", str(tmp_path / "c.svg"))
    assert code == 0, err
    assert "lost with dimensions 3, 7 of model off" in out
    assert "off, not retrained" in out
    assert "fine-tuned again, held at zero" in out
    assert f"result: {folder / 'recovery.json'}" in out
    assert load(folder / "recovery.json").provenance.command.startswith("outlierlens recover ")
    assert (tmp_path / "c.svg").read_bytes().startswith(b"<svg")
    words[words.index("--epochs") + 1] = "2"
    code, _, err = run("recover", model, *words, "-o", str(folder))
    assert (code, "holds" in err) == (1, True), err


def test_seeds_of_one_kind_share_a_line() -> None:
    drawn = charts.recovery(downstream_results.recovery())
    points = drawn.spec["layer"][2]["data"]["values"]
    assert [point["turn"] for point in points] == [0.5, 0.5, 0.25, 0.75, 0.5]
    assert [row[9] for row in drawn.rows] == [None, None, 0.8333, 0.9, None]
    assert "loses +0.300 (95 % interval +0.250 to +0.350)" in drawn.reading
    assert b"<svg" in charts.picture(drawn, "svg")
