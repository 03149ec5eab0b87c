"""The modules of the family: BERT's own, with norms, positions and attention as `VariantConfig` says.

    VariantForMaskedLM(config)(input_ids, attention_mask=mask, labels=labels).loss
    VariantModel(config)(input_ids).last_hidden_state

Parameters are named as in BERT. Pre-norm blocks have `attention.LayerNorm` and `intermediate.LayerNorm` instead of the
two norms after the sums, and the encoder ends in `encoder.LayerNorm`.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import initialization
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert import modeling_bert as bert

from outlierlens.models.variants import attention
from outlierlens.models.variants.config import TABLES, VariantConfig

if TYPE_CHECKING:
    from torch import Tensor


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
        rotation: attention.Rotation | None = kwargs.pop("rotation", None)
        shape = (*hidden_states.shape[:-1], self.num_attention_heads, self.attention_head_size)
        query, key, value = (
            linear(hidden_states).view(shape).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )  # [batch, head, token, dim of a head]
        if rotation is not None:
            query, key = attention.rotated(query, rotation), attention.rotated(key, rotation)
        if self.config.attention_kind == "clipped":
            attend = attention.clipped_attention
        else:
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, bert.eager_attention_forward
            )
        dropout = self.dropout.p if self.training else 0.0
        read, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )  # [batch, token, head, dim of a head]
        if self.config.attention_kind == "gated":
            read = read * torch.sigmoid(self.gate(hidden_states)).unsqueeze(-1)
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
        mask = attention.with_bias(attention_mask, self.bias(position_ids, hidden_states.dtype))
        kwargs = {key: value for key, value in kwargs.items() if key not in _DECODERS_ONLY}
        if self.config.position_kind == "rotary":
            head_dim = self.config.hidden_size // self.config.num_attention_heads
            kwargs["rotation"] = attention.rotation(position_ids, head_dim, self.config.rotary_base)
        for block in self.layer:
            hidden_states = block(hidden_states, mask, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.LayerNorm(hidden_states))

    def bias(self, position_ids: "Tensor", dtype: "torch.dtype") -> "Tensor | None":
        """What is added to every layer's attention scores, [batch or 1, head, query, key]; None for most kinds."""
        config = self.config
        if config.position_kind == "alibi":
            return attention.alibi_bias(position_ids, config.num_attention_heads).to(dtype)
        if config.position_kind == "relative":
            buckets = attention.relative_buckets(position_ids, config.relative_buckets, config.relative_max_distance)
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
        if isinstance(module, Gate):
            initialization.constant_(module.bias, math.log(config.gate_start / (1 - config.gate_start)))
        if isinstance(module, FixedPositions):
            table = attention.sinusoids(*module.weight.shape)
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
