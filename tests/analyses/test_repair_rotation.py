"""Streams that are turned: the same logits, no outlier dimension, and a refusal where a turn would change something."""

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from architectures import FAMILIES, batch, build
from outlierlens.analyses.repair_rewriting import TOLERANCE, rotated, rotation, untie
from outlierlens.analyses.scan import scan_live
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadedModel, from_objects


def loaded_with_head(name: str, head: str = "ForCausalLM", **changes: Any) -> tuple[LoadedModel, Any]:
    """A tiny model with a head, and a forward pass that gives its logits."""
    import transformers

    family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(family.model_type, **(family.config | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModel{head}").from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    given = batch(family)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return model(**given).logits

    return from_objects(model, None, name=name), run


@pytest.mark.parametrize("width", [1, 16, 576, 768, 9])
def test_a_rotation_is_orthogonal_and_spreads_every_dimension(width: int) -> None:
    turn = rotation(width, seed=3)
    assert np.allclose(turn @ turn.T, np.eye(width), atol=1e-12)
    assert np.array_equal(turn, rotation(width, seed=3))
    if width in (16, 576, 768):
        assert np.abs(turn).max() < 0.5


def test_its_hadamard_part_by_hand() -> None:
    assert np.allclose(np.abs(rotation(4)), 0.5)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("llama", "ForCausalLM"),
        ("llama-biases", "ForCausalLM"),
        ("qwen2", "ForCausalLM"),
        ("gemma", "ForCausalLM"),
        ("t5", "ForSeq2SeqLM"),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_stay(name: str, head: str, tied: bool) -> None:
    if name not in FAMILIES:
        pytest.skip("no tiny model of it")
    loaded, run = loaded_with_head(name, head, tie_word_embeddings=tied)
    before, states = run(), {key: value.clone() for key, value in loaded.model.state_dict().items()}
    with rotated(loaded, run) as untied:
        assert untied == (tied or name == "t5")  # which ties whatever its config says
        assert torch.allclose(run(), before, atol=float(1e-5 * before.abs().max()))
        assert any(not torch.equal(value, states[key]) for key, value in loaded.model.state_dict().items())
        assert not loaded.model.config.tie_word_embeddings


def test_a_planted_outlier_is_gone() -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=False, hidden_size=64, head_dim=16)
    for layer in loaded.model.model.layers:
        layer.mlp.down_proj.weight.data[7] *= 40
    (found,) = scan_live(loaded).stacks
    assert 7 in {one.dim for one in found.outliers}
    with rotated(loaded, run):
        (found,) = scan_live(loaded).stacks
    assert not found.outliers


@pytest.mark.parametrize("tied", [False, True])
def test_in_a_context_every_bit_comes_back(tied: bool) -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=tied)
    before, states = run(), {key: value.clone() for key, value in loaded.model.state_dict().items()}
    with rotated(loaded, run):
        assert not torch.equal(loaded.model.model.embed_tokens.weight, states["model.embed_tokens.weight"])
        assert torch.allclose(run(), before, atol=float(TOLERANCE * before.abs().max()))
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.model.config.tie_word_embeddings == tied
    assert all(torch.equal(value, states[key]) for key, value in loaded.model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("bert", "pre-norm"), ("gpt2", "subtracts the mean"), ("gemma2", "pre-norm"), ("olmo2", "pre-norm"),
     ("mixtral", r"experts are one parameter \(layers.0.mlp"), ("qwen3_moe", "experts"), ("gpt_oss", "experts")],
)  # fmt: skip
def test_what_a_turn_would_change_is_refused(name: str, reason: str) -> None:
    if name not in FAMILIES:
        pytest.skip("no tiny model of it")
    model = build(FAMILIES[name])
    loaded = from_objects(model, None, name=name)
    with pytest.raises(BadInput, match=reason), rotated(loaded, lambda: torch.ones(1)):
        pass


@pytest.mark.parametrize("tied", [False, True])
def test_a_reader_that_is_not_seen_is_said_and_nothing_changes(tied: bool) -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=tied)
    mlp = loaded.model.model.layers[1].mlp
    whole = mlp.forward
    mlp.forward = lambda x: whole(x.clone())  # a copy: its linears read another tensor than the norm gave
    states = {key: value.clone() for key, value in loaded.model.state_dict().items()}
    with pytest.raises(BadInput, match="nothing was changed"), rotated(loaded, run):
        pass
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) == tied
    assert loaded.model.config.tie_word_embeddings == tied
    assert all(torch.equal(value, states[key]) for key, value in loaded.model.state_dict().items())


def test_untying_keeps_the_logits_and_comes_undone() -> None:
    loaded, run = loaded_with_head("llama", tie_word_embeddings=True)
    before, head, table = run(), loaded.model.lm_head, loaded.model.model.embed_tokens
    with ExitStack() as undo:
        untie(undo, loaded.model)
        assert head.weight is not table.weight
        assert torch.equal(run(), before)
    assert head.weight is table.weight
    assert loaded.model.config.tie_word_embeddings
