"""Fair controls for a set of dimensions: random sets of its size, and weights as large at other positions.

random_sets(width, size, avoid=found, n=99, seed=0)
matched_sets(magnitude, dims, avoid=found, n=5, seed=0)     # {layer: dims}, other positions in each layer
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import BadInput

NEAREST = 8  # how many weights of about the same size a matched control draws from, per dimension it needs


@dataclass(frozen=True)
class RandomSets:
    """Random sets of dimensions: `free` avoids what the rules found, `anywhere` does not.

    A set drawn from anywhere that misses the found dimensions is as good as one drawn from the free ones, so the two
    families share such sets and each is measured once.
    """

    free: tuple[tuple[int, ...], ...]
    anywhere: tuple[tuple[int, ...], ...]


def random_sets(width: int, size: int, *, avoid: Collection[int], n: int, seed: int) -> RandomSets:
    """`n` sets of `size` dimensions in both families, sorted within a set, drawn with `seed`.

    Raises:
        BadInput: fewer than `size` dimensions are left after `avoid`.
    """
    allowed = np.setdiff1d(np.arange(width), np.array(sorted(avoid), dtype=int))
    if len(allowed) < size:
        raise BadInput(f"only {len(allowed)} of {width} dimensions are free: too few for a random set of {size}")
    random = np.random.default_rng(seed)

    def draw(pool: np.ndarray) -> tuple[int, ...]:
        return tuple(sorted(random.choice(pool, size=size, replace=False).tolist()))

    anywhere = tuple(draw(np.arange(width)) for _ in range(n))
    free = [dims for dims in anywhere if not set(dims) & set(avoid)]
    free += [draw(allowed) for _ in range(n - len(free))]
    return RandomSets(tuple(free), anywhere)


def matched_sets(
    magnitude: np.ndarray, dims: Sequence[int], *, avoid: Collection[int], n: int, seed: int
) -> list[dict[int, tuple[int, ...]]]:
    """`n` per-layer sets whose weights are as large as those of `dims`, at other positions in every layer.

    `magnitude` is [layer, dim], how extreme each position's weights are. In each layer every dimension of `dims` is
    replaced by one of the positions with the nearest magnitude, never one of `dims` or `avoid`, and within a set no
    position serves twice as long as fresh ones are left: what is taken away is as large, but not in the same place.
    """
    n_layers, width = magnitude.shape
    taken = set(dims) | set(avoid)
    if width - len(taken) < len(dims):
        raise BadInput(f"only {width - len(taken)} of {width} dimensions are free: too few for a matched control")
    random = np.random.default_rng(seed)
    sets = []
    for _ in range(n):
        used: set[int] = set()
        chosen: dict[int, tuple[int, ...]] = {}
        for layer in range(n_layers):
            here: list[int] = []
            for dim in dims:
                blocked = taken | set(here)
                fresh = [d for d in range(width) if d not in blocked and d not in used]
                pool = np.array(fresh or [d for d in range(width) if d not in blocked])
                distance = np.abs(magnitude[layer, pool] - magnitude[layer, dim])
                nearest = pool[np.argsort(distance, kind="stable")[:NEAREST]]
                here.append(int(random.choice(nearest)))
            used.update(here)
            chosen[layer] = tuple(sorted(here))
        sets.append(chosen)
    return sets
