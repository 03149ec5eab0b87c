"""Tasks with one dimension off at a time, as in Kovaleva et al. (2021), figure 2; and outliers against random sets.

figure2([swept_rte, swept_cola])                     # a panel per task, two a row
figure2(sweeps, named=(143, 283, 557), model="distilbert-base-cased")
outliers_against_random(replications)                # several models and tasks at once

In figure 2 up is good: on the y axis is the task's metric itself (of a task measured by its loss, the loss).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts import level, measured, thin
from outlierlens.experiments.sweep.result import Effect, Sweep
from outlierlens.replicate.glue.result import ENOUGH, Replication, Row, TaskTable, where_enough
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    BAND,
    INK,
    MUTED,
    Chart,
    Looks,
    Spec,
    bar,
    chart,
    field,
    label,
    looks,
    round_to,
    rounded,
    strongest_first,
)
from outlierlens.view.charts.draw import (
    composed,
    dim_marks,
    grid,
    heading,
    inked_dims,
    interval_dots,
    names_beside,
    panel,
)
from outlierlens.view.section import few

BAND_FROM = 20  # fewer dimensions make no band of 5 to 95 %
WIDTH, HEIGHT = 390, 210  # pixels of a panel
PER_ROW = 2
STRONGEST = 3  # of a panel, that get a name beside the outliers
COLUMNS = ("task", "dimension", "metric", "value", "lost", "95 % from", "to", "examples", "× random")
RANDOM_COLUMNS = (
    *("model", "task", "metric", "intact", "outliers", "off", "lost", "95 % from", "to", "random sets", "median lost"),
    *("5 %", "95 %", "mean lost", "× random", f"≥ {ENOUGH:g} × random", "rank p"),
)
NONE = "no outlier"


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
    """The task's metric with every dimension off in turn, a panel per task (Kovaleva et al. 2021, figure 2).

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


def outliers_against_random(replications: Sequence[Replication], *, name: str = "outliers-against-random") -> Chart:
    """What each model loses on each task with its outliers off, beside random sets of the same size.

    Raises:
        BadInput: nothing was measured beside random sets.
    """
    kept = [(made, one) for made in replications for one in made.tables if one.family("random")]
    if not kept:
        raise BadInput("no table here holds random sets; replicate with --random above 0")
    several = len({(made.base, one.task) for made, one in kept}) < len(kept)
    families = [_family(made, one, several) for made, one in kept]
    bands, chosen = [], []
    for (_, one), family in zip(kept, families, strict=True):
        random, off = one.family("random"), one.outliers_row
        assert random is not None
        ends: Spec = {"low": _points(random.lost_low), "high": _points(random.lost_high)}
        bands.append({"family": family, "middle": _points(random.lost), "sets": random.n_sets} | ends)
        if off is not None and math.isfinite(off.lost):
            words = {"family": family, "says": _times(off), "off": off.label}
            numbers = {"lost": _points(off.lost)} | bar(off.lost_low, off.lost_high, times=100)
            chosen.append(words | numbers | rounded(3, p=off.p))
    scale = {"domain": _domain([*bands, *chosen]), "nice": False}
    x = field("lost", "points of the task's metric lost (100 × metric)", scale=scale, axis={"tickCount": 8})
    y = draw.strips("family", families, 260, inner=0.35)
    y["axis"] |= {"labelExpr": "split(datum.label, '|')"}
    what = draw.columns(family="model and task:N", off="off:N", lost="points lost", **draw.ENDS, p="rank p")
    among = draw.columns(family="model and task:N", sets="random sets", middle="median", low="5 %", high="95 %")
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        draw.bar(bands, **draw.between(x=x), y=y, tooltip=among, color=BAND),
        draw.tick(bands, x=x | {"field": "middle"}, y=y, color=MUTED, thickness=2),
        *interval_dots(chosen, x, y, what, size=130),
        *draw.haloed(chosen, "says", x=x | {"field": "high"}, y=y, align="left", dx=10, fontSize=12.5),
    ]
    return chart(
        name=name,
        title="Outliers against random sets of the same size",
        reading=_random_says(kept),
        layers=layers,
        height=60 + 40 * len(kept),
        columns=RANDOM_COLUMNS,
        rows=(_random_numbers(made, one) for made, one in kept),
    )


def short(base: str) -> str:
    """A model's name for reading: of a path its last part."""
    return base.replace("\\", "/").rstrip("/").rpartition("/")[2] or base


def _family(made: Replication, one: TaskTable, several: bool) -> str:
    """The name of a strip: model and task, the outliers below."""
    which = f"{short(made.base)}, {one.task.rpartition(':')[2]}" + (f" ({one.label})" if several else "")
    off = f"{few(tuple(sorted(one.dims)))} off" if one.dims else f"{NONE} named"
    return f"{which.replace('|', ' ')}|{off}{'' if one.by_rule or not one.dims else ', not by the rule'}"


def _points(value: float) -> float | None:
    return round_to(100 * value)


def _domain(drawn: Sequence[Spec]) -> list[float | None]:
    """From the smallest end to the largest, zero among them, with room for the words on the right."""
    ends = [0.0, *(one[key] for one in drawn for key in ("low", "high", "lost") if one.get(key) is not None)]
    span = max(ends) - min(ends) or 1.0
    return [round_to(min(ends) - 0.04 * span), round_to(max(ends) + 0.16 * span)]


def _times(off: Row) -> str:
    if off.times_random is None:
        return "random: no loss"
    return f"× {off.times_random:.3g}"


def _random_says(kept: Sequence[tuple[Replication, TaskTable]]) -> str:
    text = (
        "Diamond: the metric lost with all outliers off, with its 95 % interval; bar: the middle 90 % of random sets of the "
        "same size, tick: their median; number: the loss as a multiple of the random sets' mean. "
    )
    tested = [(made, one, one.outliers_row) for made, one in kept if one.outliers_row is not None]
    if tested:
        text += f"At least {ENOUGH:g} times random: {where_enough(_apart(kept))}. "
        made, one, off = max(tested, key=lambda item: item[2].lost if item[2] is not None else 0.0)
        assert off is not None
        text += (
            f"Most is lost by {_where(made, one)} without {few(off.dims)}: {100 * off.lost:.1f} points "
            f"({one.interval(off, '.1f')}). "
        )
    without = [_where(made, one) for made, one in kept if one.outliers_row is None]
    if without:
        text += f"No outlier is named in {', '.join(without)}."
    return text.strip()


def _apart(kept: Sequence[tuple[Replication, TaskTable]]) -> list[tuple[str, TaskTable]]:
    """Each table with its name, and with its model's where several have one name."""
    names = [_where(made, one) for made, one in kept]
    return [
        (name if names.count(name) == 1 else f"{name} ({one.label})", one)
        for name, (_, one) in zip(names, kept, strict=True)
    ]


def _where(made: Replication, one: TaskTable) -> str:
    return f"{short(made.base)} on {one.task.rpartition(':')[2]}"


def _random_numbers(made: Replication, one: TaskTable) -> list[Any]:
    random, off = one.family("random"), one.outliers_row
    assert random is not None
    mean = None if random.mean is None else round_to(random.mean)
    mine: list[Any] = ["–", None, None, None, None]
    tests: list[Any] = [None, None, None]
    if off is not None:
        mine = [off.label, round_to(off.value), round_to(off.lost), *bar(off.lost_low, off.lost_high).values()]
        tests = [None if off.times_random is None else round_to(off.times_random, 3)]
        tests += [off.passes]
        tests += [None if off.p is None else round_to(off.p, 3)]
    figures = [random.n_sets, *map(round_to, (random.lost, random.lost_low, random.lost_high)), mean]
    return [short(made.base), one.task, one.metric, round_to(one.intact.value), *mine, *figures, *tests]
