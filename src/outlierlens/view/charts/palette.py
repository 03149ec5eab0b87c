"""Colours by name: a chart says `ink`, the page decides in light, dark or print what ink is.

    specification = {"mark": {"type": "point", "color": INK}}
    concrete(specification)                      # every name replaced by the light colour

A colour in a specification is a CSS variable, "var(--ol-ink)". A browser resolves it; a picture file needs `concrete`.
"""

from typing import Any

from outlierlens.errors import printable

LIGHT = {
    "surface": "#ffffff",
    "ink": "#1b222b",
    "muted": "#55616f",
    "faint": "#9aa5b1",
    "grid": "#e3e7ec",
    "band": "#cfd6de",
    "alarm": "#b3261e",
    # Okabe and Ito's colours, darkened to 3:1 on white; every one goes with a shape of its own.
    "dim-1": "#c4500a",
    "dim-2": "#0067a6",
    "dim-3": "#00805c",
    "dim-4": "#a8417f",
    "dim-5": "#8a6500",
    "dim-6": "#4c5bb5",
}
DARK = {
    "surface": "#171b21",
    "ink": "#e9edf2",
    "muted": "#a7b2bf",
    "faint": "#6c7886",
    "grid": "#2b323b",
    "band": "#3a434e",
    "alarm": "#ff8a80",
    "dim-1": "#ff9a5c",
    "dim-2": "#62b8f0",
    "dim-3": "#4fd1a5",
    "dim-4": "#f09bcb",
    "dim-5": "#e5c04a",
    "dim-6": "#a6b1ff",
}
SHAPES = ("diamond", "circle", "triangle-up", "square", "cross", "triangle-down")
COLOURED = len(SHAPES)  # dimensions that get a colour and shape of their own


def variable(name: str) -> str:
    """The CSS variable of a named colour."""
    return f"var(--ol-{name})"


SURFACE, INK, MUTED, FAINT = (variable(name) for name in ("surface", "ink", "muted", "faint"))
GRID, BAND, ALARM = (variable(name) for name in ("grid", "band", "alarm"))
DIM_COLOURS = tuple(variable(f"dim-{i + 1}") for i in range(COLOURED))


def css(colours: dict[str, str]) -> str:
    """The colours as CSS declarations."""
    return "".join(f"--ol-{name}:{value};" for name, value in colours.items())


def concrete(value: Any) -> Any:
    """A copy of a specification in which every colour name is the light colour itself, and no text steers what shows it."""
    if isinstance(value, dict):
        return {key: concrete(item) for key, item in value.items()}
    if isinstance(value, list):
        return [concrete(item) for item in value]
    if isinstance(value, str) and value.startswith("var(--ol-"):
        return LIGHT.get(value.removeprefix("var(--ol-").removesuffix(")"), value)
    return printable(value) if isinstance(value, str) else value
