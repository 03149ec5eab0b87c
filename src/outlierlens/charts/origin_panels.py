"""Panels of the pictures in `charts.origin`: a histogram with marks, ranks by layer."""

from dataclasses import dataclass

import numpy as np

from outlierlens.charts.base import Spec, dim_colour, dim_shape, field, label, round_to
from outlierlens.charts.palette import BAND, FAINT, INK, MUTED, SURFACE
from outlierlens.origins import Histogram, NormOrigin, StackOrigin

PANEL_WIDTH, PANEL_HEIGHT = 390, 190  # pixels
BARS = 70
NAMES = {"token": "token embeddings", "position": "position embeddings", "segment": "segment embeddings"}


@dataclass(frozen=True)
class Panel:
    """A histogram over the dimensions, the value of each named dimension, and how many of all lie outside."""

    title: str
    subtitle: str
    axis: str
    histogram: Histogram
    values: dict[int, float]
    n_outside: int


def panels_of(stack: StackOrigin) -> list[Panel]:
    """A panel for each table and for scale and bias of the embedding norm."""
    panels = []
    for table in stack.tables:
        one_row = table.means is None
        title = NAMES.get(table.kind, f"{table.kind} embedding")
        rows = "one row" if one_row else f"mean over {table.n_read:,} rows"
        panels.append(
            Panel(
                title,
                f"{rows}, {stack.hidden_size:,} dimensions",
                "entry" if one_row else "mean over rows",
                table.means or table.values,
                {dim.dim: dim.mean for dim in table.dims},
                table.n_mean_outside if table.means else int(table.rows.n_far[-1]) if table.rows else 0,
            )
        )
    panels += [
        Panel(
            f"embedding norm, {norm.part}",
            f"{norm.module}, {stack.hidden_size:,} dimensions",
            norm.part,
            norm.histogram,
            dict(zip(stack.dims, norm.value[0].tolist(), strict=True)),
            int(norm.n_outside[0]),
        )
        for norm in stack.norms
        if norm.histogram is not None
    ]
    return panels


def ranked_norms(stack: StackOrigin) -> list[NormOrigin]:
    """The norms and writes of the blocks: what has a panel of ranks."""
    return [norm for norm in stack.norms if norm.role in ("reads", "after a write", "last")]


def heading(title: str, subtitle: str) -> Spec:
    """The title of a panel."""
    return {
        "text": title,
        "subtitle": subtitle,
        "color": INK,
        "subtitleColor": MUTED,
        "fontSize": 13.5,
        "subtitleFontSize": 12,
        "anchor": "start",
    }


def coarser(histogram: Histogram, bars: int = BARS) -> tuple[np.ndarray, np.ndarray]:
    """(left edges, counts) with at most about `bars` bins: neighbours merged by a power of two, empty bins left out."""
    factor = 1
    while len(histogram.counts) > bars * factor:
        factor *= 2
    width = histogram.width * factor
    skip = round(histogram.low / histogram.width) % factor
    padded = np.concatenate([np.zeros(skip, dtype=np.int64), histogram.counts])
    padded = np.concatenate([padded, np.zeros(-len(padded) % factor, dtype=np.int64)])
    counts = padded.reshape(-1, factor).sum(axis=1)
    edges = histogram.low - skip * histogram.width + width * np.arange(len(counts) + 1)
    filled = np.flatnonzero(counts)
    return np.stack([edges[filled], edges[filled + 1]], axis=1), counts[filled]


def histogram_panel(panel: Panel, shown: dict[int, int], n_sigma: float) -> Spec:
    """Bars over the dimensions, the span within n_sigma shaded, and the named dimensions as marks on the axis."""
    edges, counts = coarser(panel.histogram)
    mean, std = panel.histogram.mean, panel.histogram.std
    bars = [
        {"from": round_to(low, 6), "to": round_to(high, 6), "count": int(count)}
        for (low, high), count in zip(edges, counts, strict=True)
    ]
    top = float(counts.max())
    # Marks stand at heights of their own, so that neighbours stay apart; the square root is the axis' scale.
    marks = [
        {
            "from": round_to(panel.values[dim], 6),
            "count": round_to(top * (0.88 - 0.13 * (place % 6)) ** 2),
            "name": label(dim),
            "sigma": round_to(panel.histogram.sigma(panel.values[dim]), 3),
            "says": f"{dim}: {panel.histogram.sigma(panel.values[dim]):+.1f}σ".replace("-", "−"),
        }
        for place, dim in enumerate(shown)
    ]
    low, high = float(edges.min()), float(edges.max())
    scale = {"domain": [round_to(low, 6), round_to(high, 6)], "nice": False, "padding": 6, "zero": False}
    x = field("from", panel.axis, scale=scale, axis={"grid": False, "tickCount": 6})
    y = field(
        "count",
        "dimensions",
        scale={"type": "sqrt", "domain": [0, round_to(top)], "nice": False},
        axis={"tickCount": 5},
    )
    inside = [max(mean - n_sigma * std, low), min(mean + n_sigma * std, high)]
    layers: list[Spec] = [
        {
            "data": {"values": [{"from": round_to(inside[0], 6), "to": round_to(inside[1], 6)}]},
            "mark": {"type": "rect", "color": BAND, "opacity": 0.35},
            "encoding": {"x": x, "x2": {"field": "to"}},
        },
        {
            "data": {"values": bars},
            "mark": {"type": "bar", "color": FAINT},
            "encoding": {
                "x": x,
                "x2": {"field": "to"},
                "y": y,
                "y2": {"datum": 0},
                "tooltip": [field("from", "from"), field("to", "to"), field("count", "dimensions")],
            },
        },
    ]
    if marks:
        colour = dim_colour(shown)
        middle = (low + high) / 2
        tooltip = [
            field("name", "dimension", "nominal"),
            field("from", panel.axis),
            field("sigma", "standard deviations"),
        ]
        layers += [
            {
                "data": {"values": marks},
                "mark": {"type": "rule", "strokeWidth": 1.4},
                "encoding": {"x": x, "y": y, "y2": {"datum": 0}, "color": colour},
            },
            {
                "data": {"values": marks},
                "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "shape": dim_shape(shown, legend=False),
                    "tooltip": tooltip,
                },
            },
        ]
        for align, offset, side in (("left", 9, True), ("right", -9, False)):
            mine = [mark for mark in marks if (float(mark["from"] or 0) <= middle) == side]
            text: Spec = {"type": "text", "align": align, "dx": offset, "fontWeight": 600, "fontSize": 12}
            # A rim in the colour of the page keeps the words legible on bars and lines.
            rim = {"stroke": SURFACE, "strokeWidth": 3.5, "strokeJoin": "round"}
            layers += [
                {
                    "data": {"values": mine},
                    "mark": text | more,
                    "encoding": {"x": x, "y": y, "text": {"field": "says", "type": "nominal"}},
                }
                for more in (rim, {})
                if mine
            ]
    return {
        "width": PANEL_WIDTH,
        "height": PANEL_HEIGHT,
        "layer": layers,
        "title": heading(panel.title, f"{panel.subtitle}; {panel.n_outside} beyond {n_sigma:g} sigma"),
    }


def rank_panel(stack: StackOrigin, norm: NormOrigin, shown: dict[int, int]) -> Spec:
    """Ranks by |z| in one part of one norm, with the embedding norm before and the final norm after it."""
    role = {"reads": "reads", "after a write": "after a write", "last": "last of the block"}[norm.role]
    around = [one for one in stack.norms if one.role in ("embedding norm", "final norm") and one.part == norm.part]
    before = [one for one in around if one.role == "embedding norm"]
    after = [one for one in around if one.role == "final norm"]
    rows, reach = [], []
    for one in (*before, norm, *after):
        for i, layer in enumerate(one.layers):
            if one is norm:
                reach.append({"layer": layer, "rank": max(int(one.n_outside[i]), 0.7)})
            rows += [
                {
                    "layer": layer,
                    "name": label(dim),
                    "rank": int(one.rank_z[i, stack.dims.index(dim)]),
                    "z": round_to(one.z[i, stack.dims.index(dim)], 3),
                    "value": round_to(one.value[i, stack.dims.index(dim)]),
                    "top": int(one.rank_top[i, stack.dims.index(dim)]),
                    "bottom": int(one.rank_bottom[i, stack.dims.index(dim)]),
                    "absolute": int(one.rank_absolute[i, stack.dims.index(dim)]),
                    "above": bool(one.z[i, stack.dims.index(dim)] > 0),
                    "block": one is norm,
                }
                for dim in shown
            ]
    order = [
        *(layer for one in before for layer in one.layers),
        *norm.layers,
        *(x for one in after for x in one.layers),
    ]
    x: Spec = {
        "field": "layer",
        "type": "ordinal",
        "title": "layer",
        "sort": order,
        "scale": {"type": "point", "padding": 0.4, "domain": order},
        "axis": {"labelAngle": 0, "grid": False, "labelExpr": "datum.value === 'embeddings' ? 'emb' : datum.value"},
    }
    scale = {"type": "log", "domain": [0.7, stack.hidden_size], "reverse": True, "nice": False}
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if tick <= stack.hidden_size]
    y = field("rank", "rank by |z|", scale=scale, axis={"values": ticks, "format": "~d"})
    tooltip = [field("layer", "layer", "ordinal"), field("name", "dimension", "nominal"), field("value", norm.part)]
    tooltip += [field("z", "z"), field("rank", "rank by |z|"), field("top", "from the top")]
    tooltip += [field("bottom", "from the bottom"), field("absolute", "by |value|")]
    layers: list[Spec] = [
        {
            "data": {"values": reach},
            "mark": {"type": "line", "color": MUTED, "strokeDash": [3, 3], "strokeWidth": 1.2},
            "encoding": {"x": x, "y": y},
        }
    ]
    if shown:
        colour = dim_colour(shown)
        position = {"x": x, "y": y}
        layers += [
            {
                "data": {"values": [row for row in rows if row["block"]]},
                "mark": {"type": "line", "strokeWidth": 1.3, "opacity": 0.7},
                "encoding": position | {"color": colour},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 62, "opacity": 1},
                "encoding": position
                | {
                    "stroke": dim_colour(shown, legend=False),
                    "fill": {"condition": dim_colour(shown, legend=False) | {"test": "datum.above"}, "value": SURFACE},
                    "shape": dim_shape(shown),
                    "tooltip": tooltip,
                },
            },
        ]
    part = {"weight": "norm of the rows that write"}.get(norm.part, norm.part)
    return {
        "width": PANEL_WIDTH,
        "height": PANEL_HEIGHT,
        "layer": layers,
        "title": heading(f"{norm.module}, {part}", role),
    }
