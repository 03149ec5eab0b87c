"""What the report says of Luo et al. (2021) for a model, by rule from the numbers: `luo_sections(found)`.

One section a part of the paper, after a first one that says what clipping does to every data set.
"""

import math
from collections.abc import Iterator, Sequence

from outlierlens.charts import Chart
from outlierlens.charts.frozen import frozen as draw_frozen
from outlierlens.charts.geometry import anisotropy, cosine_shares, self_similarity
from outlierlens.charts.origin import has_rows, origin_histograms, origin_ranks, origin_rows
from outlierlens.charts.probe import probe_accuracy, probe_contributions, probe_heat
from outlierlens.charts.similarity import sts_layers, wic_layers
from outlierlens.frozen_scores import FrozenScores
from outlierlens.geometrical import Geometry, LayerGeometry
from outlierlens.interval_words import interval_text
from outlierlens.luo_replicated import HELD_OUT, UNTOUCHED, Effect, Extreme, LuoReplication
from outlierlens.origins import Origin
from outlierlens.probed import PositionProbe, held_for
from outlierlens.report.phrases import by_dims, listed
from outlierlens.similar import CLIPPED_LAYER, HELPS, HURTS, NOTHING, OPEN
from outlierlens.view.section import Rows, Section

SAID = {
    HELPS: "helps on",
    HURTS: "hurts on",
    NOTHING: "makes no difference that can be told on",
    OPEN: "cannot be judged on",
    UNTOUCHED: "has nothing to act on at the layer chosen for",
}
DATA = {"wic": "WiC", "stsb": "STS-B", "sickr": "SICK-R", "sst2": "SST-2", "sst5": "SST-5", "imdb": "IMDB"}


def luo_sections(found: LuoReplication | None) -> tuple[Section, ...]:
    """The sections of the page; none without a replication."""
    return () if found is None else tuple(_sections(found))


def luo_notes(found: LuoReplication | None) -> tuple[str, ...]:
    """Remarks of all parts, each once."""
    if found is None:
        return ()
    parts = (found.origin, found.probe, found.geometry, found.words, found.sts, *found.frozen)
    notes = [note for part in parts if part is not None for note in part.notes]
    return tuple(dict.fromkeys((*found.notes, *notes)))


def luo_sentences(found: LuoReplication) -> tuple[str, ...]:
    """What clipping does, data set by data set, with the paper's numbers where this is its checkpoint."""
    effects = [one for one in found.effects() if one.how == HELD_OUT] or list(found.effects())
    if not effects:
        return (f"Clipped were {_clipped(found)}; no data set was measured.",)
    named = {says: [_name(one.data) for one in effects if one.says == says] for says in SAID}
    parts = [f"{words} {listed(named[says])}" for says, words in SAID.items() if named[says]]
    chosen = "a layer chosen on other data" if effects[0].how == HELD_OUT else "the layer that is best on the test data"
    said = [f"Clipping {_clipped(found)} {listed(parts)} (95 % intervals, {chosen})."]
    touched = [one for one in effects if one.says != UNTOUCHED]
    if touched:
        strongest = max(touched, key=lambda one: abs(one.change))
        said.append(
            f"The largest change is {100 * strongest.change:+.2f} points of {strongest.metric} on {_name(strongest.data)} "
            f"({strongest.interval}): "
            f"{100 * strongest.raw:.2f} → {100 * strongest.value:.2f}."
        )
    if there := [one for one in found.effects() if one.how == CLIPPED_LAYER]:
        named = {says: [_name(one.data) for one in there if one.says == says] for says in SAID}
        parts = [f"{words} {listed(named[says])}" for says, words in SAID.items() if named[says]]
        layers = listed(list(dict.fromkeys(one.layer for one in there)))
        said.append(f"At the best layer that is clipped ({layers}), it {listed(parts)}.")
    for fix in found.fixes:
        if fix == "clip":
            continue
        others = [one for one in found.effects(fix) if one.how == effects[0].how]
        if others:
            count = {says: sum(one.says == says for one in others) for says in (HELPS, HURTS)}
            said.append(f"{fix}: helps on {count[HELPS]} and hurts on {count[HURTS]} of {len(others)} data sets.")
    if len(found.fixes) > 1:
        said.append(
            "No interval is widened for the number of data sets and fixes: about one in twenty differs by chance."
        )
    if not found.published:
        said.append("None of the paper's numbers are for this checkpoint, so none stand beside these.")
    return tuple(said)


def effect_table(effects: Sequence[Effect], title: str) -> Rows:
    """A row a data set: raw, repaired, their difference, and the paper's numbers where there are any."""
    known = any(one.published for one in effects)
    heads = ("data", "layer chosen", "raw layer", "raw", "layer", "repaired", "change", "95 %", "says")
    rows = []
    for one in effects:
        row: tuple[object, ...] = (
            _name(one.data), one.how, one.raw_layer, 100 * one.raw, one.layer, 100 * one.value, 100 * one.change,
            one.interval, one.says,
        )  # fmt: skip
        if known:
            here = one.published
            row += ((f"{100 * here.raw:.2f}" if here and here.raw else None),)
            row += ((f"{100 * here.clipped:.2f}" if here and here.clipped else None),)
        rows.append(row)
    note = (
        "Accuracy or Spearman's ρ, × 100. “best”: layer (and threshold) chosen on the data that is scored, as in the paper. "
        "“held out”: chosen on other data (WiC: cross-validated over words). “clipped layer”: both at the layer, of those "
        "that are clipped, where raw vectors are best. Intervals: paired bootstrap over examples."
    )
    sources = dict.fromkeys(
        f"{one.published.source} ({one.published.evidence})" for one in effects if one.published is not None
    )
    return Rows(title, heads + (("published raw", "published clipped") if known else ()), tuple(rows),
                " ".join((note, *(f"Published: {one}." for one in sources))))  # fmt: skip


def _sections(found: LuoReplication) -> Iterator[Section]:
    effects = found.effects()
    tables = [effect_table(effects, "Clipped against raw vectors")] if effects else []
    others = [one for fix in found.fixes if fix != "clip" for one in found.effects(fix) if one.how == HELD_OUT]
    if others:
        tables.append(_fixes_table(found))
    if found.extremes:
        tables.append(_extremes_table(found.extremes))
    yield Section("luo", "Positional artefacts (Luo et al. 2021)", luo_sentences(found), (), tuple(tables))
    if found.origin is not None:
        yield origin_section(found.origin)
    if found.probe is not None:
        yield probe_section(found.probe)
    if found.geometry is not None:
        yield geometry_section(found.geometry)
    drawn: list[Chart] = []
    if found.words is not None:
        drawn.append(wic_layers(found.words, name="luo-wic"))
    if found.sts is not None:
        drawn.append(sts_layers(found.sts, name="luo-sts"))
    drawn += [draw_frozen(one, name=f"luo-frozen-{number}") for number, one in enumerate(found.frozen)]
    if drawn:
        said = tuple(frozen_says(one) for one in found.frozen)
        yield Section("luo-tasks", "What vectors of each layer are good for", said, tuple(drawn))


def _fixes_table(found: LuoReplication) -> Rows:
    """Change of every fix on every data set at a layer chosen elsewhere."""
    by = {fix: {one.data: one for one in found.effects(fix) if one.how == HELD_OUT} for fix in found.fixes}
    data = dict.fromkeys(name for ones in by.values() for name in ones)
    rows = tuple(
        (_name(name), *(_short(by[fix].get(name)) for fix in found.fixes))
        for name in data
    )  # fmt: skip
    return Rows(
        "Every repair, layers chosen on other data",
        ("data", *found.fixes),
        rows,
        "Change from raw vectors in points, with its 95 % interval; fitted on other text.",
    )


def _extremes_table(extremes: Sequence[Extreme]) -> Rows:
    """The commonest smallest and largest entries, beside the paper's shares where this is its checkpoint."""
    known = any(one.published is not None for one in extremes)
    heads = ("dim", "is the", "of token vectors", *(("published",) if known else ()))
    rows = tuple(
        (
            one.dim,
            one.end,
            f"{one.share:.2%}",
            *(((f"{one.published:.2%}" if one.published is not None else None),) if known else ()),
        )
        for one in extremes
    )
    note = "Of the token vectors of all blocks, special tokens included."
    if known:
        note += " Published: Luo et al. 2021, section 2, on sentences of SST-2 and QQP."
    return Rows("Most often the smallest and the largest entry", heads, rows, note)


def _short(one: Effect | None) -> str | None:
    if one is None:
        return None
    return f"{100 * one.change:+.2f} ({one.interval})"


def origin_section(found: Origin, name: str = "luo-origin", before: str = "") -> Section:
    """Where dimensions come from; `before` goes before the names of its pictures."""
    charts: list[Chart] = []
    said: list[str] = []
    for number, stack in enumerate(found.stacks):
        prefix = before + (f"{number}-" if number else "")
        said += [f"{verdict.dim}: {sentence}" for verdict in stack.verdicts for sentence in verdict.sentences]
        if not stack.dims:
            continue
        if has_rows(stack):
            charts.append(origin_rows(stack, prefix=prefix))
        charts.append(origin_histograms(stack, n_sigma=found.n_sigma, prefix=prefix))
        charts.append(origin_ranks(stack, prefix=prefix))
    return Section(name, "Where they come from", tuple(said) or ("No dimension was followed.",), tuple(charts))


def probe_section(found: PositionProbe, name: str = "luo-probe") -> Section:
    """Where positions can be read."""
    charts = (
        probe_accuracy(found, name=f"{name}-accuracy"),
        probe_contributions(found, name=f"{name}-contributions"),
        probe_heat(found, name=f"{name}-heat"),
    )
    best = max(found.layers, key=lambda one: one.raw.accuracy)
    said = (
        f"A linear probe names the position of {best.raw.accuracy:.1%} of the tokens from layer {best.layer} "
        f"({interval_text(best.raw.low, best.raw.high, '.1%')}), the best of {len(found.layers)} layers; {held_for(found)}.",
    )
    return Section(name, "Where positions can be read", said, charts)


def geometry_section(found: Geometry, name: str = "luo-geometry") -> Section:
    """How vectors lie in space."""
    worst = max((found.row(layer) for layer in found.layers), key=lambda row: row.anisotropy.value)
    said = [
        f"Random tokens of different sentences have a mean cosine of {worst.anisotropy.value:.3f} "
        f"({worst.anisotropy.low:.3f} to {worst.anisotropy.high:.3f}) in layer {worst.layer}, the most of all layers."
    ]
    for fix in found.fixes:
        if fix != "raw":
            one = found.row(worst.layer, fix).anisotropy
            ends = interval_text(one.change_low, one.change_high)
            said.append(f"{fix}: {one.value:.3f} there, a change of {one.change:+.3f} ({ends}).")
    charts = [anisotropy(found, name=f"{name}-anisotropy")]
    if found.words:
        charts.append(self_similarity(found, name=f"{name}-self-similarity"))
    if any(row.top for row in found.rows):
        charts.append(cosine_shares(found, name=f"{name}-cosine-shares"))
    rows = tuple(_geometry_row(found.row(layer, fix)) for layer in found.layers for fix in found.fixes)
    heads = (
        "layer",
        "fix",
        "anisotropy",
        "of the paper's pairs",
        "self-similarity",
        "intra-sentence",
        "IsoScore",
        "effective rank",
        "share of top 3",
    )
    table = Rows("Geometry by layer", heads, rows, "Self-similarity and intra-sentence similarity less the anisotropy.")
    return Section(name, "How vectors lie in space", tuple(said), tuple(charts), (table,))


def _geometry_row(row: LayerGeometry) -> tuple[object, ...]:
    own, intra = row.self_similarity_adjusted, row.intra_sentence_adjusted
    return (
        row.layer,
        row.fix,
        row.anisotropy.value,
        row.pairs_cosine.value,
        own.value if own else None,
        intra.value if intra else None,
        row.iso_score.value,
        row.effective_rank,
        None if math.isnan(row.top_share) else row.top_share,
    )


def frozen_says(found: FrozenScores) -> str:
    """What linear classifiers on frozen vectors reach, in a sentence."""
    raw = found.fix("raw")
    return (
        f"{_name(found.task.rpartition(':')[2])}: linear classifiers on frozen vectors reach {raw.selected.value:.1%} "
        f"{found.metric} at layer {raw.selected.layer} (chosen on dev), {raw.best.value:.1%} at the layer best on test "
        f"({raw.best.layer}); the commonest label gets {found.majority:.1%}."
    )


def _clipped(found: LuoReplication) -> str:
    parts = [
        f"{listed(list(map(str, dims)))} (layer {_range(layers)})" for dims, layers in by_dims(found.clipped).items()
    ]
    return listed(parts) if parts else "no dimension"


def _range(layers: Sequence[str]) -> str:
    numbers = [int(layer) for layer in layers if layer.isdecimal()]
    if len(numbers) == len(layers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(layers)


def _name(data: str) -> str:
    return DATA.get(data, data.upper() if data.startswith("sts") else data)
