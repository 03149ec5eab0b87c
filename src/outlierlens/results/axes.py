"""Whether the shapes of what a file holds fit one another: fields name their axes, one size to each name.

sizes = {}
fit([0, 1, 2], "layer", "found.json.layers", sizes)              # binds "layer" to 3
fit(np.zeros((2, 8)), "layer dim", "found.json.norms", sizes)    # BadFile: shape [2, 8], but there are 3 layers
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from outlierlens.errors import BadFile


def fit(value: Any, axes: str, where: str, sizes: dict[str, Any]) -> Any:
    """`value` if its shape fits, whose axes are bound; of an empty array, of which JSON keeps no shape, one that fits."""
    listed, _, or_empty = axes.partition(", or ")
    names = [name.partition("+")[::2] for name in listed.split()]
    wanted = [int(name) if name.isdigit() else sizes.get(name) for name, _ in names]
    wanted = [
        size + int(more) if more and size is not None else size for size, (_, more) in zip(wanted, names, strict=True)
    ]
    known = isinstance(value, np.ndarray) and (value.size > 0 or value.ndim == len(names))
    if isinstance(value, np.ndarray) and not known and (or_empty or not all(wanted)):
        value = value.reshape([0 if or_empty else size or 0 for size in wanted])
    if value is None or (or_empty and np.size(value) == 0):
        return value
    for shape in _shapes(value, wanted):
        if len(shape) != len(wanted) or any(size not in (None, n) for n, size in zip(shape, wanted, strict=True)):
            expected = [name if size is None else size for (name, _), size in zip(names, wanted, strict=True)]
            raise BadFile(
                f"{where}: its shape is [{_listed(shape)}], but [{_listed(listed.split())}] is [{_listed(expected)}]; "
                "make the result again"
            )
        for (name, more), n in zip(names, shape, strict=True):
            sizes.setdefault(name, n - int(more) if more else n)
    return value


def _shapes(value: Any, wanted: list[Any]) -> set[tuple[Any, ...]] | list[tuple[Any, ...]]:
    """The shape of a value; of rows, of each row."""
    if isinstance(value, int):
        return [(value,)]
    if isinstance(value, np.ndarray):
        return [value.shape]
    if isinstance(value, dict):
        return [({key: len(item) for key, item in value.items()},)]
    if len(wanted) == 1:
        return [(len(value),)]
    return {(len(value), len(row)) for row in value} or [(0, wanted[1] or 0)]


def _listed(shape: Iterable[Any]) -> str:
    return f"{', '.join(map(str, shape)):.80}"
