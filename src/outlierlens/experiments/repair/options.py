"""What `repair` is asked: which format the model must fit, with how much room, and where the new one goes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from outlierlens.errors import BadInput
from outlierlens.options import Flag, check

Fit = Literal["fp16", "bf16", "fp8", "int8"]
# The largest number that a format holds; int8 has no range of its own, but one scale for all values of a tensor.
LIMITS: dict[str, float] = {"fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp8": 448.0}


@dataclass(frozen=True, kw_only=True)
class RepairOptions:
    """What the model must fit, and whether its stream is turned first."""

    fit: Fit | None = None
    """fp16, bf16, fp8 (e4m3): hidden states and what blocks hold fit its range. int8: the MLPs' inner spikes come down."""
    rotate: bool = False
    """Turn the residual stream, so that no dimension stands out (RMS norms that read it). Outputs stay equal within 2e-4."""
    margin: Annotated[int, Ge(1)] = 4
    """A power of two: room between the largest value seen and the largest that the format holds."""
    max_length: Annotated[int, Ge(2)] = 128
    """Tokens of a text at most, or fewer where the model has no more positions."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the random tokens of the check, and of the rotation."""

    def __post_init__(self) -> None:
        check(self)
        if self.fit is None and not self.rotate:
            raise BadInput("nothing is asked: name a format that the model must fit (--fit fp16), or --rotate")
        if self.margin & (self.margin - 1):
            raise BadInput(f"--margin {self.margin}: not a power of two; use 1, 2, 4, 8, …")


@dataclass(frozen=True, kw_only=True)
class RepairCall(RepairOptions):
    """What the model must fit, and where it is written."""

    folder: Annotated[Path, Flag("-o", "--output")]
    """Folder to write; it must not exist."""
