"""The benchmark of task evaluation: both ways say the same, and it notices when they do not."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from script_modules import script
from tuned_models import save_model, write_data


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return script("benchmarks/task_evaluation.py")


def test_both_ways_say_the_same(benchmark: ModuleType, words: Any, tmp_path: Path, capsys: Any) -> None:
    # Outputs the other way round than the task counts them: predictions are compared by what they mean.
    model = str(save_model(tmp_path / "model", words, names=("acceptable", "unacceptable")))
    write_data(tmp_path / "data", tasks=("cola",), n=50)
    call = [model, "cola", "--data", str(tmp_path / "data" / "cola"), "--rounds", "2", "--device", "cpu"]
    assert benchmark.main(call) == 0
    said = capsys.readouterr().out
    assert "glue:cola, 50 examples, 350 tokens" in said
    assert "Trainer.evaluate over ours:" in said
    assert "in 2 rounds" in said
    rows = [{"sentence1": "w1 w2", "sentence2": "w3", "label": 0.5}, {"sentence1": "w4", "sentence2": "w5", "label": 3}]
    path = tmp_path / "stsb.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 20), "utf-8")
    call = [model, "stsb", "--data", str(path), "--rounds", "1", "--device", "cpu", "--new-head"]
    assert benchmark.main(call) == 0


def test_differences_are_noticed(benchmark: ModuleType) -> None:
    one = (np.array([0, 1, 1]), 0.5)
    assert not benchmark.differ(one, (np.array([0, 1, 1]), 0.5 + 1e-9), regression=False)
    assert benchmark.differ(one, (np.array([0, 1, 0]), 0.5), regression=False)
    assert benchmark.differ(one, (np.array([0, 1, 1]), 0.6), regression=False)
    assert not benchmark.differ((np.array([0.1]), 0.5), (np.array([0.1 + 1e-6]), 0.5), regression=True)
    assert benchmark.differ((np.array([0.1]), 0.5), (np.array([0.2]), 0.5), regression=True)
