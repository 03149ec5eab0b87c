"""Hooks on what the last linears of a stream's MLPs read; `hooks` uses them where a stream is an MLP axis."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outlierlens.architectures import BoundStack
from outlierlens.models.changes import hang

if TYPE_CHECKING:
    from torch import Tensor, nn


def hook_reads(
    model: "nn.Module",
    stack: BoundStack,
    layers: Sequence[int],
    use: Callable[[int, "Tensor"], "Tensor | None"],
    hooks: ExitStack,
) -> None:
    """Hook what the linears of an MLP axis read in `layers`, until `hooks` are closed.

    OPT's MLP reads tokens of all rows in one: they are shown by row, as the block got them.
    """
    shapes: dict[int, tuple[int, ...]] = {}

    def enter(layer: int) -> Callable[..., None]:
        def before(module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            shapes[layer] = (args[0] if args else kwargs["hidden_states"]).shape[:2]

        return before

    def reader(layer: int) -> Callable[["nn.Module", tuple[Any, ...]], Any]:
        def before(module: "nn.Module", args: tuple[Any, ...]) -> Any:
            read = args[0]
            changed = swap(stack, read.reshape(*shapes[layer], read.shape[-1]), layer, use)
            return None if changed is None else (changed.reshape(read.shape), *args[1:])

        return before

    for layer in layers:
        block, linear = (model.get_submodule(path) for path in (stack.blocks[layer], stack.reads[layer]))
        hang(hooks, block.register_forward_pre_hook, enter(layer), with_kwargs=True)
        hang(hooks, linear.register_forward_pre_hook, reader(layer))


def swap(stack: BoundStack, output: Any, layer: int, use: Callable[[int, "Tensor"], "Tensor | None"]) -> Any:
    """Show `output`'s states to `use`; return what replaces the output, or None to leave it."""
    states = output[0] if isinstance(output, tuple) else output
    # XLNet blocks carry [token, batch, dim].
    shown = states.transpose(0, 1) if stack.stack.token_first else states
    changed = use(layer, shown)
    if changed is None:
        return None
    if stack.stack.token_first:
        changed = changed.transpose(0, 1)
    return (changed, *output[1:]) if isinstance(output, tuple) else changed
