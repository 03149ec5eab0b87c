"""Key biases and rounded caches: numbers by hand, planted biases predicted and measured."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hub_models import MODEL
from hub_server import FakeHub
from memory_checkpoint import Memory
from outlierlens.analyses.range import CacheError, RangeOptions, Ranges, key_biases, range_of, weights_range
from outlierlens.analyses.range_pass import CacheErrors
from outlierlens.checkpoints import open_checkpoint
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.results.document import from_json, to_json
from outlierlens.statistics.ranks import spearman
from planted import some_texts

pytest_plugins = ["hub_fixtures"]

LAYERS = 12
CONFIG = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


def qwen(words: Callable[..., Any], seed: int, sizes: np.ndarray) -> LoadedModel:
    """A tiny Qwen2 whose key biases have one large entry each, of these sizes [layer], in a random channel."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=40, intermediate_size=48, num_hidden_layers=LAYERS, **CONFIG)
    ).eval()
    places = np.random.default_rng(seed).integers(0, 16, LAYERS)
    with torch.no_grad():
        for block, size, place in zip(model.model.layers, sizes.tolist(), places.tolist(), strict=True):
            block.self_attn.k_proj.weight.normal_(0, 0.2)
            block.self_attn.k_proj.bias.normal_(0, 0.1)
            block.self_attn.k_proj.bias[place] = size
    return from_objects(model, words(), name="qwen")


def test_a_bias_by_hand() -> None:
    names = [f"model.layers.{layer}.self_attn.k_proj.bias" for layer in range(3)]
    tensors = {
        names[1]: np.array([3.0, 0, 0, 4, 0, 0, 0, 0]),
        names[0]: np.full(8, 0.5),
        names[2]: np.array([0, 0, 0, 0, 0, -50.0, 0, 0]),
        "model.layers.0.self_attn.k_proj.weight": np.ones((8, 16)),
        "model.layers.0.self_attn.q_proj.bias": np.full(16, 99.0),
        "model.layers.0.encoder_attn.k_proj.bias": np.full(8, 99.0),
    }
    checkpoint = Memory(tensors, {"hidden_size": 16, "num_attention_heads": 4})
    found = key_biases(checkpoint)
    assert [(one.name, one.layer) for one in found] == [(name, layer) for layer, name in enumerate(names)]
    assert [one.norm for one in found] == pytest.approx([math.sqrt(2), 5.0, 50.0])
    assert [(one.largest, one.head, one.channel) for one in found[1:]] == [(4.0, 0, 3), (50.0, 1, 1)]
    assert [one.ratio for one in found] == pytest.approx([math.sqrt(2) / 5, 1.0, 10.0])
    assert [one.alarm for one in found] == [False, False, True]
    assert checkpoint.bytes_read == 3 * 8 * 4  # nothing but the biases


def test_keys_between_queries_and_values_are_taken_out() -> None:
    joined = np.concatenate([np.full(4, 9.0), np.array([1.0, 2, 2, 0]), np.full(4, 7.0)])
    (found,) = key_biases(Memory({"transformer.h.0.attn.c_attn.bias": joined}, {"n_embd": 4, "n_head": 2}))
    assert (found.norm, found.largest, found.head, found.channel) == (3.0, 2.0, 0, 1)


def test_rounding_by_hand() -> None:
    # int8, one step per token: 127 and 0.25 share a step of 1, so 0.25 is lost; padding counts nowhere.
    keys = torch.tensor([[[127.0, 0.25], [127.0, -0.25], [900.0, 900.0]]])
    errors = CacheErrors()
    errors.add(4, "k", keys, torch.tensor([[True, True, False]]))
    (row,) = (CacheError(**one) for one in errors.relative())
    assert (row.layer, row.tensor) == (4, "k")
    assert row.whole["int8_token"] == pytest.approx(0.25 / math.hypot(127, 0.25))
    assert row.int8_token == 0.0  # the lower of two channels: 0 and 1
    wide = torch.tensor([[[127.0, 0.25, 0.125]]])
    errors = CacheErrors()
    errors.add(0, "v", wide, torch.tensor([[True]]))
    (row,) = (CacheError(**one) for one in errors.relative())
    assert row.int8_token == row.int8_tensor == 1.0
    assert row.int8_channel == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_biases_predict_what_rounding_keys_loses(seed: int, words: Callable[..., Any]) -> None:
    sizes = np.random.default_rng(seed).permutation(np.geomspace(1.0, 600.0, LAYERS))
    found = range_of(qwen(words, seed, sizes), some_texts(6, seed=seed), RangeOptions(cache=True))
    predicted = np.array([one.ratio for one in found.keys])
    assert len(predicted) == LAYERS
    for number in ("int8", "int4"):
        measured = {one.layer: getattr(one, f"{number}_token") for one in found.cache if one.tensor == "k"}
        rho = float(spearman(predicted, np.array([measured[one.layer] for one in found.keys])))
        assert rho >= 0.9, (number, rho)
    assert [one.layer for one in found.keys if one.alarm] == [int(at) for at in np.flatnonzero(predicted >= 10)]
    assert max(one.int8_token for one in found.cache if one.tensor == "v") < 0.05  # their biases are none


def test_what_is_found_does_not_depend_on_batches(words: Callable[..., Any]) -> None:
    loaded = qwen(words, 0, np.geomspace(1.0, 600.0, LAYERS))
    one, several = (
        range_of(loaded, some_texts(5, seed=1), RangeOptions(cache=True, batch_size=size)) for size in (1, 5)
    )
    for a, b in zip(one.cache, several.cache, strict=True):
        assert (a.layer, a.tensor) == (b.layer, b.tensor)
        assert list(a.whole) == list(b.whole)
        for setting in a.whole:
            assert getattr(a, setting) == pytest.approx(getattr(b, setting), rel=1e-3)
            assert a.whole[setting] == pytest.approx(b.whole[setting], rel=1e-3)


def said(found: Ranges) -> str:
    return " ".join(found.sentences())


def test_the_alarm_stands_beside_what_was_measured(words: Callable[..., Any]) -> None:
    sizes = np.full(LAYERS, 1.0)
    sizes[[0, 7]] = 300.0
    found = range_of(qwen(words, 3, sizes), some_texts(4, seed=1), RangeOptions(cache=True))
    assert "lose most in layers 0, 7." in said(found)
    assert {"Key biases", "Rounded keys and values"} <= {table.title for table in found.shown()}
    worst = sorted((one for one in found.cache if one.tensor == "k"), key=lambda one: -one.int8_token)
    assert {one.layer for one in worst[:2]} == {0, 7}
    assert to_json(from_json(to_json(found))) == to_json(found)


def test_weights_alone_name_the_layer_and_need_no_key_bias(
    words: Callable[..., Any], tmp_path: Path, hub: FakeHub, run: Callable[..., Any]
) -> None:
    sizes = np.full(LAYERS, 1.0)
    sizes[5] = 100.0
    qwen(words, 0, sizes).model.save_pretrained(tmp_path)  # type: ignore[operator]
    hub.add(MODEL, {name: (tmp_path / name).read_bytes() for name in ("config.json", "model.safetensors")})
    with open_checkpoint(str(tmp_path)) as checkpoint:
        found = weights_range(checkpoint)
        before = checkpoint.bytes_read
        assert key_biases(checkpoint) == found.keys
        assert checkpoint.bytes_read - before == LAYERS * 16 * 4
    with open_checkpoint(MODEL) as checkpoint:
        assert key_biases(checkpoint) == found.keys
    code, stdout, err = run("range", MODEL, "--weights")
    assert code == 0, err
    assert "lose most in layer 5." in stdout
    read = [seen for seen in hub.requests("model.safetensors") if seen.sent]
    assert read
    assert all(seen.span for seen in read)  # by ranges, never the whole file
    assert "lose most in layer 5." in said(found)
    without = weights_range(Memory({"layers.0.self_attn.k_proj.weight": np.ones((4, 4))}, {}))
    assert without.keys == ()
    assert "No key biases" in said(without)


def test_a_real_llama_has_no_key_biases(sample: Any) -> None:
    sample("smollm2-135m")
    with open_checkpoint("smollm2-135m") as checkpoint:
        assert key_biases(checkpoint) == ()


def test_weights_and_cache_exclude_each_other() -> None:
    with pytest.raises(BadInput, match="--cache runs the model and --weights does not"):
        RangeOptions(cache=True, weights=True)
