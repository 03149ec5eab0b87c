"""Tiny random models, one for each row of the architecture table and each variant of a row.

    family = FAMILIES["opt-post-norm"]
    model = build(family)                        # evaluation mode, two or three layers, seeded
    model(**batch(family))

Every parameter is moved off its initial value, so that a norm's scale is not 1 and no bias is 0.
"""

from dataclasses import dataclass, field
from typing import Any

D_FF = 24
TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": D_FF,
}
TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 32}
GROUPED = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
IMAGE = {key: TEXT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
IMAGE |= {"image_size": 16, "patch_size": 8}
DINO = {key: value for key, value in IMAGE.items() if key != "intermediate_size"} | {"mlp_ratio": 2}
CLIP_TEXT = TEXT | {"num_hidden_layers": 2, "max_position_embeddings": 8}
AUDIO = IMAGE | {"conv_dim": [8, 8], "conv_kernel": [3, 3], "conv_stride": [2, 2], "vocab_size": 12, "pad_token_id": 0}
AUDIO |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
BART = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 24}
BART |= {"decoder_ffn_dim": 28, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
WHISPER = BART | {"num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 8}
T5 = {"vocab_size": 40, "d_model": 16, "num_layers": 2, "num_decoder_layers": 3, "d_kv": 8, "num_heads": 2, "d_ff": 24}
T5 |= {"decoder_start_token_id": 0}
GPT = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}

NORM = 2  # scale and bias of one norm: one value each for a dimension
LINEAR = D_FF + 1  # a row of the last linear, and its bias


@dataclass(frozen=True)
class Family:
    """One variant of a row.

    `values`: how many values of the block's last operation (scale and bias) one dimension has in each layer, by stack.
    `heads`: task models that must bind like the bare model. `extra`: what else enters the stream before block 0.
    """

    name: str
    model_type: str
    config: dict[str, Any]
    values: dict[str, tuple[int, ...]]
    heads: tuple[str, ...] = ()
    inputs: str = "text"
    extra: tuple[str, ...] = ()
    between: bool = field(default=False)  # something runs on the stream between blocks 0 and 1


def _family(name: str, config: dict[str, Any], per_layer: int, *heads: str, n_layers: int = 3, **other: Any) -> Family:
    model_type = other.pop("model_type", name)
    return Family(name, model_type, config, {"model": (per_layer,) * n_layers}, heads, **other)


_MASKED = ("MaskedLM", "SequenceClassification")
_CAUSAL = ("CausalLM", "SequenceClassification")
_TOWERS = {
    "text_config": CLIP_TEXT,
    "vision_config": IMAGE,
    "projection_dim": 8,
}
_ALL = [
    _family("bert", TEXT, NORM, *_MASKED),
    _family(
        "bert-cross-attention",
        TEXT | {"is_decoder": True, "add_cross_attention": True},
        NORM,
        model_type="bert",
        inputs="cross",
    ),
    _family("roberta", TEXT, NORM, *_MASKED),
    _family("xlm-roberta", TEXT, NORM, *_MASKED),
    _family("camembert", TEXT, NORM, *_MASKED),
    _family("electra-discriminator", TEXT | {"embedding_size": 16}, NORM, "PreTraining", model_type="electra"),
    _family("electra-generator", TEXT | {"embedding_size": 8}, NORM, "MaskedLM", model_type="electra"),
    _family(
        "distilbert",
        {"vocab_size": 40, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": D_FF, "max_position_embeddings": 32},
        NORM,
        *_MASKED,
    ),
    _family("albert", TEXT | {"embedding_size": 8}, NORM, *_MASKED),
    _family(
        "albert-groups",
        TEXT | {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
        NORM,
        model_type="albert",
        n_layers=8,
    ),
    _family("mpnet", TEXT, NORM, *_MASKED),
    _family("outlierlens-bert", TEXT, NORM, "MaskedLM"),
    _family(
        "outlierlens-bert-rmsnorm",
        TEXT | {"norm_kind": "rmsnorm", "position_kind": "alibi", "attention_kind": "clipped"},
        1,
        "MaskedLM",
        model_type="outlierlens-bert",
    ),
    _family(
        "outlierlens-bert-pre-norm",
        TEXT | {"norm_order": "pre", "position_kind": "relative", "attention_kind": "gated"},
        LINEAR,
        "MaskedLM",
        model_type="outlierlens-bert",
    ),
    _family(
        "outlierlens-bert-pre-rmsnorm",
        TEXT | {"norm_order": "pre", "norm_kind": "rmsnorm", "position_kind": "rotary"},
        LINEAR,
        "MaskedLM",
        model_type="outlierlens-bert",
    ),
    _family("deberta", TEXT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, NORM, *_MASKED),
    _family(
        "deberta-v2",
        TEXT
        | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm", "position_biased_input": False},
        NORM,
        *_MASKED,
    ),
    _family(
        "deberta-v2-convolution",
        TEXT | {"conv_kernel_size": 3, "embedding_size": 8},
        NORM,
        model_type="deberta-v2",
        between=True,
    ),
    _family("modernbert", TEXT | {"cls_token_id": 1, "sep_token_id": 2}, D_FF, *_MASKED),
    _family(
        "xlnet",
        {"vocab_size": 40, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": D_FF},
        NORM,
        "CausalLM",
        "SequenceClassification",
    ),
    Family(
        "bart", "bart", BART, {"encoder": (2, 2), "decoder": (2, 2, 2)}, ("Seq2SeqLM", "SequenceClassification"), "pair"
    ),
    Family("t5", "t5", T5, {"encoder": (24, 24), "decoder": (24, 24, 24)}, ("Seq2SeqLM",), "pair"),
    Family(
        "t5-gated",
        "t5",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"encoder": (24, 24), "decoder": (24, 24, 24)},
        ("Seq2SeqLM",),
        "pair",
    ),
    Family("mt5", "mt5", T5, {"encoder": (24, 24), "decoder": (24, 24, 24)}, ("Seq2SeqLM",), "pair"),
    _family(
        "gpt2", GPT | {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_inner": D_FF, "n_positions": 32}, LINEAR, *_CAUSAL
    ),
    _family(
        "gpt2-cross-attention",
        GPT | {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_inner": D_FF, "add_cross_attention": True},
        LINEAR,
        model_type="gpt2",
        inputs="cross",
    ),
    _family(
        "gpt_neo",
        GPT
        | {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": D_FF, "max_position_embeddings": 32}
        | {"attention_types": [[["global", "local"], 1]]},
        LINEAR,
        *_CAUSAL,
        n_layers=2,
    ),
    _family("gpt_neox", TEXT, LINEAR, *_CAUSAL),
    _family("gpt_neox-sequential", TEXT | {"use_parallel_residual": False}, LINEAR, model_type="gpt_neox"),
    _family("opt", TEXT | {"ffn_dim": D_FF, "word_embed_proj_dim": 16}, LINEAR, *_CAUSAL),
    _family(
        "opt-post-norm",
        TEXT | {"ffn_dim": D_FF, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
        NORM,
        *_CAUSAL,
        model_type="opt",
    ),
    _family("llama", GROUPED, D_FF, *_CAUSAL),
    _family("outlierlens-llama", GROUPED | {"attention_kind": "gated"}, D_FF, "CausalLM"),
    _family("llama-biases", GROUPED | {"attention_bias": True, "mlp_bias": True}, LINEAR, model_type="llama"),
    _family("mistral", GROUPED, D_FF, *_CAUSAL),
    _family("qwen2", GROUPED, D_FF, *_CAUSAL),
    _family("qwen3", GROUPED, D_FF, *_CAUSAL),
    _family("phi3", GROUPED, D_FF, *_CAUSAL),
    _family("gemma", GROUPED, D_FF, *_CAUSAL),
    _family("gemma2", GROUPED, 1, *_CAUSAL),
    _family("gemma3_text", GROUPED, 1, "CausalLM"),
    Family(
        "gemma3",
        "gemma3",
        {"text_config": GROUPED, "vision_config": IMAGE, "mm_tokens_per_image": 4, "image_token_id": 39},
        {"text": (1, 1, 1), "vision": (LINEAR, LINEAR, LINEAR)},
        ("ImageTextToText",),
        "image and text",
        extra=("text",),
    ),
    _family("olmo2", TEXT, 1, *_CAUSAL),
    _family("phi", TEXT, LINEAR, *_CAUSAL),
    _family("mixtral", EXPERTS, 4 * D_FF, *_CAUSAL),
    Family(
        "qwen3_moe",
        "qwen3_moe",
        EXPERTS | {"num_experts": 4, "moe_intermediate_size": 12, "mlp_only_layers": [0]},
        {"model": (D_FF, 4 * 12, 4 * 12)},  # the first layer has one MLP and no experts
        _CAUSAL,
    ),
    _family("gpt_oss", EXPERTS, 4 * LINEAR, *_CAUSAL),
    _family("bloom", GPT | {"hidden_size": 16, "n_layer": 3, "n_head": 2}, 4 * 16 + 1, *_CAUSAL),
    _family("falcon", TEXT | {"ffn_hidden_size": D_FF, "multi_query": True}, D_FF, *_CAUSAL),
    _family(
        "falcon-new",
        TEXT | {"ffn_hidden_size": D_FF, "new_decoder_architecture": True, "num_kv_heads": 1, "bias": True},
        LINEAR,
        model_type="falcon",
    ),
    _family(
        "falcon-new-one-norm",
        TEXT
        | {"ffn_hidden_size": D_FF, "new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1},
        D_FF,
        model_type="falcon",
    ),
    _family(
        "falcon-sequential",
        TEXT | {"ffn_hidden_size": D_FF, "parallel_attn": False, "alibi": True, "bias": True},
        LINEAR,
        model_type="falcon",
    ),
    _family("vit", IMAGE, LINEAR, "ImageClassification", inputs="image"),
    _family("dinov2", DINO, 32 + 1, "ImageClassification", inputs="image"),
    _family("dinov2-gated", DINO | {"use_swiglu_ffn": True}, 24 + 1, model_type="dinov2", inputs="image"),
    _family("dinov2_with_registers", DINO | {"num_register_tokens": 2}, 32 + 1, inputs="image"),
    _family("wav2vec2", AUDIO, NORM, "CTC", inputs="audio"),
    _family(
        "wav2vec2-stable",
        AUDIO | {"do_stable_layer_norm": True, "feat_extract_norm": "layer"},
        LINEAR,
        "CTC",
        model_type="wav2vec2",
        inputs="audio",
        extra=("model",),
    ),
    _family(
        "wav2vec2-adapters",
        AUDIO | {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "adapter_attn_dim": 6},
        6 + 1,
        model_type="wav2vec2",
        inputs="audio",
        extra=("model",),
    ),
    Family(
        "whisper",
        "whisper",
        WHISPER,
        {"encoder": (25, 25), "decoder": (29, 29, 29)},
        ("SpeechSeq2Seq",),
        "speech to text",
    ),
    Family("clip", "clip", _TOWERS, {"text": (LINEAR,) * 2, "vision": (LINEAR,) * 3}, inputs="image and caption"),
    _family("clip_text_model", CLIP_TEXT, LINEAR, n_layers=2),
    _family("clip_vision_model", IMAGE, LINEAR, inputs="image"),
]
FAMILIES = {family.name: family for family in _ALL}
# For tests about something else than families: post-norm, Conv1D, gated, two streams, norms of 1 + weight, experts.
REPRESENTATIVE = tuple(FAMILIES[name] for name in ("bert", "gpt2", "llama", "t5", "gemma", "mixtral"))


def config_of(family: Family) -> Any:
    """The family's tiny `PretrainedConfig`."""
    from transformers import AutoConfig

    from outlierlens.models import variants

    if family.model_type in variants.MODEL_TYPES:
        variants.register()
    return AutoConfig.for_model(family.model_type, **family.config)


def build(family: Family, head: str = "", seed: int = 0) -> Any:
    """A tiny random model in evaluation mode; `head` ends an AutoModelFor... class, "" is bare."""
    import torch
    import transformers

    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(config_of(family), attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def batch(family: Family, seed: int = 1) -> dict[str, Any]:
    """Two inputs of the kind that the family's bare model takes, no padding."""
    import torch

    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 39, (2, 7), generator=random)
    image = torch.randn(2, 3, 16, 16, generator=random)
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family.inputs == "text":
        return tokens
    if family.inputs == "cross":
        return {**tokens, "encoder_hidden_states": torch.randn(2, 4, 16, generator=random)}
    if family.inputs == "pair":
        return {**tokens, "decoder_input_ids": ids[:, :5].flip(1)}
    if family.inputs == "image":
        return {"pixel_values": image}
    if family.inputs == "audio":
        return {"input_values": torch.randn(2, 60, generator=random)}
    if family.inputs == "speech to text":
        return {"input_features": torch.randn(2, 4, 16, generator=random), "decoder_input_ids": ids[:, :5]}
    if family.inputs == "image and caption":
        return {**tokens, "pixel_values": image}
    if family.inputs == "image and text":
        ids[:, 1:5] = 39
        return {**tokens, "pixel_values": image, "token_type_ids": (ids == 39).long()}
    raise ValueError(family.inputs)
