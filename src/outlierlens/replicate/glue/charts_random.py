"""Outliers against random sets, for several models and tasks at once: `outliers_against_random(replications)`."""

import math
from collections.abc import Sequence
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.replicate.glue.result import ENOUGH, Replication, Row, TaskTable, where_enough
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, chart, field, round_to, rounded
from outlierlens.view.charts.forms import interval_dots
from outlierlens.view.charts.palette import BAND, MUTED
from outlierlens.view.words import few

COLUMNS = (
    *("model", "task", "metric", "intact", "outliers", "off", "lost", "95 % from", "to", "random sets", "median lost"),
    *("5 %", "95 %", "mean lost", "× random", f"≥ {ENOUGH:g} × random", "rank p"),
)
NONE = "no outlier"


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
        reading=_reading(kept),
        layers=layers,
        height=60 + 40 * len(kept),
        columns=COLUMNS,
        rows=(_numbers(made, one) for made, one in kept),
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


def _reading(kept: Sequence[tuple[Replication, TaskTable]]) -> str:
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


def _numbers(made: Replication, one: TaskTable) -> list[Any]:
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
