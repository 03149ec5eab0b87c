"""The largest |x| by layer: `ranges`, a panel each for stream, attention and MLP, a line per kind; of weights a mark a tensor.

charts.ranges(found)                          # one picture
"""

import math
import re

from outlierlens.experiments.range.result import FORMATS, Ranges, TensorRange
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import PLAIN_NUMBER, Chart, Spec, chart, decades, field, round_to
from outlierlens.view.charts.forms import lines
from outlierlens.view.charts.palette import ALARM, INK, MUTED
from outlierlens.view.charts.panels import beside, composed, heading, panel
from outlierlens.view.words import number

PANEL, HEIGHT = 250, 270
# The kinds of each panel, at most as many as there are colours; the table has all.
PANELS = {
    "Stream and norms": ("stream", "stream after attention", "norm output", "norm sum of squares", "logits"),
    "Attention": ("attention input", "q", "k", "v", "attention logits", "attention output"),
    "MLP": ("MLP input", "gate/up", "MLP inner", "MLP output"),
}
LIMITS = {form.name: form.largest for form in FORMATS if form.name in ("fp16", "e4m3")}


def ranges(found: Ranges, *, name: str = "ranges") -> Chart:
    """Largest |x| of plain texts by layer on a log scale, a line per kind, with the limits of fp16 and fp8; or of weights."""
    if found.weights:
        return _weights(found, name)
    rows = [_row(row) for row in found.rows if math.isfinite(row.largest) and row.largest > 0]
    layers = list(dict.fromkeys(row["layer"] for row in sorted(rows, key=_order)))
    y = _size_axis([row["largest"] for row in rows], "largest |x|")
    what = draw.columns(
        kind="tensor:N", stream="stream:N", layer="layer:N", largest="largest |x|", token="token:N", dim="dimension"
    )
    panels = []
    several = len({row["stream"] for row in rows}) > 1
    for stream in dict.fromkeys(row["stream"] for row in rows):
        for title, kinds in PANELS.items():
            mine = [row for row in rows if row["stream"] == stream and row["kind"] in kinds]
            shown = [kind for kind in kinds if any(row["kind"] == kind for row in mine)]
            if shown:
                x = draw.layer_axis([layer for layer in layers if any(row["layer"] == layer for row in mine)])
                marks = lines(mine, x, y, draw.both("kind", shown, columns=2), list(what), size=40)
                named = heading(f"{stream}: {title}" if several else title, frame="group")
                panels.append(panel([*_limits(y), *marks], PANEL, HEIGHT, named))
    grid: Spec = {
        "vconcat": [beside(panels[i : i + 3], 30, apart=("color", "shape", "x")) for i in range(0, len(panels), 3)],
        "resolve": {"scale": {"color": "independent", "shape": "independent"}},
    }
    reading = _reading(found)
    title = f"{found.provenance.model}: largest |x| by layer"
    return composed(name=name, title=title, reading=reading, body=grid, **what.table(rows))


def _row(row: TensorRange) -> Spec:
    return {
        "kind": row.kind,
        "stream": row.stack,
        "layer": row.layer,
        "largest": round_to(row.largest),
        "token": row.word,
        "dim": row.dim if row.dim >= 0 else None,
    }


def _order(row: Spec) -> int:
    """Where a layer stands among all."""
    ends = {"embeddings": -1, "final": 10**6, "head": 10**6 + 1}
    return ends[row["layer"]] if row["layer"] in ends else int(row["layer"])


def _size_axis(sizes: list[float], title: str) -> Spec:
    """A log scale that holds all sizes and the limits that are drawn."""
    low = min([1.0, *sizes])
    top = max([*LIMITS.values(), *sizes])
    ends = [10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(1.2 * top))]
    axis = {"values": decades(ends[0], ends[1]), "labelExpr": PLAIN_NUMBER}
    return field("largest", title, scale={"type": "log", "domain": ends}, axis=axis)


def _limits(y: Spec) -> list[Spec]:
    """A line with its name for each of the formats that overflow first."""
    rows = [{"largest": limit, "says": f"{name} {limit:,.0f}"} for name, limit in LIMITS.items()]
    return [
        draw.rule(rows, y=y, color=ALARM, strokeDash=draw.DASHED),
        *draw.haloed(rows, "says", y=y, align="right", x="width", dx=-4, dy=-8, color=MUTED),
    ]


def _reading(found: Ranges) -> str:
    text = "Largest |x| over all tokens by layer, one line per kind of tensor, log scale; dashed: where fp16 and fp8 e4m3 end. "
    for kind in found.kinds:
        top = found.top(kind)
        text += f"{kind}: {number(top.largest)} in layer {top.layer}. "
    return text + ("Plain texts are drawn; the table has templated ones." if found.templated else "")


def _weights(found: Ranges, name: str) -> Chart:
    """Largest |w| of each stored tensor, by the number of the layer in its name."""
    rows = [
        {"tensor": one.name, "layer": (re.findall(r"\d+", one.name) or ["none"])[0], "largest": round_to(one.largest)}
        for one in found.weights
        if math.isfinite(one.largest) and one.largest > 0
    ]
    layers = sorted({str(row["layer"]) for row in rows}, key=lambda layer: int(layer) if layer.isdecimal() else -1)
    y = _size_axis([float(row["largest"] or 0) for row in rows], "largest |w|")
    what = draw.columns(tensor="tensor:N", layer="layer:N", largest="largest |w|")
    x = draw.layer_axis(layers, "layer in the tensor's name")
    top = max(found.weights, key=lambda one: one.largest)
    return chart(
        name=name,
        title=f"{found.provenance.model}: largest |w| of each tensor",
        reading=(
            f"Largest |w| of each stored tensor by layer, on a log scale; the largest is {number(top.largest)}, of {top.name}."
        ),
        layers=[*_limits(y), draw.points(rows, x=x, y=y, color=INK, opacity=0.6, size=45, tooltip=list(what))],
        height=HEIGHT,
        **what.table(rows),
    )
