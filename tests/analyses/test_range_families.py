"""Ranges of every family: each kind against plain hooks of the test's own, text by text without padding."""

from collections import Counter
from typing import Any

import pytest
import torch

from architectures import FAMILIES, Family
from outlierlens.analyses.range import INSIDE, RangeOptions, range_of
from planted import TEXT_FAMILIES, Oracle, some_texts, wrap

TEXTS = some_texts(7)


@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=lambda one: one.name)
def test_every_family_is_measured(family: Family, words: Any) -> None:
    loaded = wrap(family, words())
    found = range_of(loaded, TEXTS, RangeOptions(batch_size=3, every=1))
    oracle = Oracle(loaded, TEXTS, found.about.max_length)
    for stack, texts in oracle.by_text.items():
        if not any(row.stack == stack for row in found.tensors):
            continue
        rows = [row for row in found.of("stream") if row.stack == stack]
        for number, row in enumerate(rows):
            states = [layers[number] for layers in texts]
            largest = max(abs(state).max() for state in states)
            assert row.largest == pytest.approx(largest, rel=1e-5), (stack, row.layer)
            assert abs(states[row.text][row.token, row.dim]) == pytest.approx(largest, rel=1e-5)
    blocks = {(row.stack, row.layer) for row in found.tensors if row.layer.isdecimal()}
    for stack, layer in blocks:
        kinds = {row.kind for row in found.tensors if (row.stack, row.layer) == (stack, layer)}
        assert kinds >= {"stream", "norm output", "norm sum of squares", "attention logits"}, (stack, layer)
    assert all(row.largest > 0 for row in found.tensors)
    assert all((row.n_values > 0) == (row.kind not in (*INSIDE, "attention logits", "logits")) for row in found.tensors)


ATTENTION = ("q", "k", "v", "q·k", "attention logits")


@pytest.mark.parametrize("name", ["bloom", "deberta-v2", "gpt2", "phi3"])
def test_products_of_queries_and_keys_are_seen_however_they_are_written(name: str, words: Any) -> None:
    found = range_of(wrap(FAMILIES[name], words()), TEXTS, RangeOptions(batch_size=3, every=1))
    for kind in ATTENTION:
        assert [row.layer for row in found.of(kind)] == ["0", "1", "2"], kind


@torch.no_grad()
def test_blooms_products_are_those_of_its_linear(words: Any) -> None:
    loaded = wrap(FAMILIES["bloom"], words())
    found = range_of(loaded, TEXTS, RangeOptions(batch_size=1, every=1))
    seen: list[torch.Tensor] = []
    module = loaded.model.get_submodule("h.1.self_attention.query_key_value")
    hook = module.register_forward_hook(lambda module, args, output: seen.append(output))
    largest = {"q": 0.0, "k": 0.0, "v": 0.0, "q·k": 0.0}
    for text in TEXTS.texts:
        ids = loaded.tokenizer(text)["input_ids"]
        if ids:
            loaded.model(torch.tensor([ids]))
    hook.remove()
    for output in seen:
        query, key, value = output[0].view(-1, 2, 3, 8).permute(2, 1, 0, 3)  # [head, token, dim]
        product = (query @ key.transpose(1, 2)).tril()
        for kind, one in (("q", query), ("k", key), ("v", value), ("q·k", product)):
            largest[kind] = max(largest[kind], float(one.abs().max()))
    for kind, size in largest.items():
        assert found.of(kind)[1].largest == pytest.approx(size, rel=1e-5), kind


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
@torch.no_grad()
def test_packed_experts_are_seen(name: str, words: Any) -> None:
    """What their last matrix reads, against the same experts one token after another."""
    loaded = wrap(FAMILIES[name], words())
    table = loaded.model.get_submodule("embed_tokens").weight
    table[0] = -table[7]  # padding, whose values would be among the largest
    found = range_of(loaded, TEXTS, RangeOptions(batch_size=4, every=1))
    experts: Any = loaded.model.get_submodule("layers.1.mlp.experts")
    calls: list[Any] = []
    hook = experts.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((*args, *kwargs.values())), with_kwargs=True
    )
    for text in TEXTS.texts:
        ids = loaded.tokenizer(text)["input_ids"]
        if ids:
            loaded.model(torch.tensor([ids]))
    hook.remove()
    n_tokens = Counter[int]()
    inner, outer = (dict[int, tuple[float, str]]() for _ in range(2))
    texts = [text for text in TEXTS.texts if loaded.tokenizer(text)["input_ids"]]
    for text, (states, chosen, _) in zip(texts, calls, strict=True):
        ids = loaded.tokenizer(text)["input_ids"]
        for row, numbers, token in zip(states.reshape(-1, states.shape[-1]), chosen, ids, strict=True):
            word = loaded.tokenizer.decode([token])
            for expert in numbers.tolist():
                up, down = experts.gate_up_proj[expert], experts.down_proj[expert]
                if name == "gpt_oss":
                    both = row @ up + experts.gate_up_proj_bias[expert]
                    made = experts._apply_gate(both)
                    given = made @ down + experts.down_proj_bias[expert]
                else:
                    gate, other = (both := up @ row).chunk(2)
                    made = experts.act_fn(gate) * other
                    given = down @ made
                n_tokens[expert] += 1
                for top, values in ((inner, made), (outer, given)):
                    top[expert] = max(top.get(expert, (0.0, "")), (float(values.abs().max()), word))
    for kind, by_hand in (("MLP inner", inner), ("MLP output", outer)):
        row = next(one for one in found.of(kind) if one.layer == "1")
        expert = max(by_hand, key=lambda one: by_hand[one][0])
        assert (row.expert, row.word, row.module) == (expert, by_hand[expert][1], "layers.1.mlp.experts.down_proj")
        assert row.largest == pytest.approx(by_hand[expert][0], rel=1e-4)
        assert f"layer 1, expert {expert}, " in row.place()
        assert row.place().endswith(f"({row.word!r}) of text {row.text}")
        each = {one.expert: one for one in found.experts if (one.kind, one.layer) == (kind, "1")}
        assert each.keys() == by_hand.keys()
        for number, one in each.items():
            assert one.largest == pytest.approx(by_hand[number][0], rel=1e-4)
            assert one.word == by_hand[number][1]
            assert one.n_values == n_tokens[number] * (made if kind == "MLP inner" else given).numel()
        assert row.n_values == sum(one.n_values for one in each.values())
    assert loaded.model.config._experts_implementation == "grouped_mm"  # type: ignore[union-attr]
