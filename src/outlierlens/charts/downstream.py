"""What became of outliers after pre-training: whether they survive fine-tuning, and what they carry of a task.

survival(survived)                          # z before against z after fine-tuning, scale and bias side by side
one_dimension(found)                        # the task's metric from each dimension alone
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.charts import draw
from outlierlens.charts.base import (
    Chart,
    Spec,
    begun,
    chart,
    field,
    label,
    looks,
    number,
    round_to,
    rounded,
    strongest_first,
)
from outlierlens.charts.dim_names import MOST, names_beside
from outlierlens.charts.forms import baseline, dim_marks
from outlierlens.charts.losses import few
from outlierlens.charts.palette import ALARM, FAINT, INK, MUTED
from outlierlens.charts.panels import beside, composed, panel
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
        (dim.stack, dim.dim, dim.fate, part, round_to(s.z_before, 3), round_to(s.z_after, 3), s.layers_before, s.layers_after,
         round_to(s.moved, 2))
        for dim in tuned.dims
        for part, s in (("scale", dim.scale), ("bias", dim.bias))
        if s is not None
    ]  # fmt: skip
    reading = f"Each dot is one dimension in one layer: its z in {before} across, in {after} upwards; on the diagonal nothing "
    reading += "moved. " + _agreement_says(tuned) + _fates_say(tuned)
    reading += f"Drawn are the {drawn:,} most extreme of {total:,}. " if drawn < total else ""
    return composed(
        name=name,
        title=f"Before and after fine-tuning: {before} → {after}",
        reading=reading.strip(),
        body=beside(panels, 34),
        columns=(
            "stream",
            "dimension",
            "fate",
            "of the",
            *("mean z before", "after", "layers before", "after", "mean |Δz|"),
        ),
        rows=rows,
    )


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
    tooltip = draw.columns(dim="dimension", layer="layer", before="z before", after="z after")
    ends_of_diagonal = [{"before": end, "after": end} for end in domain]
    layers = [draw.line(ends_of_diagonal, x=x, y=y, color=MUTED, strokeDash=[1, 0], strokeWidth=1)]
    for sigma in (-n_sigma, n_sigma):
        if domain[0] < sigma < domain[1]:
            layers.append(draw.level(sigma, x=x, strokeDash=[3, 3], strokeWidth=1))
            layers.append(draw.level(sigma, y=y, strokeDash=[3, 3], strokeWidth=1))
    rest = [cell for cell in cells if cell["dim"] not in dims]
    layers.append(draw.circle(rest, x=x, y=y, tooltip=tooltip, color=FAINT, size=16, opacity=0.7))
    named = [cell | {"name": label(cell["dim"])} for cell in cells if cell["dim"] in dims]
    layers += dim_marks(named, looks(dims, [row["dim"] for row in named]), x, y, tooltip, size=70)
    tips = [max((c for c in named if c["dim"] == dim), key=lambda c: abs(c["before"])) for dim in dims[:MOST]]
    at = [tuple((c[key] - domain[0]) / (domain[1] - domain[0]) for key in ("before", "after")) for c in tips]
    layers += names_beside(tips, at, dims, x, y)
    return panel(layers, PANEL, PANEL)


def _agreement_says(tuned: TunedSurvival) -> str:
    if not tuned.agreement:
        return ""
    said = []
    for row in tuned.agreement:
        of = f"mean |Δz| {number(row.moved_others)}"
        if row.moved_named is not None:
            of = f"mean |Δz| of the named {number(row.moved_named)}, of the others {number(row.moved_others)}"
        said.append(f"{row.part}: r = {row.r:.4f}, {of}")
    return begun("; ".join(said)) + ". "


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
    return begun("; ".join(parts)) + ". " if parts else "The rule finds none in either model. "


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


def _finite(shown: Sequence[OneDim]) -> list[float]:
    return [end for one in shown for end in (one.low, one.high) if np.isfinite(end)]


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
