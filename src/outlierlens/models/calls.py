"""Look at what single modules of a running network read and give; `hooks` has the residual stream.

with tapped_calls(model, {model.get_submodule("layers.0.mlp.down_proj"): look}):      # look(read, given)
    model(**batch)
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outlierlens.models.changes import temporary
from outlierlens.models.hooks import refuse_compiled

if TYPE_CHECKING:
    from torch import Tensor, nn


@temporary
def tapped_calls(
    model: "nn.Module", looks: Mapping["nn.Module", Callable[["Tensor", "Tensor"], None]]
) -> Iterator[None]:
    """Call each module's function with its first argument and its output, in every forward pass inside the block."""
    import torch

    refuse_compiled(model)

    def after(module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor):
            looks[module](given, made)

    with ExitStack() as hooks:
        for module in looks:
            hooks.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        yield


@temporary
def head_read(model: "nn.Module", look: Callable[["Tensor", Callable[["Tensor"], "Tensor"]], None]) -> Iterator[None]:
    """Call `look(states, head)` with what the vocabulary head reads [batch, token, dim]; the pass computes one token of it.

    `head(some)` gives the logits of some of them [..., vocabulary], unseen by any hook. Nothing is called without a head.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]

    def cut(module: "nn.Module", args: tuple[Any, ...]) -> Any:
        look(args[0], head.forward)
        return (args[0][:, :1], *args[1:])

    with ExitStack() as hooks:
        if head is not None:
            hooks.callback(head.register_forward_pre_hook(cut).remove)
        yield
