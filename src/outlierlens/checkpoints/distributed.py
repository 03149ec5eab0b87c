"""Checkpoints of torch.distributed.checkpoint: a `.metadata` that says where the pieces of each tensor lie in `.distcp` files.

    with DistributedCheckpoint(Path("step-100/.metadata"), name="a run", config=config) as checkpoint: ...

The metadata is a pickle of a few classes of torch; `pickle_scan` reads it, and what asks for others is refused. A piece is what
torch.save writes of one tensor, and is read as that.
"""

import io
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import MAX_TENSORS, is_shape, is_too_long
from outlierlens.checkpoints.naming import named
from outlierlens.checkpoints.pickle_scan import PickledItems, PickledTensor, Record, read_pickle
from outlierlens.checkpoints.pieces import Piece, PiecedCheckpoint, PiecedTensor, one_bytes
from outlierlens.checkpoints.torchbin import MAX_PICKLE_BYTES, read_torch
from outlierlens.checkpoints.trainers import model_in
from outlierlens.errors import BadFile

_MODULE = "torch.distributed.checkpoint"
_ASKED = {
    *(f"{_MODULE}.metadata.{name}" for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "BytesStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    f"{_MODULE}.filesystem._StorageInfo", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
}  # fmt: skip
REMEDY = (
    "where you trust it, run `python -m torch.distributed.checkpoint.format_utils dcp_to_torch {0} {0}.pt` and name that "
    "file"
)


class DistributedCheckpoint(PiecedCheckpoint):
    """A local folder of torch.distributed.checkpoint, by its `.metadata` or one of its files."""

    kind = "dcp"
    wrapped = True

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        """Read the metadata and the header of each piece of the model.

        Raises:
            BadFile: it is malformed, asks for other objects, or lacks pieces.
        """
        path = path.parent / ".metadata"
        if not path.is_file():
            raise BadFile(f"{path}: is missing, and is written last: the checkpoint is not whole; take another step")
        self.name, self.folder, self._metadata = name, path.parent, path
        self.files = (path, *sorted(path.parent.glob("*.distcp")))
        self.total_bytes = sum(file.stat().st_size for file in self.files)
        self.bytes_read = path.stat().st_size
        try:
            tensors = self._tensors()
        except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:
            raise self._bad(f"does not say what torch writes ({type(error).__name__}: {error})") from None
        held, self.config, _ = named([tensors], config, {}, str(path))
        self._hold(held)

    def _bad(self, why: str) -> BadFile:
        return BadFile(f"{self._metadata}: {why}; {REMEDY.format(shlex.quote(str(self.folder)))}")

    def _tensors(self) -> dict[str, PiecedTensor]:
        if self.bytes_read > MAX_PICKLE_BYTES:
            raise self._bad(f"claims {self.bytes_read:,} bytes")
        content, machine = read_pickle(io.BytesIO(self._metadata.read_bytes()), str(self._metadata), 0)
        if other := next((one for one in machine.asked if one not in _ASKED), ""):
            raise self._bad(f"asks for {other[:80]}; refused, and nothing in it was executed")
        told = content.state
        names = {
            name: one for name, one in told["state_dict_metadata"].items() if one.name.endswith("TensorStorageMetadata")
        }
        paths: Mapping[str, Any] = told.get("planner_data") or {}
        where = {(one.state["fqn"], _sizes(one.state.get("offset"))): info for one, info in _places(told)}
        tree: dict[str, Any] = {}
        for name in names:
            self._put(tree, paths[name].items if isinstance(paths.get(name), PickledItems) else (name,), name)
        found, _ = model_in(tree)
        return {
            one: self._tensor(stored, names[stored].state, where) for one, stored in found.items() if stored in names
        }

    def _put(self, tree: dict[str, Any], path: tuple[Any, ...], name: str) -> None:
        *containers, last = map(str, path)
        for one in containers:
            tree = tree.setdefault(one, {})
        tree[last] = name

    def _tensor(self, name: str, told: Mapping[str, Any], where: Mapping[Any, Record]) -> PiecedTensor:
        shape = _sizes(told["size"])
        pieces: list[tuple[tuple[int, ...], Piece]] = []
        for chunk in told["chunks"]:
            at, sizes = _sizes(chunk.state["offsets"]), _sizes(chunk.state["sizes"])
            piece = self._piece(name, where[name, at].state)
            fits = len(at) == len(shape) and all(a + n <= whole for a, n, whole in zip(at, sizes, shape, strict=True))
            if piece.shape != sizes or not fits or (pieces and piece.dtype != pieces[0][1].dtype):
                raise self._bad(f"{name!r}: a piece {list(piece.shape)} at {list(at)} is not of {list(shape)}")
            pieces.append((at, piece))
        found = PiecedTensor(pieces[0][1].dtype, shape, tuple(pieces))
        if not is_shape(shape) or sum(one_bytes(found.dtype, one.shape) for _, one in pieces) != one_bytes(
            found.dtype, shape
        ):
            raise self._bad(
                f"{name!r}: its {len(pieces)} pieces do not fill {list(shape)}; the checkpoint is incomplete"
            )
        return found

    def _piece(self, name: str, told: Mapping[str, Any]) -> Piece:
        file, start, length = told["relative_path"], told["offset"], told["length"]
        plain = isinstance(file, str) and file not in ("", ".", "..") and not set(file) & set("/\\:\0")
        if not plain or is_too_long(file) or told.get("transform_descriptors"):
            raise self._bad(f"{name!r} lies in {file!r:.60}, which is not a plain file beside it, or is packed")
        path = self.folder / file
        if not path.is_file():
            raise BadFile(
                f"{path}: this file is named by .metadata but missing; the checkpoint is incomplete, fetch it again"
            )
        if not (type(start) is int and type(length) is int and 0 <= start < start + length <= path.stat().st_size):
            raise self._bad(f"{name!r} is said to lie outside {file}")
        stored, _, place, n_bytes = read_torch(path, start, start + length)
        self.bytes_read += n_bytes
        if not isinstance(stored, PickledTensor):
            raise self._bad(f"{name!r}: {file} holds no tensor where it should")
        return place(f"{path}: tensor {name!r}", stored)


def _places(told: Mapping[str, Any]) -> Iterator[tuple[Record, Record]]:
    found = told["storage_data"]
    if len(found) > MAX_TENSORS:
        raise ValueError(f"{len(found):,} pieces")
    yield from found.items()


def _sizes(given: Any) -> tuple[int, ...]:
    """Numbers of a torch.Size; () for None."""
    numbers = () if given is None else given.items
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"sizes {numbers!r:.60}")
    return tuple(numbers)
