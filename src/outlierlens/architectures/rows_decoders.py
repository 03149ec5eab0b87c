"""Rows of decoders, first those built like Llama, Phi among them. See `Stack` and `Family` for what each field means."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outlierlens.architectures.rows_encoders import SIGLIP_VISION
from outlierlens.architectures.stack import (
    KEYS,
    LAYER_NORM_KEYS,
    PRE_NORM,
    AttentionWeights,
    Config,
    Family,
    Gguf,
    Heads,
    Stack,
    fused,
    heads,
)
from outlierlens.errors import UnknownArchitecture

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


LIKE_LLAMA: dict[str, Family] = {
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

# --- other decoders --------------------------------------------------------------------------------------------------

GPT2 = Stack(
    blocks="h.{layer}",
    layers="n_layer",
    last_linear=("mlp.c_proj",),
    other_writes=("attn.c_proj", "crossattention.c_proj"),
    reading_norms=("ln_1", "ln_cross_attn", "ln_2"),
    embeddings=("wte", "wpe"),
    final_norm="ln_f",
    weight_is_in_by_out=True,
    rectified={"mlp.c_proj": "mlp.c_fc"},
    activation="activation_function",
    heads=(
        fused("attn.c_attn", "attn.c_proj"),
        Heads(
            "crossattention.c_proj",
            ("crossattention.c_attn[1/2]",),
            ("crossattention.c_attn[0/2]",),
            ("crossattention.q_attn",),
        ),
    ),
    readers={"ln_1": ("attn.c_attn",), "ln_cross_attn": ("crossattention.q_attn",), "ln_2": ("mlp.c_fc",)},
)
GPT_NEO = Stack(
    blocks="h.{layer}",
    layers="num_layers",
    last_linear=("mlp.c_proj",),
    other_writes=("attn.attention.out_proj",),
    reading_norms=("ln_1", "ln_2"),
    embeddings=("wte", "wpe"),
    final_norm="ln_f",
    rectified={"mlp.c_proj": "mlp.c_fc"},
    activation="activation_function",
    heads=(heads("attn.attention", "q_proj k_proj v_proj out_proj"),),
    readers={
        "ln_1": ("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
        "ln_2": ("mlp.c_fc",),
    },
)
GPT_NEOX = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.dense_4h_to_h",),
    other_writes=("attention.dense",),
    reading_norms=("input_layernorm", "post_attention_layernorm"),
    embeddings=("embed_in",),
    final_norm="final_layer_norm",
    rectified={"mlp.dense_4h_to_h": "mlp.dense_h_to_4h"},
    heads=(fused("attention.query_key_value", "attention.dense", each_head=True, rotary="halves"),),
    readers={
        "input_layernorm": ("attention.query_key_value",),
        "post_attention_layernorm": ("mlp.dense_h_to_4h",),
    },
)
_QKV, _FIRST = "self_attention.query_key_value", "mlp.dense_h_to_4h"  # of BLOOM and Falcon


def opt(config: Config) -> tuple[Stack, ...]:
    """Pre-norm, but post-norm where `do_layer_norm_before` is false (OPT-350m), which also projects its embeddings."""
    norms = ("self_attn_layer_norm", "final_layer_norm")
    stack = Stack(
        blocks="decoder.layers.{layer}",
        last_linear=("fc2",),
        other_writes=("self_attn.out_proj",),
        reading_norms=norms,
        embeddings=("decoder.embed_tokens", "decoder.embed_positions"),
        final_norm="decoder.final_layer_norm",
        rectified={"fc2": "fc1"},
        activation="activation_function",
        heads=(heads("self_attn", "q_proj k_proj v_proj out_proj"),),
        readers={
            "self_attn_layer_norm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "final_layer_norm": ("fc1",),
        },
    )
    if not config.get("do_layer_norm_before", True):
        stack = replace(
            stack,
            norm_site="stream",
            last_norm=norms[1],
            other_norms=norms[:1],
            reading_norms=(),
            final_norm="",
            readers={},
        )
    width = config.get("hidden_size")
    if (config.get("word_embed_proj_dim") or width) != width:
        stack = replace(stack, embeddings=("decoder.embed_positions",), embedding_linears=("decoder.project_in",))
    return (stack,)


def bloom(config: Config) -> tuple[Stack, ...]:
    """Pre-norm with normed embeddings; a variant that adds to normed values has no residual stream."""
    if config.get("apply_residual_connection_post_layernorm"):
        raise UnknownArchitecture(
            "apply_residual_connection_post_layernorm is true in this bloom config: its blocks add to normed values, "
            "so no dimension is carried from block to block; set it to false if the weights were trained so"
        )
    return (
        Stack(
            blocks="h.{layer}",
            layers="n_layer",
            last_linear=("mlp.dense_4h_to_h",),
            other_writes=("self_attention.dense",),
            reading_norms=("input_layernorm", "post_attention_layernorm"),
            embeddings=("word_embeddings",),
            embedding_norm="word_embeddings_layernorm",
            final_norm="ln_f",
            heads=(fused(_QKV, "self_attention.dense", each_head=True),),
            readers={"input_layernorm": (_QKV,), "post_attention_layernorm": (_FIRST,)},
        ),
    )


def falcon(config: Config) -> tuple[Stack, ...]:
    """Pre-norm; how many norms read depends on whether attention and MLP run side by side."""
    n_parallel_norms = config.get("num_ln_in_parallel_attn")
    if n_parallel_norms is None and config.get("new_decoder_architecture", False):
        n_parallel_norms = 2
    if not config.get("parallel_attn", True):
        readers: dict[str, tuple[str, ...]] = {"input_layernorm": (_QKV,), "post_attention_layernorm": (_FIRST,)}
    elif n_parallel_norms == 2:
        readers = {"ln_attn": (_QKV,), "ln_mlp": (_FIRST,)}
    else:
        readers = {"input_layernorm": (_QKV, _FIRST)}
    each_head = bool(config.get("new_decoder_architecture", False)) or not config.get("multi_query", True)
    return (
        Stack(
            blocks="h.{layer}",
            last_linear=("mlp.dense_4h_to_h",),
            other_writes=("self_attention.dense",),
            reading_norms=tuple(readers),
            embeddings=("word_embeddings",),
            final_norm="ln_f",
            rectified={"mlp.dense_4h_to_h": _FIRST},
            activation="activation",
            heads=(fused(_QKV, "self_attention.dense", each_head=each_head, rotary="halves"),),
            readers=readers,
        ),
    )


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
        (GPT2,),
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
        (GPT_NEO,),
        tables=_GPT2_TABLES,
        attention=AttentionWeights(window="attn.attention.bias"),
        shorten=_shorten_gpt_neo,
    ),
    "gpt_neox": Family(
        (GPT_NEOX,),
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
        bloom,
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
        falcon,
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
    "opt": Family(opt, first_position=2),
}
