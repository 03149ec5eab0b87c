"""A stream made narrower: which of the old positions each new one was.

kept = read_positions("kept.json", old_width=768, new_width=512)       # as given
kept = infer_positions(before, after, old, new)                        # from norm vectors that were copied, or None
"""

from pathlib import Path

import numpy as np

from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints import Checkpoint
from outlierlens.errors import BadInput
from outlierlens.results.json_toml import read_json

MAX_BYTES = 64 * 2**20
REMEDY = "a JSON list of the old positions in the order of the new ones, such as [0, 1, 3]"


def read_positions(path: Path, old_width: int, new_width: int) -> np.ndarray:
    """The old position of each new one, int [new], from a JSON list.

    Raises:
        BadInput: no such list, another length, positions that do not exist or are repeated.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; --positions names {REMEDY}")
    if path.stat().st_size > MAX_BYTES:
        raise BadInput(f"{path}: {path.stat().st_size:,} bytes is too large for a list of positions")
    kept = read_json(path, f"--positions names {REMEDY}", BadInput)
    if not isinstance(kept, list) or not all(type(one) is int for one in kept):
        raise BadInput(f"{path}: holds no list of whole numbers; --positions names {REMEDY}")
    if len(kept) != new_width:
        raise BadInput(f"{path}: lists {len(kept)} positions; the pruned stream has {new_width}")
    bad = [one for one in kept if not 0 <= one < old_width]
    if bad or len(set(kept)) != len(kept):
        what = f"position {bad[0]} does not exist (0 to {old_width - 1})" if bad else "a position is repeated"
        raise BadInput(f"{path}: {what}; --positions names {REMEDY}")
    return np.array(kept, dtype=np.int64)


def infer_positions(before: Checkpoint, after: Checkpoint, old: BoundStack, new: BoundStack) -> np.ndarray | None:
    """The old position of each new one, int [new], where all norm vectors were copied; None where that cannot be said.

    Each new position must have exactly the values of one old position in every norm of every block, and of no other.
    """
    lists = [[param.name for param in _vectors(bound)] for bound in (old, new)]
    if not lists[0] or len(lists[0]) != len(lists[1]):
        return None
    tables = []
    for source, names in zip((before, after), lists, strict=True):
        values = dict(source.read(names))
        tables.append(np.stack([values[name].ravel() for name in names], axis=1))  # [dim, vector]
    then, now = tables
    places: dict[bytes, list[int]] = {}
    for dim, row in enumerate(np.ascontiguousarray(then.astype(np.float32))):
        places.setdefault(row.tobytes(), []).append(dim)
    kept = [places.get(row.tobytes(), []) for row in np.ascontiguousarray(now.astype(np.float32))]
    if any(len(found) != 1 for found in kept) or len({found[0] for found in kept}) != len(kept):
        return None
    return np.array([found[0] for found in kept], dtype=np.int64)


def _vectors(bound: BoundStack) -> list[Param]:
    """Every norm vector of a stream, in an order that two sizes of one model share."""
    blocks = [param for norm in sorted(bound.norms) for layer in bound.norms[norm] for param in layer]
    return [*bound.embedding_norm, *blocks, *bound.final_norm]
