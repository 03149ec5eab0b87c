"""`VariantConfig`: BERT's config with a choice of positions, norms and attention; `VariantDecoderConfig`: Llama's.

VariantConfig(hidden_size=128, position_kind="alibi", attention_kind="clipped", clip_gamma=-0.03)
VariantDecoderConfig(hidden_size=128, attention_kind="off-by-one")
"""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, BertConfig, LlamaConfig

from outlierlens.errors import BadInput

CHOICES = {
    "position_kind": ("learned", "sinusoidal", "none", "relative", "rotary", "alibi"),
    "norm_order": ("post", "pre"),
    "norm_kind": ("layernorm", "rmsnorm"),
    "attention_kind": ("softmax", "clipped", "gated", "off-by-one"),
}
DECODER_ATTENTION = ("softmax", "gated", "off-by-one")
TABLES = ("learned", "sinusoidal")  # position kinds that add a vector to the embeddings


@strict
class VariantConfig(BertConfig):
    """Configuration of a BERT encoder with these options besides BERT's own.

    Attributes:
        position_kind: "learned" (BERT's), "sinusoidal" (fixed; Vaswani 2017, section 3.5), "none", "relative" (T5's
            bias, one table for all layers; Raffel 2020, section 2.1), "rotary" (Su 2021) or "alibi" (Press 2022,
            symmetric: −slope · |distance|, so that left and right of a token look alike).
        position_amplitude: amplitude of fixed sinusoids. Its default gives them about the size of the word embeddings
            they are added to (initializer_range 0.02); Vaswani multiplies those by sqrt(dim) instead.
        relative_buckets, relative_max_distance: of the relative bias; half of the buckets look each way.
        rotary_base: rotation of a pair of head dimensions i: position / base^(2i / head dim).
        norm_order: "post" (BERT's: after each residual sum) or "pre" (on what attention and MLP read, and once after
            the last block). The embeddings are normed in both.
        norm_kind: "layernorm" or "rmsnorm" (no mean, no bias; Zhang 2019), for every norm of the model.
        attention_kind: "softmax", "clipped" or "gated" (Bondarenko 2023, eq. 4 and 5), or "off-by-one" (Miller 2023:
            exp(x) / (1 + sum of exp), so that a head can give less than all of its attention).
        clip_gamma, clip_zeta: "clipped" is clip((zeta − gamma) · softmax + gamma, 0, 1); gamma <= 0 lets a head give
            exactly nothing, zeta >= 1 exactly everything. The defaults are the paper's for BERT.
        gate_start: "gated" multiplies each head's output at each token by a sigmoid of a linear reading of what
            attention reads there; this is its value before training, in (0, 1).

    Raises:
        BadInput: an option has no such value, or the config is a decoder's.
    """

    model_type = "outlierlens-bert"

    position_kind: str = "learned"
    position_amplitude: float = 0.04
    relative_buckets: int = 32
    relative_max_distance: int = 128
    rotary_base: float = 10000.0
    norm_order: str = "post"
    norm_kind: str = "layernorm"
    attention_kind: str = "softmax"
    clip_gamma: float = -0.025
    clip_zeta: float = 1.0
    gate_start: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        _check_choices(self, CHOICES)
        super().__post_init__(**kwargs)
        for fits, problem in self._requirements():
            if not fits:
                raise BadInput(problem)

    def _requirements(self) -> list[tuple[bool, str]]:
        width, heads = self.hidden_size, self.num_attention_heads
        return [
            (heads > 0 and width % heads == 0, f"hidden_size {width} is not a multiple of num_attention_heads {heads}"),
            (
                not (self.is_decoder or self.add_cross_attention),
                "this family has encoders only; leave out is_decoder and add_cross_attention, or use VariantDecoderConfig",
            ),
            (
                self.position_kind != "rotary" or (width // heads) % 2 == 0,
                f"rotary positions turn pairs of head dimensions, and a head has {width // heads}; make it even",
            ),
            (
                self.relative_buckets >= 4
                and self.relative_buckets % 2 == 0
                and self.relative_max_distance > self.relative_buckets // 4,
                f"relative_buckets is {self.relative_buckets} and relative_max_distance {self.relative_max_distance}; "
                "use an even number of 4 buckets or more, and a distance above a quarter of it",
            ),
            (
                self.clip_gamma <= 0 and self.clip_zeta >= 1,
                f"clip_gamma is {self.clip_gamma} and clip_zeta {self.clip_zeta}; use gamma <= 0 and zeta >= 1",
            ),
            _gate_start(self.gate_start),
        ]


@strict
class VariantDecoderConfig(LlamaConfig):
    """Configuration of a Llama decoder with one option besides Llama's own.

    Attributes:
        attention_kind: "softmax" (Llama's), "gated" or "off-by-one", as in `VariantConfig`.
        gate_start: likewise.

    Raises:
        BadInput: an option has no such value.
    """

    model_type = "outlierlens-llama"

    attention_kind: str = "softmax"
    gate_start: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        _check_choices(self, {"attention_kind": DECODER_ATTENTION})
        super().__post_init__(**kwargs)
        fits, problem = _gate_start(self.gate_start)
        if not fits:
            raise BadInput(problem)


def _check_choices(config: Any, choices: dict[str, tuple[str, ...]]) -> None:
    for option, known in choices.items():
        if getattr(config, option) not in known:
            raise BadInput(f"{option} is {getattr(config, option)!r}; use one of {', '.join(known)}")


def _gate_start(value: float) -> tuple[bool, str]:
    return 0 < value < 1, f"gate_start is {value}; use a value between 0 and 1"


for _family in (VariantConfig, VariantDecoderConfig):
    AutoConfig.register(_family.model_type, _family, exist_ok=True)
