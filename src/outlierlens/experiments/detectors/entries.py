"""Single weights of the last linears: multiply some, draw others to compare with.

with scaled(loaded, stack, [(2, 507, 1031)], 0.0): ...       # (layer, row, column), restored bit for bit
random_places(loaded, stack, places, seed=0)                 # as many in the same layers, at random
largest_places(loaded, stack, places)                        # as many in the same layers, the largest of the others
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from outlierlens.architectures import BoundStack
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.linears import entries, last_linear
from outlierlens.models.changes import set_values, temporary
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int, int]  # layer, row, column


@temporary
def scaled(loaded: LoadedModel, stack: BoundStack, places: Sequence[Place], factor: float) -> Iterator[None]:
    """Multiply the weights at `places` by `factor`, and put the old values back bit for bit.

    Raises:
        BadInput: a place that does not exist.
    """
    with ExitStack() as undo:
        for layer, row, column in places:
            weight = entries(loaded, stack, layer)
            if not (0 <= row < weight.shape[0] and 0 <= column < weight.shape[1]):
                raise BadInput(
                    f"layer {layer} has no weight [{row}, {column}]; its last linear is {list(weight.shape)}"
                )
            place = (column, row) if stack.stack.weight_is_in_by_out else (row, column)
            scaled_value = weight[row, column] * factor if factor else 0.0
            set_values(undo, last_linear(loaded, stack, layer), place, scaled_value, f"layer {layer}'s last linear")
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
