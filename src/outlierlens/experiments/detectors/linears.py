"""The last linear of each block's MLP: what it reads and writes, in a running network.

with last_linears(loaded, stack, use): ...            # use(layer, read, written) may return what is written instead
entries(loaded, stack, layer)                         # the weight as [row, column]: row writes a dimension of the stream

Single weights of the last linears: multiply some, draw others to compare with.

with scaled(loaded, stack, [(2, 507, 1031)], 0.0): ...       # (layer, row, column), restored bit for bit
random_places(loaded, stack, places, seed=0)                 # as many in the same layers, at random
largest_places(loaded, stack, places)                        # as many in the same layers, the largest of the others
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.architectures.bind import linear_paths
from outlierlens.errors import BadInput
from outlierlens.models.changes import Settable, temporary
from outlierlens.models.hooks import edited_calls
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

Use = Callable[[int, "Tensor", "Tensor"], "Tensor | None"]
Place = tuple[int, int, int]  # layer, row, column


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
    weight = loaded.model.get_parameter(last_linear(stack, layer)).detach()
    return weight.T if stack.stack.weight_is_in_by_out else weight


def last_linear(stack: BoundStack, layer: int) -> str:
    """The name of the last linear's weight of a layer."""
    paths = linear_paths(stack)
    assert paths is not None
    return f"{paths[layer]}.weight"


@temporary
def scaled(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], factor: float) -> Iterator[None]:
    """Multiply the weights at `places` by `factor`, and put the old values back bit for bit.

    Raises:
        BadInput: a place that does not exist.
    """
    with ExitStack() as undo:
        settable = Settable(undo, loaded.model)
        for layer, row, column in places:
            weight = entries(loaded, stack, layer)
            if not (0 <= row < weight.shape[0] and 0 <= column < weight.shape[1]):
                raise BadInput(
                    f"layer {layer} has no weight [{row}, {column}]; its last linear is {list(weight.shape)}"
                )
            place = (column, row) if stack.stack.weight_is_in_by_out else (row, column)
            scaled_value = weight[row, column] * factor if factor else 0.0
            settable.set_values(last_linear(stack, layer), place, scaled_value)
        yield


def random_places(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], *, seed: int) -> list[Place]:
    """As many weights as `places` in the same layers, drawn with `seed` from all others."""
    random = np.random.default_rng([seed, 53])
    found: list[Place] = []
    for layer, _, _ in places:
        rows, columns = entries(loaded, stack, layer).shape
        while (one := (layer, int(random.integers(rows)), int(random.integers(columns)))) in (*places, *found):
            if rows * columns <= len(places) + len(found):
                raise BadInput(f"layer {layer} has only {rows * columns} weights: too few to draw others from")
        found.append(one)
    return found


def largest_places(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place]) -> list[Place]:
    """As many weights as `places` in the same layers: those of largest |weight| that are not among them."""
    found: list[Place] = []
    for layer in dict.fromkeys(place[0] for place in places):
        mine = [place for place in places if place[0] == layer]
        weight = entries(loaded, stack, layer)
        top = weight.abs().float().reshape(-1).topk(min(2 * len(mine), weight.numel())).indices.tolist()
        others = [(layer, index // weight.shape[1], index % weight.shape[1]) for index in top]
        found += [place for place in others if place not in mine][: len(mine)]
    return found


def rank_of(weight: "Tensor", row: int, column: int) -> int:
    """Rank of |weight[row, column]| in its matrix, 1 = largest; equal ones share it."""
    return int((weight.abs() > weight[row, column].abs()).sum()) + 1
