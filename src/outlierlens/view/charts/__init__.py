"""Charts of results: a function takes a result and returns a `Chart`, a Vega-Lite specification; findings have `chart()`.

charts.weight_maps(scan.stacks[0])[0]        # shows itself in a notebook
charts.picture(chart, "svg")                 # bytes of a file; needs the extra `charts`
"""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from outlierlens.errors import showing
from outlierlens.view.charts.base import Chart, can_export, picture

__all__ = ["Chart", "can_export", "picture"]
# Of analyses what reports draw, beside what findings draw themselves.
OF_ANALYSES = [f"outlierlens.analyses.{one}" for one in ("scan", "observe_pictures", "sweep.finding")]


def _drawing(home: str) -> dict[str, Callable[..., Any]]:
    """The functions of a module that return charts."""
    return {
        name: one
        for name, one in vars(import_module(home)).items()
        if inspect.isfunction(one) and one.__module__ == home and not name.startswith("_")
        and "Chart" in str(one.__annotations__.get("return"))
    }  # fmt: skip


_OWN = {found.name for found in iter_modules(__path__)}  # asked for before they are imported


def _of_result(draw: Callable[..., Any]) -> Callable[..., Any]:
    """The function; a result whose values do not fit together is a BadInput."""

    @functools.wraps(draw)
    def drawn(found: Any, *given: Any, **named: Any) -> Any:
        with showing(found, *given, *named):
            return draw(found, *given, **named)

    return drawn


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name not in _OWN:
        for home in OF_ANALYSES:
            if name in (drawing := _drawing(home)):
                return _of_result(drawing[name])
    raise AttributeError(f"module {__name__!r} has no chart {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for home in OF_ANALYSES for name in _drawing(home))})
