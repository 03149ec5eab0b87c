"""Rows of encoder-decoders. See `Stack` and `Family` for what each field means."""

from dataclasses import replace

from outlierlens.architectures.family import Family
from outlierlens.architectures.heads import heads
from outlierlens.architectures.stack import Stack

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

ROWS: dict[str, Family] = {
    "bart": Family((BART_ENCODER, BART_DECODER), tables={"shared": "token"}, first_position=2),
    "t5": Family((T5_ENCODER, T5_DECODER), tables={"shared": "token"}),
    "mt5": Family((T5_ENCODER, T5_DECODER), tables={"shared": "token"}),
    "whisper": Family((WHISPER_ENCODER, WHISPER_DECODER)),
}
