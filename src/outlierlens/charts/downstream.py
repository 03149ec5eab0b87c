"""What became of outliers after pre-training: whether they survive fine-tuning, and what they carry of a task.

survival(survived)                          # z before against z after fine-tuning, scale and bias side by side
one_dimension(found)                        # the task's metric from each dimension alone
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outlierlens.charts.base import (
    CONFIG,
    SCHEMA,
    TABLE_ROWS,
    Chart,
    Spec,
    chart,
    dim_colour,
    dim_shape,
    field,
    label,
    looks,
    number,
    round_to,
    strongest_first,
)
from outlierlens.charts.dim_names import HALO, MOST, names_beside
from outlierlens.charts.losses import few
from outlierlens.charts.palette import ALARM, FAINT, INK, MUTED, SURFACE
from outlierlens.errors import BadInput
from outlierlens.one_dimension import LayerOneDim, OneDim, OneDimension
from outlierlens.survived import Survival, TunedSurvival

PANEL = 370  # pixels of a panel of two side by side
MAX_DOTS = 1500


def survival(survived: Survival, model: int = 0, *, name: str = "survival") -> Chart:
    """z before (x) against z after (y) of every dimension in every layer, of tuned model number `model`; outliers named.

    Of more than 1,500 dots the most extreme are drawn. On the diagonal nothing moved.
    """
    tuned = survived.tuned[model]
    size = {dim.dim: max(abs(dim.scale.z_before), abs(dim.scale.z_after)) for dim in tuned.dims}
    dims = list(strongest_first(size, lambda dim: size[dim]))
    panels, drawn, total = [], 0, 0
    for part in ("scale", "bias"):
        cells = _cells(survived, tuned, part)
        if cells:
            kept = _extreme(cells, dims)
            drawn, total = drawn + len(kept), total + len(cells)
            panels.append(_z_panel(kept, dims, part, survived.base.stacks[0].n_sigma))
    before, after = survived.base.provenance.model, tuned.name
    rows = [
        [dim.stack, dim.dim, dim.fate, part, round_to(s.z_before, 3), round_to(s.z_after, 3), s.layers_before, s.layers_after,
         round_to(s.moved, 2)]
        for dim in tuned.dims
        for part, s in (("scale", dim.scale), ("bias", dim.bias))
        if s is not None
    ]  # fmt: skip
    reading = f"Each dot is one dimension in one layer: its z in {before} across, in {after} upwards; on the diagonal nothing "
    reading += "moved. " + _agreement_says(tuned) + _fates_say(tuned)
    reading += f"Drawn are the {drawn:,} most extreme of {total:,}. " if drawn < total else ""
    return _panels(
        name, f"Before and after fine-tuning: {before} → {after}", reading.strip(), panels,
        ("stream", "dimension", "fate", "of the", "mean z before", "after", "layers before", "after", "mean |Δz|"), rows,
    )  # fmt: skip


def _cells(survived: Survival, tuned: TunedSurvival, part: str) -> list[Spec]:
    """One datum a layer and dimension that both results hold."""
    cells = []
    for stack, other in zip(survived.base.stacks, tuned.scan.stacks, strict=True):
        one, two = (np.asarray(s.z_scale if part == "scale" else s.z_bias) for s in (stack, other))
        if not (one.size and two.size):
            continue
        shared = sorted(set(stack.map_dims) & set(other.map_dims))
        columns = [[s.map_dims.index(dim) for dim in shared] for s in (stack, other)]
        for layer in range(stack.n_layers):
            for dim, a, b in zip(shared, one[layer, columns[0]].tolist(), two[layer, columns[1]].tolist(), strict=True):
                cells.append({"layer": layer, "dim": dim, "before": round_to(a, 3), "after": round_to(b, 3)})
    return cells


def _extreme(cells: list[Spec], dims: list[int]) -> list[Spec]:
    ranked = sorted(cells, key=lambda c: (c["dim"] not in dims, -max(abs(c["before"]), abs(c["after"]))))
    return ranked[:MAX_DOTS]


def _z_panel(cells: list[Spec], dims: list[int], part: str, n_sigma: float) -> Spec:
    ends = np.array([(cell["before"], cell["after"]) for cell in cells], dtype=float)
    low, high = float(ends.min()), float(ends.max())
    pad = 0.1 * (high - low) or 1.0
    domain = [low - pad, high + pad]
    x, y = (
        field(key, f"z of the {part} {key}", scale={"domain": domain, "nice": False}, axis={"tickCount": 7})
        for key in ("before", "after")
    )
    tooltip = [
        field("dim", "dimension"),
        field("layer", "layer"),
        field("before", "z before"),
        field("after", "z after"),
    ]
    layers: list[Spec] = [
        _line([{"before": domain[0], "after": domain[0]}, {"before": domain[1], "after": domain[1]}], x, y, [1, 0]),
    ]
    for sigma in (-n_sigma, n_sigma):
        if domain[0] < sigma < domain[1]:
            layers.append(
                _line([{"before": sigma, "after": domain[0]}, {"before": sigma, "after": domain[1]}], x, y, [3, 3])
            )
            layers.append(
                _line([{"before": domain[0], "after": sigma}, {"before": domain[1], "after": sigma}], x, y, [3, 3])
            )
    rest = [cell for cell in cells if cell["dim"] not in dims]
    layers.append(
        {
            "data": {"values": rest},
            "mark": {"type": "circle", "color": FAINT, "size": 16, "opacity": 0.7},
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        }
    )
    named = [cell | {"name": label(cell["dim"])} for cell in cells if cell["dim"] in dims]
    layers += _named_marks(named, dims, x, y, tooltip)
    tips = [max((c for c in named if c["dim"] == dim), key=lambda c: abs(c["before"])) for dim in dims[:MOST]]
    at = [tuple((c[key] - domain[0]) / (domain[1] - domain[0]) for key in ("before", "after")) for c in tips]
    layers += names_beside(tips, at, dims, x, y)
    return {"width": PANEL, "height": PANEL, "layer": layers}


def _named_marks(
    rows: list[Spec], dims: Sequence[int], x: Spec, y: Spec, tooltip: list[Spec], size: int = 70
) -> list[Spec]:
    """Named dimensions in their colour and shape; those beyond the colours in ink."""
    if not rows:
        return []
    shown = looks(dims, [row["dim"] for row in rows])
    look = {"color": dim_colour(shown, legend=False), "shape": dim_shape(shown, legend=False)}
    mark = {"type": "point", "filled": True, "size": size, "opacity": 1}
    return [{"data": {"values": rows}, "mark": mark, "encoding": {"x": x, "y": y, "tooltip": tooltip} | look}]


def _line(rows: list[Spec], x: Spec, y: Spec, dash: list[int], colour: str = MUTED) -> Spec:
    return {
        "data": {"values": rows},
        "mark": {"type": "line", "color": colour, "strokeDash": dash, "strokeWidth": 1},
        "encoding": {"x": x, "y": y},
    }


def _agreement_says(tuned: TunedSurvival) -> str:
    if not tuned.agreement:
        return ""
    said = []
    for row in tuned.agreement:
        of = f"mean |Δz| {number(row.moved_others)}"
        if row.moved_named is not None:
            of = f"mean |Δz| of the named {number(row.moved_named)}, of the others {number(row.moved_others)}"
        said.append(f"{row.part}: r = {row.r:.4f}, {of}")
    text = "; ".join(said)
    return text[0].upper() + text[1:] + ". "


def _fates_say(tuned: TunedSurvival) -> str:
    words = {
        "stayed": "outliers in both",
        "went": "no longer",
        "came": "new",
        "neither": "followed, an outlier in neither",
    }
    parts = [
        f"{words[fate]}: {few([dim.dim for dim in tuned.dims if dim.fate == fate])}"
        for fate in words
        if any(dim.fate == fate for dim in tuned.dims)
    ]
    return (
        ("; ".join(parts)[0].upper() + "; ".join(parts)[1:] + ". ")
        if parts
        else "The rule finds none in either model. "
    )


def _panels(name: str, title: str, reading: str, panels: list[Spec], columns: Sequence[str], rows: list[Any]) -> Chart:
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "hconcat": panels,
        "spacing": 34,
    }
    numbers = tuple(tuple(row) for row in rows)
    return Chart(name, title, reading, spec, tuple(columns), numbers[:TABLE_ROWS], len(numbers))


def one_dimension(found: OneDimension, layer: str | None = None, *, name: str = "one-dimension") -> Chart:
    """The task's metric on the dev set from each dimension alone, beside the whole model and the majority label.

    `layer` is the last of the result unless named; the best on training examples and the named dimensions have a mark with
    their 95 % interval.

    Raises:
        BadInput: the result holds no such layer.
    """
    layers = {one.layer: one for one in found.layers}
    chosen = layers.get(found.layers[-1].layer if layer is None else layer)
    if chosen is None:
        raise BadInput(f"no layer {layer!r} in this result; it has {', '.join(layers)}")
    shown = list(dict.fromkeys((chosen.best, *chosen.named)))
    named = [one.dim for one in shown]
    width = len(chosen.value)
    ends = [*chosen.value.tolist(), found.full, found.full_high, found.majority, *_finite(shown)]
    low, high = min(ends), max(ends)
    pad = 0.08 * (high - low) or 0.1
    domain = [low - pad, high + pad]
    x = field("dim", "dimension", scale={"domain": [-1, width], "nice": False}, axis={"grid": False, "tickCount": 12})
    y = field(
        "value",
        f"{found.metric} on the dev set",
        scale={"domain": domain, "nice": False, "zero": False},
        axis={"tickCount": 7},
    )
    tooltip = [
        field("dim", "dimension"),
        field("value", found.metric),
        field("train", "on train"),
        field("low", "95 % from"),
    ]
    tooltip.append(field("high", "to"))
    dots = [
        {"dim": dim, "value": round_to(value), "train": round_to(chosen.train[dim])}
        for dim, value in enumerate(chosen.value.tolist())
        if dim not in named
    ]
    marks = [
        {"dim": one.dim, "name": label(one.dim), "rule": one.rule}
        | {key: round_to(getattr(one, key)) for key in ("value", "train", "low", "high")}
        for one in shown
    ]
    looked = looks(named, named)
    bars = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "data": {"values": [m for m in marks if m["dim"] in looked]},
    }
    body: list[Spec] = [
        {
            "data": {"values": dots},
            "mark": {"type": "circle", "color": MUTED, "size": 22, "opacity": 0.6},
            "encoding": {"x": x, "y": y, "tooltip": tooltip[:3]},
        },
        *_levels(found, y, width),
        bars
        | {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": dim_colour(looked, legend=False)
            },
        },
        *_named_marks(marks, named, x, y, [*tooltip, field("rule", "rule", "nominal")], 90),
    ]  # fmt: skip
    at = [(one.dim / width, (one.value - domain[0]) / (domain[1] - domain[0])) for one in shown]
    body += names_beside(marks, at, [chosen.best.dim], x, y)
    return chart(
        name=name,
        title=f"{found.task} from one dimension of layer {chosen.layer}",
        reading=_one_dim_reading(found, chosen),
        layers=body,
        height=330,
        columns=("dimension", found.metric, "95 % from", "to", "on train", "variance"),
        rows=(
            [dim, *(round_to(float(figure[dim])) for figure in
             (chosen.value, chosen.low, chosen.high, chosen.train, chosen.variance))]
            for dim in np.argsort(-chosen.value, kind="stable").tolist()
        ),
    )  # fmt: skip


def _finite(shown: Sequence[OneDim]) -> list[float]:
    return [end for one in shown for end in (one.low, one.high) if np.isfinite(end)]


def _levels(found: OneDimension, y: Spec, width: int) -> list[Spec]:
    """Lines of the whole model and of the majority label, each with its name at the right end."""
    layers: list[Spec] = []
    baseline = "no dimension at all" if found.metric in ("pearson", "spearman") else "always the commonest label"
    for value, text, colour, dash in (
        (found.full, "whole model", ALARM, [1, 0]),
        (found.majority, baseline, INK, [5, 3]),
    ):
        row = [{"value": round_to(value), "says": f"{text} {number(value)}"}]
        words = {"type": "text", "align": "right", "x": "width", "dx": -4, "dy": -8}
        layers.append(
            {
                "data": {"values": row},
                "mark": {"type": "rule", "color": colour, "strokeDash": dash, "strokeWidth": 1.6},
                "encoding": {"y": y},
            }
        )
        for ink in (HALO | {"color": SURFACE}, {"color": colour}):
            text_of = {"y": y, "text": {"field": "says", "type": "nominal"}}
            layers.append({"data": {"values": row}, "mark": words | ink, "encoding": text_of})
    return layers


def _one_dim_reading(found: OneDimension, layer: LayerOneDim) -> str:
    best = layer.best
    text = (
        f"Each dot is the best classifier that sees one dimension alone. Best on the training examples is {best.dim}: "
        f"{found.metric} {number(best.value)} on the dev set (95 % interval {number(best.low)} to {number(best.high)}), whole "
        f"model {number(found.full)}, baseline {number(found.majority)}. "
    )
    for one in layer.named:
        if one.dim != best.dim:
            text += f"Dimension {one.dim}: {number(one.value)}, rank {one.rank:,} of {len(layer.value):,}. "
    probe = layer.shifted_mean
    if probe is not None:
        text += f"Largest variance has {probe.dim}; a shifted mean on it reaches {number(probe.value)}. "
    text += f"Over dimensions the metric goes with the variance by a rank correlation of {layer.rho_variance:+.2f}, "
    return text + f"with |z| of the scale by {layer.rho_z:+.2f}."
