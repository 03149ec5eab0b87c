"""What pruning took from each position, and what it costs to force a budget onto one.

pruned_positions(check.stacks[0], check)     # layers in which each position is removed, and outliers among them
prune_experiment(effect)                     # change of the loss: magnitude, outlier positions, controls
"""

import math

import numpy as np

from outlierlens.ablation.damage import Condition
from outlierlens.experiments.pruning.result import PruneCheck, PruneExperiment, StackCheck
from outlierlens.statistics.words import interval_text
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    Chart,
    Spec,
    bar,
    chart,
    field,
    label,
    looks,
    round_to,
    strongest_first,
    symmetric,
)
from outlierlens.view.charts.dim_names import MOST, inked_dims, names_beside
from outlierlens.view.charts.forms import interval_dots, null_dots
from outlierlens.view.charts.palette import ALARM, INK, MUTED
from outlierlens.view.words import number


def pruned_positions(stack: StackCheck, found: PruneCheck, *, name: str = "pruned-positions") -> Chart:
    """Layers in which each position is removed: a tick a position, outliers as shapes, the constraint as a line."""
    counts = np.asarray(stack.layers_removed)
    hits = {hit.dim: hit for hit in stack.outliers}
    shown = looks(strongest_first(hits, lambda dim: float(counts[dim])), list(hits))
    points = [{"dim": int(dim), "layers": int(counts[dim])} for dim in np.flatnonzero(counts) if int(dim) not in hits]
    named = [
        {"dim": dim, "layers": int(counts[dim]), "name": label(dim), "share": round_to(hits[dim].share)}
        for dim in shown
    ]
    top = stack.n_layers
    x = field("dim", "position of the stream", scale={"domain": [0, stack.hidden_size - 1], "nice": False})
    axis = {"tickMinStep": 1, "format": "d", "tickCount": min(top, 8)}
    y = field("layers", "layers in which it is removed", scale={"domain": [0, top], "nice": False}, axis=axis)
    what = draw.columns(dim="position", layers="layers", share="share gone")
    limit = [{"layers": stack.needed, "text": f"the constraint: fewer than {stack.needed} of {top} layers"}]
    words = {"align": "left", "x": 6, "dy": -8, "fontWeight": 600}
    layers = [
        draw.points(points, x=x, y=y, tooltip=what[:2], shape="circle", size=26, color=MUTED, opacity=0.6),
        draw.rule(limit, y=y, color=ALARM, strokeDash=[5, 4], strokeWidth=1.5),
        *draw.haloed(limit, "text", y=y, color=ALARM, **words),
    ]
    if named:
        look = draw.dim_look(shown)
        layers.append(draw.points(named, x=x, y=y, **look, tooltip=what, size=150))
        inked: list[Spec] = [{"dim": dim, "layers": int(counts[dim])} for dim in inked_dims(shown)[:MOST]]
        at = [(row["dim"] / max(stack.hidden_size - 1, 1), row["layers"] / top) for row in inked]
        layers += names_beside(inked, at, (), x, y)
    order = np.lexsort((np.arange(len(counts)), -counts))
    return chart(
        name=name,
        title=f"Positions that pruning removed, stream {stack.stack}",
        reading=_positions_reading(stack, found),
        layers=layers,
        height=260,
        columns=("position", "outlier", "layers removed", "of"),
        rows=(
            (int(dim), "yes" if int(dim) in hits else "no", int(counts[dim]), stack.n_layers)
            for dim in dict.fromkeys((*hits, *order.tolist()))
            if counts[dim] or int(dim) in hits
        ),
    )


def prune_check(found: PruneCheck) -> Chart:
    """Layers in which each position of the first stream is removed: its `pruned_positions`."""
    return pruned_positions(found.stacks[0], found, name="prune-check")


def _positions_reading(stack: StackCheck, found: PruneCheck) -> str:
    touched = int(np.count_nonzero(stack.layers_removed))
    said = (
        f"{touched:,} of {stack.hidden_size:,} positions are removed in some layer, {len(stack.broken):,} in {stack.needed} of "
        f"{stack.n_layers} layers or more. Removed means: {stack.definition}. "
    )
    for hit in stack.outliers[:MOST]:
        said += f"Outlier {hit.dim} is removed in {len(hit.layers)} layers. "
    return said + f"{found.verdict[:1].upper()}{found.verdict[1:]}."


def prune_experiment(found: PruneExperiment, *, name: str = "prune-experiment") -> Chart:
    """Change of the loss for one budget: by magnitude, forced onto the chosen positions, and onto controls."""
    dims = ", ".join(map(str, found.dims[:4])) + (" …" if len(found.dims) > 4 else "")
    families: list[tuple[str, tuple[Condition, ...]]] = [
        ("smallest weights (magnitude)", (found.magnitude,)),
        (f"onto {dims}, all layers", (found.chosen,)),
    ]
    words = {
        "random position": "random positions, same in all layers",
        "scattered": "random positions, other in each layer",
        "matched": "as large, other in each layer",
    }
    families += [
        (f"{words.get(one.kind, one.kind)} (n = {len(one.conditions)})", one.conditions) for one in found.controls
    ]
    rows = [
        _row(one, family, 0.5 if len(members) == 1 else draw.spread(i), chosen=one is found.chosen)
        for family, members in families
        for i, one in enumerate(members)
    ]
    drawn = [row for row in rows if row["change"] is not None]
    ends = [row[end] for row in drawn for end in ("low", "high") if row[end] is not None and row["single"]]
    scale = symmetric(np.array([row["change"] for row in drawn] + ends + [0.0]), factor=30.0)
    x = scale.encoding("change", ["change of the " + found.task, found.unit], padding=14)
    y = draw.strips("family", [family for family, _ in families], 260)
    what = draw.columns(family="family", label="condition:N", change="change", **draw.ENDS, value=found.task)
    # Numbers stand on the side where there is room.
    middle = (min((r["change"] for r in drawn), default=0) + max((r["change"] for r in drawn), default=0)) / 2
    controls = [row for row in drawn if not row["single"]]
    layers = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        null_dots(controls, x, y, tooltip=what[1:5], size=60, opacity=0.7),
    ]
    for chosen, colour, shape in ((False, INK, "square"), (True, ALARM, "diamond")):
        some = [row for row in drawn if row["single"] and row["chosen"] is chosen]
        layers += interval_dots(some, x, y, what[1:5], yOffset=draw.JITTER, shape=shape, size=150, color=colour)
        for right, align in ((False, "left"), (True, "right")):
            here = [row for row in some if (row["change"] > middle) is right]
            look: Spec = {"yOffset": draw.JITTER, "dy": -15, "align": align, "color": colour, "fontWeight": 700}
            layers.append(draw.text(here, "says", x=x, y=y, **look))
    return chart(
        name=name,
        title=f"{found.budget:,} weights of {found.site} pruned ({found.sparsity:.2%})",
        reading=_experiment_reading(found),
        layers=layers,
        height=60 + 56 * len(families),
        **what.table(rows),
    )


def _row(one: Condition, family: str, spread: float, *, chosen: bool) -> Spec:
    return {
        "family": family,
        "label": one.label,
        "change": round_to(one.change),
        **bar(one.change_low, one.change_high),
        "value": round_to(one.score.value),
        "says": ("+" if one.change > 0 else "") + number(one.change).replace("-", "−"),
        "spread": round(spread, 3),
        "single": one.label in ("magnitude", "chosen"),
        "chosen": chosen,
    }


def _experiment_reading(found: PruneExperiment) -> str:
    chosen, small = found.chosen, found.magnitude
    said = (
        f"Every condition prunes {found.budget:,} weights of {found.site}. "
        f"By magnitude the {found.task} changes by {small.change:+.3g} "
        f"{found.unit} ({interval_text(small.change_low, small.change_high, '+.3g')}); "
        f"with {found.forced:,} of them forced onto "
        f"{', '.join(map(str, found.dims))} in all layers by {chosen.change:+.3g} "
        f"({interval_text(chosen.change_low, chosen.change_high, '+.3g')}). "
    )
    for one in found.controls:
        if math.isfinite(one.median):
            said += f"{one.kind.capitalize()}: median {one.median:+.3g}, largest {max(c.change for c in one.conditions):+.3g}. "
    return said.strip()
