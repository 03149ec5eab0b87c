"""What every command takes, as a table that knows nothing of the library that parses the flags.

table()["scan"] == {"help": "Find …", "arguments": {"models": {…}}, "options": {"--n-sigma": {…}, …}}

An option is named by its first long spelling, and told by what is not the ordinary: `spellings` where there are more,
`type`, `default`, `least`, `most`, `required`, `repeats`, `variable` (of the environment), `hidden` and `help`. Where nothing
stands the default is None, an empty text or off, and there is no limit. This module alone reads the parser.
"""

import math
import re
import types
import typing
from typing import Any


def registered() -> dict[str, Any]:
    """{words of a command: the parser's command}; the group of papers is not one, its papers are."""
    import typer

    from outlierlens.cli.app import app

    found: dict[str, Any] = {}

    def walk(name: str, command: Any) -> None:
        inner = getattr(command, "commands", {})
        if not inner:
            found[name] = command
        for word in inner:
            walk(f"{name} {word}".strip(), inner[word])

    walk("", typer.main.get_command(app))
    return found


def table() -> dict[str, Any]:
    """{words of a command: its help, arguments and options}; of "" it is the program itself."""
    import typer

    from outlierlens.cli.app import app

    root: Any = typer.main.get_command(app)
    told = {"": _command(root), **{name: _command(one) for name, one in registered().items()}}
    groups = {name: _words(one.help) for name, one in root.commands.items() if getattr(one, "commands", None)}
    told[""] |= {"order": list(root.commands), "groups": groups}
    return told


def _command(command: Any) -> dict[str, Any]:
    if hasattr(command, "row"):
        return _experiment(command)
    arguments, options = {}, {}
    for one in command.params:
        if one.param_type_name == "argument":
            arguments[one.name] = _parameter(one)
        else:
            spelt = sorted(one.opts, key=lambda word: (not word.startswith("--"), one.opts.index(word)))
            options[spelt[0]] = _parameter(one)
    return {"help": _words(command.help), "arguments": arguments, "options": options}


def _experiment(command: Any) -> dict[str, Any]:
    """Of a command whose options are fields of dataclasses."""
    arguments, options = {}, {}
    for one in (option for _, options in command.row.asks().values() for option in options):
        ends = {
            mark: getattr(bound, mark)
            for bound in one.bounds
            for mark in ("ge", "gt", "le", "lt")
            if hasattr(bound, mark) and math.isfinite(getattr(bound, mark))
        }
        read = bool(one.flag.read)
        kind, repeats = ("str", False) if read else _kind(one.kind)
        default = (one.flag.words or None) if read else None if one.required else one.default
        facts = {
            "spellings": list(one.flags) if len(one.flags) > 1 else None,
            "type": "flag" if one.kind is bool else kind,
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
            options[max(one.flags, key=lambda word: word.startswith("--"))] = told
        else:
            arguments[one.name] = told
    return {"help": _words(command.help), "arguments": arguments, "options": options}


def _parameter(one: Any) -> dict[str, Any]:
    """The facts of one argument or option that are not the ordinary ones, in a fixed order."""
    kind, repeats = _kind(one.type_descriptor.annotation)
    spellings = [*one.opts, *one.secondary_opts]
    facts = {
        "spellings": spellings if one.param_type_name == "option" and len(spellings) > 1 else None,
        "type": "flag" if getattr(one, "is_flag", False) else kind,
        "default": one.default if isinstance(one.default, bool | int | float | str | None) else str(one.default),
        "least": one.min,
        "most": one.max,
        "required": bool(one.required),
        "repeats": repeats,
        "variable": one.envvar,
        "hidden": bool(one.hidden),
        "help": _words(one.help),
    }
    return {name: value for name, value in facts.items() if value is not None and value is not False and value != ""}


def _kind(annotation: Any) -> tuple[str, bool]:
    """int, float, str, path or the choices; and whether it may be given several times."""
    options = [one for one in typing.get_args(annotation) if one is not type(None)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return _kind(options[0])
    if typing.get_origin(annotation) is list:
        return _kind(options[0])[0], True
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(options), False
    return annotation.__name__.lower(), False


def _words(text: str | None) -> str:
    """Help as one line a paragraph, without a full stop's worth of layout."""
    return "\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", (text or "").strip()))
