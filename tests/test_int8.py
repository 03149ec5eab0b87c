"""INT8 rounding: hand-computed levels, restoration bit for bit, and that one large value is what costs."""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from architectures import FAMILIES, build
from outlierlens.errors import BadInput
from outlierlens.int8 import fake_int8, int8_change, rounded_to_int8
from outlierlens.models import LoadedModel, from_objects
from outlierlens.tasks import TaskOptions, make_task

TEXTS = [" ".join(f"w{(7 * i + j) % 35}" for j in range(8 + i)) for i in range(6)]


def bert(words: Any) -> LoadedModel:
    loaded = from_objects(build(FAMILIES["bert"], "MaskedLM"), name="bert")
    return LoadedModel("bert", loaded.model, words(kind="masked"), loaded.head, loaded.stacks, loaded.config)


def test_levels_are_those_worked_out_by_hand() -> None:
    values = torch.tensor([-127.0, 0.0, 0.4, 0.6, 63.4, 127.0])  # the step is 1
    assert fake_int8(values).tolist() == [-127.0, 0.0, 0.0, 1.0, 63.0, 127.0]
    assert fake_int8(torch.tensor([1.27, 0.013])).tolist() == pytest.approx([1.27, 0.01])
    assert fake_int8(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_a_linear_computes_with_rounded_weights_and_inputs_and_is_restored(words: Any) -> None:
    loaded = bert(words)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    linears = [
        module
        for name, module in loaded.model.named_modules()
        if isinstance(module, nn.Linear) and ".encoder.layer." in name
    ]
    first = linears[0]
    reads = torch.randn(2, 3, first.in_features, generator=torch.Generator().manual_seed(0))
    wanted = nn.functional.linear(fake_int8(reads), fake_int8(first.weight.detach()), first.bias)
    with contextlib.suppress(RuntimeError), rounded_to_int8(loaded) as count:
        assert count == len(linears)
        assert torch.equal(first(reads), wanted)
        head = loaded.model.get_output_embeddings()
        assert torch.equal(head.weight, before["cls.predictions.decoder.weight"])
        raise RuntimeError  # what is rounded comes back whatever happens inside
    after = loaded.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(first(reads), nn.functional.linear(reads, first.weight, first.bias))
    assert not any(module._forward_pre_hooks for module in loaded.model.modules())


def test_one_large_value_leaves_no_level_for_the_others() -> None:
    values = torch.linspace(-0.9, 0.9, 10)
    assert (fake_int8(values) - values).abs().max() <= 0.9 / 127 / 2 + 1e-7
    spiked = fake_int8(torch.cat([values, torch.tensor([254.0])]))  # the step is 2
    assert spiked.tolist() == [0.0] * 10 + [254.0]


def test_the_change_is_paired_and_its_interval_holds_it(words: Any) -> None:
    loaded = bert(words)
    task = make_task(loaded, TEXTS, TaskOptions(mask_fraction=0.5))
    before, weights = task.per_text()
    change, low, high = int8_change(loaded, task, seed=0)
    with rounded_to_int8(loaded):
        rounded, _ = task.per_text()
    assert change == pytest.approx(float(((rounded - before) * weights).sum() / weights.sum()))
    assert low <= change <= high
    assert (low, high) == int8_change(loaded, task, seed=0)[1:]


def test_blocks_without_linears_are_refused(words: Any) -> None:
    gpt2 = from_objects(build(FAMILIES["gpt2"], "CausalLM"), name="gpt2")
    with pytest.raises(BadInput, match=r"gpt2: its blocks hold no nn\.Linear"), rounded_to_int8(gpt2):
        pass
