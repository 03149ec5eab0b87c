"""The average vector of every layer over its dimensions, a panel per layer: `vector_panels(stack)`.

As in Luo et al. (2021), Figures 1, 2 and 7 to 10, which draw all layers into one panel; `average_vectors` draws the same means
over layers instead.
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.detection.observe.result import StackObservation
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import BAND, FAINT, Chart, Looks, Spec, drawable, field, label, looks, round_to
from outlierlens.view.charts.draw import composed, grid, heading, inked_dims, panel

WIDTH, HEIGHT = 252, 110  # pixels of a panel
PER_ROW = 3
MAX_STICKS = 1100  # dimensions drawn in a panel; beyond it the smallest are left out


def vector_panels(
    stack: StackObservation, named: Sequence[int], *, view: str = "all", prefix: str = "", per_layer: int = 2
) -> Chart:
    """Mean over tokens of every dimension (across), a panel per layer, on one scale.

    `named` are the dimensions with a name, the strongest first; in each panel the `per_layer` lowest and highest averages are
    numbered.
    """
    mean = drawable(stack.view(view).mean)  # [layer, column]
    dims = np.array(stack.dims)
    shown = looks(named, dims)
    low, high = min(float(mean.min(initial=0.0)), 0.0), max(float(mean.max(initial=0.0)), 0.0)
    room = 0.16 * (high - low) or 1.0
    domain = (low - room, high + room)
    panels = [_panel(stack, row, mean[row], dims, shown, domain, per_layer) for row in range(len(stack.layers))]
    inks = " or in ink" if inked_dims(shown) else ""
    reading = (
        f"Mean over tokens of every dimension, a panel per layer, all on one scale; coloured{inks}: the named dimensions; "
        "numbered: the lowest and highest averages. "
    ) + _reading(stack, mean, dims, shown)
    numbers = [
        [stack.layers[row], end, rank + 1, int(dims[column]), round_to(mean[row, column])]
        for row in range(len(stack.layers))
        for end, order in (("lowest", np.argsort(mean[row])), ("highest", np.argsort(-mean[row])))
        for rank, column in enumerate(order[:3].tolist())
    ]
    return composed(
        name=f"{prefix}vector-panels",
        title="Average vector of every layer",
        reading=reading,
        body=grid(panels, PER_ROW, across=22, down=14),
        columns=("layer", "end", "place", "dimension", "mean"),
        rows=numbers,
    )


def _reading(stack: StackObservation, mean: np.ndarray, dims: np.ndarray, shown: Looks) -> str:
    blocks = [row for row, layer in enumerate(stack.layers) if layer != "embeddings"]
    said = []
    for dim in shown:
        column = int(np.flatnonzero(dims == dim)[0])
        low = sum(int(mean[row].argmin() == column) for row in blocks)
        high = sum(int(mean[row].argmax() == column) for row in blocks)
        ends = [f"the {word} of {n}" for word, n in (("lowest", low), ("highest", high)) if n]
        said.append(f"{dim} is {' and '.join(ends) if ends else 'neither end of any'}")
    return f"Of the {len(blocks)} blocks' averages {'; '.join(said)}." if said else ""


def _apart(order: np.ndarray, dims: np.ndarray, width: int, n: int) -> list[int]:
    """The first `n` columns of an order, without those whose number would run into that of an earlier one."""
    chosen: list[int] = []
    for column in order[:n].tolist():
        if all(abs(int(dims[column]) - int(dims[other])) > 0.1 * width for other in chosen):
            chosen.append(column)
    return chosen


def _panel(
    stack: StackObservation,
    row: int,
    mean: np.ndarray,
    dims: np.ndarray,
    shown: Looks,
    domain: tuple[float, float],
    per_layer: int,
) -> Spec:
    left = row % PER_ROW == 0
    scale = {"domain": [0, stack.hidden_size], "nice": False}
    x = field("dim", None, scale=scale, axis={"grid": False, "tickCount": 4})
    scale = {"domain": [round_to(end) for end in domain], "nice": False}
    axis = {"tickCount": 4, "labels": left, "ticks": left, "domain": left}
    y = field("mean", "mean" if left else None, scale=scale, axis=axis)
    ends = [
        *_apart(np.argsort(mean), dims, stack.hidden_size, per_layer),
        *_apart(np.argsort(-mean), dims, stack.hidden_size, per_layer),
    ]
    for dim in inked_dims(shown):  # theirs too, where there is room
        column = int(np.flatnonzero(dims == dim)[0])
        beside = [other for other in ends if (mean[other] < 0) == (mean[column] < 0)]
        if all(abs(dim - int(dims[other])) > 0.1 * stack.hidden_size for other in beside):
            ends.append(column)
    drawn = np.sort(np.argsort(-np.abs(mean))[:MAX_STICKS])
    plain = [
        {"dim": int(dims[column]), "mean": round_to(mean[column], 3)}
        for column in drawn.tolist()
        if int(dims[column]) not in shown
    ]
    marked = [
        {"dim": dim, "mean": round_to(mean[column], 3), "name": label(dim)}
        for dim in shown
        for column in np.flatnonzero(dims == dim).tolist()
    ]
    numbers = [
        {"dim": int(dims[column]), "mean": round_to(mean[column], 3), "says": str(dims[column])} for column in ends
    ]
    tooltip = draw.columns(dim="dimension", mean="mean")
    zero = {"datum": 0}
    layers: list[Spec] = [
        draw.rule(plain, x=x, y=y, y2=zero, tooltip=tooltip, color=FAINT, strokeWidth=0.8),
        draw.level(0, y=y, color=BAND),
    ]
    if marked:
        colour = draw.dim_strokes(shown)
        layers.append(draw.rule(marked, x=x, y=y, y2=zero, color=colour, tooltip=tooltip, strokeWidth=2.2))
    for below in (True, False):
        mine = [number for number in numbers if (float(number["mean"] or 0.0) < 0) == below]
        if mine:
            layers.append(draw.text(mine, "says", x=x, y=y, dy=7 if below else -7, fontSize=10.5, clip=False))
    name = stack.layers[row]
    title = heading(name if name == "embeddings" else f"layer {name}", fontSize=12.5, offset=4)
    return panel(layers, WIDTH, HEIGHT, title)
