"""A copy of a model as it runs in the format that it must fit.

fp16, bf16: all of it. fp8: hidden states after each block are rounded to e4m3 without a scale, as where they are kept in it.
int8: inputs of the MLPs' last linears share one scale a tensor, their weights one a row.
"""

import copy
from typing import TYPE_CHECKING, Any

from outlierlens.experiments.repair.extent import neuron_pairs
from outlierlens.models.load import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = {"fp16": "float16", "bf16": "bfloat16"}


def in_format(loaded: LoadedModel, fit: str) -> Any:
    """A copy of the float32 model that runs in `fit`."""
    import torch

    model: Any = copy.deepcopy(loaded.model)
    if fit in WHOLE:
        return model.to(getattr(torch, WHOLE[fit]))
    modules = dict(model.named_modules())
    if fit == "fp8":
        for block in {block for bound in loaded.stacks for block in bound.blocks}:
            modules[block].register_forward_hook(_after)
        return model
    for path in neuron_pairs(loaded):
        linear = modules[path]
        linear.weight.data = _int8(linear.weight.data, linear.weight.data.abs().amax(-1, keepdim=True))
        linear.register_forward_pre_hook(lambda module, inputs: (_int8(inputs[0], inputs[0].abs().max()), *inputs[1:]))
    return model


def _after(module: Any, inputs: Any, output: Any) -> Any:
    return (_fp8(output[0]), *output[1:]) if isinstance(output, tuple) else _fp8(output)


def _fp8(values: "Tensor") -> "Tensor":
    import torch

    # A cast takes what lies above the largest number to that number; without a scale it would be lost.
    kept = values.to(torch.float8_e4m3fn).to(values.dtype)
    return kept.masked_fill(values.abs() > torch.finfo(torch.float8_e4m3fn).max, float("nan"))


def _int8(values: "Tensor", top: "Tensor") -> "Tensor":
    step = top.clamp(min=1e-30) / 127
    return (values / step).round() * step
