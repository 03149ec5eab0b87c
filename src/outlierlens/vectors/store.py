"""Large arrays: in memory while they are small, else in a file without a name, within a stated budget.

values = allocate((n_layers, n_spans, n_dims), Budget(cache_gb=8))
"""

import math
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from outlierlens.errors import BadInput

IN_MEMORY = 2**30  # bytes


@dataclass(frozen=True)
class Budget:
    """At most `cache_gb` gigabytes (10⁹ bytes) of vectors; beyond one GiB they lie in a temporary file in `folder`.

    The file has no name: it is gone when the array is, however the process ends.
    """

    cache_gb: float = 8.0
    folder: str | None = None

    def __post_init__(self) -> None:
        if not self.cache_gb > 0:
            raise BadInput(f"cache_gb is {self.cache_gb}; it must be above 0")


def allocate(shape: tuple[int, ...], budget: Budget, *, what: str = "vectors") -> np.ndarray:
    """Zeros, float32, of `shape`.

    Raises:
        BadInput: more than the budget, or than the disk has left.
    """
    size = 4 * math.prod(shape)
    if size > budget.cache_gb * 1e9:
        raise BadInput(
            f"{what} of shape {' × '.join(f'{n:,}' for n in shape)} need {size / 1e9:.1f} GB and the budget is "
            f"{budget.cache_gb:g} GB; raise --cache-gb, name fewer layers, or read fewer texts (--limit)"
        )
    if size <= IN_MEMORY:
        return np.zeros(shape, dtype=np.float32)
    with tempfile.TemporaryFile(dir=budget.folder) as file:
        try:
            # Reserved now: a mapped file that finds the disk full later kills the process.
            os.posix_fallocate(file.fileno(), 0, size)
        except AttributeError:  # no such call on this system
            file.truncate(size)
        except OSError as error:
            folder = budget.folder or tempfile.gettempdir()
            raise BadInput(
                f"{what} need {size / 1e9:.1f} GB in {folder}, which cannot hold them ({error.strerror}); set TMPDIR to a "
                f"folder with room, or read fewer texts (--limit)"
            ) from None
        return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)


def check_matrices(n: int, width: int, budget: Budget, *, what: str) -> None:
    """Raise BadInput where `n` matrices [dim, dim] of float64, held in memory together, are more than the budget."""
    size = 8 * n * width**2
    if size > budget.cache_gb * 1e9:
        raise BadInput(
            f"{what}: {n:,} matrices of {width:,} × {width:,} need {size / 1e9:.1f} GB of memory and the budget is "
            f"{budget.cache_gb:g} GB; raise --cache-gb where there is that much, name fewer layers (--layers), or leave out "
            f"abtt and whiten (--fixes)"
        )
