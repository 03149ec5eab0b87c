"""The one definition of a removed position, in numbers; and which old positions a stream made narrower has kept.

cells = Cells.of(bound, shapes, rule)          # of one stream; cells_of(checkpoint) of all streams of a file
cells.removed(off)                 # bool [layer, dim] of off [layer, dim], how many of its values are zero
per_dim_off(values == param.off, param)
kept = read_positions("kept.json", old_width=768, new_width=512)       # as given
kept = infer_positions(before, after, old, new)                        # from norm vectors that were copied, or None

`result.Removal` holds the settings and the words: which parameters make a position, and how many values must be zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from outlierlens import architectures as arch
from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints import Checkpoint
from outlierlens.errors import BadFile, BadInput
from outlierlens.experiments.pruning.result import Removal
from outlierlens.results.json_toml import read_json

MAX_BYTES = 64 * 2**20
REMEDY = "a JSON list of the old positions in the order of the new ones, such as [0, 1, 3]"


@dataclass(frozen=True)
class Cells:
    """The values that make each position in each layer of a stream: a cell is one position in one layer.

    Attributes:
        params: of each layer, the parameters that hold its cells [layer][part].
        total: int [layer], values of one cell of a layer. needed: of them, zero, for the position to be removed there.
        limit: layers in which a position must be removed to break the constraint.
        width: positions of the stream.
    """

    bound: BoundStack
    rule: Removal
    params: tuple[tuple[Param, ...], ...]
    total: np.ndarray
    needed: np.ndarray
    limit: int
    width: int

    @classmethod
    def of(cls, bound: BoundStack, shapes: Mapping[str, tuple[int, ...]], rule: Removal) -> "Cells":
        """The cells of a stream whose parameters have these shapes; blocks that are shared count once.

        Raises:
            BadFile: layers disagree on the width of the stream.
        """
        layers = bound.weight_layers
        with_bias = bound.ends_in_norm and not rule.scale_alone
        params = tuple((*bound.scale[layer], *(bound.bias[layer] if with_bias else ())) for layer in layers)
        widths = {shapes[param.name][param.axis] for layer in params for param in layer}
        if len(widths) != 1:
            raise BadFile(f"stream {bound.name!r}: layers disagree on its width: {', '.join(map(str, sorted(widths)))}")
        total = np.array([sum(param.values_per_dim(shapes[param.name]) for param in layer) for layer in params])
        needed = np.array([rule.off_needed(int(n), is_norm=bound.ends_in_norm) for n in total])
        return cls(bound, rule, params, total, needed, rule.needed(len(layers)), widths.pop())

    @property
    def n_layers(self) -> int:
        """Layers with weights of their own."""
        return len(self.params)

    @property
    def beyond_masks(self) -> bool:
        """Whether no mask can remove a position: a norm that multiplies by 1 + weight is 1 where its weight is 0."""
        return any(param.off for layer in self.params for param in layer)

    @property
    def site(self) -> str:
        """What was looked at, relative to the block."""
        declared = self.bound.stack
        names = [declared.last_norm] if self.bound.ends_in_norm else list(declared.last_linear)
        return " + ".join(name.removesuffix("()") for name in names)

    @property
    def definition(self) -> str:
        """When a position is removed here, for reading."""
        return self.rule.says(is_norm=self.bound.ends_in_norm, has_bias=all(self.bound.bias))

    def removed(self, off: np.ndarray) -> np.ndarray:
        """bool [layer, dim]: whether so many values off [layer, dim] remove the position."""
        found: np.ndarray = off >= self.needed[:, None]
        return found

    def broken(self, removed: np.ndarray) -> np.ndarray:
        """Positions removed in too many layers, of removed [layer, dim], ascending."""
        return np.flatnonzero(removed.sum(axis=0) >= self.limit)


def cells_of(checkpoint: Checkpoint, rule: Removal | None = None) -> list[Cells]:
    """The cells of every stream of a model's file; raises UnknownArchitecture where no row describes it."""
    bound = arch.bind(arch.stacks_for(checkpoint, None), checkpoint.tensors, checkpoint.config)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    return [Cells.of(one, shapes, rule or Removal()) for one in bound]


def per_dim_off(off: np.ndarray, param: Param) -> np.ndarray:
    """How many values of each position are off, int [dim], of bool values in the parameter's shape."""
    return np.moveaxis(off, param.axis, 0).reshape(off.shape[param.axis], -1).sum(axis=1, dtype=np.int64)


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
