"""Whether outlier dimensions survive fine-tuning: `survival(survived)`, z before against z after, of scale and of bias."""

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.experiments.survival.result import Survival, TunedSurvival
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    FAINT,
    MUTED,
    Chart,
    Spec,
    begun,
    field,
    label,
    looks,
    round_to,
    strongest_first,
)
from outlierlens.view.charts.draw import MOST, beside, composed, dim_marks, names_beside, panel
from outlierlens.view.section import few, number

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
            panels.append(_z_panel(kept, dims, part, survived.base.stacks[0].threshold))
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


def _z_panel(cells: list[Spec], dims: list[int], part: str, rule: Rule) -> Spec:
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
    for sigma in rule.levels:
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
