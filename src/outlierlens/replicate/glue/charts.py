"""Tasks with one dimension off at a time, as in Kovaleva et al. (2021), figure 2: `figure2(sweeps)`.

figure2([swept_rte, swept_cola])                     # a panel a task, two a row
figure2(sweeps, named=(143, 283, 557), model="distilbert-base-cased")

Up is good: on the y axis is the task's metric itself (of a task measured by its loss, the loss).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts_marks import level, measured, thin
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Looks, Spec, field, label, looks, round_to, rounded, strongest_first
from outlierlens.view.charts.dim_names import inked_dims, names_beside
from outlierlens.view.charts.forms import dim_marks
from outlierlens.view.charts.palette import BAND, INK, MUTED
from outlierlens.view.charts.panels import composed, grid, heading, panel
from outlierlens.view.words import few

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
    title = f"One dimension off at a time, {len(panels)} {'task' if len(panels) == 1 else 'tasks'}"
    title = f"{model}: {title[0].lower()}{title[1:]}" if model else title
    return composed(
        name=name,
        title=title,
        reading=_reading(panels, shown),
        body=grid([_drawn(panel, shown) for panel in panels], PER_ROW, across=34, down=26),
        columns=COLUMNS,
        rows=_numbers(panels),
    )


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


def _drawn(task: _Panel, shown: Looks) -> Spec:
    sweep = task.sweep
    plain, _ = thin([e for e in task.effects if e.dims[0] not in task.named])
    marked = [e for e in task.effects if e.dims[0] in task.named]
    low, high = _limits(task, marked)
    what = sweep.metric or sweep.of_change
    scale = {"domain": [low, high], "nice": False, "zero": False}
    x, y = draw.dim_axis(sweep.width, ticks=8), field("value", what, scale=scale, axis={"tickCount": 6})
    columns = draw.columns(
        off="off:N", value=what, lost="lost", low=f"{level(sweep)} from", high="to", texts="examples"
    )
    dots = [_datum(task, e) for e in plain]
    rows = [_datum(task, e) for e in marked]
    at = [(e.dims[0] / sweep.width, (task.value(e.change) - low) / (high - low)) for e in marked]
    layers = [
        *_band_marks(task, y),
        draw.level(round_to(task.value(0.0)), y=y, color=INK, strokeWidth=1.2),
        draw.circle(dots, x=x, y=y, tooltip=columns, color=MUTED, size=13, opacity=0.6),
        *_marks(rows, shown, x, y, columns),
        *names_beside(rows, at, task.outliers, x, y, canvas=(WIDTH, HEIGHT)),
    ]
    intact = (
        f"intact {task.value(0.0):.3f}; {len(task.effects):,} of {sweep.width:,} dimensions, {sweep.n_texts:,} examples"
    )
    return panel(layers, WIDTH, HEIGHT, heading(f"{task.task}: {what}", intact))


def _limits(panel: _Panel, marked: Sequence[Effect]) -> tuple[float, float]:
    """The ends of the y axis: all dots, the intervals of named ones, intact and band."""
    changes = [0.0, *(e.change for e in panel.effects), *(end for e in marked for end in (e.low, e.high))]
    changes += [panel.band.low, panel.band.high] if panel.band else []
    values = [panel.value(change) for change in changes if np.isfinite(change)]
    pad = 0.07 * (max(values) - min(values)) or 0.01
    return float(f"{min(values) - pad:.4g}"), float(f"{max(values) + pad:.4g}")


def _datum(panel: _Panel, effect: Effect) -> Spec:
    ends = sorted((panel.value(effect.low), panel.value(effect.high)))
    numbers = rounded(value=panel.value(effect.change), lost=effect.change, low=ends[0], high=ends[1])
    return {"off": effect.label, "dim": effect.dims[0], "texts": effect.n_texts} | numbers


def _band_marks(panel: _Panel, y: Spec) -> list[Spec]:
    if panel.band is None:
        return []
    ends = sorted((panel.value(panel.band.low), panel.value(panel.band.high)))
    band = [rounded(value=ends[0], to=ends[1])]
    return [draw.rect(band, **draw.between("value", "to", y=y), color=BAND, opacity=0.6)]


def _marks(rows: list[Spec], shown: Looks, x: Spec, y: Spec, tooltip: list[Spec]) -> list[Spec]:
    """Named dimensions with their intervals: outliers in colour and shape, the strongest others in ink."""
    coloured = [row | {"name": label(row["dim"])} for row in rows if row["dim"] in shown]
    rest = [row for row in rows if row["dim"] not in shown]
    bars, colour = {"x": x, **draw.between(y=y), "strokeWidth": 1.8}, draw.dim_colour(shown, legend=False)
    groups = [
        (rest, INK, [draw.circle(None, x=x, y=y, tooltip=tooltip, color=INK, size=42, opacity=1)]),
        (coloured, colour, dim_marks(None, shown, x, y, tooltip, size=80)),
    ]
    return [
        draw.sharing(some, draw.rule(None, draw.SETTLED, **bars, color=ink), *dots)
        for some, ink, dots in groups
        if some
    ]


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
        for one, effects in zip(panels, ranked, strict=True):
            if place < len(effects):
                e, datum = effects[place], _datum(one, effects[place])
                times = None if e.times_random is None else round_to(e.times_random, 3)
                what = one.sweep.metric or one.sweep.of_change
                numbers = (datum[key] for key in ("value", "lost", "low", "high"))
                yield (one.task, e.dims[0], what, *numbers, e.n_texts, times)
