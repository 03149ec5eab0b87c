"""Arrays from .npz and .npy files, whose headers are held against the file before they are believed; nothing is unpickled.

named = arrays_in(Path("clips.npz"))             # {"audio": …, "labels": …}
arrays_in(Path("images.npy"))                    # {"": …}, mapped, not read
"""

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from outlierlens.errors import BadFile

MAX_UNPACKED = 8_000_000_000  # bytes of all arrays of an .npz, which are held in memory
MAX_MEMBERS = 64
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, tokenize.TokenError, ValueError, OSError, EOFError, KeyError, SyntaxError, TypeError,
    OverflowError, RuntimeError, MemoryError,
)  # fmt: skip


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    """{name: array} of an .npz, or {"": array} of an .npy.

    Raises:
        BadFile: damaged, with Python objects inside, or larger than it may be.
    """
    return _packed(path) if path.suffix.lower() == ".npz" else {"": _single(path)}


def names_in(path: Path) -> tuple[str, ...]:
    """Names of the arrays of an .npz, none of which is read; () where it is damaged."""
    try:
        with zipfile.ZipFile(path) as file:
            return tuple(name.removesuffix(".npy") for name in file.namelist()[:MAX_MEMBERS])
    except _DAMAGED:
        return ()


def _single(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGED as error:
        raise _bad(path, error) from None


def _packed(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as file:
            members = [member for member in file.infolist() if member.filename.endswith(".npy")]
            total = sum(member.file_size for member in members)
            if len(members) > MAX_MEMBERS or total > MAX_UNPACKED:
                raise BadFile(
                    f"{path}: {len(members)} arrays of {total / 1e9:.1f} GB, more than {MAX_UNPACKED / 1e9:.0f} GB or "
                    f"{MAX_MEMBERS}; use a folder of files, or one .npy, which is not held in memory"
                )
            return {member.filename.removesuffix(".npy"): _member(file, member, path) for member in members}
    except _DAMAGED as error:
        raise _bad(path, error) from None


def _member(file: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    with file.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        said = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
        if dtype.hasobject or said > member.file_size:
            why = "holds Python objects" if dtype.hasobject else "promises more than the file holds"
            raise BadFile(f"{path}: array {member.filename.removesuffix('.npy')!r} {why}; save plain arrays")
    with file.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _bad(path: Path, error: Exception) -> BadFile:
    text = " ".join(str(error).split())[:150] or type(error).__name__
    return BadFile(f"{path}: cannot be read as NumPy arrays ({text}); save plain arrays again")
