"""Rows of encoders of text, images and speech, and of encoder-decoders. See `Stack` and `Family` for what each field means."""

from dataclasses import replace

from outlierlens.architectures.derived import packaged_stacks
from outlierlens.architectures.stack import (
    LAYER_NORM_KEYS,
    AttentionWeights,
    Config,
    Family,
    Gguf,
    Heads,
    Specification,
    Stack,
    heads,
)

# Positions have keys and queries of their own; DeBERTa's biases are no linear's.
_DEBERTA = Heads(
    "attention.output.dense",
    ("attention.self.in_proj[head v]", "attention.self.v_bias()"),
    ("attention.self.in_proj[head k]", "attention.self.pos_proj"),
    ("attention.self.in_proj[head q]", "attention.self.q_bias()", "attention.self.pos_q_proj"),
)
_DEBERTA_V2 = Heads(
    "attention.output.dense",
    ("attention.self.value_proj",),
    ("attention.self.key_proj", "attention.self.pos_key_proj"),
    ("attention.self.query_proj", "attention.self.pos_query_proj"),
)


def variant(config: Config) -> tuple[Stack, ...]:
    """BERT, or its pre-norm sibling; the names of norms are the same for LayerNorm and RMSNorm."""
    ((bert,),) = packaged_stacks({"model_type": "bert"})
    stack = replace(bert, heads=tuple(replace(one, rotary="halves") for one in bert.heads))
    if config.get("norm_order", "post") == "post":
        return (stack,)
    return (
        replace(
            stack,
            norm_site="read",
            last_norm="",
            other_norms=(),
            reading_norms=("attention.LayerNorm", "intermediate.LayerNorm"),
            final_norm="encoder.LayerNorm",
            readers={
                "attention.LayerNorm": tuple(f"attention.self.{name}" for name in ("query", "key", "value", "gate")),
                "intermediate.LayerNorm": ("intermediate.dense",),
            },
        ),
    )


def albert(config: Config) -> tuple[Stack, ...]:
    """Groups of blocks run several times over; embeddings are always projected into the stream."""
    n_layers = int(config.get("num_hidden_layers", 12))
    n_groups = int(config.get("num_hidden_groups", 1))
    n_inner = int(config.get("inner_group_num", 1))
    # The group of a layer, as the model computes it.
    groups = [int(layer / (n_layers / n_groups)) for layer in range(n_layers)]
    return (
        Stack(
            blocks="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
            layer_blocks=tuple(
                f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
                for group in groups
                for inner in range(n_inner)
            ),
            norm_site="stream",
            last_norm="full_layer_layer_norm",
            last_linear=("ffn_output",),
            other_writes=("attention.dense",),
            other_norms=("attention.LayerNorm",),
            embedding_linears=("encoder.embedding_hidden_mapping_in",),
            rectified={"ffn_output": "ffn"},
            heads=(heads("attention", "query key value dense"),),
            shared_blocks=True,
            notes=("layers share their blocks: a rule that counts layers of weights counts distinct blocks only",),
        ),
    )


def deberta(_: Config, stack: Stack) -> Stack:
    """Values, keys and queries of several terms each."""
    return replace(stack, heads=(_DEBERTA,))


def deberta_v2(_: Config, stack: Stack) -> Stack:
    """Positions may have keys and queries of their own."""
    return replace(stack, heads=(_DEBERTA_V2,))


def wav2vec2(config: Config, stack: Stack) -> Stack:
    """What writes before block 0 does so through a convolution of positions too; a language adapter has a ReLU of its own."""
    stack = replace(
        stack,
        embeddings=("masked_spec_embed",),
        embedding_linears=("feature_projection.projection",),
        notes=(
            "the positional convolution also writes before block 0; its weights are normed over all dimensions, so it "
            "is not among the embeddings",
        ),
    )
    if stack.norm_site == "read":
        stack = replace(
            stack, fixed_scale="its positional convolution reads the stream without a norm, and a GELU follows"
        )
    if config.get("adapter_attn_dim") is None:
        return stack
    first = "adapter_layer.linear_1"
    return replace(
        stack,
        mlp="feed_forward.output_dense",
        neurons={"adapter_layer.linear_2": first},
        rectified={last: one for last, one in stack.rectified.items() if one != first},
    )


_FOUND = "Luo et al. 2021, appendix A"
_CASING = "the paper does not say which casing"
_CLIP_TEXT_TABLES = {"token_embedding": "token", "position_embedding": "position"}
_CLIP_VISION_TABLES = {"class_embedding": "class", "position_embedding": "position"}
_ROBERTA = Family(prefix="roberta", first_position="padding", counts_skipped=True, causal="is_decoder")

ROWS: dict[str, Family] = {
    "bert": Family(
        prefix="bert",
        causal="is_decoder",
        vocabulary="vocab.txt",
        gguf=(
            Gguf(
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
                keys=LAYER_NORM_KEYS,
            ),
        ),
        clipped={
            "luo-bert-base": Specification(12, 768, ((1, 12, 557),), "Luo et al. 2021, section 2", _CASING),
            "luo-bert-large": Specification(
                24,
                1024,
                ((1, 10, 896), (10, 17, 678), (16, 19, 122), (19, 23, 928)),
                _FOUND,
                f"{_CASING}; it names none for the last layer",
            ),
        },
    ),
    "roberta": replace(
        _ROBERTA,
        clipped={
            "luo-roberta-base": Specification(12, 768, ((1, 12, 77), (1, 12, 588)), "Luo et al. 2021, section 2"),
            "luo-distilroberta": Specification(6, 768, ((1, 6, 77), (1, 6, 588)), _FOUND),
            "luo-roberta-large": Specification(
                24,
                1024,
                ((1, 24, 673), (1, 9, 981), (15, 24, 631)),
                "Luo et al. 2021, appendix D.1",
                "what the paper clips; appendix A finds 673 in layers 1 to 23 and 981 in 1 to 6: luo-roberta-large-found",
            ),
            "luo-roberta-large-found": Specification(
                24,
                1024,
                ((1, 23, 673), (1, 6, 981), (15, 24, 631)),
                _FOUND,
                "what the paper finds; appendix D.1 clips 673 in all layers and 981 in the first 9: luo-roberta-large",
            ),
        },
    ),
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": Family(prefix="electra", causal="is_decoder"),
    "distilbert": Family(
        prefix="distilbert",
        clipped={"luo-distilbert": Specification(6, 768, ((1, 6, 557),), _FOUND, _CASING)},
    ),
    "albert": Family(stacks=albert, prefix="albert"),
    "mpnet": Family(prefix="mpnet", first_position=2, counts_skipped=True, attention=AttentionWeights()),
    "deberta": Family(amended=deberta, prefix="deberta", attention=AttentionWeights()),
    "deberta-v2": Family(amended=deberta_v2, prefix="deberta", attention=AttentionWeights()),
    "modernbert": Family(tables={"tok_embeddings": "token"}),
    "outlierlens-bert": Family(stacks=variant),
    "xlnet": Family(
        tables={"word_embedding": "token"},
        causal="never",
        head_reads_last=True,
        attention=AttentionWeights(index=2, query_first=True),
    ),
    "vit": Family(tables={"cls_token": "class"}),
    "dinov2": Family(tables={"cls_token": "class", "register_tokens": "register"}),
    "dinov2_with_registers": Family(tables={"cls_token": "class", "register_tokens": "register"}),
    "clip": Family(tables=_CLIP_TEXT_TABLES | _CLIP_VISION_TABLES),
    "clip_text_model": Family(tables=_CLIP_TEXT_TABLES),
    "clip_vision_model": Family(tables=_CLIP_VISION_TABLES),
    "wav2vec2": Family(amended=wav2vec2, prefix="wav2vec2", tables={"masked_spec_embed": "mask"}),
}

# --- encoder-decoders ------------------------------------------------------------------------------------------------

ENCODER_DECODERS: dict[str, Family] = {
    "bart": Family(tables={"shared": "token"}, first_position=2),
    "t5": Family(tables={"shared": "token"}),
    "mt5": Family(tables={"shared": "token"}),
    "whisper": Family(),
}
