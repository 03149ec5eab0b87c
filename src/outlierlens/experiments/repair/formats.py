"""A model as it runs in the format that it must fit.

fp16, bf16: all of it. fp8: hidden states after each block are rounded to e4m3 without a scale, as where they are kept in it.
int8: weights and inputs of every linear inside the blocks, one scale per tensor each.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outlierlens.analyses.quantize_rounding import rounded
from outlierlens.analyses.quantize_schemes import parse
from outlierlens.models.changes import hang, temporary
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

FLOAT32 = "float32"  # what a model fits that nothing narrower is asked of
WHOLE = {"fp16": "float16", "bf16": "bfloat16"}
INT8 = "int8-tensor/int8-tensor"


@temporary
def in_format(loaded: LoadedModel, fit: str) -> Iterator[Any]:
    """The float32 model, or a copy of it, that runs in `fit` while the context lasts."""
    import torch

    with ExitStack() as undo:
        if fit == "int8":
            for bound in loaded.stacks:
                undo.enter_context(rounded(loaded, parse(INT8), stack=bound.name))
            yield loaded.model
        elif fit == "fp8":
            modules = dict(loaded.model.named_modules())
            for block in {block for bound in loaded.stacks for block in bound.blocks}:
                hang(undo, modules[block].register_forward_hook, _after)
            yield loaded.model
        elif fit in WHOLE:
            yield copy.deepcopy(loaded.model).to(getattr(torch, WHOLE[fit]))
        else:
            yield loaded.model


def _after(module: Any, inputs: Any, output: Any) -> Any:
    return (_fp8(output[0]), *output[1:]) if isinstance(output, tuple) else _fp8(output)


def _fp8(values: "Tensor") -> "Tensor":
    import torch

    # A cast takes what lies above the largest number to that number; without a scale it would be lost.
    kept = values.to(torch.float8_e4m3fn).to(values.dtype)
    return kept.masked_fill(values.abs() > torch.finfo(torch.float8_e4m3fn).max, float("nan"))
