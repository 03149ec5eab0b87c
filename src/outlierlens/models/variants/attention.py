"""How positions enter attention, and the kinds of attention beside softmax; plain functions of tensors.

relative_buckets(positions, 32, 128)       # int64 [batch, token, token], rows of the relative-bias table
alibi_bias(positions, n_heads=8)           # [batch, head, token, token], added to the scores
rotation(positions, head_dim=16)           # cosines and sines for `rotated(query, rotation)`
with_bias(mask, bias)                      # one additive mask for any attention implementation
clipped_attention(module, query, ...)      # in place of transformers' attention functions
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import dropout as drop

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
    distance = distances(positions)
    half = n_buckets // 2
    exact = half // 2
    away = distance.abs()
    # In float32 like T5's own, so that distances on the border of two buckets fall alike.
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(away < exact, away, far) + half * (distance > 0)


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
    scores = torch.matmul(query, key.transpose(-1, -2)) * options["scaling"]
    if attention_mask is not None:
        scores = scores + with_bias(attention_mask, scores.new_zeros(()).expand_as(scores))
    config = module.config
    weights = torch.softmax(scores, dim=-1)
    weights = ((config.clip_zeta - config.clip_gamma) * weights + config.clip_gamma).clamp(0.0, 1.0)
    weights = drop(weights, p=options.get("dropout", 0.0), training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights
