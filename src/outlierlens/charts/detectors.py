"""Every definition of an outlier dimension side by side: `detectors(found)`.

agreement       how far each two definitions find the same dimensions (Jaccard), pooled over layers
the dimensions  which definitions find which, and in how many layers
by layer        how many dimensions each finds in each layer
nulls           how many it finds in the model and next to nothing: other weights, another basis
"""

import math
from typing import Any

import numpy as np

from outlierlens.charts.base import CONFIG, SCHEMA, TABLE_ROWS, Chart, Spec, field, round_to
from outlierlens.charts.palette import DIM_COLOURS, INK, MUTED, SURFACE
from outlierlens.defined import Detectors, Found

WIDTH = 700
CELL = 26  # pixels
DIMS = 24  # dimensions that get a row
DARK = 0.6  # part of the strongest colour from which text on it is light
NO_ANGLE = {"labelAngle": 0, "grid": False, "ticks": False, "domain": False, "labelOverlap": False}
ACROSS = NO_ANGLE | {"labelAngle": -40, "labelLimit": 140}
DOWN = NO_ANGLE | {"labelLimit": 160}


def detectors(found: Detectors, *, name: str = "detectors") -> Chart:
    """The four panels as one picture."""
    panels = [_agreement(found), _dimensions(found), _layers(found), _nulls(found)]
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading(found),
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": panels,
        "spacing": 26,
        "resolve": {
            "scale": {"opacity": "independent", "x": "independent", "y": "independent", "color": "independent"}
        },
    }
    rows = [
        (
            one.definition,
            one.condition,
            len(one.dims) if one.applies else None,
            ", ".join(map(str, one.dims)) or one.why_not,
        )
        for one in found.found
    ]
    title = f"Which dimensions are outliers, by {len(found.names)} definitions: {found.provenance.model}"
    columns = ("definition", "condition", "dimensions", "which")
    return Chart(name, title, reading(found), spec, columns, tuple(rows[:TABLE_ROWS]), len(rows))


def reading(found: Detectors) -> str:
    """What one sees, in sentences."""
    votes = found.votes()
    finding = [name for name in found.names if found.of(name).dims]
    said = [
        f"{len(finding)} of {len(found.names)} definitions find a dimension, {len(votes)} of {found.hidden_size:,} in all."
    ]
    if votes:
        first, by = next(iter(votes.items()))
        said.append(f"Dimension {first} is found by {len(by)}.")
    values = found.agreement()
    places = [i for i, name in enumerate(found.names) if name in finding]
    if pairs := [values[i, j] for i in places for j in places if j < i]:
        said.append(f"The median Jaccard index of two of those definitions is {np.median(pairs):.2f}.")
    for condition in found.conditions[1:]:
        still = [name for name in found.names if found.of(name, condition).dims]
        said.append(f"Under {condition}, {', '.join(still) or 'none'} still find{'s' if len(still) < 2 else ''} any.")
    return " ".join(said)


def _agreement(found: Detectors) -> Spec:
    values = found.agreement()
    names = [name for name in found.names if found.of(name).dims]
    at = {name: i for i, name in enumerate(found.names)}
    cells = []
    for a in names:
        for b in names:
            jaccard = float(values[at[a], at[b]])
            cell = {
                "one": a,
                "other": b,
                "jaccard": round_to(jaccard, 3),
                "said": f"{jaccard:.2f}",
                "dark": jaccard > DARK,
            }
            cells.append(cell | {"p": round_to(found.shared_by_chance(a, b), 2)})
    tooltip = [field("one", "definition", "nominal"), field("other", "and", "nominal"), field("jaccard", "Jaccard"),
               field("p", "chance of as many in common")]  # fmt: skip
    x, y = _names("other", names, ACROSS | {"orient": "top"}), _names("one", names, DOWN)
    return _panel(
        "Agreement of definitions that find any (Jaccard index of their dimensions, pooled over layers)",
        max(1, len(names)) * CELL,
        cells,
        {"x": x, "y": y, "opacity": _strength("jaccard", 1.0), "tooltip": tooltip},
        {"x": x, "y": y, "text": field("said", "", "nominal"), "color": _on_dark()},
    )


def _dimensions(found: Detectors) -> Spec:
    dims = [str(dim) for dim in list(found.votes())[:DIMS]]
    cells = []
    for name in found.names:
        one = found.of(name)
        count = {dim: sum(dim in at for at in (one.layers or {}).values()) for dim in one.dims}
        cells += [
            {
                "dim": str(dim),
                "rule": name,
                "layers": count[dim],
                "said": str(count[dim]),
                "dark": count[dim] > DARK * len(found.layers),
            }
            for dim in one.dims
            if str(dim) in dims
        ]
    left = len(found.votes()) - len(dims)
    x, y = _names("rule", list(found.names), ACROSS), _names("dim", dims, DOWN, "dimension")
    tooltip = [field("dim", "dimension", "nominal"), field("rule", "definition", "nominal"), field("layers", "layers")]
    return _panel(
        "Dimensions found, and in how many layers" + (f" (of most definitions; {left} more are found)" if left else ""),
        max(1, len(dims)) * CELL,
        cells,
        {"x": x, "y": y, "opacity": _strength("layers", len(found.layers)), "tooltip": tooltip},
        {"x": x, "y": y, "text": field("said", "", "nominal"), "color": _on_dark()},
        DIM_COLOURS[1],
    )


def _layers(found: Detectors) -> Spec:
    cells = [
        {"rule": name, "layer": layer, "size": math.log1p(len(dims)), "n": len(dims), "which": _few(dims)}
        for name in found.names
        for layer, dims in (found.of(name).layers or {}).items()
    ]
    top = _shaded(cells)
    short = "datum.value == 'embeddings' ? 'emb.' : datum.value == 'final norm' ? 'norm' : datum.value"
    x = _names(
        "layer", list(found.layers), NO_ANGLE | {"labelExpr": short, "labelOverlap": True}, "layer (blocks from 0)"
    )
    y = _names("rule", list(found.names), DOWN)
    tooltip = [field("rule", "definition", "nominal"), field("layer", "layer", "nominal"), field("n", "dimensions"),
               field("which", "which", "nominal")]  # fmt: skip
    encoding = {"x": x, "y": y, "opacity": _strength("size", top), "tooltip": tooltip}
    text = {"x": x, "y": y, "text": field("n", "", "nominal"), "color": _on_dark()}
    return _panel("How many, layer by layer", len(found.names) * CELL, cells, encoding, text, DIM_COLOURS[2])


def _nulls(found: Detectors) -> Spec:
    cells = []
    for one in found.found:
        said = str(len(one.dims)) if one.applies else "–"
        size = math.log1p(len(one.dims)) if one.applies else 0.0
        cells.append(
            {"rule": one.definition, "condition": one.condition, "size": size, "said": said, "which": _which(one)}
        )
    top = _shaded(cells)
    x = _names("condition", list(found.conditions), NO_ANGLE)
    y = _names("rule", list(found.names), DOWN)
    tooltip = [field("rule", "definition", "nominal"), field("condition", "in", "nominal"),
               field("said", "dimensions", "nominal"),
               field("which", "which", "nominal")]  # fmt: skip
    encoding = {"x": x, "y": y, "opacity": _strength("size", top), "tooltip": tooltip}
    text = {"x": x, "y": y, "text": field("said", "", "nominal"), "color": _on_dark()}
    title = "How many in the model and in nulls (–: does not apply)"
    return _panel(title, len(found.names) * CELL, cells, encoding, text, MUTED)


def _panel(
    title: str, height: int, cells: list[dict[str, Any]], rect: Spec, text: Spec, colour: str = DIM_COLOURS[0]
) -> Spec:
    return {
        "title": {"text": title, "anchor": "start", "color": INK, "fontSize": 13},
        "width": WIDTH,
        "height": height,
        "data": {"values": cells},
        "layer": [
            {"mark": {"type": "rect", "color": colour, "stroke": SURFACE, "strokeWidth": 1}, "encoding": rect},
            {"mark": {"type": "text", "fontSize": 10.5}, "encoding": text},
        ],
    }


def _names(key: str, names: list[str], axis: Spec, title: str | None = None) -> Spec:
    return field(key, title or "", "nominal", sort=None, scale={"domain": names}, axis=axis)


def _strength(key: str, top: float) -> Spec:
    return {"field": key, "type": "quantitative", "scale": {"domain": [0, top], "range": [0.06, 0.95]}, "legend": None}


def _shaded(cells: list[dict[str, Any]]) -> float:
    """The largest "size"; cells near it are marked, for their text to be light."""
    top = max((float(cell["size"]) for cell in cells), default=0.0) or 1.0
    for cell in cells:
        cell["dark"] = cell["size"] > DARK * top
    return top


def _on_dark() -> Spec:
    return {"condition": {"test": "datum.dark", "value": SURFACE}, "value": INK}


def _which(found: Found) -> str:
    return _few(found.dims) if found.applies else found.why_not


def _few(dims: tuple[int, ...]) -> str:
    more = f" and {len(dims) - 12} more" if len(dims) > 12 else ""
    return (", ".join(map(str, dims[:12])) or "none") + more
