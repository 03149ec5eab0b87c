"""What takes factors in a block, found by trial, against what the families' own code says: written by hand."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from architectures import FAMILIES, build
from outlierlens.architectures import bind, live_parameters
from outlierlens.architectures.experiment.derive import derive
from outlierlens.architectures.experiment.factors import Factors, agreed
from outlierlens.architectures.experiment.small import SmallModel
from outlierlens.architectures.experiment.streams import Call
from outlierlens.architectures.stack import Heads, Rotary, Stack, heads


def fused(linear: str, output: str, *, each_head: bool = False, rotary: Rotary = "") -> Heads:
    """An attention whose queries, keys and values one linear gives: all of each in a row, or for each head."""
    query, key, value = ((f"{linear}[{'head ' * each_head}{letter}]",) for letter in "qkv")
    return Heads(output, value, key, query, rotary=rotary)


SELF = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True)
class Expected:
    """Of a family's first stream."""

    heads: tuple[Heads, ...] = ()
    neurons: dict[str, str] = field(default_factory=dict)
    rectified: dict[str, str] = field(default_factory=dict)
    readers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    raw_readers: dict[str, str] = field(default_factory=dict)
    write_scales: dict[str, str] = field(default_factory=dict)
    mlp: str = ""


EXPECTED = {
    "llama": Expected(
        (heads("self_attn", "q_proj k_proj v_proj o_proj", rotary="halves"),),
        {"mlp.down_proj": "mlp.up_proj"},
        readers={"input_layernorm": SELF, "post_attention_layernorm": GATED},
    ),
    "qwen3": Expected(
        (heads("self_attn", "q_proj k_proj v_proj o_proj", norms="q_norm k_norm", rotary="halves"),),
        {"mlp.down_proj": "mlp.up_proj"},
        readers={"input_layernorm": SELF, "post_attention_layernorm": GATED},
    ),
    "phi3": Expected(
        (fused("self_attn.qkv_proj", "self_attn.o_proj", rotary="halves"),),
        {"mlp.down_proj": "mlp.gate_up_proj[1/2]"},
        readers={"input_layernorm": ("self_attn.qkv_proj",), "post_attention_layernorm": ("mlp.gate_up_proj",)},
    ),
    "phi": Expected(
        (heads("self_attn", "q_proj k_proj v_proj dense", rotary="halves"),),
        rectified={"mlp.fc2": "mlp.fc1"},
        readers={"input_layernorm": (*SELF, "mlp.fc1")},  # attention and MLP run side by side on one norm
    ),
    "gpt2-cross-attention": Expected(
        (
            fused("attn.c_attn", "attn.c_proj"),
            Heads(
                "crossattention.c_proj",
                ("crossattention.c_attn[1/2]",),
                ("crossattention.c_attn[0/2]",),
                ("crossattention.q_attn",),
            ),
        ),
        rectified={"mlp.c_proj": "mlp.c_fc"},
        readers={"ln_1": ("attn.c_attn",), "ln_cross_attn": ("crossattention.q_attn",), "ln_2": ("mlp.c_fc",)},
    ),
    "gpt_neox": Expected(
        (fused("attention.query_key_value", "attention.dense", each_head=True, rotary="halves"),),
        rectified={"mlp.dense_4h_to_h": "mlp.dense_h_to_4h"},
        readers={
            "input_layernorm": ("attention.query_key_value",),
            "post_attention_layernorm": ("mlp.dense_h_to_4h",),
        },
    ),
    "olmo2": Expected(
        (heads("self_attn", "q_proj k_proj v_proj o_proj", norms="q_norm k_norm", rotary="halves"),),
        {"mlp.down_proj": "mlp.up_proj"},
        raw_readers=dict.fromkeys((*SELF, *GATED), ""),
    ),
    "mixtral": Expected(
        (heads("self_attn", "q_proj k_proj v_proj o_proj", rotary="halves"),),
        {"mlp.experts.down_proj()": "mlp.experts.gate_up_proj()[1/2]"},
        readers={
            "input_layernorm": SELF,
            "post_attention_layernorm": ("mlp.gate", "mlp.experts.gate_up_proj()"),
        },
    ),
    # It adds 1 to what the up projection gives, and clips it: no neuron takes a factor.
    "gpt_oss": Expected(
        (heads("self_attn", "q_proj k_proj v_proj o_proj", rotary="halves"),),
        readers={
            "input_layernorm": SELF,
            "post_attention_layernorm": ("mlp.router", "mlp.experts.gate_up_proj()"),
        },
    ),
    "modernbert": Expected(
        (fused("attn.Wqkv", "attn.Wo", rotary="halves"),),
        {"mlp.Wo": "mlp.Wi[1/2]"},
        readers={"attn_norm": ("attn.Wqkv",), "mlp_norm": ("mlp.Wi",)},
        raw_readers={"attn.Wqkv": "attn_norm"},  # the first block has no such norm
    ),
    "dinov2": Expected(
        (heads("attention", "q_proj k_proj v_proj o_proj"),),
        rectified={"mlp.fc2": "mlp.fc1"},
        readers={"norm1": tuple(f"attention.{one}_proj" for one in "qkv"), "norm2": ("mlp.fc1",)},
        write_scales={"mlp.fc2": "layer_scale2.lambda1", "attention.o_proj": "layer_scale1.lambda1"},
    ),
    "bert": Expected(
        (Heads("attention.output.dense", *((f"attention.self.{one}",) for one in ("value", "key", "query"))),),
        rectified={"output.dense": "intermediate.dense"},
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_parts_that_take_factors_are_those_of_the_familys_code(name: str) -> None:
    config: Any = build(FAMILIES[name]).config
    stack = derive({**config.to_dict(), "model_type": config.model_type}).stacks[0]
    found = Expected(
        stack.heads, stack.neurons, stack.rectified, stack.readers, stack.raw_readers, stack.write_scales, stack.mlp
    )  # type: ignore[arg-type]
    assert _sorted(found) == _sorted(EXPECTED[name])
    assert not stack.fixed_scale


def _sorted(one: Expected) -> dict[str, Any]:
    """The order of linears that read says nothing."""
    return vars(one) | {"readers": {norm: sorted(names) for norm, names in one.readers.items()}}


class Mixed(nn.Module):
    """A gated MLP whose norm is also read by something that no row names: a sum over all dimensions."""

    def __init__(self, more: float) -> None:
        super().__init__()
        self.more = more
        self.norm = nn.LayerNorm(8)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.norm(x)
        kept = nn.functional.gelu(self.gate(read)) * (self.up(read) + self.more)
        return x + self.down(kept) + self.more * read.sum(-1, keepdim=True).sin()


@pytest.mark.parametrize("more", [0.0, 0.5])
def test_what_is_not_all_that_reads_is_not_declared(more: float) -> None:
    torch.manual_seed(0)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = type("Config", (), {})()
            self.layers = nn.ModuleList([Mixed(more), Mixed(more)])

    model, x = Whole(), torch.randn(2, 3, 8)
    with torch.no_grad():
        got = model.layers[0](x)
    stack = Stack("layers.{layer}", last_linear=("down",), reading_norms=("norm",))
    (bound,) = bind((stack,), live_parameters(model))
    small = SmallModel(model, {}, {}, "", {})
    block = Factors(small, bound, 0, Call((x,), {}, x, got))
    before = {name: values.clone() for name, values in model.state_dict().items()}
    found = agreed([(block, block.search())])
    # With 0.5 more, the product is no product of the up projection, and the sum reads the norm, too.
    expected = (
        {"neurons": {"down": "up"}, "readers": {"norm": ("gate", "up")}}
        if not more
        else {"rectified": {"down": "gate"}}
    )
    assert found == expected
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
