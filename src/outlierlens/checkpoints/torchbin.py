"""PyTorch's own files (`.bin`, `.pt`, `.pth`, `.ckpt`, `.distcp`): never unpickled, and read without PyTorch.

    with TorchCheckpoint(Path("pytorch_model.bin"), name="bert", config=config) as checkpoint:
        dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))
    with DistributedCheckpoint(Path("step-100/.metadata"), name="a run", config=config) as checkpoint: ...

Files written since PyTorch 1.6 are zip archives of uncompressed storages. Older ones are five pickles, and the storages behind
them. `pickle_scan` reads off the pickles where the values of each tensor lie. One of torch.distributed has a `.metadata`
that says where the pieces of each tensor lie in `.distcp` files: a pickle of a few classes of torch; what asks for others is
refused. A piece is what torch.save writes of one tensor, and is read as that.
"""

import io
import shlex
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import MAX_TENSORS, is_plain_name, is_shape
from outlierlens.checkpoints.formats import files_of, gather
from outlierlens.checkpoints.naming import State, named
from outlierlens.checkpoints.pickle_scan import SAFE, Machine, PickledItems, PickledTensor, Record, read_pickle
from outlierlens.checkpoints.pieces import Piece, PiecedCheckpoint, PiecedTensor, checked, item_bytes, one_bytes
from outlierlens.checkpoints.trainers import facts_of, model_in, parts_of
from outlierlens.errors import BadFile

MAX_PICKLE_BYTES = 512 * 2**20  # names and shapes only: published checkpoints stay under a few megabytes
MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file from before PyTorch 1.6
Places = dict[str, tuple[int, int]]  # where the bytes of a storage lie: {key: (first, end)}


class TorchCheckpoint(PiecedCheckpoint):
    """A local PyTorch file; a checkpoint in shards by its `pytorch_model.bin.index.json`; or all ranks of a trainer's."""

    kind = "bin"

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        """Read every file's header.

        Raises:
            BadFile: a file is malformed, asks for other objects than tensors, or is one of several that do not fit together.
        """
        self.name, self.config = name, config
        self.total_bytes = self.bytes_read = 0
        self._facts: dict[str, Any] = {}
        ranks = parts_of(path)
        self.files = tuple(ranks) if len(ranks) > 1 else tuple(files_of(path)[0])
        if len(ranks) > 1:
            states = [self._load(rank) for rank in ranks]
        else:
            states = [{key: one for key, (_, one) in gather(path, name, self._load).items()}]
        tensors, self.config, changed = named(states, config, self._facts, str(path))
        self.wrapped = self.wrapped or changed
        self._hold(tensors)

    def _load(self, path: Path) -> State:
        self.total_bytes += path.stat().st_size
        content, machine, place, n_bytes = read_torch(path)
        self.bytes_read += n_bytes
        found, inside = model_in(content)
        if not isinstance(found, Mapping) or (machine.asked and not inside):
            if machine.asked:
                raise machine.refuse(next(iter(machine.asked)))
            if isinstance(found, Record):
                raise BadFile(
                    f"{path}: holds what {found.name} makes, not named tensors; save the model's state_dict()"
                )
            held = type(found).__name__
            raise BadFile(f"{path}: holds a {held}, not named tensors; save the model's state_dict()")
        if machine.asked:
            self.notes += (
                f"{path.name}: asks for {', '.join(list(machine.asked)[:4])} too, and nothing of it was made",
            )
        self.wrapped = self.wrapped or inside
        self._facts = self._facts or facts_of(content)
        return self._tensors_of(found, path, place)

    def _tensors_of(
        self, content: Mapping[Any, Any], path: Path, place: Callable[[str, PickledTensor], Piece]
    ) -> State:
        stored = {key: value for key, value in content.items() if isinstance(value, PickledTensor)}
        if len(stored) > MAX_TENSORS:
            raise BadFile(f"{path}: {len(stored):,} tensors, more than {MAX_TENSORS:,}")
        ignored = [str(key) for key in content if key not in stored]
        if ignored:
            self.notes += (f"{path.name}: entries that are not tensors were ignored: {', '.join(ignored[:4])}",)
        for key, value in content.items():
            if not isinstance(key, str) and key in stored:
                raise BadFile(
                    f"{path}: a tensor is stored under {key!r:.40}, which is not a name; save the model's state_dict()"
                )
            if isinstance(value, Record) and value.name.startswith("torch."):
                raise BadFile(f"{path}: tensor {key!r} is stored as {value.name} makes it, not as plain values; {SAFE}")
        if not stored:
            raise BadFile(f"{path}: holds no named tensors; save the model's state_dict()")
        return {key: PiecedTensor.of(place(f"{path}: tensor {key!r}", one)) for key, one in stored.items()}


def read_torch(
    path: Path, start: int = 0, end: int | None = None
) -> tuple[Any, Machine, Callable[[str, PickledTensor], Piece], int]:
    """(Content, machine, what places a tensor named in errors, bytes read) of what torch.save wrote to bytes [start, end).

    Raises:
        BadFile: it is malformed, or claims more than there is.
    """
    end = path.stat().st_size if end is None else end
    if end <= start:
        raise BadFile(f"{path}: is empty; truncated? fetch it again")
    with path.open("rb") as file, _Stream(_Region(file, start, end)) as region:
        read = _zip if region.peek(4)[:4] == b"PK\x03\x04" else _old
        content, machine, places, n_bytes = read(path, region, end - start)

    def place(where: str, one: PickledTensor) -> Piece:
        first, behind = places.get(one.storage.key, (0, 0))
        if behind - first < one.storage.n_bytes:
            raise BadFile(f"{where}: its values are not in the file; truncated? fetch it again")
        piece = Piece(path, start + first, one.dtype, one.shape, one.strides)
        checked(piece, behind - first, where)
        return piece.moved(one.offset)

    return content, machine, place, n_bytes


class _Region(io.RawIOBase):
    """Bytes [start, end) of an open file, as a file."""

    def __init__(self, file: Any, start: int, end: int):
        self._file, self._start, self.size, self._at = file, start, end - start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            raise OSError(f"byte {at:,} is asked for")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        self._file.seek(self._start + self._at)
        raw = self._file.read(min(len(buffer), max(0, self.size - self._at)))
        buffer[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)


class _Stream(io.BufferedReader):
    """A region, of which no more is asked than it has: a buffer of what a pickle claims would be made first."""

    def __init__(self, region: _Region):
        super().__init__(region)
        self._size = region.size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size if size is None or size < 0 else min(size, max(0, self._size - self.tell())))


def _zip(path: Path, stream: Any, size: int) -> tuple[Any, Machine, Places, int]:
    """What a zip archive holds; every size in its directory is held against the file."""
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
            _check_entries(path, entries, size)
            pickled = next((one for one in entries if one.filename.endswith("data.pkl")), None)
            if pickled is None:
                raise BadFile(f"{path}: holds no data.pkl, which PyTorch writes; is it a weight file?")
            root = pickled.filename.removesuffix("data.pkl")
            if odd := next((one.filename for one in entries if not one.filename.startswith(root)), ""):
                raise BadFile(f"{path}: entry {odd!r:.80} lies outside of {root}, where PyTorch writes none; refused")
            if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
                raise BadFile(f"{path}: its values are stored with the high byte first, which is not read; {SAFE}")
            content, machine = read_pickle(io.BytesIO(archive.read(pickled)), str(path), size)
            places: Places = {}
            for one in entries:
                key = one.filename.removeprefix(f"{root}data/")
                if key in machine.storages and key != one.filename:
                    stream.seek(one.header_offset)
                    head = stream.read(30)
                    if head[:4] != b"PK\x03\x04":
                        raise zipfile.BadZipFile(f"entry {one.filename!r:.80} is not where the directory says")
                    first = one.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
                    places[key] = first, min(first + one.file_size, size)
            return content, machine, places, pickled.file_size
    except (
        zipfile.BadZipFile,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        struct.error,
    ) as error:
        raise BadFile(f"{path}: not a readable PyTorch file ({error}); truncated? fetch it again") from None


def _check_entries(path: Path, entries: list[zipfile.ZipInfo], size: int) -> None:
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise BadFile(f"{path}: entry {packed[0]!r} is compressed, which PyTorch never does; refused")
    total = sum(entry.file_size for entry in entries)
    if total > size or len(entries) > MAX_TENSORS:
        raise BadFile(f"{path}: {len(entries):,} entries claim {total:,} bytes in a file of {size:,}; refused")
    if len({entry.filename for entry in entries}) < len(entries):
        raise BadFile(f"{path}: two entries have the same name, which PyTorch never writes; refused")
    pickles = sum(entry.file_size for entry in entries if entry.filename.endswith(".pkl"))
    if pickles > MAX_PICKLE_BYTES:
        raise BadFile(f"{path}: its list of tensors claims {pickles:,} bytes; refused")


def _old(path: Path, stream: Any, size: int) -> tuple[Any, Machine, Places, int]:
    """A file from before PyTorch 1.6: a number, a version, the machine, the tensors and their storages' keys; the storages."""
    number, machine = read_pickle(stream, str(path), size)
    if number != MAGIC:
        if machine.asked:
            raise machine.refuse(next(iter(machine.asked)))
        raise BadFile(f"{path}: cannot be loaded (it does not begin as PyTorch's files do); truncated? fetch it again")
    for _ in range(2):
        read_pickle(stream, str(path), size)
    content, machine = read_pickle(stream, str(path), size)
    keys, _ = read_pickle(stream, str(path), size)
    n_bytes = start = stream.tell()
    places: Places = {}
    for key in keys if isinstance(keys, list) else ():
        one = machine.storages.get(key)
        stream.seek(start)
        n_values = int.from_bytes(stream.read(8), "little")
        if one is None or n_values * item_bytes(one.dtype) != one.n_bytes or start + 8 + one.n_bytes > size:
            raise BadFile(f"{path}: cannot be loaded (a storage of {n_values:,} values); truncated? fetch it again")
        start += 8 + one.n_bytes
        places[key] = start - one.n_bytes, start
    return content, machine, places, n_bytes


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
        if not is_plain_name(file) or told.get("transform_descriptors"):
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
