"""Panels of the pictures in `charts.origin`: a histogram with marks, ranks by layer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.experiments.origin.result import Histogram, NormOrigin, StackOrigin
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import BAND, FAINT, MUTED, SURFACE, Looks, Spec, decades, field, label, round_to
from outlierlens.view.charts.draw import heading, names_at_ends, panel

PANEL_WIDTH, PANEL_HEIGHT = 390, 210  # pixels
BARS = 70
SAID = 12  # marks of a panel that have words
NAMES = {"token": "token embeddings", "position": "position embeddings", "segment": "segment embeddings"}


@dataclass(frozen=True)
class Panel:
    """A histogram of all values of a table or a vector, and where the named dimensions lie in it.

    Attributes:
        values: of each named dimension its value; of a table its mean over rows.
        counts: of each named dimension its own entries [bin], of tables of more than one row.
        shares: which share of these lies outside, in [0, 1].
        outside: the share of all values; n_outside: their number where there is one value per dimension.
    """

    title: str
    subtitle: str
    axis: str
    histogram: Histogram
    values: dict[int, float]
    counts: dict[int, np.ndarray]
    shares: dict[int, float]
    outside: float
    n_outside: int

    def says(self, dim: int) -> str:
        """What stands beside a dimension's mark."""
        if self.counts:
            return f"{dim}: {percent(self.shares[dim])} beyond"
        return f"{dim}: {self.histogram.sigma(self.values[dim]):+.1f}σ".replace("-", "−")


def percent(share: float) -> str:
    """A share with one decimal, or with the digit that it begins with."""
    if not share:
        return "none"
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.1g} %"


def share_outside(histogram: Histogram, rule: Rule) -> float:
    """The share of values that lie the threshold of `rule` or more from the mean; the bin of the limit is divided evenly."""
    total = np.concatenate([[0.0], np.cumsum(histogram.counts)])
    below, above = (histogram.mean + level * histogram.std for level in rule.levels)
    under, over = np.interp([below, above], histogram.edges, total)
    return float((under + total[-1] - over) / total[-1])


def panels_of(stack: StackOrigin, rule: Rule) -> list[Panel]:
    """A panel for each table and for scale and bias of the embedding norm."""
    panels = []
    for table in stack.tables:
        several = table.n_read > 1
        rows = (f"{table.n_read:,} rows × " if several else "") + f"{stack.hidden_size:,} dimensions"
        share = share_outside(table.values, rule)
        panels.append(
            Panel(
                NAMES.get(table.kind, f"{table.kind} embedding"),
                f"{rows}; {percent(share)} of the entries beyond {rule.sigmas}",
                "entry",
                table.values,
                {dim.dim: dim.mean for dim in table.dims},
                {dim.dim: dim.counts for dim in table.dims} if several else {},
                {dim.dim: dim.outside_share for dim in table.dims},
                share,
                round(share * table.values.total),
            )
        )
    for norm in stack.norms:
        if norm.histogram is not None:
            n = int(norm.n_outside[0])
            values = dict(zip(stack.dims, norm.value[0].tolist(), strict=True))
            says = f"{norm.module}, {stack.hidden_size:,} dimensions; {n} beyond {rule.sigmas}"
            title = f"embedding norm, {norm.part}"
            panels.append(Panel(title, says, norm.part, norm.histogram, values, {}, {}, n / stack.hidden_size, n))
    return panels


def ranked_norms(stack: StackOrigin) -> list[NormOrigin]:
    """The norms and writes of the blocks: what has a panel of ranks."""
    return [norm for norm in stack.norms if norm.role in ("reads", "after a write", "last")]


def coarser(
    histogram: Histogram, bars: int = BARS, parts: Sequence[np.ndarray] = ()
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """(edges, counts, counts of each of `parts`) in at most about `bars` bins: neighbours merged by a power of two."""
    factor = 1
    while len(histogram.counts) > bars * factor:
        factor *= 2
    skip = round(histogram.low / histogram.width) % factor

    def merged(counts: np.ndarray) -> np.ndarray:
        padded = np.concatenate([np.zeros(skip, dtype=np.int64), counts])
        padded = np.concatenate([padded, np.zeros(-len(padded) % factor, dtype=np.int64)])
        return np.asarray(padded.reshape(-1, factor).sum(axis=1))

    counts = merged(histogram.counts)
    edges = histogram.low - skip * histogram.width + histogram.width * factor * np.arange(len(counts) + 1)
    return edges, counts, [merged(np.asarray(part)) for part in parts]


def histogram_panel(one: Panel, shown: Looks, rule: Rule) -> Spec:
    """Bars over all values, the span within the threshold shaded, the named dimensions' own values as lines, and their marks.

    Each histogram is normalised to its own total, as in Kovaleva et al.'s figure 4; theirs is linear.
    """
    edges, counts, own = coarser(one.histogram, parts=[one.counts[dim] for dim in shown] if one.counts else ())
    mean, std = one.histogram.mean, one.histogram.std
    ends = list(itertools.pairwise(edges.tolist()))
    densities = [some / (max(some.sum(), 1) * np.diff(edges)) for some in (counts, *own)]
    least = 0.5 * min(float(some[some > 0].min(initial=np.inf)) for some in densities)
    most = 1.8 * max(float(some.max()) for some in densities)
    bars = [
        {"from": round_to(low, 6), "to": round_to(high, 6), "count": int(count), "density": round_to(density)}
        for (low, high), count, density in zip(ends, counts, densities[0], strict=True)
        if count
    ]
    lines = [
        {"from": round_to(at, 6), "density": round_to(max(float(density), least)), "name": label(dim)}
        for dim, mine in zip(shown, densities[1:], strict=False)
        for (low, high), density in zip(ends, mine, strict=True)
        for at in (low, high)
    ]
    low, high = float(edges[0]), float(edges[-1])
    marks = [
        {"name": label(dim), "share": one.shares.get(dim), "says": one.says(dim)}
        | {"from": round_to(one.values[dim], 6), "sigma": round_to(one.histogram.sigma(one.values[dim]), 3)}
        | {"density": round_to(least * (most / least) ** _level(place, len(shown)))}
        for place, dim in enumerate(shown)
    ]
    scale = {"domain": [round_to(low, 6), round_to(high, 6)], "nice": False, "padding": 6, "zero": False}
    x = field("from", one.axis, scale=scale, axis={"grid": False, "tickCount": 6})
    scale = {"type": "log", "domain": [round_to(least), round_to(most)], "nice": False}
    y = field("density", "density (log scale)", scale=scale, axis={"values": decades(least, most), "format": "~g"})
    floor = {"datum": round_to(least)}
    below, above = (mean + level * std for level in rule.levels)
    ends_inside = max(below, low), min(above, high)
    inside = {"from": round_to(ends_inside[0], 6), "to": round_to(ends_inside[1], 6)}
    reach = draw.between("from", "to", x=x)
    what = draw.columns(**{"from": "from"}, to="to", count="values", density="density")
    layers = [
        draw.rect([inside], **reach, color=BAND, opacity=0.35),
        draw.bar(bars, **reach, y=y, y2=floor, tooltip=what, color=FAINT, opacity=0.75 if lines else 1),
    ]
    if marks:
        colour = draw.dim_colour(shown)
        dash: Spec = {"strokeDash": [3, 3]} if lines else {}
        shape = draw.dim_shape(shown, legend=False)
        share = field("share", f"of its entries beyond {rule.sigmas}", format=".2%")
        start = "mean over rows" if one.counts else one.axis
        what = draw.columns(
            name="dimension:N", **{"from": start}, sigma="standard deviations from the mean", share=share
        )
        if lines:
            order = {"field": "from", "type": "quantitative"}
            layers.append(draw.line(lines, x=x, y=y, color=colour, order=order, strokeWidth=1.6))
        layers += [
            draw.rule(marks, x=x, y=y, y2=floor, color=colour, strokeWidth=1.4, **dash),
            draw.points(marks, x=x, y=y, color=colour, shape=shape, tooltip=what if one.counts else what[:-1], size=75),
            *_words(marks[:SAID], (low + high) / 2, x, y),
        ]
    return panel(layers, PANEL_WIDTH, PANEL_HEIGHT, heading(one.title, one.subtitle))


def _level(place: int, n: int) -> float:
    """Where on the axis a mark stands, from 0 to 1: each at a height of its own, so that neighbours stay apart."""
    return 0.92 - 0.12 * place if n <= 7 else 0.92 - 0.8 * place / (n - 1)


def _words(marks: list[Spec], middle: float, x: Spec, y: Spec) -> list[Spec]:
    """What the marks say, growing inwards, on a rim in the colour of the page that keeps them legible."""
    layers = []
    for align, offset, side in (("left", 9, True), ("right", -9, False)):
        mine = [mark for mark in marks if (float(mark["from"] or 0) <= middle) == side]
        if mine:
            layers += draw.haloed(mine, "says", x=x, y=y, align=align, dx=offset, fontWeight=600, fontSize=12)
    return layers


def rank_panel(stack: StackOrigin, norm: NormOrigin, shown: Looks) -> Spec:
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
            for dim in shown:
                at = i, stack.dims.index(dim)
                ranks = {
                    "rank": one.rank_z,
                    "top": one.rank_top,
                    "bottom": one.rank_bottom,
                    "absolute": one.rank_absolute,
                }
                numbers = {"z": round_to(one.z[at], 3), "value": round_to(one.value[at])}
                side = {"above": bool(one.z[at] > 0), "block": one is norm}
                places = {key: int(values[at]) for key, values in ranks.items()}
                rows.append({"layer": layer, "name": label(dim)} | numbers | places | side)
    order = [
        *(layer for one in before for layer in one.layers),
        *norm.layers,
        *(x for one in after for x in one.layers),
    ]
    x = draw.layer_axis(order)
    x["scale"]["domain"] = order
    scale = {"type": "log", "domain": [0.7, stack.hidden_size], "reverse": True, "nice": False}
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if tick <= stack.hidden_size]
    y = field("rank", "rank by |z|", scale=scale, axis={"values": ticks, "format": "~d"})
    what = draw.columns(
        layer="layer:O", name="dimension:N", value=norm.part, z="z", rank="rank by |z|", top="from the top",
        bottom="from the bottom", absolute="by |value|",
    )  # fmt: skip
    layers: list[Spec] = [draw.line(reach, x=x, y=y, color=MUTED, strokeDash=[3, 3], strokeWidth=1.2)]
    if shown:
        at_layers: Spec = {"x": x, "y": y}
        ring = draw.dim_colour(shown, legend=False)
        look: Spec = {"stroke": ring, "fill": {"condition": ring | {"test": "datum.above"}, "value": SURFACE}}
        in_block = [row for row in rows if row["block"]]
        layers += [
            draw.line(in_block, **at_layers, color=draw.dim_colour(shown), strokeWidth=1.3, opacity=0.7),
            draw.mark(
                "point", rows, **at_layers, **look, shape=draw.dim_shape(shown), tooltip=what, size=62, opacity=1
            ),
            *names_at_ends(rows, shown, x, y),
        ]
    part = {"weight": "norm of the rows that write"}.get(norm.part, norm.part)
    return panel(layers, PANEL_WIDTH, PANEL_HEIGHT, heading(f"{norm.module}, {part}", role))
