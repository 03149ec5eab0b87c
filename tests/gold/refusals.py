"""What every number that a command takes is refused for beyond its limits: values below, at and above each are tried.

Every value is given to the command of `every_command.RUNS`, in the folder where they ran; it is taken when the command comes
as far as running its model, or to its end. A value that a parser, a table of options or the command itself refuses is told
with the line that says so. What the limits of an option say themselves (`--help-all`) is left out: only what differs is kept.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from annotated_types import BaseMetadata

import every_command
from gold import commands
from gold.files import brief
from outlierlens.options import bounds_text

TAKEN = "taken"


class Stopped(BaseException):
    """The model would run now."""


def probes(kind: type, ends: list[float]) -> list[float | int]:
    """Values for an option: around its limits; where it has none, around zero and one."""
    step = 1 if kind is int else 0.5
    around = sorted({end + sign * step for end in ends for sign in (-1, 0, 1)})
    return around or [-1, 0, 1] if kind is int else [*(around or [-1.0, 0.0, 0.5, 1.0, 2.0]), math.nan, math.inf]


def refusals() -> dict[str, Any]:
    """{command: {option: {value: "taken" or the line that refuses it}}} of the commands that ran already."""
    found: dict[str, Any] = {}
    for name in every_command.RUNS:
        for flag, (kind, bounds) in commands.numbers(name).items():
            for value in probes(kind, commands.ends(bounds)):
                came = outcome(name, flag, value)
                if came != declared(flag, value, bounds):
                    found.setdefault(name, {}).setdefault(flag, {})[str(value)] = came
    return found


def declared(flag: str, value: float, bounds: tuple[BaseMetadata, ...]) -> str:
    """What comes of a value by the limits of its option alone."""
    within = commands.within(value, bounds)
    return TAKEN if within else f"2: error: {flag} is {value}; it must be {bounds_text(bounds)}"


def outcome(name: str, flag: str, value: float) -> str:
    """What a command makes of a value of one of its options."""
    words = list(without(every_command.RUNS[name], flag))
    with stopped_at_the_model():
        try:
            said = every_command.call(*name.split(), *words, f"{flag}={brief(value)}")
        except Stopped:
            return TAKEN
        except Exception as bug:  # a traceback for the user; it has no place here once it is mended
            return f"traceback: {type(bug).__name__}: {bug}"
    return TAKEN if said.code == every_command.FOUND.get(name, 0) else line(said)


def line(said: every_command.Said) -> str:
    """The last line of an error, which is the whole of it but for how a command is called."""
    last = [one for one in said.err.splitlines() if one.strip()][-1:]
    return f"{said.code}: {''.join(last)}"


WRITES = ("-o", "--output", "--chart", "--save", "--card", "--rows")


def without(words: tuple[str, ...], flag: str) -> Iterator[str]:
    """The words of a command without an option, and with files that are not there yet for what it writes."""
    left = iter(words)
    for word in left:
        if word == flag:
            next(left, None)
        elif word in WRITES:
            yield from (word, fresh(next(left)))
        else:
            yield word


_N = iter(range(10**9))


def fresh(path: str) -> str:
    """A path beside `path`, of the same ending, that is not there."""
    return re.sub(r"^([^.]*)", rf"\1-tried-{next(_N)}", path)


@contextmanager
def stopped_at_the_model() -> Iterator[None]:
    """Running a model ends the command; reading one from its files does not."""
    import torch

    before = torch.nn.Module.__call__

    def stop(*_: Any, **__: Any) -> None:
        raise Stopped

    torch.nn.Module.__call__ = stop  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = before  # type: ignore[method-assign]
