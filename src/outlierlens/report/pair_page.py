"""The page of two models side by side: `render_pair(pair)`, one string, and its charts: `pair_charts(pair)`."""

from collections.abc import Iterator

from outlierlens import __version__
from outlierlens.detection.rules import Outlier
from outlierlens.detection.scan.result import StackScan, strongest
from outlierlens.report.advice import length_share
from outlierlens.report.page import Tile, document
from outlierlens.report.pair import (
    Match,
    Pair,
    by_layer,
    changes,
    cost,
    measured,
    not_compared,
    pair_advice,
    pair_sentences,
    profiles,
)
from outlierlens.report.result import ReportData
from outlierlens.report.words import largest, random_control, verdict
from outlierlens.view.charts.base import Chart, begun, place
from outlierlens.view.section import Rows, Section, few, listed, number, percent

NAMED = 12  # dimensions of a model that get a mark


def render_pair(pair: Pair, command: str = "") -> str:
    """Both models in one self-contained HTML document; `command` makes it again."""
    sections = pair_sections(pair)
    sentences = pair_sentences(pair)
    return document(
        "pair.html.jinja",
        [chart for section in sections for chart in section.charts],
        version=__version__,
        headline=sentences[0],
        sentences=sentences[1:],
        tiles=tuple(_tiles(pair)),
        advice=pair_advice(pair),
        sections=sections,
        pair=pair,
        command=command,
        sides=list(zip(("A", "B"), pair.names, pair.sides, pair.pages, strict=True)),
    )


def pair_charts(pair: Pair) -> tuple[Chart, ...]:
    """Every chart of the page, in its order."""
    return tuple(chart for section in pair_sections(pair) for chart in section.charts)


def pair_sections(pair: Pair) -> tuple[Section, ...]:
    """The sections: the outliers of each stream, what breaks, the running models, what was compared."""
    found = [_outliers(pair, match, place) for place, match in enumerate(pair.matches)]
    if pair.texts:
        return (*found, Section("breaks", "What breaks", (f"{not_compared(pair)} {_elsewhere(pair)}",)), _both(pair))
    return (*found, *_damage(pair), *_running(pair), _both(pair))


def _elsewhere(pair: Pair) -> str:
    own = [name for name, page in zip(pair.names, pair.pages, strict=True) if page]
    return f"The numbers stand in the reports of {' and '.join(own)}." if own else ""


def _tiles(pair: Pair) -> Iterator[Tile]:
    for name, data, found in zip(pair.names, pair.sides, (0, 1), strict=True):
        n = sum(len(match.found[found]) for match in pair.matches)
        widths = " + ".join(f"{(match.ours, match.theirs)[found].hidden_size:,}" for match in pair.matches)
        damage = data.damages[0] if data.damages else None
        off = f"with {few(damage.dims, 3)} off" if damage else ""
        lost = (
            f"; {measured(damage)} {cost(damage, damage.chosen.change.value)} {off}"
            if damage and not pair.texts
            else ""
        )
        text = f"outlier dimension{'' if n == 1 else 's'} of {widths} in {name}{lost}"
        yield Tile(str(n), text, bool(lost) and damage is not None and verdict(damage) == "damaging")
    if any(match.mapped for match in pair.matches):
        shared = sum(len(match.both) for match in pair.matches)
        either = sum(len(match.found[0].keys() | match.found[1].keys()) for match in pair.matches if match.mapped)
        yield Tile(f"{shared} of {either}", "at the same position in both")
    else:
        yield Tile("–", "at the same position: streams of different width have no common positions")


def _outliers(pair: Pair, match: Match, number_: int) -> Section:
    suffix = f"-{number_ + 1}" if number_ else ""
    sides = ((match.ours, match.found[0]), (match.theirs, match.found[1]))
    ours, theirs = (tuple(_strongest(found)[:NAMED]) for _, found in sides)
    charts = [profiles(match.ours, match.theirs, pair.names, (ours, theirs), name=f"pair-profiles{suffix}")]
    if ours or theirs:
        dims = (*match.both, *match.only_ours, *match.only_theirs)
        wanted = (dims, dims) if match.mapped else (ours[:3], theirs[:3])
        charts.append(by_layer(match.ours, match.theirs, pair.names, wanted, name=f"pair-layers{suffix}"))
    title = "Which outliers each has" + (f": {match.name}" if len(pair.matches) > 1 else "")
    return Section(f"outliers{suffix}", title, (_said(pair, match),), tuple(charts), tuple(_tables(pair, match)))


def _said(pair: Pair, match: Match) -> str:
    if not match.mapped:
        return (
            f"The streams are {match.ours.hidden_size:,} and {match.theirs.hidden_size:,} wide: a position of one is no "
            "position of the other, so each stands for itself."
        )
    parts = [("in both", match.both), *zip([f"only in {name}" for name in pair.names],
                                           (match.only_ours, match.only_theirs), strict=True)]  # fmt: skip
    return begun("; ".join(f"{where}: {listed(dims) if dims else 'none'}" for where, dims in parts)) + "."


def _strongest(found: dict[int, Outlier]) -> list[int]:
    return sorted(found, key=lambda dim: -max(map(abs, found[dim].z_scale), default=0.0))


def _tables(pair: Pair, match: Match) -> Iterator[Rows]:
    stacks = (match.ours, match.theirs)
    heads = [f"{name}: {what}" for name in pair.names for what in ("layers past, scale", "strongest z", "p (Holm)")]
    note = (
        f"Layers past: at {match.ours.n_sigma:g} and {match.theirs.n_sigma:g} sigma, of {match.ours.counted} and "
        f"{match.theirs.counted}. A dash: no outlier there, so no p, or not kept by the scan."
    )
    if match.mapped:
        dims = (*match.both, *match.only_ours, *match.only_theirs)
        rows = tuple(
            (
                dim,
                "both" if dim in match.both else pair.names[0] if dim in match.only_ours else pair.names[1],
                *(cell for i, stack in enumerate(stacks) for cell in _cells(stack, match.found[i].get(dim), dim)),
            )
            for dim in dims
        )
        if rows:
            yield Rows("Position by position", ("dimension", "outlier of", *heads), rows, note)
        return
    for i, stack in enumerate(stacks):
        cells = tuple((dim, *_cells(stack, found, dim)) for dim, found in sorted(match.found[i].items()))
        if cells:
            yield Rows(
                f"Outliers of {pair.names[i]}", ("dimension", *(h for h in heads[3 * i : 3 * i + 3])), cells, note
            )


def _cells(stack: StackScan, found: Outlier | None, dim: int) -> tuple[object, ...]:
    if dim not in stack.map_dims:
        return (None, None, found.p_holm if found else None)
    z = stack.z_scale[:, stack.map_dims.index(dim)]
    past = stack.threshold.layers_past(z)
    return (f"{past} of {stack.n_layers}", strongest(tuple(z.tolist())), found.p_holm if found else None)


def _damage(pair: Pair) -> Iterator[Section]:
    if not any(data.damages for data in pair.sides):
        return
    rows = []
    for name, data in zip(pair.names, pair.sides, strict=True):
        for damage in data.damages:
            control, intact, off = random_control(damage), damage.intact, damage.chosen
            numbers = (control.median, control.percentile_95, control.p) if control else (None, None, None)
            many = len(data.damages) > 1
            rows.append(
                (
                    f"{name}, {damage.about.stack}" if many else name, few(damage.dims), damage.about.measured,
                    intact.perplexity or intact.value.value, off.perplexity or off.value.value, damage.chosen.change.value,
                    damage.chosen.change.low, damage.chosen.change.high, *numbers, verdict(damage),
                )
            )  # fmt: skip
    heads = (
        *("model", "off", "measured", "intact", "off", "change", "95 % from", "to"),
        *("random, median", "95th percentile", "rank p", "verdict"),
    )
    note = (
        "Intact and off: perplexity where there is one, else the value; changes in nats per token or the task's unit."
    )
    charts: tuple[Chart, ...] = ()
    both = pair.damages
    if both is not None and both[0].about.of_change == both[1].about.of_change:
        charts = (changes(both, pair.names, name="pair-losses"),)
    said = tuple(one for one in pair_sentences(pair) if one.startswith("What each loses"))
    yield Section("breaks", "What breaks", said, charts, (Rows("Losses side by side", heads, tuple(rows), note),))


def _running(pair: Pair) -> Iterator[Section]:
    rows = []
    for name, data in zip(pair.names, pair.sides, strict=True):
        stacks = data.observation.stacks if data.observation else ()
        for stack in stacks:
            peak, share = largest(stack), length_share(stack)
            if peak is None:
                continue
            rules = dict.fromkeys(one.rule for one in stack.outliers)
            by = "; ".join(f"{rule}: {few([o.dim for o in stack.outliers if o.rule == rule])}" for rule in rules)
            rows.append(
                (
                    name if len(stacks) == 1 else f"{name}, {stack.stack}", number(peak.value), peak.dim,
                    place(peak.layer), peak.token, f"{number(peak.ratio)} ×",
                    percent(float(share.max())) if share is not None else None, by or "none",
                )
            )  # fmt: skip
    if rows:
        heads = (
            *("model", "largest |h|", "dimension", "after", "at token", "to the layer's median"),
            *("largest share of the squared length", "named by rules on activations"),
        )
        said = "What single dimensions reach while the models run: the largest hidden value and the largest share of length."
        yield Section(
            "running", "In the running models", (said,), (), (Rows("Hidden values side by side", heads, tuple(rows)),)
        )


def _both(pair: Pair) -> Section:
    rows = []
    for name, data in zip(pair.names, pair.sides, strict=True):
        shape = ", ".join(s.shape for _, s, _ in data.streams() if s is not None)
        made = data.provenance
        rows.append(
            (name, data.scan.model_type, shape, _measure(data), _text(data), made.created[:10], made.fingerprint[:16])
        )
    heads = ("model", "type", "shape", "weights read at", "text", "measured", "fingerprint")
    note = (
        "An outlier dimension passes the rule of the scan in each model by itself. mean |z|: of z = (w − mean) / standard "
        "deviation over one layer's vector, its size averaged over layers. Changes and p as in each model's own report."
    )
    return Section(
        "compared",
        "What was compared",
        tuple(f"{begun(note)}." for note in pair.notes),
        (),
        (Rows("Both models", heads, tuple(rows), note),),
    )


def _measure(data: ReportData) -> str:
    rule = data.scan.rule
    sites = ", ".join(dict.fromkeys(stack.site for stack in data.scan.stacks))
    return f"{sites}; rule {rule.name}, {rule.sigmas}"


def _text(data: ReportData) -> str | None:
    return f"{data.observation.data}, {data.observation.n_tokens:,} tokens" if data.observation else None
