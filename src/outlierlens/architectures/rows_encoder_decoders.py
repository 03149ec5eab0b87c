"""Rows of encoder-decoders. See `Stack` and `Family` for what each field means."""

from outlierlens.architectures.family import Family
from outlierlens.architectures.heads import heads
from outlierlens.architectures.stack import Stack

_T5_SELF = heads("layer.0.SelfAttention", "q k v o")
_T5_READ = ("layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v")
_SELF = heads("self_attn", "q_proj k_proj v_proj out_proj")
_CROSS = heads("encoder_attn", "q_proj k_proj v_proj out_proj")
_READ = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_NORMS = {"self_attn_layer_norm": _READ, "final_layer_norm": ("fc1",)}

T5_ENCODER = Stack(
    name="encoder",
    blocks="encoder.block.{layer}",
    layers="num_layers",
    last_linear=("layer.1.DenseReluDense.wo",),
    neurons={"layer.1.DenseReluDense.wo": "layer.1.DenseReluDense.wi_1"},
    rectified={"layer.1.DenseReluDense.wo": "layer.1.DenseReluDense.wi"},
    activation="feed_forward_proj",
    heads=(_T5_SELF,),
    readers={
        "layer.0.layer_norm": _T5_READ,
        "layer.1.layer_norm": (
            "layer.1.DenseReluDense.wi",
            "layer.1.DenseReluDense.wi_0",
            "layer.1.DenseReluDense.wi_1",
        ),
    },
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
    rectified={"layer.2.DenseReluDense.wo": "layer.2.DenseReluDense.wi"},
    activation="feed_forward_proj",
    heads=(_T5_SELF, heads("layer.1.EncDecAttention", "q k v o")),
    readers={
        "layer.0.layer_norm": _T5_READ,
        "layer.1.layer_norm": ("layer.1.EncDecAttention.q",),
        "layer.2.layer_norm": (
            "layer.2.DenseReluDense.wi",
            "layer.2.DenseReluDense.wi_0",
            "layer.2.DenseReluDense.wi_1",
        ),
    },
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
    rectified={"fc2": "fc1"},
    activation="activation_function",
    heads=(_SELF,),
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
    rectified={"fc2": "fc1"},
    activation="activation_function",
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

ROWS: dict[str, Family] = {
    "bart": Family((BART_ENCODER, BART_DECODER), tables={"shared": "token"}, first_position=2),
    "t5": Family((T5_ENCODER, T5_DECODER), tables={"shared": "token"}),
    "mt5": Family((T5_ENCODER, T5_DECODER), tables={"shared": "token"}),
    "whisper": Family((WHISPER_ENCODER, WHISPER_DECODER)),
}
