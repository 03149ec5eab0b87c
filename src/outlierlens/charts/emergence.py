"""Outliers over training, in the three panels of Kovaleva et al. (2021), figure 3.

emergence(track)             # all panels as one picture, for a file
loss_panel(track)            # loss over steps, perplexity on the right
norm_panel(track, "scale")   # every dimension's scale in one layer, outliers in colour; likewise "bias"
token_panel(track)           # hidden states of one text's tokens at the last step, every token a line; of `charts.tokens`
state_panel(track)           # their mean over steps, every dimension a line
sigma_panel(track)           # |z| averaged over layers, against the threshold
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from outlierlens.charts.base import (
    CONFIG,
    PLAIN_NUMBER,
    SCHEMA,
    Chart,
    Spec,
    chart,
    field,
    label,
    looks,
    round_to,
)
from outlierlens.charts.dim_names import names_at_ends
from outlierlens.charts.emergence_marks import (
    CURVES,
    MAX_POINTS,
    choice_words,
    curve_names,
    dim_strokes,
    emerged_words,
    events,
    loss_words,
    losses_of,
    named_dims,
    named_words,
    round_values,
    step_axis,
    thinned,
)
from outlierlens.charts.palette import BAND, FAINT, INK, MUTED, SURFACE
from outlierlens.charts.tokens import token_panel
from outlierlens.errors import BadInput
from outlierlens.tracked import Track

HEIGHT = 280
Part = Literal["scale", "bias"]


def loss_panel(track: Track, named: Sequence[int] | None = None, *, name: str = "emergence-loss") -> Chart:
    """Training and evaluation loss over steps, in nats per token; the axis on the right reads the same as perplexity.

    Raises:
        BadInput: no loss was logged.
    """
    curves = losses_of(track)
    if not curves:
        raise BadInput("no loss was logged beside these checkpoints; name a log with --log")
    named = named_dims(track) if named is None else named
    values = np.concatenate([curve.values for curve in curves.values()])
    low, high = float(values.min()), float(values.max())
    edge = 0.04 * (high - low) or 0.1
    domain = [round_to(low - edge, 6), round_to(high + edge, 6)]
    points = [
        {"step": int(step), "value": round_to(value), "curve": CURVES[key], "perplexity": round_to(math.exp(value))}
        for key, curve in curves.items()
        for step, value in zip(*thinned(curve), strict=True)
    ]
    x = step_axis(track)
    y = field("value", "loss, nats per token", scale={"domain": domain, "zero": False, "nice": False})
    # exp of the left axis on a logarithmic scale: one curve, two ways to read it.
    ends = [round_to(math.exp(min(end or 0.0, 700.0)), 6) for end in domain]
    right = field(
        "perplexity", "perplexity (log scale)", scale={"type": "log", "domain": ends, "nice": False},
        axis={"orient": "right", "grid": False, "labelExpr": PLAIN_NUMBER, "values": round_values(ends)},
    )  # fmt: skip
    tooltip = [
        field("step", "step"),
        field("curve", "curve", "nominal"),
        field("value", "loss"),
        field("perplexity", "perplexity"),
    ]
    curve_layers: list[Spec] = [
        *(
            {
                "data": {"values": [point for point in points if point["curve"] == CURVES[key]]},
                "mark": {
                    "type": "line",
                    "strokeWidth": 1.2 if key == "loss" else 2,
                    "color": FAINT if key == "loss" else INK,
                },
                "encoding": {"x": x, "y": y, "tooltip": tooltip},
            }
            for key in curves
        ),
        *curve_names(points, x, y),
    ]
    layers: list[Spec] = [
        {"layer": curve_layers},  # of one axis, apart from the one on the right
        *events(track, named, x),
        {
            "data": {"values": points[:1]},
            "mark": {"type": "point", "opacity": 0},
            "encoding": {"x": x, "y": right},
        },
    ]
    made = chart(
        name=name,
        title="Loss over training",
        reading=loss_words(track),
        layers=layers,
        height=HEIGHT,
        columns=("step", "curve", "loss", "perplexity"),
        rows=([p["step"], p["curve"], p["value"], p["perplexity"]] for p in reversed(points)),
    )
    made.spec["resolve"] = {"scale": {"y": "independent"}}
    return made


def norm_panel(
    track: Track, part: Part = "scale", named: Sequence[int] | None = None, *, name: str | None = None
) -> Chart:
    """Scale or bias of one layer over steps, every dimension a line, the named ones in colour or ink.

    Raises:
        BadInput: the norm has no bias.
    """
    if part == "bias" and not track.has_bias:
        raise BadInput(f"{track.site} has no bias")
    values = np.asarray(track.scale if part == "scale" else track.bias)  # [step, column]
    spread = np.asarray(track.scale_range if part == "scale" else track.bias_range)
    named = named_dims(track) if named is None else named
    where = f"{track.site}, layer {track.layer}"
    reading = f"Each line is one dimension's {part} in {where}{choice_words(track, named)}; " + named_words(
        track, values, named, part
    )
    words = _Words(name or f"emergence-{part}", f"{part.capitalize()} of {where}", part, reading)
    return _lines(track, values, spread, named, words)


def state_panel(track: Track, named: Sequence[int] | None = None, *, name: str = "emergence-states") -> Chart:
    """Hidden state after the middle layer, averaged over one text's tokens, every dimension a line.

    Raises:
        BadInput: no states were recorded.
    """
    if not track.states.size:
        raise BadInput("no hidden states were recorded; track checkpoints with --text, or watch the training")
    values = np.asarray(track.states)
    named = named_dims(track) if named is None else named
    spread = np.stack([values.min(axis=1), values.max(axis=1)], axis=1)
    of = f" of “{track.text[:60]}”" if track.text else " of the probe text"
    reading = (
        f"Each line is one dimension of the hidden state after layer {track.n_layers // 2}, averaged over the tokens"
        f"{of}{choice_words(track, named)}; {named_words(track, values, named, 'value')}"
    )
    title = f"Hidden state after layer {track.n_layers // 2}"
    return _lines(track, values, spread, named, _Words(name, title, "value", reading))


def sigma_panel(track: Track, named: Sequence[int] | None = None, *, name: str = "emergence-sigma") -> Chart:
    """|z| averaged over layers of the followed dimensions, for scale (and bias, dashed), against the threshold.

    Raises:
        BadInput: no dimension is followed.
    """
    if not track.emergences:
        raise BadInput("no dimension passed at any step, so none is followed; name some with --dims")
    named = named_dims(track) if named is None else named
    shown = looks(named, track.followed)
    parts: list[tuple[Part, np.ndarray, np.ndarray]] = [("scale", track.z_scale, track.layers_scale)]
    parts += [("bias", track.z_bias, track.layers_bias)] if track.has_bias else []
    rows = [
        {
            "step": int(step), "z": round_to(float(z[i, column]), 3), "layers": int(layers[i, column]),
            "dim": dim, "part": part, "name": label(dim),
        }
        for part, z, layers in parts
        for column, dim in enumerate(track.followed)
        if dim in shown
        for i, step in enumerate(track.steps)
    ]  # fmt: skip
    x, y = step_axis(track), field("z", "|z|, mean over layers", scale={"zero": True})
    legend = {"title": None, "symbolType": "stroke", "symbolStrokeWidth": 2} if track.has_bias else None
    scale = {"domain": ["scale", "bias"], "range": [[1, 0], [4, 3]]}
    dash = {"field": "part", "type": "nominal", "legend": legend, "scale": scale}
    tooltip = [
        field("dim", "dimension"),
        field("step", "step"),
        field("part", "of", "nominal"),
        field("z", "|z|"),
        field("layers", "layers past the threshold"),
    ]
    threshold = {"z": track.rule.n_sigma}
    layers = [
        {"data": {"values": [threshold]}, "mark": {"type": "rule", "color": MUTED, "strokeDash": [2, 3]}, "encoding": {"y": y}},
        {
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": x, "y": y, "color": dim_strokes(shown), "strokeDash": dash, "tooltip": tooltip},
        },
        *names_at_ends(rows, shown, x, y, by=("part",), span=(0.0, max([float(r["z"] or 0.0) for r in rows], default=1.0))),
        *events(track, named, x, legend=True),
    ]  # fmt: skip
    return chart(
        name=name,
        title="Distance from the other dimensions",
        reading=(
            f"How many standard deviations the followed dimensions stand from their layer's mean, averaged over "
            f"{track.n_layers} layers; the dotted line is {track.rule.n_sigma:g}. " + emerged_words(track)
        ),
        layers=layers,
        height=HEIGHT - 40,
        columns=("dimension", "of", "step", "|z|", "layers past the threshold"),
        rows=([r["dim"], r["part"], r["step"], r["z"], r["layers"]] for r in sorted(rows, key=lambda r: -int(str(r["step"])))),
    )  # fmt: skip


def emergence(track: Track, named: Sequence[int] | None = None, *, name: str = "emergence") -> Chart:
    """Loss, scale and bias, and hidden states where they were recorded, side by side as in the paper's figure 3.

    There the states are those of one text's tokens at the end; below them their mean over steps.
    """
    named = named_dims(track) if named is None else named
    middle = [norm_panel(track, part, named) for part in (("scale", "bias") if track.has_bias else ("scale",))]
    left = [loss_panel(track, named)] if losses_of(track) else []
    left += [sigma_panel(track, named)] if track.emergences else []
    right = [token_panel(track, named)] if track.tokens.size else []
    right += [state_panel(track, named)] if track.states.size else []
    groups = [group for group in (left, middle, right) if group]
    apart = ("color", "shape", "x", "strokeDash")
    independent = {"resolve": {"scale": dict.fromkeys(apart, "independent")}}
    columns = [independent | {"vconcat": [_panel(one) for one in group], "spacing": 30} for group in groups]
    panels = [one for group in groups for one in group]
    reading = " ".join(panel.reading for panel in panels)
    spec = {
        "$schema": SCHEMA,
        "description": reading,
        "background": SURFACE,
        "config": CONFIG,
        "hconcat": columns,
        **independent,
        "spacing": 40,
    }
    last = panels[-1]
    return Chart(
        name, f"{track.provenance.model}: outliers over training", reading, spec, last.columns, last.rows, last.total
    )


def _panel(one: Chart) -> Spec:
    """A chart as part of a larger one."""
    kept = {key: value for key, value in one.spec.items() if key in ("layer", "resolve")}
    return kept | {
        "width": 360,
        "height": HEIGHT,
        "title": {"text": one.title, "color": INK, "fontSize": 13, "anchor": "start"},
    }


@dataclass(frozen=True)
class _Words:
    """What a panel of lines is called: file name, title, the quantity, and the picture in words."""

    name: str
    title: str
    what: str
    reading: str


def _lines(track: Track, values: np.ndarray, spread: np.ndarray, named: Sequence[int], words: _Words) -> Chart:
    what = words.what
    x, y = step_axis(track), field("value", what, scale={"zero": False})
    shown = looks(named, track.dims)
    plain = [column for column, dim in enumerate(track.dims) if dim not in shown]
    most = max(MAX_POINTS // max(len(track.steps), 1), 8)
    if len(plain) > most:
        ranked = sorted(plain, key=lambda column: float(values[-1, column]))
        plain = [ranked[i] for i in np.linspace(0, len(ranked) - 1, most).round().astype(int).tolist()]

    def rows(columns: Sequence[int]) -> list[Spec]:
        return [
            {"step": int(step), "value": round_to(float(values[i, column]), 6), "dim": dim, "name": label(dim)}
            for column in columns
            for dim in (track.dims[column],)
            for i, step in enumerate(track.steps)
        ]

    marked = rows([column for column, dim in enumerate(track.dims) if dim in shown])
    band = [
        {"step": int(step), "low": round_to(float(low), 6), "high": round_to(float(high), 6)}
        for step, (low, high) in zip(track.steps, spread, strict=True)
    ]
    tooltip = [field("dim", "dimension"), field("step", "step"), field("value", what)]
    layers: list[Spec] = [
        {
            "data": {"values": band},
            "mark": {"type": "area", "color": BAND, "opacity": 0.35},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": [{k: v for k, v in row.items() if k != "name"} for row in rows(plain)]},
            "mark": {"type": "line", "color": FAINT, "strokeWidth": 0.6, "opacity": 0.7},
            "encoding": {"x": x, "y": y, "detail": {"field": "dim", "type": "nominal"}, "tooltip": tooltip},
        },
    ]
    if shown:
        layers.append(
            {
                "data": {"values": marked},
                "mark": {"type": "line", "strokeWidth": 2.4},
                "encoding": {"x": x, "y": y, "color": dim_strokes(shown), "tooltip": tooltip},
            }
        )
        layers += names_at_ends(marked, shown, x, y, span=(float(np.min(spread)), float(np.max(spread))))
    return chart(
        name=words.name,
        title=words.title,
        reading=words.reading,
        layers=[*layers, *events(track, named, x, legend=True)],
        height=HEIGHT,
        columns=("dimension", "step", what),
        rows=([r["dim"], r["step"], r["value"]] for r in sorted(marked, key=lambda r: -r["step"])),
    )
