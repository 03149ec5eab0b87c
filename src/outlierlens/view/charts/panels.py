"""Pictures of several panels.

composed(name=…, title=…, reading=…, body=above([one, two], spacing=30, apart=("color", "shape")), **one.numbers)
panel(layers, 370, 280, "Scale")             # layers with a title of their own
inner(chart, width=370)                      # a whole chart as a panel
grid(panels, 2, across=34, down=26)          # two a row
"""

from collections.abc import Iterable, Sequence
from typing import Any

from outlierlens.view.charts.base import TABLE_ROWS, Chart, Spec, framed
from outlierlens.view.charts.palette import INK, MUTED


def composed(
    *, name: str, title: str, reading: str, body: Spec, columns: Sequence[str], rows: Iterable[Any], total: int = 0
) -> Chart:
    """A chart of several panels in the house style; `total` is the number of rows where `rows` are already cut."""
    numbers = tuple(tuple(row) for row in rows)
    spec = framed(body, reading)
    return Chart(name, title, reading, spec, tuple(columns), numbers[:TABLE_ROWS], total or len(numbers))


def heading(text: str, subtitle: str = "", **more: Any) -> Spec:
    """The title of a panel."""
    made = {"text": text, "color": INK, "fontSize": 13, "anchor": "start"}
    if subtitle:
        made |= {"subtitle": subtitle, "subtitleColor": MUTED, "fontSize": 13.5, "subtitleFontSize": 12}
    return made | more


def panel(layers: Sequence[Spec], width: int, height: int, title: str | Spec = "", **more: Any) -> Spec:
    """Layers of one size, in pixels; a title in words becomes a `heading`."""
    made = {"width": width, "height": height, "layer": list(layers)} | more
    return made | ({"title": heading(title) if isinstance(title, str) else title} if title else {})


def inner(one: Chart, **more: Any) -> Spec:
    """A chart as a part of a larger one, under its title unless `more` has another; its own size unless `more` says so."""
    kept = {key: value for key, value in one.spec.items() if key not in framed({}, "")}
    return kept | {"title": heading(one.title)} | more


def above(panels: Sequence[Spec], spacing: int, apart: Sequence[str] = (), **more: Any) -> Spec:
    """Panels one below the other; `apart` are channels with a scale of their own in each."""
    return {"vconcat": list(panels), "spacing": spacing} | _independent(apart) | more


def beside(panels: Sequence[Spec], spacing: int, apart: Sequence[str] = (), **more: Any) -> Spec:
    """Panels side by side; `apart` as in `above`."""
    return {"hconcat": list(panels), "spacing": spacing} | _independent(apart) | more


def grid(panels: Sequence[Spec], per_row: int, *, across: int, down: int) -> Spec:
    """Panels in rows of `per_row`, that many pixels apart."""
    return above([beside(panels[i : i + per_row], across) for i in range(0, len(panels), per_row)], down)


def _independent(channels: Sequence[str]) -> Spec:
    return {"resolve": {"scale": dict.fromkeys(channels, "independent")}} if channels else {}
