"""Outcomes of training runs: what is measured agrees with the parts it is made of, and runs are grouped by recipe."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlierlens.results.document import from_json, load, to_json
from outlierlens.training.pretrain.result import Outcomes
from pretrain_runs import outcome

WORDS = "the cat dog sat on mat house red blue runs to a tree bird flies over small big green slow"
SMALL = [
    word
    for setting in ("tokenizer.vocabulary=150", "model.layers=2", "model.width=16", "data.length=16")
    for word in ("--set", setting)
]


def joined(*found: Outcomes) -> Outcomes:
    return replace(found[0], runs=tuple(run for one in found for run in one.runs))


def test_seeds_of_a_recipe_make_one_row() -> None:
    runs = joined(
        outcome("a", 0, 4.0, 1.0), outcome("b", 0, 9.0, None),
        outcome("a", 1, 5.0, None, both=(), scale_alone=(), bias_alone=()),
    )  # fmt: skip
    first, second = runs.recipes()
    assert (first["recipe"], first["seeds"], first["loss"]) == ("a", 2, (4.5, 4.0, 5.0))
    assert (first["found"], first["one-sided"]) == ((0.5, 0.0, 1.0), (1.5, 0.0, 3.0))
    assert first["found ablated"][0] == 1.0, "a seed without a named dimension has no such damage"
    assert (second["recipe"], second["seeds"], second["loss"]) == ("b", 1, (9.0, 9.0, 9.0))
    assert from_json(to_json(runs)) == runs
    rows = list(runs.records())
    assert (rows[1]["worst_low"], rows[1]["worst_high"]) == (0.4, 0.6), "the interval of one seed is over texts"
    assert [table.title for table in runs.shown()] == ["Runs", "Recipes"]


def test_runs_of_one_name_that_were_trained_otherwise_are_not_mixed() -> None:
    toml = 'name = "a"\n\n[training]\nsteps = {}\nlearning_rate = {}\nseed = {}\n'
    made = [
        outcome("a", seed, loss, 1.0, steps=steps, toml=toml.format(steps, rate, seed))
        for seed, loss, steps, rate in ((0, 4.0, 10, 0.1), (0, 3.0, 10, 0.2), (1, 5.0, 10, 0.1), (0, 2.0, 20, 0.1))
    ]
    rows = list(joined(*made).recipes())
    assert [(row["changed"], row["seeds"], row["loss"].value) for row in rows] == [
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
        "--set",
        "training.steps=4",
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
        arguments = ["lab", "pretrain", "mini-short", "--data", text, "--seed", seed, *SMALL, *steps, "-o", folders[-1]]
        code, out, _ = run(*arguments)
        assert code == 0
        assert "past 3 sigma in half of the layers" in out
    found: Outcomes = load(Path(folders[0]) / "outcome.json")
    (made,) = found.runs
    assert made.steps == 4
    assert made.tokens == 4 * 32 * 16
    assert made.worst.value >= made.dim_high >= made.dim_median
    assert made.worst.low <= made.worst.value <= made.worst.high
    # The same numbers by the commands that anyone would check them with.
    model = str(Path(folders[0]) / "model")
    code, out, _ = run("scan", model, "--json")
    assert sorted(row.dim for row in from_json(out).outliers) == sorted(made.both)
    code, out, err = run("compare", *folders, "--json")
    assert code == 0
    assert json.loads(out)["runs"]["seed"] == [0, 1]
    code, out, err = run("compare", *folders)
    assert "mini-short" in out
    assert (err, "different texts" in out) == ("", False)
    other = replace(found, runs=(replace(made, text_digest="another"),))
    (tmp_path / "other.json").write_text(to_json(other))
    assert "cannot be compared" in run("compare", folders[0], str(tmp_path / "other.json"))[1]
    # A finished run is not trained or measured again.
    before = (Path(folders[0]) / "outcome.json").read_bytes()
    assert (
        run("lab", "pretrain", "mini-short", "--data", text, "--seed", "0", *SMALL, *steps, "-o", folders[0], "-q")[0]
        == 0
    )
    assert (Path(folders[0]) / "outcome.json").read_bytes() == before
