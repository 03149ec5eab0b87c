"""Importance matrices of llama.cpp, written by hand."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

import gguf_files

Sums = Mapping[str, tuple[np.ndarray, np.ndarray]]  # name -> (Σ x² [matrix, column], vectors [matrix])


def write_gguf(path: Path, sums: Sums, *, kind: str = "imatrix", chunks: int = 2, size: int = 8) -> Path:
    """As llama-imatrix writes it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_array("imatrix.datasets", ["wiki.txt"])
    writer.add_uint32("imatrix.chunk_count", chunks)
    writer.add_uint32("imatrix.chunk_size", size)
    for name, (values, counts) in sums.items():
        writer.add_tensor(f"{name}.in_sum2", np.atleast_2d(values).astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.atleast_2d(counts).T.astype(np.float32))
    gguf_files.write(writer)
    return path


def write_moments(path: Path, moments: Mapping[str, np.ndarray], *, vectors: int = 16) -> Path:
    """A file of these mean x² [column] over so many vectors."""
    return write_gguf(path, {name: (values * vectors, np.array([vectors])) for name, values in moments.items()})
