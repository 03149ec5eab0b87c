"""What 8 bits cost: the linears of every block with weights and inputs rounded per tensor, as a context manager.

    with rounded_to_int8(loaded):
        loaded.model(**batch)
    change, low, high = int8_change(task, seed=0)

Symmetric and per tensor, the step being the largest absolute value / 127: the plainest scheme, and the one that a single
large value harms most (Bondarenko et al. 2021). Inputs get their step from each batch (dynamic quantization).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from outlierlens.errors import BadInput
from outlierlens.hidden import edited_inputs
from outlierlens.models import LoadedModel
from outlierlens.tasks import Task, bootstrap, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

LEVELS = 127  # of int8 on each side of zero, so that zero and signs are exact


def fake_int8(values: "Tensor") -> "Tensor":
    """`values` rounded to the nearest of 255 evenly spaced levels from −max|values| to max|values|; zeros stay zeros."""
    largest = values.detach().abs().amax()
    step = (largest / LEVELS).clamp(min=1e-12)
    return (values / step).round().clamp(-LEVELS, LEVELS) * step


@contextmanager
def rounded_to_int8(loaded: LoadedModel, stack: str | None = None) -> Iterator[int]:
    """Round weights and inputs of every `nn.Linear` inside the blocks; yields their number and restores bit for bit.

    Raises:
        BadInput: the blocks hold no nn.Linear (GPT-2's Conv1D, packed experts), or the model is compiled.
    """
    import torch

    linears = _linears(loaded, stack)
    with ExitStack() as restore:
        for linear in linears:
            weight = linear.weight
            restore.callback(_put, weight, weight.detach().clone())
            with torch.no_grad():
                weight.copy_(fake_int8(weight))
        restore.enter_context(edited_inputs(loaded.model, linears, fake_int8))
        yield len(linears)


def int8_change(loaded: LoadedModel, task: Task, *, seed: int, stack: str | None = None) -> tuple[float, float, float]:
    """(change, low, high) of the task's value by `rounded_to_int8`, with a paired 95 % bootstrap interval over texts."""
    intact, weights = task.per_text()
    with rounded_to_int8(loaded, stack):
        rounded, _ = task.per_text()
    low, high = bootstrap(rounded - intact, weights, seed=seed)
    return weighted_mean(rounded - intact, weights), low, high


def _linears(loaded: LoadedModel, stack: str | None) -> list["nn.Linear"]:
    from torch import nn

    prefixes = tuple(f"{path}." for path in loaded.stack(stack).blocks)
    found = [
        module
        for name, module in loaded.model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(prefixes)
    ]
    if not found:
        raise BadInput(f"{loaded.name}: its blocks hold no nn.Linear, so there is nothing that this can round")
    return found


def _put(weight: "Tensor", values: "Tensor") -> None:
    import torch

    with torch.no_grad():
        weight.copy_(values)
