"""How well vectors say what is alike, by layer.

sts_layers(found)              # Spearman's ρ × 100 of sentences, a panel a task, a line a fix
wic_layers(found)              # accuracy of words in context, a panel a split, a line a fix
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlierlens.charts.base import CONFIG, SCHEMA, TABLE_ROWS, Chart, Spec, field, place, round_to
from outlierlens.charts.dim_names import HALO
from outlierlens.charts.fixes import colours, drawn, left_out, scale, shapes
from outlierlens.charts.palette import INK, MUTED, SURFACE
from outlierlens.similar import HELPS, HURTS, NOTHING, OPEN, Similarity, TaskScores, WordInContext, similarity_rows

WIDTH, HEIGHT = 370, 230  # pixels of a panel
PER_ROW = 2
WORDS = {
    HELPS: "helps", HURTS: "hurts", NOTHING: "makes no difference that can be told from chance", OPEN: "settles nothing",
}  # fmt: skip


@dataclass(frozen=True)
class _Panel:
    """One small picture: values × 100 [layer, fix], lines across it with their names, and its words."""

    title: str
    subtitle: str
    values: np.ndarray
    levels: tuple[tuple[str, float], ...]


def sts_layers(found: Similarity, *, name: str = "sts") -> Chart:
    """Spearman's ρ × 100 of every layer, a line a fix and a panel a task; the largest of each line is ringed.

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
    rows = list(similarity_rows(found))
    columns = ("task", "layer", "fix", "pooled", "mean of subsets", "weighted")
    numbers = [
        [row["task"], row["layer"], row["fix"], *(round_to(100 * row[key]) for key in ("pooled", "mean", "weighted"))]
        for row in rows
    ]
    title = f"{found.provenance.model}: sentence similarity by layer"
    return _chart(name, title, _sts_reading(found), panels, (found.layers, found.fixes, "ρ × 100"), (columns, numbers))


def wic_layers(found: WordInContext, *, name: str = "wic") -> Chart:
    """Accuracy × 100 of every layer at its best threshold from 0.1 to 0.9, a line a fix and a panel a split."""
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
        [split.split, layer, fix, found.thresholds[int(split.accuracy[row, column].argmax())],
         round_to(100 * float(split.accuracy[row, column].max()))]
        for split in found.data
        for row, layer in enumerate(found.layers)
        for column, fix in enumerate(found.fixes)
    ]  # fmt: skip
    title = f"{found.provenance.model}: words in context by layer"
    columns = ("split", "layer", "fix", "above", "accuracy")
    return _chart(
        name, title, _wic_reading(found), panels, (found.layers, found.fixes, "accuracy × 100"), (columns, numbers)
    )


def _chart(
    name: str,
    title: str,
    reading: str,
    panels: Sequence[_Panel],
    axes: tuple[tuple[str, ...], tuple[str, ...], str],
    numbers: tuple[tuple[str, ...], list[list[Any]]],
) -> Chart:
    made = [_drawn(panel, number, *axes) for number, panel in enumerate(panels)]
    rows = [{"hconcat": made[start : start + PER_ROW], "spacing": 34} for start in range(0, len(made), PER_ROW)]
    spec: Spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "vconcat": rows,
        "spacing": 26,
    }
    columns, values = numbers
    reading += left_out(axes[1])
    spec["description"] = reading
    return Chart(name, title, reading, spec, columns, tuple(tuple(row) for row in values[:TABLE_ROWS]), len(values))


def _drawn(panel: _Panel, number: int, layers: tuple[str, ...], fixes: tuple[str, ...], what: str) -> Spec:
    fixes = drawn(fixes)
    values = panel.values[:, : len(fixes)]
    short = {layer: "emb." if layer == "embeddings" else layer for layer in layers}
    data = [
        {"layer": short[layer], "fix": fix, "value": round_to(float(values[row, column]))}
        for column, fix in enumerate(fixes)
        for row, layer in enumerate(layers)
    ]
    top = [
        {"layer": short[layers[int(best)]], "fix": fix, "value": round_to(float(values[best, column]))}
        for column, (fix, best) in enumerate(zip(fixes, values.argmax(0), strict=True))
    ]
    ends = [*values.ravel().tolist(), *(value for _, value in panel.levels)]
    ends = [value for value in ends if math.isfinite(value)]
    pad = 0.06 * (max(ends) - min(ends)) or 1.0
    left = number % PER_ROW == 0
    x: Spec = {
        "field": "layer",
        "type": "ordinal",
        "title": "layer",
        "sort": list(short.values()),
        "scale": {"domain": list(short.values()), "type": "point", "padding": 0.4},
        "axis": {"labelAngle": 0, "grid": False},
    }
    y = field(
        "value", what if left else None,  # type: ignore[arg-type]
        scale={"domain": [round_to(min(ends) - pad), round_to(max(ends) + pad)], "nice": True, "zero": False},
        axis={"tickCount": 6},
    )  # fmt: skip
    legend = {"title": None, "columns": 6} if number == 0 else None
    colour, shape = _of_fix(fixes, colours(fixes), legend), _of_fix(fixes, shapes(fixes), legend)
    tooltip = [field("fix", "fix", "nominal"), field("layer", "layer", "nominal"), field("value", what)]
    marks: list[Spec] = [
        {
            "data": {"values": data},
            "mark": {"type": "line", "strokeWidth": 1.8},
            "encoding": {"x": x, "y": y, "color": colour},
        },
        {
            "data": {"values": data},
            "mark": {"type": "point", "filled": True, "size": 34, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip},
        },
        {
            "data": {"values": top},
            "mark": {"type": "point", "filled": False, "size": 150, "shape": "circle", "strokeWidth": 1.6},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
        },
    ]
    for says, value in panel.levels:
        marks += _level(says, value, y)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "layer": marks,
        "title": {
            "text": panel.title,
            "subtitle": panel.subtitle,
            "color": INK,
            "subtitleColor": MUTED,
            "fontSize": 13.5,
            "subtitleFontSize": 12,
            "anchor": "start",
        },
    }


def _of_fix(fixes: tuple[str, ...], looks: Sequence[str], legend: Spec | None) -> Spec:
    return {
        "field": "fix",
        "type": "nominal",
        "scale": scale(fixes, looks),
        "legend": legend,
    }


def _level(says: str, value: float, y: Spec) -> list[Spec]:
    """A dashed line with its name at the right end."""
    row = [{"value": round_to(value), "says": f"{says} {value:.1f}"}]
    words: Spec = {"type": "text", "align": "right", "x": "width", "dx": -4, "dy": -7, "fontSize": 11.5}
    text = {"y": y, "text": {"field": "says", "type": "nominal"}}
    return [
        {
            "data": {"values": row},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [5, 3], "strokeWidth": 1.3},
            "encoding": {"y": y},
        },
        *(
            {"data": {"values": row}, "mark": words | ink, "encoding": text}
            for ink in (HALO | {"color": SURFACE}, {"color": MUTED})
        ),
    ]


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
