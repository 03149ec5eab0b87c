"""Pictures of hidden states, layer by layer, for reports and papers.

average_vectors(stack, named)                # mean of each named dimension against all others
largest_values(stack, named)                 # max |h| by layer, with its token
extreme_shares(stack, named)                 # Luo et al.: share of tokens whose smallest / largest entry it is
vector_panels(stack, named)                  # a panel for each layer, as in Luo et al. (2021), Figures 1, 2 and 7 to 10
token_vectors(passage, named)                # one input's tokens, after Kovaleva et al.'s Figures 1 and 3

Token vectors drawn as lines, one a token, outliers marked, after figures 1 and 3 of Kovaleva et al. (2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.detection.observed import Passage, StackObservation
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    BAND,
    FAINT,
    MUTED,
    PLAIN_NUMBER,
    Chart,
    Looks,
    Spec,
    chart,
    drawable,
    field,
    label,
    log_ticks,
    looks,
    place,
    round_to,
    rounded,
    symmetric,
    visible,
)
from outlierlens.view.charts.draw import composed, grid, heading, inked_dims, names_above, names_at_ends, panel
from outlierlens.view.section import number

WIDTH, HEIGHT = 252, 110  # pixels of a panel
PER_ROW = 3
NUMBERED = 2  # lowest and highest averages of a panel
MAX_STICKS = 1100  # dimensions drawn in a panel; beyond it the smallest are left out


def average_vectors(stack: StackObservation, named: Sequence[int], *, prefix: str = "") -> Chart:
    """Mean of each named dimension by layer, over a band that holds all other dimensions."""
    statistics = stack.view("all")
    dims, mean = np.array(stack.dims), drawable(statistics.mean)  # [layer, column]
    shown = looks(named, dims)
    others = mean[:, ~np.isin(dims, list(shown))]
    band = [
        {"layer": layer, "row": i, "low": round_to(row.min()), "high": round_to(row.max())}
        | {"p5": round_to(np.percentile(row, 5)), "p95": round_to(np.percentile(row, 95))}
        for i, (layer, row) in enumerate(zip(stack.layers, others, strict=True))
        if row.size
    ]
    std, largest = drawable(statistics.std), drawable(statistics.abs_max)
    marks = [
        {"layer": layer, "name": label(dim), "v": round_to(mean[i, c]), "std": round_to(std[i, c])}
        | {"max": round_to(largest[i, c])}
        for dim in shown
        for c in np.flatnonzero(dims == dim).tolist()
        for i, layer in enumerate(stack.layers)
    ]
    values = np.array([v for row in band for v in (row["low"], row["high"])] + [m["v"] for m in marks], dtype=float)
    scale = symmetric(values)
    x = draw.layer_axis(stack.layers)
    y = scale.encoding("v", "mean over tokens")
    layers: list[Spec] = [
        draw.area(band, x=x, **draw.between(low, high, y=y), color=BAND, opacity=opacity, line=False)
        for low, high, opacity in (("low", "high", 0.55), ("p5", "p95", 1.0))
    ]
    tooltip = draw.columns(layer="layer:O", name="dimension:N", v="mean", std="standard deviation", max="largest |h|")
    span = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    layers += dim_lines(marks, shown, x, y, tooltip, names_at_ends(marks, shown, x, y, span=span))
    farthest = [dim for dim in shown if _outside(mean, dims, dim, others) * 2 >= len(stack.layers)]
    reading = "The grey band holds the averages of all dimensions that are not named (dark: 5 to 95 %). "
    reading += (
        f"Outside the whole band in at least half of the layers: {', '.join(map(str, farthest))}."
        if farthest
        else "No named dimension lies outside the whole band in half of the layers."
    )
    return chart(
        name=f"{prefix}average-vectors",
        title="Average vector, layer by layer",
        reading=reading,
        layers=layers,
        height=300,
        columns=("layer", *(label(dim) for dim in shown), "others, lowest", "others, highest"),
        rows=(
            [layer, *(round_to(mean[i, dims == dim][0]) for dim in shown)]
            + ([round_to(others[i].min()), round_to(others[i].max())] if others.size else [None, None])
            for i, layer in enumerate(stack.layers)
        ),
    )


def _outside(mean: np.ndarray, dims: np.ndarray, dim: int, others: np.ndarray) -> int:
    if not others.size:
        return 0
    values = mean[:, dims == dim][:, 0]
    return int(((values < others.min(axis=1)) | (values > others.max(axis=1))).sum())


def dim_lines(marks: list, shown: Looks, x: Spec, y: Spec, tooltip: list[Spec], ends: list[Spec]) -> list[Spec]:
    """A line and marks for every named dimension, in its colour and shape, or in ink with its number at the end (`ends`)."""
    if not shown:
        return []
    return [
        draw.line(marks, x=x, y=y, color=draw.dim_colour(shown), strokeWidth=1.6),
        draw.points(marks, x=x, y=y, **draw.dim_look(shown), tooltip=tooltip, size=55),
        *ends,
    ]


def largest_values(stack: StackObservation, named: Sequence[int], *, prefix: str = "") -> Chart:
    """Largest |h| by layer of the named dimensions and of any other, with token; median |h| below."""
    statistics = stack.view("all")
    dims, largest = np.array(stack.dims), drawable(statistics.abs_max)
    shown = looks(named, dims)
    rest = np.where(np.isin(dims, list(shown))[None], 0.0, largest)
    median = drawable(statistics.median_abs)

    def at(i: int, column: int) -> Spec:
        token = visible(statistics.abs_max_token[i][column])
        where = {
            "position": int(statistics.abs_max_position[i, column]),
            "text": int(statistics.abs_max_text[i, column]),
        }
        value = {"v": round_to(largest[i, column]), "median": round_to(median[i])}
        return {"layer": stack.layers[i], "dim": int(dims[column]), "token": token} | value | where

    marks = [
        at(i, c) | {"name": label(dim)}
        for dim in shown
        for c in np.flatnonzero(dims == dim).tolist()
        for i in range(len(stack.layers))
        if largest[i, c] > 0
    ]
    others = [at(i, int(row.argmax())) for i, row in enumerate(rest) if row.max() > 0]
    medians = [
        {"layer": layer, "v": round_to(m)} for layer, m in zip(stack.layers, median.tolist(), strict=True) if m > 0
    ]
    x = draw.layer_axis(stack.layers)
    everything = np.array([r["v"] for r in marks + others + medians] or [1.0], dtype=float)
    span = float(everything.min()), float(everything.max())
    axis = {"values": log_ticks(*span), "labelExpr": PLAIN_NUMBER}
    y = field("v", "|h| (log scale)", scale={"type": "log", "nice": False, "padding": 8}, axis=axis)
    what = draw.columns(
        layer="layer:O", dim="dimension", v="largest |h|", token="token:N", position="position", text="text",
        median="median |h| of the layer",
    )  # fmt: skip
    layers: list[Spec] = [
        *_plain_line(medians, x, y, draw.columns(layer="layer:O", v="median |h|"), dash=[2, 3]),
        *_plain_line(others, x, y, what, dash=[6, 3]),
        *dim_lines(marks, shown, x, y, what, names_at_ends(marks, shown, x, y, span=span)),
    ]
    layers += [
        draw.text([rows[len(rows) // 2] | {"says": text}], "says", x=x, y=y, dy=-9, color=MUTED, fontSize=12)
        for text, rows in (("largest of the others", others), ("median of all", medians))
        if rows
    ]
    peak = max(marks + others, key=lambda r: r["v"], default=None)
    reading = (
        "Lines: the largest |h| in each layer; dashes: the largest of all other dimensions; dots: the median |h|. "
    )
    if peak is not None:
        i = stack.layers.index(peak["layer"])
        ratio = f", {number(peak['v'] / median[i])} × the layer's median" if median[i] > 0 else ""
        reading += (
            f"The peak is {number(peak['v'])} in dimension {peak['dim']} after {place(peak['layer'])}, "
            f"at the token “{peak['token']}”, position {peak['position']}{ratio}."
        )
    return chart(
        name=f"{prefix}largest-values",
        title="Largest hidden value, layer by layer",
        reading=reading,
        layers=layers,
        height=300,
        **what.table(sorted(marks + others, key=lambda row: -row["v"])),
    )


def _plain_line(rows: list, x: Spec, y: Spec, tooltip: list[Spec], *, dash: list[int]) -> list[Spec]:
    encoding: Spec = {"x": x, "y": y}
    return [
        draw.line(rows, **encoding, color=MUTED, strokeDash=dash, strokeWidth=1.4),
        draw.circle(rows, **encoding, tooltip=tooltip, color=MUTED, size=40, opacity=0.01),
    ]


def extreme_shares(stack: StackObservation, named: Sequence[int], *, prefix: str = "") -> Chart:
    """Share of token vectors whose smallest or largest entry a dimension is (Luo et al. 2021, section 2), by layer."""
    statistics = stack.view("all")
    dims = np.array(stack.dims)
    shares = {"smallest entry": drawable(statistics.argmin_share), "largest entry": drawable(statistics.argmax_share)}
    shown = looks(named, dims)
    rows: list[Spec] = [
        {"layer": layer, "name": label(dim), "share": round_to(values[i, c]), "end": end}
        for end, values in shares.items()
        for dim in shown
        for c in np.flatnonzero(dims == dim).tolist()
        if values[:, c].max() >= 0.01
        for i, layer in enumerate(stack.layers)
    ]
    rest = {end: np.where(np.isin(dims, list(shown))[None], 0.0, values) for end, values in shares.items()}
    others = [
        {"layer": layer, "share": round_to(max(r[i].max() for r in rest.values()))}
        for i, layer in enumerate(stack.layers)
    ]
    x = draw.layer_axis(stack.layers)
    y = field("share", "share of token vectors", scale={"domain": [0, 1]}, axis={"format": "%", "tickCount": 5})
    tooltip = draw.columns(
        layer="layer:O", name="dimension:N", end="is the:N", share=field("share", "of token vectors", format=".1%")
    )
    dashes = {"largest entry": [1, 0], "smallest entry": [5, 3], "any other, the most": [2, 3]}
    dash = draw.by("end", dashes, symbolType="stroke", symbolStrokeWidth=2)
    layers = _plain_line(others, x, y, [tooltip[0], field("share", "most of any other", format=".1%")], dash=[2, 3])
    drawn = {dim: place for dim, place in shown.items() if any(row["name"] == label(dim) for row in rows)}
    lines = dim_lines(rows, drawn, x, y, tooltip, names_at_ends(rows, drawn, x, y, by=("end",)))
    if lines:
        lines[0]["encoding"]["strokeDash"] = dash
        lines[1]["encoding"]["detail"] = draw.nominal("end")
    best = max(rows, key=lambda r: r["share"], default=None)
    reading = "How often a dimension is the smallest (dashed) or largest (solid) entry of a token's vector; "
    reading += "dotted: the most frequent of all other dimensions. "
    if best is None:
        reading += "No named dimension is an extreme of 1 % of the token vectors in any layer."
    else:
        reading += f"At most: {best['name'].removeprefix('dim ')} is the {best['end']} of {best['share']:.1%} "
        reading += f"of the token vectors after {place(best['layer'])}."
    return chart(
        name=f"{prefix}extreme-shares",
        title="Which dimension is the smallest or largest entry",
        reading=reading,
        layers=layers + lines,
        height=260,
        **tooltip.table(sorted(rows, key=lambda row: -row["share"])),
    )


def vector_panels(stack: StackObservation, named: Sequence[int], *, prefix: str = "") -> Chart:
    """Mean over tokens of every dimension (across), a panel per layer, on one scale.

    `named` are the dimensions with a name, the strongest first; in each panel the two lowest and highest averages are numbered.
    """
    mean = drawable(stack.view("all").mean)  # [layer, column]
    dims = np.array(stack.dims)
    shown = looks(named, dims)
    low, high = min(float(mean.min(initial=0.0)), 0.0), max(float(mean.max(initial=0.0)), 0.0)
    room = 0.16 * (high - low) or 1.0
    domain = (low - room, high + room)
    panels = [_panel(stack, row, mean[row], dims, shown, domain) for row in range(len(stack.layers))]
    inks = " or in ink" if inked_dims(shown) else ""
    reading = (
        f"Mean over tokens of every dimension, a panel per layer, all on one scale; coloured{inks}: the named dimensions; "
        "numbered: the lowest and highest averages."
    )
    numbers = [
        [stack.layers[row], end, rank + 1, int(dims[column]), round_to(mean[row, column])]
        for row in range(len(stack.layers))
        for end, order in (("lowest", np.argsort(mean[row])), ("highest", np.argsort(-mean[row])))
        for rank, column in enumerate(order[:3].tolist())
    ]
    return composed(
        name=f"{prefix}vector-panels",
        title="Average vector of every layer",
        reading=reading,
        body=grid(panels, PER_ROW, across=22, down=14),
        columns=("layer", "end", "place", "dimension", "mean"),
        rows=numbers,
    )


def _apart(order: np.ndarray, dims: np.ndarray, width: int, n: int) -> list[int]:
    """The first `n` columns of an order, without those whose number would run into that of an earlier one."""
    chosen: list[int] = []
    for column in order[:n].tolist():
        if all(abs(int(dims[column]) - int(dims[other])) > 0.1 * width for other in chosen):
            chosen.append(column)
    return chosen


def _panel(
    stack: StackObservation,
    row: int,
    mean: np.ndarray,
    dims: np.ndarray,
    shown: Looks,
    domain: tuple[float, float],
) -> Spec:
    left = row % PER_ROW == 0
    scale = {"domain": [0, stack.hidden_size], "nice": False}
    x = field("dim", None, scale=scale, axis={"grid": False, "tickCount": 4})
    scale = {"domain": [round_to(end) for end in domain], "nice": False}
    axis = {"tickCount": 4, "labels": left, "ticks": left, "domain": left}
    y = field("mean", "mean" if left else None, scale=scale, axis=axis)
    ends = [
        *_apart(np.argsort(mean), dims, stack.hidden_size, NUMBERED),
        *_apart(np.argsort(-mean), dims, stack.hidden_size, NUMBERED),
    ]
    for dim in inked_dims(shown):  # theirs too, where there is room
        column = int(np.flatnonzero(dims == dim)[0])
        beside = [other for other in ends if (mean[other] < 0) == (mean[column] < 0)]
        if all(abs(dim - int(dims[other])) > 0.1 * stack.hidden_size for other in beside):
            ends.append(column)
    drawn = np.sort(np.argsort(-np.abs(mean))[:MAX_STICKS])
    plain = [
        {"dim": int(dims[column]), "mean": round_to(mean[column], 3)}
        for column in drawn.tolist()
        if int(dims[column]) not in shown
    ]
    marked = [
        {"dim": dim, "mean": round_to(mean[column], 3), "name": label(dim)}
        for dim in shown
        for column in np.flatnonzero(dims == dim).tolist()
    ]
    numbers = [
        {"dim": int(dims[column]), "mean": round_to(mean[column], 3), "says": str(dims[column])} for column in ends
    ]
    tooltip = draw.columns(dim="dimension", mean="mean")
    zero = {"datum": 0}
    layers: list[Spec] = [
        draw.rule(plain, x=x, y=y, y2=zero, tooltip=tooltip, color=FAINT, strokeWidth=0.8),
        draw.level(0, y=y, color=BAND),
    ]
    if marked:
        colour = draw.dim_strokes(shown)
        layers.append(draw.rule(marked, x=x, y=y, y2=zero, color=colour, tooltip=tooltip, strokeWidth=2.2))
    for below in (True, False):
        mine = [number for number in numbers if (float(number["mean"] or 0.0) < 0) == below]
        if mine:
            layers.append(draw.text(mine, "says", x=x, y=y, dy=7 if below else -7, fontSize=10.5, clip=False))
    name = stack.layers[row]
    title = heading(name if name == "embeddings" else f"layer {name}", fontSize=12.5, offset=4)
    return panel(layers, WIDTH, HEIGHT, title)


def token_vectors(passage: Passage, named: Sequence[int], *, layer: str | None = None, prefix: str = "") -> Chart:
    """Hidden values of each token by dimension at one layer (the middle one, unless given)."""
    row = len(passage.layers) // 2 if layer is None else passage.layers.index(layer)
    tokens = [visible(token) for token in passage.tokens[:MAX_TOKENS]]
    where = place(passage.layers[row])
    words = Words(
        f"{prefix}token-vectors",
        f"Token vectors of one input after {where}",
        f"one of {len(tokens)} tokens of one input after {where}",
    )
    return token_lines(drawable(passage.states[row, : len(tokens)]), np.array(passage.dims), tokens, named, words)


# --- token lines -----------------------------------------------------------------------------------------------------


MAX_TOKENS = 24


MAX_COLUMNS = 1024


@dataclass(frozen=True)
class Words:
    """File name and title of a picture, and what a line of it is."""

    name: str
    title: str
    line: str


def token_lines(states: np.ndarray, dims: np.ndarray, tokens: list[str], named: Sequence[int], words: Words) -> Chart:
    """A line per token through `states` [token, column]."""
    if len(dims) > MAX_COLUMNS:
        size = np.abs(states).max(axis=0) + np.where(np.isin(dims, named), np.inf, 0)
        kept = np.sort(np.argsort(-size)[:MAX_COLUMNS])
        states, dims = states[:, kept], dims[kept]
    shown = looks(named, dims)
    order = np.argsort(dims)
    states, dims = states[:, order], dims[order]
    scale = symmetric(states)
    x, y = draw.dim_axis(int(dims.max()) + 1, "d"), scale.encoding("v", "hidden value")
    lines = [
        {"t": t, "d": dims.tolist(), "v": [round_to(v, 3) for v in states[t].tolist()]} for t in range(len(tokens))
    ]
    spans = [
        {"d": int(dim), "at": tokens[int(np.abs(states[:, i]).argmax())]}
        | rounded(3, low=states[:, i].min(), high=states[:, i].max())
        for i, dim in enumerate(dims.tolist())
    ]
    marks = [
        {"d": dim, "v": round_to(states[t, i]), "token": tokens[t], "position": t, "name": label(dim)}
        for dim in shown
        for i in np.flatnonzero(dims == dim).tolist()
        for t in range(len(tokens))
    ]
    columns = {dim: int(np.flatnonzero(dims == dim)[0]) for dim in shown}
    rest = np.abs(np.where(np.isin(dims, list(shown))[None], 0.0, states))
    reading = f"Each grey line is {words.line}; marks are the named dimensions. "
    reading += _largest({dim: float(np.abs(states[:, i]).max()) for dim, i in columns.items()})
    reading += f"{number(float(rest.max()))} in all others (dimension {int(dims[rest.max(axis=0).argmax()])})."
    return chart(
        name=words.name,
        title=words.title,
        reading=reading,
        layers=_token_layers(x, y, lines, spans, marks, shown),
        height=340,
        columns=("position", "token", *(label(dim) for dim in shown), "largest other |h|", "at dimension"),
        rows=(
            [
                t,
                token,
                *(round_to(values[i]) for i in columns.values()),
                round_to(other.max()),
                int(dims[other.argmax()]),
            ]
            for t, (token, values, other) in enumerate(zip(tokens, states, rest, strict=True))
        ),
    )


def _largest(values: dict[int, float]) -> str:
    listed = ", ".join(f"{number(value)} in {dim}" for dim, value in values.items())
    return f"Largest |value|: {listed}; " if listed else "Largest |value|: "


def _token_layers(x: Spec, y: Spec, lines: list, spans: list, marks: list, shown: Looks) -> list[Spec]:
    unpacked = [{"flatten": ["d", "v"]}]
    faint = {"strokeWidth": 0.8, "opacity": 0.45, "color": FAINT, "strokeJoin": "round"}
    spanned = draw.columns(d="dimension", low="lowest", high="highest", at="largest at:N")
    layers: list[Spec] = [
        draw.line(lines, unpacked, x=x, y=y, detail=draw.nominal("t"), **faint),
        # Invisible full-height rules answer to the pointer over every dimension.
        draw.rule(spans, x=x, tooltip=spanned, opacity=0, strokeWidth=3),
    ]
    if not shown:
        return layers
    what = draw.columns(d="dimension", token="token:N", position="position", v="value")
    look = draw.dim_look(shown)
    layers.append(draw.points(marks, x=x, y=y, **look, tooltip=what, size=46, opacity=0.9))
    return layers + names_above(inked_dims(shown), int(x["scale"]["domain"][1]), x)
