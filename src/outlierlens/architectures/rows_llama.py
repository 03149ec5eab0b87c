"""Rows of decoders that are built like Llama, Phi among them. See `Stack` and `Family` for what each field means."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outlierlens.architectures.family import Family
from outlierlens.architectures.gguf import KEYS, LAYER_NORM_KEYS, PRE_NORM, Gguf
from outlierlens.architectures.heads import fused, heads
from outlierlens.architectures.rows_encoders import SIGLIP_VISION
from outlierlens.architectures.stack import Stack

_READ = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_EXPERTS_UP = "mlp.experts.gate_up_proj()"

LLAMA = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.down_proj",),
    other_writes=("self_attn.o_proj",),
    reading_norms=("input_layernorm", "post_attention_layernorm"),
    embeddings=("embed_tokens",),
    final_norm="norm",
    neurons={"mlp.down_proj": "mlp.up_proj"},
    heads=(heads("self_attn", "q_proj k_proj v_proj o_proj", norms="q_norm k_norm", rotary="halves"),),
    readers={"input_layernorm": _READ, "post_attention_layernorm": _GATE_UP},
)
PHI3 = replace(
    LLAMA,
    neurons={"mlp.down_proj": "mlp.gate_up_proj[1/2]"},
    heads=(fused("self_attn.qkv_proj", "self_attn.o_proj", rotary="halves"),),
    readers={"input_layernorm": ("self_attn.qkv_proj",), "post_attention_layernorm": ("mlp.gate_up_proj",)},
)
GEMMA = replace(LLAMA, norm_offset=1.0)
GEMMA2 = replace(
    GEMMA,
    norm_site="write",
    last_norm="post_feedforward_layernorm",
    other_norms=("post_attention_layernorm",),
    reading_norms=("input_layernorm", "pre_feedforward_layernorm"),
    readers={"input_layernorm": _READ, "pre_feedforward_layernorm": _GATE_UP},
)
OLMO2 = replace(
    LLAMA,
    norm_site="write",
    last_norm="post_feedforward_layernorm",
    other_norms=("post_attention_layernorm",),
    reading_norms=(),
    readers={},
    raw_readers=dict.fromkeys((*_READ, *_GATE_UP), ""),
)
PHI = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.fc2",),
    other_writes=("self_attn.dense",),
    reading_norms=("input_layernorm",),  # attention and MLP run side by side on one norm
    embeddings=("embed_tokens",),
    final_norm="final_layernorm",
    rectified={"mlp.fc2": "mlp.fc1"},
    heads=(heads("self_attn", "q_proj k_proj v_proj dense", norms="q_layernorm k_layernorm", rotary="halves"),),
    readers={"input_layernorm": (*_READ, "mlp.fc1")},
)
MIXTRAL = replace(
    LLAMA,
    last_linear=("mlp.experts.down_proj()",),
    experts="num_local_experts",
    neurons={"mlp.experts.down_proj()": f"{_EXPERTS_UP}[1/2]"},
    axes={"mlp.experts.gate_up_proj": -1},
    readers={"input_layernorm": _READ, "post_attention_layernorm": ("mlp.gate", _EXPERTS_UP)},
    stored_as={"mlp.experts.down_proj": ("block_sparse_moe.experts.{expert}.w2.weight",)},
)
QWEN3_MOE = replace(
    LLAMA,
    last_linear=("mlp.experts.down_proj()",),
    experts="num_experts",
    neurons={**LLAMA.neurons, **MIXTRAL.neurons},
    axes=MIXTRAL.axes,
    readers={"input_layernorm": _READ, "post_attention_layernorm": (*_GATE_UP, "mlp.gate", _EXPERTS_UP)},
    # The last name is that of the layers without experts (mlp_only_layers, decoder_sparse_step).
    stored_as={"mlp.experts.down_proj": ("mlp.experts.{expert}.down_proj.weight", "mlp.down_proj.weight")},
)
GPT_OSS = replace(
    LLAMA,
    last_linear=("mlp.experts.down_proj()",),
    experts="num_local_experts",
    # [expert, in, out], while attention's o_proj is [out, in]
    axes={"mlp.experts.down_proj": -1, "mlp.experts.gate_up_proj": -2},
    neurons={},  # it adds 1 to what the up projection gives, and clips it
    readers={"input_layernorm": _READ, "post_attention_layernorm": ("mlp.router", _EXPERTS_UP)},
)

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_SANDWICH = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The gate and up projections of experts, one parameter in Hugging Face, are two here and keep their names: `Gguf.experts`.
_EXPERTS = {"ffn_gate_inp": "mlp.gate", "ffn_down_exps": "mlp.experts.down_proj()"}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_RMS = {
    **KEYS,
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}
_PAIRS = {"attn_q": "rotary", "attn_k": "rotary"}


def _gguf(architecture: str, inner: Mapping[str, str], **more: Any) -> Gguf:
    settings = {"keys": _RMS, "rope": ("rope_theta",), **more}
    return Gguf(architecture, "model.layers.{layer}", {**_ATTENTION, **inner}, _OUTER, **settings)


ROWS: dict[str, Family] = {
    "llama": Family(
        (LLAMA,),
        gguf=(
            # Mistral is stored as "llama" too: the same blocks, so the same row serves.
            _gguf(
                "llama",
                {**PRE_NORM, **_GATED},
                orders=_PAIRS,
                flags={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
                kin=("mistral",),
            ),
        ),
    ),
    "mistral": Family((LLAMA,)),
    "mixtral": Family(
        (MIXTRAL,),
        gguf=(
            _gguf(
                "llama",
                {
                    **PRE_NORM,
                    **_EXPERTS,
                    # Files from before April 2024 hold each expert on its own.
                    "ffn_gate.{expert}": "block_sparse_moe.experts.{expert}.w1",
                    "ffn_down.{expert}": "block_sparse_moe.experts.{expert}.w2",
                    "ffn_up.{expert}": "block_sparse_moe.experts.{expert}.w3",
                },
                when="ffn_gate_inp",
                keys={**_RMS, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
                orders=_PAIRS,
                experts=_EXPERTS_UP,
            ),
        ),
    ),
    "qwen2": Family((LLAMA,), gguf=(_gguf("qwen2", {**PRE_NORM, **_GATED}),)),
    "qwen3": Family((LLAMA,), gguf=(_gguf("qwen3", {**PRE_NORM, **_GATED}),)),
    "qwen3_moe": Family(
        (QWEN3_MOE,),
        gguf=(
            _gguf(
                "qwen3moe",
                {**PRE_NORM, **_EXPERTS},
                keys={
                    **_RMS,
                    "num_experts": "expert_count",
                    "num_experts_per_tok": "expert_used_count",
                    "moe_intermediate_size": "expert_feed_forward_length",
                },
                constants={"norm_topk_prob": True},  # llama.cpp always normalizes
                experts=_EXPERTS_UP,
            ),
        ),
    ),
    "gpt_oss": Family(
        (GPT_OSS,),
        gguf=(
            _gguf(
                "gpt-oss",
                {
                    **_EXPERTS,
                    "attn_norm": "input_layernorm",
                    "post_attention_norm": "post_attention_layernorm",
                    "attn_sinks": "self_attn.sinks()",
                    "ffn_gate_inp": "mlp.router",
                },
                # Hugging Face holds these experts [expert, in, out], unlike every other family's.
                swapped=frozenset({"ffn_down_exps"}),
                experts=_EXPERTS_UP,
                alternating=True,
                keys={
                    **_RMS,
                    "intermediate_size": "expert_feed_forward_length",
                    "num_local_experts": "expert_count",
                    "num_experts_per_tok": "expert_used_count",
                },
                yarn={"truncate": False},
            ),
        ),
    ),
    "gemma": Family((GEMMA,), gguf=(_gguf("gemma", {**PRE_NORM, **_GATED}),)),
    "gemma2": Family((GEMMA2,), gguf=(_gguf("gemma2", {**_SANDWICH, **_GATED}, by_hidden=46),)),
    "gemma3": Family(
        (
            replace(
                GEMMA2,
                name="text",
                layers="text_config.num_hidden_layers",
                fixed_scale="a projector with a norm of its own writes pictures to it",
            ),
            replace(SIGLIP_VISION, name="vision", layers="vision_config.num_hidden_layers"),
        )
    ),
    "gemma3_text": Family((GEMMA2,), gguf=(_gguf("gemma3", {**_SANDWICH, **_GATED}, by_hidden=62, kin=("gemma3",)),)),
    "olmo2": Family(
        (OLMO2,),
        gguf=(
            _gguf(
                "olmo2",
                {
                    **_GATED,
                    "post_attention_norm": "post_attention_layernorm",
                    "post_ffw_norm": "post_feedforward_layernorm",
                },
                others={"attention.sliding_window": "OLMo 3, which shares OLMo 2's name in GGUF"},
            ),
        ),
    ),
    "phi": Family(
        (PHI,),
        gguf=(
            Gguf(
                "phi2",
                "model.layers.{layer}",
                {
                    **_ATTENTION,
                    "attn_output": "self_attn.dense",
                    "attn_norm": "input_layernorm",
                    "ffn_up": "mlp.fc1",
                    "ffn_down": "mlp.fc2",
                },
                {**_OUTER, "output_norm": "model.final_layernorm"},
                keys={**LAYER_NORM_KEYS, "num_key_value_heads": "attention.head_count_kv"},
                rope=("rope_theta", "partial_rotary_factor"),
            ),
        ),
    ),
    "phi3": Family(
        (PHI3,),
        gguf=(
            _gguf(
                "phi3",
                {
                    **PRE_NORM,
                    "attn_qkv": "self_attn.qkv_proj",
                    "ffn_up": "mlp.gate_up_proj",
                    "ffn_down": "mlp.down_proj",
                },
                rope=("rope_theta", "partial_rotary_factor"),
            ),
        ),
    ),
}
