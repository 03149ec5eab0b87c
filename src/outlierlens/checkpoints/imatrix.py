"""llama.cpp's importance matrices: the second moments of what every linear reads.

    found = read_imatrix(Path("imatrix.gguf"))
    found.entries["blk.11.ffn_down.weight"].moments          # mean x² [column]

`llama-imatrix` writes GGUF: `NAME.in_sum2` holds Σ x² [matrix, column] and `NAME.counts` the vectors summed [matrix]. Several
matrices are the experts of one tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outlierlens.checkpoints.gguf import GGUFCheckpoint
from outlierlens.checkpoints.gguf_header import read_header
from outlierlens.errors import BadFile

_DATASETS = "imatrix.datasets"
# What llama-quantize does (tools/quantize/quantize.cpp, load_imatrix; src/llama-quant.cpp, tensor_requires_imatrix).
ALIKE = "llama-quantize weighs all inputs alike"
NO_ENTRY = (
    "llama-quantize rounds a linear without entry as without a matrix, and stops there for IQ1, IQ2, IQ3_XXS and Q2_K_S"
)


@dataclass(frozen=True)
class ImatrixEntry:
    """What one tensor's linear reads.

    Attributes:
        moments: mean x² of each input [column]; of experts, over all vectors that any of them read.
        vectors: how many were seen.
    """

    moments: np.ndarray
    vectors: int


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix: entries by GGUF's name of the weight, texts that were read, chunks and tokens of each (0: unknown).

    `unfed` are tensors that read nothing, and experts that did not: "blk.0.ffn_down_exps.weight, experts 2, 5".
    """

    entries: Mapping[str, ImatrixEntry]
    data: str
    n_chunks: int
    chunk_size: int
    unfed: tuple[str, ...] = ()


def read_imatrix(path: Path) -> Imatrix:
    """What the file holds, whatever its name ends in.

    Raises:
        BadFile: it is no importance matrix in GGUF, or is truncated or corrupt.
    """
    if not path.is_file():
        raise BadFile(f"{path}: no such file; name one that llama-imatrix wrote")
    metadata = read_header(path, arrays=(_DATASETS,)).metadata
    if metadata.get("general.type") != "imatrix":
        raise BadFile(
            f"{path}: is a GGUF file but no importance matrix (general.type); name one that llama-imatrix wrote"
        )
    entries: dict[str, ImatrixEntry] = {}
    unfed = []
    with GGUFCheckpoint(path, name=str(path)) as checkpoint:
        for stored in checkpoint.tensors:
            name = stored.removesuffix(".in_sum2")
            if name == stored:
                continue
            if f"{name}.counts" not in checkpoint.tensors:
                raise BadFile(f"{path}: {stored!r} has no counts beside it; the file is corrupt, make it again")
            sums, counts = (_checked(path, *one) for one in checkpoint.read([stored, f"{name}.counts"]))
            if sums.size % counts.size:
                raise BadFile(
                    f"{path}: {stored!r} has {sums.size:,} values for {counts.size:,} counts; the file is corrupt"
                )
            total = float(counts.sum())
            if total > 0:
                entries[name] = ImatrixEntry(sums.reshape(counts.size, -1).sum(0) / total, int(total))
            if idle := np.flatnonzero(counts.ravel() == 0).tolist():
                experts = f", expert{'s' if len(idle) > 1 else ''} {', '.join(map(str, idle))}" if total else ""
                unfed.append(f"{name}{experts}")
    if not entries:
        raise BadFile(f"{path}: no tensor of it has read anything; make it of a longer text")
    listed = metadata.get(_DATASETS)
    data = ", ".join(map(str, listed)) if isinstance(listed, list) else ""
    chunks, size = (metadata.get(f"imatrix.chunk_{what}") for what in ("count", "size"))
    return Imatrix(
        entries, data, chunks if isinstance(chunks, int) else 0, size if isinstance(size, int) else 0, tuple(unfed)
    )


def _checked(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """The values as float64; raises BadFile where one is negative or no number."""
    if not np.isfinite(values).all() or (values < 0).any():
        raise BadFile(
            f"{path}: {name!r} holds a value that is not a sum of squares; the file is corrupt, make it again"
        )
    return values.astype(np.float64)
