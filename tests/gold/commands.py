"""What every command takes, as a table that knows nothing of the library that parses the flags.

table()["scan"] == {"help": "Find …", "arguments": {"models": {…}}, "options": {"--n-sigma": {…}, …}}

An option is named by its first long spelling, and told by what is not the ordinary: `spellings` where there are more,
`type`, `default`, `least`, `most`, `required`, `repeats`, `variable` (of the environment), `hidden` and `help`. Where nothing
stands the default is None, an empty text or off, and there is no limit.
"""

import math
import re
import types
import typing
from typing import Any

from outlierlens.cli.app import ABOUT
from outlierlens.experiments import BY_NAME, EXPERIMENTS
from outlierlens.options.experiment import Experiment


def table() -> dict[str, Any]:
    """{words of a command: its help, arguments and options}; of "" it is the program itself."""
    told: dict[str, Any] = {
        "": {
            "help": ABOUT,
            "options": {},
            "order": list(BY_NAME),
            "groups": {row.name: row.group for row in EXPERIMENTS},
        }
    }
    return told | {row.name: _experiment(row) for row in EXPERIMENTS}


def spelt(name: str) -> set[str]:
    """Every spelling of every option of a command."""
    return {
        word
        for _, options in BY_NAME[name].asks().values()
        for one in options
        for flag in one.flags
        for word in flag.split("/")
    }


def _experiment(row: Experiment) -> dict[str, Any]:
    arguments, options = {}, {}
    for one in (option for _, options in row.asks().values() for option in options):
        ends = {
            mark: getattr(bound, mark)
            for bound in one.bounds
            for mark in ("ge", "gt", "le", "lt")
            if hasattr(bound, mark) and math.isfinite(getattr(bound, mark))
        }
        read = bool(one.flag.read)
        spellings = [word for flag in one.flags for word in flag.split("/")]
        kind, repeats = ("str", one.flag.repeats) if read else _kind(one.kind)
        default = (one.flag.words or None) if read else None if one.required else one.default
        facts = {
            "spellings": spellings if len(spellings) > 1 else None,
            "type": "flag" if one.kind in (bool, bool | None) else kind,
            "default": default if isinstance(default, bool | int | float | str | None) else str(default),
            "least": ends.get("ge", ends.get("gt")),
            "most": ends.get("le", ends.get("lt")),
            "required": one.required,
            "repeats": repeats,
            "variable": one.flag.env,
            "help": one.help,
        }
        told = {
            name: value for name, value in facts.items() if value is not None and value is not False and value != ""
        }
        if one.flags:
            options[one.spelt] = told
        else:
            arguments[one.name] = told
    return {"help": _words(row.about), "arguments": arguments, "options": options}


def _kind(annotation: Any) -> tuple[str, bool]:
    """int, float, str, path or the choices; and whether it may be given several times."""
    options = [one for one in typing.get_args(annotation) if one not in (type(None), ...)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return _kind(options[0])
    if typing.get_origin(annotation) in (list, tuple):
        return _kind(options[0])[0], True
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(options), False
    return annotation.__name__.lower(), False


def _words(text: str | None) -> str:
    """Help as one line a paragraph, without a full stop's worth of layout."""
    return "\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", (text or "").strip()))
