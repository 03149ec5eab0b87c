"""Two models in one picture, on the same scales.

profiles(ours, theirs, ("base", "tuned"), (308, 381))     # how far every dimension stands out: one above, one below
by_layer(ours, theirs, ("base", "tuned"), (308, 381))     # z of the named dimensions, layer by layer
changes((damage, other), ("base", "tuned"))               # what switching off did to each
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.ablation.study import Measurement
from outlierlens.analyses.ablate import Ablation
from outlierlens.detection.scan.charts import mean_size
from outlierlens.detection.scan.result import StackScan
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, chart, drawable, field, round_to, rounded, symmetric
from outlierlens.view.charts.dim_names import MOST, names_above, words_at_ends
from outlierlens.view.charts.forms import interval_dots, null_dots
from outlierlens.view.charts.palette import ALARM, BAND, COLOURED, DIM_COLOURS, FAINT, INK, MUTED, SHAPES
from outlierlens.view.words import few, number

BINS = 400  # about one every two pixels
Names = tuple[str, str]


def profiles(
    ours: StackScan, theirs: StackScan, names: Names, named: tuple[Sequence[int], Sequence[int]], *, name: str
) -> Chart:
    """Mean |z| over layers of every dimension of `ours` upward and of `theirs` downward; `named` of each stand out.

    Of neighbours that share a pixel the larger is drawn.
    """
    stacks, sizes = (ours, theirs), tuple(mean_size(stack) for stack in (ours, theirs))
    width = max(stack.hidden_size for stack in stacks)
    sky = [
        row for i, (stack, size) in enumerate(zip(stacks, sizes, strict=True)) for row in _sky(stack, size, i, width)
    ]
    marks = []
    for i, (stack, size, dims) in enumerate(zip(stacks, sizes, named, strict=True)):
        place = {dim: column for column, dim in enumerate(stack.map_dims)}
        shown = [dim for dim in dims if dim in place]
        marks += [_point(dim, size[place[dim]], i, names[i]) for dim in shown]
    top = max([row["size"] for row in (*sky, *marks)], default=1.0)
    labels = {"labelExpr": "format(abs(datum.value), '~g')"}
    y = field("y", "mean |z| over layers", scale={"domain": [-1.12 * top, 1.12 * top], "nice": False}, axis=labels)
    x, what = draw.dim_axis(width), draw.columns(model="model:N", dim="dimension", size="mean |z|")
    sigma = [{"y": ours.threshold.levels[1]}, {"y": theirs.threshold.levels[0]}]
    corner: Spec = {"align": "left", "x": 6, "fontWeight": 700, "color": INK}
    layers: list[Spec] = [
        draw.rule(sky, x=x, y=y, y2={"datum": 0}, color=FAINT, strokeWidth=1.4),
        draw.level(0, y=y),
        draw.rule(sigma, y=y, color=MUTED, strokeDash=[3, 3]),
        draw.circle(marks, x=x, y=y, tooltip=what, color=ALARM, size=55, opacity=1),
        draw.mark("text", [{}], **corner, y=10, text=names[0]),
        draw.mark("text", [{}], **corner, y=310, text=names[1]),
    ]
    above = sorted({row["dim"] for row in marks})
    reading = (
        f"Up: {names[0]}; down: {names[1]}, on the same scale. A line is the dimension's |z|, averaged over layers"
        f"{' and over scale and bias' if ours.z_bias.size else ''}; dashes are the thresholds, dots the outliers. "
    )
    reading += "; ".join(
        f"{who}: " + (", ".join(f"{row['dim']} at {number(row['size'])}" for row in there) or "none")
        for who in dict.fromkeys(names)
        for there in [[row for row in marks if row["model"] == who]]
    )
    rows = sorted((*marks, *sky), key=lambda row: -row["size"])
    seen = dict.fromkeys((row["model"], row["dim"], row["size"]) for row in rows)
    return chart(
        name=name,
        title="How far every dimension stands out",
        reading=reading + ".",
        layers=layers + names_above(above[:24], width, x),
        height=320,
        columns=("model", "dimension", "mean |z|"),
        rows=seen,
    )


def _sky(stack: StackScan, size: np.ndarray, side: int, width: int) -> list[Spec]:
    """The largest of every bin of dimensions; every dimension where they are few."""
    dims = np.array(stack.map_dims)
    bins = dims * BINS // width if width > BINS else dims
    best: dict[int, int] = {}
    for column, place in enumerate(bins.tolist()):
        if place not in best or size[column] > size[best[place]]:
            best[place] = column
    return [_point(int(dims[column]), size[column], side, "") for column in best.values()]


def _point(dim: int, size: float, side: int, model: str) -> Spec:
    value = round_to(size, 3) or 0.0
    return {"dim": dim, "size": value, "y": -value if side else value, "model": model}


def by_layer(
    ours: StackScan, theirs: StackScan, names: Names, named: tuple[Sequence[int], Sequence[int]], *, name: str
) -> Chart:
    """z of the scale of the named dimensions of both by layer: solid `ours`, dashed `theirs`.

    Layers stand at their share of the depth where the two are not equally deep; dimensions are told apart by model
    where the two are not equally wide.
    """
    mapped, even = ours.hidden_size == theirs.hidden_size, ours.n_layers == theirs.n_layers
    values: list[Spec] = []
    for i, (stack, dims) in enumerate(zip((ours, theirs), named, strict=True)):
        z = drawable(stack.z_scale)
        for dim in dims:
            if dim in stack.map_dims:
                column = z[:, stack.map_dims.index(dim)]
                name_of = f"dim {dim}" if mapped else f"dim {dim} of {names[i]}"
                depth = 1 if even else max(stack.n_layers - 1, 1)
                values += [
                    {"label": name_of, "model": names[i], "layer": layer, "z": round_to(value, 3)}
                    | {"x": layer if even else round(layer / depth, 4)}
                    for layer, value in enumerate(column.tolist())
                ]
    most: dict[str, float] = {}
    for row in values:
        most[row["label"]] = max(most.get(row["label"], 0.0), abs(row["z"] or 0.0))
    labels = list(most) if len(most) <= COLOURED else sorted(most, key=lambda label: -most[label])
    inks = [INK] * (len(labels) - COLOURED)
    size = np.array([row["z"] or 0.0 for row in values])
    scale = symmetric(size) if values else symmetric(np.zeros(1))
    steps = {"tickMinStep": 1} if even else {}
    x = field("x", "layer" if even else "share of the depth", axis={"grid": False} | steps)
    y = scale.encoding("z", "z of the scale")
    some = {"values": labels[:COLOURED]} if inks else {}
    colour, shape = draw.both("label", labels, [*DIM_COLOURS, *inks], [*SHAPES, *("circle" for _ in inks)], **some)
    stroke = {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolStrokeColor": INK, "symbolSize": 300}
    dash = draw.by("model", dict(zip(names, ([1, 0], [5, 3]), strict=True)), **stroke)
    what = draw.columns(model="model:N", label="dimension:N", layer="layer", z="z")
    beyond = {label: label.removeprefix("dim ") for label in labels[COLOURED:][:MOST]}
    layers: list[Spec] = [
        draw.level(0, y=y, color=BAND),
        draw.line(values, x=x, y=y, color=colour, strokeDash=dash, strokeWidth=1.6),
        draw.points(values, x=x, y=y, color=colour, shape=shape, tooltip=what, size=34),
        *words_at_ends(values, beyond, x, y, ("label", "model")),
    ]
    strongest = {
        (label, model): max((row["z"] for row in values if (row["label"], row["model"]) == (label, model)), key=abs)
        for label, model in dict.fromkeys((row["label"], row["model"]) for row in values)
    }
    said = "; ".join(f"{label} in {model}: {number(z)}" for (label, model), z in strongest.items())
    return chart(
        name=name,
        title="The outliers of either, layer by layer",
        reading=f"Solid: {names[0]}; dashed: {names[1]}. The strongest z of each: {said or 'none is drawn'}.",
        layers=layers,
        height=280,
        **what.table(values),
    )


def changes(damages: tuple[Ablation, Ablation], names: Names, *, name: str) -> Chart:
    """What switching its chosen dimensions off does to each model, beside random sets; one scale."""
    rows = []
    for damage, who in zip(damages, names, strict=True):
        rows.append(_change(damage.chosen, f"{who}: {few(damage.dims, 3)}", 0.5, chosen=True))
        sets = [one for one in damage.controls if one.family == "random"]
        rows += [_change(one, f"{who}: {len(sets)} random", draw.spread(i)) for i, one in enumerate(sets)]
    drawn = [row for row in rows if row["change"] is not None]
    ends = [row[key] for row in drawn if row["chosen"] for key in ("low", "high") if row[key] is not None]
    scale = symmetric(np.array([row["change"] for row in drawn] + ends + [0.0]), factor=30.0)
    tasks = {damage.about.measured for damage in damages}
    what = tasks.pop() if len(tasks) == 1 else "loss" if all("loss" in task for task in tasks) else "task"
    families = list(dict.fromkeys(str(row["family"]) for row in rows))
    x = scale.encoding("change", [f"change of the {what}", damages[0].about.of_change])
    y = draw.strips("family", families, 230)
    columns = draw.columns(family="off:N", dims="dimensions:N", change="change", **draw.ENDS)
    chosen, others = ([row for row in drawn if row["chosen"] is flag] for flag in (True, False))
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=[3, 3]),
        null_dots(others, x, y, tooltip=columns[:3], size=42),
        *interval_dots(chosen, x, y, columns, yOffset=draw.JITTER),
    ]
    ends = [damage.chosen.change for damage in damages]
    said = "; ".join(
        f"{who}: {number(one.value)} ({number(one.low)} to {number(one.high)})"
        for one, who in zip(ends, names, strict=True)
    )
    return chart(
        name=name,
        title=f"{begun(what)} with the chosen dimensions of each model off",
        reading=f"Diamonds are the chosen sets with 95 % intervals, dots random sets of the same size. Changes: {said}.",
        layers=layers,
        height=60 + 50 * len(families),
        **columns.table(rows),
    )


def _change(condition: Measurement, family: str, spread: float, *, chosen: bool = False) -> Spec:
    words = {"family": family, "dims": condition.dims, "spread": round(spread, 3), "chosen": chosen}
    change = condition.change
    return words | rounded(change=change.value) | bar(change.low, change.high)
