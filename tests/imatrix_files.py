"""Importance matrices of llama.cpp, written by hand in both formats."""

import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

Sums = Mapping[str, tuple[np.ndarray, np.ndarray]]  # name -> (Σ x² [matrix, column], vectors [matrix])


def write_gguf(path: Path, sums: Sums, *, kind: str = "imatrix", chunks: int = 2, size: int = 8) -> Path:
    """As llama-imatrix writes it now."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_array("imatrix.datasets", ["wiki.txt"])
    writer.add_uint32("imatrix.chunk_count", chunks)
    writer.add_uint32("imatrix.chunk_size", size)
    for name, (values, counts) in sums.items():
        writer.add_tensor(f"{name}.in_sum2", np.atleast_2d(values).astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.atleast_2d(counts).T.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def legacy(moments: Mapping[str, np.ndarray], *, calls: int = 3, end: bool = True) -> bytes:
    """As older ones wrote it: mean x² times calls."""
    parts = [struct.pack("<i", len(moments))]
    for name, values in moments.items():
        flat = np.ravel(values).astype("<f4") * np.float32(calls)
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", calls, flat.size), flat.tobytes()]
    if end:
        parts += [struct.pack("<ii", 5, 8), b"wiki.txt"]
    return b"".join(parts)
