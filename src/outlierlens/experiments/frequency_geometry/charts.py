"""Vectors of frequent and of rare tokens by layer: `frequency_geometry(found)`.

Above, a line a band: mean norm and mean cosine within the band, raw beside clipped and switched off. Below, a line a state:
the most frequent band against the rarest.
"""

import math
from collections.abc import Sequence

from outlierlens.experiments.frequency_geometry.result import BY_BAND, FrequencyBands, LayerBands, band_rows
from outlierlens.vectors.cosines import Estimate
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import COLOURED, Chart, Spec, colours, field, label, round_to, rounded, shapes
from outlierlens.view.charts.draw import above, beside, composed, heading, panel
from outlierlens.view.section import number

WIDTH, HEIGHT = 235, 150  # pixels of a panel
SPAN = 30.0  # largest over smallest norm, above which the scale is logarithmic
TITLES = {"raw": "raw", "clip": "clipped", "off": "off in the network"}
MEASURES = {"norm": "mean norm", "cosine": "mean cosine", "cosine_types": "cosine, other types"}
BELOW = {
    "norm_ratio": "norm, most frequent / rarest",
    "spearman": "rank correlation of count and norm",
    "types_gap": "cosine of other types, most frequent − rarest",
}


def frequency_geometry(found: FrequencyBands, *, name: str = "frequency-geometry") -> Chart:
    """Mean norm and cosine of each band of frequency by layer, a column a state; below, most frequent against rarest."""
    shown = drawn_bands(len(found.bands))
    shared: Spec = {"resolve": {"scale": {"color": "shared", "shape": "shared"}}}
    upper = [beside([_bands(found, measure, state, shown) for state in found.states], 18) for measure in BY_BAND]
    lower = beside([_states(found, measure) for measure in BELOW], 40, **shared)
    what = draw.columns(
        layer="layer", state="state", band="band", counts="count in the corpus", norm="mean norm", norm_low="95 % from",
        norm_high="to", cosine="mean cosine", cosine_low="95 % from", cosine_high="to", cosine_types="of other types",
        norm_ratio="norm, most frequent / rarest", spearman="rho of count and norm", types_gap="gap of other types",
        types_gap_change="change",
    )  # fmt: skip
    return composed(
        name=name,
        title=f"{found.provenance.model}: vectors of frequent and of rare tokens",
        reading=_reading(found, shown),
        body=above([above(upper, 14, **shared), lower], 26, apart=("color", "shape")),
        **what.table(band_rows(found)),
    )


def drawn_bands(n: int) -> tuple[int, ...]:
    """Bands that a picture has looks for: all of them, or six from the rarest to the most frequent."""
    if n <= COLOURED:
        return tuple(range(n))
    return tuple(round(place * (n - 1) / (COLOURED - 1)) for place in range(COLOURED))


def _bands(found: FrequencyBands, measure: str, state: str, shown: Sequence[int]) -> Spec:
    """One state's panel of one measure, a line a band; all panels of a measure have one scale."""
    names = {number: _name(found, number) for number in shown}
    points = [
        _point(row, names[number], getattr(row, measure)[number])
        for row in found.rows
        for number in shown
        if row.state == state and math.isfinite(getattr(row, measure)[number].value)
    ]
    every = [getattr(row, measure)[number] for row in found.rows for number in shown]
    look = draw.both("name", [*names.values()], title="count of the token in the corpus", columns=3, labelLimit=300)
    first = state == found.states[0]
    y = field("value", MEASURES[measure], scale=_scale(every, log=measure == "norm"))
    y["title"] = MEASURES[measure] if first else None
    y["axis"] = {"tickCount": 5, "labels": first, "ticks": first, "domain": first}
    last = measure == BY_BAND[-1]
    title = TITLES[state] if measure == BY_BAND[0] else ""
    return _panel(points, (_layer_axis(found, last), y, *look), title, MEASURES[measure])


def _states(found: FrequencyBands, measure: str) -> Spec:
    """One number over all bands, a line a state."""
    points = [
        _point(row, TITLES[row.state], one) for row in found.rows if math.isfinite((one := getattr(row, measure)).value)
    ]
    titles = [TITLES[state] for state in found.states]
    look = draw.both("name", titles, colours(found.states), shapes(found.states), columns=6)
    level = 1.0 if measure == "norm_ratio" else 0.0  # where frequent and rare tokens are the same
    scale = _scale([getattr(row, measure) for row in found.rows], level)
    y = field("value", "", scale=scale, axis={"tickCount": 5})
    return _panel(points, (_layer_axis(found, True), y, *look), BELOW[measure], BELOW[measure], level)


def _panel(
    points: list[Spec], axes: tuple[Spec, Spec, Spec, Spec], title: str, measure: str, level: float | None = None
) -> Spec:
    x, y, colour, shape = axes
    what = draw.columns(layer="layer:O", name="of:N", value=measure, **draw.ENDS, **draw.CHANGE)
    encoding: Spec = {"x": x, "y": y, "color": colour}
    layers: list[Spec] = [] if level is None else [draw.level(level, y=y, strokeWidth=1)]
    layers += [
        draw.area(None, **(encoding | draw.between(y=y)), opacity=0.18),
        draw.line(None, **encoding, strokeWidth=1.8),
        draw.points(None, **encoding, shape=shape, tooltip=what, size=45),
    ]
    above_it = heading(title, fontSize=12.5, frame="group", offset=6)
    return panel(layers, WIDTH, HEIGHT, above_it, data={"values": points})


def _point(row: LayerBands, name: str, one: Estimate) -> Spec:
    parts = ("value", "low", "high", "change", "change_low", "change_high")
    return {"layer": row.layer, "name": name} | rounded(**{part: getattr(one, part) for part in parts})


def _scale(every: Sequence[Estimate], level: float = 0.0, *, log: bool = False) -> Spec:
    """One scale for all of `every` with their intervals and `level`; logarithmic where norms span more than `SPAN`."""
    ends = [end for one in every for end in (one.value, one.low, one.high) if math.isfinite(end)]
    if not ends:
        return {"zero": True}
    low, high = min(ends), max(ends)
    if log and low > 0 and high / low > SPAN:
        return {"type": "log", "domain": [round_to(low), round_to(high)], "nice": True}
    return {"domain": [round_to(min(low, 0.0)), round_to(max(high, level))], "nice": True}


def _layer_axis(found: FrequencyBands, labels: bool) -> Spec:
    return draw.layer_axis(found.layers, "layer" if labels else None, labels=labels, ticks=labels)


def _name(found: FrequencyBands, number: int) -> str:
    """The band's counts, which no other band has, and which end it is."""
    end = " (rarest)" if number == 0 else " (most frequent)" if number == len(found.bands) - 1 else ""
    return found.bands[number].name + end


def _reading(found: FrequencyBands, shown: Sequence[int]) -> str:
    text = (
        f"Tokens of {len(found.bands)} bands of corpus frequency, from the rarest (counts {found.bands[0].name}) to the most "
        f"frequent ({found.bands[-1].name}): mean norm, mean cosine of two tokens of different texts, and the same of two "
        f"different types, by layer; the shading is the 95 % interval over texts. Columns: as they are, with "
        f"{', '.join(label(dim) for dim in found.dims)} zero in the vectors"
    )
    text += f", and with the same switched off in the network ({found.mode}). " if found.mode else ". "
    if len(shown) < len(found.bands):
        text += f"Drawn are {len(shown)} of the {len(found.bands)} bands. "
    for row in found.blocks:
        text += _said(row, "Over all blocks, " if row.state == "raw" else "")
    return text.strip()


def _said(row: LayerBands, before: str) -> str:
    ratio, gap = row.norm_ratio, row.types_gap
    if row.state == "raw":
        return (
            f"{before}vectors of the most frequent band are {number(ratio.value)} ({number(ratio.low)} to "
            f"{number(ratio.high)}) times as long as those of the rarest, and their cosine with other types is larger by "
            f"{number(gap.value)} ({number(gap.low)} to {number(gap.high)}). "
        )
    return (
        f"{TITLES[row.state].capitalize()}: {number(ratio.value)} and {number(gap.value)}, a change of the cosine of "
        f"{number(gap.change)} ({number(gap.change_low)} to {number(gap.change_high)}). "
    )
