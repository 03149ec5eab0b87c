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

from outlierlens.errors import BadInput
from outlierlens.experiments.track.charts_marks import (
    CURVES,
    MAX_POINTS,
    choice_words,
    curve_names,
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
from outlierlens.experiments.track.result import Track
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    BAND,
    FAINT,
    INK,
    PLAIN_NUMBER,
    Chart,
    Spec,
    chart,
    drawable,
    field,
    label,
    looks,
    round_to,
    rounded,
)
from outlierlens.view.charts.draw import above, beside, composed, inner, names_at_ends
from outlierlens.view.charts.token_lines import Words, token_lines

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
        "perplexity",
        "perplexity (log scale)",
        scale={"type": "log", "domain": ends, "nice": False},
        axis={"orient": "right", "grid": False, "labelExpr": PLAIN_NUMBER, "values": round_values(ends)},
    )
    what = draw.columns(step="step", curve="curve:N", value="loss", perplexity="perplexity")
    styles: dict[str, Spec] = {
        "loss": {"strokeWidth": 1.2, "color": FAINT},
        "eval_loss": {"strokeWidth": 2, "color": INK},
    }
    curve_layers = [
        draw.line([point for point in points if point["curve"] == CURVES[key]], x=x, y=y, tooltip=what, **styles[key])
        for key in curves
    ] + curve_names(points, x, y)
    layers: list[Spec] = [
        {"layer": curve_layers},  # of one axis, apart from the one on the right
        *events(track, named, x),
        draw.mark("point", points[:1], x=x, y=right, opacity=0),
    ]
    made = chart(
        name=name,
        title="Loss over training",
        reading=loss_words(track),
        layers=layers,
        height=HEIGHT,
        **what.table(reversed(points)),
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
    what = track.scale_name if part == "scale" else part
    reading = f"Each line is one dimension's {what} in {where}{choice_words(track, named)}; " + named_words(
        track, values, named, what
    )
    words = _Words(name or f"emergence-{part}", f"{what.capitalize()} of {where}", what, reading)
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
        {"step": int(step), "dim": dim, "part": part, "name": label(dim), "layers": int(layers[i, column])}
        | rounded(3, z=z[i, column])
        for part, z, layers in parts
        for column, dim in enumerate(track.followed)
        if dim in shown
        for i, step in enumerate(track.steps)
    ]
    x, y = step_axis(track), field("z", "|z|, mean over layers", scale={"zero": True})
    dash = draw.by("part", {"scale": [1, 0], "bias": [4, 3]}, symbolType="stroke", symbolStrokeWidth=2)
    dash |= {} if track.has_bias else {"legend": None}
    what = draw.columns(dim="dimension", part="of:N", step="step", z="|z|", layers="layers past the threshold")
    top = max([float(row["z"] or 0.0) for row in rows], default=1.0)
    layers = [
        draw.level(track.rule.levels[1], y=y, strokeDash=[2, 3]),
        draw.line(rows, x=x, y=y, color=draw.dim_strokes(shown), strokeDash=dash, tooltip=what, strokeWidth=2),
        *names_at_ends(rows, shown, x, y, by=("part",), span=(0.0, top)),
        *events(track, named, x, legend=True),
    ]
    return chart(
        name=name,
        title="Distance from the other dimensions",
        reading=(
            f"How many standard deviations the followed dimensions stand from their layer's mean, averaged over "
            f"{track.n_layers} layers; the dotted line is {track.rule.levels[1]:g}. " + emerged_words(track)
        ),
        layers=layers,
        height=HEIGHT - 40,
        **what.table(sorted(rows, key=lambda row: -int(row["step"]))),
    )


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
    columns = [above([inner(one, width=360, height=HEIGHT) for one in group], 30, apart) for group in groups]
    panels = [one for group in groups for one in group]
    return composed(
        name=name,
        title=f"{track.provenance.model}: outliers over training",
        reading=" ".join(panel.reading for panel in panels),
        body=beside(columns, 40, apart),
        **panels[-1].numbers,
    )


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
        {"step": int(step)} | rounded(6, low=low, high=high)
        for step, (low, high) in zip(track.steps, spread, strict=True)
    ]
    columns = draw.columns(dim="dimension", step="step", value=what)
    others = [{key: value for key, value in row.items() if key != "name"} for row in rows(plain)]
    faint: Spec = {"color": FAINT, "strokeWidth": 0.6, "opacity": 0.7}
    layers: list[Spec] = [
        draw.area(band, x=x, **draw.between(y=y), color=BAND, opacity=0.35),
        draw.line(others, x=x, y=y, detail=draw.nominal("dim"), tooltip=columns, **faint),
    ]
    if shown:
        layers.append(draw.line(marked, x=x, y=y, color=draw.dim_strokes(shown), tooltip=columns, strokeWidth=2.4))
        layers += names_at_ends(marked, shown, x, y, span=(float(np.min(spread)), float(np.max(spread))))
    return chart(
        name=words.name,
        title=words.title,
        reading=words.reading,
        layers=[*layers, *events(track, named, x, legend=True)],
        height=HEIGHT,
        **columns.table(sorted(marked, key=lambda row: -row["step"]), digits=6),
    )


def token_panel(track: Track, named: Sequence[int] | None = None, *, name: str = "emergence-tokens") -> Chart:
    """Hidden values of the first tokens of one text after the middle layer at the last step, every token a line.

    Raises:
        BadInput: no states of tokens were recorded.
    """
    if not track.tokens.size:
        raise BadInput("no tokens were recorded; track checkpoints with --text, or watch the training")
    states = drawable(np.asarray(track.tokens))
    where, step = f"layer {track.n_layers // 2}", f"{int(track.steps[-1]):,}"
    of = f"“{track.text[:60]}”" if track.text else "the probe text"
    choice = f" (an even choice of the {track.width:,} dimensions)" if len(track.dims) < track.width else ""
    words = Words(
        name,
        f"Tokens after {where}, step {step}",
        f"one of the first {len(states)} tokens of {of} after {where} at step {step}{choice}",
    )
    tokens = [f"token {number}" for number in range(len(states))]
    return token_lines(states, np.array(track.dims), tokens, named_dims(track) if named is None else named, words)
