"""Where in the depth of the model a dimension matters: layer windows × dimensions; and every set among its control sets.

sweep_map(swept)                             # the damage map: rows = windows, columns = dimensions
sweep_windows(swept)                         # x = layer, a line for every named dimension and set
sweep_nulls(swept)                           # a strip for every set: its change among those of control sets
"""

import math
from collections.abc import Sequence

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.sweep.charts import BAND_FROM, change_axis, level, scale_from, scale_of, titled
from outlierlens.experiments.sweep.result import Effect, Null, Sweep, names
from outlierlens.statistics.means import interval_text
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    BAND,
    INK,
    MUTED,
    PLAIN_NUMBER,
    Cell,
    Chart,
    Spec,
    begun,
    chart,
    field,
    label,
    looks,
    round_to,
    rounded,
    variable,
)
from outlierlens.view.charts.draw import inked_dims, lines, names_above, names_at_ends, strength
from outlierlens.view.section import few

MAX_CATEGORIES = 40  # more dimensions than that are drawn along a line of numbers
MAX_CELLS = 6000
BETTER = variable("dim-2")
LAYER = {"single": "layer it is off in", "from": "off from this layer on", "upto": "off up to this layer"}
MAX_SETS = 3
SET_SHAPES = ("M-1,-0.35L1,-0.35L1,0.35L-1,0.35Z", "M-0.35,-1L0.35,-1L0.35,1L-0.35,1Z", "triangle-left")
MAX_NULLS = 12  # strips
SHORT = 34  # characters of a strip's name
MAX_CONTROLS = 300  # dots of one strip


def sweep_map(sweep: Sweep, named: Sequence[int] | None = None, *, name: str = "sweep-map") -> Chart:
    """The damage map: change of the task by layer window (down) and dimension (across); blank where not measured.

    Neighbouring dimensions share a cell where there are too many to draw; it shows the one with the largest |change|.

    Raises:
        BadInput: no single dimension was measured.
    """
    changes = sweep.map()  # [window, dim]
    changes[~np.isfinite(changes)] = np.nan
    dims = np.flatnonzero(~np.isnan(changes).all(axis=0))
    if not dims.size:
        raise BadInput("no single dimension was measured; sweep without dims=() to draw a map")
    named = names(sweep) if named is None else named
    windows = sweep.windows_swept
    categories = len(dims) <= MAX_CATEGORIES
    step = 1 if categories else math.ceil(sweep.width / max(1, MAX_CELLS // len(windows)))
    cells = [(window, _cells(line, step)) for window, line in zip(windows, changes, strict=True)]
    scale = scale_from(np.append(np.abs(changes[np.isfinite(changes)]), 0.0))
    kinds = ["worse without it", "better without it"]
    axis = {"labelOverlap": "greedy", "ticks": False, "domain": False}
    axis["labelExpr"] = "replace(datum.value, /^(from layer|up to layer|layer) /, '')"
    domain = {"domain": list(windows), "paddingInner": 0.06 if len(windows) <= 40 else 0.0}
    title = LAYER.get(sweep.windows, "layers it is off in")
    y = field("window", title, "ordinal", sort=None, scale=domain, axis=axis)
    bottom: Spec = {"orient": "bottom", "symbolType": "square"}
    values = _legend(scale.axis.get("values"), scale.scale["domain"][1])
    legend: Spec = {"title": f"|change|, {sweep.of_change}", "values": values, "labelExpr": PLAIN_NUMBER, "columns": 4}
    shade = strength("size", 1.0, **legend, **bottom, symbolFillColor=ALARM)
    shade["scale"] = scale.scale | {"range": [0.04, 1.0]}
    colour = draw.by("kind", dict(zip(kinds, (ALARM, BETTER), strict=True)), **bottom, symbolOpacity=0.85)
    x, across = _columns(sweep, dims.tolist(), named, categories, step)
    which = "dimension" if step == 1 else f"dimension, the largest of {step}"
    what = draw.columns(window="off in:N", dim=which, change=f"change, {sweep.of_change}")
    compact = [{"window": w, "dim": [c[0] for c in line], "change": [c[1] for c in line]} for w, line in cells]
    unpacked: list[Spec] = [
        {"flatten": ["dim", "change"]},
        {"calculate": "abs(datum.change)", "as": "size"},
        {"calculate": f"datum.change < 0 ? '{kinds[1]}' : '{kinds[0]}'", "as": "kind"},
        {"calculate": f"floor(datum.dim / {step}) * {step} - 0.5", "as": "left"},
        {"calculate": f"min(datum.left + {step}, {sweep.width - 0.5})", "as": "right"},
    ]
    cells_drawn = draw.rect(compact, unpacked, **across, y=y, color=colour, opacity=shade, tooltip=what)
    drawn = [dim for dim in named if dim in dims]
    layers = [cells_drawn, *([] if categories else names_above(drawn, sweep.width, x))]
    singles = sorted((e for e in sweep.singles() if math.isfinite(e.change)), key=lambda e: -abs(e.change))
    return chart(
        name=name,
        title=f"Damage map: {sweep.measured} by layers and dimension switched off ({sweep.mode})",
        reading=_map_says(sweep, singles, changes, step),
        layers=layers,
        height=min(560, max(110, (18 if len(windows) <= 30 else 9) * len(windows))),
        columns=("off in", "dimension", "change", "95 % from", "to", "texts"),
        rows=([e.window, e.dims[0], round_to(e.change), round_to(e.low), round_to(e.high), e.n_texts] for e in singles),
    )


def _cells(changes: np.ndarray, step: int) -> list[tuple[int, float | None]]:
    """(dimension, change) of the largest |change| of every `step` neighbours; none where nothing was measured."""
    made = []
    for start in range(0, len(changes), step):
        block = changes[start : start + step]
        if not np.isnan(block).all():
            at = int(np.nanargmax(np.abs(block)))
            made.append((start + at, round_to(float(block[at]), 3)))
    return made


def _columns(sweep: Sweep, dims: list[int], named: Sequence[int], categories: bool, step: int) -> tuple[Spec, Spec]:
    """The x axis, and the encoding of a cell's extent along it."""
    if categories:
        bold = {"condition": {"test": f"indexof({sorted(named)}, datum.value) >= 0", "value": 700}, "value": 400}
        axis = {"labelAngle": 0 if len(dims) <= 20 else -90, "labelFontWeight": bold, "ticks": False, "domain": False}
        scale = {"domain": dims, "paddingInner": 0.06}
        x = field("dim", "dimension", "ordinal", sort=None, scale=scale, axis=axis)
        return x, {"x": x}
    scale = {"domain": [-0.5, sweep.width - 0.5], "nice": False}
    title = "dimension" + (f" ({step} a cell: the largest |change| of them)" if step > 1 else "")
    x = field("dim", title, scale=scale, axis={"grid": False, "tickCount": 12})
    return x, {"x": x | {"field": "left"}, "x2": {"field": "right"}}


def _legend(ticks: list[float] | None, top: float) -> list[float | None]:
    sizes: list[float | None] = [0.0, *(tick for tick in ticks or () if 0 < tick < top)]
    return (sizes if ticks else [0.0, *(round_to(top * part, 2) for part in (0.25, 0.5, 1.0))])[:8]


def _map_says(sweep: Sweep, singles: list[Effect], changes: np.ndarray, step: int) -> str:
    most = singles[0]
    text = (
        f"Rows are the layers ({len(changes)} windows), columns the {int((~np.isnan(changes)).any(axis=0).sum()):,} "
        f"dimensions that were switched off; the stronger the colour, the larger the change (symmetric log scale). "
        f"The largest: {most.label} {most.change:+.3g} {sweep.of_change} ({interval_text(most.low, most.high, '+.3g')})"
    )
    second = next((e for e in singles if e.dims != most.dims), None)
    text += f"; of any other dimension: {second.label} {second.change:+.3g}. " if second else ". "
    if step > 1:
        text += f"Each cell stands for {step} neighbouring dimensions and shows the largest |change| among them. "
    if np.isnan(changes[:, ~np.isnan(changes).all(axis=0)]).any():
        text += "A blank cell was not measured, or its change is infinite. "
    return text.strip()


def sweep_windows(sweep: Sweep, named: Sequence[int] | None = None, *, name: str = "sweep-layers") -> Chart:
    """Change by layer of each named dimension and set, with intervals, beside other dimensions or random sets.

    Raises:
        BadInput: the sweep has one layer window only.
    """
    windows = sweep.windows_swept
    if len(windows) < 2:
        raise BadInput("this sweep has one layer window; sweep with windows single, from or upto to draw layers")
    named = names(sweep) if named is None else named
    finite = [e for e in sweep.effects if math.isfinite(e.change)]
    singles = [e for e in finite if len(e.dims) == 1 and e.dims[0] in named]
    shown = looks(named, [e.dims[0] for e in singles])
    sets = list(dict.fromkeys(e.dims for e in finite if len(e.dims) > 1))[:MAX_SETS]
    together = {one: f"{few(one)} together" for one in sets}
    drawn = [(label(e.dims[0]), e) for e in singles]
    drawn += [(together[e.dims], e) for e in finite if e.dims in together]
    if not drawn:
        raise BadInput("no named dimension or set was measured in these layers; pass named= to draw others")
    layer = {e.window: (min if sweep.windows == "from" else max)(e.layers, default=0) for e in sweep.effects}
    rows = [_point(e, said, layer[e.window]) for said, e in drawn]
    band, what = _beside(sweep, layer)
    extra = np.array([b[key] for b in band for key in ("low", "high")], dtype=float)
    scale = scale_of(e for _, e in drawn)
    if extra.size and scale.log:  # the band must not fall off a scale made for the lines
        ends = np.array([end for _, e in drawn for end in (e.low, e.high) if math.isfinite(end)])
        scale = scale_from(np.append([e.change for _, e in drawn], 0.0), np.concatenate([ends, extra]))
    title = LAYER.get(sweep.windows, "last layer it is off in")
    axis = {"tickMinStep": 1, "format": "d", "grid": False}
    x = field("layer", title, axis=axis, scale={"nice": False, "padding": 8})
    y = change_axis(sweep, scale)
    colour, shape = draw.dim_colour(shown), draw.dim_shape(shown)
    inked = inked_dims(shown)
    legend: Spec = {"title": None, "labelLimit": 260}
    if inked:  # their numbers stand at the ends of their lines
        legend["values"] = [*(label(dim) for dim in shown if dim not in inked), *together.values()]
    for channel, of_sets in ((colour, (INK, MUTED, MUTED)), (shape, SET_SHAPES)):
        scale_of_names = channel["scale"]
        scale_of_names["domain"] += together.values()
        scale_of_names["range"] += of_sets[: len(sets)]
        channel["legend"] = legend
    titles = {"low": f"{level(sweep)} from", "high": "to"}
    columns = draw.columns(off="off:N", change=f"change, {sweep.of_change}", **titles, texts="texts")
    layers: list[Spec] = []
    if band:
        layers += [
            draw.area(band, x=x, **draw.between(y=y), color=BAND, opacity=0.55),
            draw.line(band, x=x, y=y | {"field": "median"}, color=MUTED, strokeDash=[5, 3], strokeWidth=1.2),
        ]
    layers += [
        draw.sharing(
            rows,
            draw.area(None, x=x, **draw.between(y=y), color=colour, opacity=0.18, line=False),
            *lines(None, x, y, (colour, shape), columns, width=1.7, size=55),
        ),
        *names_at_ends(sorted(rows, key=lambda r: r["layer"]), shown, x, y),
    ]
    most = max(rows, key=lambda r: abs(r["change"]))
    reading = f"Lines: the change with each off, by layer ({title}), shaded their {level(sweep)} intervals. {what}"
    reading += f"The largest: {most['off']} {most['change']:+.3g} {sweep.of_change}."
    return chart(
        name=name,
        title=f"{begun(sweep.measured)} by layer ({sweep.mode})",
        reading=reading,
        layers=layers,
        height=300,
        columns=("off", "layer", "change", f"{level(sweep)} from", "to", "texts"),
        rows=([r["off"], r["layer"], r["change"], r["low"], r["high"], r["texts"]] for r in rows),
    )


def _point(effect: Effect, said: str, layer: int) -> Spec:
    return {"name": said, "off": effect.label, "layer": layer, "texts": effect.n_texts} | rounded(
        change=effect.change, low=effect.low, high=effect.high
    )


def _beside(sweep: Sweep, layer: dict[str, int]) -> tuple[list[Spec], str]:
    """The band to compare with, by layer: dimensions that the weights do not name, else random sets; and its words."""
    ordinary = {
        window: [e.change for e in sweep.singles(window) if e.dims[0] not in sweep.found and math.isfinite(e.change)]
        for window in sweep.windows_swept
    }
    if min(map(len, ordinary.values())) >= BAND_FROM:
        what = "single dimensions that the weights do not name"
        return _bands(ordinary, layer), f"Band: the middle 90 % of the {what}, dashes: their median. "
    size = {(e.label, e.window): len(e.dims) for e in sweep.effects}
    random = sorted((n for n in sweep.nulls if n.kind == "random"), key=lambda n: size.get((n.label, n.window), 0))
    # Of several sets the largest stands for all: its random sets do the most.
    values = {null.window: [c for c in null.changes if math.isfinite(c)] for null in random if null.window in layer}
    values = {window: changes for window, changes in values.items() if len(changes) > 1}
    if len(values) < 2:
        return [], ""
    n = min(map(len, values.values()))
    k = size.get((random[-1].label, random[-1].window), 0)
    return _bands(values, layer), f"Band: the middle 90 % of {n:,} random sets of {k}, dashes: their median. "


def _bands(values: dict[str, list[float]], layer: dict[str, int]) -> list[Spec]:
    made = []
    for window, changes in values.items():
        low, median, high = (round_to(float(v)) for v in np.percentile(changes, (5, 50, 95)))
        made.append({"layer": layer[window], "low": low, "median": median, "high": high})
    return sorted(made, key=lambda one: one["layer"])


def sweep_nulls(sweep: Sweep, *, name: str = "sweep-nulls") -> Chart:
    """Each set's change among the changes of its control sets, on the same texts, with its rank p-value.

    Raises:
        BadInput: nothing was compared with controls.
    """
    nulls = [null for null in sweep.nulls if null.changes and null.kind != "ordinary"]  # most of those are random ones
    if not nulls:
        raise BadInput("this sweep holds no control sets; sweep a set, with n_random or n_matched above 0")
    nulls = [null for null in nulls if any(map(math.isfinite, (null.change, *null.changes)))]
    if not nulls:
        raise BadInput("no change of this sweep's sets is a number, so there is nothing to draw")
    kept = sorted(nulls, key=lambda null: -np.nan_to_num(null.change, nan=np.inf))[:MAX_NULLS]
    kept = [null for null in nulls if any(null is one for one in kept)]
    families = [_family(null) for null in kept]
    dots: list[Spec] = [
        {"family": family, "change": round_to(change), "spread": draw.spread(i)}
        for null, family in zip(kept, families, strict=True)
        for i, change in enumerate(quantiles(null.changes))
        if math.isfinite(change)
    ]
    chosen: list[Spec] = [
        {"family": f, "change": round_to(n.change), "texts": n.n_texts, "says": "" if n.p is None else f"p = {n.p:.2g}"}
        | rounded(3, p=n.p)
        for n, f in zip(kept, families, strict=True)
        if math.isfinite(n.change)
    ]
    scale = scale_from(np.array([d["change"] for d in dots + chosen] + [0.0], dtype=float))
    title = titled("", sweep, scale)
    padding = {} if scale.log else {"padding": 18}
    x = field("change", title, scale=scale.scale | padding, axis=scale.axis or {"tickCount": 8})
    y = draw.strips("family", families, 220)
    y["axis"] |= {"labelExpr": "split(datum.label, '|')"}
    what = draw.columns(family="set and controls:N", change="change", p="rank p", texts="texts")
    ends = [d["change"] for d in dots + chosen] or [0.0]
    middle = (min(ends) + max(ends)) / 2
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        draw.circle(dots, x=x, y=y, yOffset=draw.JITTER, tooltip=what[:2], size=30, color=MUTED, opacity=0.5),
        draw.points(chosen, x=x, y=y, tooltip=what, shape="diamond", size=150, color=ALARM),
    ]
    for right in (True, False):
        said = [one for one in chosen if (one["change"] > middle) == right]
        side = {"align": "right", "dx": -11} if right else {"align": "left", "dx": 11}
        layers += draw.haloed(said, "says", x=x, y=y, color=ALARM, fontWeight=700, **side)
    return chart(
        name=name,
        title="Against control sets of the same size",
        reading=_say(sweep, nulls, kept),
        layers=layers,
        height=40 + (58 if len(kept) <= 8 else 40) * len(kept),
        columns=("set", "window", "controls", "number", "texts", "change", "rank p", "median", "95th percentile"),
        rows=map(_numbers, nulls),
    )


def _numbers(null: Null) -> list[Cell]:
    p = None if null.p is None else round_to(null.p)
    figures = [round_to(null.change), p, round_to(null.median), round_to(null.percentile_95)]
    return [null.label, null.window, null.kind, len(null.changes), null.n_texts, *figures]


def _family(null: Null) -> str:
    where = "" if null.window == "all layers" or null.window in null.label else f", {null.window}"
    return f"{_short(null.label)}{where}|{len(null.changes):,} {null.kind} sets"


def _short(label: str) -> str:
    return label if len(label) <= SHORT else label[: SHORT - 1] + "…"


def quantiles(changes: tuple[float, ...], most: int = MAX_CONTROLS) -> list[float]:
    """At most that many of the sorted changes, evenly by rank, both ends among them."""
    if len(changes) <= most:
        return list(changes)
    return [changes[i] for i in np.linspace(0, len(changes) - 1, most).round().astype(int)]


def _say(sweep: Sweep, nulls: list[Null], kept: list[Null]) -> str:
    text = "Dots: the change with each control set off; diamond: with the set itself off, on the same texts. "
    first = max(kept, key=lambda null: np.nan_to_num(null.change, nan=-np.inf))
    text += (
        f"{first.label}: {first.change:+.3g} {sweep.of_change}, its {len(first.changes):,} controls ({first.kind}) "
        f"{first.median:+.3g} in the median, {first.percentile_95:+.3g} at the 95th percentile"
    )
    text += f", {first.times_mean:.3g} times their mean" if first.times_mean is not None else ""
    if first.p is not None:
        text += f"; rank p {first.p:.2g}, which can be {1 / (1 + len(first.changes)):.2g} at best"
    text += ". "
    matched = [null for null in kept if null.kind == "matched" and null.closeness is not None]
    if matched:
        worst = min(matched, key=lambda null: null.closeness or 0.0)
        text += (
            f"Matched weights elsewhere reach {100 * (worst.closeness or 0.0):.0f} % of the magnitudes wanted or more. "
        )
    if any(len(null.changes) > MAX_CONTROLS for null in kept):
        text += f"Of more than {MAX_CONTROLS} controls that many are drawn, evenly by rank, both ends among them. "
    if len(kept) < len(nulls):
        text += f"The {len(kept)} largest sets of {len(nulls)} are drawn. "
    return text.strip()
