"""Token vectors drawn as lines, one a token, outliers marked, after figures 1 and 3 of Kovaleva et al. (2021)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlierlens.view.charts import draw
from outlierlens.view.charts.base import FAINT, Chart, Looks, Spec, chart, label, looks, rounded, symmetric
from outlierlens.view.charts.draw import inked_dims, names_above
from outlierlens.view.section import number, round_to

MAX_TOKENS = 24


MAX_COLUMNS = 1024


@dataclass(frozen=True)
class Words:
    """File name and title of a picture, and what a line of it is."""

    name: str
    title: str
    line: str


def token_lines(states: np.ndarray, dims: np.ndarray, tokens: list[str], named: Sequence[int], words: Words) -> Chart:
    """A line per token through `states` [token, column]."""
    if len(dims) > MAX_COLUMNS:
        size = np.abs(states).max(axis=0) + np.where(np.isin(dims, named), np.inf, 0)
        kept = np.sort(np.argsort(-size)[:MAX_COLUMNS])
        states, dims = states[:, kept], dims[kept]
    shown = looks(named, dims)
    order = np.argsort(dims)
    states, dims = states[:, order], dims[order]
    scale = symmetric(states)
    x, y = draw.dim_axis(int(dims.max()) + 1, "d"), scale.encoding("v", "hidden value")
    lines = [
        {"t": t, "d": dims.tolist(), "v": [round_to(v, 3) for v in states[t].tolist()]} for t in range(len(tokens))
    ]
    spans = [
        {"d": int(dim), "at": tokens[int(np.abs(states[:, i]).argmax())]}
        | rounded(3, low=states[:, i].min(), high=states[:, i].max())
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
    reading = f"Each grey line is {words.line}; marks are the named dimensions. "
    reading += _largest({dim: float(np.abs(states[:, i]).max()) for dim, i in columns.items()})
    reading += f"{number(float(rest.max()))} in all others (dimension {int(dims[rest.max(axis=0).argmax()])})."
    return chart(
        name=words.name,
        title=words.title,
        reading=reading,
        layers=_token_layers(x, y, lines, spans, marks, shown),
        height=340,
        columns=("position", "token", *(label(dim) for dim in shown), "largest other |h|", "at dimension"),
        rows=(
            [
                t,
                token,
                *(round_to(values[i]) for i in columns.values()),
                round_to(other.max()),
                int(dims[other.argmax()]),
            ]
            for t, (token, values, other) in enumerate(zip(tokens, states, rest, strict=True))
        ),
    )


def _largest(values: dict[int, float]) -> str:
    listed = ", ".join(f"{number(value)} in {dim}" for dim, value in values.items())
    return f"Largest |value|: {listed}; " if listed else "Largest |value|: "


def _token_layers(x: Spec, y: Spec, lines: list, spans: list, marks: list, shown: Looks) -> list[Spec]:
    unpacked = [{"flatten": ["d", "v"]}]
    faint = {"strokeWidth": 0.8, "opacity": 0.45, "color": FAINT, "strokeJoin": "round"}
    spanned = draw.columns(d="dimension", low="lowest", high="highest", at="largest at:N")
    layers: list[Spec] = [
        draw.line(lines, unpacked, x=x, y=y, detail=draw.nominal("t"), **faint),
        # Invisible full-height rules answer to the pointer over every dimension.
        draw.rule(spans, x=x, tooltip=spanned, opacity=0, strokeWidth=3),
    ]
    if not shown:
        return layers
    what = draw.columns(d="dimension", token="token:N", position="position", v="value")
    look = draw.dim_look(shown)
    layers.append(draw.points(marks, x=x, y=y, **look, tooltip=what, size=46, opacity=0.9))
    return layers + names_above(inked_dims(shown), int(x["scale"]["domain"][1]), x)
