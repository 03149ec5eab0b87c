"""Dimensions as people give them: `given_dims(507)` is `(507,)`, as is that of an array; "find" stays a word."""

from collections.abc import Mapping
from typing import Any

from outlierlens.errors import BadInput


def given_dims(dims: Any) -> Any:
    """Dimensions as people give them, as numbers: 507, [308, 381], an array, {layer: dimensions}; words stay as they are.

    Raises:
        BadInput: anything else, such as fractions.
    """
    if isinstance(dims, str) or dims is None:
        return dims
    if isinstance(dims, Mapping):
        return {layer: given_dims(some) for layer, some in dims.items()}
    if hasattr(dims, "tolist"):  # an array or a number of numpy, a tensor
        dims = dims.tolist()
    if isinstance(dims, set | frozenset | range):
        dims = sorted(dims)
    several = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
    several = tuple(one.item() if hasattr(one, "item") else one for one in several)
    if any(one is None or isinstance(one, bool | float | list | tuple) for one in several):
        raise BadInput(f'dims is {dims!r:.60}; give whole numbers such as 507 or [308, 381], or "find"')
    return several
