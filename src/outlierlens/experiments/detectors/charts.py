"""Every definition of an outlier dimension side by side: `detectors(found)`.

agreement       how far each two definitions find the same dimensions (Jaccard), pooled over layers
the dimensions  which definitions find which, and in how many layers
by layer        how many dimensions each finds in each layer
nulls           how many it finds in the model and next to nothing: other weights, another basis
γ               the length of the mean state over that of the standard deviations, by layer

Super weights: where the MLP's last linear spikes, and what single weights are for: `super_weights(found)`.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from outlierlens.detection.observe.charts import GAMMA
from outlierlens.errors import BadInput
from outlierlens.experiments.detectors.result import FINAL, ROTATED, Detectors, Found, SuperWeights
from outlierlens.statistics.means import interval_text
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    DIM_COLOURS,
    INK,
    MUTED,
    SURFACE,
    Chart,
    Spec,
    bar,
    begun,
    field,
    round_to,
    symmetric,
)
from outlierlens.view.charts.draw import above, composed, heat, interval_dots, lines, panel, strength
from outlierlens.view.section import number

WIDTH = 700
CELL = 26  # pixels
DIMS = 24  # dimensions that get a row
DARK = 0.6  # part of the strongest colour from which text on it is light
NO_ANGLE = {"labelAngle": 0, "grid": False, "ticks": False, "domain": False, "labelOverlap": False}
ACROSS = NO_ANGLE | {"labelAngle": -40, "labelLimit": 140}
DOWN = NO_ANGLE | {"labelLimit": 160}
HEIGHT, ROW = 230, 24  # of the panels of super weights
READ, WRITTEN, AFTER = "largest |input|", "largest |output|", "largest |output|, super weights removed"
LINES = {READ: (MUTED, "circle"), WRITTEN: (DIM_COLOURS[1], "square"), AFTER: (DIM_COLOURS[0], "diamond")}


def detectors(found: Detectors, *, name: str = "detectors") -> Chart:
    """The panels as one picture."""
    panels = [_agreement(found), _dimensions(found), _layers(found), _nulls(found), *_gammas(found)]
    rows = [
        (one.definition, one.condition, len(one.named) if one.applies else None, _listed(one)) for one in found.found
    ]
    return composed(
        name=name,
        title=f"Which {found.what}s are outliers, by {len(found.names)} definitions: {found.provenance.model}",
        reading=reading(found),
        body=above(panels, 26, apart=("opacity", "x", "y", "color", "shape")),
        columns=("definition", "condition", f"{found.what}s", "which"),
        rows=rows,
    )


def reading(found: Detectors) -> str:
    """What one sees, in sentences."""
    votes = found.votes()
    finding = [name for name in found.names if found.of(name).named]
    what = found.what
    positions = found.hidden_size * (len(found.layers) if found.by_neuron else 1)
    said = [f"{len(finding)} of {len(found.names)} definitions find a {what}, {len(votes)} of {positions:,} in all."]
    if votes:
        first, by = next(iter(votes.items()))
        said.append(f"{what.capitalize()} {first} is found by {len(by)}.")
    values = found.agreement()
    places = [i for i, name in enumerate(found.names) if name in finding]
    if pairs := [values[i, j] for i in places for j in places if j < i]:
        said.append(f"The median Jaccard index of two of those definitions is {np.median(pairs):.2f}.")
    for condition in found.conditions[1:]:
        still = [name for name in found.names if found.of(name, condition).named]
        said.append(f"Under {condition}, {', '.join(still) or 'none'} still find{'s' if len(still) < 2 else ''} any.")
    return " ".join(said)


def _listed(found: Found) -> str:
    return ", ".join(map(str, found.named)) or found.why_not


def _agreement(found: Detectors) -> Spec:
    values = found.agreement()
    names = [name for name in found.names if found.of(name).named]
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
        f"Agreement of definitions that find any (Jaccard index of their {found.what}s, pooled over layers)",
        max(1, len(names)) * CELL,
        cells,
        heat(None, x, y, _strength("jaccard", 1.0), what, color=DIM_COLOURS[0]),
    )


def _dimensions(found: Detectors) -> Spec:
    dims = [str(dim) for dim in list(found.votes())[:DIMS]]
    cells = []
    for name in found.names:
        one = found.of(name)
        count = {dim: sum(dim in at for at in (one.layers or {}).values()) or 1 for dim in one.named}
        cells += [
            {"dim": str(dim), "rule": name, "layers": count[dim], "said": str(count[dim])}
            | {"dark": count[dim] > DARK * len(found.layers)}
            for dim in one.named
            if str(dim) in dims
        ]
    left = len(found.votes()) - len(dims)
    x, y = _names("rule", list(found.names), ACROSS), _names("dim", dims, DOWN, found.what)
    what = draw.columns(dim=f"{found.what}:N", rule="definition:N", layers="layers")
    return _panel(
        f"{found.what.capitalize()}s found, and in how many layers"
        + (f" (of most definitions; {left} more are found)" if left else ""),
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
    what = draw.columns(rule="definition:N", layer="layer:N", n=f"{found.what}s", which="which:N")
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
    what = draw.columns(rule="definition:N", condition="in:N", said=f"{found.what}s:N", which="which:N")
    rect = heat(None, x, y, _strength("size", top), what, color=MUTED)
    return _panel("How many in the model and in nulls (–: does not apply)", len(found.names) * CELL, cells, rect)


def _gammas(found: Detectors) -> Iterator[Spec]:
    """γ by layer, in the model and with other weights; another basis has the model's own."""
    layers = [layer for layer in found.layers if layer != FINAL]
    rows = [
        {"layer": layer, "condition": one.condition, "gamma": round_to(float(gamma))}
        for one in found.values
        if one.condition != ROTATED
        for layer, gamma in zip(one.layers, one.gamma, strict=True)
        if layer in layers and math.isfinite(gamma)
    ]
    if rows:
        look = draw.both("condition", list(dict.fromkeys(str(row["condition"]) for row in rows)))
        what = draw.columns(layer="layer:O", condition="in:N", gamma="γ")
        drawn = lines(rows, draw.layer_axis(layers), field("gamma", title=GAMMA), look, what)
        yield panel(drawn, WIDTH, HEIGHT, "How far states lie from 0, for their spread")


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


def super_weights(found: Detectors, *, name: str = "super-weights") -> Chart:
    """Spikes by layer, and below them the tests where they were made.

    Raises:
        BadInput: no search was made.
    """
    searched = found.super_weights
    if searched is None:
        raise BadInput(
            f"{found.provenance.model}: no search for super weights was made: {found.of('super-weight').why_not}"
        )
    panels = [_spikes(searched)]
    if searched.trials:
        panels.append(_trials(searched))
    rows = tuple(
        (one.name, round_to(one.value), round_to(one.change), round_to(one.low), round_to(one.high))
        for one in searched.trials
    ) or tuple(
        (one.place, round_to(one.weight), round_to(one.read), round_to(one.written), round_to(one.share))
        for one in searched.weights
    )
    columns = (
        ("weights", "value", "change", "95 % from", "to")
        if searched.trials
        else ("weight", "value", "input", "output", "share")
    )
    return composed(
        name=name,
        title=f"Single weights behind the largest activations: {found.provenance.model}",
        reading=weights_reading(searched),
        body=above(panels, 24, apart=("x", "y")),
        columns=columns,
        rows=rows,
    )


def weights_reading(found: SuperWeights) -> str:
    """What one sees, in sentences."""
    if not found.weights:
        return (
            f"No super weight: {found.stopped}. The largest output of a last linear on the prompt is "
            f"{number(float(found.before.written.max()))}."
        )
    said = [
        f"{one.place}: weight {one.weight:.2f}, {'the largest' if one.rank == 1 else f'number {one.rank} by size'} of its "
        f"matrix, makes {one.share:.0%} of an output of {number(one.written)}; without it the layer's largest is "
        f"{number(one.remaining)}."
        for one in found.weights[:4]
    ]
    if found.trials:
        zeroed, restored = found.trial("zeroed"), found.trial("restored")
        said.append(
            f"Without {'it' if len(found.weights) == 1 else 'them'} the {found.task} goes from "
            f"{number(found.trial('intact').value)} to {number(zeroed.value)} {found.unit} "
            f"({interval_text(zeroed.low, zeroed.high)}), with the activation put back to {number(restored.value)}."
        )
    return " ".join(said)


def _spikes(found: SuperWeights) -> Spec:
    drawn = {READ: found.before.read, WRITTEN: found.before.written, AFTER: found.after.written}
    if not found.weights:
        del drawn[AFTER]
    rows = [
        {"layer": layer, "line": line, "value": round_to(float(value))}
        for line, values in drawn.items()
        for layer, value in enumerate(values)
    ]
    places: dict[int, list[str]] = {}
    for one in found.weights:
        places.setdefault(one.layer, []).append(f"[{one.row}, {one.column}]")
    marks = [
        {"layer": layer, "value": round_to(float(found.before.written[layer])), "said": " ".join(said)}
        for layer, said in places.items()
    ]
    scale = symmetric(np.concatenate([*drawn.values(), [found.spike]]))
    x = field("layer", "layer (blocks from 0)", "ordinal", axis={"labelAngle": 0, "grid": False})
    y = field("value", ["last linear of the MLP,", "one prompt"], scale=scale.scale, axis=scale.axis)
    what = draw.columns(layer="layer:O", line="what:N", value="value")
    colour, shape = (draw.by("line", {line: LINES[line][i] for line in drawn}, labelLimit=320) for i in range(2))
    layers = [
        draw.level(found.spike, y=y, strokeDash=draw.DASHED),
        *lines(rows, x, y, (colour, shape), what, width=1.8, size=45),
        draw.text(marks, "said", x=x, y=y, dy=-12, color=INK, fontSize=11.5),
    ]
    return panel(layers, WIDTH, HEIGHT, "What the last linear of each MLP reads and writes")


def _trials(found: SuperWeights) -> Spec:
    shown = [one for one in found.trials if one.kind != "intact" and math.isfinite(one.change)]
    rows = [
        {"name": one.name, "change": round_to(one.change), "alarm": one.kind in ("zeroed", "restored")}
        | bar(one.low, one.high)
        for one in shown
    ]
    scale = symmetric(np.array([abs(one.change) for one in shown]))
    ends = [value for one in shown for value in (one.change, one.low, one.high) if math.isfinite(value)]
    if scale.log:
        scale.scale["domain"] = [min(0.0, round_to(min(ends)) or 0.0), round_to(1.3 * max(ends))]
    unit = f"{found.task if 'change' in found.task else f'change of the {found.task}'}, {found.unit}"
    x = field("change", begun(unit), scale=scale.scale | {"zero": True}, axis={"tickCount": 7} | scale.axis)
    names = {"domain": [one.name for one in shown]}
    y = field("name", "", "nominal", sort=None, scale=names, axis={"labelLimit": 160, "grid": True})
    colour = {"condition": {"test": "datum.alarm", "value": ALARM}, "value": INK}
    what = draw.columns(name="weights:N", change="change", **draw.ENDS)
    layers = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        *interval_dots(rows, x, y, what, color=colour, shape="circle", size=70),
    ]
    title = f"What they are for: {found.n_texts} texts, 95 % intervals over texts"
    return panel(layers, WIDTH, ROW * len(shown), title)
