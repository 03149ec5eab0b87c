"""How far each kind of weights moved between two open models: `SharedTensors(first, second, …).moved(outliers, "last")`.

Tensors are matched by their names without the prefix of a head's model. Each is read once, in both models.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.analyses.fingerprint_values import canonical
from outlierlens.architectures import BoundStack, Param
from outlierlens.checkpoints import Checkpoint
from outlierlens.checkpoints.gguf import GGUFCheckpoint
from outlierlens.checkpoints.gguf_model import GgufWeights
from outlierlens.detection.weights import StackScan, View, sites_of
from outlierlens.statistics.ranks import pearson

PIECE = 4_000_000  # values widened at once
GROUPS = ("scale, outliers", "scale, other dimensions", "bias, outliers", "bias, other dimensions", "embeddings",
          "matrices", "other vectors")  # fmt: skip
Key = tuple[str, str]  # a stream, and what is looked at in it
Followed = tuple[Key, str, int]  # where, the part, and a dimension
Role = tuple[str, Param | None, Key]  # a group, the parameter that a rule looks at, and where


@dataclass
class ChangeSums:
    """A group of weights: how many values, and the sums of squares of their change and of themselves before."""

    n: int = 0
    change: float = 0.0
    before: float = 0.0

    @property
    def relative(self) -> float | None:
        """‖change‖ / ‖before‖; none where all were 0, or nothing was read."""
        return math.sqrt(self.change / self.before) if self.before else None

    def add(self, before: np.ndarray, after: np.ndarray) -> None:
        """Take in two flat arrays, in pieces: doubles of a table may not fit."""
        self.n += before.size
        for start in range(0, before.size, PIECE):
            old, new = (side[start : start + PIECE].astype(np.float64) for side in (before, after))
            self.change += float(np.square(new - old).sum())
            self.before += float(np.square(old).sum())


class SharedTensors:
    """The tensors of floats that two models have in common, by name and shape."""

    def __init__(
        self, first: Checkpoint, second: Checkpoint, stacks: Sequence[BoundStack], others: Sequence[BoundStack]
    ):
        self.first, self.second = (
            GgufWeights(one) if isinstance(one, GGUFCheckpoint) else one for one in (first, second)
        )
        self.stacks = stacks
        ours, theirs = _relative_names(self.first, stacks), _relative_names(self.second, others)
        both = [key for key in sorted(ours.keys() & theirs.keys())
                if self.first.tensors[ours[key]].shape == self.second.tensors[theirs[key]].shape]  # fmt: skip
        self.names = [(ours[key], theirs[key]) for key in both]
        alone = f"{len(ours) - len(both)} in the base alone, {len(theirs) - len(both)} in this one alone"
        self.said = f"{len(both)} tensors in both, {alone}"

    def moved(
        self, outliers: Mapping[Key, set[int]], followed: Mapping[Followed, ChangeSums], view: View
    ) -> dict[str, ChangeSums]:
        """By group; outliers, by stream and site, stand apart from other dimensions of what the rule looks at.

        `followed` takes in what writes to single dimensions, by stream and site, part and dimension.
        """
        roles = _roles(self.stacks, view)
        sums = {group: ChangeSums() for group in GROUPS}
        for ours, theirs in self.names:
            ((_, old),), ((_, new),) = self.first.read([ours]), self.second.read([theirs])
            group, param, key = roles.get(ours, ("matrices" if old.ndim > 1 else "other vectors", None, ("", "")))
            if param is None:
                sums[group].add(old.ravel(), new.ravel())
                continue
            for (place, part, dim), one in followed.items():
                if (place, part) == (key, group):
                    one.add(*(np.take(side, dim, param.axis).ravel() for side in (old, new)))
            dims = sorted(outliers.get(key, ()))
            others = np.setdiff1d(np.arange(old.shape[param.axis]), np.array(dims, dtype=int))
            for kind, some in (("outliers", dims), ("other dimensions", others)):
                if len(some):
                    sums[f"{group}, {kind}"].add(*(np.take(side, some, param.axis).ravel() for side in (old, new)))
        return {group: one for group, one in sums.items() if one.n}


def _relative_names(checkpoint: Checkpoint, stacks: Sequence[BoundStack]) -> dict[str, str]:
    """{name without the prefix of a head's model: stored name} of all tensors of floats."""
    prefixes = [stack.prefix for stack in stacks]
    floats = (name for name, info in checkpoint.tensors.items() if checkpoint.holds_floats(name) and info.size)
    return {canonical(name, prefixes): name for name in floats}


def _roles(stacks: Sequence[BoundStack], view: View) -> dict[str, Role]:
    """By stored name of the base, what is neither matrix nor plain vector."""
    roles: dict[str, Role] = {}
    for stack in stacks:
        roles |= {param.name: ("embeddings", None, ("", "")) for param in stack.embeddings}
        for site in sites_of(stack, view):
            for part, layers in (("scale", site.scale), ("bias", site.bias)):
                roles |= {param.name: (part, param, (stack.name, site.name)) for layer in layers for param in layer}
    return roles


def shift(before: np.ndarray, after: np.ndarray, stack: StackScan, other: StackScan) -> dict[str, Any]:
    """What became of z [layer] of one dimension before and after."""
    moved = np.abs(after - before)
    return {
        "layers_before": int(stack.threshold.layers_past(before)), "layers_after": int(other.threshold.layers_past(after)),
        "z_before": float(before.mean()), "z_after": float(after.mean()),
        "largest_before": float(before[np.abs(before).argmax()]), "largest_after": float(after[np.abs(after).argmax()]),
        "moved": float(moved.mean()), "moved_most": float(moved.max()),
    }  # fmt: skip


def correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Pearson correlation of two arrays' values; 1 where they are equal, else 0 where one is constant."""
    one, other = (np.asarray(side, dtype=np.float64) for side in (before, after))
    return 1.0 if np.array_equal(one, other) else float(np.nan_to_num(pearson(one, other)))
