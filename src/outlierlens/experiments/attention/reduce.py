"""One layer's attention maps of one batch, read into a few numbers a key and a head.

    read = read_maps(weights, lengths, visible, means=("seen", "all"))
    read.columns["seen"]            # [batch, token, head]: mean attention a key receives from the queries that see it

Padding is no query and no key, except for the mean "padded" of the released code, in which padding is a query.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.errors import USE_FLOAT32, BadInput

if TYPE_CHECKING:
    from torch import Tensor

SEEN, ALL, PADDED = "seen", "all", "padded"


@dataclass(frozen=True)
class MapSums:
    """What is kept of a layer's maps of a batch.

    Attributes:
        columns: attention that each key receives, by mean, float64 [batch, token, head]; 0 at padding.
        uniform: float64 [batch, token], what a key would receive in all from queries that attend to all keys alike.
        total: float64 [batch, token, head], what a key receives in all.
        mass, entropy, relative: sums over queries, float64 [batch, head].
        n_entropy, n_relative: queries in those sums [batch, head].
        hides: whether a key is hidden from a query, padding apart.
    """

    columns: dict[str, "Tensor"]
    uniform: "Tensor"
    total: "Tensor"
    mass: "Tensor"
    entropy: "Tensor"
    relative: "Tensor"
    n_entropy: "Tensor"
    n_relative: "Tensor"
    hides: bool


def read_maps(
    weights: "Tensor", lengths: Sequence[int], visible: "Tensor | None", *, with_padded: bool = False
) -> MapSums:
    """Columns, masses and entropies of `weights` [batch, head, query, key], whose texts have `lengths` tokens, padding last.

    `visible` is bool [batch or 1, 1, query or 1, key], None where every key is seen.

    Raises:
        BadInput: a weight is NaN or infinite, or there are fewer queries than tokens.
    """
    import torch

    n_texts, heads, n_queries, n_keys = weights.shape
    if len(lengths) != n_texts or max(lengths) > min(n_queries, n_keys):
        raise BadInput(
            f"attention weights are {list(weights.shape)} for {len(lengths)} texts of up to {max(lengths)} tokens; load the "
            "model with attention 'eager', which keeps padding in place"
        )
    device = weights.device
    wide: Any = {"dtype": torch.float64, "device": device}
    total, seen, padded = (torch.zeros((n_texts, n_keys, heads), **wide) for _ in range(3))
    uniform = torch.zeros((n_texts, n_keys), **wide)
    sums = torch.zeros((5, n_texts, heads), **wide)  # mass, entropy, relative, n_entropy, n_relative
    hides = False
    for text, n in enumerate(lengths):
        if not n:
            continue
        maps = weights[text, :, :n, :n].float()  # [head, query, key]
        received = maps.sum(1).double().T  # [key, head]
        by_query, by_key = _sight(visible, text, n)
        if by_query is None or by_key is None:
            log_keys = torch.full((n,), math.log(n), **wide)
            uniform[text, :n] = 1.0
            seen[text, :n] = received / n
        else:
            hides = hides or bool((by_key < n).any())
            uniform[text, :n] = (_shown(visible, text, n).double() / by_query.clamp(min=1)[:, None]).sum(0)
            seen[text, :n] = received / by_key.clamp(min=1)[:, None]
            log_keys = by_query.clamp(min=1).log()
        total[text, :n] = received
        if with_padded:
            padded[text, :n] = weights[text, :, :, :n].float().mean(1).double().T
        mass = maps.sum(2)  # [head, query]
        # 0 · log 0 is 0: the smallest number's logarithm is finite.
        self_information = maps.clamp(min=torch.finfo(maps.dtype).tiny).log_().mul_(maps).sum(2)
        there = mass > 0
        entropy = torch.where(
            there, mass.clamp(min=1e-30).log() - self_information / mass.clamp(min=1e-30), 0.0
        ).double()
        several = there & (log_keys > 0)
        relative = torch.where(several, entropy / torch.where(log_keys > 0, log_keys, 1.0), 0.0)
        sums[:, text] = torch.stack([part.double().sum(1) for part in (mass, entropy, relative, there, several)])
    if not bool(torch.isfinite(sums).all()):
        raise BadInput(f"an attention weight is NaN or infinite; {USE_FLOAT32}")
    columns = {SEEN: seen, ALL: total / torch.tensor(lengths, **wide).clamp(min=1)[:, None, None]}
    if with_padded:
        columns[PADDED] = padded
    return MapSums(columns, uniform, total, *sums, hides=hides)  # type: ignore[misc]


def _shown(visible: "Tensor | None", text: int, n: int) -> "Tensor":
    """bool [query, key] of a text."""
    assert visible is not None
    one = visible[text if len(visible) > 1 else 0, 0]
    return (one[:n] if len(one) > 1 else one)[:, :n].expand(n, n)


def _sight(visible: "Tensor | None", text: int, n: int) -> "tuple[Tensor | None, Tensor | None]":
    """(keys that each query sees, queries that see each key) [token] float64; None where all see all."""
    if visible is None:
        return None, None
    shown = _shown(visible, text, n)
    if bool(shown.all()):
        return None, None
    return shown.sum(1).double(), shown.sum(0).double()
