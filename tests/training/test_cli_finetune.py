"""The command `finetune`: from the command line to the folder, and every refusal in one line before anything is computed."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_runs import tiny, write_data
from outlierlens import load


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_data(tmp_path_factory.mktemp("data"), n_train=32, n_dev=12))


def arguments(base: str, data: str, folder: Path, *more: str, task: str = "classify") -> list[str]:
    given = {"--task": task, "--data": data, "-o": str(folder), "--device": "cpu", "--epochs": "1", "--batch-size": "8"}
    given["--precision"] = "float32"
    words = [word for flag, value in given.items() if flag not in more for word in (flag, value)]
    return ["lab", "finetune", base, *words, *more]


def test_two_seeds_as_a_table_and_again_as_json(run: Any, base: str, data: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, err = run(*arguments(base, data, folder, "--seeds", "1, 2", "--lr", "0.001"))
    assert code == 0, err
    table = out.splitlines()
    assert table[0].startswith(f"{base} on classify: accuracy over 2 seeds: mean 0.")
    assert table[0].endswith("; trained on 32 examples, scored on 12.")
    at = table.index("The best epoch of each seed")
    assert " ".join(table[at + 1].split()) == "seed epoch dev loss accuracy 95 %"
    assert [line.split()[:2] for line in table[at + 2 : at + 4]] == [["1", "1"], ["2", "1"]]
    assert "look at a model: outlierlens scan" in out
    assert "seed 2: epoch 1: accuracy 0." in err
    assert "seed 1: step 4 of 4: loss 0." in err
    found = load(folder / "finetuned.json")
    assert found.provenance.command.startswith("outlierlens lab finetune ")
    assert f"--task classify --data {data}" in (folder / "seed-1" / "model" / "README.md").read_text()
    code, out, err = run(*arguments(base, data, folder, "--seeds", "1,2", "--lr", "0.001", "--json"))
    assert code == 0
    assert json.loads(out)["seeds"]["seed"] == [1, 2]
    assert "seed 1: finished earlier" in err
    code, out, err = run(*arguments(base, data, folder, "--lr", "0.002", "--quiet"))
    assert (code, out) == (1, "")
    assert "holds rows of other work (learning_rate was 0.001, is 0.002); use another directory, or --overwrite" in err
    assert err.count("\n") == 1


def test_recovery_and_columns(run: Any, base: str, data: str, tmp_path: Path) -> None:
    more = ("--text-column", "text", "--pair-column", "second", "--label-column", "value", "--off", "3,7", "--hold")
    code, out, err = run(*arguments(base, data, tmp_path / "run", *more, "--metric", "spearman", task="regress"))
    assert code == 0, err
    assert "Dimensions 3 and 7 were set to zero before training, held at zero" in out
    assert load(tmp_path / "run" / "finetuned.json").about.metric == "spearman"
    words = ("--text-column", "words", "--label-column", "tags", "--no-progress")
    code, out, err = run(*arguments(base, data, tmp_path / "tokens", *words, task="tokens"))
    assert (code, err) == (0, "")
    assert "token accuracy" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--task", "sst3"), "unknown task 'sst3'"),
        (("--task", "rte", "--label-column", "x"), "belongs to classify, regress, tokens, not to rte"),
        (("--task", "rte"), "no column 'sentence1'; its columns are text, second, label"),
        (("--text-column", "sentence"), "no column 'sentence'"),
        (("--metric", "bleu"), "task classify has no metric 'bleu'"),
        (("--seeds", "one"), "cannot read seeds 'one'; write 42,43"),
        (("--seeds", "1,1"), "name at least one, none twice"),
        (("--precision", "half"), "precision is 'half'"),
        (("--off", "0-3:7"), "dimensions are switched off in all layers here: write 308,381"),
        (("--hold",), "name at least one dimension"),
        (("--batch-size", "64"), "32 training examples do not fill a batch of 64"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl: no such data file"),
        (("--report-to", "smoke"), "cannot report to smoke"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    more: tuple[str, ...], message: str, run: Any, base: str, data: str, tmp_path: Path
) -> None:
    code, out, err = run(*arguments(base, data, tmp_path / "run", *more))
    assert (code, out) == (2 if more[0] in ("--seeds", "--off") and more[1] != "1,1" else 1, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_number_out_of_bounds_is_no_call(run: Any, base: str, data: str, tmp_path: Path) -> None:
    code, out, err = run(*arguments(base, data, tmp_path / "run", "--warmup", "1.5"))
    assert (code, out) == (2, "")
    assert "--warmup is 1.5; it must be at least 0 and less than 1" in err


def test_one_file_is_not_enough_and_two_are(run: Any, base: str, data: str, tmp_path: Path) -> None:
    training = f"{data}/train.jsonl"
    code, _, err = run(*arguments(base, training, tmp_path / "run"))
    assert code == 1
    assert "train.jsonl is one file, and fine-tuning needs dev examples too" in err
    code, _, err = run(*arguments(base, training, tmp_path / "run", "--dev-data", training))
    assert code == 0, err
    assert load(tmp_path / "run" / "finetuned.json").notes == ("the dev examples are the training examples",)


def test_offline_without_data_is_one_line(run: Any, base: str, tmp_path: Path) -> None:
    code, _, err = run("lab", "finetune", base, "--task", "sst2", "--offline", "-o", str(tmp_path / "run"))
    assert code == 1
    assert "nyu-mll/glue:sst2:train: a hub data set, and offline mode is on" in err
    assert err.count("\n") == 1


def test_ctrl_c_says_how_to_go_on(
    run: Any, base: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlierlens.training import finetune

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(finetune.EpochTrainer, "evaluate", interrupt)
    code, _, err = run(*arguments(base, data, tmp_path / "run"))
    assert code == 130
    assert "keeps what was measured; go on with: outlierlens lab finetune" in err
