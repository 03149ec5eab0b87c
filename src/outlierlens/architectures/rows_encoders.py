"""Rows of encoders of text, images and speech, and of encoder-decoders. See `Stack` and `Family` for what each field means."""

from dataclasses import replace

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

_ATTENTION_READ = ("attention.q_proj", "attention.k_proj", "attention.v_proj")

BERT = Stack(
    blocks="encoder.layer.{layer}",
    norm_site="stream",
    last_norm="output.LayerNorm",
    last_linear=("output.dense",),
    other_writes=("attention.output.dense", "crossattention.output.dense"),
    other_norms=("attention.output.LayerNorm", "crossattention.output.LayerNorm"),
    embeddings=("embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings"),
    embedding_norm="embeddings.LayerNorm",
    rectified={"output.dense": "intermediate.dense"},
    heads=tuple(
        replace(heads(f"{around}.self", "query key value query"), output=f"{around}.output.dense")
        for around in ("attention", "crossattention")
    ),
)
DISTILBERT = Stack(
    blocks="transformer.layer.{layer}",
    layers="n_layers",
    norm_site="stream",
    last_norm="output_layer_norm",
    last_linear=("ffn.lin2",),
    other_writes=("attention.out_lin",),
    other_norms=("sa_layer_norm",),
    embeddings=("embeddings.word_embeddings", "embeddings.position_embeddings"),
    embedding_norm="embeddings.LayerNorm",
    rectified={"ffn.lin2": "ffn.lin1"},
    activation="activation",
    heads=(heads("attention", "q_lin k_lin v_lin out_lin"),),
)
MPNET = Stack(
    blocks="encoder.layer.{layer}",
    norm_site="stream",
    last_norm="output.LayerNorm",
    last_linear=("output.dense",),
    other_writes=("attention.attn.o",),
    other_norms=("attention.LayerNorm",),
    embeddings=("embeddings.word_embeddings", "embeddings.position_embeddings"),
    embedding_norm="embeddings.LayerNorm",
    rectified={"output.dense": "intermediate.dense"},
    heads=(heads("attention.attn", "q k v o"),),
)
MODERNBERT = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.Wo",),
    other_writes=("attn.Wo",),
    reading_norms=("attn_norm", "mlp_norm"),  # the first block reads the normed embeddings: its attn_norm is none
    embeddings=("embeddings.tok_embeddings",),
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
    raw_readers={"attn.Wqkv": "attn_norm"},
    neurons={"mlp.Wo": "mlp.Wi[1/2]"},
    heads=(Heads("attn.Wo", ("attn.Wqkv[2/3]",), ("attn.Wqkv[1/3]",), ("attn.Wqkv[0/3]",), rotary="halves"),),
    readers={"attn_norm": ("attn.Wqkv",), "mlp_norm": ("mlp.Wi",)},
)
XLNET = Stack(
    blocks="layer.{layer}",
    layers="n_layer",
    norm_site="stream",
    last_norm="ff.layer_norm",
    last_linear=("ff.layer_2",),
    other_writes=("rel_attn.o()",),
    other_norms=("rel_attn.layer_norm",),
    embeddings=("word_embedding",),
    axes={"rel_attn.o": 0},  # [dim, head, dim of a head]
    token_first=True,
    rectified={"ff.layer_2": "ff.layer_1"},
    activation="ff_activation",
)
VIT = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.fc2",),
    other_writes=("attention.o_proj",),
    reading_norms=("layernorm_before", "layernorm_after"),
    embeddings=("embeddings.cls_token", "embeddings.position_embeddings"),
    embedding_linears=("embeddings.patch_embeddings.projection",),
    final_norm="layernorm",
    rectified={"mlp.fc2": "mlp.fc1"},
    heads=(heads("attention", "q_proj k_proj v_proj o_proj"),),
    readers={"layernorm_before": _ATTENTION_READ, "layernorm_after": ("mlp.fc1",)},
)
VIT_STORED = replace(
    VIT, blocks="encoder.layer.{layer}", last_linear=("output.dense",), other_writes=("attention.output.dense",)
)
DINOV2 = Stack(
    blocks="encoder.layer.{layer}",
    last_linear=("mlp.fc2",),
    other_writes=("attention.o_proj",),
    write_scales={"mlp.fc2": "layer_scale2.lambda1", "attention.o_proj": "layer_scale1.lambda1"},
    reading_norms=("norm1", "norm2"),
    embeddings=("embeddings.cls_token", "embeddings.position_embeddings", "embeddings.register_tokens"),
    embedding_linears=("embeddings.patch_embeddings.projection",),
    final_norm="layernorm",
    stored_as={
        "attention.o_proj.weight": ("attention.output.dense.weight",),
        "attention.o_proj.bias": ("attention.output.dense.bias",),
    },
    rectified={"mlp.fc2": "mlp.fc1"},
    neurons={"mlp.down_proj": "mlp.up_proj"},
    heads=VIT.heads,
    readers={"norm1": _ATTENTION_READ, "norm2": ("mlp.fc1", "mlp.gate_proj", "mlp.up_proj")},
)
CLIP_TEXT = Stack(
    blocks="encoder.layers.{layer}",
    last_linear=("mlp.fc2",),
    other_writes=("self_attn.out_proj",),
    reading_norms=("layer_norm1", "layer_norm2"),
    embeddings=("embeddings.token_embedding", "embeddings.position_embedding"),
    final_norm="final_layer_norm",
    rectified={"mlp.fc2": "mlp.fc1"},
    heads=(heads("self_attn", "q_proj k_proj v_proj out_proj"),),
    readers={"layer_norm1": tuple(f"self_attn.{one}_proj" for one in "qkv"), "layer_norm2": ("mlp.fc1",)},
)
CLIP_VISION = replace(
    CLIP_TEXT,
    embeddings=("embeddings.class_embedding", "embeddings.position_embedding"),
    embedding_linears=("embeddings.patch_embedding",),
    embedding_norm="pre_layrnorm",  # spelled so in the model
    final_norm="post_layernorm",
)
SIGLIP_VISION = replace(CLIP_VISION, embeddings=("embeddings.position_embedding",), embedding_norm="")


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
    stack = replace(BERT, heads=tuple(replace(one, rotary="halves") for one in BERT.heads))
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


def electra(config: Config) -> tuple[Stack, ...]:
    """BERT; a generator's embeddings are narrower than the stream and projected into it after their norm."""
    if _narrow_embeddings(config, default=128):
        return (replace(BERT, embeddings=(), embedding_norm="", embedding_linears=("embeddings_project",)),)
    return (BERT,)


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


def deberta(config: Config) -> tuple[Stack, ...]:
    """BERT, with a convolution after the first block in some sizes, and sometimes projected embeddings."""
    stack = replace(BERT, heads=(_DEBERTA if config.get("model_type") == "deberta" else _DEBERTA_V2,))
    if _narrow_embeddings(config, default=config.get("hidden_size")):
        stack = replace(stack, embeddings=(), embedding_linears=("embeddings.embed_proj",))
    if config.get("conv_kernel_size", 0):
        note = "a convolution with a norm of its own (encoder.conv) runs on the stream between blocks 0 and 1"
        stack = replace(stack, notes=(note,))
    return (stack,)


def dinov2(config: Config) -> tuple[Stack, ...]:
    """Pre-norm, each write multiplied by LayerScale; the giant's MLP is gated, and its last linear has another name."""
    if not config.get("use_swiglu_ffn", False):
        return (DINOV2,)
    scales = {"mlp.down_proj": "layer_scale2.lambda1", "attention.o_proj": "layer_scale1.lambda1"}
    stored = {f"mlp.down_proj.{leaf}": (f"mlp.weights_out.{leaf}",) for leaf in ("weight", "bias")}
    stored_as = {**DINOV2.stored_as, **stored}
    return (replace(DINOV2, last_linear=("mlp.down_proj",), write_scales=scales, stored_as=stored_as),)


def wav2vec2(config: Config) -> tuple[Stack, ...]:
    """Post-norm, or pre-norm with `do_stable_layer_norm`; language adapters write last where there are any."""
    stack = Stack(
        blocks="encoder.layers.{layer}",
        norm_site="stream",
        last_norm="final_layer_norm",
        last_linear=("feed_forward.output_dense",),
        other_writes=("attention.out_proj",),
        other_norms=("layer_norm",),
        embeddings=("masked_spec_embed",),
        embedding_linears=("feature_projection.projection",),
        embedding_norm="encoder.layer_norm",
        rectified={"feed_forward.output_dense": "feed_forward.intermediate_dense"},
        heads=(heads("attention", "q_proj k_proj v_proj out_proj"),),
        notes=(
            "the positional convolution also writes before block 0; its weights are normed over all dimensions, so it "
            "is not among the embeddings",
        ),
    )
    if not config.get("do_stable_layer_norm", False):
        return (stack,)
    stack = replace(
        stack,
        norm_site="read",
        last_norm="",
        other_norms=(),
        reading_norms=("layer_norm", "final_layer_norm"),
        readers={"layer_norm": _ATTENTION_READ, "final_layer_norm": ("feed_forward.intermediate_dense",)},
        embedding_norm="",
        final_norm="encoder.layer_norm",
        fixed_scale="its positional convolution reads the stream without a norm, and a GELU follows",
    )
    if config.get("adapter_attn_dim") is not None:
        stack = replace(
            stack,
            last_linear=("adapter_layer.linear_2",),
            mlp="feed_forward.output_dense",
            neurons={"adapter_layer.linear_2": "adapter_layer.linear_1"},  # a ReLU whatever the config says
            readers={**stack.readers, "adapter_layer.norm": ("adapter_layer.linear_1",)},
            other_writes=("attention.out_proj", "feed_forward.output_dense"),
            reading_norms=(*stack.reading_norms, "adapter_layer.norm"),
        )
    return (stack,)


def _inside(module: str, stack: Stack, *, name: str, layers: str) -> Stack:
    """`stack` as the tower `module` of a model that has several."""

    def under(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{module}.{path}" if path else "" for path in names)

    blocks, embedding_norm, final_norm = under((stack.blocks, stack.embedding_norm, stack.final_norm))
    return replace(
        stack,
        name=name,
        blocks=blocks,
        embeddings=under(stack.embeddings),
        embedding_linears=under(stack.embedding_linears),
        embedding_norm=embedding_norm,
        final_norm=final_norm,
        layers=layers,
    )


def _narrow_embeddings(config: Config, default: object) -> bool:
    """Whether token embeddings have another width than the stream."""
    width = config.get("embedding_size") or default
    return width != config.get("hidden_size", width)


_FOUND = "Luo et al. 2021, appendix A"
_CASING = "the paper does not say which casing"
_CLIP_TEXT_TABLES = {"token_embedding": "token", "position_embedding": "position"}
_CLIP_VISION_TABLES = {"class_embedding": "class", "position_embedding": "position"}
_ROBERTA = Family((BERT,), prefix="roberta", first_position="padding", counts_skipped=True, causal="is_decoder")

ROWS: dict[str, Family] = {
    "bert": Family(
        (BERT,),
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
    "electra": Family(electra, prefix="electra", causal="is_decoder"),
    "distilbert": Family(
        (DISTILBERT,),
        prefix="distilbert",
        clipped={"luo-distilbert": Specification(6, 768, ((1, 6, 557),), _FOUND, _CASING)},
    ),
    "albert": Family(albert, prefix="albert"),
    "mpnet": Family((MPNET,), prefix="mpnet", first_position=2, counts_skipped=True, attention=AttentionWeights()),
    "deberta": Family(deberta, prefix="deberta", attention=AttentionWeights()),
    "deberta-v2": Family(deberta, prefix="deberta", attention=AttentionWeights()),
    "modernbert": Family((MODERNBERT,), tables={"tok_embeddings": "token"}),
    "outlierlens-bert": Family(variant),
    "xlnet": Family(
        (XLNET,),
        tables={"word_embedding": "token"},
        causal="never",
        head_reads_last=True,
        attention=AttentionWeights(index=2, query_first=True),
    ),
    "vit": Family((VIT, VIT_STORED), tables={"cls_token": "class"}),
    "dinov2": Family(dinov2, tables={"cls_token": "class", "register_tokens": "register"}),
    "dinov2_with_registers": Family(dinov2, tables={"cls_token": "class", "register_tokens": "register"}),
    "clip": Family(
        (
            _inside("text_model", CLIP_TEXT, name="text", layers="text_config.num_hidden_layers"),
            _inside("vision_model", CLIP_VISION, name="vision", layers="vision_config.num_hidden_layers"),
        ),
        tables=_CLIP_TEXT_TABLES | _CLIP_VISION_TABLES,
    ),
    "clip_text_model": Family((CLIP_TEXT,), tables=_CLIP_TEXT_TABLES),
    "clip_vision_model": Family((CLIP_VISION,), tables=_CLIP_VISION_TABLES),
    "wav2vec2": Family(wav2vec2, prefix="wav2vec2", tables={"masked_spec_embed": "mask"}),
}

# --- encoder-decoders ------------------------------------------------------------------------------------------------

_SELF = heads("self_attn", "q_proj k_proj v_proj out_proj")
_CROSS = heads("encoder_attn", "q_proj k_proj v_proj out_proj")
_READ = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_NORMS = {"self_attn_layer_norm": _READ, "final_layer_norm": ("fc1",)}


def _t5(name: str, layers: str, reads: tuple[tuple[str, ...], ...]) -> Stack:
    """The stream `name`: each attention reads by `reads`, in order; then comes the MLP."""
    attentions = [one[0].rpartition(".")[0] for one in reads]
    mlp = f"layer.{len(reads)}.DenseReluDense"
    norms = tuple(f"layer.{number}.layer_norm" for number in range(len(reads) + 1))
    other = "decoder" if name == "encoder" else "encoder"
    return Stack(
        name=name,
        blocks=f"{name}.block.{{layer}}",
        layers=layers,
        last_linear=(f"{mlp}.wo",),
        neurons={f"{mlp}.wo": f"{mlp}.wi_1"},
        rectified={f"{mlp}.wo": f"{mlp}.wi"},
        activation="feed_forward_proj",
        heads=tuple(heads(one, "q k v o") for one in attentions),
        readers=dict(zip(norms, (*reads, (f"{mlp}.wi", f"{mlp}.wi_0", f"{mlp}.wi_1")), strict=True)),
        other_writes=tuple(f"{one}.o" for one in attentions),
        reading_norms=norms,
        embeddings=(f"{name}.embed_tokens",),
        final_norm=f"{name}.final_layer_norm",
        stored_as={f"{name}.embed_tokens.weight": ("shared.weight", f"{other}.embed_tokens.weight")},
    )


_T5_SELF = tuple(f"layer.0.SelfAttention.{one}" for one in "qkv")
T5_ENCODER = _t5("encoder", "num_layers", (_T5_SELF,))
T5_DECODER = _t5("decoder", "num_decoder_layers", (_T5_SELF, ("layer.1.EncDecAttention.q",)))
BART_ENCODER = Stack(
    name="encoder",
    blocks="encoder.layers.{layer}",
    layers="encoder_layers",
    norm_site="stream",
    last_norm="final_layer_norm",
    last_linear=("fc2",),
    other_writes=("self_attn.out_proj",),
    other_norms=("self_attn_layer_norm",),
    embeddings=("encoder.embed_tokens", "encoder.embed_positions"),
    embedding_norm="encoder.layernorm_embedding",
    stored_as={"encoder.embed_tokens.weight": ("shared.weight", "decoder.embed_tokens.weight")},
    rectified={"fc2": "fc1"},
    activation="activation_function",
    heads=(_SELF,),
)
BART_DECODER = replace(
    BART_ENCODER,
    name="decoder",
    blocks="decoder.layers.{layer}",
    layers="decoder_layers",
    other_writes=("self_attn.out_proj", "encoder_attn.out_proj"),
    other_norms=("self_attn_layer_norm", "encoder_attn_layer_norm"),
    embeddings=("decoder.embed_tokens", "decoder.embed_positions"),
    embedding_norm="decoder.layernorm_embedding",
    stored_as={"decoder.embed_tokens.weight": ("shared.weight", "encoder.embed_tokens.weight")},
    heads=(_SELF, _CROSS),
)
WHISPER_ENCODER = Stack(
    name="encoder",
    blocks="encoder.layers.{layer}",
    layers="encoder_layers",
    last_linear=("fc2",),
    other_writes=("self_attn.out_proj",),
    reading_norms=("self_attn_layer_norm", "final_layer_norm"),
    embeddings=("encoder.embed_positions",),
    embedding_linears=("encoder.conv2",),
    final_norm="encoder.layer_norm",
    fixed_scale="its last convolution is followed by a GELU before it adds to the stream",
    rectified={"fc2": "fc1"},
    activation="activation_function",
    heads=(_SELF,),
    readers=_NORMS,
)
WHISPER_DECODER = Stack(
    name="decoder",
    blocks="decoder.layers.{layer}",
    layers="decoder_layers",
    last_linear=("fc2",),
    other_writes=("self_attn.out_proj", "encoder_attn.out_proj"),
    reading_norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    embeddings=("decoder.embed_tokens", "decoder.embed_positions"),
    final_norm="decoder.layer_norm",
    rectified={"fc2": "fc1"},
    activation="activation_function",
    heads=(_SELF, _CROSS),
    readers={**_NORMS, "encoder_attn_layer_norm": ("encoder_attn.q_proj",)},
)

ENCODER_DECODERS: dict[str, Family] = {
    "bart": Family((BART_ENCODER, BART_DECODER), tables={"shared": "token"}, first_position=2),
    "t5": Family((T5_ENCODER, T5_DECODER), tables={"shared": "token"}),
    "mt5": Family((T5_ENCODER, T5_DECODER), tables={"shared": "token"}),
    "whisper": Family((WHISPER_ENCODER, WHISPER_DECODER)),
}
