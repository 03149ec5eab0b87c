"""Round tensors as a scheme says, and give back floating-point numbers: fake quantization.

    fake_quantize(weight, parse("int8-channel/none").weights)                       # [out, in]
    fake_quantize(weight, scheme, exempt=kept)                                      # kept stays, and widens no range
    fake_quantize_inputs(reads, scheme, valid, exempt=None)                         # [text, token, in]

Integers: step · (clip(round(x · (1 / step)) + zero) − zero), rounding halves to even, as `torch.fake_quantize_*` does it.
FP8: step · cast(clip(x / step)), step = largest |x| / largest of the format. All in float32 (float64 stays).
"""

from typing import TYPE_CHECKING

from outlierlens.errors import USE_FLOAT32, BadInput
from outlierlens.experiments.quantization.schemes import LARGEST, Scheme

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 2.0**-126  # step: the smallest whose reciprocal is finite in float32


def fake_quantize(values: "Tensor", scheme: Scheme, *, exempt: "Tensor | None" = None) -> "Tensor":
    """Weights [out, in] rounded; what is `exempt` (bool, broadcast to that shape) stays as it is and takes part in no range.

    Raises:
        BadInput: an infinite value or a NaN, or a group size that does not divide the row.
    """
    wide = _widened(values)
    counted = wide if exempt is None else wide.masked_fill(exempt, 0.0)  # 0 is in every range
    blocks = _blocks(wide, scheme)
    rounded = _rounded(blocks, *steps(_blocks(counted, scheme), scheme), scheme).reshape(wide.shape)
    return _back(values, rounded, exempt)


def fake_quantize_inputs(
    values: "Tensor", scheme: Scheme, valid: "Tensor | None" = None, *, exempt: "Tensor | None" = None
) -> "Tensor":
    """Inputs [text, token, in] rounded, per token or with one step a text; padding (not `valid`) takes part in no range.

    One step a text is what a model computes that reads texts one by one: no number depends on which texts share a batch.

    Raises:
        BadInput: an infinite value or a NaN.
    """
    wide = _widened(values)
    counted = wide if exempt is None else wide.masked_fill(exempt, 0.0)
    if valid is not None:
        counted = counted.masked_fill(~valid[..., None], 0.0)
    if scheme.grain == "tensor":
        blocks, counted = wide.flatten(1), counted.flatten(1)
    else:
        blocks = wide
    rounded = _rounded(blocks, *steps(counted, scheme), scheme).reshape(wide.shape)
    return _back(values, rounded, exempt)


def steps(blocks: "Tensor", scheme: Scheme) -> tuple["Tensor", "Tensor"]:
    """(step, zero point) [..., 1] of values that share one along the last axis; ranges always hold 0.

    Symmetric: step = max |x| / 127 (int8), / 7 (int4), / 448 (e4m3), / 57,344 (e5m2), zero point 0. Asymmetric: step =
    (max − min) / (2^bits − 1), zero point = smallest code − round(min / step).
    """
    import torch

    low, high = blocks.amin(-1, keepdim=True).clamp(max=0.0), blocks.amax(-1, keepdim=True).clamp(min=0.0)
    if scheme.symmetric:
        step = torch.maximum(-low, high) / (LARGEST.get(scheme.number) or float(scheme.ends[1]))
    else:
        step = (high - low) / float(scheme.ends[1] - scheme.ends[0])
    # A NaN or an infinity among the values is one in the step.
    if not bool(step.isfinite().all()):
        raise BadInput(
            "a value to be rounded is infinite or not a number, or the range is beyond float32: no step covers it; "
            + USE_FLOAT32
        )
    step = step.clamp(min=SMALLEST)
    if scheme.symmetric:
        return step, torch.zeros_like(step)
    first, last = scheme.ends
    return step, (first - torch.round(low / step)).clamp(first, last)


def _rounded(blocks: "Tensor", step: "Tensor", zero: "Tensor", scheme: Scheme) -> "Tensor":
    import torch

    if scheme.number in LARGEST:
        largest = LARGEST[scheme.number]
        kind = torch.float8_e4m3fn if scheme.number == "e4m3" else torch.float8_e5m2
        # A cast beyond the largest value gives NaN or infinity.
        scaled: Tensor = (blocks / step).clamp(-largest, largest).to(torch.float32).to(kind).to(blocks.dtype) * step
        return scaled
    first, last = scheme.ends
    codes: Tensor = (torch.round(blocks * (1.0 / step)) + zero).clamp(first, last)
    return (codes - zero) * step


def _blocks(values: "Tensor", scheme: Scheme) -> "Tensor":
    """Weights [out, in] with the values that share a step along the last axis."""
    if scheme.grain == "tensor":
        return values.reshape(1, -1)
    if scheme.grain == "channel":
        return values
    n_inputs, size = values.shape[-1], scheme.group or 1
    if n_inputs % size:
        fitting = [other for other in (128, 64, 48, 32, 24, 16, 8, 4, 2, 1) if n_inputs % other == 0 and other <= size]
        raise BadInput(f"groups of {size} do not divide a row of {n_inputs:,} weights; use group{(fitting or [1])[0]}")
    return values.unflatten(-1, (n_inputs // size, size))


def _widened(values: "Tensor") -> "Tensor":
    import torch

    return values.detach() if values.dtype in (torch.float32, torch.float64) else values.detach().to(torch.float32)


def _back(values: "Tensor", rounded: "Tensor", exempt: "Tensor | None") -> "Tensor":
    """In the type that came, with what is exempt put back."""
    import torch

    rounded = rounded.to(values.dtype)
    return rounded if exempt is None else torch.where(exempt, values.detach(), rounded)
