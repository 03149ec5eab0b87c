"""Every function and class that people call from Python, with its signature and that of its public methods."""

import dataclasses
import inspect
import re
import typing
from typing import Any

from outlierlens.commands import OPTIONS


def public() -> dict[str, Any]:
    """{"api": {name: what it takes, and what its methods take}}, with the classes whose fields are settings."""
    from outlierlens import commands

    found = {name: inspect.unwrap(getattr(commands, name)) for name in dir(commands)}
    left = list(found.values())
    while left:
        for kind in _settings(left.pop()):
            if kind.__name__ not in found:
                found[kind.__name__] = kind
                left.append(kind)
    return {"api": {name: _told(one) for name, one in sorted(found.items())}}


def _settings(one: Any) -> list[type]:
    """The dataclasses that a function takes as options, or that an options class has for fields."""
    if inspect.isclass(one) and issubclass(one, Exception):
        return []
    inside = dataclasses.is_dataclass(one)
    taken = [two for two in inspect.signature(one).parameters.values() if inside or two.name in OPTIONS]
    kinds = [kind for two in taken for kind in (two.annotation, *typing.get_args(two.annotation))]
    return [kind for kind in kinds if inspect.isclass(kind) and dataclasses.is_dataclass(kind)]


def _told(one: Any) -> Any:
    if not inspect.isclass(one):
        return _signature(one)
    if issubclass(one, Exception):
        return {}
    parts = {name: inspect.getattr_static(one, name) for name in dir(one) if name[0] != "_" and name in _own(one)}
    methods = {f".{name}": _signature(part)[1:] for name, part in parts.items() if callable(part)}
    other = [name for name, part in parts.items() if isinstance(part, property | classmethod | staticmethod)]
    told = {"takes": [line for line in _signature(one) if line != "-> None"], "properties": other, **methods}
    return {name: lines for name, lines in told.items() if lines or name in methods}


def _own(one: type) -> set[str]:
    return {name for kind in one.__mro__ if kind.__module__.startswith("outlierlens") for name in vars(kind)}


def _signature(one: Any) -> list[str]:
    """Its parameters, one a line, then what it returns."""
    try:
        signature = inspect.signature(one)
    except (TypeError, ValueError):
        return []
    returned = "" if signature.return_annotation is inspect.Signature.empty else _plain(signature.return_annotation)
    kinds = {inspect.Parameter.KEYWORD_ONLY: "keyword ", inspect.Parameter.POSITIONAL_ONLY: "positional "}
    bare = [p.replace(annotation=_bare(p.annotation)) for p in signature.parameters.values()]
    lines = [kinds.get(p.kind, "") + _plain(p) for p in bare]
    return [*lines, f"-> {returned}"] if returned else lines


def _bare(annotation: Any) -> Any:
    """The type, without what `Annotated` puts beside it."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def _plain(one: Any) -> str:
    text = inspect.formatannotation(one) if isinstance(one, str | type) else str(one)
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace("'", "")
