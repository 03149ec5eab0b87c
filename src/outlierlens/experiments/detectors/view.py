"""What is said of the definitions side by side, for every surface: `sections(found)`.

The first sentence is the verdict: which dimension most definitions agree on, or that there is none.
"""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.detection.observe.view import NAMED, SIZES, SIZES_NOTE, how_large, size_cells
from outlierlens.experiments.detectors.charts import detectors, reading, super_weights, weights_reading
from outlierlens.experiments.detectors.result import FINAL, MODEL, Detectors, Found, LayerValues, SuperWeights, Trial
from outlierlens.view.charts.base import begun
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, Share, few, number, percent, these

AGREED = 0.5  # of the definitions that find anything
SHOWN = 8  # dimensions in a cell, and of those that several definitions find
VALUES = (
    *("layer", "mean cosine", "He", "Bondarenko out", "its largest", "inf norm"),
    *("Bondarenko ffn", "its largest", "γ"),
)
WEIGHTS = ("layer", "row", "column", "weight", "rank", "input", "output", "token", "position", "share", "left")


def sections(found: Detectors, *, verbose: bool = False, layer: str | None = None) -> Iterator[Section]:
    """What each definition finds and where they agree, in one `layer` too; with `verbose` sources and numbers of layers."""
    searched = found.super_weights
    tables = [_found(found), _agreement(found), *([] if layer is None else [_agreement(found, layer)])]
    tables += [*_several(found), _rules(found)]
    if verbose:
        tables += [_sources(found), *map(_values, found.values)]
    if searched is not None:
        tables += _weights(searched)
    charts = (
        detectors(found),
        *([super_weights(found, name="detectors-super-weights")] if searched is not None else []),
    )
    yield Section("detectors", "Every definition side by side", tuple(_sentences(found)), charts, tuple(tables))


def verdict(found: Detectors) -> str:
    """Which dimensions at least half of the definitions that find anything agree on."""
    finding = [name for name in found.names if found.of(name).named]
    agreed = tuple(dim for dim, by in found.votes().items() if len(by) >= max(2, AGREED * len(finding)))
    what = found.what
    if not finding:
        return f"No published definition finds an outlier {what}."
    if not agreed:
        return (
            f"The definitions do not agree on any {what}: {len(finding)} of {len(found.names)} find some, and no {what} "
            "is found by half of those."
        )
    return (
        f"{these(agreed, what).capitalize()}: outlier{'' if len(agreed) == 1 else 's'} by at least half of the {len(finding)} "
        f"definitions that find any; a claim about other {what}s rests on its definition."
    )


def _sentences(found: Detectors) -> Iterator[str]:
    counted = "special tokens counted" if found.special else "without special tokens"
    yield verdict(found)
    yield (
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} texts, {found.n_tokens:,} tokens, {counted}; "
        f"{found.hidden_size:,} {'neurons a block' if found.by_neuron else 'dimensions'}, stream {found.stack}."
    )
    yield reading(found)
    for dim in list(found.votes())[:NAMED]:
        if not isinstance(dim, str) and dim in found.sizes:
            yield begun(how_large(dim, found.sizes[dim]))
    gamma = found.values_of().gamma[: len(found.values_of().layers) - (FINAL in found.layers)]
    if np.isfinite(gamma).any():
        top = int(np.nanargmax(gamma))
        yield (
            f"γ, the length of the mean state over that of the standard deviations, is largest in layer {found.layers[top]}: "
            f"{number(float(gamma[top]))}."
        )
    searched = found.super_weights
    if searched is None:
        return
    yield weights_reading(searched)
    if searched.weights:
        largest = int(searched.before.written.argmax())
        yield (
            f"The search for super weights removed {len(searched.weights)}; {searched.stopped}. The largest output of a last "
            f"linear on the prompt is {searched.before.written[largest]:.1f} (layer {largest}), "
            f"{searched.after.written.max():.1f} afterwards."
        )
    if not math.isnan(searched.restores):
        yield (
            f"Putting back {searched.restored_tokens:,} super activations undoes {percent(searched.restores)} of the damage."
        )


def _found(found: Detectors) -> Rows:
    others = found.conditions[1:]
    rows = []
    for one in map(found.of, found.names):
        under = (found.of(one.definition, condition) for condition in others)
        rows.append((one.definition, _count(one), _dims(one), _layers(one), *map(_count, under)))
    what = f"{found.what}s"
    note = f"Columns of nulls: how many {what} are found there; – where a definition does not apply."
    return Rows(f"{what.capitalize()} found", ("definition", MODEL, what, "layers", *others), tuple(rows), note)


def _count(found: Found) -> int | None:
    return len(found.named) if found.applies else None


def _dims(found: Found) -> str:
    return (few(found.named, SHOWN) or "none") if found.applies else found.why_not


def _layers(found: Found) -> str | None:
    """Layers where any of the dimensions is found, runs of blocks joined."""
    names = [layer for layer, dims in (found.layers or {}).items() if found.neurons or set(dims) & set(found.dims)]
    if not names:
        return None
    parts = [name for name in names if not name.isdecimal()][:1] if names[0] == "embeddings" else []
    blocks = sorted(int(name) for name in names if name.isdecimal())
    starts = [one for one in blocks if one - 1 not in blocks]
    ends = [one for one in blocks if one + 1 not in blocks]
    parts += [f"{a}–{b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True)]
    parts += ["final norm"] if "final norm" in names else []
    return ", ".join(parts)


def _agreement(found: Detectors, layer: str | None = None) -> Rows:
    """Jaccard indices; definitions that find nothing are left out."""
    values = found.agreement(layer)
    kept = [place for place in range(len(found.names)) if not math.isnan(values[place, place])]
    where = "pooled over layers" if layer is None else f"layer {layer}"
    rows = tuple((found.names[one], *(round(float(values[one, other]), 2) for other in kept)) for one in kept)
    note = "" if kept else "No definition finds anything."
    return Rows(f"Agreement (Jaccard), {where}", ("definition", *(found.names[one] for one in kept)), rows, note)


def _several(found: Detectors) -> Iterator[Rows]:
    by_dim = [(dim, by) for dim, by in found.votes().items() if len(by) > 1]
    sizes = SIZES if found.sizes else ()
    rows = tuple(
        (
            dim,
            len(by),
            ", ".join(by),
            *(size_cells(None if isinstance(dim, str) else found.sizes.get(dim)) if sizes else ()),
        )
        for dim, by in by_dim[:SHOWN]
    )
    notes = [f"And {len(by_dim) - SHOWN} more."] * (len(by_dim) > SHOWN) + [SIZES_NOTE] * bool(sizes)
    if rows:
        yield Rows("Found by several definitions", (found.what, "definitions", "which", *sizes), rows, " ".join(notes))


def _rules(found: Detectors) -> Rows:
    rows = tuple(
        (one.name, one.tap, one.rule, ", ".join(f"{name}={value:g}" for name, value in one.thresholds.items()))
        for one in found.definitions
    )
    ours = "; ".join(f"{one.name}: {one.ours}" for one in found.definitions if one.ours) or "nothing is ours"
    return Rows("Rules", ("definition", "tap", "rule", "thresholds"), rows, f"Where a rule leaves room: {ours}.")


def _sources(found: Detectors) -> Rows:
    rows = tuple((one.name, one.title, one.pooled, one.source) for one in found.definitions)
    return Rows("Sources", ("definition", "whose", "pooled over layers", "source"), rows)


def _values(values: LayerValues) -> Rows:
    columns = (
        *(values.mean_cosine, values.he_kurtosis, values.bondarenko_out, values.bondarenko_out_max),
        *(values.inf_norm, values.bondarenko_ffn, values.bondarenko_ffn_max, values.gamma),
    )
    rows = tuple((layer, *(float(one[place]) for one in columns)) for place, layer in enumerate(values.layers))
    return Rows(f"Numbers of layers: {values.condition}", VALUES, rows)


def _weights(found: SuperWeights) -> Iterator[Rows]:
    """The weights in the order they were removed, and the tests."""
    if found.weights:
        rows = tuple(
            (
                *(one.layer, one.row, one.column, one.weight, one.rank, one.read, one.written),
                *(repr(one.token), one.position, Share(one.share), one.remaining),
            )
            for one in found.weights
        )
        yield Rows(f"Super weights (spikes above {found.spike:g} on one prompt)", WEIGHTS, rows)
    if found.trials:
        title = f"Super weights tested: {found.task} ({found.unit}) on {found.n_texts} texts"
        yield Rows(title, ("weights", "value", "change", "95 %"), tuple(map(_trial, found.trials)))


def _trial(one: Trial) -> tuple[Cell, ...]:
    intact = one.kind == "intact"
    return one.name, one.value, None if intact else Change(one.change), None if intact else Interval(one.low, one.high)
