"""Look at a running network's attention: what it multiplies, what softmax reads, the weights; beside `hooks`, the only hooks.

    with tapped_logits(MapLooks(read, product, logits)):
        model(**batch)

    @eagerly                                         # sdpa and flash attention make no weights
    def measure(loaded, stack):
        with tapped_attention(loaded, stack, look):  # look(layer, weights, visible)
            run(batch)

Every family ends in torch's own attention, or in a softmax over [batch, head, query, key] between two products, whose factors
may have batch and heads in one axis; they are seen as they are called.

`weights` are [batch, head, query, key] as attention applied them: what values are multiplied by. `visible` is bool, broadcast
to [batch, 1, query, key]: which keys the mask of this layer lets a query see; None where it lets all be seen. Padding may be
hidden in it or not. Nothing is kept: once `look` returns, the maps are freed when the layer is done. A block's first attention
is read: of a decoder that to itself, not that to the encoder.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.models.changes import OfPass, hang, temporary
from outlierlens.models.hooks import function_calls, refuse_compiled
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn

PRODUCTS = 4  # that are held for a softmax to tell which is of queries and keys
CHUNK = 2**24  # products of queries and keys that are held at once


@dataclass(frozen=True)
class MapLooks:
    """Functions that look at attention maps.

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
def tapped_logits(looks: MapLooks) -> Iterator[None]:
    """Call `looks` in every forward pass inside the block."""
    import torch
    from torch.nn import functional

    attends, softmaxes, products = functional.scaled_dot_product_attention, _softmaxes(), _products()
    sums = {torch.baddbmm, torch.Tensor.baddbmm}  # of a bias and a product (BLOOM)
    eager = _EagerAttention(looks)

    def called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is attends:
            _attention(looks, *args, **kwargs)
        elif func in softmaxes and args and args[0].ndim == 4:
            eager.softmax(args[0])
        made = func(*args, **kwargs)
        if func in products and len(args) > 1 and args[0].ndim == args[1].ndim and args[0].ndim in (3, 4):
            eager.product(args[0], args[1], made)
        elif func in sums:
            factors = [*args[1:3], *(kwargs[name] for name in ("batch1", "batch2") if name in kwargs)]
            eager.product(factors[0], factors[1], factors[0] @ factors[1])
        return made

    with function_calls(called):
        yield


@functools.cache
def _softmaxes() -> frozenset[Any]:
    import torch

    return frozenset((torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax))


@functools.cache
def _products() -> frozenset[Any]:
    import torch

    return frozenset((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm))


class _EagerAttention:
    """Attention that is written out: a product of queries and keys, a softmax, a product with values."""

    def __init__(self, looks: MapLooks):
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


def _by_head(values: "Tensor", n_texts: int) -> "Tensor | None":
    """[batch, head, query, key] of what stands so, or has batch and heads in one axis; None for anything else."""
    several = values.ndim == 3 and 0 < n_texts < len(values) and len(values) % n_texts == 0
    return values.unflatten(0, (n_texts, -1)) if several else values if values.ndim == 4 else None


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
    looks: MapLooks,
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


# --- attention weights -----------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
Look = Callable[[int, "Tensor", "Tensor | None"], None]


@dataclass
class _Block:
    """The block that a pass runs: how often each block ran, its layer until its weights were seen, what softmax read."""

    runs: Counter[str] = field(default_factory=Counter)
    layer: int | None = None
    n_texts: int = 0
    shape: tuple[int, ...] = ()  # of what softmax gave
    visible: "Tensor | None" = None


@temporary
def tapped_attention(loaded: LoadedModel, stack: BoundStack, look: Look) -> Iterator[None]:
    """Call `look(layer, weights, visible)` on every layer's attention weights in every forward pass inside the block.

    Raises:
        BadInput: the model is compiled, or runs another attention than eager; in a pass, a block makes no weights.
    """
    import torch
    from torch.nn import functional
    from transformers import PreTrainedModel

    check_eager(loaded, stack)
    refuse_compiled(loaded.model)
    block: OfPass[_Block] = OfPass(_Block)
    layers: dict[str, list[int]] = {}
    for layer, path in enumerate(stack.blocks):
        layers.setdefault(path, []).append(layer)

    def restart(*_: Any) -> None:
        block().runs.clear()

    def begin(path: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        now = block()
        states = args[0] if args else kwargs.get("hidden_states")
        now.n_texts = 0 if states is None else len(states)
        now.layer, now.shape = layers[path][now.runs[path] % len(layers[path])], ()
        now.runs[path] += 1

    def end(path: str, *_: Any) -> None:
        if block().layer is not None:
            raise BadInput(
                f"{loaded.name}, stream {stack.name!r}: {path} makes no attention weights that could be read"
            )

    def called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        now = block()
        if now.layer is not None and func is functional.scaled_dot_product_attention:
            raise BadInput(_not_eager(loaded, "sdpa"))
        made = func(*args, **kwargs)
        if now.layer is None:
            return made
        logits = _by_head(args[0], now.n_texts) if func in _softmaxes() and args else None
        if logits is not None:
            # What hides is the type's smallest number; heads may differ in a bias by position.
            seen = logits[:, :1] > torch.finfo(logits.dtype).min / 2
            now.shape, now.visible = tuple(logits.shape), None if bool(seen.all()) else seen
        elif now.shape and func in (*_products(), torch.einsum):
            weights = _apart(args[int(func is torch.einsum)], now.shape)
            if _fits(weights, now.shape):
                layer, now.layer = now.layer, None
                look(layer, weights, None if now.visible is None else now.visible[..., : weights.shape[3]])
        return made

    names = stack.blocks[0].split(".")
    outer = (loaded.model.get_submodule(".".join(names[:length])) for length in range(len(names)))
    with ExitStack() as hooks, function_calls(called):
        for module in outer:
            if isinstance(
                module, PreTrainedModel
            ):  # whichever of the models around the blocks is run, a pass begins there
                hang(hooks, module.register_forward_pre_hook, restart)
        for path in layers:
            module = loaded.model.get_submodule(path)
            hang(hooks, module.register_forward_pre_hook, functools.partial(begin, path), with_kwargs=True)
            hang(hooks, module.register_forward_hook, functools.partial(end, path))
        yield


@temporary
def eager_attention(model: "nn.Module") -> Iterator[None]:
    """Attention that makes weights inside, where the model can change its own; afterwards each part attends as before."""
    from transformers import PreTrainedModel

    models = [one for one in model.modules() if isinstance(one, PreTrainedModel) and one._can_set_attn_implementation()]
    used = [(one.config, one.config._attn_implementation) for one in models]
    try:
        for config, _ in used:
            config._attn_implementation_internal = "eager"  # by itself: the setter changes nested configs too
        yield
    finally:
        for config, before in reversed(used):
            config._attn_implementation_internal = before


def eagerly(function: F) -> F:
    """`function` of a model, run with `eager_attention`."""

    @functools.wraps(function)
    def call(loaded: LoadedModel, *arguments: Any, **named: Any) -> Any:
        with eager_attention(loaded.model):
            return function(loaded, *arguments, **named)

    return cast(F, call)


def check_eager(loaded: LoadedModel, stack: BoundStack) -> None:
    """Raise BadInput unless the model computes attention in a way that makes weights, with the remedy."""
    for path in dict.fromkeys(stack.blocks):
        inside = [getattr(module, "config", None) for module in loaded.model.get_submodule(path).modules()]
        for config in list(filter(None, inside)) or [getattr(loaded.model, "config", None)]:
            used = getattr(config, "_attn_implementation", None) or "eager"
            if used != "eager":
                raise BadInput(_not_eager(loaded, used))


def _not_eager(loaded: LoadedModel, used: str) -> str:
    return (
        f"{loaded.name} runs attention {used!r}, which computes no attention weights; load it with "
        "load_model(name, attention='eager')"
    )
