"""What is said of probes of positions, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

from outlierlens.experiments.probe.charts import probe_accuracy, probe_contributions, probe_heat
from outlierlens.experiments.probe.result import LayerProbe, PositionProbe, bucket_accuracy, buckets, held_for, meaning
from outlierlens.statistics.means import interval_text, no_change
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, Span

NAMED_MOST = 4  # dimensions with columns of their own
CLIPPED = (
    *("layer", "clipped", "accuracy", "same probe", "change", "95 %"),
    *("trained again", "change", "95 %"),
)


def sections(found: PositionProbe, *, verbose: bool = False) -> Iterator[Section]:
    """Accuracy by layer and position, contributions, what clipping does; with `verbose` of every named dimension."""
    charts = (
        probe_accuracy(found, name="probes-accuracy"),
        probe_contributions(found, name="probes-contributions"),
        probe_heat(found, name="probes-heat"),
    )
    tables = [_accuracy(found), _contributions(found, len(found.named) if verbose else NAMED_MOST)]
    if any(one.clipped for one in found.layers):
        tables.append(_clipped(found))
    yield Section("probes", "Where positions can be read", tuple(_sentences(found)), charts, tuple(tables))


def _sentences(found: PositionProbe) -> Iterator[str]:
    best = max(found.layers, key=lambda one: one.raw.accuracy)
    ends = interval_text(100 * best.raw.low, 100 * best.raw.high, ".1f")
    yield (
        f"A linear probe names the position of {100 * best.raw.accuracy:.1f} % of the tokens ({ends}) from layer {best.layer}, "
        f"the best of {len(found.layers)} layers; always position {found.majority}, the commonest, is right in "
        f"{100 * found.majority_accuracy:.1f} %."
    )
    special = "with special tokens" if found.special else "without special tokens (they count as positions)"
    epochs = "1 epoch" if found.epochs == 1 else f"{found.epochs} epochs"
    yield (
        f"{found.provenance.model}: position of a token among {found.n_positions}, {special}; {epochs} over "
        f"{found.n_train_tokens:,} tokens of {found.n_train:,} texts, evaluated on {found.n_dev_tokens:,} of {found.n_dev:,}."
    )
    for sentence in (held_for(found), *meaning(found)):
        yield f"{sentence[:1].upper()}{sentence[1:]}."
    yield f"Clipping {found.clip}: {found.clip_source}."


def _accuracy(found: PositionProbe) -> Rows:
    ranges = (str(first) if first == last else f"{first}–{last}" for first, last in buckets(found.n_positions))
    rows = (
        (
            one.layer, 100 * one.raw.accuracy, Span(100 * one.raw.low, 100 * one.raw.high), 100 * one.raw.within_one,
            one.raw.loss, *(None if math.isnan(of) else 100 * of for of in bucket_accuracy(found, one.raw)),
        )
        for one in found.layers
    )  # fmt: skip
    heads = ("layer", "all", "95 %", "within 1", "loss", *ranges)
    return Rows("Accuracy × 100", heads, tuple(rows), "Of all tokens, and by position; loss in nats a token.")


def _contributions(found: PositionProbe, most: int) -> Rows:
    rows = []
    for one in found.layers:
        cells: list[Cell] = [one.layer, one.largest.dim, one.largest.value]
        for named in one.named[:most]:
            cells += (named.value, named.rank, one.weight_rank(named.dim))
        rows.append((*cells, one.mean, one.other.dim, one.other.value))
    heads = [head for dim in found.named[:most] for head in (f"dim {dim}", "rank", "rank of |w|")]
    columns = ("layer", "largest dim", "largest", *heads, "mean of all", "highest other dim", "highest other")
    note = f"Mean over tokens, w the row of the {found.row} position; rank among all dimensions, 1 is largest."
    if left := found.named[most:]:
        note += f" {len(left)} more named dimensions stand in the result: {', '.join(map(str, left))}."
    return Rows("Contribution |w · v|", columns, tuple(rows), note)


def _clipped(found: PositionProbe) -> Rows:
    layers = [one for one in found.layers if one.clipped]
    note = "The same probe on clipped vectors, and one that was trained on them; change from the vectors as they are."
    changes = (change for one in layers for change in (one.clipped_change, one.retrained_change) if change)
    if any((change.low, change.high) == (0, 0) for change in changes):
        note += f" Where nothing changed: {no_change(found.n_dev, 'texts')}."
    return Rows("Accuracy × 100 on clipped vectors", CLIPPED, tuple(map(_clipped_row, layers)), note)


def _clipped_row(one: LayerProbe) -> tuple[Cell, ...]:
    cells: list[Cell] = [one.layer, one.clipped_dims, 100 * one.raw.accuracy]
    for score, change in ((one.clipped, one.clipped_change), (one.retrained, one.retrained_change)):
        if score is None or change is None:
            cells += (None, None, None)
        else:
            ends = Interval(100 * change.low, 100 * change.high)
            cells += (100 * score.accuracy, Change(100 * change.value), ends)
    return tuple(cells)
