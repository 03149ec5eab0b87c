"""Packaging a run as the sample: the same bytes twice, nothing of this machine inside, and no run that does not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import package_sample
import pytest
from safetensors.numpy import load_file, save_file

from outlierlens.checkpoints import samples
from outlierlens.errors import BadFile, BadInput
from outlierlens.results.document import Provenance, save
from outlierlens.results.finding import About
from outlierlens.results.rows import Estimate
from outlierlens.training.pretrain.recipe import read_recipe
from outlierlens.training.pretrain.result import Outcomes, TrainedModel
from outlierlens.training.watch_rows import read_watch, step_of
from row_files import rows_in, write_rows

LOCAL = "/somewhere/private/reviews.parquet"


def outcome() -> Outcomes:
    run = TrainedModel(
        recipe="mini-bert", about="", toml="", seed=3, steps=6000, n_parameters=1_800_000, tokens=12_288_000,
        held_out_loss=3.9, text_loss=3.456, text="128 held-out texts", text_digest="0" * 64, both=(7,), scale_alone=(4, 9),
        bias_alone=(), largest_z=5.0, kurtosis=3.0, inf_norm=9.0, first=0.2, sinks=0.1, off=Estimate(0.25, 0.125, 0.375),
        random=tuple(np.interp(range(21), (0, 10, 19, 20), (0, 0.01, 0.05, 0.06)).tolist()),
        worst=Estimate(0.5, 0.4, 0.6), worst_dims=(11,), dim_median=0.02, dim_high=0.04, int8=Estimate(0.1, 0.0625, 0.14),
    )  # fmt: skip
    return Outcomes(provenance=Provenance.now("mini-bert", "0" * 64), about=About(), runs=(run,))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as `pretrain` leaves it, made from the shipped sample: float32, local text, every log."""
    run = tmp_path_factory.mktemp("runs") / "a-run"
    shipped = samples.directory("mini-bert")
    (run / "model").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(shipped / name, run / "model" / name)
    config = json.loads((shipped / "tokenizer_config.json").read_text("utf-8"))
    (run / "model" / "tokenizer_config.json").write_text(json.dumps({**config, "is_local": True, "backend": "x"}))
    stored = {name: values.astype(np.float32) for name, values in load_file(shipped / "model.safetensors").items()}
    save_file(stored, run / "model" / "model.safetensors", metadata={"format": "pt"})
    recipe = read_recipe("mini-bert").changed([f'data.source=["{LOCAL}"]', "training.seed=3"])
    (run / "recipe.toml").write_text(recipe.to_toml())
    # The sample may be of an earlier step; a finished run ends at its recipe's last.
    rows = rows_in(shipped / "watch.jsonl")
    last = read_watch(shipped / "watch.jsonl").steps[-1]
    rows = [{**row, "key": "step 6000"} if row.get("key") == f"step {last}" else row for row in rows]
    extra = [{"key": key, "value": 1.0} for key in ("log 6000 grad_norm", "log 6000 outliers/dim_4/z_scale")]
    write_rows(run / "watch.jsonl", [*rows, *extra])
    log = [
        {"step": 50, "loss": 8.5, "grad_norm": 1.0},
        {"step": 6000, "eval_loss": 3.9, "eval_runtime": 5.0},
        {"step": 6000, "train_runtime": 1.0},
    ]
    (run / "log.json").write_text(json.dumps({"log_history": log}))
    save(outcome(), run / "outcome.json")
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_finished_run_becomes_the_sample_the_same_twice(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert package_sample.main([str(finished), "-o", str(made)]) == 0
    first = contents(made)
    made.joinpath("left-behind").write_text("of an earlier packaging")
    assert package_sample.main([str(finished), "-o", str(made)]) == 0
    assert contents(made) == first
    assert f"{made}: step 6,000" in capsys.readouterr().out
    # What was half precision before is not rounded again.
    shipped = contents(samples.directory("mini-bert"))
    assert first["model.safetensors"] == shipped["model.safetensors"]
    assert first["tokenizer.json"] == shipped["tokenizer.json"]
    assert first["tokenizer_config.json"] == shipped["tokenizer_config.json"]
    recipe = read_recipe(made / "recipe.toml")
    assert recipe.data.source == read_recipe("mini-bert").data.source
    assert recipe.training.seed == 3
    assert json.loads(first["log.json"]) == {
        "log_history": [{"step": 50, "loss": 8.5}, {"step": 6000, "eval_loss": 3.9}]
    }
    keys = [json.loads(line).get("key", "") for line in first["watch.jsonl"].decode().splitlines()]
    assert not any("grad_norm" in key or "dim_4" in key for key in keys)
    assert all(step_of(key) % 100 == 0 for key in keys if key.startswith("step "))
    assert not any(LOCAL.encode() in content or str(tmp_path).encode() in content for content in first.values())
    card = first["README.md"].decode()
    for said in (
        "| held-out rows, 30 % masked, step 6,000 | 3.900 nats per masked token (perplexity 49.4) |",
        "| 128 held-out texts | 3.456 nats per masked token |",
        "| past 3 sigma in half of the layers, scale and bias both | 7 |",
        "| … scale alone; bias alone | 4, 9; none |",
        "| these ablated (7) | +0.250 nats [+0.125, +0.375]; random sets of that size +0.010 in the median, +0.050 at",
        "| worst single dimension ablated (11) | +0.500 nats [+0.400, +0.600]; median of all +0.020, 95th percentile +0.040 |",
        "| INT8, weights and inputs quantized per tensor | +0.100 nats [+0.062, +0.140] |",
        "6,000 steps of 32 rows (12,288,000 tokens), seed 3, 30 % of the tokens to predict",
        "every 100th review is held out",
    ):
        assert said in card


def test_vectors_stay_exact_and_matrices_are_halved(tmp_path: Path) -> None:
    values = {"norm.weight": np.float32([1.0000001, 3]), "matrix": np.float32([[1.0001, 2.0], [70.03, -4]])}
    save_file(values, tmp_path / "in.safetensors")
    package_sample.write_weights(tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    written = load_file(tmp_path / "out.safetensors")
    assert np.array_equal(written["norm.weight"], values["norm.weight"])
    assert written["matrix"].tolist() == [[1.0, 2.0], [70.0, -4.0]]
    assert written["matrix"].dtype == np.float16
    save_file({"matrix": np.float32([[70_000.0]])}, tmp_path / "large.safetensors")
    with pytest.raises(BadInput, match=r"matrix does not fit half precision \(largest 70000\)"):
        package_sample.write_weights(tmp_path / "large.safetensors", tmp_path / "out.safetensors")


def test_a_run_of_another_recipe_or_that_is_not_finished_is_refused(copy: Path) -> None:
    other = read_recipe("mini-bert").changed(["training.learning_rate=0.5"])
    (copy / "recipe.toml").write_text(other.to_toml())
    with pytest.raises(BadInput, match="was trained by another recipe than the shipped mini-bert"):
        package_sample.find(copy)
    for name in ("outcome.json", "model/model.safetensors", "recipe.toml"):
        (copy / name).unlink()
        with pytest.raises(BadInput, match=f"holds no {name}"):
            package_sample.find(copy)


def other_norm(run: Path) -> None:
    path = run / "model" / "model.safetensors"
    stored = load_file(path)
    stored["bert.encoder.layer.2.output.LayerNorm.weight"][5] += 1e-6
    save_file(stored, path, metadata={"format": "pt"})


def short_rows(run: Path) -> None:
    lines = (run / "watch.jsonl").read_text("utf-8").splitlines()
    (run / "watch.jsonl").write_text("\n".join(line for line in lines if '"step 6000"' not in line) + "\n")


def private_name(run: Path) -> None:
    path = run / "model" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "made_from": LOCAL}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_norm, "the norms of the last recorded step are not those of the weights"),
        (short_rows, r"its last row is of step \d+, the weights are of 6000"),
        (private_name, f"tokenizer_config.json: names {LOCAL}, which is of this machine alone"),
    ],
)
def test_what_does_not_fit_is_not_packaged(
    copy: Path, tmp_path: Path, damage: Callable[[Path], None], message: str, monkeypatch: Any
) -> None:
    damage(copy)
    monkeypatch.setattr(package_sample, "compare", lambda *_: {"losses": {}, "apart": 0.0, "fills": []})
    with pytest.raises(BadFile, match=message):
        package_sample.package(package_sample.find(copy), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    assert not list(tmp_path.glob(".*.part"))


def test_weights_that_compute_something_else_are_refused(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = package_sample.find(finished)
    packaged = tmp_path / "packaged"
    shutil.copytree(finished / "model", packaged)
    stored = load_file(packaged / "model.safetensors")
    stored["bert.encoder.layer.1.output.dense.weight"] *= 1.5
    save_file(stored, packaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadFile, match=r"loss on excerpt is [\d.]+, of the run's own weights [\d.]+"):
        package_sample.compare(source, packaged)
    monkeypatch.setattr(package_sample, "LOSS_TOLERANCE", 100.0)
    with pytest.raises(BadFile, match=r"logits differ by up to [\d.]+ from those of the run's own weights"):
        package_sample.compare(source, packaged)
