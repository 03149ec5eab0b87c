"""PyTorch's own files (`.bin`, `.pt`, `.pth`, `.ckpt`), one or many: never unpickled, and read without PyTorch.

    with TorchCheckpoint(Path("pytorch_model.bin"), name="bert", config=config) as checkpoint:
        dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))

Files written since PyTorch 1.6 are zip archives of uncompressed storages. Older ones are five pickles, and the storages behind
them. `pickle_scan` reads off the pickles where the values of each tensor lie.
"""

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.base import MAX_TENSORS
from outlierlens.checkpoints.formats import files_of, gather
from outlierlens.checkpoints.naming import State, named
from outlierlens.checkpoints.pickle_scan import SAFE, Machine, PickledTensor, Record, read_pickle
from outlierlens.checkpoints.pieces import Piece, PiecedCheckpoint, PiecedTensor, checked, item_bytes
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
