"""The last linear of each block's MLP: what it reads and writes, in a running network.

linear_paths(stack)                                   # module of each layer, or None
with last_linears(loaded, stack, use): ...            # use(layer, read, written) may return what is written instead
entries(loaded, stack, layer)                         # the weight as [row, column]: row writes a dimension of the stream
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from outlierlens.architectures import BoundStack
from outlierlens.models.changes import temporary
from outlierlens.models.hooks import edited_calls
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor, nn

Use = Callable[[int, "Tensor", "Tensor"], "Tensor | None"]
NO_LINEAR = "the MLP's last linear is no single module of its own in every layer (experts, or blocks that layers share)"


def linear_paths(stack: BoundStack) -> tuple[str, ...] | None:
    """Module path of each layer's last linear; None where it is no single module: experts, blocks that layers share."""
    names = stack.stack.last_linear
    if len(names) != 1 or names[0].endswith("()"):
        return None
    paths = tuple(f"{block}.{names[0]}" for block in stack.blocks)
    return paths if len(set(paths)) == len(paths) else None


@temporary
def last_linears(loaded: LoadedModel, stack: BoundStack, use: Use) -> Iterator[None]:
    """Show input and output of each layer's last linear, [batch, token, dim], to `use(layer, read, written)`.

    What it returns, if anything, goes on instead of the output. A stack without such modules shows nothing.
    """
    paths = linear_paths(stack) or ()
    modules = [loaded.model.get_submodule(path) for path in paths]
    reads: dict[int, Tensor] = {}

    def turned(values: "Tensor") -> "Tensor":
        # XLNet blocks carry [token, batch, dim].
        return values.transpose(0, 1) if stack.stack.token_first else values

    def reader(layer: int) -> Callable[["Tensor"], "Tensor"]:
        def keep(read: "Tensor") -> "Tensor":
            reads[layer] = read
            return read

        return keep

    def writer(layer: int) -> Callable[["Tensor"], "Tensor"]:
        def show(written: "Tensor") -> "Tensor":
            changed = use(layer, turned(reads.pop(layer)), turned(written))
            return written if changed is None else turned(changed)

        return show

    before = {module: reader(layer) for layer, module in enumerate(modules)}
    after = {module: writer(layer) for layer, module in enumerate(modules)}
    with edited_calls(loaded.model, before, after):
        yield


def entries(loaded: LoadedModel, stack: BoundStack, layer: int) -> "Tensor":
    """The last linear's weight of a layer as [row, column], a view: row j writes dimension j, column k reads input k."""
    weight = last_linear(loaded, stack, layer).detach()
    return weight.T if stack.stack.weight_is_in_by_out else weight


def last_linear(loaded: LoadedModel, stack: BoundStack, layer: int) -> "Tensor":
    """The last linear's weight of a layer as the model holds it."""
    paths = linear_paths(stack)
    assert paths is not None
    module: nn.Module = loaded.model.get_submodule(paths[layer])
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight
