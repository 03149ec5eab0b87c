"""What is done to dimensions beyond setting them to zero: `BeyondOptions`, and `treatments(options)` in their order."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from annotated_types import Ge

from outlierlens.ablation.switches import Dims, EditMode, EditSettings, EditTokens
from outlierlens.errors import BadInput
from outlierlens.experiments.beyond_zero.result import BUT_FIRST, MEAN, ONLY_FIRST, POSITION_MEAN, RESAMPLE, SCALE, ZERO
from outlierlens.options import FIND, Find, Flag, Flat, check
from outlierlens.tasks.base import TaskOptions

Finder = Literal["auto", "scan", "observe"]
FINDERS: tuple[Finder, ...] = get_args(Finder)
SCALES = (0.5, 1.5, 2.0, 3.0)


def parse_scales(text: str) -> tuple[float, ...]:
    """ "0.5,2" -> (0.5, 2.0); raises BadInput for anything else."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise BadInput(f"cannot read scales {text!r}; write 0.5,1.5,2,3")
    return found


@dataclass(frozen=True, kw_only=True)
class BeyondOptions:
    """What is done to which dimensions."""

    find: Finder = "auto"
    """What names the dimensions when none are given: scan (the weights), observe (the texts); auto: scan, else observe. If
    nothing is found: the strongest in the weights."""
    each: bool = False
    """Measure each dimension alone too."""
    layers: Annotated[tuple[int, ...] | None, Flag(read="options.read:parse_layers")] = None
    """Layers to treat: 0-3,7. Default: all."""
    stack: str | None = None
    """Which stream, where there are several: encoder, decoder."""
    scales: Annotated[
        tuple[float, ...], Flag(read="experiments.beyond_zero.options:parse_scales", words="0.5,1.5,2,3")
    ] = SCALES
    """Factors of the scale sweep, beside 0 and 1."""
    n_random: Annotated[int, Flag("--random"), Ge(0)] = 5
    """Random sets of the same size, treated alike."""
    n_folds: Annotated[int, Flag("--folds"), Ge(2)] = 4
    """Parts of the texts; each gets the means of the others."""
    task: Annotated[TaskOptions, Flat("mask_fraction", "batch_size")] = TaskOptions()
    """How texts become numbers; auto takes the loss, or of a model without a head the change of sentence vectors."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check(self)
        if self.find not in FINDERS:
            raise BadInput(f"unknown finder {self.find!r}; they are {', '.join(FINDERS)}")
        if not all(map(math.isfinite, self.scales)):
            raise BadInput(f"scales are {self.scales}; they must be numbers")
        if self.task.blocks:
            raise BadInput("blocks join texts, and here each text has a value of its own; leave blocks out")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command is asked: which dimensions, and what is done to them."""

    dims: Annotated[Dims | Find, Flag(read="options.read:planned_dims", words=FIND)] = FIND
    """308,381, or layer by layer: 0-9:896;10-16:678; find: as --find says."""
    options: Annotated[BeyondOptions, Flat()] = BeyondOptions()
    """What is done to them."""
    max_length: Annotated[int | None, Ge(2)] = None
    """Tokens of a text (or window) at most. Default: 128."""


@dataclass(frozen=True)
class How:
    """One treatment: its name in results, and what `edited_hidden` needs for it."""

    name: str
    mode: EditMode
    factor: float = float("nan")
    tokens: EditTokens = "all"

    def settings(self, base: EditSettings) -> EditSettings:
        """`base`, which has the means and the seed, for this treatment."""
        return replace(base, tokens=self.tokens, factor=self.factor)


def treatments(options: BeyondOptions) -> tuple[How, ...]:
    """All of them, zero first."""
    factors = sorted(set(options.scales) - {0.0, 1.0})
    return (
        How(ZERO, "zero"),
        How(MEAN, "mean"),
        How(POSITION_MEAN, "position mean"),
        How(RESAMPLE, "resample"),
        How(BUT_FIRST, "zero", tokens="rest"),
        How(ONLY_FIRST, "zero", tokens="first"),
        *(How(f"{SCALE} {factor:g}", "scale once", factor) for factor in factors),
    )
