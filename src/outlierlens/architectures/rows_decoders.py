"""Rows of decoders, first those built like Llama, Phi among them. See `Stack` and `Family` for what each field means."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outlierlens.architectures.derived import packaged_stacks
from outlierlens.architectures.stack import (
    KEYS,
    LAYER_NORM_KEYS,
    PRE_NORM,
    AttentionWeights,
    Config,
    Family,
    Gguf,
    Stack,
)

_EXPERTS_UP = "mlp.experts.gate_up_proj()"

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


def variant_decoder(config: Config) -> tuple[Stack, ...]:
    """Llama, whose heads may have a gate."""
    ((stack,),) = packaged_stacks({"model_type": "llama"})
    if config.get("attention_kind") != "gated":
        return (stack,)
    first = "input_layernorm"
    return (replace(stack, readers={**stack.readers, first: (*stack.readers[first], "self_attn.gate")}),)


LIKE_LLAMA: dict[str, Family] = {
    "outlierlens-llama": Family(stacks=variant_decoder),
    "llama": Family(
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
    "mistral": Family(),
    "mixtral": Family(
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
    "qwen2": Family(gguf=(_gguf("qwen2", {**PRE_NORM, **_GATED}),)),
    "qwen3": Family(gguf=(_gguf("qwen3", {**PRE_NORM, **_GATED}),)),
    "qwen3_moe": Family(
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
    "gemma": Family(gguf=(_gguf("gemma", {**PRE_NORM, **_GATED}, norm_shift=1.0),)),
    "gemma2": Family(gguf=(_gguf("gemma2", {**_SANDWICH, **_GATED}, norm_shift=1.0, by_hidden=46),)),
    "gemma3": Family(),
    "gemma3_text": Family(
        gguf=(_gguf("gemma3", {**_SANDWICH, **_GATED}, norm_shift=1.0, by_hidden=62, kin=("gemma3",)),)
    ),
    "olmo2": Family(
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

# --- other decoders --------------------------------------------------------------------------------------------------


def _shorten_gpt_neo(values: dict[str, Any], n_blocks: int) -> None:
    kinds = [kind for kinds, times in values["attention_types"] for _ in range(times) for kind in kinds]
    values["attention_types"] = [[kinds[:n_blocks], 1]]
    values["attention_layers"] = kinds[:n_blocks]


_GPT2_TABLES = {"wte": "token", "wpe": "position"}
_BLOOM_BLOCK = {
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_BLOOM_OUTER = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_FALCON_GGUF = Gguf(
    "falcon",
    "transformer.h.{layer}",
    {**_BLOOM_BLOCK, "attn_norm": "input_layernorm"},
    _BLOOM_OUTER,
    keys={
        **KEYS,
        "ffn_hidden_size": "feed_forward_length",
        "num_kv_heads": "attention.head_count_kv",
        "layer_norm_epsilon": "attention.layer_norm_epsilon",
    },
    orders={"attn_qkv": "groups"},
    rope=("rope_theta",),
    flags={"bias": "blk.0.ffn_up.bias"},
    several_keys={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
)

ROWS: dict[str, Family] = {
    "gpt2": Family(
        tables=_GPT2_TABLES,
        gguf=(
            Gguf(
                "gpt2",
                "transformer.h.{layer}",
                {
                    "attn_norm": "ln_1",
                    "attn_qkv": "attn.c_attn",
                    "attn_output": "attn.c_proj",
                    "ffn_norm": "ln_2",
                    "ffn_up": "mlp.c_fc",
                    "ffn_down": "mlp.c_proj",
                },
                {
                    "token_embd": "transformer.wte",
                    "position_embd": "transformer.wpe",
                    "output_norm": "transformer.ln_f",
                    "output": "lm_head",
                },
                # Conv1D holds [in, out]; the converter stores [out, in].
                swapped=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
                keys={
                    "n_layer": "block_count",
                    "n_embd": "embedding_length",
                    "n_inner": "feed_forward_length",
                    "n_head": "attention.head_count",
                    "n_positions": "context_length",
                    "vocab_size": "vocab_size",
                    "layer_norm_epsilon": "attention.layer_norm_epsilon",
                },
            ),
        ),
    ),
    "gpt_neo": Family(
        tables=_GPT2_TABLES,
        attention=AttentionWeights(window="attn.attention.bias"),
        shorten=_shorten_gpt_neo,
    ),
    "gpt_neox": Family(
        prefix="gpt_neox",
        tables={"embed_in": "token"},
        renamed={"embed_out.weight": "lm_head.weight"},
        gguf=(
            Gguf(
                "gptneox",
                "gpt_neox.layers.{layer}",
                {
                    **PRE_NORM,
                    "attn_qkv": "attention.query_key_value",
                    "attn_output": "attention.dense",
                    "ffn_up": "mlp.dense_h_to_4h",
                    "ffn_down": "mlp.dense_4h_to_h",
                },
                {
                    "token_embd": "gpt_neox.embed_in",
                    "output_norm": "gpt_neox.final_layer_norm",
                    "output": "embed_out",
                },
                keys={**LAYER_NORM_KEYS, "use_parallel_residual": "use_parallel_residual"},
                orders={"attn_qkv": "heads"},
                rope=("rotary_emb_base", "rotary_pct"),
            ),
        ),
    ),
    "bloom": Family(
        attention=AttentionWeights(),
        gguf=(
            Gguf(
                "bloom",
                "transformer.h.{layer}",
                {**_BLOOM_BLOCK, **PRE_NORM},
                _BLOOM_OUTER,
                keys={
                    "n_layer": "block_count",
                    "hidden_size": "embedding_length",
                    "n_head": "attention.head_count",
                    "seq_length": "context_length",
                    "vocab_size": "vocab_size",
                    "layer_norm_epsilon": "attention.layer_norm_epsilon",
                },
                orders={"attn_qkv": "heads"},
            ),
        ),
    ),
    "falcon": Family(
        attention=AttentionWeights(),
        gguf=(
            # 40B and 180B norm what attention and MLP read apart; llama.cpp calls the MLP's norm the first of the two.
            replace(
                _FALCON_GGUF,
                inner={**_BLOOM_BLOCK, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
                when="attn_norm_2",
                constants={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
                several_keys={},
            ),
            _FALCON_GGUF,
        ),
    ),
    "opt": Family(first_position=2),
}
