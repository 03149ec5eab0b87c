"""The baselines of the sweep benchmark measure the same losses as the package does, on models of their own making."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from outlierlens import zeroed_weights
from outlierlens.models.load import LoadedModel, LoadOptions, from_objects, load_model
from outlierlens.tasks.base import TaskOptions, weighted_mean
from outlierlens.tasks.choice import make_task
from script_modules import script

TEXTS = (
    "the cat sat on the mat and the dog saw it",
    "a dog",
    "the mat was red and the cat was not on it",
    "it was a dog",
)


@pytest.fixture(scope="module")
def baselines() -> ModuleType:
    return script("benchmarks/sweep_baselines.py")


@pytest.fixture(scope="module")
def bert(baselines: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    baselines.save_bert(folder, TEXTS, layers=2, width=64)
    return folder


@pytest.fixture
def llama(words: Any, tmp_path: Path) -> LoadedModel:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=24, initializer_range=0.3, **sizes)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    return from_objects(model, words(kind="causal"))


@pytest.mark.parametrize("dims", [(), (5,), (1, 60)])
def test_masked_losses_agree(baselines: ModuleType, bert: Path, dims: tuple[int, ...]) -> None:
    loaded = load_model(str(bert), LoadOptions(device="cpu", dtype="float32", offline=True))
    task = make_task(loaded, TEXTS, TaskOptions(max_length=16, seed=3))
    rows = baselines.masked_rows(task)
    intact = weighted_mean(*task.per_text())
    if dims:
        with zeroed_weights(loaded, dims):
            values, weights = task.per_text()
        assert abs(weighted_mean(values, weights) - intact) > 1e-3
    else:
        values, weights = task.per_text()
    loop = baselines.PlainLoop(loaded.model, rows)
    assert loop.loss(dims, 3) == pytest.approx(weighted_mean(values, weights), abs=2e-5)
    assert loop.loss((), 2) == pytest.approx(intact, abs=2e-5), "the loop put everything back"
    found = baselines.released(bert, dims, rows, baselines.ReleasedOptions(max_length=16, batch_size=3))
    assert found == pytest.approx(baselines.as_released(values, weights, 3), abs=2e-5)


def test_causal_losses_agree(baselines: ModuleType, llama: LoadedModel, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in random.integers(0, 35, size=30)) for _ in range(3)]
    task = make_task(llama, texts, TaskOptions(max_length=12, blocks=True))
    rows = baselines.masked_rows(task)
    assert [len(row.ids) for row in rows] == [12] * 7
    assert [row.n_predicted for row in rows] == [11] * 7
    with zeroed_weights(llama, [3]):
        values, weights = task.per_text()
    expected = weighted_mean(values, weights)
    assert abs(expected - weighted_mean(*task.per_text())) > 1e-3
    assert baselines.PlainLoop(llama.model, rows).loss([3], 4) == pytest.approx(expected, abs=2e-5)
    options = baselines.ReleasedOptions(max_length=12, batch_size=7, causal=True)
    assert baselines.released(tmp_path, [3], rows, options) == pytest.approx(expected, abs=2e-5)


def test_mean_of_batches_by_hand(baselines: ModuleType) -> None:
    """Batches (1·1 + 3·3)/4 = 2.5 of two texts and 7 of one: (2 · 2.5 + 7) / 3 = 4."""
    assert baselines.as_released(np.array([1.0, 3.0, 7.0]), np.array([1.0, 3.0, 5.0]), 2) == pytest.approx(4.0)


def test_a_model_of_unknown_names_is_refused(baselines: ModuleType) -> None:
    from torch import nn

    with pytest.raises(ValueError, match="no last operation of a block is known"):
        baselines.switch_off(nn.Linear(2, 2), [0])
