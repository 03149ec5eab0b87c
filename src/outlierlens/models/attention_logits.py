"""See what attention multiplies while a network runs, and what softmax reads, whatever the family and the kernel.

    with tapped_logits(Looks(read, product, logits)):
        model(**batch)

Every family ends in torch's own attention, or in a softmax over [batch, head, query, key] between two products, whose factors
may have batch and heads in one axis; they are seen as they are called.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlierlens.models.changes import temporary

if TYPE_CHECKING:
    from torch import Tensor

PRODUCTS = 4  # that are held for a softmax to tell which is of queries and keys
CHUNK = 2**24  # products of queries and keys that are held at once


@dataclass(frozen=True)
class Looks:
    """What is called.

    Attributes:
        read: (name, values) of "q", "k" and "v", [batch, token, head * dim], as they are multiplied; a key or value head that
            several queries share stands once, as in a cache.
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
    products = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}
    sums = {torch.baddbmm, torch.Tensor.baddbmm}  # of a bias and a product (BLOOM)
    eager = _Eager(looks)

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is attends:
                _attention(looks, *args, **(kwargs or {}))
            elif func in softmaxes and args and args[0].ndim == 4:
                eager.softmax(args[0])
            made = func(*args, **(kwargs or {}))
            if func in products and len(args) > 1 and args[0].ndim == args[1].ndim and args[0].ndim in (3, 4):
                eager.product(args[0], args[1], made)
            elif func in sums:
                named = {"batch1": None, "batch2": None} | (kwargs or {})
                factors = [*args[1:3], *(one for one in (named["batch1"], named["batch2"]) if one is not None)]
                eager.product(factors[0], factors[1], factors[0] @ factors[1])
            return made

    with Mode():
        yield


class _Eager:
    """Attention that is written out: a product of queries and keys, a softmax, a product with values."""

    def __init__(self, looks: Looks):
        self.looks = looks
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []  # factors and product, the first few before a softmax
        self.weights: tuple[int, ...] = ()  # shape of what the softmax gave

    def product(self, left: "Tensor", right: "Tensor", made: "Tensor") -> None:
        """Either of queries and keys, of which a softmax is to tell, or of its weights and values."""
        if self.weights and _fits(_apart(left, self.weights), self.weights):
            self.looks.read("v", _once(_apart(right, self.weights)).transpose(1, 2).flatten(2))
            self.weights = ()
        elif len(self.products) < PRODUCTS:
            self.products.append((left, right, made))

    def softmax(self, logits: "Tensor") -> None:
        """What softmax reads; the first product of its shape before it is that of queries and keys."""
        import torch
        from torch.nn import functional

        least = torch.finfo(logits.dtype).min / 2  # of visible keys; [batch, head, query, key]
        self.looks.logits(_size(functional.threshold(logits, least, 0.0)))
        shape = tuple(logits.shape)
        found = next((one for one in self.products if _fits(_apart(one[2], shape), shape)), None)
        if found is not None:
            query, key, made = (_apart(one, shape) for one in found)
            self.looks.read("q", query.transpose(1, 2).flatten(2))
            self.looks.read("k", _once(key).permute(0, 3, 1, 2).flatten(2))  # it stands [batch, head, dim, key]
            seen = logits[..., : made.shape[3]] > least
            self.looks.product(_size(torch.where(seen, made, torch.zeros_like(made[:1, :1, :1, :1]))))
        self.products, self.weights = [], shape


def _apart(values: "Tensor", shape: tuple[int, ...]) -> "Tensor":
    """[batch, head, …] of what has batch and heads of `shape` in one axis; else as it is."""
    together = values.ndim == 3 and len(values) == shape[0] * shape[1]
    return values.reshape(*shape[:2], *values.shape[1:]) if together else values


def _once(heads: "Tensor") -> "Tensor":
    """[batch, head, …] without the copies of a head that stand behind it for the queries that share it."""
    import torch

    n_heads = heads.shape[1]
    for n_copies in range(n_heads, 1, -1):
        if n_heads % n_copies == 0:
            groups = heads.unflatten(1, (-1, n_copies))
            first = groups[:, :, :1]
            if torch.equal(groups[:1], first[:1].expand_as(groups[:1])) and torch.equal(
                groups, first.expand_as(groups)
            ):
                return first.squeeze(2)
    return heads


def _fits(values: "Tensor", shape: tuple[int, ...]) -> bool:
    """Whether values are of that shape, or lack its last column: a sink that is no token."""
    return values.ndim == 4 and tuple(values.shape[:3]) == shape[:3] and values.shape[3] in (shape[3], shape[3] - 1)


def _size(values: "Tensor") -> "Tensor":
    """Largest |x| over heads and keys [batch, query] of [batch, head, query, key]."""
    import torch

    return torch.maximum(values.amax((1, 3)), -values.amin((1, 3)))


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
    for name, states in (("q", query), ("k", _once(key)), ("v", _once(value))):
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
            made.mul_(torch.ones_like(made[0, 0]).tril_(start))
        elif attn_mask is not None:
            mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., start : start + step, :]
            seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            made.mul_(seen.to(made.dtype))
            bias = None if mask.dtype == torch.bool else mask.masked_fill(~seen, 0)
        size = _size(made)
        products.append(size)
        if bias is None:
            logits.append(size * scale)
        else:
            logits.append(_size(made.mul_(scale).add_(bias)))
    looks.product(torch.cat(products, 1))
    looks.logits(torch.cat(logits, 1))
