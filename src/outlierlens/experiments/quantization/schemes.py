"""Schemes as data: into which numbers, and which values share a step.

    parse("int8-channel/int8-token")          # weights / inputs of every linear
    parse("int4-group32-asym/none")           # weights alone, in groups of 32 inputs, with a zero point
    parse("e4m3-tensor/e4m3-tensor")          # 8-bit floating point

Numbers: int8, int4, e4m3, e5m2. Who shares a step: "tensor", "channel" (weights of one output), "token" (inputs of one
token), "groupN" (N neighbouring weights of one output). "-asym" gives integers a zero point.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from outlierlens.errors import BadInput

Number = Literal["int8", "int4", "e4m3", "e5m2"]
Grain = Literal["tensor", "channel", "token", "group"]
BITS = {"int8": 8, "int4": 4, "e4m3": 8, "e5m2": 8}
# Levels of symmetric integers on each side of zero: one code is given up so that zero and signs are exact.
LEVELS = {"int8": 127, "int4": 7}
# Largest finite value: Micikevicius et al. (2022), "FP8 Formats for Deep Learning", table 1.
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
GROUP = 32
_SPELLING = re.compile(r"(?P<number>[a-z0-9]+)-(?P<grain>[a-z]+)(?P<group>\d{1,9})?(?P<asym>-asym)?")


@dataclass(frozen=True)
class Scheme:
    """How one tensor is rounded.

    Attributes:
        number: what values become: "int8", "int4", or FP8 "e4m3" (3 bits of mantissa, up to 448), "e5m2" (2, up to 57,344).
        grain: which values share a step: all of them ("tensor"; of inputs all tokens of one text), "channel" those that one
            output of a linear is made with, "token" those of one token, "group" `group` neighbours of a channel.
        group: size of a group, None for other grains.
        symmetric: steps reach as far below zero as above it; False shifts integers by a zero point, so that the range is from
            the smallest value (or 0) to the largest (or 0).
    """

    number: Number
    grain: Grain
    group: int | None = None
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.number not in get_args(Number):
            raise BadInput(f"unknown number {self.number!r}; numbers are {', '.join(get_args(Number))}")
        if self.grain not in get_args(Grain):
            raise BadInput(f"unknown grain {self.grain!r}; grains are {', '.join(get_args(Grain))}")
        if (self.grain == "group") != (self.group is not None) or (self.group is not None and self.group < 1):
            raise BadInput(f"{self.number}-{self.grain}: a group, and nothing else, has a size of at least 1: group32")
        if not self.symmetric and self.number not in LEVELS:
            raise BadInput(f"{self.number} has no zero point; -asym belongs to {', '.join(LEVELS)}")

    @property
    def name(self) -> str:
        """As `parse` reads it: "int4-group32-asym"."""
        return f"{self.number}-{self.grain}{self.group or ''}{'' if self.symmetric else '-asym'}"

    @property
    def ends(self) -> tuple[int, int]:
        """Smallest and largest integer: −127 and 127 of symmetric int8, −128 and 127 of asymmetric."""
        levels = LEVELS[self.number]
        return (-levels if self.symmetric else -levels - 1), levels


@dataclass(frozen=True)
class Recipe:
    """What happens to every linear of the blocks: schemes of its weights and of the inputs that it reads, or None."""

    weights: Scheme | None
    inputs: Scheme | None

    def __post_init__(self) -> None:
        if self.weights is None and self.inputs is None:
            raise BadInput("none/none rounds nothing; give the weights a scheme, or the inputs")
        if self.weights is not None and self.weights.grain == "token":
            raise BadInput(f"{self.weights.name}: weights have no tokens; use tensor, channel or group{GROUP}")
        if self.inputs is not None and self.inputs.grain not in ("tensor", "token"):
            raise BadInput(f"{self.inputs.name}: inputs are rounded per tensor or per token")

    @property
    def name(self) -> str:
        """As `parse` reads it: "int8-channel/int8-token"."""
        return "/".join("none" if part is None else part.name for part in (self.weights, self.inputs))


def parse(text: str) -> Recipe:
    """The recipe "WEIGHTS/INPUTS", such as "int8-channel/int8-token" or "int4-group32/none".

    Raises:
        BadInput: with the part that cannot be read.
    """
    parts = text.strip().split("/")
    if len(parts) != 2:
        raise BadInput(f"cannot read scheme {text!r}; write WEIGHTS/INPUTS, such as int8-channel/int8-token")
    return Recipe(*(None if part == "none" else _scheme(part, text) for part in parts))


def parse_all(text: str) -> tuple[Recipe, ...]:
    """Recipes by commas, each once."""
    return tuple(dict.fromkeys(parse(part) for part in text.split(",")))


def _scheme(part: str, whole: str) -> Scheme:
    read = _SPELLING.fullmatch(part)
    if read is None:
        raise BadInput(
            f"cannot read {part!r} in scheme {whole!r}; write NUMBER-GRAIN, such as int8-tensor, int4-group{GROUP}-asym, "
            f"e4m3-token, or none"
        )
    number, grain, group = read["number"], read["grain"], read["group"]
    return Scheme(number, grain, int(group) if group else None, read["asym"] is None)  # type: ignore[arg-type]


DEFAULTS = tuple(
    parse(name)
    for name in (
        "int8-tensor/int8-tensor",
        "int8-channel/int8-token",
        "int4-channel/none",
        f"int4-group{GROUP}/none",
        "e4m3-tensor/e4m3-tensor",
    )
)
