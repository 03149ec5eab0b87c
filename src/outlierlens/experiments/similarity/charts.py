"""How well vectors say what is alike, by layer.

sts_layers(found)              # Spearman's ρ × 100 of sentences, a panel per task, a line a fix
wic_layers(found)              # accuracy of words in context, a panel per split, a line a fix
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.experiments.similarity.result import (
    HELPS,
    HURTS,
    NOTHING,
    OPEN,
    Similarity,
    TaskScores,
    WordInContext,
    similarity_rows,
)
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, colours, drawn, field, left_out, place, round_to, shapes
from outlierlens.view.charts.draw import baseline, composed, grid, heading, lines, panel

WIDTH, HEIGHT = 370, 230  # pixels of a panel
PER_ROW = 2
WORDS = {
    HELPS: "helps",
    HURTS: "hurts",
    NOTHING: "makes no difference that can be told from chance",
    OPEN: "settles nothing",
}


@dataclass(frozen=True)
class _Panel:
    """One small picture: values × 100 [layer, fix], lines across it with their names, and its words."""

    title: str
    subtitle: str
    values: np.ndarray
    levels: tuple[tuple[str, float], ...]


def sts_layers(found: Similarity, *, name: str = "sts") -> Chart:
    """Spearman's ρ × 100 of every layer, a line a fix and a panel per task; the largest of each line is ringed.

    Dashed are vectors without a context, raw. All pairs of a task together (mteb's way). The first six fixes are drawn.
    """
    panels = []
    for task in found.tasks:
        levels = tuple(
            (one.name, 100 * float(value))
            for one, value in zip(found.static, task.static.pooled[:, 0] if found.static else (), strict=True)
        )
        subtitle = f"{task.n_pairs:,} pairs" + (f"; without {', '.join(task.missing)}" if task.missing else "")
        panels.append(_Panel(task.title, subtitle, 100 * task.layers.pooled, levels))
    numbers = [
        [row["task"], row["layer"], row["fix"], *(round_to(100 * row[key]) for key in ("pooled", "mean", "weighted"))]
        for row in similarity_rows(found)
    ]
    return composed(
        name=name,
        title=f"{found.provenance.model}: sentence similarity by layer",
        reading=_sts_reading(found) + left_out(found.fixes),
        body=_grid(panels, found.layers, found.fixes, "ρ × 100"),
        columns=("task", "layer", "fix", "pooled", "mean of subsets", "weighted"),
        rows=numbers,
    )


def wic_layers(found: WordInContext, *, name: str = "wic") -> Chart:
    """Accuracy × 100 of every layer at its best threshold from 0.1 to 0.9, a line a fix and a panel per split."""
    panels = [
        _Panel(
            f"WiC, {split.split}",
            f"{split.n_pairs:,} pairs; best of {len(found.thresholds)} thresholds at each layer",
            100 * split.accuracy.max(2),
            (("always “the same”", 100 * split.all_true),),
        )
        for split in found.data
    ]
    numbers = [
        [split.split, layer, fix, found.thresholds[int(accuracy.argmax())], round_to(100 * float(accuracy.max()))]
        for split in found.data
        for row, layer in enumerate(found.layers)
        for column, fix in enumerate(found.fixes)
        for accuracy in (split.accuracy[row, column],)
    ]
    return composed(
        name=name,
        title=f"{found.provenance.model}: words in context by layer",
        reading=_wic_reading(found) + left_out(found.fixes),
        body=_grid(panels, found.layers, found.fixes, "accuracy × 100"),
        columns=("split", "layer", "fix", "above", "accuracy"),
        rows=numbers,
    )


def _grid(panels: Sequence[_Panel], layers: tuple[str, ...], fixes: tuple[str, ...], what: str) -> Spec:
    drawn_panels = [_drawn(panel, number, layers, fixes, what) for number, panel in enumerate(panels)]
    return grid(drawn_panels, PER_ROW, across=34, down=26)


def _drawn(one: _Panel, number: int, layers: tuple[str, ...], fixes: tuple[str, ...], what: str) -> Spec:
    fixes = drawn(fixes)
    values = one.values[:, : len(fixes)]
    data = [
        {"layer": layer, "fix": fix, "value": round_to(float(values[row, column]))}
        for column, fix in enumerate(fixes)
        for row, layer in enumerate(layers)
    ]
    top = [
        {"layer": layers[int(best)], "fix": fix, "value": round_to(float(values[best, column]))}
        for column, (fix, best) in enumerate(zip(fixes, values.argmax(0), strict=True))
    ]
    ends = [*values.ravel().tolist(), *(value for _, value in one.levels)]
    ends = [value for value in ends if math.isfinite(value)]
    pad = 0.06 * (max(ends) - min(ends)) or 1.0
    scale = {"domain": [round_to(min(ends) - pad), round_to(max(ends) + pad)], "nice": True, "zero": False}
    title = what if number % PER_ROW == 0 else None
    x, y = draw.layer_axis(layers), field("value", title, scale=scale, axis={"tickCount": 6})
    colour, shape = draw.both("fix", fixes, colours(fixes), shapes(fixes), columns=6)
    if number:
        colour["legend"] = shape["legend"] = None
    columns = draw.columns(fix="fix:N", layer="layer:N", value=what)
    ring: Spec = {"filled": False, "size": 150, "shape": "circle", "strokeWidth": 1.6}
    marks = [
        *lines(data, x, y, (colour, shape), columns, width=1.8, size=34),
        draw.mark("point", top, x=x, y=y, color=colour, tooltip=columns, **ring),
    ]
    for says, value in one.levels:
        marks += baseline(value, f"{says} {value:.1f}", y=y, strokeDash=[5, 3], strokeWidth=1.3)
    return panel(marks, WIDTH, HEIGHT, heading(one.title, one.subtitle))


def _sts_reading(found: Similarity) -> str:
    text = (
        "Spearman's rank correlation of cosines with people's scores, × 100, by layer; the ring is the best layer of a fix, "
        "the dashed line vectors without a context. "
    )
    return text + " ".join(_task_says(task, found.fixes) for task in found.tasks)


def _task_says(task: TaskScores, fixes: Sequence[str]) -> str:
    how = "held out" if any(one.how == "held out" for one in task.choices) else "best"
    chosen = "at a layer chosen on other pairs" if how == "held out" else "at its best layer"
    raw = task.choice("raw", how)
    parts = [f"raw vectors {100 * raw.score:.1f} ({place(raw.layer)})"]
    for fix in fixes:
        if fix == "raw":
            continue
        one = task.choice(fix, how)
        parts.append(f"{fix} {100 * one.change:+.1f} ({task.interval(one, '+.1f')}; {one.verdict})")
    return f"{task.title}, each {chosen}: {', '.join(parts)}."


def _wic_reading(found: WordInContext) -> str:
    text = (
        "Share of pairs for which “cosine above a threshold” says rightly that a word means the same, × 100, by layer, each at "
        "its best threshold from 0.1 to 0.9 on the pairs shown; the ring is the best layer of a fix. "
    )
    raw = found.choice("raw")
    text += f"Raw vectors reach {100 * raw.accuracy:.1f} on train ({place(raw.layer)}, chosen on the same pairs), "
    text += f"{100 * raw.crossed:.1f} cross-validated. "
    for one in found.choices:
        if one.thresholds == "grid" and one.fix != "raw":
            text += (
                f"{one.fix} {WORDS[one.verdict]}: {100 * one.change:+.1f} on train, {100 * one.crossed_change:+.1f} "
            )
            text += f"({found.data[0].interval(one.crossed_low, one.crossed_high, '+.1f')}) cross-validated. "
    return text.strip()
