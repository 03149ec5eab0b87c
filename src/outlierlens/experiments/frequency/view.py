"""What is said of correlations with token frequency, for every surface: `sections(found)`."""

import math
from collections.abc import Iterator

import numpy as np

from outlierlens.experiments.frequency.charts import frequency_layers, frequency_types
from outlierlens.experiments.frequency.result import BLOCKS, Contrast, Frequency
from outlierlens.statistics import SIGNIFICANT
from outlierlens.statistics.means import interval_text, no_interval
from outlierlens.view.section import Cell, Change, Interval, P, Rows, Section, Span, percent

NAME = "frequencies"
AGAINST = ("others", "difference", "95 %", "p")
HEADS = ("layer", "raw |r|", *AGAINST, "log |r|", *AGAINST)
MORE = ("layer", "given position", *AGAINST, "Spearman", "others", "p", "types", "others", "p")
ONE_BY_ONE = (
    *("dimension", "layer", "r, log counts", "95 %", "rank", "r of h", "raw counts", "given position", "Spearman"),
    "over types",
)
SHOWN = 12  # named dimensions that get a row of their own
COUNTED = {"without_special": "without special tokens", "all": "special tokens counted"}
SAYS = {"more": "more closely", "less": "less closely", "unclear": "no more clearly"}


def sections(found: Frequency, *, verbose: bool = False, view: str = "without_special") -> Iterator[Section]:
    """Outliers against all other dimensions by layer, then one by one; with `verbose` by the other measures too."""
    charts = [frequency_layers(found, view, name=NAME)]
    if found.clouds:
        charts.append(frequency_types(found, name=f"{NAME}-types"))
    tables = list(_contrasts(found, view, verbose))
    tables.append(Rows("The named dimensions and the strongest", ONE_BY_ONE, _dims(found, view), _what_r_is(found)))
    yield Section(
        NAME, "Which dimensions follow frequency", tuple(_sentences(found, view)), tuple(charts), tuple(tables)
    )


def _sentences(found: Frequency, view: str) -> Iterator[str]:
    if found.contrasts:
        last = found.contrasts[-1].layer
        for measure in ("log", "raw"):
            one = found.contrast(measure, last, view)
            yield (
                f"{answer('Outliers', one.verdict, found.n_texts)} ({measure} counts, "
                f"{'all blocks' if last == BLOCKS else last}): mean |r| {one.named:.3f} against "
                f"{one.others:.3f}, a difference of {one.difference:+.3f} (95 % interval "
                f"{interval_text(one.low, one.high)}, rank p {one.p:.2g})."
            )
    seen = found.view(view)
    yield (
        f"{found.provenance.model} on {found.data}: {seen.n_tokens:,} tokens of {found.n_texts:,} texts, {COUNTED[view]}; "
        f"frequencies of {found.counts}, {seen.unknown:.1%} of the tokens without one."
    )
    if found.paper_compat:
        drawn = ", ".join(f"{value:+z.2f}" for value in found.random_mean(view))
        yield f"Mean r with raw counts of {len(found.random_dims)} random dimensions, layer by layer: {drawn}."
    total = len(found.layers) * found.hidden_size
    texts, both = int((seen.log.q < SIGNIFICANT).sum()), int(found.passes(view).sum())
    yield (
        f"With a false discovery rate of {percent(SIGNIFICANT)}, {texts:,} of {total:,} dimensions × layers correlate with "
        f"log counts in texts like these, {both:,} of them also over types ({found.n_types:,})."
    )


def answer(outliers: str, verdict: str, n_texts: int) -> str:
    """Whether `outliers` follow token frequency, without a full stop."""
    if verdict not in SAYS:
        return f"{outliers} and token frequency: no verdict, for {no_interval(n_texts)}"
    return f"{outliers} follow token frequency {SAYS[verdict]} than other dimensions"


def _contrasts(found: Frequency, view: str, verbose: bool) -> Iterator[Rows]:
    known = {one.layer for one in found.contrasts}
    layers = [layer for layer in (*found.layers, BLOCKS) if layer in known]
    if not layers:
        return
    note = (
        f"Mean |r| of dimension {', '.join(map(str, found.dims))} ({found.dims_source}) and of all others, with raw and "
        "with log counts. Intervals draw texts again; p is among random sets of as many dimensions."
    )
    rows = tuple(
        (layer, *(cell for measure in ("raw", "log") for cell in _cells(found.contrast(measure, layer, view))))
        for layer in layers
    )
    yield Rows("Outliers against all other dimensions", HEADS, rows, note)
    if verbose:
        yield Rows(
            "Given the position, by ranks, over types", MORE, tuple(_more(found, layer, view) for layer in layers)
        )


def _cells(one: Contrast) -> tuple[Cell, ...]:
    ends = Interval(one.low, one.high) if math.isfinite(one.low) else None
    return (one.named, one.others, Change(one.difference), ends, P(one.p))


def _more(found: Frequency, layer: str, view: str) -> tuple[Cell, ...]:
    cells: list[Cell] = [layer, *_cells(found.contrast("partial", layer, view))]
    for one in (found.contrast("spearman", layer, view), found.contrast("types", layer)):
        cells += [one.named, one.others, P(one.p)]
    return tuple(cells)


def _dims(found: Frequency, view: str) -> tuple[tuple[Cell, ...], ...]:
    sizes = np.nan_to_num(np.abs(found.view(view).log.value), nan=-1.0)
    strongest = int(np.unravel_index(int(sizes.argmax()), sizes.shape)[1])
    dims = tuple(dict.fromkeys((*found.dims[:SHOWN], strongest)))
    return tuple(_dim(found, dim, view, strongest) for dim in dims)


def _dim(found: Frequency, dim: int, view: str, strongest: int) -> tuple[Cell, ...]:
    layer = found.strongest(dim, view)
    row = found.row(layer, dim, view)
    others = (row[name] for name in ("signed", "raw", "partial", "spearman", "types"))
    name = f"{dim} (most of all)" if dim == strongest else str(dim)
    return (name, layer, row["log"], Span(row["log_low"], row["log_high"]), row["log_rank"], *others)


def _what_r_is(found: Frequency) -> str:
    return (
        f"Each in the layer where its r with log counts is largest: r of |h|, its 95 % interval over texts and its rank among "
        f"{found.hidden_size:,} dimensions; then r of h itself, and r of |h| with raw counts, given the position, by ranks "
        "and over types."
    )
