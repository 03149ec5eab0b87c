"""GGUF files, written by hand, byte by byte."""

import struct
from typing import Any

import numpy as np

Tensor = tuple[str, tuple[int, ...], int, bytes]
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
Entry = tuple[str, int, bytes]


def string(key: str, value: str | bytes) -> Entry:
    return key, STRING, text(value)


def number(key: str, value: int) -> Entry:
    return key, U32, struct.pack("<I", value)


def gguf_file(
    entries: list[Entry],
    tensors: list[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int | None, int | None] = (None, None),
    infos: bytes | None = None,
) -> bytes:
    """A GGUF file; `dims` fastest first. `counts` and `infos` replace what would be right."""
    data, declared = b"", b""
    for name, dims, kind, raw in tensors:
        declared += info(name, dims, kind, len(data))
        data += raw + b"\0" * (-len(raw) % alignment)
    n_tensors, n_entries = counts
    n_tensors, n_entries = n_tensors or len(tensors), n_entries or len(entries)
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries)
    head += b"".join(text(key) + struct.pack("<I", kind) + raw for key, kind, raw in entries)
    head += declared if infos is None else infos
    return head + b"\0" * (-len(head) % alignment) + data


def floats(name: str, values: Any) -> Tensor:
    array = np.asarray(values, dtype="<f4")
    return name, array.shape[::-1], 0, array.tobytes()


def llama(n_layers: int = 1) -> list[Entry]:
    return [string("general.architecture", "llama"), number("llama.block_count", n_layers)]


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def array(key: str, kind: int, count: int, raw: bytes) -> Entry:
    return key, ARRAY, struct.pack("<IQ", kind, count) + raw


def write(writer: Any) -> None:
    """Have a `gguf.GGUFWriter` write its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def info(name: str | bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
