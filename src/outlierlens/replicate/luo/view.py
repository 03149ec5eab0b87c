"""What is said of Luo et al. (2021) for a model, for every surface: `sections(found)`.

One section a part of the paper, after a first one that says what clipping does to every data set.
"""

from collections.abc import Iterator, Sequence

from outlierlens.experiments.frozen.charts import frozen as draw_frozen
from outlierlens.experiments.frozen.view import lead
from outlierlens.experiments.geometry import view as geometry_view
from outlierlens.experiments.origin import view as origin_view
from outlierlens.experiments.probe import view as probe_view
from outlierlens.experiments.similarity.charts import sts_layers, wic_layers
from outlierlens.experiments.similarity.result import CLIPPED_LAYER, HELPS, HURTS, NOTHING, OPEN
from outlierlens.replicate.luo.result import HELD_OUT, UNTOUCHED, Effect, Extreme, LuoReplication
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, by_dims, listed, renamed

SAID = {
    HELPS: "helps on",
    HURTS: "hurts on",
    NOTHING: "makes no difference that can be told on",
    OPEN: "cannot be judged on",
    UNTOUCHED: "has nothing to act on at the layer chosen for",
}
DATA = {"wic": "WiC", "stsb": "STS-B", "sickr": "SICK-R", "sst2": "SST-2", "sst5": "SST-5", "imdb": "IMDB"}


def sections(found: LuoReplication, *, verbose: bool = False) -> Iterator[Section]:
    """What clipping does to every data set, then a section a part; `verbose` says no more."""
    effects = found.effects()
    tables = [effect_table(effects, "Clipped against raw vectors")] if effects else []
    if any(one.how == HELD_OUT for fix in found.fixes if fix != "clip" for one in found.effects(fix)):
        tables.append(_fixes_table(found))
    if found.extremes:
        tables.append(_extremes_table(found.extremes))
    said = [*sentences(found), f"{found.provenance.model}: clipped {found.clipping}."]
    if found.seconds:
        said.append(f"Minutes: {', '.join(f'{name} {seconds / 60:.1f}' for name, seconds in found.seconds.items())}.")
    yield Section("luo", "Positional artefacts (Luo et al. 2021)", tuple(said), (), tuple(tables))
    if found.origin is not None:
        yield from origin_view.sections(found.origin, name="luo-origin", prefix="")
    if found.probe is not None:
        yield from (renamed(one, "luo-probe") for one in probe_view.sections(found.probe))
    if found.geometry is not None:
        yield from (renamed(one, "luo-geometry") for one in geometry_view.sections(found.geometry))
    drawn: list[Chart] = []
    if found.words is not None:
        drawn.append(wic_layers(found.words, name="luo-wic"))
    if found.sts is not None:
        drawn.append(sts_layers(found.sts, name="luo-sts"))
    drawn += [draw_frozen(one, name=f"luo-frozen-{number}") for number, one in enumerate(found.frozen)]
    if drawn:
        said = [lead(one) for one in found.frozen]
        yield Section("luo-tasks", "What vectors of each layer are good for", tuple(said), tuple(drawn))


def sentences(found: LuoReplication) -> tuple[str, ...]:
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
    """A row per data set: raw, repaired, their difference, and the paper's numbers where there are any."""
    known = any(one.published for one in effects)
    heads = ("data", "layer chosen", "raw layer", "raw", "layer", "repaired", "change", "95 %", "says")
    rows = []
    for one in effects:
        row: tuple[Cell, ...] = (
            *(
                _name(one.data),
                one.how,
                one.raw_layer,
                100 * one.raw,
                one.layer,
                100 * one.value,
                *_change(one),
                one.says,
            ),
        )
        if known:
            here = one.published
            row += tuple(
                100 * score if score else None for score in ((here.raw, here.clipped) if here else (None, None))
            )
        rows.append(row)
    note = (
        "Accuracy or Spearman's ρ, × 100. “best”: layer (and threshold) chosen on the data that is scored, as in the paper. "
        "“held out”: chosen on other data (WiC: cross-validated over words). “clipped layer”: both at the layer, of those "
        "that are clipped, where raw vectors are best. Intervals: paired bootstrap over examples."
    )
    nothing = dict.fromkeys(f"{_name(one.data)}: {one.interval}." for one in effects if one.low == one.high == 0)
    sources = dict.fromkeys(
        f"Published: {one.published.source} ({one.published.evidence})." for one in effects if one.published is not None
    )
    return Rows(title, heads + (("published raw", "published clipped") if known else ()), tuple(rows),
                " ".join((note, *nothing, *sources)))  # fmt: skip


def _change(one: Effect) -> tuple[Cell, ...]:
    """The change in points, and its interval."""
    return (Change(100 * one.change), Interval(100 * one.low, 100 * one.high))


def _fixes_table(found: LuoReplication) -> Rows:
    """Change of every fix on every data set at a layer chosen elsewhere."""
    effects = [one for fix in found.fixes for one in found.effects(fix) if one.how == HELD_OUT]
    data = list(dict.fromkeys(one.data for one in effects))
    rows = tuple(
        (_name(one.data), one.fix, *_change(one), one.says)
        for one in sorted(effects, key=lambda one: data.index(one.data))
    )
    return Rows(
        "Every repair, layers chosen on other data",
        ("data", "repair", "change", "95 %", "says"),
        rows,
        "Change from raw vectors in points; fitted on other text.",
    )


def _extremes_table(extremes: Sequence[Extreme]) -> Rows:
    """The commonest smallest and largest entries, beside the paper's shares where this is its checkpoint."""
    known = any(one.published is not None for one in extremes)
    heads = ("dim", "is the", "% of token vectors", *(("published",) if known else ()))
    rows = tuple(
        (
            one.dim,
            one.end,
            *(None if share is None else 100 * share for share in (one.share, one.published)[: 1 + known]),
        )
        for one in extremes
    )
    note = "Of the token vectors of all blocks, special tokens included."
    if known:
        note += " Published: Luo et al. 2021, section 2, on sentences of SST-2 and QQP."
    return Rows("Most often the smallest and the largest entry", heads, rows, note)


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
