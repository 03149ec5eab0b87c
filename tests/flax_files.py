"""Files of Flax, as `flax.serialization.to_bytes` writes them: MessagePack, an array being its shape, type and bytes."""

import struct
from typing import Any

import numpy as np


def packed_arrays(tree: Any) -> bytes:
    """MessagePack of nested dictionaries, lists, numbers, texts and arrays, each with the smallest head that fits."""
    if isinstance(tree, np.ndarray):
        inside = packed_arrays([list(tree.shape), tree.dtype.name, tree.tobytes()])
        return _head(inside, (0xC7, 0xC8, 0xC9)) + b"\x01" + inside
    if isinstance(tree, bytes):
        return _head(tree, (0xC4, 0xC5, 0xC6)) + tree
    if isinstance(tree, str):
        raw = tree.encode()
        return (bytes([0xA0 | len(raw)]) if len(raw) < 32 else _head(raw, (0xD9, 0xDA, 0xDB))) + raw
    if isinstance(tree, dict):
        pairs = b"".join(packed_arrays(name) + packed_arrays(value) for name, value in tree.items())
        return (bytes([0x80 | len(tree)]) if len(tree) < 16 else _head(tree, (0xDE, 0xDE, 0xDF))) + pairs
    if isinstance(tree, list):
        return bytes([0x90 | len(tree)]) + b"".join(map(packed_arrays, tree))
    if isinstance(tree, float):
        return b"\xcb" + struct.pack(">d", tree)
    if tree is None or isinstance(tree, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[tree]
    return bytes([tree]) if 0 <= tree < 128 else b"\xd3" + struct.pack(">q", tree)


def _head(content: Any, codes: tuple[int, int, int]) -> bytes:
    size = len(content)
    code, kind = (
        (codes[0], ">B")
        if size < 256 and codes[0] != codes[1]
        else (codes[1], ">H")
        if size < 65536
        else (codes[2], ">I")
    )
    return bytes([code]) + struct.pack(kind, size)
