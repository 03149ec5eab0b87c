"""How vectors lie in space, layer by layer, before and after fixes.

geometry(found)                # the three below as one picture
anisotropy(found)              # mean cosine of random tokens by layer, a line a fix, with 95 % bands
self_similarity(found)         # of words in different sentences, less the anisotropy
cosine_shares(found)           # the mean cosine as a stack of the dimensions that carry it
"""

from outlierlens.errors import BadInput
from outlierlens.experiments.geometry.result import Contribution, Geometry, LayerGeometry, geometry_rows
from outlierlens.vectors.cosines import Estimate
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    COLOURED,
    FAINT,
    SURFACE,
    Chart,
    Spec,
    chart,
    colours,
    field,
    label,
    left_out,
    looks,
    place,
    round_to,
    shapes,
)
from outlierlens.view.charts.base import drawn as shown_fixes
from outlierlens.view.charts.draw import MOST, above, beside, composed, heading, inner
from outlierlens.view.section import number

HEIGHT = 290
PANEL = 370  # pixels of a panel of two side by side
BEHIND = 140  # size of the marks of raw vectors, which a fix that does nothing would hide
SEEN = 0.02  # share of the tallest bar below which a dimension would be a line without a name
OTHERS = "all others"
LABELLED = 0.1  # share of a bar that has room for its dimension's number


def anisotropy(found: Geometry, *, name: str = "anisotropy") -> Chart:
    """Mean cosine of tokens of different sentences by layer, a line a fix, with the 95 % interval as a band."""
    return _lines(found, "anisotropy", name, "Anisotropy", "mean cosine of random tokens", _anisotropy_reading(found))


def self_similarity(found: Geometry, *, name: str = "self-similarity") -> Chart:
    """Self-similarity of words less the anisotropy, by layer, a line a fix, with the 95 % interval as a band.

    Raises:
        BadInput: no word was frequent enough.
    """
    if not found.words:
        raise BadInput(
            "no word of the text was measured, so there is no self-similarity to draw; lower --min-sentences"
        )
    reading = (
        f"How alike a word's vectors in different sentences are, beyond what random tokens are: the mean over "
        f"{len(found.words):,} words. 0 is no more alike than random tokens; the band is the 95 % interval over sentences. "
    )
    reading += _extremes_say(found, "self_similarity_adjusted")
    title = "Self-similarity, adjusted"
    return _lines(found, "self_similarity_adjusted", name, title, "mean cosine less the anisotropy", reading)


def cosine_shares(found: Geometry, fix: str | None = None, *, name: str = "cosine-shares") -> Chart:
    """The mean cosine of each layer as a stack of what single dimensions add, and all others together.

    The six that add most have colours, named dimensions beyond them are ink. `fix` is the first of the result unless named.

    Raises:
        BadInput: the result has no such fix, or it has no dimensions of the model (whitening turns them).
    """
    fix = fix or next((row.fix for row in found.rows if row.top), found.fixes[0])
    rows = [found.row(layer, fix) for layer in found.layers]
    if not all(row.top for row in rows):
        raise BadInput(f"fix {fix!r} has no dimensions of the model; draw raw, clip, centre, standardize or abtt")
    largest: dict[int, float] = {}
    for row in rows:
        for one in _known(row).values():
            largest[one.dim] = max(largest.get(one.dim, 0.0), one.contribution)
    ranked = sorted(largest, key=lambda dim: -largest[dim])
    least = SEEN * max(row.anisotropy.value for row in rows)
    outliers = {one.dim for row in rows for one in row.named}
    named = [
        dim
        for place, dim in enumerate(ranked)
        if dim in outliers or not place or (place < COLOURED and largest[dim] >= least)
    ]
    shown = looks(named, named)
    bars: list[Spec] = []
    for row in rows:
        known, rest = _known(row), row.anisotropy.value
        for turn, dim in enumerate(named):
            if dim in known:
                rest -= known[dim].contribution
                bars.append(_bar(row, label(dim), known[dim].contribution, known[dim].share, turn))
        bars.append(_bar(row, OTHERS, rest, rest / row.anisotropy.value, len(named)))
    x, y = draw.layer_axis(found.layers), field("value", "mean cosine, by dimension", axis={"tickCount": 6})
    share = field("share", "share", format=".1%")
    what = draw.columns(layer="layer:O", name="dimension:N", value="adds to the cosine", share=share)
    colour = draw.dim_colour(shown)
    colour["scale"] = {"domain": [*colour["scale"]["domain"], OTHERS], "range": [*colour["scale"]["range"], FAINT]}
    if "values" in colour["legend"]:
        colour["legend"]["values"].append(OTHERS)
    x = x | {"scale": {"type": "band", "paddingInner": 0.25, "paddingOuter": 0.15}}
    order = {"field": "turn", "type": "quantitative"}
    layers: list[Spec] = [
        draw.bar(bars, x=x, y=y, color=colour, order=order, tooltip=what),
        draw.text(_texts(bars), "says", x=x, y=y | {"field": "middle"}, color=SURFACE, fontSize=11, fontWeight=700),
    ]
    return chart(
        name=name,
        title=f"What carries the cosine ({fix})",
        reading=_shares_reading(found, rows, fix),
        layers=layers,
        height=HEIGHT,
        **what.table(bars),
    )


def geometry(found: Geometry, *, name: str = "geometry") -> Chart:
    """Anisotropy and self-similarity side by side, and below them what carries the cosine."""
    top = [anisotropy(found)] + ([self_similarity(found)] if found.words else [])
    below = [cosine_shares(found)] if any(row.top for row in found.rows) else []
    wide = PANEL * 2 + 50
    upper = [inner(one, width=PANEL if len(top) > 1 else wide, height=HEIGHT, title=_title(one)) for one in top]
    lower = [inner(one, width=wide, height=HEIGHT, title=_title(one)) for one in below]
    what = draw.columns(
        layer="layer", fix="fix", anisotropy="anisotropy", anisotropy_low="95 % from", anisotropy_high="to",
        self_similarity_adjusted="self-similarity, adjusted", intra_sentence_adjusted="intra-sentence, adjusted",
        iso_score="IsoScore", effective_rank="effective rank", top_share="share of the top 3",
    )  # fmt: skip
    return composed(
        name=name,
        title=f"{found.provenance.model}: how vectors lie in space",
        reading=" ".join(part.reading for part in (*top, *below)),
        body=above([beside(upper, 50, bounds="flush"), *lower], 30, apart=("color", "shape", "x")),
        **what.table(geometry_rows(found)),
    )


def _title(one: Chart) -> Spec:
    return heading(one.title, frame="group")


def _lines(found: Geometry, measure: str, name: str, title: str, what: str, reading: str) -> Chart:
    """A line a fix over layers, with its band."""
    points = [
        {"layer": row.layer, "fix": row.fix, "size": BEHIND if row.fix == "raw" else 55}
        | {key: round_to(getattr(one, key)) for key in ("value", "low", "high", "change", "change_low", "change_high")}
        for row in found.rows
        if (one := _estimate(row, measure)) is not None
    ]
    fixes = shown_fixes(found.fixes)
    size = {"field": "size", "type": "quantitative", "scale": None, "legend": None}
    drawn = [point for point in points if point["fix"] in fixes]
    colour, shape = draw.both("fix", fixes, colours(fixes), shapes(fixes), columns=6)
    x, y = draw.layer_axis(found.layers), field("value", what, scale={"zero": True}, axis={"tickCount": 7})
    columns = draw.columns(layer="layer:O", fix="fix:N", value=what, **draw.ENDS, **draw.CHANGE)
    layers: list[Spec] = [
        draw.level(0, y=y, strokeWidth=1),
        draw.area(drawn, x=x, **draw.between(y=y), color=colour, opacity=0.22),
        draw.line(drawn, x=x, y=y, color=colour, strokeWidth=2),
        draw.points(drawn, x=x, y=y, color=colour, shape=shape, size=size, tooltip=columns),
    ]
    reading += left_out(found.fixes)
    return chart(name=name, title=title, reading=reading, layers=layers, height=HEIGHT, **columns.table(points))


def _estimate(row: LayerGeometry, measure: str) -> Estimate | None:
    found: Estimate | None = getattr(row, measure)
    return found


def _known(row: LayerGeometry) -> dict[int, Contribution]:
    return {one.dim: one for one in (*row.named, *row.top)}


def _bar(row: LayerGeometry, name: str, value: float, share: float, turn: int) -> Spec:
    return {"layer": row.layer, "name": name, "value": round_to(value), "share": round_to(share), "turn": turn}


def _texts(bars: list[Spec]) -> list[Spec]:
    """Numbers of dimensions in the middle of those parts of a bar that have room for them."""
    tallest = max(sum(bar["value"] for bar in bars if bar["layer"] == name) for name in {bar["layer"] for bar in bars})
    found, up, down, layer = [], 0.0, 0.0, None
    for bar in bars:
        if bar["layer"] != layer:
            up, down, layer = 0.0, 0.0, bar["layer"]
        start = up if bar["value"] >= 0 else down
        if bar["value"] >= LABELLED * tallest / 2 and bar["name"] != OTHERS:
            says = bar["name"].removeprefix("dim ")
            found.append({"layer": bar["layer"], "middle": round_to(start + bar["value"] / 2), "says": says})
        if bar["value"] >= 0:
            up += bar["value"]
        else:
            down += bar["value"]
    return found


def _anisotropy_reading(found: Geometry) -> str:
    text = (
        f"The mean cosine of two tokens of different sentences, of {2 * found.n_pairs:,} tokens: 0 where vectors point "
        f"anywhere, 1 where all point one way; the band is the 95 % interval over sentences. "
    )
    return text + _extremes_say(found, "anisotropy")


def _extremes_say(found: Geometry, measure: str) -> str:
    """Where the raw vectors reach most, and what each fix makes of that layer."""
    known = {(row.layer, row.fix): one for row in found.rows if (one := _estimate(row, measure)) is not None}
    first = [(one, layer) for (layer, fix), one in known.items() if fix == found.fixes[0]]
    if not first:
        return ""
    layer = max(first, key=lambda pair: pair[0].value)[1]
    said = [
        f"{fix} {number(one.value)} ({number(one.low)} to {number(one.high)})"
        for fix in found.fixes
        if (one := known.get((layer, fix))) is not None
    ]
    return f"{found.fixes[0].capitalize()} vectors are highest in {place(layer)}: {', '.join(said)}."


def _shares_reading(found: Geometry, rows: list[LayerGeometry], fix: str) -> str:
    text = (
        f"Each bar is the mean cosine of a layer ({fix} vectors), cut into what single dimensions add to it; grey is all "
        f"others together. "
    )
    known = [row for row in rows if row.top and row.top[0].share == row.top[0].share]
    if not known:
        return text + "No layer's cosine is different from 0 with its whole interval."
    most = max(known, key=lambda row: row.top[0].share)
    text += f"The largest share has dimension {most.top[0].dim} in {place(most.layer)}: {most.top[0].share:.0%}. "
    outliers = list(dict.fromkeys((*found.weights_name, *(dim for dims in found.clipped.values() for dim in dims))))
    for dim in outliers[:MOST]:
        shares = [(one.share, row.layer) for row in known for one in row.named if one.dim == dim]
        if shares:
            share, layer = max(shares)
            text += f"Outlier {dim} carries at most {share:.0%} ({place(layer)}). "
    return text.strip()
