"""Arrays without a framework: NumPy's `.npz`, and Flax's `.msgpack`, whose names become those of PyTorch.

    with FlaxCheckpoint(Path("flax_model.msgpack"), name="bert", config=config) as checkpoint: ...

Headers are read, and held against the file; of an array they say where its values lie. Nothing is unpickled.
"""

import io
import mmap
import struct
import tokenize
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.checkpoints.base import MAX_TENSORS, is_shape
from outlierlens.checkpoints.naming import State, of_flax
from outlierlens.checkpoints.pieces import Piece, PiecedCheckpoint, PiecedTensor, checked, item_bytes, strides_of
from outlierlens.checkpoints.trainers import flat
from outlierlens.errors import BadFile

MAX_NPY_HEADER = 10_000
MAX_DEPTH = 64
_MALFORMED = (  # what zipfile raises, and numpy of a header, which is Python's text of a dictionary
    zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError, struct.error, SyntaxError, tokenize.TokenError,
    RecursionError, MemoryError,
)  # fmt: skip


class NumpyCheckpoint(PiecedCheckpoint):
    """A local archive of arrays, as np.savez writes it."""

    kind = "npz"
    wrapped = True

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        """Read the header of every array.

        Raises:
            BadFile: it is malformed or compressed, or holds other objects than numbers.
        """
        self.name, self.config, self.files = name, config, (path,)
        self.total_bytes, self.bytes_read = path.stat().st_size, 0
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                if len(entries) > MAX_TENSORS or len({one.filename for one in entries}) < len(entries):
                    raise ValueError(f"{len(entries):,} entries, or two of one name")
                found = {one.filename.removesuffix(".npy"): self._array(path, file, one) for one in entries}
        except _MALFORMED as error:
            raise BadFile(f"{path}: not a readable file of numpy ({error}); truncated? fetch it again") from None
        of_jax = any("/" in one or one.endswith("kernel") for one in found)
        self._hold(of_flax(found) if of_jax else found)

    def _array(self, path: Path, file: Any, entry: zipfile.ZipInfo) -> PiecedTensor:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise BadFile(
                f"{path}: {entry.filename!r:.80} is compressed, which is not read; write it with np.savez, not savez_compressed"
            )
        file.seek(entry.header_offset)
        head = file.read(30)
        start = entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
        end = min(start + entry.file_size, self.total_bytes)
        file.seek(start)
        begin = io.BytesIO(file.read(min(MAX_NPY_HEADER, max(0, end - start))))
        version = np.lib.format.read_magic(begin)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns, dtype = read(begin)
        word = dtype.name if dtype.byteorder in "<=|" else dtype.str
        if not item_bytes(word):
            raise BadFile(
                f"{path}: {entry.filename!r:.80} holds values of {dtype.str!r:.40}, which are not plain numbers"
            )
        self.bytes_read += begin.tell()
        strides = strides_of(shape[::-1])[::-1] if columns else strides_of(shape)
        piece = Piece(path, start + begin.tell(), word, tuple(shape), strides)
        return PiecedTensor.of(checked(piece, end - piece.start, f"{path}: {entry.filename!r:.80}"))


class FlaxCheckpoint(PiecedCheckpoint):
    """A local file of Flax, nested names joined with dots."""

    kind = "flax"
    wrapped = True

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        """Read everything but the values.

        Raises:
            BadFile: it is malformed, or holds no arrays by name.
        """
        self.name, self.config, self.files = name, config, (path,)
        self.total_bytes, self.bytes_read = path.stat().st_size, 0
        if not self.total_bytes:
            raise BadFile(f"{path}: is empty; truncated? fetch it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            reader = _Msgpack(path, raw)
            try:
                content = reader.value()
                found = flat(content) if isinstance(content, Mapping) else {}
            except (ValueError, LookupError, TypeError, struct.error) as error:
                raise BadFile(f"{path}: not a readable file of Flax ({error}); truncated? fetch it again") from None
        arrays: State = {
            key: one for key, one in found.items() if isinstance(key, str) and isinstance(one, PiecedTensor)
        }
        if not arrays:
            raise BadFile(f"{path}: holds no named arrays; save the model's parameters (save_pretrained)")
        self.bytes_read = self.total_bytes - sum(one.pieces[0][1].span for one in arrays.values())
        self._hold(of_flax(arrays))


class _Msgpack:
    """The part of MessagePack that Flax writes: maps, lists, texts, numbers, bytes, and arrays as extension 1."""

    def __init__(self, path: Path, raw: Any):
        self.path, self.raw, self.at = path, raw, 0

    def take(self, code: str) -> Any:
        """A number of struct's `code`, its high byte first."""
        return struct.unpack_from(f">{code}", self.raw, self.skip(struct.calcsize(f">{code}")))[0]

    def skip(self, n: int) -> int:
        """Go past the next `n` bytes; where they begin."""
        if n > len(self.raw) - self.at:
            raise ValueError(f"{n:,} bytes or items are claimed where {len(self.raw) - self.at:,} bytes are left")
        self.at += n
        return self.at - n

    def sized(self, head: int) -> tuple[str, int]:
        """(Kind, length) of a value that has a length."""
        if head < 0xC0:
            return ("map", head & 15) if head < 0x90 else ("list", head & 15) if head < 0xA0 else ("text", head & 31)
        if 0xD4 <= head <= 0xD8:
            return "ext", 1 << (head - 0xD4)
        kind, code = _SIZED[head]
        return kind, self.take(code)

    def value(self, depth: int = 0) -> Any:
        """The next value; of bytes, where they lie: (start, length)."""
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        head = self.take("B")
        if head < 0x80 or head >= 0xE0:
            return head - (head >= 0xE0) * 256
        if head in _NUMBERS:
            return self.take(_NUMBERS[head])
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        kind, n = self.sized(head)
        if kind in ("map", "list"):
            self.skip(n)
            self.at -= n  # each takes a byte or more
            if kind == "list":
                return [self.value(depth + 1) for _ in range(n)]
            found = {self.value(depth + 1): self.value(depth + 1) for _ in range(n)}
            if "__msgpack_chunked_array__" in found:
                raise ValueError(
                    "an array cut into chunks, which is not read; save the model with PyTorch's save_pretrained"
                )
            return found
        if kind == "ext":
            return self.array(self.take("b"), self.at + n, depth)
        start = self.skip(n)
        return bytes(self.raw[start : self.at]).decode() if kind == "text" else (start, n)

    def array(self, kind: int, end: int, depth: int) -> PiecedTensor | None:
        """An array that ends at byte `end`; None for another extension."""
        if kind != 1:
            self.skip(end - self.at)
            return None
        shape, dtype, (start, n_bytes) = self.value(depth + 1)
        if self.at != end or not is_shape(shape) or not item_bytes(dtype):
            raise ValueError(f"an array of {str(dtype)!r:.40} that is none at byte {start:,}")
        piece = Piece(self.path, start, dtype, tuple(shape), strides_of(shape))
        return PiecedTensor.of(checked(piece, n_bytes, f"{self.path}: the array at byte {start:,}"))


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
_SIZED = {
    0xC4: ("bytes", "B"), 0xC5: ("bytes", "H"), 0xC6: ("bytes", "I"), 0xC7: ("ext", "B"), 0xC8: ("ext", "H"),
    0xC9: ("ext", "I"), 0xD9: ("text", "B"), 0xDA: ("text", "H"), 0xDB: ("text", "I"), 0xDC: ("list", "H"),
    0xDD: ("list", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I"),
}  # fmt: skip
