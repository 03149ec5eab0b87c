"""Two models in one picture, on the same scales.

profiles(ours, theirs, ("base", "tuned"), (308, 381))     # how far every dimension stands out: one above, one below
by_layer(ours, theirs, ("base", "tuned"), (308, 381))     # z of the named dimensions, layer by layer
changes((damage, other), ("base", "tuned"))               # what switching off did to each
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.charts.base import Chart, Spec, bar, begun, chart, drawable, field, number, round_to, symmetric
from outlierlens.charts.dim_names import MOST, names_above, words_at_ends
from outlierlens.charts.losses import GOLDEN, few
from outlierlens.charts.palette import ALARM, BAND, COLOURED, DIM_COLOURS, FAINT, INK, MUTED, SHAPES
from outlierlens.charts.weights import mean_size
from outlierlens.damage import Condition, Damage
from outlierlens.scanned import StackScan

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
    x = field("dim", "dimension", scale={"domain": [-1, width], "nice": False}, axis={"grid": False, "tickCount": 12})
    labels = {"labelExpr": "format(abs(datum.value), '~g')"}
    y = field("y", "mean |z| over layers", scale={"domain": [-1.12 * top, 1.12 * top], "nice": False}, axis=labels)
    tooltip = [field("model", "model", "nominal"), field("dim", "dimension"), field("size", "mean |z|")]
    sigma = [{"y": sign * stack.n_sigma} for sign, stack in zip((1, -1), stacks, strict=True)]
    corner: Spec = {"data": {"values": [{}]}, "encoding": {}}
    text = {"type": "text", "align": "left", "x": 6, "fontWeight": 700, "color": INK}
    layers: list[Spec] = [
        {
            "data": {"values": sky},
            "mark": {"type": "rule", "color": FAINT, "strokeWidth": 1.4},
            "encoding": {"x": x, "y": y, "y2": {"datum": 0}},
        },
        {"data": {"values": [{"y": 0}]}, "mark": {"type": "rule", "color": MUTED}, "encoding": {"y": y}},
        {
            "data": {"values": sigma},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [3, 3]},
            "encoding": {"y": y},
        },
        {
            "data": {"values": marks},
            "mark": {"type": "circle", "color": ALARM, "size": 55, "opacity": 1},
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
        corner | {"mark": text | {"y": 10, "text": names[0]}},
        corner | {"mark": text | {"y": 310, "text": names[1]}},
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
                values += [
                    {
                        "label": f"dim {dim}" if mapped else f"dim {dim} of {names[i]}",
                        "model": names[i],
                        "layer": layer,
                        "x": layer if even else round(layer / max(stack.n_layers - 1, 1), 4),
                        "z": round_to(value, 3),
                    }
                    for layer, value in enumerate(column.tolist())
                ]
    most: dict[str, float] = {}
    for row in values:
        most[row["label"]] = max(most.get(row["label"], 0.0), abs(row["z"] or 0.0))
    labels = list(most) if len(most) <= COLOURED else sorted(most, key=lambda label: -most[label])
    inks = [INK] * (len(labels) - COLOURED)
    size = np.array([row["z"] or 0.0 for row in values])
    scale = symmetric(size) if values else symmetric(np.zeros(1))
    x = field(
        "x", "layer" if even else "share of the depth", axis={"grid": False} | ({"tickMinStep": 1} if even else {})
    )
    y = field(
        "z", "z of the scale" + (" (symmetric log scale)" if scale.log else ""), scale=scale.scale, axis=scale.axis
    )
    colour = field("label", "", "nominal", scale={"domain": labels, "range": [*DIM_COLOURS[: len(labels)], *inks]})
    shape = field(
        "label", "", "nominal", scale={"domain": labels, "range": [*SHAPES[: len(labels)], *("circle" for _ in inks)]}
    )
    dash = field("model", "", "nominal", scale={"domain": list(names), "range": [[1, 0], [5, 3]]})
    for channel in (colour, shape, dash):
        channel["legend"] = {"title": None}
        del channel["title"]
    if inks:
        colour["legend"]["values"] = shape["legend"]["values"] = labels[:COLOURED]
    dash["legend"] |= {"symbolType": "stroke", "symbolStrokeWidth": 2, "symbolStrokeColor": INK, "symbolSize": 300}
    tooltip = [field("model", "model", "nominal"), field("label", "dimension", "nominal"), field("layer", "layer")]
    tooltip += [field("z", "z")]
    position = {"x": x, "y": y}
    layers: list[Spec] = [
        {"data": {"values": [{"z": 0}]}, "mark": {"type": "rule", "color": BAND}, "encoding": {"y": y}},
        {
            "data": {"values": values},
            "mark": {"type": "line", "strokeWidth": 1.6},
            "encoding": position | {"color": colour, "strokeDash": dash},
        },
        {
            "data": {"values": values},
            "mark": {"type": "point", "filled": True, "size": 34, "opacity": 1},
            "encoding": position | {"color": colour, "shape": shape, "tooltip": tooltip},
        },
        *words_at_ends(
            values, {label: label.removeprefix("dim ") for label in labels[COLOURED:][:MOST]}, x, y, ("label", "model")
        ),
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
        columns=("model", "dimension", "layer", "z"),
        rows=([row["model"], row["label"], row["layer"], row["z"]] for row in values),
    )


def changes(damages: tuple[Damage, Damage], names: Names, *, name: str) -> Chart:
    """What switching its chosen dimensions off does to each model, beside random sets; one scale."""
    rows = []
    for damage, who in zip(damages, names, strict=True):
        rows.append(_change(damage.chosen, f"{who}: {few(damage.chosen.dims, 3)}", 0.5, chosen=True))
        for control in (one for one in damage.controls if one.kind == "random"):
            family = f"{who}: {len(control.conditions)} random"
            rows += [_change(one, family, (0.5 + i * GOLDEN) % 1) for i, one in enumerate(control.conditions)]
    drawn = [row for row in rows if row["change"] is not None]
    ends = [row[key] for row in drawn if row["chosen"] for key in ("low", "high") if row[key] is not None]
    scale = symmetric(np.array([row["change"] for row in drawn] + ends + [0.0]), factor=30.0)
    tasks = {damage.measured for damage in damages}
    what = tasks.pop() if len(tasks) == 1 else "loss" if all("loss" in task for task in tasks) else "task"
    title = [f"change of the {what}", damages[0].of_change + (" (symmetric log scale)" if scale.log else "")]
    families = list(dict.fromkeys(str(row["family"]) for row in rows))
    x = field("change", title, scale=scale.scale, axis=scale.axis)
    y = field("family", "", "nominal", sort=families, scale={"paddingInner": 0.25, "paddingOuter": 0.2})
    y |= {
        "title": None,
        "axis": {"labelLimit": 230, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
    }
    jitter = {"field": "spread", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": None, "legend": None}
    tooltip = [field("family", "off", "nominal"), field("dims", "dimensions", "nominal"), field("change", "change")]
    chosen, others = ([row for row in drawn if row["chosen"] is flag] for flag in (True, False))
    layers: list[Spec] = [
        {"data": {"values": [{"change": 0}]}, "mark": {"type": "rule", "color": MUTED, "strokeDash": [3, 3]},
         "encoding": {"x": x}},
        {"data": {"values": others}, "mark": {"type": "circle", "color": MUTED, "opacity": 0.6, "size": 42},
         "encoding": {"x": x, "y": y, "yOffset": jitter, "tooltip": tooltip}},
        {"data": {"values": [row for row in chosen if row["low"] is not None and row["high"] is not None]},
         "mark": {"type": "rule", "color": ALARM, "strokeWidth": 2},
         "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "yOffset": jitter}},
        {"data": {"values": chosen}, "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 110,
                                              "color": ALARM, "opacity": 1},
         "encoding": {"x": x, "y": y, "yOffset": jitter, "tooltip": tooltip}},
    ]  # fmt: skip
    said = "; ".join(
        f"{who}: {number(damage.chosen.change)} ({number(damage.chosen.change_low)} to {number(damage.chosen.change_high)})"
        for damage, who in zip(damages, names, strict=True)
    )
    return chart(
        name=name,
        title=f"{begun(what)} with the chosen dimensions of each model off",
        reading=f"Diamonds are the chosen sets with 95 % intervals, dots random sets of the same size. Changes: {said}.",
        layers=layers,
        height=60 + 50 * len(families),
        columns=("off", "dimensions", "change", "95 % from", "to"),
        rows=([row["family"], row["dims"], row["change"], row["low"], row["high"]] for row in rows),
    )


def _change(condition: Condition, family: str, spread: float, *, chosen: bool = False) -> Spec:
    return {
        "family": family,
        "dims": few(condition.dims),
        "change": round_to(condition.change),
        **bar(condition.change_low, condition.change_high),
        "spread": round(spread, 3),
        "chosen": chosen,
    }
