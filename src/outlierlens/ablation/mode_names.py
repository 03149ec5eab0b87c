"""The ablations' names, as options take them; `modes.Switch` is what they do."""

import math
from typing import Literal, get_args

from outlierlens.errors import BadInput, near

Mode = Literal["weights", "norms", "zero", "mean", "scale", "resample", "writes"]
MODES: tuple[Mode, ...] = get_args(Mode)
ON_WEIGHTS: tuple[Mode, ...] = ("weights", "norms", "writes")
SCALES = ("scale", "scale-once")  # which take a factor
NAMES = (*ON_WEIGHTS, "zero", "mean", "position-mean", "resample", *SCALES)  # of `ablate --modes`


def named_mode(name: str) -> Mode:
    """The mode called `name`; raises BadInput with the choices."""
    if name not in MODES:
        raise BadInput(f"unknown mode {name!r}; modes are {', '.join(MODES)}{near(name, MODES)}")
    return name


def check_mode(mode: str, factor: float, embeddings: bool) -> None:
    """Raise BadInput for a mode that does not exist, or settings that do not belong to it."""
    named_mode(mode)
    if not math.isfinite(factor):
        raise BadInput(f"factor is {factor}; it must be a number")
    if embeddings and mode != "writes":
        raise BadInput(f"embeddings belongs to mode writes, not to mode {mode!r}")


def check_no_resampling(mode: Mode, what: str) -> None:
    """Raise BadInput for the mode in which `what` of one text depends on the others of its batch."""
    if mode == "resample":
        raise BadInput(
            f"mode resample permutes values among the tokens of a batch, so {what} would depend on the batch size; use "
            f"{', '.join(other for other in MODES if other != 'resample')}"
        )
