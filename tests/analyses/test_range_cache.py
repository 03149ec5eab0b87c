"""Rounded caches: numbers by hand, layers with a large key bias lose most, whatever shares a batch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from outlierlens.analyses.range import CacheError, RangeOptions, range_of
from outlierlens.analyses.range_pass import CacheErrors
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects
from outlierlens.statistics.ranks import spearman
from planted import some_texts

LAYERS = 12
CONFIG = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


def qwen(words: Any, seed: int, sizes: np.ndarray) -> LoadedModel:
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
def test_layers_with_a_large_key_bias_lose_most(seed: int, words: Any) -> None:
    sizes = np.random.default_rng(seed).permutation(np.geomspace(1.0, 600.0, LAYERS))
    found = range_of(qwen(words, seed, sizes), some_texts(6, seed=seed), RangeOptions(cache=True))
    for number in ("int8", "int4"):
        lost = [getattr(one, f"{number}_token") for one in found.cache if one.tensor == "k"]
        assert spearman(sizes, np.array(lost)) >= 0.9
    assert max(one.int8_token for one in found.cache if one.tensor == "v") < 0.05  # their biases are none


def test_weights_and_cache_exclude_each_other() -> None:
    with pytest.raises(BadInput, match="--cache runs the model and --weights does not"):
        RangeOptions(cache=True, weights=True)
