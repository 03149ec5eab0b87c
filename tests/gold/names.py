"""Every name of `outlierlens` itself, with its signature, first line and public methods.

The pages of docs/ list the others; `docs/generate.py --check` holds those to the code.
"""

import inspect
import re
import typing
from typing import Any


def public() -> dict[str, Any]:
    """{"__all__": the names, "api": {dotted name: what it is}}."""
    import outlierlens

    own = sorted(name for name in outlierlens.__all__ if name != "__version__")
    told = {f"outlierlens.{name}": _told(getattr(outlierlens, name)) for name in own}
    return {"__all__": sorted(outlierlens.__all__), "api": told}


def _told(one: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"is": "class" if inspect.isclass(one) else "function" if callable(one) else "value"}
    if callable(one):
        told["takes"] = _signature(one)
    told["says"] = (inspect.getdoc(one) or "").partition("\n")[0]
    if inspect.isclass(one) and not issubclass(one, Exception):
        told["has"] = {
            name: _signature(part) if callable(part) else "property" if isinstance(part, property) else "value"
            for name in dir(one)
            if not name.startswith("_") and name in _own(one)
            for part in [inspect.getattr_static(one, name)]
            if callable(part) or isinstance(part, property | classmethod | staticmethod)
        }
    return told


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
