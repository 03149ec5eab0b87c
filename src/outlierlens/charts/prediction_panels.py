"""How predictions spread over tokens and over parts of speech, intact and with dimensions off.

prediction_curves(found, "unmasked")                 # share of predictions by rank of the token among the predicted
prediction_curves(found, "unmasked", by="corpus")    # share of predictions that the most frequent tokens of the corpus make up
parts_of_speech(found)                               # change of the share of each part of speech
"""

from collections.abc import Iterable

from outlierlens.charts.base import Chart, Spec, bar, chart, field, log_ticks, round_to
from outlierlens.charts.palette import DIM_COLOURS, FAINT, INK, MUTED, SHAPES
from outlierlens.errors import BadInput
from outlierlens.predicted import INPUTS, Curve, PartsOfSpeech, Predictions

OFF = {"layers": "all layers", "last_hidden": "last hidden state", "logits": "logits"}
CURVE_HEIGHT = 300
SHOWN_TAGS = 12
KINDS = {"rank": "rank and frequency", "corpus": "the corpus' frequent tokens"}


def prediction_curves(found: Predictions, input: str, by: str = "rank", *, name: str = "prediction-curves") -> Chart:
    """Intact, with the dimensions off, with random ones off, and the corpus: a line each over ranks of tokens.

    By "rank": the share of predictions of the token of that rank, by how often it is predicted. By "corpus": the share of
    predictions that are among so many of the corpus' most frequent tokens.

    Raises:
        BadInput: the result has no such input, or no such kind of curve.
    """
    heard = found.of(input)
    if by not in KINDS:
        raise BadInput(f"curves are drawn by {' or '.join(KINDS)}, not by {by!r}")
    lines: list[tuple[str, str, Curve]] = [("corpus", "corpus", found.corpus), ("intact", "intact", heard.intact.curve)]
    lines += [(OFF[shift.intervention], OFF[shift.intervention], shift.chosen.curve) for shift in heard.shifts]
    random = [
        ("random", f"{shift.intervention} {one.label}", one.curve) for shift in heard.shifts for one in shift.random
    ]
    named, behind = _points(lines, by), _points(random, by)
    own = [point for point in named if point["kind"] != "corpus"]
    kinds = list(dict.fromkeys([kind for kind, _, _ in lines] + [kind for kind, _, _ in random]))
    looks = {"corpus": (MUTED, "stroke"), "intact": (INK, "circle"), "random": (FAINT, "stroke")}
    looks |= dict(zip(OFF.values(), zip(DIM_COLOURS, SHAPES, strict=True), strict=False))
    legend = {"title": None, "columns": 3}
    colour, shape = (
        {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": kinds, "range": [looks[k][i] for k in kinds]},
            "legend": legend,
        }
        for i in range(2)
    )
    x, y = _axes(named, own, by)
    line = {"x": x, "y": y, "detail": {"field": "line", "type": "nominal"}}
    dash = {"condition": {"test": "datum.kind === 'corpus'", "value": [5, 4]}, "value": [1, 0]}
    tooltip = [field("kind", "off", "nominal"), field("rank", "rank"), field("share", "share", format=".2%")]
    layers: list[Spec] = [
        {
            "data": {"values": behind},
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.5, "clip": True},
            "encoding": {**line, "color": colour},
        },
        {
            "data": {"values": named},
            "mark": {"type": "line", "strokeWidth": 2, "clip": True},
            "encoding": {**line, "color": colour, "strokeDash": dash},
        },
        {
            "data": {"values": own},
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 35, "clip": True},
            "encoding": {**line, "color": colour, "shape": shape, "tooltip": tooltip},
        },
    ]
    return chart(
        name=name,
        title=f"{KINDS[by][:1].upper()}{KINDS[by][1:]}: {INPUTS[input]}",
        reading=_curves_reading(found, input, by),
        layers=layers,
        height=CURVE_HEIGHT,
        columns=("line", "rank", "share of predictions"),
        rows=([point["line"], point["rank"], point["share"]] for point in named),
    )


def parts_of_speech(found: Predictions, *, name: str = "parts-of-speech") -> Chart:
    """Shares of parts of speech among predictions of the first input with each intervention: intact, ablated, difference.

    Raises:
        BadInput: nothing was tagged.
    """
    if not found.speech:
        raise BadInput("no prediction was tagged, so there are no parts of speech to draw; name a --tagger")
    speech = [one for one in found.speech if one.input == found.speech[0].input]
    largest: dict[str, float] = {}
    for one in speech:
        for share in one.shares:
            largest[share.tag] = max(largest.get(share.tag, 0.0), share.intact, share.ablated)
    tags = sorted(largest, key=lambda tag: -largest[tag])[:SHOWN_TAGS]
    kinds = [OFF[one.intervention] for one in speech]
    rows = [
        {"tag": share.tag, "kind": OFF[one.intervention], "change": round_to(share.change), **bar(share.low, share.high),
         "intact": round_to(share.intact), "ablated": round_to(share.ablated)}
        for one in speech for share in one.shares if share.tag in tags
    ]  # fmt: skip
    styles = dict(zip(OFF.values(), zip(DIM_COLOURS, SHAPES, strict=True), strict=False))
    domain = {"domain": kinds}
    colour = {"field": "kind", "type": "nominal", "scale": domain | {"range": [styles[kind][0] for kind in kinds]},
              "legend": {"title": None}}  # fmt: skip
    shape = {"field": "kind", "type": "nominal", "scale": domain | {"range": [styles[kind][1] for kind in kinds]},
             "legend": {"title": None}}  # fmt: skip
    x = field(
        "change", "change of its share of predictions", scale={"zero": True}, axis={"format": "+.0%", "tickCount": 7}
    )
    y = {
        "field": "tag", "type": "nominal", "title": None, "sort": tags,
        "axis": {"ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
        "scale": {"domain": tags, "paddingInner": 0.25, "paddingOuter": 0.15},
    }  # fmt: skip
    offset = {"field": "kind", "type": "nominal", "sort": kinds, "scale": {"domain": kinds}}
    tooltip = [
        field("tag", "part of speech", "nominal"),
        field("kind", "off", "nominal"),
        field("intact", "intact", format=".1%"),
        field("ablated", "ablated", format=".1%"),
        field("change", "change", format="+.1%"),
        field("low", "95 % from", format="+.1%"),
        field("high", "to", format="+.1%"),
    ]
    at = {"y": y, "yOffset": offset, "color": colour}
    layers: list[Spec] = [
        {
            "data": {"values": [{"change": 0}]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [4, 3]},
            "encoding": {"x": x},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {**at, "x": x | {"field": "low"}, "x2": {"field": "high"}},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 70},
            "encoding": {**at, "x": x, "shape": shape, "tooltip": tooltip},
        },
    ]
    return chart(
        name=name,
        title=f"Parts of speech: {INPUTS[speech[0].input]}",
        reading=_speech_reading(speech),
        layers=layers,
        height=40 + 30 * len(tags),
        columns=("part of speech", "off", "change", "95 % from", "to", "intact", "ablated"),
        rows=([row[key] for key in ("tag", "kind", "change", "low", "high", "intact", "ablated")] for row in rows),
    )


def _points(lines: Iterable[tuple[str, str, Curve]], by: str) -> list[Spec]:
    return [
        {"kind": kind, "line": line, "rank": int(rank), "share": round_to(float(share))}
        for kind, line, curve in lines
        for rank, share in zip(curve.ranks, curve.said if by == "rank" else curve.covered, strict=True)
        if share > 0
    ]


def _axes(named: list[Spec], own: list[Spec], by: str) -> tuple[Spec, Spec]:
    """Rank and share; the corpus has more tokens than are predicted, and its tail is not drawn by rank."""
    last = max(point["rank"] for point in (own if by == "rank" else named))
    scale = {"type": "log", "domain": [1, last * 1.3], "nice": False}
    title = "rank of the token among the predicted" if by == "rank" else "most frequent tokens of the corpus"
    x = field("rank", title, scale=scale, axis=_log_axis(1, last))
    if by == "corpus":
        share = {"domain": [0, 1], "nice": False}
        return x, field("share", "share of predictions among them", scale=share, axis={"format": "%", "tickCount": 6})
    low, high = min(point["share"] for point in own) / 1.5, max(point["share"] for point in named) * 1.3
    scale = {"type": "log", "domain": [low, high], "nice": False}
    return x, field("share", "share of predictions", scale=scale, axis=_log_axis(low, high))


def _log_axis(low: float, high: float) -> Spec:
    return {
        "values": [tick for tick in log_ticks(low, high) if low <= tick <= high * 1.3],
        "format": "~g",
        "grid": True,
    }


def _curves_reading(found: Predictions, input: str, by: str) -> str:
    heard = found.of(input)
    said = [("intact", heard.intact), *((OFF[shift.intervention], shift.chosen) for shift in heard.shifts)]
    if by == "rank":
        parts = [
            f"{name} {one.n_types:,} different tokens, the commonest {one.curve.said[0]:.1%}" for name, one in said
        ]
        return (
            f"Tokens by how often they are predicted ({INPUTS[input]}, {heard.n_positions:,} predictions), both axes "
            f"logarithmic; dashed: the corpus' own tokens. A line that starts higher and ends sooner says fewer tokens more "
            f"often. {'; '.join(parts)}."
        )
    place = int(abs(found.corpus.covered - 0.5).argmin())
    parts = [f"{name} {one.curve.covered[place]:.0%}" for name, one in said]
    return (
        f"The share of predictions ({INPUTS[input]}) that are among the corpus' most frequent tokens; dashed: of the corpus "
        f"itself. A higher line says frequent tokens more. Of the {int(found.corpus.ranks[place]):,} most frequent, which are "
        f"{found.corpus.covered[place]:.0%} of the corpus: {', '.join(parts)}."
    )


def _speech_reading(speech: list[PartsOfSpeech]) -> str:
    text = f"Change of the share of each part of speech among {speech[0].n:,} predictions; bars are 95 % intervals over texts. "
    for one in speech:
        most = max(one.shares, key=lambda share: abs(share.change))
        text += (
            f"{OFF[one.intervention].capitalize()}: most {most.tag}, {most.intact:.0%} to {most.ablated:.0%}; the real "
            f"token's part of speech is kept by {one.kept.intact:.0%} intact and {one.kept.ablated:.0%} ablated. "
        )
    return text.strip()
