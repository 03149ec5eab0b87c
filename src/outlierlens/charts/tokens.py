"""The token vectors of one input, outliers marked: `token_vectors(passage, named)`, after Kovaleva et al.'s first figure."""

from collections.abc import Sequence

import numpy as np

from outlierlens.charts.base import (
    Chart,
    Spec,
    chart,
    dim_colour,
    dim_shape,
    drawable,
    field,
    label,
    looks,
    number,
    place,
    round_to,
    symmetric,
    visible,
)
from outlierlens.charts.palette import FAINT
from outlierlens.observation import Passage

MAX_TOKENS = 24
MAX_COLUMNS = 1024


def token_vectors(passage: Passage, named: Sequence[int], *, layer: str | None = None, prefix: str = "") -> Chart:
    """Hidden values of each token by dimension at one layer (the middle one, unless given)."""
    row = len(passage.layers) // 2 if layer is None else passage.layers.index(layer)
    tokens = [visible(token) for token in passage.tokens[:MAX_TOKENS]]
    states = drawable(passage.states[row, : len(tokens)])  # [token, column]
    dims = np.array(passage.dims)
    if len(dims) > MAX_COLUMNS:
        size = np.abs(states).max(axis=0) + np.where(np.isin(dims, named), np.inf, 0)
        kept = np.sort(np.argsort(-size)[:MAX_COLUMNS])
        states, dims = states[:, kept], dims[kept]
    shown = looks(named, dims)
    order = np.argsort(dims)
    states, dims = states[:, order], dims[order]
    scale = symmetric(states)
    x = field(
        "d",
        "dimension",
        scale={"domain": [-1, int(dims.max()) + 1], "nice": False},
        axis={"grid": False, "tickCount": 12},
    )
    title = "hidden value" + (" (symmetric log scale)" if scale.log else "")
    y = field("v", title, scale=scale.scale, axis=scale.axis)
    lines = [
        {"t": t, "d": dims.tolist(), "v": [round_to(v, 3) for v in states[t].tolist()]} for t in range(len(tokens))
    ]
    spans = [
        {
            "d": int(dim),
            "low": round_to(states[:, i].min(), 3),
            "high": round_to(states[:, i].max(), 3),
            "at": tokens[int(np.abs(states[:, i]).argmax())],
        }
        for i, dim in enumerate(dims.tolist())
    ]
    marks = [
        {"d": dim, "v": round_to(states[t, i]), "token": tokens[t], "position": t, "name": label(dim)}
        for dim in shown
        for i in np.flatnonzero(dims == dim).tolist()
        for t in range(len(tokens))
    ]
    columns = {dim: int(np.flatnonzero(dims == dim)[0]) for dim in shown}
    rest = np.abs(np.where(np.isin(dims, list(shown))[None], 0.0, states))
    where = place(passage.layers[row])
    reading = (
        f"Each grey line is one of {len(tokens)} tokens of one input after {where}; marks are the named dimensions. "
    )
    reading += _largest({dim: float(np.abs(states[:, i]).max()) for dim, i in columns.items()})
    reading += f"{number(float(rest.max()))} in all others (dimension {int(dims[rest.max(axis=0).argmax()])})."
    return chart(
        name=f"{prefix}token-vectors",
        title=f"Token vectors of one input after {where}",
        reading=reading,
        layers=_token_layers(x, y, lines, spans, marks, shown),
        height=340,
        columns=("position", "token", *(label(dim) for dim in shown), "largest other |h|", "at dimension"),
        rows=(
            [
                t,
                token,
                *(round_to(states[t, i]) for i in columns.values()),
                round_to(rest[t].max()),
                int(dims[rest[t].argmax()]),
            ]
            for t, token in enumerate(tokens)
        ),
    )


def _largest(values: dict[int, float]) -> str:
    listed = ", ".join(f"{number(value)} in {dim}" for dim, value in values.items())
    return f"Largest |value|: {listed}; " if listed else "Largest |value|: "


def _token_layers(x: Spec, y: Spec, lines: list, spans: list, marks: list, shown: dict[int, int]) -> list[Spec]:
    layers: list[Spec] = [
        {
            "data": {"values": lines},
            "transform": [{"flatten": ["d", "v"]}],
            "mark": {"type": "line", "strokeWidth": 0.8, "opacity": 0.45, "color": FAINT, "strokeJoin": "round"},
            "encoding": {"x": x, "y": y, "detail": {"field": "t", "type": "nominal"}},
        },
        {
            # Invisible full-height rules answer to the pointer over every dimension.
            "data": {"values": spans},
            "mark": {"type": "rule", "opacity": 0, "strokeWidth": 3},
            "encoding": {
                "x": x,
                "tooltip": [
                    field("d", "dimension"),
                    field("low", "lowest"),
                    field("high", "highest"),
                    field("at", "largest at", "nominal"),
                ],
            },
        },
    ]
    if not shown:
        return layers
    layers.append(
        {
            "data": {"values": marks},
            "mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.9},
            "encoding": {
                "x": x,
                "y": y,
                "color": dim_colour(shown),
                "shape": dim_shape(shown),
                "tooltip": [
                    field("d", "dimension"),
                    field("token", "token", "nominal"),
                    field("position", "position"),
                    field("v", "value"),
                ],
            },
        }
    )
    return layers
