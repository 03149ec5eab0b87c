"""How predictions spread over tokens and over parts of speech, intact and with dimensions off.

prediction_curves(found, "unmasked")                 # share of predictions by rank of the token among the predicted
prediction_curves(found, "unmasked", by="corpus")    # share of predictions that the most frequent tokens of the corpus make up
parts_of_speech(found)                               # change of the share of each part of speech
"""

from collections.abc import Iterable

from outlierlens.errors import BadInput
from outlierlens.experiments.predictions.result import INPUTS, Curve, PartsOfSpeech, Predictions
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import Chart, Spec, bar, begun, chart, field, log_ticks, round_to, rounded
from outlierlens.view.charts.forms import interval_dots
from outlierlens.view.charts.palette import DIM_COLOURS, FAINT, INK, MUTED, SHAPES

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
    curves: list[tuple[str, str, Curve]] = [
        ("corpus", "corpus", found.corpus),
        ("intact", "intact", heard.intact.curve),
    ]
    curves += [(OFF[shift.intervention], OFF[shift.intervention], shift.chosen.curve) for shift in heard.shifts]
    random = [
        ("random", f"{shift.intervention} {one.label}", one.curve) for shift in heard.shifts for one in shift.random
    ]
    named, behind = _points(curves, by), _points(random, by)
    own = [point for point in named if point["kind"] != "corpus"]
    kinds = list(dict.fromkeys([kind for kind, _, _ in curves] + [kind for kind, _, _ in random]))
    looks = {"corpus": (MUTED, "stroke"), "intact": (INK, "circle"), "random": (FAINT, "stroke")}
    looks |= dict(zip(OFF.values(), zip(DIM_COLOURS, SHAPES, strict=True), strict=False))
    colour, shape = (draw.by("kind", {kind: looks[kind][i] for kind in kinds}, columns=3) for i in range(2))
    x, y = _axes(named, own, by)
    line: Spec = {"x": x, "y": y, "detail": draw.nominal("line"), "clip": True}
    dash = {"condition": {"test": "datum.kind === 'corpus'", "value": [5, 4]}, "value": [1, 0]}
    tooltip = draw.columns(kind="off:N", rank="rank", share=field("share", "share", format=".2%"))
    layers: list[Spec] = [
        draw.line(behind, **line, color=colour, strokeWidth=1, opacity=0.5),
        draw.line(named, **line, color=colour, strokeDash=dash, strokeWidth=2),
        draw.points(own, **line, color=colour, shape=shape, tooltip=tooltip, size=35),
    ]
    return chart(
        name=name,
        title=f"{begun(KINDS[by])}: {INPUTS[input]}",
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
        {"tag": share.tag, "kind": OFF[one.intervention]}
        | rounded(change=share.change, intact=share.intact, ablated=share.ablated)
        | bar(share.low, share.high)
        for one in speech
        for share in one.shares
        if share.tag in tags
    ]
    styles = dict(zip(OFF.values(), zip(DIM_COLOURS, SHAPES, strict=True), strict=False))
    colour, shape = (draw.by("kind", {kind: styles[kind][i] for kind in kinds}) for i in range(2))
    axis = {"format": "+.0%", "tickCount": 7}
    x = field("change", "change of its share of predictions", scale={"zero": True}, axis=axis)
    y = draw.strips("tag", tags, outer=0.15)
    offset = draw.nominal("kind") | {"sort": kinds, "scale": {"domain": kinds}}
    changes = {key: field(key, title, format="+.1%") for key, title in {"change": "change", **draw.ENDS}.items()}
    shares = {key: field(key, key, format=".1%") for key in ("intact", "ablated")}
    what = draw.columns(tag="part of speech:N", kind="off:N", **changes, **shares)
    layers: list[Spec] = [
        draw.level(0, x=x, strokeDash=draw.DASHED),
        *interval_dots(rows, x, y, what, yOffset=offset, color=colour, shape=shape, size=70),
    ]
    return chart(
        name=name,
        title=f"Parts of speech: {INPUTS[speech[0].input]}",
        reading=_speech_reading(speech),
        layers=layers,
        height=40 + 30 * len(tags),
        **what.table(rows),
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
