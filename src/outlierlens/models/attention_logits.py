"""See what attention multiplies while a network runs, and what softmax reads, whatever the family and the kernel.

    with tapped_logits(Looks(read, product, logits)):
        model(**batch)

Every family ends in torch's own attention or in a softmax over [batch, head, query, key]; both are seen as they are called.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.models.changes import temporary

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2**24  # products of queries and keys that are held at once


@dataclass(frozen=True)
class Looks:
    """What is called.

    Attributes:
        read: (name, values) of "q", "k" and "v", [batch, token, head * dim], where torch's own attention is called.
        product: largest |q·k| of visible keys, before scaling [batch, query]; likewise.
        logits: largest |what softmax reads| of visible keys [batch, query].
    """

    read: Callable[[str, "Tensor"], None]
    product: Callable[["Tensor"], None]
    logits: Callable[["Tensor"], None]


@temporary
def tapped_logits(looks: Looks) -> Iterator[None]:
    """Call `looks` in every forward pass inside the block."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    attends = functional.scaled_dot_product_attention
    softmaxes = {functional.softmax, torch.softmax, torch.Tensor.softmax}

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is attends:
                _attention(looks, *args, **kwargs)
            elif func in softmaxes and args and args[0].ndim == 4:
                looks.logits(_largest(args[0]))
            return func(*args, **kwargs)

    with Mode():
        yield


def _largest(logits: "Tensor") -> "Tensor":
    """Largest |x| over heads and visible keys [batch, query] of [batch, head, query, key]."""
    import torch

    hidden = torch.finfo(logits.dtype).min / 2
    low = logits.masked_fill(logits <= hidden, 0).amin(-1)
    return torch.maximum(logits.amax(-1), -low).amax(1)


def _attention(
    looks: Looks,
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attn_mask: "Tensor | None" = None,
    *_: Any,
    **more: Any,
) -> None:
    """Show what one call of torch's attention reads, and what it makes of queries and keys."""
    import torch

    if query.ndim != 4:
        return
    for name, states in (("q", query), ("k", key), ("v", value)):
        looks.read(name, states.transpose(1, 2).flatten(2))
    scale = more.get("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    n_batch, n_heads, n_queries, _width = query.shape
    n_keys = key.shape[2]
    step = max(1, CHUNK // (n_batch * n_heads * n_keys))
    products, logits = [], []
    for start in range(0, n_queries, step):
        made = query[:, :, start : start + step] @ key.transpose(2, 3)  # [batch, head, query, key]
        bias = None
        if more.get("is_causal"):
            made.tril_(start)
        elif attn_mask is not None:
            mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., start : start + step, :]
            seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            made.masked_fill_(~seen, 0)
            bias = None if mask.dtype == torch.bool else mask.masked_fill(~seen, 0)
        size = torch.maximum(made.amax(-1), -made.amin(-1)).amax(1)
        products.append(size)
        if bias is None:
            logits.append(size * scale)
        else:
            made = made.mul_(scale).add_(bias)
            logits.append(torch.maximum(made.amax(-1), -made.amin(-1)).amax(1))
    looks.product(torch.cat(products, 1))
    looks.logits(torch.cat(logits, 1))
