"""NumPy archives (.npz) of masks as a weight source: headers first, nothing pickled, sizes checked before they are believed.

with NpzCheckpoint(Path("masks.npz"), name="masks.npz") as checkpoint:
    dict(checkpoint.read(["encoder.layer.0.output.LayerNorm.weight"]))
"""

import ast
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from outlierlens.checkpoints.base import MAX_RANK, MAX_TENSORS, Checkpoint, TensorInfo
from outlierlens.errors import BadFile

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 64 * 1024  # names no field: shape and type of one array
MAX_RATIO = 1100  # deflate cannot do better; an entry that claims more is no honest archive
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes


class NpzCheckpoint(Checkpoint):
    """Named arrays of one .npz file."""

    kind = "npz"

    def __init__(self, path: Path, *, name: str, config: dict[str, Any]):
        self.name, self.config, self._path = name, config, path
        self.total_bytes, self.bytes_read = path.stat().st_size, 0
        self._entries: dict[str, tuple[zipfile.ZipInfo, str, bool, int]] = {}
        tensors: dict[str, TensorInfo] = {}
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise BadFile(f"{path}: not a readable .npz file ({error}); write it with numpy.savez") from None
        entries = self._archive.infolist()
        if len(entries) > MAX_TENSORS:
            raise BadFile(f"{path}: lists {len(entries):,} arrays, more than {MAX_TENSORS:,}")
        for entry in entries:
            key = entry.filename.removesuffix(".npy")
            if key in tensors:
                raise BadFile(f"{path}: array {key!r} stands there twice; write it again")
            tensors[key] = self._head(entry, key)
        self.tensors = tensors

    def _head(self, entry: zipfile.ZipInfo, key: str) -> TensorInfo:
        where = f"{self._path}: array {key!r}"
        if entry.compress_type not in METHODS or entry.flag_bits & 1:
            raise BadFile(f"{where} is packed in a way that numpy never does; refused")
        if entry.file_size > max(1, entry.compress_size) * MAX_RATIO:
            raise BadFile(f"{where} claims {entry.file_size:,} bytes from {entry.compress_size:,}; refused")
        with _unpacking(where), self._open(entry, where) as file:
            shape, dtype, by_column, start = _header(file, where)
        self.bytes_read += start
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if start + size != entry.file_size:
            raise BadFile(f"{where} declares {list(shape)} of {dtype} but holds {entry.file_size - start:,} bytes")
        self._entries[key] = (entry, dtype, by_column, start)
        return TensorInfo(dtype, shape, size)

    def _open(self, entry: zipfile.ZipInfo, where: str) -> IO[bytes]:
        try:
            return self._archive.open(entry)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
            raise BadFile(f"{where} cannot be read ({error}); truncated? write it again") from None

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            entry, dtype, by_column, start = self._entries[name]
            info, where = self.tensors[name], f"{self._path}: array {name!r}"
            with _unpacking(where), self._open(entry, where) as file:
                raw = file.read(start + info.nbytes)[start:]
            if len(raw) != info.nbytes:
                raise BadFile(f"{where} holds {len(raw):,} bytes of {info.nbytes:,}; truncated? write it again")
            self.bytes_read += info.nbytes
            values = np.frombuffer(raw, dtype).reshape(info.shape, order="F" if by_column else "C")
            yield name, values.astype(np.float64 if values.dtype == np.float64 else np.float32)

    def close(self) -> None:
        self._archive.close()


@contextmanager
def _unpacking(where: str) -> Iterator[None]:
    """Says of an entry, its header or its values, that it cannot be unpacked, whatever is wrong with it."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise BadFile(f"{where} cannot be read ({error}); truncated? write it again") from None


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], str, bool, int]:
    """(shape, type, whether columns come first, bytes before the values) of one array."""
    first = file.read(8)
    if first[:6] != MAGIC or len(first) < 8:
        raise BadFile(f"{where} is no numpy array; write it with numpy.savez")
    word, code = (2, "<H") if first[6] == 1 else (4, "<I")
    packed = file.read(word)
    length = struct.unpack(code, packed)[0] if len(packed) == word else 0
    if not 0 < length <= MAX_HEADER_BYTES:
        raise BadFile(f"{where} has a header of {length:,} bytes; not written by numpy")
    text = file.read(length)
    try:
        header = ast.literal_eval(text.decode("latin-1").strip())
        shape, code, by_column = header["shape"], header["descr"], header["fortran_order"]
        dtype = np.dtype(code) if isinstance(code, str) else None
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise BadFile(f"{where} has a header that cannot be read; write it with numpy.savez") from None
    if dtype is None or dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise BadFile(f"{where} holds {code!r}; masks are numbers or bool")
    sound = (
        isinstance(shape, tuple) and len(shape) <= MAX_RANK and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    )
    if not sound:
        raise BadFile(f"{where} declares the shape {shape!r}; write it again")
    return shape, str(code), bool(by_column), 8 + word + length
