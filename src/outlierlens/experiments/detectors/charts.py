"""Every definition of an outlier dimension side by side: `detectors(found)`.

agreement       how far each two definitions find the same dimensions (Jaccard), pooled over layers
the dimensions  which definitions find which, and in how many layers
by layer        how many dimensions each finds in each layer
nulls           how many it finds in the model and next to nothing: other weights, another basis
"""

import math
from typing import Any

import numpy as np

from outlierlens.experiments.detectors.result import Detectors, Found
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, field, round_to
from outlierlens.view.charts.forms import heat, strength
from outlierlens.view.charts.palette import DIM_COLOURS, INK, MUTED, SURFACE
from outlierlens.view.charts.panels import above, composed, panel

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
    rows = [
        (one.definition, one.condition, len(one.dims) if one.applies else None, _listed(one)) for one in found.found
    ]
    return composed(
        name=name,
        title=f"Which dimensions are outliers, by {len(found.names)} definitions: {found.provenance.model}",
        reading=reading(found),
        body=above(panels, 26, apart=("opacity", "x", "y", "color")),
        columns=("definition", "condition", "dimensions", "which"),
        rows=rows,
    )


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


def _listed(found: Found) -> str:
    return ", ".join(map(str, found.dims)) or found.why_not


def _agreement(found: Detectors) -> Spec:
    values = found.agreement()
    names = [name for name in found.names if found.of(name).dims]
    at = {name: i for i, name in enumerate(found.names)}
    cells = [
        {"one": a, "other": b, "jaccard": round_to(jaccard, 3), "said": f"{jaccard:.2f}", "dark": jaccard > DARK}
        | {"p": round_to(found.shared_by_chance(a, b), 2)}
        for a in names
        for b in names
        for jaccard in (float(values[at[a], at[b]]),)
    ]
    what = draw.columns(one="definition:N", other="and:N", jaccard="Jaccard", p="chance of as many in common")
    x, y = _names("other", names, ACROSS | {"orient": "top"}), _names("one", names, DOWN)
    return _panel(
        "Agreement of definitions that find any (Jaccard index of their dimensions, pooled over layers)",
        max(1, len(names)) * CELL,
        cells,
        heat(None, x, y, _strength("jaccard", 1.0), what, color=DIM_COLOURS[0]),
    )


def _dimensions(found: Detectors) -> Spec:
    dims = [str(dim) for dim in list(found.votes())[:DIMS]]
    cells = []
    for name in found.names:
        one = found.of(name)
        count = {dim: sum(dim in at for at in (one.layers or {}).values()) for dim in one.dims}
        cells += [
            {"dim": str(dim), "rule": name, "layers": count[dim], "said": str(count[dim])}
            | {"dark": count[dim] > DARK * len(found.layers)}
            for dim in one.dims
            if str(dim) in dims
        ]
    left = len(found.votes()) - len(dims)
    x, y = _names("rule", list(found.names), ACROSS), _names("dim", dims, DOWN, "dimension")
    what = draw.columns(dim="dimension:N", rule="definition:N", layers="layers")
    return _panel(
        "Dimensions found, and in how many layers" + (f" (of most definitions; {left} more are found)" if left else ""),
        max(1, len(dims)) * CELL,
        cells,
        heat(None, x, y, _strength("layers", len(found.layers)), what, color=DIM_COLOURS[1]),
    )


def _layers(found: Detectors) -> Spec:
    cells = [
        {"rule": name, "layer": layer, "size": math.log1p(len(dims)), "n": len(dims), "which": _few(dims)}
        for name in found.names
        for layer, dims in (found.of(name).layers or {}).items()
    ]
    top = _shaded(cells)
    short = "datum.value == 'embeddings' ? 'emb.' : datum.value == 'final norm' ? 'norm' : datum.value"
    axis = NO_ANGLE | {"labelExpr": short, "labelOverlap": True}
    x = _names("layer", list(found.layers), axis, "layer (blocks from 0)")
    y = _names("rule", list(found.names), DOWN)
    what = draw.columns(rule="definition:N", layer="layer:N", n="dimensions", which="which:N")
    rect = heat(None, x, y, _strength("size", top), what, color=DIM_COLOURS[2])
    return _panel("How many, layer by layer", len(found.names) * CELL, cells, rect, "n")


def _nulls(found: Detectors) -> Spec:
    cells = []
    for one in found.found:
        said = str(len(one.dims)) if one.applies else "–"
        size = math.log1p(len(one.dims)) if one.applies else 0.0
        cell = {"rule": one.definition, "condition": one.condition, "size": size, "said": said}
        cells.append(cell | {"which": _few(one.dims) if one.applies else one.why_not})
    top = _shaded(cells)
    x = _names("condition", list(found.conditions), NO_ANGLE)
    y = _names("rule", list(found.names), DOWN)
    what = draw.columns(rule="definition:N", condition="in:N", said="dimensions:N", which="which:N")
    rect = heat(None, x, y, _strength("size", top), what, color=MUTED)
    return _panel("How many in the model and in nulls (–: does not apply)", len(found.names) * CELL, cells, rect)


def _panel(title: str, height: int, cells: list[Spec], rect: Spec, says: str = "said") -> Spec:
    """Cells with what they say on them, in light letters on dark ones."""
    rect["mark"] |= {"stroke": SURFACE, "strokeWidth": 1}
    on_dark = {"condition": {"test": "datum.dark", "value": SURFACE}, "value": INK}
    at = {key: rect["encoding"][key] for key in ("x", "y")}
    words = draw.text(None, says, **at, color=on_dark, fontSize=10.5)
    return panel([rect, words], WIDTH, height, title, data={"values": cells})


def _names(key: str, names: list[str], axis: Spec, title: str | None = None) -> Spec:
    return field(key, title or "", "nominal", sort=None, scale={"domain": names}, axis=axis)


def _strength(key: str, top: float) -> Spec:
    return strength(key, top, faintest=0.06, strongest=0.95)


def _shaded(cells: list[dict[str, Any]]) -> float:
    """The largest "size"; cells near it are marked, for their text to be light."""
    top = max((float(cell["size"]) for cell in cells), default=0.0) or 1.0
    for cell in cells:
        cell["dark"] = cell["size"] > DARK * top
    return top


def _few(dims: tuple[int, ...]) -> str:
    more = f" and {len(dims) - 12} more" if len(dims) > 12 else ""
    return (", ".join(map(str, dims[:12])) or "none") + more
