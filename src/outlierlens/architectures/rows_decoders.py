"""Rows of decoders and of encoder-decoders. See `Stack` for what each field means."""

from dataclasses import replace

from outlierlens.architectures.stack import Config, Stack
from outlierlens.errors import UnknownArchitecture

GPT2 = Stack(
    blocks="h.{layer}",
    layers="n_layer",
    last_linear=("mlp.c_proj",),
    other_writes=("attn.c_proj", "crossattention.c_proj"),
    reading_norms=("ln_1", "ln_cross_attn", "ln_2"),
    embeddings=("wte", "wpe"),
    final_norm="ln_f",
    weight_is_in_by_out=True,
)
GPT_NEO = Stack(
    blocks="h.{layer}",
    layers="num_layers",
    last_linear=("mlp.c_proj",),
    other_writes=("attn.attention.out_proj",),
    reading_norms=("ln_1", "ln_2"),
    embeddings=("wte", "wpe"),
    final_norm="ln_f",
)
GPT_NEOX = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.dense_4h_to_h",),
    other_writes=("attention.dense",),
    reading_norms=("input_layernorm", "post_attention_layernorm"),
    embeddings=("embed_in",),
    final_norm="final_layer_norm",
)
LLAMA = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.down_proj",),
    other_writes=("self_attn.o_proj",),
    reading_norms=("input_layernorm", "post_attention_layernorm"),
    embeddings=("embed_tokens",),
    final_norm="norm",
    neurons={"mlp.down_proj": "mlp.up_proj"},
)
GEMMA = replace(LLAMA, norm_offset=1.0)
GEMMA2 = replace(
    GEMMA,
    norm_site="write",
    last_norm="post_feedforward_layernorm",
    other_norms=("post_attention_layernorm",),
    reading_norms=("input_layernorm", "pre_feedforward_layernorm"),
)
OLMO2 = replace(
    LLAMA,
    norm_site="write",
    last_norm="post_feedforward_layernorm",
    other_norms=("post_attention_layernorm",),
    reading_norms=(),
    raw_readers=dict.fromkeys(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"), ""
    ),
)
PHI = Stack(
    blocks="layers.{layer}",
    last_linear=("mlp.fc2",),
    other_writes=("self_attn.dense",),
    reading_norms=("input_layernorm",),  # attention and MLP run side by side on one norm
    embeddings=("embed_tokens",),
    final_norm="final_layernorm",
)
MIXTRAL = replace(
    LLAMA,
    last_linear=("mlp.experts.down_proj()",),
    experts="num_local_experts",
    stored_as={"mlp.experts.down_proj": ("block_sparse_moe.experts.{expert}.w2.weight",)},
)
QWEN3_MOE = replace(
    LLAMA,
    last_linear=("mlp.experts.down_proj()",),
    experts="num_experts",
    # The last name is that of the layers without experts (mlp_only_layers, decoder_sparse_step).
    stored_as={"mlp.experts.down_proj": ("mlp.experts.{expert}.down_proj.weight", "mlp.down_proj.weight")},
)
GPT_OSS = replace(
    LLAMA,
    last_linear=("mlp.experts.down_proj()",),
    axes={"mlp.experts.down_proj": -1},  # [expert, in, out], while attention's o_proj is [out, in]
)
T5_ENCODER = Stack(
    name="encoder",
    blocks="encoder.block.{layer}",
    layers="num_layers",
    last_linear=("layer.1.DenseReluDense.wo",),
    neurons={"layer.1.DenseReluDense.wo": "layer.1.DenseReluDense.wi_1"},
    other_writes=("layer.0.SelfAttention.o",),
    reading_norms=("layer.0.layer_norm", "layer.1.layer_norm"),
    embeddings=("encoder.embed_tokens",),
    final_norm="encoder.final_layer_norm",
    stored_as={"encoder.embed_tokens.weight": ("shared.weight", "decoder.embed_tokens.weight")},
)
T5_DECODER = Stack(
    name="decoder",
    blocks="decoder.block.{layer}",
    layers="num_decoder_layers",
    last_linear=("layer.2.DenseReluDense.wo",),
    neurons={"layer.2.DenseReluDense.wo": "layer.2.DenseReluDense.wi_1"},
    other_writes=("layer.0.SelfAttention.o", "layer.1.EncDecAttention.o"),
    reading_norms=("layer.0.layer_norm", "layer.1.layer_norm", "layer.2.layer_norm"),
    embeddings=("decoder.embed_tokens",),
    final_norm="decoder.final_layer_norm",
    stored_as={"decoder.embed_tokens.weight": ("shared.weight", "encoder.embed_tokens.weight")},
)
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
)
BART_DECODER = Stack(
    name="decoder",
    blocks="decoder.layers.{layer}",
    layers="decoder_layers",
    norm_site="stream",
    last_norm="final_layer_norm",
    last_linear=("fc2",),
    other_writes=("self_attn.out_proj", "encoder_attn.out_proj"),
    other_norms=("self_attn_layer_norm", "encoder_attn_layer_norm"),
    embeddings=("decoder.embed_tokens", "decoder.embed_positions"),
    embedding_norm="decoder.layernorm_embedding",
    stored_as={"decoder.embed_tokens.weight": ("shared.weight", "encoder.embed_tokens.weight")},
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
)


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
    )
    if config.get("activation_function", "relu") == "relu":
        stack = replace(stack, neurons={"fc2": "fc1"})
    if not config.get("do_layer_norm_before", True):
        stack = replace(
            stack, norm_site="stream", last_norm=norms[1], other_norms=norms[:1], reading_norms=(), final_norm=""
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
        ),
    )


def falcon(config: Config) -> tuple[Stack, ...]:
    """Pre-norm; how many norms read depends on whether attention and MLP run side by side."""
    n_parallel_norms = config.get("num_ln_in_parallel_attn")
    if n_parallel_norms is None and config.get("new_decoder_architecture", False):
        n_parallel_norms = 2
    if not config.get("parallel_attn", True):
        norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    else:
        norms = ("ln_attn", "ln_mlp") if n_parallel_norms == 2 else ("input_layernorm",)
    return (
        Stack(
            blocks="h.{layer}",
            last_linear=("mlp.dense_4h_to_h",),
            other_writes=("self_attention.dense",),
            reading_norms=norms,
            embeddings=("word_embeddings",),
            final_norm="ln_f",
        ),
    )
