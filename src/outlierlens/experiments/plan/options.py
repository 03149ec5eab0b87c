"""What `plan` is asked: a scheme, how much may stay in higher precision, and how carefully to look."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from outlierlens.errors import BadInput
from outlierlens.options import Flag, Flat, check
from outlierlens.tasks.base import TaskOptions

BITS = (16, 8)
USUAL = "int8-tensor/int8-tensor"
Grain = Literal["column", "linear"]
Reader = Literal[
    "llm-compressor", "auto-round", "torchao", "bitsandbytes", "gguf", "modelopt", "mlx", "onnxruntime"
]  # fmt: skip


def parse_share(text: str) -> float:
    """ "4%" or "0.04" -> 0.04; raises BadInput for what is neither."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise BadInput(f"cannot read {text!r}; write a share, such as 4% or 0.04") from None


def parse_bits(text: str) -> int:
    """ "16" or "8"."""
    if text not in map(str, BITS):
        raise BadInput(f"cannot read {text!r}; what is kept stays in 16 bits or in 8")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is rounded, and what may be kept."""

    scheme: str | None = None
    """WEIGHTS/INPUTS as of `quantize`: int4-group64/none, … Default: int8-tensor/int8-tensor; with --for the tool's own."""
    keep: Annotated[float, Flag(read="experiments.plan.options:parse_share", words="4%"), Gt(0), Le(1)] = 0.04
    """Share of the linears' weights that may stay: 4% or 0.04."""
    bits: Annotated[int, Flag(read="experiments.plan.options:parse_bits", words="16")] = 16
    """What is kept stays as it is (16), or becomes int8-channel/int8-token (8)."""
    grain: Grain | None = None
    """Keep single neurons, dimensions and inputs too (column), or linears alone, which is what tools can be told (linear).
    Default: column; with --for or --bits 8 linear."""
    tolerance: Annotated[float, Ge(0), Lt(float("inf"))] = 0.01
    """Keep nothing that gives back less than this, in the task's unit."""
    n_candidates: Annotated[int, Flag("--candidates"), Ge(1)] = 32
    """Measure the first N of the cheap ordering at every step."""
    exact: bool = False
    """Measure every entry at every step, on all texts that choose."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random sets of linears of the same sizes, kept."""
    stack: str | None = None
    """Which stream, where there are several."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""
    task: Annotated[TaskOptions, Flat("max_length", "batch_size")] = TaskOptions()
    """How texts become numbers; its seed is this one."""

    @property
    def rounding(self) -> str:
        """How weights and inputs are rounded: the scheme's name."""
        return self.scheme or USUAL

    @property
    def unit(self) -> Grain:
        """What is kept: columns too, or linears alone."""
        return self.grain or ("linear" if self.bits == 8 else "column")

    def __post_init__(self) -> None:
        check(self)
        if self.bits not in BITS:
            raise BadInput(f"bits is {self.bits}; what is kept stays in 16 bits or in 8")
        if self.bits == 8 and self.grain == "column":
            raise BadInput("--bits 8 is for whole linears, columns stay in 16 bits; add --grain linear")


@dataclass(frozen=True, kw_only=True)
class PlanCall(PlanOptions):
    """What may be kept, and for whom the plan is written."""

    tool: Annotated[Reader | None, Flag("--for")] = None
    """Write the plan for this tool too, to the file of --to."""
    to: Path | None = None
    """With --for: the file to write."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tool is None) != (self.to is None):
            raise BadInput("--for TOOL and --to FILE go together; give both, or neither")
        if self.tool is not None and self.grain == "column":
            raise BadInput(f"--for {self.tool}: tools keep whole linears, not single columns; leave --grain out")
