"""A token's position from its hidden state, after Luo et al. (2021), Figures 5 and 11 to 15.

probe(found)                       # the three panels below as one picture, for a file
probe_accuracy(found)              # accuracy by layer: as the vectors are, clipped, trained again on clipped ones
probe_contributions(found)         # |w · v| by layer: the named dimensions, the mean of all, the highest other
probe_heat(found, "3")             # |w · v| by position and dimension, of one layer
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.experiments.probe.result import LayerProbe, PositionProbe
from outlierlens.statistics.means import interval_text
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    COLOURED,
    DIM_COLOURS,
    INK,
    MUTED,
    SHAPES,
    Chart,
    Spec,
    chart,
    field,
    label,
    place,
    round_to,
    rounded,
    strongest_first,
    symmetric,
)
from outlierlens.view.charts.draw import above, baseline, composed, heat, inner, strength, words_at_ends
from outlierlens.view.section import number

WIDTH = 760  # pixels of a panel of the picture with all three
HEIGHT = 250
ROW = 17  # pixels of a dimension in the heat map
MEAN, OTHER = "mean of all", "highest other"


@dataclass(frozen=True)
class Look:
    """How a line is drawn; `says` stands at its end where it is not in the legend."""

    colour: str
    shape: str
    dash: tuple[int, ...] = (1, 0)
    says: str = ""


AS_THEY_ARE, SAME, AGAIN, NEAR = "as they are", "clipped", "clipped, trained again", "as they are, within 1 position"
LINES = {
    AS_THEY_ARE: Look(INK, "circle"),
    NEAR: Look(MUTED, "triangle-up"),
    # Dashed: where clipping changes nothing, the line below still shows.
    SAME: Look(DIM_COLOURS[0], "diamond", (6, 6)),
    AGAIN: Look(DIM_COLOURS[1], "square", (2, 6)),
}


def probe(found: PositionProbe, layer: str | None = None, *, name: str = "probe") -> Chart:
    """Accuracy, contributions and the heat map of one layer, one below the other."""
    parts = [probe_accuracy(found), probe_contributions(found), probe_heat(found, layer)]
    panels = [inner(part, width=WIDTH) for part in parts]
    return composed(
        name=name,
        title=f"A token's position from its hidden state: {found.provenance.model}",
        reading=" ".join(part.reading for part in parts),
        body=above(panels, 22, apart=("color", "shape", "opacity", "strokeDash")),
        **parts[0].numbers,
    )


def probe_accuracy(found: PositionProbe, *, name: str = "probe-accuracy") -> Chart:
    """Share of tokens whose position the probe names, by layer, with its 95 % interval."""
    rows: list[dict[str, Any]] = []
    for one in found.layers:
        scores = {AS_THEY_ARE: one.raw, SAME: one.clipped, AGAIN: one.retrained}
        for line, score in scores.items():
            if score is not None:
                numbers = rounded(value=score.accuracy, low=score.low, high=score.high)
                rows.append({"layer": one.layer, "line": line} | numbers)
        rows.append({"layer": one.layer, "line": NEAR, "value": round_to(one.raw.within_one)})
    drawn = [line for line in LINES if any(row["line"] == line for row in rows)]
    x = _layers(found)
    y = field("value", "accuracy", scale={"domain": [0, 1], "nice": False}, axis={"format": "%", "tickCount": 6})
    intervals = [row for row in rows if row.get("low") is not None]
    layers: list[Spec] = [
        *baseline(found.majority_accuracy, f"always position {found.majority}", y=y),
        draw.rule(intervals, x=x, **draw.between(y=y), color=_of_lines(drawn, "colour"), strokeWidth=3.5),
        *_lines(rows, x, y, drawn),
    ]
    return chart(
        name=name,
        title=f"Accuracy of naming one of {found.n_positions} positions",
        reading=_accuracy_words(found),
        layers=layers,
        height=HEIGHT,
        columns=("layer", "accuracy", "95 % from", "to", "within 1", "clipped", "clipped, trained again"),
        rows=(
            [
                one.layer,
                *map(round_to, (one.raw.accuracy, one.raw.low, one.raw.high, one.raw.within_one)),
                *(None if score is None else round_to(score.accuracy) for score in (one.clipped, one.retrained)),
            ]
            for one in found.layers
        ),
    )


def probe_contributions(found: PositionProbe, *, name: str = "probe-contributions") -> Chart:
    """|w · v|, mean over tokens, by layer: the named dimensions, the mean of all and the highest other one."""
    most = {
        dim: max(part.value for one in found.layers for part in one.named if part.dim == dim) for dim in found.named
    }
    named = strongest_first(found.named, lambda dim: most[dim])
    inks = {label(dim): Look(INK, "circle", says=str(dim)) for dim in named[COLOURED:]}
    lines = {label(dim): Look(DIM_COLOURS[i], SHAPES[i]) for i, dim in enumerate(named[:COLOURED])}
    lines |= {OTHER: Look(INK, "circle", (4, 3) if inks else (1, 0)), MEAN: Look(MUTED, "triangle-down")}
    rows: list[dict[str, Any]] = []
    for one in found.layers:
        for part in one.named:
            rows.append(_row(one, label(part.dim), part.dim, part.value, part.rank))
        rows.append(_row(one, OTHER, one.other.dim, one.other.value, one.other.rank))
        rows.append({"layer": one.layer, "line": MEAN, "value": round_to(one.mean)})
    scale = symmetric(np.array([row["value"] or 0.0 for row in rows], dtype=float))
    y = field("value", "|w · v|", scale=scale.scale | ({} if scale.log else {"zero": True}), axis=scale.axis)
    what = draw.columns(layer="layer", line="what", dim="dimension", value="|w · v|", rank="rank")
    return chart(
        name=name,
        title="What single dimensions add to the probe's answer",
        reading=_contribution_words(found),
        layers=_lines(rows, _layers(found), y, [*lines, *inks], lines | inks),
        height=HEIGHT,
        **what.table(rows),
    )


def probe_heat(found: PositionProbe, layer: str | None = None, *, name: str = "probe-heat") -> Chart:
    """|w · v| of the largest contributors (down) at each position (across), in one layer.

    `layer` is the one in which a named dimension stands out most, unless given; raises BadInput with the layers there are.
    """
    one = found.at(_telling(found) if layer is None else layer)
    order = sorted(range(len(one.heat_dims)), key=lambda i: -one.contribution[one.heat_dims[i]])
    names = [f"{one.heat_dims[i]}{' (named)' if one.heat_dims[i] in found.named else ''}" for i in order]
    there = np.flatnonzero(found.n_at > 0).tolist()
    cells = [
        {"position": int(at), "end": int(at) + 1, "dim": names[place], "value": round_to(float(one.heat[at, i]), 3)}
        for place, i in enumerate(order)
        for at in there
    ]
    top = round_to(float(one.heat.max(initial=0.0)) or 1.0) or 1.0
    x = field(
        "position",
        "position in the text (counts special tokens)",
        scale={"domain": [0, found.n_positions], "nice": False},
        axis={"grid": False, "tickCount": 12},
    )
    y = field("dim", "dimension", "ordinal", sort=None, scale={"domain": names, "paddingInner": 0.08})
    legend: Spec = {
        "title": "|w · v|",
        "orient": "bottom",
        "symbolType": "square",
        "symbolFillColor": ALARM,
        "tickCount": 4,
    }
    shade = strength("value", top, **legend, columns=8)
    what = draw.columns(dim="dimension:N", position="position", value="|w · v|")
    return chart(
        name=name,
        title=f"By position and dimension, {place(one.layer)}",
        reading=_heat_words(found, one),
        layers=[heat(cells, x, y, shade, what, x2={"field": "end"}, color=ALARM)],
        height=ROW * len(names),
        columns=("dimension", "mean", "largest at a position", "that position"),
        rows=(
            [names[place], *map(round_to, (one.contribution[one.heat_dims[i]], line.max())), int(line.argmax())]
            for place, i in enumerate(order)
            for line in (one.heat[:, i],)
        ),
    )


def _layers(found: PositionProbe) -> Spec:
    return draw.layer_axis([one.layer for one in found.layers])


def _of_lines(drawn: Sequence[str], part: str, looks: dict[str, Look] = LINES) -> Spec:
    """Colour, shape or dash by line."""
    entries = [line for line in drawn if not looks[line].says]
    some = {"values": entries} if len(entries) < len(drawn) else {}
    return draw.by("line", {line: getattr(looks[line], part) for line in drawn}, labelLimit=320, **some)


def _lines(
    rows: list[dict[str, Any]], x: Spec, y: Spec, drawn: list[str], looks: dict[str, Look] = LINES
) -> list[Spec]:
    """A line with marks for each of `drawn`."""
    tooltip = draw.columns(line="line:N", layer="layer:N", value=str(y["title"]))
    look = {"color": _of_lines(drawn, "colour", looks), "shape": _of_lines(drawn, "shape", looks)}
    dash = _of_lines(drawn, "dash", looks) | {"legend": None}
    return [
        draw.line(rows, x=x, y=y, color=look["color"], strokeDash=dash, strokeWidth=1.8),
        draw.points(rows, x=x, y=y, tooltip=tooltip, **look, size=50),
        *words_at_ends(rows, {line: looks[line].says for line in drawn if looks[line].says}, x, y, ("line",)),
    ]


def _row(one: LayerProbe, line: str, dim: int, value: float, rank: int) -> dict[str, Any]:
    return {"layer": one.layer, "line": line, "dim": dim, "value": round_to(value), "rank": rank}


def _telling(found: PositionProbe) -> str:
    """The layer in which a named dimension contributes most over the mean; without any, the one that knows best."""

    def stands_out(one: LayerProbe) -> tuple[float, float]:
        most = max((part.value for part in one.named), default=0.0)
        return (most / one.mean if one.mean else 0.0, one.raw.accuracy)

    return max(found.layers, key=stands_out).layer


def _accuracy_words(found: PositionProbe) -> str:
    best = max(found.layers, key=lambda one: one.raw.accuracy)
    last = found.layers[-1]
    text = (
        f"A linear probe names the position of {best.raw.accuracy:.0%} of tokens from {place(best.layer)}, of "
        f"{last.raw.accuracy:.0%} from {place(last.layer)}; always naming the commonest gets {found.majority_accuracy:.0%}."
    )
    changes = [(one.layer, one.clipped_change) for one in found.layers if one.clipped_change is not None]
    if changes:
        layer, most = max(changes, key=lambda pair: abs(pair[1].value))
        text += (
            f" Clipping changes the accuracy of the same probe by {100 * most.value:+.1f} points at most ({place(layer)}; "
            f"95 % interval {interval_text(100 * most.low, 100 * most.high, '+.1f')})."
        )
    return text


def _contribution_words(found: PositionProbe) -> str:
    first = [one.layer for one in found.layers if one.largest.dim in found.named]
    row = "of the token's own position" if found.row == "gold" else "of the predicted position"
    text = f"Mean |w · v| over tokens, with the row of W {row}. "
    if not found.named:
        return text + "No dimension is named."
    if not first:
        return text + "A named dimension is the largest contributor in no layer."
    return text + f"A named dimension is the largest contributor in {', '.join(place(layer) for layer in first)}."


def _heat_words(found: PositionProbe, one: LayerProbe) -> str:
    i = one.heat_dims.index(one.largest.dim)
    at = int(one.heat[:, i].argmax())
    text = (
        f"In {place(one.layer)} dimension {one.largest.dim} adds most, {number(one.largest.value)} on average, and most of "
        f"all at position {at} ({number(float(one.heat[at, i]))})"
    )
    return text + f"; the mean of all dimensions is {number(one.mean)}."
