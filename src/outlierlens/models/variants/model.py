"""The modules of the families: BERT's and Llama's own, with norms, positions and attention as their configs say.

    VariantForMaskedLM(config)(input_ids, attention_mask=mask, labels=labels).loss
    VariantModel(config)(input_ids).last_hidden_state
    VariantForCausalLM(decoder_config)(input_ids, labels=input_ids).loss

Parameters are named as in BERT and Llama. Pre-norm BERT has `attention.LayerNorm` and `intermediate.LayerNorm` in place
of the two norms after the sums, and the encoder ends in `encoder.LayerNorm`.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert as bert
from transformers.models.llama import modeling_llama as llama

from outlierlens.models.variants.config import TABLES, VariantConfig, VariantDecoderConfig

if TYPE_CHECKING:
    from torch import Tensor


Rotation = tuple["Tensor", "Tensor"]


def sinusoids(n_positions: int, dim: int, wavelength: float = 10_000.0) -> "Tensor":
    """Sines in even and cosines in odd dimensions, amplitude 1 (Vaswani 2017, section 3.5), float32 [position, dim].

    The waves are up to 2 pi × `wavelength` tokens long.
    """
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(wavelength) / dim))
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim].float()


def distances(positions: "Tensor") -> "Tensor":
    """Key position minus query position, [batch, query, key], from positions [batch, token]."""
    return positions[:, None, :] - positions[:, :, None]


def relative_buckets(positions: "Tensor", n_buckets: int, max_distance: int) -> "Tensor":
    """T5's bucket of each pair of tokens, looking both ways, int64 [batch, query, key] in [0, n_buckets).

    Half of the buckets are for keys to the right. In each half the first half holds one distance each, the rest grow
    with the logarithm up to `max_distance`, beyond which all distances share the last (Raffel 2020, section 2.1).
    """
    from transformers.models.t5.modeling_t5 import T5Attention

    buckets: Tensor = T5Attention._relative_position_bucket(distances(positions), True, n_buckets, max_distance)
    return buckets


def alibi_slopes(n_heads: int) -> list[float]:
    """Each head's slope: 2^(−8 h / n), h from 1; other numbers of heads borrow every second one of the next power of 2.

    Press 2022, section 3 and its code.
    """

    def of_power(n: int) -> list[float]:
        return [2.0 ** (-8.0 * head / n) for head in range(1, n + 1)]

    power = 2 ** int(math.log2(n_heads))
    return of_power(power) + of_power(2 * power)[::2][: n_heads - power]


def alibi_bias(positions: "Tensor", n_heads: int) -> "Tensor":
    """−slope · |distance| [batch, head, query, key], float32: ALiBi for an encoder, alike to both sides."""
    slopes = torch.tensor(alibi_slopes(n_heads), device=positions.device)
    return -slopes[:, None, None] * distances(positions).abs()[:, None].float()


def rotation(positions: "Tensor", head_dim: int, base: float = 10000.0) -> Rotation:
    """Cosines and sines of the angles, float32 [batch, 1, token, head dim / 2] each (Su 2021, eq. 15)."""
    rates = base ** (-torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[:, None, :, None].float() * rates
    return angles.cos(), angles.sin()


def rotated(values: "Tensor", turn: Rotation) -> "Tensor":
    """Queries or keys [batch, head, token, head dim] turned by their positions; dimension i pairs with i + half."""
    cosine, sine = (part.to(values.dtype) for part in turn)
    first, second = values.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def with_bias(mask: "Tensor | None", bias: "Tensor | None") -> "Tensor | None":
    """The additive mask [batch, head, query, key] of transformers' `mask` (bool, additive or none) and a bias."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    return mask + bias


def clipped_attention(
    module: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None",
    **options: Any,
) -> tuple["Tensor", "Tensor"]:
    """Attention with clip((zeta − gamma) · softmax + gamma, 0, 1), and its weights [batch, head, query, key].

    Bondarenko 2023, eq. 4; the signature is that of transformers' attention functions. A key that the mask hides has
    weight 0, since gamma <= 0; the weights of a query need not sum to 1.
    """
    gamma, zeta = module.config.clip_gamma, module.config.clip_zeta

    def weigh(scores: "Tensor") -> "Tensor":
        return ((zeta - gamma) * torch.softmax(scores, dim=-1) + gamma).clamp(0.0, 1.0)

    return _written_out(module, (query, key, value), attention_mask, weigh, options)


def off_by_one_attention(
    module: Any,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None",
    **options: Any,
) -> tuple["Tensor", "Tensor"]:
    """Attention with exp(x_i) / (1 + sum_j exp(x_j)), and its weights [batch, head, query, key] (Miller 2023).

    That is a softmax with one more key, whose score and value are 0; the weights of a query sum to less than 1.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    heads = (query, llama.repeat_kv(key, groups), llama.repeat_kv(value, groups))

    def weigh(scores: "Tensor") -> "Tensor":
        return torch.softmax(functional.pad(scores, (0, 1)), dim=-1)[..., :-1]

    return _written_out(module, heads, attention_mask, weigh, options)


def _written_out(
    module: Any,
    heads: tuple["Tensor", "Tensor", "Tensor"],
    mask: "Tensor | None",
    weigh: Callable[["Tensor"], "Tensor"],
    options: Mapping[str, Any],
) -> tuple["Tensor", "Tensor"]:
    """Attention whose weights `weigh` makes of the masked scores [batch, head, query, key], and these weights."""
    query, key, value = heads
    scores = torch.matmul(query, key.transpose(-1, -2)) * options["scaling"]
    if mask is not None:
        scores = scores + with_bias(mask, scores.new_zeros(()).expand_as(scores))
    weights = functional.dropout(weigh(scores), p=options.get("dropout", 0.0), training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


OWN_ATTENTION = {"clipped": clipped_attention, "off-by-one": off_by_one_attention}


def attended(
    module: Any,
    hidden_states: "Tensor",
    heads: tuple["Tensor", ...],
    mask: "Tensor | None",
    eager: Any,
    **options: Any,
) -> tuple["Tensor", "Tensor"]:
    """What the heads of `module` read [batch, token, head, dim of a head], by the kind that its config names, and the weights.

    `heads` are queries, keys and values [batch, head, token, dim of a head]; `eager` is the family's own eager attention.
    """
    config = module.config
    attend: Any = OWN_ATTENTION.get(config.attention_kind) or ALL_ATTENTION_FUNCTIONS.get_interface(
        config._attn_implementation, eager
    )
    read, weights = attend(module, *heads, mask, scaling=module.scaling, **options)
    if config.attention_kind == "gated":
        read = read * torch.sigmoid(module.gate(hidden_states)).unsqueeze(-1)
    return read, weights


# --- modules -----------------------------------------------------------------------------------------------------------


# Modules of other classes stand where BERT's annotations name its own; hence Any.
def norm(config: VariantConfig) -> Any:
    """A norm of the kind that the config names."""
    kinds: dict[str, Any] = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}
    return kinds[config.norm_kind](config.hidden_size, eps=config.layer_norm_eps)


def norm_if(order: str, config: VariantConfig) -> Any:
    """The norm of a place that only models of one `norm_order` have; the identity in the others."""
    return norm(config) if config.norm_order == order else nn.Identity()


# Values to start from belong to classes of their own: transformers passes over modules that own no parameter when it
# initialises a model from outside its package.
class FixedPositions(nn.Embedding):
    """Sinusoids that are not trained."""

    def __init__(self, n_positions: int, dim: int) -> None:
        super().__init__(n_positions, dim)
        self.weight.requires_grad_(False)


class Gate(nn.Linear):
    """One logit per head from what attention reads at a token."""


class VariantEmbeddings(bert.BertEmbeddings):
    """BERT's embeddings, without the position table where positions enter elsewhere or not at all."""

    def __init__(self, config: VariantConfig) -> None:
        super().__init__(config)
        self.LayerNorm = norm(config)
        self.has_table = config.position_kind in TABLES
        if not self.has_table:
            del self.position_embeddings
        elif config.position_kind == "sinusoidal":
            self.position_embeddings = FixedPositions(config.max_position_embeddings, config.hidden_size)

    def forward(
        self,
        input_ids: "Tensor | None" = None,
        token_type_ids: "Tensor | None" = None,
        position_ids: "Tensor | None" = None,
        inputs_embeds: "Tensor | None" = None,
        past_key_values_length: int = 0,
    ) -> "Tensor":
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = self.position_ids[:, : words.shape[1]]
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        total = words + self.token_type_embeddings(token_type_ids)
        if self.has_table:
            total = total + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(total))


class VariantSelfAttention(bert.BertSelfAttention):
    """BERT's self-attention with turned queries and keys, clipped weights or gated heads where the config says so."""

    def __init__(self, config: VariantConfig, layer_idx: int | None = None) -> None:
        super().__init__(config, layer_idx=layer_idx)
        if config.attention_kind == "gated":
            self.gate = Gate(config.hidden_size, config.num_attention_heads)

    def forward(
        self,
        hidden_states: "Tensor",
        attention_mask: "Tensor | None" = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        turn: Rotation | None = kwargs.pop("rotation", None)
        shape = (*hidden_states.shape[:-1], self.num_attention_heads, self.attention_head_size)
        query, key, value = (
            linear(hidden_states).view(shape).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )  # [batch, head, token, dim of a head]
        if turn is not None:
            query, key = rotated(query, turn), rotated(key, turn)
        dropout = self.dropout.p if self.training else 0.0
        heads = (query, key, value)
        read, weights = attended(
            self, hidden_states, heads, attention_mask, bert.eager_attention_forward, dropout=dropout, **kwargs
        )
        return read.flatten(2), weights


class VariantSelfOutput(bert.BertSelfOutput):
    """Attention's write to the stream, normed with it in post-norm models."""

    def __init__(self, config: VariantConfig) -> None:
        super().__init__(config)
        self.LayerNorm = norm_if("post", config)


class VariantAttention(nn.Module):
    """Attention and its write; in pre-norm models it reads normed values."""

    def __init__(self, config: VariantConfig, layer_idx: int | None = None) -> None:
        super().__init__()
        self.self = VariantSelfAttention(config, layer_idx=layer_idx)
        self.output = VariantSelfOutput(config)
        self.LayerNorm = norm_if("pre", config)

    def forward(
        self, hidden_states: "Tensor", attention_mask: "Tensor | None" = None, **kwargs: Any
    ) -> tuple["Tensor", "Tensor | None"]:
        read, weights = self.self(self.LayerNorm(hidden_states), attention_mask=attention_mask, **kwargs)
        return self.output(read, hidden_states), weights


class VariantIntermediate(bert.BertIntermediate):
    """The first half of the MLP; in pre-norm models it reads normed values."""

    def __init__(self, config: VariantConfig) -> None:
        super().__init__(config)
        self.LayerNorm = norm_if("pre", config)

    def forward(self, hidden_states: "Tensor") -> "Tensor":
        return super().forward(self.LayerNorm(hidden_states))


class VariantOutput(bert.BertOutput):
    """The MLP's write to the stream, normed with it in post-norm models."""

    def __init__(self, config: VariantConfig) -> None:
        super().__init__(config)
        self.LayerNorm = norm_if("post", config)


class VariantLayer(bert.BertLayer):
    """A block; its steps are BERT's."""

    def __init__(self, config: VariantConfig, layer_idx: int | None = None) -> None:
        # BertLayer's own constructor would build, and draw random values for, modules that are replaced here.
        GradientCheckpointingLayer.__init__(self)
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.seq_len_dim = 1
        self.is_decoder = self.add_cross_attention = False
        self.attention: Any = VariantAttention(config, layer_idx=layer_idx)
        self.intermediate = VariantIntermediate(config)
        self.output = VariantOutput(config)


class VariantEncoder(nn.Module):
    """The blocks, what their attention shares about positions, and the final norm of pre-norm models."""

    def __init__(self, config: VariantConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList([VariantLayer(config, layer_idx=layer) for layer in range(config.num_hidden_layers)])
        self.LayerNorm = norm_if("pre", config)
        if config.position_kind == "relative":
            self.relative_attention_bias = nn.Embedding(config.relative_buckets, config.num_attention_heads)

    def forward(
        self,
        hidden_states: "Tensor",
        attention_mask: "Tensor | None" = None,
        position_ids: "Tensor | None" = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if position_ids is None:
            position_ids = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        mask = with_bias(attention_mask, self.bias(position_ids, hidden_states.dtype))
        kwargs = {key: value for key, value in kwargs.items() if key not in _DECODERS_ONLY}
        if self.config.position_kind == "rotary":
            head_dim = self.config.hidden_size // self.config.num_attention_heads
            kwargs["rotation"] = rotation(position_ids, head_dim, self.config.rotary_base)
        for block in self.layer:
            hidden_states = block(hidden_states, mask, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.LayerNorm(hidden_states))

    def bias(self, position_ids: "Tensor", dtype: "torch.dtype") -> "Tensor | None":
        """What is added to every layer's attention scores, [batch or 1, head, query, key]; None for most kinds."""
        config = self.config
        if config.position_kind == "alibi":
            return alibi_bias(position_ids, config.num_attention_heads).to(dtype)
        if config.position_kind == "relative":
            buckets = relative_buckets(position_ids, config.relative_buckets, config.relative_max_distance)
            # [batch, query, key, head] -> [batch, head, query, key]
            return self.relative_attention_bias(buckets).permute(0, 3, 1, 2).to(dtype)
        return None


_DECODERS_ONLY = ("encoder_hidden_states", "encoder_attention_mask", "past_key_values", "use_cache")


class VariantPreTrainedModel(bert.BertPreTrainedModel):
    """How weights of the family start, and which attention implementations it has."""

    config: VariantConfig
    config_class = VariantConfig
    # They take no additive bias, and know nothing of clipping.
    _supports_flash_attn = False
    _supports_flex_attn = False
    _can_record_outputs = {"hidden_states": VariantLayer, "attentions": VariantSelfAttention}  # noqa: RUF012

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """transformers' own, which makes every parameter trainable; fixed sinusoids are fixed again."""
        made = super().from_pretrained(*args, **kwargs)
        for module in (made[0] if isinstance(made, tuple) else made).modules():
            if isinstance(module, FixedPositions):
                module.weight.requires_grad_(False)
        return made

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        config = self.config
        _open_gate(module, config.gate_start)
        if isinstance(module, FixedPositions):
            table = sinusoids(*module.weight.shape)
            initialization.copy_(module.weight, config.position_amplitude * table)


class VariantModel(VariantPreTrainedModel, bert.BertModel):
    """The bare encoder, with a pooler unless told otherwise; arguments and outputs are `BertModel`'s."""

    _no_split_modules = ["VariantEmbeddings", "VariantLayer"]  # noqa: RUF012

    def __init__(self, config: VariantConfig, add_pooling_layer: bool = True) -> None:
        bert.BertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.embeddings = VariantEmbeddings(config)
        self.encoder: Any = VariantEncoder(config)
        self.pooler = bert.BertPooler(config) if add_pooling_layer else None
        self.post_init()


class VariantForMaskedLM(VariantPreTrainedModel, bert.BertForMaskedLM):
    """The encoder with BERT's masked-LM head; arguments and outputs are `BertForMaskedLM`'s."""

    def __init__(self, config: VariantConfig) -> None:
        bert.BertPreTrainedModel.__init__(self, config)
        self.bert = VariantModel(config, add_pooling_layer=False)
        self.cls = bert.BertOnlyMLMHead(config)
        self.cls.predictions.transform.LayerNorm = norm(config)
        self.post_init()


# --- decoders ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _open_gate(module: nn.Module, start: float) -> None:
    """Have a gate let `start` of a head through, whatever it reads, before training."""
    if isinstance(module, Gate):
        initialization.constant_(module.bias, math.log(start / (1 - start)))


class VariantDecoderAttention(llama.LlamaAttention):
    """Llama's self-attention with weights off by one or gated heads where the config says so."""

    def __init__(self, config: VariantDecoderConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        if config.attention_kind == "gated":
            self.gate = Gate(config.hidden_size, config.num_attention_heads)

    def forward(
        self,
        hidden_states: "Tensor",
        position_embeddings: Any = None,
        attention_mask: "Tensor | None" = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            linear(hidden_states).view(shape).transpose(1, 2) for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = llama.apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        dropout = self.attention_dropout if self.training else 0.0
        heads = (query, key, value)
        read, weights = attended(
            self, hidden_states, heads, attention_mask, llama.eager_attention_forward, dropout=dropout, **kwargs
        )
        return self.o_proj(read.reshape(*hidden_states.shape[:-1], -1)), weights


class VariantDecoderPreTrained(llama.LlamaPreTrainedModel):
    """How weights of the decoders start; attention is eager, so that a mask is always written out."""

    config: VariantDecoderConfig
    config_class = VariantDecoderConfig
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_sdpa = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        _open_gate(module, self.config.gate_start)


class VariantDecoder(VariantDecoderPreTrained, llama.LlamaModel):
    """The bare decoder; arguments and outputs are `LlamaModel`'s."""

    def __init__(self, config: VariantDecoderConfig) -> None:
        super().__init__(config)
        for layer, block in enumerate(self.layers):
            block.self_attn = VariantDecoderAttention(config, layer)
        self.post_init()


class VariantForCausalLM(VariantDecoderPreTrained, llama.LlamaForCausalLM):
    """The decoder with a language-model head; arguments and outputs are `LlamaForCausalLM`'s."""

    def __init__(self, config: VariantDecoderConfig) -> None:
        llama.LlamaPreTrainedModel.__init__(self, config)
        self.model = VariantDecoder(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
