"""Derived rows against those written by hand, and the experiments that they rest on."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from architectures import FAMILIES, GROUPED, TEXT, Family, build
from outlierlens.architectures import (
    ARCHITECTURES,
    BoundStack,
    Param,
    bind,
    live_parameters,
    load_toml,
    stacks_of,
    to_toml,
)
from outlierlens.architectures.experiment.anatomy import DIM, BlockProbe, norm_offset, only_dim_changed, restored, same
from outlierlens.architectures.experiment.derive import Derivation, derive
from outlierlens.architectures.experiment.shrink import config_object, smaller_configs
from outlierlens.errors import UnknownArchitecture

SAME = [
    "bert", "electra-generator", "distilbert", "mpnet", "deberta-v2", "modernbert", "xlnet", "bart", "t5", "t5-gated",
    "gpt2", "gpt_neox", "opt", "opt-post-norm", "llama-biases", "gemma", "gemma2", "olmo2", "phi", "mixtral",
    "qwen3_moe", "gpt_oss", "bloom", "falcon", "falcon-new", "vit", "wav2vec2-stable", "clip",
]  # fmt: skip


def test_small_copies_have_small_pictures_of_several_patches() -> None:
    config = config_object({"model_type": "vivit"})  # 32 frames of 224 pixels, 2 of 16 pixels to a patch: 3,136
    words, smaller = next(iter(smaller_configs(config)))
    assert (words, smaller.num_frames, smaller.image_size) == ("narrower, smaller pictures", 4, 112)
    words, smaller = next(iter(smaller_configs(config_object({"model_type": "llama"}))))
    assert words == "narrower"
    # Its blocks merge patches until one is left of a small picture: attention over one takes what a neuron takes.
    found = derive(
        {"model_type": "mobilevit", "hidden_sizes": [32, 40, 48], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]}
    )
    assert all(stack.heads and not stack.neurons for stack in found.stacks)
    assert "smaller pictures" not in found.row["basis"]


def derive_for(family: Family, **changes: Any) -> Derivation:
    return derive({**family.config, "model_type": family.model_type, **changes})


def places(params: Iterable[Param], shapes: dict[str, torch.Size]) -> list[tuple[str, int, float]]:
    return sorted((param.name, param.axis % len(shapes[param.name]), param.off) for param in params)


def by_name(stacks: list[BoundStack]) -> dict[str, BoundStack]:
    return {stack.name: stack for stack in stacks}


@pytest.mark.parametrize("name", SAME)
def test_a_derived_row_binds_like_the_declared_one(name: str, tmp_path: Any) -> None:
    family = FAMILIES[name]
    found = derive_for(family)
    path = tmp_path / "row.toml"
    path.write_text(found.toml)
    drafted = load_toml(path)
    assert drafted == found.stacks
    model = build(family)
    shapes = {name: values.shape for name, values in live_parameters(model).items()}
    config = model.config.to_dict()
    ours, theirs = by_name(bind(drafted, shapes, config)), by_name(bind(stacks_of(config), shapes, config))
    assert ours.keys() == theirs.keys()
    for stream, declared in theirs.items():
        draft = ours[stream]
        assert draft.blocks == declared.blocks
        assert draft.stack.norm_site == declared.stack.norm_site
        assert draft.stack.token_first == declared.stack.token_first
        for part in ("scale", "bias", "writes", "reading"):
            pairs = zip(getattr(draft, part), getattr(declared, part), strict=True)
            assert all(places(a, shapes) == places(b, shapes) for a, b in pairs), part
        for part in ("embedding_norm", "final_norm"):
            assert places(getattr(draft, part), shapes) == places(getattr(declared, part), shapes), part


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "t5"])
def test_every_line_has_its_evidence(name: str) -> None:
    lines = derive_for(FAMILIES[name]).toml.splitlines()
    assert lines[0].startswith(
        f"# Row for {name}, drafted by experiment: a random model of this config (as it is), given"
    )
    assert not any("NOT ESTABLISHED" in line for line in lines)
    for before, line in pairwise(lines):
        if " = " in line and not line.startswith(("#", "name = ")):
            assert before.startswith("# "), line


def test_a_large_config_is_made_small() -> None:
    config = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}
    config |= {"num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "pad_token_id": 128004}
    found = derive(config)
    assert "fewer layers, narrower" in found.basis
    (stack,) = found.stacks
    assert (stack.last_linear, stack.layers) == (("mlp.down_proj",), "num_hidden_layers")


def test_what_is_not_established_is_said_and_left_out() -> None:
    remarks = {
        "deberta-v2-convolution": "model: something runs on the stream between some of the blocks",
        "wav2vec2": "model: not all that writes before the first block was found",
    }
    for name, remark in remarks.items():
        found = derive_for(FAMILIES[name])
        assert any(told.startswith(remark) for told in found.unsettled), (name, found.unsettled)
        assert f"# NOT ESTABLISHED: {remark}" in found.toml
    assert found.stacks[0].embeddings == found.stacks[0].embedding_linears == ()


def test_experts_beside_a_shared_one_write_last_together() -> None:
    experts = {
        "num_key_value_heads": 2,
        "num_experts": 4,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
    }
    found = derive({"model_type": "qwen2_moe", **TEXT, **experts})
    (stack,) = found.stacks
    assert stack.last_linear == ("mlp.shared_expert.down_proj", "mlp.experts.down_proj()")
    assert stack.other_writes == ("self_attn.o_proj",)
    assert stack.stored_as["mlp.experts.down_proj"] == ("mlp.experts.{expert}.down_proj.weight",)
    assert not found.unsettled


def test_no_row_is_better_than_a_wrong_one() -> None:
    with pytest.raises(UnknownArchitecture, match="albert_layer_groups run several times each; declare them"):
        derive_for(FAMILIES["albert-groups"])
    with pytest.raises(UnknownArchitecture, match="has no model_type 'no-such-model', so no model can be built"):
        derive({"model_type": "no-such-model"})
    with pytest.raises(
        UnknownArchitecture, match=r"a model of this bert config cannot be built \(.*; write a row by hand"
    ):
        derive({"model_type": "bert", **TEXT, "num_attention_heads": 5})


def test_norms_on_the_stream_between_writes_are_named_and_keep_factors_out() -> None:
    # This variant adds to normed values, so each norm sets the scale of the stream anew.
    (stack,) = derive_for(FAMILIES["bloom"], apply_residual_connection_post_layernorm=True).stacks
    assert (stack.norm_site, stack.other_norms) == ("read", ("input_layernorm", "post_attention_layernorm"))
    assert stack.fixed_scale == "norms inside its blocks stand on the stream itself"


def test_what_mixes_copies_of_the_stream_is_said_and_every_write_is_found() -> None:
    config = {
        **TEXT,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "laurel_rank": 4,
        "num_kv_shared_layers": 0,
    }
    config |= {
        "layer_types": ["full_attention"] * 3,
        "activation_sparsity_pattern": [0.0] * 3,
        "hidden_size_per_layer_input": 8,
    }
    found = derive({"model_type": "gemma3n_text", **config})
    (stack,) = found.stacks
    assert stack.last_norm == "post_per_layer_input_norm"
    assert stack.other_norms == ("laurel.post_laurel_norm", "post_attention_layernorm", "post_feedforward_layernorm")
    assert stack.fixed_scale == "its blocks mix copies of the stream"
    assert any("reaches others, too, through what mixes the stream" in remark for remark in found.unsettled)


def test_a_block_whose_mixing_has_no_parameters_is_said_to_be_incomplete() -> None:
    found = derive({"model_type": "fnet", **TEXT, "num_hidden_layers": 3})
    (stack,) = found.stacks
    assert (stack.norm_site, stack.last_norm) == ("stream", "output.LayerNorm")
    assert "model: block 1: something else writes that no parameter sets for one dimension alone" in found.unsettled


def test_blocks_of_which_some_norm_what_they_add() -> None:
    (stack,) = derive(transformers.CONFIG_MAPPING["axk1"]().to_dict()).stacks
    assert (stack.norm_site, stack.last_norm) == ("write", "mlp.post_mlp_layernorm")
    assert set(stack.raw_writes) == {"mlp.down_proj", "self_attn.o_proj"}


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads", "num_experts"])
def test_a_config_that_asks_for_more_than_any_model_has_is_refused_at_once(name: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"{name} is over [0-9,]+, more than any model has"):
        derive({"model_type": "qwen2_moe", **TEXT, name: 10**9})


def test_code_that_comes_with_a_model_is_not_run() -> None:
    config = {**GROUPED, "model_type": "my-llama", "auto_map": {"AutoModel": "modeling.py--Model"}}
    with pytest.raises(UnknownArchitecture, match=r"transformers .* has no model_type 'my-llama'"):
        derive(config)


def test_proposing_leaves_no_trace() -> None:
    from transformers.utils import logging

    state, verbosity = torch.random.get_rng_state(), logging.get_verbosity()
    derive_for(FAMILIES["bert"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert logging.get_verbosity() == verbosity


@pytest.mark.parametrize("name", FAMILIES)
def test_declared_rows_survive_toml(name: str, tmp_path: Any) -> None:
    family = FAMILIES[name]
    stacks = stacks_of({**family.config, "model_type": family.model_type})
    assert family.model_type in ARCHITECTURES
    path = tmp_path / "row.toml"
    path.write_text(to_toml(stacks))
    assert load_toml(path) == stacks


class OnePlus(nn.Module):
    """An RMS norm that multiplies by 1 + weight."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.square().mean(-1, keepdim=True).rsqrt() * (1 + self.weight)


class Scale(nn.Module):
    """No norm, although it is named and shaped like one."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_norms_are_known_by_what_they_do() -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(8)
    nn.init.normal_(norm.bias)
    before = norm.bias.detach().clone()
    assert norm_offset(norm, 8) == 0.0
    assert torch.equal(norm.bias, before)
    assert norm_offset(nn.RMSNorm(8), 8) == 0.0
    assert norm_offset(OnePlus(8), 8) == 1.0
    assert norm_offset(norm, 16) is None
    assert norm_offset(Scale(8), 8) is None
    assert norm_offset(nn.Linear(8, 8), 8) is None
    assert norm_offset(nn.Identity(), 8) is None
    assert norm_offset(nn.BatchNorm1d(8), 8) is None


class Toy(nn.Module):
    """x + second(norm(y)) with y = x + first(x): two writes that only a search from the end can tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.first(x)
        return y + self.second(self.norm(y))


class Leaky(Toy):
    """The same, with a write that no parameter makes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x.roll(1, dims=-1)


def test_a_block_is_peeled_from_its_end() -> None:
    torch.manual_seed(0)
    block, x = Toy(), torch.randn(2, 3, 8)
    before = {name: values.clone() for name, values in block.state_dict().items()}
    anatomy = BlockProbe(block, (x,), {}, 8).peel()
    assert [[row.name for row in step.rows] for step in anatomy.steps] == [
        ["second.weight"],
        ["first.weight", "first.bias"],
    ]
    assert anatomy.steps[0].rows[0].axis == -2
    assert anatomy.reading_norms == ("norm",)
    assert not anatomy.problem
    assert all(torch.equal(values, before[name]) for name, values in block.state_dict().items())
    assert not any(module._forward_hooks for module in block.modules())
    assert not BlockProbe(Leaky(), (x,), {}, 8).peel().complete


def test_small_judgements() -> None:
    x = torch.arange(16.0).reshape(1, 2, 8)
    moved = x.clone()
    moved[..., DIM] += 1
    assert only_dim_changed(x, moved)
    moved[..., DIM + 1] += 0.001
    assert not only_dim_changed(x, moved)
    assert not only_dim_changed(x, x)
    assert same(x, x + 1e-6)
    assert not same(x, x + 1e-3)
    assert not same(x, x[..., :4])
    linear = nn.Linear(2, 2)
    before = linear.weight.detach().clone()

    def fail() -> None:
        with restored(linear), torch.no_grad():
            linear.weight.zero_()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert torch.equal(linear.weight, before)


def test_a_block_that_keeps_keys_and_values_of_its_calls_is_drafted() -> None:
    """Llava's text model makes a cache although nobody asked: a block must not be run again with the grown one."""
    text = {"model_type": "llama", **FAMILIES["llama"].config}
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    found = derive({"model_type": "llava", "text_config": text, "vision_config": vision, "image_token_id": 38})
    stack = next(one for one in found.stacks if one.name == "text")
    (declared,) = stacks_of({"model_type": "llama", **FAMILIES["llama"].config})
    assert stack.blocks == "language_model.layers.{layer}"
    assert (stack.last_linear, stack.other_writes) == (declared.last_linear, declared.other_writes)
    assert stack.reading_norms == declared.reading_norms


def test_an_encoder_decoder_with_experts_is_drafted() -> None:
    size = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 3, "num_decoder_layers": 3}
    more = {"num_heads": 4, "num_experts": 2, "pad_token_id": 0, "decoder_start_token_id": 0}
    found = derive({"model_type": "switch_transformers", **size, **more})
    assert {stack.name: stack.blocks for stack in found.stacks} == {
        "encoder": "encoder.block.{layer}",
        "decoder": "decoder.block.{layer}",
    }
    for stack in found.stacks:
        assert all("wo" in name or name.endswith(".o") for name in (*stack.last_linear, *stack.other_writes))


def test_a_block_that_cannot_be_run_by_itself_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("sizes\nmust match")

    monkeypatch.setattr("outlierlens.architectures.experiment.anatomy._copied", fail)
    with pytest.raises(UnknownArchitecture) as refused:
        derive_for(FAMILIES["bert"])
    assert "a block cannot be run by itself (RuntimeError: sizes must match)" in str(refused.value)
    assert "\n" not in str(refused.value)
