"""What single dimensions carry of a task: `one_dimension(found)`, the task's metric from each dimension alone."""

import numpy as np

from outlierlens.errors import BadInput
from outlierlens.experiments.one_dimension.result import LayerOneDim, OneDimension
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    ALARM,
    INK,
    MUTED,
    Chart,
    Spec,
    chart,
    field,
    label,
    looks,
    round_to,
    rounded,
)
from outlierlens.view.charts.draw import baseline, dim_marks, names_beside
from outlierlens.view.section import number


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
    finite = (end for one in shown for end in (one.low, one.high) if np.isfinite(end))
    ends = [*chosen.value.tolist(), found.full, found.full_high, found.majority, *finite]
    low, high = min(ends), max(ends)
    pad = 0.08 * (high - low) or 0.1
    domain = [low - pad, high + pad]
    scale = {"domain": domain, "nice": False, "zero": False}
    x, y = draw.dim_axis(width), field("value", f"{found.metric} on the dev set", scale=scale, axis={"tickCount": 7})
    what = draw.columns(dim="dimension", value=found.metric, train="on train", **draw.ENDS, rule="rule:N")
    dots = [
        {"dim": dim, "value": round_to(value), "train": round_to(chosen.train[dim])}
        for dim, value in enumerate(chosen.value.tolist())
        if dim not in named
    ]
    marks = [
        {"dim": one.dim, "name": label(one.dim), "rule": one.rule}
        | rounded(value=one.value, train=one.train, low=one.low, high=one.high)
        for one in shown
    ]
    looked = looks(named, named)
    bars = [mark for mark in draw.known(marks, "low") if mark["dim"] in looked]
    levels = {"whole model": (found.full, ALARM, [1, 0])}
    nothing = "no dimension at all" if found.metric in ("pearson", "spearman") else "always the commonest label"
    levels |= {nothing: (found.majority, INK, [5, 3])}
    body: list[Spec] = [
        draw.circle(dots, x=x, y=y, tooltip=what[:3], color=MUTED, size=22, opacity=0.6),
        *(
            layer
            for says, (value, color, dash) in levels.items()
            for layer in baseline(value, f"{says} {number(value)}", y=y, color=color, strokeDash=dash, strokeWidth=1.6)
        ),
        draw.rule(bars, x=x, **draw.between(y=y), color=draw.dim_colour(looked, legend=False), strokeWidth=2),
        *dim_marks(marks, looked, x, y, what, size=90),
    ]
    at = [(one.dim / width, (one.value - domain[0]) / (domain[1] - domain[0])) for one in shown]
    body += names_beside(marks, at, [chosen.best.dim], x, y)
    figures = (chosen.value, chosen.low, chosen.high, chosen.train, chosen.variance)
    return chart(
        name=name,
        title=f"{found.task} from one dimension of layer {chosen.layer}",
        reading=_one_dim_reading(found, chosen),
        layers=body,
        height=330,
        columns=("dimension", found.metric, "95 % from", "to", "on train", "variance"),
        rows=(
            [dim, *(round_to(float(figure[dim])) for figure in figures)]
            for dim in np.argsort(-chosen.value, kind="stable").tolist()
        ),
    )


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
