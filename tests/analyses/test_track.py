"""`outlierlens.track`: planted emergence found at its step, little read, refusals, steps and logs from names and files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import runs
from outlierlens.analyses.scan import scan
from outlierlens.analyses.track import CURVES, Track, TrackOptions, summarize, track
from outlierlens.detection.rules import Rule
from outlierlens.detection.weights import ScanOptions
from outlierlens.errors import BadFile, BadInput, TooMuchToRead, UnknownModel
from outlierlens.training.run_files import Curve, SavedCheckpoint, Trajectory, find_log, find_saved, read_log, step_in

STEPS = tuple(range(0, 10_001, 500))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_run(tmp_path_factory.mktemp("runs") / "bert", STEPS, needles={7: 2500, 20: 4000}, width=128)


@pytest.fixture(scope="module")
def found(run: Path) -> Track:
    return track([run])


def trajectory(scale: np.ndarray, steps: np.ndarray | None = None, **more) -> Trajectory:
    steps = np.arange(len(scale)) * 100 if steps is None else steps
    given = {"bias": scale - 1, **more}
    return Trajectory(
        model="run", stack="model", site="norm", norm_site="stream", view="last", steps=steps, scale=scale, **given
    )


def summary(path: Trajectory, **options) -> Track:
    return summarize(path, TrackOptions(**options), "checkpoints")


def planted(pattern: str, *, width: int = 40, n_layers: int = 2) -> np.ndarray:
    """Scale [step, layer, dim] in which dimension 3 stands out at the steps marked "x"."""
    noise = np.random.default_rng(0).normal(1, 0.02, (1, n_layers, width))
    values = np.repeat(noise, len(pattern), axis=0)
    values[:, :, 3] = np.array([2.0 if mark == "x" else 1.0 for mark in pattern])[:, None]
    return values


def test_planted_dimensions_are_found_at_their_steps(found: Track) -> None:
    assert {one.dim: one.step for one in found.outliers} == {7: 3000, 20: 4500}
    seven = next(one for one in found.emergences if one.dim == 7)
    assert (seven.after, seven.scale_step, seven.bias_step) == (2500, 3000, 3000)
    assert (seven.layers_scale, seven.layers_bias) == (4, 4)
    assert seven.onset.low <= 2500 <= seven.onset.high
    assert seven.onset_p <= 0.05


def test_the_loss_is_set_beside(found: Track) -> None:
    assert found.fall.step.low <= 2500 <= found.fall.step.high
    # 6.1 − 2.1 (1 − exp(−t / 700)) is within 5 % of the fall of 5 nats (0.25) of 4.0 after t = 700 ln(2.1 / 0.25) = 1,490.
    assert found.plateau.settled
    assert found.plateau.step.low - 250 <= 2500 + 1490 <= found.plateau.step.high + 250
    seven = next(one for one in found.emergences if one.dim == 7)
    assert seven.lead.value == 3000 - found.plateau.step.value
    assert seven.lead.side() == -1
    assert seven.onset_lead.low <= 0 <= seven.onset_lead.high


def test_values_are_those_of_the_files(found: Track) -> None:
    assert found.steps.tolist() == list(STEPS)
    assert (found.layer, found.about.layers, found.width, found.kept) == (2, (0, 1, 2, 3), 128, tuple(range(128)))
    expected = [runs.norms_at(s, n_layers=4, width=128, needles={7: 2500, 20: 4000}, part="scale")[2] for s in STEPS]
    assert np.array_equal(found.scale, np.array(expected, dtype=np.float32))
    assert np.array_equal(found.scale_range[:, 0], found.scale.min(axis=1))


def test_of_a_bert_base_less_than_two_percent_is_read(tmp_path: Path) -> None:
    steps = tuple(range(1000, 21_000, 1000))
    runs.write_run(tmp_path, steps, needles={308: 5000}, n_layers=12, width=768, vocabulary=30_522, log=False)
    read = track([tmp_path])
    assert len(read.steps) == 20
    assert [one.dim for one in read.outliers] == [308]
    assert read.total_bytes > 20 * 430e6  # 109 million float32 parameters each
    assert 20 * 12 * 2 * 768 * 4 < read.bytes_read < 0.02 * read.total_bytes
    assert len(read.kept) * 20 <= 60_000
    assert sum(f.stat().st_blocks * 512 for f in tmp_path.rglob("*.safetensors")) < 40e6  # the test itself stays small


@pytest.mark.parametrize(
    ("pattern", "step", "after", "passes"),
    [
        ("....xxxx", 400, 300, "scale and bias"),
        ("..x.xxxx", 400, 100, "scale and bias"),  # it first passed at 200: since then it was not settled
        ("xxxxxxxx", 0, None, "scale and bias"),
        ("..xxxx..", None, None, "neither"),
    ],
)
def test_emergence_is_for_good(pattern: str, step: int | None, after: int | None, passes: str) -> None:
    (one,) = summary(trajectory(planted(pattern))).emergences
    assert (one.dim, one.step, one.after, one.passes) == (3, step, after, passes)
    marks = [i * 100 for i, mark in enumerate(pattern) if mark == "x"]
    assert one.seen == (marks[0], marks[-1])


def test_scale_alone_is_said_to_be_scale_alone() -> None:
    scale = planted("....xxxx")
    one = summary(trajectory(scale, bias=planted("........"))).emergences[0]
    assert (one.dim, one.passes, one.step, one.scale_step, one.bias_step) == (3, "scale", 400, 400, None)
    without = summary(trajectory(scale, bias=None))
    assert without.outliers[0].layers_bias is None
    assert not without.has_bias
    assert any("rests on the scale alone" in note for note in without.notes)


def test_layers_that_must_pass_are_rounded_up() -> None:
    scale = planted("....xxxx", n_layers=5)
    scale[:, :3, 3] = 1.0  # stands out in 2 of 5 layers
    assert not summary(trajectory(scale)).outliers
    assert summary(trajectory(scale), rule=Rule(min_layer_fraction=0.4)).outliers[0].step == 400


def test_dimensions_asked_for_are_followed_and_checked() -> None:
    path = trajectory(planted("....xxxx"))
    assert summary(path, dims=(9,)).followed == (9, 3)
    with pytest.raises(BadInput, match="dimension 40: the stream has dimensions 0 to 39"):
        summary(path, dims=(40,))
    with pytest.raises(BadInput, match="layer 2: run has layers 0 to 1"):
        summary(path, layer=2)


def test_a_run_that_still_falls_has_no_lead() -> None:
    steps = np.arange(20) * 100
    curves = {"loss": Curve(steps, 9 - 0.004 * steps)}
    read = summary(trajectory(planted("." * 10 + "x" * 10), steps, curves=curves))
    assert not read.plateau.settled
    assert not read.emergences[0].lead.settled


def test_wide_streams_are_thinned_but_keep_what_is_followed() -> None:
    scale = np.random.default_rng(0).normal(1, 0.02, (40, 2, 4000)).astype(np.float32)
    scale[:, :, 77] = 3
    read = summary(trajectory(scale))
    assert 77 in read.kept
    assert len(read.kept) * 40 <= 61_000
    assert np.array_equal(read.scale[:, read.kept.index(77)], scale[:, 1, 77])
    assert np.array_equal(read.scale_range[:, 1], scale[:, 1].max(axis=1))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step1000", 1000),
        ("multiberts-seed_0-step_20k", 20_000),
        ("multiberts-seed_3-step_2000k", 2_000_000),
        ("step1000-tokens4B", 1000),
        ("global_step_12", 12),
        ("ckpt_005", 5),
        ("model.iter-3m", 3_000_000),
        ("epoch=0-step=100", 100),
        ("ep0-ba1000", 1000),
        ("ep12-ba250-rank0", 250),
        ("ba700", 700),
        ("iter_0001000", 1000),
        ("alibaba7", None),
        ("bert-base-uncased", None),
        ("footstep7", None),
        ("main", None),
    ],
)
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_in(name) == step


def test_checkpoints_are_ordered_by_number_not_by_name(run: Path) -> None:
    assert [one.step for one in find_saved([str(run)])] == list(STEPS)
    hub = find_saved(["a/multiberts-seed_0-step_200k", "a/multiberts-seed_0-step_20k"])
    assert [one.step for one in hub] == [20_000, 200_000]
    assert find_saved(["a/b"], revisions=("step8", "step1")) == (
        SavedCheckpoint("a/b", 1, "step1"),
        SavedCheckpoint("a/b", 8, "step8"),
    )
    assert find_saved(["a/b"], revisions=("x", "y"), steps=(9, 4))[0] == SavedCheckpoint("a/b", 4, "y")


def test_refusals_of_names(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"main: no step in this name .* --steps"):
        find_saved(["a/b"], revisions=("main",))
    with pytest.raises(BadInput, match="--revisions belong to one model, and 2 are named"):
        find_saved(["a/b", "c/d"], revisions=("step1",))
    with pytest.raises(BadInput, match="--steps names 1 steps for 21 checkpoints"):
        find_saved([str(run)], steps=(1,))
    with pytest.raises(BadInput, match="are both of step 5; leave one out"):
        find_saved(["a/x-step5", "a/y-step5"])
    with pytest.raises(UnknownModel, match="holds no checkpoint"):
        track([tmp_path])
    with pytest.raises(BadInput, match="one step is not a trajectory"):
        track([run / "checkpoint-500"])
    with pytest.raises(BadInput, match="name at least one folder"):
        track([])


def test_a_trainer_s_state_says_the_step_of_a_folder_with_another_name(tmp_path: Path) -> None:
    runs.write_run(tmp_path, (100,), log=False)
    folder = (tmp_path / "checkpoint-100").rename(tmp_path / "final")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 123, "log_history": []}))
    assert find_saved([str(folder)])[0].step == 123
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 10**30}))
    with pytest.raises(BadInput, match="final: no step in this name"):
        find_saved([str(folder)])


def test_a_damaged_checkpoint_is_named_and_left_out_on_request(tmp_path: Path) -> None:
    runs.write_run(tmp_path, STEPS[:12])
    broken = tmp_path / "checkpoint-1000" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(BadFile, match=r"checkpoint-1000 \(step 1000\): .*--skip-damaged leaves it out"):
        track([tmp_path])
    read = track([tmp_path], TrackOptions(skip_damaged=True))
    assert read.steps.tolist() == [step for step in STEPS[:12] if step != 1000]
    assert any(note.startswith("left out, step 1000") for note in read.notes)


def test_checkpoints_of_another_shape_are_refused(tmp_path: Path) -> None:
    runs.write_run(tmp_path / "a", (100, 200), log=False)
    runs.write_run(tmp_path / "b", (300,), width=32, log=False)
    with pytest.raises(
        BadInput, match=r"checkpoint-300 is not of the same run as .*: its layers × dimensions is 4 × 32"
    ):
        track([tmp_path / "a", tmp_path / "b"])


def test_logs_of_several_kinds(tmp_path: Path, run: Path) -> None:
    history = find_log(find_saved([str(run)]))
    assert set(history) == {"loss", "eval_loss"}
    assert history["loss"].steps[-1] == 10_000
    assert history["loss"].values[-1] < 4.5  # the row of the whole run's mean, 5.0, is no point of the curve
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"step": 0, "train": 9.0, "val": 9.1}\n{"step": 5, "train": 8}\n{"step": 5, "train": 7}\n{"step": 6, "tr'
    )
    curves = read_log(log)
    assert curves["loss"].values.tolist() == [9.0, 7.0]  # a later row of a step counts; a torn last line does not
    assert curves["eval_loss"].steps.tolist() == [0]
    log.write_text("nothing\n")
    with pytest.raises(BadFile, match=r"log.jsonl, line 1: not valid JSON"):
        read_log(log)
    with pytest.raises(BadInput, match="no such log"):
        read_log(tmp_path / "none.jsonl")
    log.write_text(f'{{"step": {10**30}, "loss": 1}}\n{{"step": 1, "loss": {10**400}}}\n{{"step": 2, "loss": 3}}\n')
    assert read_log(log)["loss"].steps.tolist() == [2]  # numbers that no array can hold are passed over
    state = tmp_path / "other.json"
    state.write_text("{}")
    with pytest.raises(BadFile, match="no log_history"):
        read_log(state)
    log.write_text("".join(json.dumps({"step": s, "loss": 8 - s / 2000}) + "\n" for s in range(0, 10_001, 500)))
    assert track([run], TrackOptions(log=log)).losses[0].loss == 8


def test_a_trajectory_checks_its_shapes() -> None:
    scale = np.ones((3, 2, 4), dtype=np.float32)
    with pytest.raises(BadInput, match="do not fit; give ascending steps"):
        trajectory(scale, np.array([0, 2, 1]))
    with pytest.raises(BadInput, match=r"states \(2, 4\) do not fit"):
        trajectory(scale, states=np.zeros((2, 4)))
    with pytest.raises(BadInput, match=r"bias \(3, 2, 5\) and"):
        trajectory(scale, bias=np.zeros((3, 2, 5)))
    with pytest.raises(BadInput, match="must ascend, each once"):
        Curve(np.array([1, 1]), np.array([0.0, 1.0]))


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a pre-norm model whose dimension 5 is written to strongly from step 300 on; norms as they were."""
    import torch

    from architectures import FAMILIES, build

    folder = tmp_path_factory.mktemp("llamas")
    for step, factor in ((100, 1), (200, 1), (300, 6), (400, 12), (1000, 12)):
        torch.manual_seed(0)
        model = build(FAMILIES["llama"], "CausalLM")
        with torch.no_grad():
            for layer in model.model.layers:
                layer.mlp.down_proj.weight[5] *= factor
            model.model.layers[0].input_layernorm.weight.fill_(float(step))
        model.save_pretrained(folder / f"checkpoint-{step}")
    return folder


def test_pre_norm_models_are_followed_by_the_weights_that_scan_reads(llamas: Path) -> None:
    read = track([llamas])
    scanned = scan(str(llamas / "checkpoint-1000")).stacks[0]
    assert (read.view, read.site) == ("last", scanned.site)
    assert {one.dim: (one.after, one.step) for one in read.outliers} == {5: (200, 300)}
    assert read.outliers[0].z_scale == pytest.approx(np.abs(scanned.z_scale[:, 5]).mean(), rel=1e-5)
    for step in read.steps.tolist():
        assert scan(str(llamas / f"checkpoint-{step}")).stacks[0].dims == ((5,) if step >= 300 else ())
    assert next(read.sentences()).endswith(
        "these dimensions reach 3 sigma or more in 50 % of the layers: 5 (weight norm, from step 300)."
    )


def test_a_norm_is_followed_where_it_is_named_and_the_first_line_says_so(llamas: Path) -> None:
    read = track([llamas], TrackOptions(norm="input_layernorm", layer=0))
    assert (read.view, read.site, read.scale_name) == ("reading", "input_layernorm", "scale")
    assert read.scale.mean(axis=1).tolist() == [100.0, 200.0, 300.0, 400.0, 1000.0]
    said = next(read.sentences())
    assert said.startswith("Over 5 recorded steps from 100 to 1,000 of input_layernorm no dimension reaches 3 sigma")


def test_what_is_read_of_linears_is_said_and_has_a_limit(llamas: Path) -> None:
    said: list[str] = []
    with pytest.raises(
        TooMuchToRead,
        match=r"0 MB in each of 5 checkpoints; allow it with --model-args max-read=1MB, "
        r"or follow a norm alone: --norm input_layernorm",
    ):
        track([llamas], TrackOptions(scan=ScanOptions(max_read=1000, notice=said.append)))
    assert not said
    assert track([llamas], TrackOptions(scan=ScanOptions(max_read=1000), norm="input_layernorm")).view == "reading"


def test_checkpoints_of_other_trainers_have_their_steps(tmp_path: Path) -> None:
    import torch

    from architectures import FAMILIES, build

    model = build(FAMILIES["llama"], "CausalLM")
    weights = model.state_dict()
    for step in (100, 200):  # Lightning's, whose module holds the model
        (tmp_path / "lightning").mkdir(exist_ok=True)
        model.config.save_pretrained(tmp_path / "lightning")
        held = {"state_dict": {f"model.{name}": value for name, value in weights.items()}, "global_step": step}
        torch.save(held, tmp_path / "lightning" / f"epoch={step // 100}-step={step}.ckpt")
        model.save_pretrained(tmp_path / "composer" / f"ep0-ba{step}")
        rank = tmp_path / "megatron" / f"iter_{step:07}" / "mp_rank_00"
        rank.mkdir(parents=True)
        torch.save(weights, rank / "model_optim_rng.pt")
        model.config.save_pretrained(rank)
        unread = tmp_path / "distributed" / f"iter_{step:07}"
        unread.mkdir(parents=True)
        (unread / "shard_0.zarr").write_bytes(b"x")
    for trainer in ("lightning", "composer", "megatron"):
        assert track([tmp_path / trainer]).steps.tolist() == [100, 200]
    named = [tmp_path / "megatron" / f"iter_{step:07}" / "mp_rank_00" for step in (100, 200)]
    assert track(named).steps.tolist() == [100, 200]
    with pytest.raises(
        UnknownModel, match=r"iter_0000100: is named as a checkpoint, and holds no weight file .*shard_0\.zarr"
    ):
        track([tmp_path / "distributed"])


def test_watch_rows_are_tracked_alone(tmp_path: Path) -> None:
    rows = tmp_path / "watch.jsonl"
    rows.write_text("{}\n")
    with pytest.raises(BadInput, match="holds a whole run; track it alone"):
        track([rows, "other"])
    with pytest.raises(BadInput, match="--steps belongs to checkpoints"):
        track([rows], TrackOptions(steps=(1,)))


def test_the_step_from_equal_norms_to_any_spread_is_no_onset() -> None:
    scale = planted("." * 10 + "x" * 10)
    fresh = np.concatenate([np.ones((1, 2, 40)), scale])
    (one,) = summary(trajectory(fresh)).emergences
    assert one.onset.value == 1000


def test_the_loss_that_is_judged_by_saw_the_whole_fall() -> None:
    steps = np.arange(40) * 100
    loss = Curve(steps, 4 + 5 * np.exp(-steps / 500))
    path = trajectory(planted("." * 20 + "x" * 20), steps)
    for start, used in ((0, "eval_loss"), (5, "loss")):
        late = Curve(loss.steps[start:], loss.values[start:])
        read = summary(replace(path, curves={"loss": loss, "eval_loss": late}))
        assert read.plateau.curve == CURVES[used]
        assert read.plateau.step.value == 1500  # 500 ln 20 = 1,498


def test_a_dimension_that_stands_out_by_its_bias_is_dated_by_its_bias() -> None:
    path = trajectory(planted("." * 20), bias=planted("." * 12 + "x" * 8))
    (one,) = summary(path).emergences
    assert one.passes == "bias"
    assert one.leaves
    assert one.onset.value == 1100
