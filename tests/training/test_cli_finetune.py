"""The command `finetune`: from the command line to the folder, and every refusal in one line before anything is computed."""

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


def test_recovery_and_columns(run: Any, base: str, data: str, tmp_path: Path) -> None:
    task = "regress:pair=second,label=value,metric=spearman"
    more = ("--dims", "3,7", "--hold")
    code, out, err = run(*arguments(base, f"{data}:column=text", tmp_path / "run", *more, task=task))
    assert code == 0, err
    assert "Dimensions 3 and 7 were set to zero before training, held at zero" in out
    assert load(tmp_path / "run" / "finetuned.json").about.metric == "spearman"
    code, out, err = run(*arguments(base, f"{data}:column=words", tmp_path / "tokens", task="tokens:label=tags"))
    assert code == 0, err
    assert "token accuracy" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--seeds", "one"), "cannot read seeds 'one'; write 42,43"),
        (("--dims", "0-3:7"), "dimensions are ablated in all layers here: write 308,381"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    more: tuple[str, ...], message: str, run: Any, base: str, data: str, tmp_path: Path
) -> None:
    code, out, err = run(*arguments(base, data, tmp_path / "run", *more))
    assert (code, out) == (2 if more[0] in ("--seeds", "--dims") and more[1] != "1,1" else 1, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_one_file_is_not_enough_and_two_are(run: Any, base: str, data: str, tmp_path: Path) -> None:
    training = f"{data}/train.jsonl"
    code, _, err = run(*arguments(base, training, tmp_path / "run"))
    assert code == 1
    assert "train.jsonl is one file, and fine-tuning needs dev examples too" in err
    code, _, err = run(*arguments(base, training, tmp_path / "run", "--dev-data", training))
    assert code == 0, err
    assert load(tmp_path / "run" / "finetuned.json").notes == ("the dev examples are the training examples",)
