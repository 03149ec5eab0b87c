"""SHA-256 of whole tensors that tell a converted copy from an edited one: `hash_tensor(checkpoint, name)`.

A tensor is hashed as it is and rounded to each narrower format. A copy in bfloat16 has as its exact hash what the
original has as its bfloat16 hash; an edited one has neither.
"""

import hashlib
from typing import Any

import numpy as np

from outlierlens.checkpoints import Checkpoint
from outlierlens.experiments.integrity.result import TensorHash
from outlierlens.experiments.integrity.rounding import WORDS, round_to

BLOCK_VALUES = 2**22


def hash_tensor(checkpoint: Checkpoint, stored: str, name: str) -> TensorHash:
    """Hashes of one tensor, read in blocks; -0 counts as 0 and every NaN as one.

    Raises:
        BadFile: the tensor cannot be read.
    """
    info = checkpoint.tensors[stored]
    names = ("bfloat16", "float16", "float32", "float64")
    digests: dict[str, Any] = {word: hashlib.sha256(f"{info.shape}\0".encode()) for word in names}
    narrow = True
    step = max(1, BLOCK_VALUES // max(info.shape[-1], 1)) if info.shape else 1
    blocks = checkpoint.read_rows(stored, step) if info.shape else (v for _, v in checkpoint.read([stored]))
    for block in blocks:
        values = np.atleast_1d(block) + block.dtype.type(0)
        values[np.isnan(values)] = np.nan
        as_float32 = values
        if values.dtype == np.float64:
            with np.errstate(over="ignore"):
                as_float32 = values.astype(np.float32)
            narrow = narrow and bool(np.array_equal(as_float32, values, equal_nan=True))
            digests["float64"].update(values.astype("<f8").tobytes())
        digests["float32"].update(as_float32.astype("<f4", copy=False).tobytes())
        digests["bfloat16"].update(_bfloat16(values).astype("<f4", copy=False).tobytes())
        with np.errstate(over="ignore"):
            digests["float16"].update(values.astype(np.float16).astype("<f4").tobytes())
    exact = digests["float32" if narrow else "float64"].hexdigest()
    return TensorHash(
        name, info.shape, info.dtype, exact, *(digests[word].hexdigest() for word in ("bfloat16", "float16", "float32"))
    )


def relation(before: TensorHash, after: TensorHash) -> str:
    """ "same", "converted" (one is the other rounded to its own format), "moved", or "not comparable".

    Two copies in formats of which neither contains the other, and quantized ones, cannot be told from edited ones.
    """
    if before.exact == after.exact:
        return "same"
    for word in ("bfloat16", "float16", "float32"):
        one, other = getattr(before, word), getattr(after, word)
        # The one that is its own rounding is the copy.
        if one == other and (one == before.exact or other == after.exact):
            return "converted"
    old, new = WORDS.get(before.dtype), WORDS.get(after.dtype)
    if before.dtype != after.dtype and (not old or not new or {old, new} == {"bfloat16", "float16"}):
        return "not comparable"
    return "moved"


def _bfloat16(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.float32:
        return round_to(values, "bfloat16").astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Half of the cut bits is added, less one where the kept part is even: ties go to even. NaN must not overflow.
    rounded = np.where(np.isnan(values), bits, bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
