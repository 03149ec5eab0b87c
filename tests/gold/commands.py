"""What commands take, read from the options' declarations: the spellings of an option, and its limits where it has any."""

import math
import operator
import types
import typing
from typing import Any

from annotated_types import BaseMetadata

from outlierlens.experiments import BY_NAME

KEEPS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}


def spelt(name: str) -> set[str]:
    """Every spelling of every option of a command."""
    return {
        word
        for _, options in BY_NAME[name].asks().values()
        for one in options
        for flag in (*one.flags, *filter(None, [one.flag.into]))
        for word in flag.split("/")
    }


def numbers(name: str) -> dict[str, tuple[type, tuple[BaseMetadata, ...]]]:
    """{option by its first long spelling: its type, its limits} of the options of a command that are numbers."""
    found = {}
    for one in (option for _, options in BY_NAME[name].asks().values() for option in options if option.flags):
        kind = float if one.flag.read and ends(one.bounds) else str if one.flag.read else _kind(one.kind)
        if kind in (int, float):
            found[one.spelt] = kind, one.bounds
    return found


def ends(bounds: tuple[BaseMetadata, ...]) -> list[float]:
    """The finite ends of limits, in order."""
    found = {getattr(one, mark) for one in bounds for mark in KEEPS if hasattr(one, mark)}
    return sorted(end for end in found if math.isfinite(end))


def within(value: float, bounds: tuple[BaseMetadata, ...]) -> bool:
    """Whether a value keeps all limits; no value that is no number does."""
    return all(
        keeps(value, getattr(one, mark)) for one in bounds for mark, keeps in KEEPS.items() if hasattr(one, mark)
    )


def _kind(annotation: Any) -> Any:
    """What a value is of: of a choice, a list or something optional the first."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list, tuple):
        return next(_kind(one) for one in typing.get_args(annotation) if one is not type(None))
    return annotation
