"""What switching off does, beside its controls: one strip of dots a family of control sets."""

import math
from collections.abc import Sequence

import numpy as np

from outlierlens.charts.base import Chart, Spec, bar, begun, chart, field, number, round_to, symmetric
from outlierlens.charts.palette import ALARM, INK, MUTED
from outlierlens.damage import Condition, Control, Damage
from outlierlens.interval_words import interval_text

GOLDEN = 0.6180339887  # multiples of it, modulo 1, spread dots evenly whatever their number


def losses(damage: Damage, *, name: str = "loss") -> Chart:
    """Change of the task's value with the chosen dimensions off and with each control set off, intact = 0."""
    chosen = damage.chosen
    families: list[tuple[str, Sequence[Condition]]] = [(_chosen_name(chosen.dims), (chosen,))]
    families += [(f"{control.kind} ({len(control.conditions)} sets)", control.conditions) for control in _drawn(damage)]
    rows = [
        _row(
            condition,
            family,
            0.5 if len(conditions) == 1 else (0.5 + i * GOLDEN) % 1,
            chosen=number == 0,
            unit=damage.of_change,
        )
        for number, (family, conditions) in enumerate(families)
        for i, condition in enumerate(conditions)
    ]
    ends = [end for end in (chosen.change_low, chosen.change_high) if math.isfinite(end)]
    drawn = [row for row in rows if row["change"] is not None]
    values = np.array([row["change"] for row in drawn] + ends + [0.0])
    scale = symmetric(values, factor=30.0)
    # Two lines: one would be cut off on a narrow screen.
    what = [f"lost {damage.measured}"] if damage.metric else [f"change of the {damage.task}", damage.of_change]
    title = [*what[:-1], what[-1] + (" (symmetric log scale)" if scale.log else "")]
    x: Spec = field(
        "change", title, scale=scale.scale | {"padding": 14} if not scale.log else scale.scale, axis=scale.axis
    )
    y = {
        "field": "family",
        "type": "nominal",
        "title": None,
        "sort": [family for family, _ in families],
        "axis": {"labelLimit": 190, "ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.2},
    }
    jitter = {"field": "spread", "type": "quantitative", "scale": {"domain": [0, 1]}, "axis": None, "legend": None}
    tooltip = [
        field("label", "off", "nominal"),
        field("dims", "dimensions", "nominal"),
        field("change", "change"),
        field("low", "95 % from"),
        field("high", "to"),
        field("value", damage.task),
    ]
    tooltip += [field("perplexity", "perplexity")] if chosen.score.perplexity is not None else []
    layers = _layers(drawn, x, y, jitter, tooltip)
    return chart(
        name=name,
        title=f"{begun(damage.measured)} with dimensions off ({damage.mode})",
        reading=reading(damage),
        layers=layers,
        height=60 + 62 * len(families),
        columns=("off", "dimensions", "change", "95 % from", "to", damage.task, "perplexity"),
        rows=(
            [r["label"], r["dims"], r["change"], r["low"], r["high"], r["value"], r["perplexity"]]
            for r in [_row(damage.intact, "intact", 0.5), *rows]
        ),
    )


def reading(damage: Damage) -> str:
    """The picture in words: the chosen set's change with its interval, and where it stands among each family."""
    chosen = damage.chosen
    if not math.isfinite(chosen.change):
        return f"With {few(chosen.dims)} off the {damage.measured} is infinite or undefined, which no scale can show."
    text = (
        f"With {few(chosen.dims)} off the {damage.measured} changes by {chosen.change:+.3g} {damage.of_change} "
        f"(95 % interval {interval_text(chosen.change_low, chosen.change_high, '+.3g')}). "
    )
    for control in _drawn(damage):
        text += (
            f"{control.kind.capitalize()} sets of the same size: median {control.median:+.3g}, "
            f"95th percentile {control.percentile_95:+.3g}, mean {control.mean:+.3g}"
            + ("" if control.p is None else f"; rank p of the chosen set {control.p:.3g}")
            + ". "
        )
    return text.strip()


def _drawn(damage: Damage) -> list[Control]:
    """Without ordinary sets: most of them are random ones."""
    return [control for control in damage.controls if control.kind != "ordinary"]


def _chosen_name(dims: Sequence[int]) -> str:
    return f"chosen: {few(dims)}" if len(dims) <= 3 else f"chosen: {len(dims)} dimensions"


def few(dims: Sequence[int], most: int = 6) -> str:
    """Dimensions as text, cut after `most`."""
    shown = ", ".join(str(dim) for dim in sorted(dims)[:most])
    return shown + (f" and {len(dims) - most} more" if len(dims) > most else "")


def _row(condition: Condition, family: str, spread: float, *, chosen: bool = False, unit: str = "") -> Spec:
    by_layer = condition.by_layer
    dims = few(condition.dims) if not by_layer else f"other positions in each of {len(by_layer)} layers"
    perplexity = condition.score.perplexity
    return {
        "family": family,
        "label": condition.label,
        "dims": dims,
        "change": round_to(condition.change),
        **bar(condition.change_low, condition.change_high),
        "value": round_to(condition.score.value),
        "perplexity": None if perplexity is None else round_to(perplexity),
        "says": f"{number(condition.change)} {unit}" if perplexity is None else f"perplexity {number(perplexity)}",
        "spread": round(spread, 3),
        "chosen": chosen,
    }


def chosen_is_rightmost(rows: list[Spec]) -> bool:
    """Whether the chosen set stands right of the middle between the least and the largest change."""
    changes = [r["change"] for r in rows]
    return bool(rows) and rows[0]["change"] > (min(changes) + max(changes)) / 2


def _layers(rows: list[Spec], x: Spec, y: Spec, jitter: Spec, tooltip: list[Spec]) -> list[Spec]:
    # The text grows away from the nearer edge.
    align = "right" if chosen_is_rightmost(rows) else "left"
    chosen, controls = [r for r in rows if r["chosen"]], [r for r in rows if not r["chosen"]]
    return [
        {
            "data": {"values": [{"change": 0, "text": "intact"}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": x},
        },
        {
            "data": {"values": [{"change": 0, "text": "intact"}]},
            "mark": {"type": "text", "y": -8, "color": MUTED},
            "encoding": {"x": x, "text": {"field": "text", "type": "nominal"}},
        },
        {
            "data": {"values": controls},
            "mark": {"type": "point", "shape": "circle", "size": 55, "color": MUTED, "filled": True, "opacity": 0.6},
            "encoding": {"x": x, "y": y, "yOffset": jitter, "tooltip": tooltip},
        },
        {
            "data": {"values": chosen},
            "mark": {"type": "rule", "color": ALARM, "strokeWidth": 2},
            "encoding": {
                "x": x | {"field": "low"},
                "x2": {"field": "high"},
                "y": y,
                "yOffset": jitter,
                "tooltip": tooltip,
            },
        },
        {
            "data": {"values": chosen},
            "mark": {"type": "text", "dy": -16, "align": align, "fontWeight": 700, "color": ALARM},
            "encoding": {"x": x, "y": y, "yOffset": jitter, "text": {"field": "says", "type": "nominal"}},
        },
        {
            "data": {"values": chosen},
            "mark": {"type": "point", "shape": "diamond", "size": 170, "color": ALARM, "filled": True, "opacity": 1},
            "encoding": {"x": x, "y": y, "yOffset": jitter, "tooltip": tooltip},
        },
    ]
