"""What is said of vectors of frequent and of rare tokens, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.experiments.frequency_geometry.charts import frequency_geometry
from outlierlens.experiments.frequency_geometry.result import FrequencyBands, LayerBands
from outlierlens.statistics.means import interval_text
from outlierlens.vectors.cosines import Estimate
from outlierlens.view.section import Cell, Change, Count, FineShare, Interval, P, Rows, Section, Span

NAME = "frequency-bands"
BANDS = ("band", "count", "types", "share", "drawn", "of types", "commonest")
HEADS = (
    *("layer", "state", "norm ×", "95 %", "rho", "95 %", "cosine gap", "95 %", "other types", "95 %"),
    *("rare–freq.", "all"),
)
CHANGES = (
    *("layer", "state", "Δ norm ×", "95 %", "p", "Δ rho", "95 %", "p", "Δ gap", "95 %", "p"),
    *("Δ other types", "95 %", "p"),
)
CHANGED = ("norm_ratio", "spearman", "cosine_gap", "types_gap")
STATES = {
    "raw": "As they are",
    "clip": "With the dimensions zero in the vectors",
    "off": "With the dimensions off in the network",
}
NOTE = (
    "norm ×: mean norm of the most frequent band over that of the rarest; rho: rank correlation of count and norm; gap: mean "
    "cosine within the most frequent band less that within the rarest, of all pairs and of other types alone; rare–freq.: mean "
    "cosine of tokens of the two; all: of all drawn tokens."
)


def sections(found: FrequencyBands, *, verbose: bool = False) -> Iterator[Section]:
    """The bands, how the most frequent differs from the rarest, and what outliers do to it; with `verbose` every band."""
    rows = (*found.rows, *found.blocks)
    changed = tuple(row for row in rows if row.state != "raw")
    shown = changed if verbose else found.blocks[1:] or changed
    sets = len(found.random_sets)
    p = f"p: rank of |change| among {sets} random sets of as many dimensions, clipped alike." if sets else ""
    tables = [
        Rows("Bands of frequency, from the rarest", BANDS, _bands(found)),
        Rows("Most frequent band and rarest band", HEADS, tuple(map(_numbers, rows)), NOTE),
        Rows("Change from raw", CHANGES, tuple(map(_changes, shown)), p),
    ]
    if verbose:
        heads = ("layer", "state", "measure", *map(str, range(len(found.bands))))
        tables.append(Rows("By band, from the rarest", heads, tuple(one for row in rows for one in _by_band(row))))
    charts = (frequency_geometry(found, name=NAME),)
    yield Section(NAME, "Frequent and rare tokens in space", tuple(_sentences(found)), charts, tuple(tables))


def _sentences(found: FrequencyBands) -> Iterator[str]:
    for row in found.blocks:
        ratio, gap = row.norm_ratio, row.types_gap
        yield (
            f"{STATES[row.state]}, over all blocks: the mean norm of the most frequent band is {ratio.value:.2f} times that of "
            f"the rarest ({interval_text(ratio.low, ratio.high, '.2f')}), and the mean cosine of different tokens within it "
            f"differs from that within the rarest by {gap.value:+z.3f} ({interval_text(gap.low, gap.high)})."
        )
    special = "special tokens counted" if found.special else "without special tokens"
    yield (
        f"{found.provenance.model} on {found.data}: {found.n_tokens:,} tokens of {found.n_read:,} texts, {special}; "
        f"frequencies of {found.counts}, {found.unknown:.1%} of the tokens ({found.unknown_types:,} of {found.n_types:,} "
        "types) without one."
    )
    off = f"; off inside the network by {found.mode}" if found.mode else ""
    yield f"Dimension {', '.join(map(str, found.dims))}: {found.dims_source}{off}."


def _bands(found: FrequencyBands) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (
            *(number, band.name, Count(band.n_types), FineShare(band.share), Count(band.n_tokens)),
            *(Count(band.n_drawn_types), " ".join(band.examples)),
        )
        for number, band in enumerate(found.bands)
    )


def _numbers(row: LayerBands) -> tuple[Cell, ...]:
    cells: list[Cell] = [row.layer, row.state]
    for one in (row.norm_ratio, row.spearman):
        cells += [one.value, Span(one.low, one.high)]
    for one in (row.cosine_gap, row.types_gap):
        cells += [Change(one.value), Interval(one.low, one.high)]
    return (*cells, row.between.value, row.anisotropy.value)


def _changes(row: LayerBands) -> tuple[Cell, ...]:
    cells: list[Cell] = [row.layer, row.state]
    for name in CHANGED:
        one: Estimate = getattr(row, name)
        p = P(row.random[name].p) if name in row.random else None
        cells += [Change(one.change), Interval(one.change_low, one.change_high), p]
    return tuple(cells)


def _by_band(row: LayerBands) -> Iterator[tuple[Cell, ...]]:
    measures = (("norm", row.norm), ("cosine", row.cosine), ("other types", row.cosine_types))
    for measure, bands in measures:
        yield (row.layer, row.state, measure, *(one.value for one in bands))
