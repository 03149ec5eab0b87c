"""What is done to dimensions beyond setting them to zero: `BeyondOptions`, and `treatments(options)` in their order."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from outlierlens.ablate import EditMode, EditSettings, EditTokens
from outlierlens.errors import BadInput
from outlierlens.tasks.base import TaskOptions
from outlierlens.treated import BUT_FIRST, MEAN, ONLY_FIRST, POSITION_MEAN, RESAMPLE, SCALE, ZERO

Finder = Literal["auto", "scan", "observe"]
FINDERS: tuple[Finder, ...] = get_args(Finder)
SCALES = (0.5, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class BeyondOptions:
    """What is done to which dimensions.

    Attributes:
        find: who names the dimensions where none are asked for: "scan" of the weights, "observe" on the texts, or "auto", the
            scan and, where it names none, what is observed. Where nothing is found it is the strongest in the weights.
        layers: blocks whose output is edited; None is all.
        stack: stream, where the model has several.
        each: also each dimension of a set alone.
        scales: factors; 0 is zero and 1 is nothing done, so those two need no run of their own.
        n_random: random sets of as many dimensions, treated alike; 0 leaves them out.
        n_folds: parts of the texts; each is treated with the means of the others.
        seed: of shuffling, random sets and intervals; masks have that of `task`.
        task: how texts become numbers; "auto" takes the loss, or of a model without a head the change of sentence vectors.
    """

    find: Finder = "auto"
    layers: tuple[int, ...] | None = None
    stack: str | None = None
    each: bool = False
    scales: tuple[float, ...] = SCALES
    n_random: int = 5
    n_folds: int = 4
    seed: int = 0
    task: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        if self.find not in FINDERS:
            raise BadInput(f"unknown finder {self.find!r}; they are {', '.join(FINDERS)}")
        if not all(np.isfinite(factor) for factor in self.scales):
            raise BadInput(f"scales are {self.scales}; they must be numbers")
        if self.n_random < 0 or self.n_folds < 2:
            raise BadInput(f"n_random is {self.n_random} and n_folds {self.n_folds}; they must be at least 0 and 2")
        if self.task.blocks:
            raise BadInput("blocks join texts, and here each text has a value of its own; leave blocks out")


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
