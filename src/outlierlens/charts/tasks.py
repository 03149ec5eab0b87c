"""Tasks with one dimension off at a time, as in Kovaleva et al. (2021), figure 2: `figure2(sweeps)`.

figure2([swept_rte, swept_cola])                     # a panel a task, two a row
figure2(sweeps, named=(143, 283, 557), model="distilbert-base-cased")

Up is good: on the y axis is the task's metric itself (of a task measured by its loss, the loss).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.charts.base import (
    CONFIG,
    SCHEMA,
    TABLE_ROWS,
    Chart,
    Looks,
    Spec,
    dim_colour,
    dim_shape,
    field,
    label,
    looks,
    round_to,
    strongest_first,
)
from outlierlens.charts.dim_names import inked_dims, names_beside
from outlierlens.charts.losses import few
from outlierlens.charts.palette import BAND, INK, MUTED, SURFACE
from outlierlens.charts.sweep_marks import level, measured, thin
from outlierlens.errors import BadInput
from outlierlens.swept import Effect, Sweep

BAND_FROM = 20  # fewer dimensions make no band of 5 to 95 %
WIDTH, HEIGHT = 390, 210  # pixels of a panel
PER_ROW = 2
STRONGEST = 3  # of a panel, that get a name beside the outliers
COLUMNS = ("task", "dimension", "metric", "value", "lost", "95 % from", "to", "examples", "× random")


@dataclass(frozen=True)
class Band:
    """Where random dimensions lie: changes at the 5th, 50th and 95th percentile, and whose they are, in words."""

    low: float
    middle: float
    high: float
    of: str


@dataclass(frozen=True)
class _Panel:
    """One task: its single dimensions, those with a name, and the band of the others."""

    sweep: Sweep
    effects: list[Effect]
    outliers: tuple[int, ...]
    strongest: tuple[int, ...]
    band: Band | None

    @property
    def named(self) -> tuple[int, ...]:
        return (*self.outliers, *self.strongest)

    def value(self, change: float) -> float:
        """What stands on the y axis for a change."""
        value = self.sweep.intact + change
        return 1 - value if self.sweep.metric else value

    @property
    def task(self) -> str:
        """The task's name without what it is measured by."""
        return self.sweep.task.removesuffix(f" {self.sweep.metric or 'loss'}")


def figure2(
    sweeps: Sequence[Sweep], named: Sequence[int] | None = None, *, model: str = "", name: str = "figure-2"
) -> Chart:
    """The task's metric with every dimension off in turn, a panel a task (Kovaleva et al. 2021, figure 2).

    The line is the intact model, the band where random dimensions lie: the 5th to 95th percentile of the random single
    dimensions of the sweep, or else of the swept ones that nothing names. `named` are the outliers, in colour, those that the
    weights name unless given; the strongest others of a task have their number. `model` goes into the title.

    Raises:
        BadInput: no sweep, or one without single dimensions.
    """
    if not sweeps:
        raise BadInput("figure 2 needs at least one sweep of a task; sweep with --task")
    outliers = tuple(dict.fromkeys(dim for one in sweeps for dim in one.found)) if named is None else tuple(named)
    panels = [_panel(sweep, outliers) for sweep in sweeps]
    swept = {effect.dims[0] for panel in panels for effect in panel.effects}
    lost = {dim: max(e.change for panel in panels for e in panel.effects if e.dims == (dim,)) for dim in swept}
    shown = looks(strongest_first([dim for dim in outliers if dim in swept], lambda dim: lost[dim]), sorted(swept))
    rows = [panels[start : start + PER_ROW] for start in range(0, len(panels), PER_ROW)]
    reading = _reading(panels, shown)
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": [{"hconcat": [_drawn(panel, shown) for panel in row], "spacing": 34} for row in rows],
        "spacing": 26,
    }
    numbers = list(_numbers(panels))
    title = f"One dimension off at a time, {len(panels)} {'task' if len(panels) == 1 else 'tasks'}"
    title = f"{model}: {title[0].lower()}{title[1:]}" if model else title
    return Chart(name, title, reading, spec, COLUMNS, tuple(numbers[:TABLE_ROWS]), len(numbers))


def band_of(sweep: Sweep, outliers: Sequence[int], window: str | None = None) -> Band | None:
    """Where random single dimensions of a sweep lie; None where there are too few to say."""
    window, effects = measured(sweep, window)
    singles = {effect.label for effect in effects}
    for null in sweep.nulls:
        mine = null.kind == "random" and null.window == window and null.label in singles
        if mine and len(null.changes) >= BAND_FROM:
            return _band(np.array(null.changes), f"{len(null.changes):,} random dimensions")
    others = np.array([e.change for e in effects if e.dims[0] not in {*outliers, *sweep.found}])
    if len(others) < BAND_FROM:
        return None
    which = "other dimensions" if len(effects) == sweep.width else "swept dimensions without a name"
    return _band(others, f"{len(others):,} {which}")


def _band(changes: np.ndarray, of: str) -> Band:
    low, middle, high = (float(value) for value in np.percentile(changes[np.isfinite(changes)], (5, 50, 95)))
    return Band(low, middle, high, of)


def _panel(sweep: Sweep, outliers: tuple[int, ...]) -> _Panel:
    window, effects = measured(sweep, None)
    swept = {effect.dims[0] for effect in effects}
    band = band_of(sweep, outliers, window)
    # The largest of many that do nothing are noise: a name takes an interval that lies outside the band.
    above = [e for e in effects if e.dims[0] not in outliers and e.low > max(band.high if band else 0.0, 0.0)]
    strongest = sorted(above, key=lambda e: (-e.change, e.dims))[:STRONGEST]
    mine = tuple(dim for dim in outliers if dim in swept)
    return _Panel(sweep, effects, mine, tuple(e.dims[0] for e in strongest), band)


def _drawn(panel: _Panel, shown: Looks) -> Spec:
    sweep = panel.sweep
    plain, _ = thin([e for e in panel.effects if e.dims[0] not in panel.named])
    marked = [e for e in panel.effects if e.dims[0] in panel.named]
    low, high = _limits(panel, marked)
    what = sweep.metric or sweep.of_change
    x = field(
        "dim", "dimension", scale={"domain": [-1, sweep.width], "nice": False}, axis={"grid": False, "tickCount": 8}
    )
    y = field("value", what, scale={"domain": [low, high], "nice": False, "zero": False}, axis={"tickCount": 6})
    tooltip = [
        field("off", "off", "nominal"),
        field("value", what),
        field("lost", "lost"),
        field("low", f"{level(sweep)} from"),
    ]
    tooltip += [field("high", "to"), field("texts", "examples")]
    dots = {
        "data": {"values": [_datum(panel, e) for e in plain]},
        "mark": {"type": "circle", "color": MUTED, "size": 13, "opacity": 0.6},
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
    }
    intact = {
        "data": {"values": [{"value": round_to(panel.value(0.0))}]},
        "mark": {"type": "rule", "color": INK, "strokeWidth": 1.2},
        "encoding": {"y": y},
    }
    rows = [_datum(panel, e) for e in marked]
    at = [(e.dims[0] / sweep.width, (panel.value(e.change) - low) / (high - low)) for e in marked]
    layers = [*_band_marks(panel, y), intact, dots, *_marks(rows, shown, x, y, tooltip)]
    layers += names_beside(rows, at, panel.outliers, x, y, canvas=(WIDTH, HEIGHT))
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "layer": layers,
        "title": {
            "text": f"{panel.task}: {what}",
            "subtitle": f"intact {panel.value(0.0):.3f}; {len(panel.effects):,} of {sweep.width:,} dimensions, "
            f"{sweep.n_texts:,} examples",
            "color": INK,
            "subtitleColor": MUTED,
            "fontSize": 13.5,
            "subtitleFontSize": 12,
            "anchor": "start",
        },
    }


def _limits(panel: _Panel, marked: Sequence[Effect]) -> tuple[float, float]:
    """The ends of the y axis: all dots, the intervals of named ones, intact and band."""
    changes = [0.0, *(e.change for e in panel.effects), *(end for e in marked for end in (e.low, e.high))]
    changes += [panel.band.low, panel.band.high] if panel.band else []
    values = [panel.value(change) for change in changes if np.isfinite(change)]
    pad = 0.07 * (max(values) - min(values)) or 0.01
    return float(f"{min(values) - pad:.4g}"), float(f"{max(values) + pad:.4g}")


def _datum(panel: _Panel, effect: Effect) -> Spec:
    ends = sorted((panel.value(effect.low), panel.value(effect.high)))
    return {
        "off": effect.label,
        "dim": effect.dims[0],
        "value": round_to(panel.value(effect.change)),
        "lost": round_to(effect.change),
        "low": round_to(ends[0]),
        "high": round_to(ends[1]),
        "texts": effect.n_texts,
    }


def _band_marks(panel: _Panel, y: Spec) -> list[Spec]:
    if panel.band is None:
        return []
    ends = sorted((panel.value(panel.band.low), panel.value(panel.band.high)))
    return [
        {
            "data": {"values": [{"value": round_to(ends[0]), "to": round_to(ends[1])}]},
            "mark": {"type": "rect", "color": BAND, "opacity": 0.6},
            "encoding": {"y": y, "y2": {"field": "to"}},
        }
    ]


def _marks(rows: list[Spec], shown: Looks, x: Spec, y: Spec, tooltip: list[Spec]) -> list[Spec]:
    """Named dimensions with their intervals: outliers in colour and shape, the strongest others in ink."""
    layers: list[Spec] = []
    coloured = [row | {"name": label(row["dim"])} for row in rows if row["dim"] in shown]
    rest = [row for row in rows if row["dim"] not in shown]
    colour: Spec = {"color": dim_colour(shown, legend=False)}
    groups: list[tuple[list[Spec], Spec, Spec]] = [
        (rest, {"type": "circle", "color": INK, "size": 42, "opacity": 1}, {}),
        (coloured, {"type": "point", "filled": True, "size": 80, "opacity": 1}, colour),
    ]
    for some, mark, more in groups:
        if not some:
            continue
        shape = {"shape": dim_shape(shown, legend=False)} if more else {}
        bar: Spec = {
            "transform": [{"filter": "isValid(datum.low) && isValid(datum.high)"}],
            "mark": {"type": "rule", "strokeWidth": 1.8} | ({} if more else {"color": INK}),
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}} | more,
        }
        point = {"mark": mark, "encoding": {"x": x, "y": y, "tooltip": tooltip} | more | shape}
        layers.append({"data": {"values": some}, "layer": [bar, point]})
    return layers


def _reading(panels: Sequence[_Panel], shown: Looks) -> str:
    text = (
        "Each dot is one dimension switched off in a fine-tuned model that is not trained again; line: intact; "
        "band: the middle 90 % of random dimensions. "
    )
    if shown:
        text += f"In colour{' or ink' if inked_dims(shown) else ''} and bold: {few(tuple(shown))}. "
    return (text + " ".join(_says(panel) for panel in panels)).strip()


def _says(panel: _Panel) -> str:
    """One task in a sentence or two."""
    sweep = panel.sweep
    text = f"{panel.task}: {sweep.metric or sweep.of_change} {panel.value(0.0):.3f} intact"
    off = [e for dim in panel.outliers for e in panel.effects if e.dims == (dim,)]
    said = [f"{panel.value(e.change):.3f} without {e.dims[0]} ({_ends(panel, e)})" for e in off[:4]]
    text += f", {', '.join(said)}" if said else ""
    if panel.band:
        ends = sorted((panel.value(panel.band.low), panel.value(panel.band.high)))
        text += f"; {panel.band.of} between {ends[0]:.3f} and {ends[1]:.3f}"
        outside = [e.dims[0] for e in off if e.change > panel.band.high]
        if off:
            # A loss is worse when it is higher, a metric when it is lower.
            side = "below" if panel.sweep.metric else "above"
            lie = f"{few(outside)} {'lies' if len(outside) == 1 else 'lie'} {side} them"
            text += f"; {lie if outside else f'none of the named lies {side} them'}"
    text += ". "
    others = [e for dim in panel.strongest for e in panel.effects if e.dims == (dim,)]
    if others:
        said = [f"{panel.value(e.change):.3f} without {e.dims[0]} ({_ends(panel, e)})" for e in others]
        text += f"Of the others the whole interval lies outside for {', '.join(said)}. "
    return text.strip()


def _ends(panel: _Panel, effect: Effect) -> str:
    low, high = sorted((panel.value(effect.low), panel.value(effect.high)))
    return f"{low:.3f} to {high:.3f}"


def _numbers(panels: Sequence[_Panel]) -> Iterator[tuple[Any, ...]]:
    """Rows of the table: the strongest of every task first."""
    ranked = [sorted(panel.effects, key=lambda e: (-e.change, e.dims)) for panel in panels]
    for place in range(max(map(len, ranked))):
        for panel, effects in zip(panels, ranked, strict=True):
            if place < len(effects):
                e, datum = effects[place], _datum(panel, effects[place])
                times = None if e.times_random is None else round_to(e.times_random, 3)
                yield (
                    panel.task, e.dims[0], panel.sweep.metric or panel.sweep.of_change, datum["value"], datum["lost"],
                    datum["low"], datum["high"], e.n_texts, times,
                )  # fmt: skip
