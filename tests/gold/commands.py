"""What commands take, read from the options' declarations: the spellings of an option, and its limits where it has any."""

import math
import types
import typing
from typing import Any

from outlierlens.experiments import BY_NAME


def spelt(name: str) -> set[str]:
    """Every spelling of every option of a command."""
    return {
        word
        for _, options in BY_NAME[name].asks().values()
        for one in options
        for flag in one.flags
        for word in flag.split("/")
    }


def numbers(name: str) -> dict[str, tuple[type, list[float]]]:
    """{option by its first long spelling: its type, its finite limits} of the options of a command that are numbers."""
    found = {}
    for one in (option for _, options in BY_NAME[name].asks().values() for option in options if option.flags):
        ends = {
            getattr(bound, mark) for bound in one.bounds for mark in ("ge", "gt", "le", "lt") if hasattr(bound, mark)
        }
        kind = float if one.flag.read and ends else str if one.flag.read else _kind(one.kind)
        if kind in (int, float):
            found[one.spelt] = kind, sorted(end for end in ends if math.isfinite(end))
    return found


def _kind(annotation: Any) -> Any:
    """What a value is of: of a choice, a list or something optional the first."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list, tuple):
        return next(_kind(one) for one in typing.get_args(annotation) if one is not type(None))
    return annotation
