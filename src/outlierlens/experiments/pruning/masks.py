"""Masks from files, whatever they are called there, and pruned state dicts as `torch.nn.utils.prune` saves them.

    source = open_source("masks.npz")
    held(source)                       # "masks", "torch masks" or "weights"
    masks = Masks(source)
    masks.off(param, prefix, shape)    # int [dim], how many of the parameter's values are pruned at each position

A mask is 1 where a weight stays and 0 where it is gone. It is named as the parameter, or NAME_mask; a state dict of
`torch.nn.utils.prune` holds NAME_orig beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlierlens.architectures import Param
from outlierlens.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from outlierlens.checkpoints.base import load_config
from outlierlens.errors import BadInput
from outlierlens.experiments.pruning.npz import NpzCheckpoint
from outlierlens.experiments.pruning.removal import per_dim_off

Holds = Literal["masks", "torch masks", "weights"]
MASK, ORIGINAL = "_mask", "_orig"
WHOLE = {"BOOL", "bool", "U8", "I8", "I16", "I32", "I64", "uint8", "int8", "int16", "int32", "int64"}


def open_source(name: str, **how: Any) -> Checkpoint:
    """Open a file of masks, or whatever `open_checkpoint` opens."""
    path = Path(name)
    if path.suffix == ".npz" and path.is_file():
        return NpzCheckpoint(path, name=name, config=load_config(path.parent / "config.json"))
    return open_checkpoint(name, **how)


def held(source: Checkpoint) -> Holds:
    """What a file holds, by its names and types."""
    names = source.tensors
    if any(name.endswith(MASK) and name.removesuffix(MASK) + ORIGINAL in names for name in names):
        return "torch masks"
    parameters = (".weight", ".bias", ".gamma", ".beta")
    masks = [name for name in names if name.removesuffix(MASK).endswith(parameters) and name.endswith(MASK)]
    whole = all(_is_whole(info) for info in names.values())
    return "masks" if masks or whole or source.kind == "npz" else "weights"


def _is_whole(info: TensorInfo) -> bool:
    return info.dtype in WHOLE or np_kind(info.dtype) in "biu"


def np_kind(dtype: str) -> str:
    """numpy's letter of a kind of type ("b", "i", "u", "f"), "?" where it knows no such type."""
    try:
        return np.dtype(dtype).kind
    except (TypeError, ValueError):
        return "?"


class Unmasked(Checkpoint):
    """A pruned state dict seen as the weights before: NAME_orig stands for NAME, masks are left out."""

    def __init__(self, source: Checkpoint):
        self.name, self.kind, self.config, self.notes = source.name, source.kind, source.config, source.notes
        self._source = source
        names = source.tensors
        self._real = {
            name.removesuffix(ORIGINAL) if name.removesuffix(ORIGINAL) + MASK in names else name: name
            for name in names
            if not (name.endswith(MASK) and name.removesuffix(MASK) + ORIGINAL in names)
        }
        self.tensors: Mapping[str, TensorInfo] = {name: names[real] for name, real in self._real.items()}
        self.total_bytes = source.total_bytes

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        """See `Checkpoint`."""
        return self._source.bytes_read

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            for _, values in self._source.read([self._real[name]]):
                yield name, values


class Masks:
    """The masks of a file, by the parameter they are of."""

    def __init__(self, source: Checkpoint):
        self.source, self.holds = source, held(source)
        self.used: set[str] = set()
        self._by_tail: dict[str, list[str]] = {}
        for name in source.tensors:
            parts = self._parameter(name).split(".")
            for start in range(len(parts)):
                self._by_tail.setdefault(".".join(parts[start:]), []).append(name)

    def _parameter(self, name: str) -> str:
        return name.removesuffix(MASK)

    def parameters(self) -> set[str]:
        """Names of the parameters that have a mask."""
        names = self.source.tensors
        return {self._parameter(name) for name in names if self.holds != "torch masks" or name.endswith(MASK)}

    def find(self, parameter: str, prefix: str) -> str | None:
        """The tensor that holds the mask of a parameter, or None: what has no mask was not pruned.

        A head's prefix may stand before the name here or there ("bert."), never in between.

        Raises:
            BadInput: several fit.
        """
        tail = parameter.removeprefix(prefix)
        found = self._by_tail.get(parameter) or self._by_tail.get(tail) or []
        if self.holds == "torch masks":
            found = [name for name in found if name.endswith(MASK)]
        if len(found) > 1:
            exact = [name for name in found if self._parameter(name) == parameter]
            found = exact or found
        if len(found) > 1:
            raise BadInput(
                f"{self.source.name}: {', '.join(map(repr, sorted(found)[:3]))} could all be the mask of {parameter}; "
                "keep one of them"
            )
        return found[0] if found else None

    def off(self, param: Param, prefix: str, shape: tuple[int, ...]) -> np.ndarray:
        """How many values of `param` are pruned at each position, int [dim]; zeros where it has no mask.

        Raises:
            BadInput: the mask has another shape than the parameter, or holds other values than 0 and 1.
        """
        name = self.find(param.name, prefix)
        if name is None:
            return np.zeros(shape[param.axis], dtype=np.int64)
        self.used.add(name)
        found = self.source.tensors[name].shape
        if found != shape:
            raise BadInput(
                f"{self.source.name}: {name} is {list(found)}, the parameter {list(shape)}; a mask has its parameter's "
                "shape; of a model with fewer positions give the pruned model itself, with --positions"
            )
        ((_, values),) = self.source.read([name])
        zero = values == 0
        if not (zero | (values == 1)).all():
            odd = values[~(zero | (values == 1))].flat[0]
            raise BadInput(
                f"{self.source.name}: {name} holds {odd:.4g}; masks are 0 and 1; to compare two models give both, the "
                "intact one first"
            )
        # A pruner sets weights to 0; a norm that multiplies by 1 + weight is then 1 there, which removes nothing.
        if param.off:
            return np.zeros(shape[param.axis], dtype=np.int64)
        return per_dim_off(zero, param)
