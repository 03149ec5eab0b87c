"""Where a model computes, and how much at once.

device = pick_device("auto")
tokens = tokens_at_once(device)       # of one forward pass, where nobody says how many
"""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outlierlens.errors import BadInput

if TYPE_CHECKING:
    import torch

# Padding counted: about what stays in a processor's cache, or fills a GPU.
TOKENS_AT_ONCE = {"cpu": 1024, "mps": 8192, "cuda": 65536}
# What starting a forward pass costs: as much as computing so many tokens (measured for 6 × 384 and 12 × 768 on a CPU).
TOKENS_PER_START = {"cpu": 32, "mps": 512, "cuda": 4096}

# glibc's mallopt: what is larger comes from the kernel and goes back to it; free memory beyond that goes back too.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**29
GIVEN_BACK_BYTES = 2**25  # glibc's own bound, which it moves up to by itself
_counting = threading.RLock()  # a garbage collector may end a generator of this thread at any line
_keeping: set[object] = set()  # blocks of `memory_kept` that are entered


def cores() -> int:
    """Cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def pick_device(device: str) -> "torch.device":
    """The device named, or the best there is for "auto"; raises BadInput for one that is absent."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return chosen


def whole_float32(device: "torch.device") -> None:
    """Have float32 computed as float32 on a GPU: its convolutions round to the ten bits of TF32 otherwise."""
    import torch

    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False


def tokens_at_once(device: "torch.device") -> int:
    """Tokens of one forward pass that a device of this kind does best with."""
    return TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"])


def tokens_per_start(device: "torch.device") -> int:
    """Tokens that a device of this kind computes in the time that starting a forward pass takes."""
    return TOKENS_PER_START.get(device.type, TOKENS_PER_START["cpu"])


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whatever device."""
    import torch

    text = str(error).lower()
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in text or "can't allocate" in text
    )


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep up to 0.5 GB that passes free for the next pass inside, where glibc is the allocator; else nothing changes.

    Every layer takes and frees tens of megabytes. glibc gives these back to the kernel, which hands out zeroed pages anew:
    5 to 15 % of a forward pass over 2,000 tokens on a CPU. Blocks may overlap; the last to end gives the memory back.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    mine = object()
    with _counting:
        _keeping.add(mine)
        _keep(libc, KEPT_BYTES)
    try:
        yield
    finally:
        with _counting:
            _keeping.discard(mine)
            if not _keeping:
                _keep(libc, GIVEN_BACK_BYTES)
                libc.malloc_trim(0)


def _keep(libc: ctypes.CDLL, size: int) -> None:
    libc.mallopt(M_MMAP_THRESHOLD, size)
    libc.mallopt(M_TRIM_THRESHOLD, size)
