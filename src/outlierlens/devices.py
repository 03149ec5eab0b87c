"""Where a model computes, and in which precision.

device = pick_device("auto")
dtype = auto_dtype(device)            # bfloat16 where the hardware computes in it
"""

from typing import TYPE_CHECKING

from outlierlens.errors import BadInput

if TYPE_CHECKING:
    import torch


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


def auto_dtype(device: "torch.device") -> "torch.dtype":
    """bfloat16 where the hardware computes in it, float32 elsewhere."""
    import torch

    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        fast = any(test is not None and test() for test in tests)
    else:
        fast = False
    return torch.bfloat16 if fast else torch.float32
