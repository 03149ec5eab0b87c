"""Outcomes of training runs: what is measured agrees with the parts it is made of, and runs are grouped by recipe."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.results.document import from_json, load, to_json
from outlierlens.training.pretrain.result import Outcome, Outcomes
from pretrain_runs import outcome

WORDS = "the cat dog sat on mat house red blue runs to a tree bird flies over small big green slow"
SMALL = [
    word
    for setting in ("tokenizer.vocabulary=150", "model.layers=2", "model.width=16", "data.length=16")
    for word in ("--set", setting)
]


def test_seeds_of_a_recipe_make_one_row() -> None:
    runs = Outcomes((outcome("a", 0, 4.0, 1.0), outcome("b", 0, 9.0, None), outcome("a", 1, 5.0, None)))
    first, second = runs.records()
    assert (first["recipe"], first["seeds"], first["text_loss"]) == ("a", 2, 4.5)
    assert (first["text_loss_low"], first["text_loss_high"]) == (4.0, 5.0)
    assert (first["n_found"], first["n_one_sided"]) == (1.0, 3.0)
    assert first["found_off"] == 1.0, "a seed without a named dimension has no such damage"
    assert (second["recipe"], second["seeds"], second["found_off"]) == ("b", 1, None)
    assert (second["worst_low"], second["worst_high"]) == (0.4, 0.6), "the interval of one seed is over texts"
    assert from_json(to_json(runs)) == runs


def test_runs_of_one_name_that_were_trained_otherwise_are_not_mixed() -> None:
    toml = 'name = "a"\n\n[training]\nsteps = {}\nlearning_rate = {}\nseed = {}\n'
    made = [
        replace(outcome("a", seed, loss, 1.0), steps=steps, toml=toml.format(steps, rate, seed))
        for seed, loss, steps, rate in ((0, 4.0, 10, 0.1), (0, 3.0, 10, 0.2), (1, 5.0, 10, 0.1), (0, 2.0, 20, 0.1))
    ]
    rows = list(Outcomes(tuple(made)).records())
    assert [(row["changed"], row["seeds"], row["text_loss"]) for row in rows] == [
        ("", 2, 4.5),
        ("training.learning_rate=0.2", 1, 3.0),
        ("training.steps=20", 1, 2.0),
    ]


@pytest.fixture
def text(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(random.choice(WORDS.split(), 10)) + "." for _ in range(400)))
    return str(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIERLENS_CACHE", str(tmp_path / "cache"))


def test_training_measuring_and_comparing_by_command(run: Any, text: str, tmp_path: Path) -> None:
    steps = [
        "--steps",
        "4",
        "--set",
        "training.save_every=0",
        "--set",
        "training.log_every=2",
        "--set",
        "model.heads=2",
    ]
    folders = []
    for seed in ("0", "1"):
        folders.append(str(tmp_path / f"run{seed}"))
        arguments = ["pretrain", "mini-short", "--data", text, "--seed", seed, *SMALL, *steps, "-o", folders[-1]]
        code, out, _ = run(*arguments, "--no-progress")
        assert code == 0
        assert "past 3 sigma in half of the layers" in out
    made: Outcome = load(Path(folders[0]) / "outcome.json")
    assert made.steps == 4
    assert made.tokens == 4 * 32 * 16
    assert made.worst.change >= made.dim_high >= made.dim_median
    assert made.worst.low <= made.worst.change <= made.worst.high
    # The same numbers by the commands that anyone would check them with.
    model = str(Path(folders[0]) / "model")
    code, out, _ = run("scan", model, "--json")
    assert sorted(o["dim"] for o in json.loads(out)["stacks"][0]["outliers"]) == sorted(made.both)
    code, out, err = run("outcomes", *folders, "--json")
    assert code == 0
    assert [one["seed"] for one in json.loads(out)["runs"]] == [0, 1]
    code, out, err = run("outcomes", *folders)
    assert "mini-short" in out
    assert (err, "different texts" in out) == ("", False)
    other = replace(made, text_digest="another")
    (tmp_path / "other.json").write_text(to_json(other))
    assert "cannot be compared" in run("outcomes", folders[0], str(tmp_path / "other.json"))[1]
    # A finished run is not trained or measured again.
    before = (Path(folders[0]) / "outcome.json").read_bytes()
    assert run("pretrain", "mini-short", "--data", text, "--seed", "0", *SMALL, *steps, "-o", folders[0], "-q")[0] == 0
    assert (Path(folders[0]) / "outcome.json").read_bytes() == before


def test_what_the_command_line_refuses(run: Any, text: str, tmp_path: Path) -> None:
    assert "which recipe?" in run("pretrain")[2]
    assert "no such .toml file and no shipped recipe" in run("pretrain", "mini-bart")[2]
    code, _, err = run("pretrain", "mini-bert", "--set", "training.stepps=3", "--print")
    assert code == 1
    assert "did you mean 'steps'?" in err
    assert "names no text" in run("pretrain", "mini-bert", "--set", "data.source=[]", "-o", str(tmp_path / "x"))[2]
    assert "no such data file" in run("pretrain", "mini-bert", "--data", "missing.txt", "-o", str(tmp_path / "y"))[2]
    code, out, _ = run("pretrain", "--list")
    assert code == 0
    assert "bert-medium:" in out
    code, out, _ = run("pretrain", "roberta-base-no-positions", "--print")
    assert 'positions = "none"' in out
    assert "steps = 200000" in out
    assert run("outcomes")[0] == 2
