"""What llama.cpp's converters did to names, layout and config, as data, so that it can be read the other way round.

    family = family_of("gemma2", stored_names)
    family.translate("blk.3.ffn_down.weight")       # Translation("model.layers.3.mlp.down_proj.weight", ...)
    family.config(metadata, "gemma2")               # {"model_type": "gemma2", "num_hidden_layers": 26, ...}

To add a family: one entry in `FAMILIES`. Tensors that no entry names keep their GGUF name.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlierlens.errors import BadFile

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(.+)\Z")
_EXPERT = re.compile(r"(.+)\.(0|[1-9]\d{0,8})\Z")


@dataclass(frozen=True)
class Translation:
    """One tensor as Hugging Face has it, and what undoes the converter's changes to its values.

    Attributes:
        name: the Hugging Face name.
        swap: the last two axes must be swapped.
        shift: what must be added to the values.
    """

    name: str
    swap: bool = False
    shift: float = 0.0


@dataclass(frozen=True)
class Family:
    """One model family in GGUF's words and in Hugging Face's.

    Attributes:
        model_type: the Hugging Face `model_type`.
        blocks: path of a block; "{layer}" is its number.
        inner: GGUF module of a block -> path within the block. A path that ends in "()" is a bare parameter ("p" and
            "p_bias"); "{expert}" stands for the number in names such as "ffn_down.7".
        outer: GGUF module outside the blocks -> full path.
        when: module of a block whose presence tells this family from others of the same GGUF architecture.
        swapped: modules whose weight the converter transposed.
        norm_shift: what the converter added to the weight of every norm.
        keys: config key -> metadata key without the architecture's prefix.
        constants: config values that the architecture implies.
    """

    model_type: str
    blocks: str
    inner: Mapping[str, str]
    outer: Mapping[str, str]
    when: str = ""
    swapped: frozenset[str] = frozenset()
    norm_shift: float = 0.0
    keys: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    def translate(self, stored: str) -> Translation:
        """The Hugging Face name of a GGUF tensor, or `stored` itself where the table has none."""
        stem, _, leaf = stored.rpartition(".")
        if leaf not in ("weight", "bias"):
            return Translation(stored)
        match = _BLOCK.match(stem)
        module = match[2] if match else stem
        path = self._inner(module) if match else self.outer.get(module)
        if path is None:
            return Translation(stored)
        start = self.blocks.replace("{layer}", match[1]) + "." if match else ""
        is_weight = leaf == "weight"
        return Translation(
            name=start + _parameter(path, leaf),
            swap=is_weight and module in self.swapped,
            shift=-self.norm_shift if is_weight and self.norm_shift and module.endswith("norm") else 0.0,
        )

    def _inner(self, module: str) -> str | None:
        if module in self.inner:
            return self.inner[module]
        match = _EXPERT.match(module)
        path = self.inner.get(match[1] + ".{expert}") if match else None
        return path.replace("{expert}", match[2]) if match and path else None

    def config(self, metadata: Mapping[str, Any], architecture: str, where: str) -> dict[str, Any]:
        """The part of a `config.json` that the metadata holds; raises BadFile for a value of the wrong type."""
        config: dict[str, Any] = {"model_type": self.model_type, **self.constants}
        for key, suffix in self.keys.items():
            value = metadata.get(f"{architecture}.{suffix}")
            if value is None:
                continue  # absent, or an array with one value a layer, which no config key holds
            kind: type = float if suffix.endswith(("epsilon", "freq_base")) else bool if key.startswith("use_") else int
            # JSON has one kind of number, and writers differ in whether a whole number is stored as a float.
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise BadFile(
                    f"{where}: metadata {architecture}.{suffix} is {value!r}, not of type {kind.__name__}; "
                    "the file is corrupt, convert the model again"
                )
            config[key] = value
        return config


def _parameter(path: str, leaf: str) -> str:
    if path.endswith("()"):
        return path[:-2] if leaf == "weight" else f"{path[:-2]}_bias"
    return f"{path}.{leaf}"


def family_of(architecture: str, stored: Collection[str]) -> Family | None:
    """The family behind `general.architecture`, told apart by the modules of `stored` where there are several."""
    modules = {match[2].rpartition(".")[0] for name in stored if (match := _BLOCK.match(name))}
    families = FAMILIES.get(architecture, ())
    return next((family for family in families if not family.when or family.when in modules), None)


# The query and key rows of a Llama are stored in llama.cpp's order of rotary pairs. They read the residual stream and
# never write to it, so no measure here depends on their order, and it is not undone. Fused qkv likewise (NeoX, Bloom).
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
# The experts' gate and up projections, one parameter in Hugging Face, are two here and keep their GGUF names.
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
    "num_kv_heads": "attention.head_count_kv",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}


def _llama_like(model_type: str, inner: Mapping[str, str], **more: Any) -> Family:
    return Family(model_type, "model.layers.{layer}", {**_ATTENTION, **inner}, _OUTER, **{"keys": _RMS, **more})


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
        ),
        _llama_like("llama", {**_PRE_NORM, **_GATED}),
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
        ),
    ),
    "phi3": (
        _llama_like(
            "phi3",
            {**_PRE_NORM, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
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
        ),
    ),
    "bloom": (Family("bloom", "transformer.h.{layer}", {**_BLOOM_BLOCK, **_PRE_NORM}, _BLOOM_OUTER, keys=_BLOOM_KEYS),),
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
        ),
        Family(
            "falcon",
            "transformer.h.{layer}",
            {**_BLOOM_BLOCK, "attn_norm": "input_layernorm"},
            _BLOOM_OUTER,
            keys=_FALCON_KEYS,
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
