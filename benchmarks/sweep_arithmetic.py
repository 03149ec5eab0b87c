"""How much arithmetic a benchmark's forward passes did, and how fast this machine multiplies matrices of those shapes.

with counted(loaded, 900) as work: ...          # work.useful, work.real, work.tokens, work.passes
product_rate(loaded, 2048, 0.15)           # FLOP of bare products a second of processor time
"""

import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Work:
    """Operations (a multiply and an add are two) of the matrix products that were computed.

    Attributes:
        blocks: of everything before the vocabulary head, padding included; head: of the vocabulary head.
        real, tokens: tokens that passed through the model without and with padding; passes: of the model.
    """

    blocks: float = 0.0
    head: float = 0.0
    real: int = 0
    tokens: int = 0
    passes: int = 0

    @property
    def useful(self) -> float:
        """Operations on real tokens."""
        return self.blocks * self.real / self.tokens + self.head


@contextmanager
def counted(loaded: Any, n_read: float) -> Iterator[Work]:
    """Count the matrix products inside from the shapes that the linears see: what is skipped or reused does not count.

    `n_read` tokens are read by the vocabulary head, which need not run as a module.
    """
    from torch import nn

    head = loaded.model.get_output_embeddings()
    work, hooks = Work(head=2.0 * n_read * head.in_features * head.out_features), []
    causal = loaded.head == "causal"

    def linear(module: Any, args: Any, output: Any) -> None:
        work.blocks += 2.0 * args[0].numel() * module.out_features

    def attention(module: Any, args: Any, output: Any) -> None:
        rows, length, width = output.shape
        work.blocks += 4.0 * rows * length * length * width / (2 if causal else 1)

    def model(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        work.real += int(kwargs["attention_mask"].sum())
        work.tokens += kwargs["attention_mask"].numel()
        work.passes += 1

    for name, module in loaded.model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            hooks.append(module.register_forward_hook(linear))
        if name.endswith((".query", ".q_proj")):
            hooks.append(module.register_forward_hook(attention))
    hooks.append(loaded.model.register_forward_pre_hook(model, with_kwargs=True))
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()


def product_rate(loaded: Any, tokens: int, share_read: float, repeats: int = 9) -> float:
    """FLOP a second of processor time of bare matrix products at the model's shapes, each as often as the model has it,
    `tokens` rows at a time: what else runs on the machine takes no part.

    The head counts at the share of positions that are read. Factors change as they do in a model.
    """
    import torch
    from torch import nn

    from outlierlens.models.devices import linear

    head = loaded.model.get_output_embeddings()
    shapes: dict[tuple[int, int, int], int] = {}
    for path in loaded.stack().blocks:
        for module in loaded.model.get_submodule(path).modules():
            if isinstance(module, nn.Linear):
                key = (tokens, module.in_features, module.out_features)
                shapes[key] = shapes.get(key, 0) + 1
    read = max(1, round(tokens * share_read))
    shapes[read, head.in_features, head.out_features] = 1
    dtype = loaded.model.dtype
    factors = {(n, k, m): (torch.randn(n, k, dtype=dtype), torch.randn(m, k, dtype=dtype)) for n, k, m in shapes}
    taken: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in shapes}
    with torch.inference_mode():
        for x, w in factors.values():
            linear(x, w)
        for _ in range(repeats):
            for shape, (x, w) in factors.items():
                start = time.process_time()
                linear(x, w)
                taken[shape].append(time.process_time() - start)
    flops = sum(count * 2.0 * n * k * m for (n, k, m), count in shapes.items())
    return flops / sum(count * statistics.median(taken[shape]) for shape, count in shapes.items())


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def fast_bf16() -> bool:
    """Whether this processor multiplies bf16 matrices in hardware."""
    import torch

    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(test is not None and test() for test in (getattr(torch.cpu, name, None) for name in names))
