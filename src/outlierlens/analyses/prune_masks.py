"""Masks from files, whatever they are called there, and pruned state dicts as `torch.nn.utils.prune` saves them.

    source = open_source("masks.npz")
    held(source)                       # "masks", "torch masks" or "weights"
    masks = Masks(source)
    masks.off(param, prefix, shape)    # int [dim], how many of the parameter's values are pruned at each position
    with NpzCheckpoint(Path("masks.npz"), name="masks.npz", config={}) as checkpoint:
        dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

A mask is 1 where a weight stays and 0 where it is gone. It is named as the parameter, or NAME_mask; a state dict of
`torch.nn.utils.prune` holds NAME_orig beside it. Of NumPy archives headers are read first, nothing is unpickled, and sizes are
checked before they are believed.
"""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outlierlens.analyses.prune_cells import per_dim_off
from outlierlens.architectures import Param
from outlierlens.checkpoints import Checkpoint, TensorInfo, as_weights, open_checkpoint
from outlierlens.checkpoints.base import MAX_TENSORS, is_shape, load_config
from outlierlens.data.media.read import DAMAGED
from outlierlens.errors import BadFile, BadInput, one_line

Holds = Literal["masks", "torch masks", "weights"]
MASK, ORIGINAL = "_mask", "_orig"
MAX_RATIO = 1100  # deflate cannot do better; an entry that claims more is no honest archive
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes


class NpzCheckpoint(Checkpoint):
    """Named arrays of one .npz file."""

    kind = "npz"

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        self.name, self.config, self._path = name, config, path
        self.total_bytes, self.bytes_read = path.stat().st_size, 0
        self._entries: dict[str, tuple[zipfile.ZipInfo, int, bool]] = {}
        with _readable(f"{path}: not a readable .npz file"):
            self._archive = zipfile.ZipFile(path)
        entries = self._archive.infolist()
        if len(entries) > MAX_TENSORS:
            raise BadFile(f"{path}: lists {len(entries):,} arrays, more than {MAX_TENSORS:,}")
        self.tensors: dict[str, TensorInfo] = {}
        for entry in entries:
            key = entry.filename.removesuffix(".npy")
            if key in self.tensors:
                raise BadFile(f"{path}: array {key!r} stands there twice; write it again")
            self.tensors[key] = self._head(entry, key)

    def _head(self, entry: zipfile.ZipInfo, key: str) -> TensorInfo:
        where = f"{self._path}: array {key!r}"
        if entry.compress_type not in METHODS or entry.flag_bits & 1:
            raise BadFile(f"{where} is packed in a way that numpy never does; refused")
        if entry.file_size > max(1, entry.compress_size) * MAX_RATIO:
            raise BadFile(f"{where} claims {entry.file_size:,} bytes from {entry.compress_size:,}; refused")
        with _readable(f"{where} has a header that cannot be read"), self._archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read: Any = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, by_column, dtype = read(file)
            start = file.tell()
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise BadFile(f"{where} holds {dtype.str!r}; masks are numbers or bool")
        if not is_shape(shape):
            raise BadFile(f"{where} declares the shape {shape!r}; write it again")
        size = math.prod(shape) * dtype.itemsize
        if start + size != entry.file_size:
            raise BadFile(f"{where} declares {list(shape)} of {dtype.str} but holds {entry.file_size - start:,} bytes")
        self.bytes_read += start
        self._entries[key] = (entry, start, by_column)
        return TensorInfo(dtype.str, shape, size)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            (entry, start, by_column), info = self._entries[name], self.tensors[name]
            with _readable(f"{self._path}: array {name!r} cannot be read"), self._archive.open(entry) as file:
                values = np.frombuffer(file.read(start + info.nbytes)[start:], info.dtype)
                values = values.reshape(info.shape, order="F" if by_column else "C")
            self.bytes_read += info.nbytes
            yield name, values.astype(np.float64 if values.dtype == np.float64 else np.float32)

    def close(self) -> None:
        self._archive.close()


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise BadFile(f"{what} ({one_line(str(error))[:150]}); truncated? write it with numpy.savez") from None


def open_source(name: str, **how: Any) -> Checkpoint:
    """Open a file of masks, or whatever `open_checkpoint` opens; masks as they are stored."""
    path = Path(name)
    if path.suffix == ".npz" and path.is_file():
        return NpzCheckpoint(path, name=name, config=load_config(path.parent / "config.json"))
    source = open_checkpoint(name, **how, as_stored=True)
    return source if held(source) != "weights" else as_weights(source)


def held(source: Checkpoint) -> Holds:
    """What a file holds, by its names and types."""
    names = source.tensors
    if any(name.endswith(MASK) and name.removesuffix(MASK) + ORIGINAL in names for name in names):
        return "torch masks"
    parameters = (".weight", ".bias", ".gamma", ".beta")
    masks = [name for name in names if name.removesuffix(MASK).endswith(parameters) and name.endswith(MASK)]
    whole = not any(map(source.holds_floats, names))
    return "masks" if masks or whole or source.kind == "npz" else "weights"


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
