"""THE table of GGUF architectures: what each holds, in Hugging Face's words.

    family = family_of("gemma2", stored_names)

To add a family: one entry in `FAMILIES`.
"""

from collections.abc import Collection, Mapping
from typing import Any

from outlierlens.checkpoints.gguf_names import BLOCK, Family

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PRE_NORM = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_SANDWICH = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The gate and up projections of experts, one parameter in Hugging Face, are two here and keep their names: `Family.experts`.
_EXPERTS = {"ffn_gate_inp": "mlp.gate", "ffn_down_exps": "mlp.experts.down_proj()"}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
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

_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}
_RMS = {
    **_KEYS,
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}
_LAYER_NORM = {**_KEYS, "layer_norm_eps": "attention.layer_norm_epsilon"}
_GPT2_KEYS = {
    "n_layer": "block_count",
    "n_embd": "embedding_length",
    "n_inner": "feed_forward_length",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "vocab_size": "vocab_size",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
_BLOOM_KEYS = {
    "n_layer": "block_count",
    "hidden_size": "embedding_length",
    "n_head": "attention.head_count",
    "seq_length": "context_length",
    "vocab_size": "vocab_size",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
_FALCON_KEYS = {
    **_KEYS,
    "ffn_hidden_size": "feed_forward_length",
    "num_kv_heads": "attention.head_count_kv",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}


_PAIRS = {"attn_q": "rotary", "attn_k": "rotary"}
_FUSED_EXPERTS = "mlp.experts.gate_up_proj()"


def _llama_like(model_type: str, inner: Mapping[str, str], **more: Any) -> Family:
    settings = {"keys": _RMS, "rope": ("rope_theta",), **more}
    return Family(model_type, "model.layers.{layer}", {**_ATTENTION, **inner}, _OUTER, **settings)


FAMILIES: dict[str, tuple[Family, ...]] = {
    # Mistral is stored as "llama" too: the same blocks, so the same row serves.
    "llama": (
        _llama_like(
            "mixtral",
            {
                **_PRE_NORM,
                **_EXPERTS,
                # Files from before April 2024 hold each expert on its own.
                "ffn_gate.{expert}": "block_sparse_moe.experts.{expert}.w1",
                "ffn_down.{expert}": "block_sparse_moe.experts.{expert}.w2",
                "ffn_up.{expert}": "block_sparse_moe.experts.{expert}.w3",
            },
            when="ffn_gate_inp",
            keys={**_RMS, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
            orders=_PAIRS,
            experts=_FUSED_EXPERTS,
        ),
        _llama_like(
            "llama",
            {**_PRE_NORM, **_GATED},
            orders=_PAIRS,
            flags={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"},
        ),
    ),
    "qwen2": (_llama_like("qwen2", {**_PRE_NORM, **_GATED}),),
    "qwen3": (_llama_like("qwen3", {**_PRE_NORM, **_GATED}),),
    "qwen3moe": (
        _llama_like(
            "qwen3_moe",
            {**_PRE_NORM, **_EXPERTS},
            keys={
                **_RMS,
                "num_experts": "expert_count",
                "num_experts_per_tok": "expert_used_count",
                "moe_intermediate_size": "expert_feed_forward_length",
            },
            constants={"norm_topk_prob": True},  # llama.cpp always normalizes
            experts=_FUSED_EXPERTS,
        ),
    ),
    "gpt-oss": (
        _llama_like(
            "gpt_oss",
            {
                **_EXPERTS,
                "attn_norm": "input_layernorm",
                "post_attention_norm": "post_attention_layernorm",
                "attn_sinks": "self_attn.sinks()",
                "ffn_gate_inp": "mlp.router",
            },
            # Hugging Face holds these experts [expert, in, out], unlike every other family's.
            swapped=frozenset({"ffn_down_exps"}),
            experts=_FUSED_EXPERTS,
            alternating=True,
            keys={
                **_RMS,
                "intermediate_size": "expert_feed_forward_length",
                "num_local_experts": "expert_count",
                "num_experts_per_tok": "expert_used_count",
            },
        ),
    ),
    # The norms of these multiply by 1 + w in Hugging Face, and the converters store the sum.
    "gemma": (_llama_like("gemma", {**_PRE_NORM, **_GATED}, norm_shift=1.0),),
    "gemma2": (_llama_like("gemma2", {**_SANDWICH, **_GATED}, norm_shift=1.0),),
    "gemma3": (_llama_like("gemma3_text", {**_SANDWICH, **_GATED}, norm_shift=1.0),),
    "olmo2": (
        _llama_like(
            "olmo2",
            {
                **_GATED,
                "post_attention_norm": "post_attention_layernorm",
                "post_ffw_norm": "post_feedforward_layernorm",
            },
        ),
    ),
    "phi2": (
        Family(
            "phi",
            "model.layers.{layer}",
            {
                **_ATTENTION,
                "attn_output": "self_attn.dense",
                "attn_norm": "input_layernorm",
                "ffn_up": "mlp.fc1",
                "ffn_down": "mlp.fc2",
            },
            {**_OUTER, "output_norm": "model.final_layernorm"},
            keys={**_LAYER_NORM, "num_key_value_heads": "attention.head_count_kv"},
            rope=("rope_theta", "partial_rotary_factor"),
        ),
    ),
    "phi3": (
        _llama_like(
            "phi3",
            {**_PRE_NORM, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
            rope=("rope_theta", "partial_rotary_factor"),
        ),
    ),
    "gpt2": (
        Family(
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
            keys=_GPT2_KEYS,
        ),
    ),
    "gptneox": (
        Family(
            "gpt_neox",
            "gpt_neox.layers.{layer}",
            {
                **_PRE_NORM,
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
            keys={**_LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
            orders={"attn_qkv": "heads"},
            rope=("rotary_emb_base", "rotary_pct"),
        ),
    ),
    "bloom": (
        Family(
            "bloom",
            "transformer.h.{layer}",
            {**_BLOOM_BLOCK, **_PRE_NORM},
            _BLOOM_OUTER,
            keys=_BLOOM_KEYS,
            orders={"attn_qkv": "heads"},
        ),
    ),
    "falcon": (
        # 40B and 180B norm what attention and MLP read apart; llama.cpp calls the MLP's norm the first of the two.
        Family(
            "falcon",
            "transformer.h.{layer}",
            {**_BLOOM_BLOCK, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
            _BLOOM_OUTER,
            when="attn_norm_2",
            keys=_FALCON_KEYS,
            constants={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
            orders={"attn_qkv": "groups"},
            rope=("rope_theta",),
            flags={"bias": "blk.0.ffn_up.bias"},
        ),
        Family(
            "falcon",
            "transformer.h.{layer}",
            {**_BLOOM_BLOCK, "attn_norm": "input_layernorm"},
            _BLOOM_OUTER,
            keys=_FALCON_KEYS,
            orders={"attn_qkv": "groups"},
            rope=("rope_theta",),
            flags={"bias": "blk.0.ffn_up.bias"},
        ),
    ),
    "bert": (
        Family(
            "bert",
            "encoder.layer.{layer}",
            {
                "attn_q": "attention.self.query",
                "attn_k": "attention.self.key",
                "attn_v": "attention.self.value",
                "attn_output": "attention.output.dense",
                "attn_output_norm": "attention.output.LayerNorm",
                "ffn_up": "intermediate.dense",
                "ffn_down": "output.dense",
                "layer_output_norm": "output.LayerNorm",
            },
            {
                "token_embd": "embeddings.word_embeddings",
                "position_embd": "embeddings.position_embeddings",
                "token_types": "embeddings.token_type_embeddings",
                "token_embd_norm": "embeddings.LayerNorm",
            },
            keys=_LAYER_NORM,
        ),
    ),
}


def family_of(architecture: str, stored: Collection[str]) -> Family | None:
    """The family behind `general.architecture`, told apart by the modules of `stored` where there are several."""
    modules = {match[2].rpartition(".")[0] for name in stored if (match := BLOCK.match(name))}
    families = FAMILIES.get(architecture, ())
    return next((family for family in families if not family.when or family.when in modules), None)
