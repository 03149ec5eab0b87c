"""Where a model computes, how much at once, and how large float32 products are made on a CPU.

    device = pick_device("auto")
    tokens = tokens_at_once(device)              # of one forward pass, where nobody says how many
    with torch.inference_mode(), fast_products():
        model(**inputs)                          # its linears multiply by `linear`
    with ordered_weights():                      # around many passes: each weight is put in oneDNN's order once
        ...

PyTorch hands float32 products to MKL, which takes half the width of AVX-512 on processors of AMD: there oneDNN, which PyTorch
brings too, multiplies more than twice as fast. Both round in float32 and sum in another order.
"""

import ctypes
import os
import re
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlierlens.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Padding counted: about what stays in a processor's cache, or fills a GPU.
TOKENS_AT_ONCE = {"cpu": 1024, "mps": 8192, "cuda": 65536}
# What starting a forward pass costs: as much as computing so many tokens (measured for 6 × 384 and 12 × 768 on a CPU).
TOKENS_PER_START = {"cpu": 32, "mps": 512, "cuda": 4096}

# glibc's mallopt: what is larger comes from the kernel and goes back to it; free memory beyond that goes back too.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**29
RETURNED_BYTES = 2**22
GIVEN_BACK_BYTES = 2**25  # glibc's own bound, which it moves up to by itself
_counting = threading.RLock()  # a garbage collector may end a generator of this thread at any line
_keeping: set[object] = set()  # blocks of `memory_kept` that are entered
_returning: set[object] = set()  # of `memory_returned`
MEMORY, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


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
    """Number of tokens per forward pass at which a device of this kind is fastest."""
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


def free_memory(device: "torch.device") -> int | None:
    """Bytes that a device has left for this process; None where that is not known."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or not MEMORY.is_file():
        return None
    found = re.search(r"MemAvailable: *([0-9]+) kB", MEMORY.read_text())
    left = [int(found[1]) * 1024] if found else []
    limit, used = (CGROUP / "memory.max", CGROUP / "memory.current")  # of a container
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdigit():
        left.append(int(most) - int(used.read_text()))
    return min(left, default=None)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep up to 0.5 GB that passes free for the next pass inside, where glibc is the allocator; else nothing changes.

    Every layer takes and frees tens of megabytes. glibc gives these back to the kernel, which hands out zeroed pages anew:
    5 to 15 % of a forward pass over 2,000 tokens on a CPU. Blocks may overlap; the last to end gives the memory back.
    """
    with _counted(_keeping):
        yield


@contextmanager
def memory_returned() -> Iterator[None]:
    """Give freed memory back at once inside, whatever `memory_kept` says: for many passes that wait with their states.

    Of a heap with states of hundreds of passes in it, nothing between them goes back: twice the memory (measured).
    """
    with _counted(_returning):
        yield


@contextmanager
def _counted(blocks: set[object]) -> Iterator[None]:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    mine = object()
    with _counting:
        blocks.add(mine)
        _settle(libc)
    try:
        yield
    finally:
        with _counting:
            blocks.discard(mine)
            _settle(libc)


def _settle(libc: ctypes.CDLL) -> None:
    size = RETURNED_BYTES if _returning else KEPT_BYTES if _keeping else GIVEN_BACK_BYTES
    libc.mallopt(M_MMAP_THRESHOLD, size)
    libc.mallopt(M_TRIM_THRESHOLD, size)
    if size != KEPT_BYTES:
        libc.malloc_trim(0)


# --- products on a CPU -----------------------------------------------------------------------------------------------

FEWEST_WEIGHTS = 2**15  # of a product that oneDNN is called for: below, the call costs more than it saves
MOST_ORDERED = 2**28  # weights, 4 bytes each, that `ordered_weights` keeps a second time
ORDERED_FOR = 2048  # rows of states that oneDNN is told to expect; others work as well

_ordered: "ContextVar[dict[Hashable, tuple[Tensor, Tensor]] | None]" = ContextVar("_ordered", default=None)


def fast_products() -> AbstractContextManager[Any]:
    """Inside the block products with large parameters are those of `linear`, where no gradients of these are made."""
    return _mode()() if _there() else nullcontext()


def linear(states: "Tensor", weight: "Tensor", bias: "Tensor | None" = None) -> "Tensor":
    """states · weightᵀ + bias, of [..., in] and [out, in]: [..., out]."""
    import torch
    from torch.nn import functional

    if not (_there() and _fits(states, weight, bias)):
        return functional.linear(states, weight, bias)
    if torch.is_grad_enabled() and states.requires_grad:
        differentiable: Tensor = _function().apply(states, weight, bias)
        return differentiable
    made: Tensor = torch.ops.mkldnn._linear_pointwise(states, _in_order(weight), bias, "none", [], "")
    return made


@contextmanager
def ordered_weights() -> Iterator[None]:
    """Inside the block `linear` keeps weights in the order that oneDNN multiplies by; else each product makes it anew.

    Results are the same bit for bit. No weight of a linear may be changed inside: its old values would be used.
    """
    if _ordered.get() is not None or not _there():
        yield
        return
    before = _ordered.set({})
    try:
        yield
    finally:
        _ordered.reset(before)


def _in_order(weight: "Tensor") -> "Tensor":
    """`weight` as oneDNN wants it, inside `ordered_weights` and where there is room; else as it is."""
    import torch

    if (kept := _ordered.get()) is None:
        return weight
    key = (weight.data_ptr(), weight.shape, weight.stride())
    if key not in kept:
        if sum(one.numel() for one, _ in kept.values()) + weight.numel() > MOST_ORDERED:
            return weight
        # `weight` is kept as well, so that nothing else takes its place in memory.
        kept[key] = weight, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ORDERED_FOR)
    return kept[key][1]


@cache
def _function() -> Any:
    """`linear` with gradients of the states alone, which are a product with the same weights."""
    import torch

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, states: "Tensor", weight: "Tensor", bias: "Tensor | None") -> "Tensor":
            ctx.save_for_backward(weight)
            return linear(states, weight, bias)

        @staticmethod
        def backward(ctx: Any, *slopes: "Tensor") -> "tuple[Tensor, None, None]":
            (weight,) = ctx.saved_tensors
            return linear(slopes[0], weight.T), None, None

    return Linear


@cache
def _there() -> bool:
    """Whether this processor has AVX-512, and this PyTorch oneDNN."""
    import torch

    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _fits(states: "Tensor", weight: "Tensor", bias: "Tensor | None") -> bool:
    """Whether a product is one of large plain float32 tensors on a CPU, without gradients of the parameters."""
    import torch

    plain = (torch.Tensor, torch.nn.Parameter)
    return (
        not (torch.is_grad_enabled() and any(one.requires_grad for one in (weight, bias) if one is not None))
        and weight.numel() >= FEWEST_WEIGHTS
        and states.numel() > 0
        and all(type(one) in plain for one in (states, weight, bias) if one is not None)
        and all(
            one.device.type == "cpu" and one.dtype is torch.float32 for one in (states, weight, bias) if one is not None
        )
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def _mode() -> type:
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            # Parameters alone: packed experts' slices are left to `expert_calls`, which watches their products.
            if func is functional.linear and not kwargs and isinstance(args[1], torch.nn.Parameter):
                return linear(*args)
            if func is torch.addmm and not kwargs and isinstance(args[2], torch.nn.Parameter):  # GPT-2's linears
                bias, states, weight = args
                if bias.ndim == 1 and _fits(states, weight.T, bias):
                    return linear(states, weight.T, bias)
            return func(*args, **(kwargs or {}))

    return Mode
