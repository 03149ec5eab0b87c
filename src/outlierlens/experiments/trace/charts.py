"""A dimension's life: `life`, what every block adds to it, stacked, and below it the heads that read it.

charts.life(found)
"""

from outlierlens.experiments.trace.result import Part, Trace
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, field, round_to
from outlierlens.view.charts.palette import ALARM, DIM_COLOURS, INK, MUTED
from outlierlens.view.charts.panels import above, composed, panel

KINDS = {
    "embedding": "embeddings", "head": "attention heads", "neuron": "largest neurons", "other neurons": "other neurons",
    "bias": "biases", "norm bias": "biases of norms", "norm mean": "means that norms take away",
}  # fmt: skip
COLOURS = dict(zip(KINDS.values(), (*DIM_COLOURS, MUTED), strict=True))
WIDTH = 640
INTACT, AT_MEAN = "intact", "dimension at its mean"


def life(found: Trace, *, name: str = "life") -> Chart:
    """What is added to the dimension at its largest token by block and kind of part; the value; the heads that read it."""
    layers = [one.layer for one in found.blocks]
    sums: dict[tuple[str, str], float] = {}
    for part in found.parts:
        if part.kind != "carried":
            key = part.layer, KINDS[part.kind]
            sums[key] = sums.get(key, 0.0) + part.largest
    rows: list[Spec] = [
        {"layer": layer, "kind": kind, "added": round_to(value)} for (layer, kind), value in sums.items() if value
    ]
    values: list[Spec] = [
        {"layer": one.layer, "value": round_to(one.largest), "share": round_to(one.share_largest)}
        for one in found.blocks
    ]
    x = draw.layer_axis(layers, "block")
    x["scale"] = x["scale"] | {"domain": layers}  # the same in every panel
    bars = x | {"scale": {"type": "band", "padding": 0.2, "domain": layers}}
    colour = draw.by("kind", {kind: look for kind, look in COLOURS.items() if any(row["kind"] == kind for row in rows)})
    said = draw.columns(layer="block:N", kind="part:N", added="adds")
    of_value = draw.columns(layer="block:N", value="value after it", share="share of the sum of squares")
    y = field("added", "added by the block")
    level = field("value", "value")
    panels = [
        panel(
            [draw.bar(rows, x=bars, y=y, color=colour, tooltip=said), draw.level(0, y=y)], WIDTH, 190,
            f"What each block adds at {found.token!r}, its largest token",
        ),
        panel(
            [
                draw.line(values, x=x, y=level, color=INK, strokeWidth=2),
                draw.points(values, x=x, y=level, color=INK, size=40, tooltip=of_value),
            ],
            WIDTH, 120, "Its value there",
        ),
    ]  # fmt: skip
    if found.readers:
        panels.append(_readers(found, layers, x))
    return composed(
        name=name,
        title=f"{found.provenance.model}: the life of dimension {found.dim}",
        reading=_reading(found),
        body=above(panels, 26, ("color",)),
        **of_value.table(values),
    )


def _readers(found: Trace, layers: list[str], x: Spec) -> Spec:
    """Attention of each sink head on the token, and what is left of it with the dimension at its mean there."""
    heads: list[Spec] = [
        {
            "layer": str(one.layer), "head": one.head, "mass": round_to(one.mass), "left": round_to(one.in_keys),
            "lost": round_to(one.lost),
        }
        for one in found.readers
    ]  # fmt: skip
    what = draw.columns(
        layer="block:N",
        head="head:O",
        mass="attention on the token",
        left="with the dimension at its mean",
        lost="share lost",
    )
    y = field("mass", "attention", scale={"domain": [0, 1]})
    shape = draw.by("which", {INTACT: INK, AT_MEAN: ALARM})
    both = [row | {"which": INTACT} for row in heads] + [row | {"which": AT_MEAN, "mass": row["left"]} for row in heads]
    return panel(
        [draw.points(both, x=x, y=y, color=shape, size=28, opacity=0.6, tooltip=what)], WIDTH, 120,
        "Heads that are sinks on that token",
    )  # fmt: skip


def _reading(found: Trace) -> str:
    peak = found.at(found.peak)
    said = f"It is largest after block {found.peak}, {round_to(peak.largest)}; block {found.lifts} adds most"
    said += f", and block {found.falls} takes most away." if found.falls else "."
    if found.sinks:
        said += f" {len(found.readers)} heads are sinks on its token."
    return said


def largest_parts(parts: tuple[Part, ...], n: int) -> tuple[Part, ...]:
    """The `n` parts that add most to the largest token, either way, without what was there before."""
    return tuple(sorted((one for one in parts if one.kind != "carried"), key=lambda one: -abs(one.largest))[:n])
