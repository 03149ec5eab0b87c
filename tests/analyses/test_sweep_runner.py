"""The sweep's inner loop against the plain way: one ablation at a time, by its context manager, the whole network."""

from typing import Any

import numpy as np
import pytest

from outlierlens.analyses.sweep.options import SweepOptions
from outlierlens.analyses.sweep.runner import Runner, make_runner
from outlierlens.data.texts import Texts
from outlierlens.tasks.base import TaskOptions
from planted import model_of

TEXTS = Texts(
    "test", tuple(" ".join(f"w{(7 * i + j * j) % 35}" for j in range(n)) for i, n in enumerate((3, 20, 9, 14, 2)))
)
CAUSAL = ("gpt2", "llama", "opt", "gpt_neox", "gemma2", "olmo2", "qwen3", "bloom", "falcon", "mixtral")
MASKED = ("bert", "distilbert", "mpnet", "roberta", "albert", "deberta-v2", "modernbert", "outlierlens-bert-rmsnorm")
MASKED += ("outlierlens-bert-pre-norm", "outlierlens-bert-pre-rmsnorm")


def runner_of(family: str, words: Any, **options: Any) -> Runner:
    causal = family in CAUSAL
    loaded = model_of(family, "CausalLM" if causal else "MaskedLM", words, kind="causal" if causal else "masked")
    task = TaskOptions(max_length=8 if causal else 32, blocks=causal, batch_size=3)
    return make_runner(loaded, TEXTS, SweepOptions(task=task, **options))


def plans_of(runner: Runner) -> list[dict[int, tuple[int, ...]]]:
    layers = range(runner.stack.n_layers)
    last = runner.stack.n_layers - 1
    return [
        {},
        dict.fromkeys(layers, (3,)),
        {last: (1, 5)},
        {0: (2,)},
        dict.fromkeys(layers, (0, 7)),
        {layer: (layer,) for layer in layers},
    ]


@pytest.mark.parametrize("family", CAUSAL + MASKED)
@pytest.mark.parametrize("mode", ["weights", "zero", "scale", "mean"])
def test_many_ablations_in_a_batch_are_those_one_by_one(family: str, mode: str, words: Any) -> None:
    runner = runner_of(family, words, mode=mode)
    span = (0, runner.n_texts)
    plans = plans_of(runner)
    if family == "albert" and mode == "weights":
        plans = [plan for plan in plans if len(plan) in (0, runner.stack.n_layers)][:3]
    found = runner.values(plans, span)
    plain = np.stack([runner.alone(plan, span) for plan in plans])
    np.testing.assert_allclose(found, plain, rtol=2e-5, atol=2e-6)
    assert np.abs(plain[1:] - plain[0]).max(axis=1).min() > 1e-5, "an ablation that does nothing tests nothing"
    if family not in ("albert", "mixtral"):
        assert runner.mixes, runner.notes
    assert not runner.notes or mode == "mean" or family in ("mixtral",)


def test_blocks_that_return_a_tuple_of_one_are_skipped_too(words: Any) -> None:
    runner = runner_of("mpnet", words)
    assert runner.reuses
    assert not runner.notes
    plans: list[Any] = [{2: (1,)}, {1: (3, 4), 2: (5,)}]
    span = (0, min(4, runner.n_texts))
    fast = runner.values(plans, span)
    runner.reuses = False
    runner.forget()
    np.testing.assert_allclose(fast, runner.values(plans, span), rtol=1e-5)
