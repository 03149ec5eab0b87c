"""`frequency`: how closely outliers follow token frequency, beside all other dimensions."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.vectors import Reading, reads_vectors

if TYPE_CHECKING:
    from outlierlens.frequent import Contrast, Frequency
    from outlierlens.models import LoadOptions

Counts = Annotated[
    str,
    typer.Option("--counts", help="Token counts: ours or published; files by commas are added up.", show_default=False),
]
Sentences = Annotated[
    str,
    typer.Option("--data", help="Text to run the model on: a file or a hub id.", show_default=False),
]  # fmt: skip
HEADS = ("layer", "raw r", "others", "difference", "95 %", "p", "log r", "others", "difference", "95 %", "p")
MORE = (
    "layer",
    "given position",
    "others",
    "difference",
    "95 %",
    "p",
    "Spearman",
    "others",
    "p",
    "types",
    "others",
    "p",
)
SHOWN = 6  # dimensions that get a line of their own


@common.loads_a_model
@reads_vectors
def frequency(
    model: common.Model,
    counts: Counts,
    data: Sentences,
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381: hold these against all others; else what the weights name.")
    ] = None,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=50, help="Times that texts are drawn again.")] = 200,
    sample: Annotated[int, typer.Option("--sample", min=200, help="Tokens of the rank correlations.")] = 2048,
    types: Annotated[
        int, typer.Option("--types", min=200, help="Types (vocabulary entries) of correlations over types.")
    ] = 4000,
    paper_compat: Annotated[
        bool,
        typer.Option(
            "--paper-compat", help="Counts, texts and special tokens as in the released code of Puccetti et al."
        ),
    ] = False,
    seed: common.Seed = 0,
    chart: common.Chart = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
    no_progress: common.NoProgress = False,
    *,
    reading: Reading,
    load: "LoadOptions",
) -> None:
    """Measure how closely each dimension follows how frequent a token is: outliers beside all other dimensions."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    asked = spelling.plain_dims(dims) if dims else None
    from outlierlens.data import read_texts
    from outlierlens.frequency.run import FrequencyOptions
    from outlierlens.frequency.run import frequency as measure
    from outlierlens.models import load_model
    from outlierlens.token_counts import compat_counts, read_counts

    loaded = load_model(model, load)
    frequencies = (compat_counts if paper_compat else read_counts)(counts, loaded.tokenizer)
    texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = FrequencyOptions(
            read=reading.options(loaded, progress=progress),
            max_length=reading.max_length,
            dims=asked,
            n_bootstrap=bootstrap,
            n_sample=sample,
            n_types=types,
            paper_compat=paper_compat,
            seed=seed,
        )
        found = measure(loaded, texts, frequencies, options, command=common.reproduce())
    view = "all" if reading.special else "without_special"
    if chart:
        from outlierlens.charts.frequency import frequency as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_frequency(value, view, verbose))


def print_frequency(found: "Frequency", view: str = "without_special", verbose: bool = False) -> None:
    """A row a layer: outliers against all others; then the dimensions one by one, and what passes for all of them."""
    from outlierlens.frequent import BLOCKS

    seen = found.view(view)
    counted = "special tokens counted" if view == "all" else "without special tokens"
    say(
        f"{found.provenance.model} on {found.data}: {seen.n_tokens:,} tokens of {found.n_texts:,} texts, {counted}; "
        f"frequencies of {found.counts}, {seen.unknown:.1%} of the tokens without one"
    )
    if found.contrasts:
        named = ", ".join(map(str, found.dims))
        say(f"mean |r| of dimension {named} ({found.dims_source}) and of all others, with raw and with log counts")
        rows = []
        for layer in (*found.layers, BLOCKS):
            if any(one.layer == layer for one in found.contrasts):
                pair = [found.contrast(measure, layer, view) for measure in ("raw", "log")]
                rows.append([layer, *(cell for one in pair for cell in _cells(one))])
        print_table("", HEADS, rows)
        if verbose:
            print_table("given the position, by ranks, over types", MORE, [_more(found, row[0], view) for row in rows])
        for measure in ("raw", "log"):
            one = found.contrast(measure, found.contrasts[-1].layer, view)
            say(f"{measure} counts, {one.layer}: outliers follow frequency {_says(one)}")
    for dim in found.dims[:SHOWN]:
        say(_line(found, dim, view))
    top = _top(found, view)
    if top not in found.dims[:SHOWN]:
        say(f"most of all: {_line(found, top, view)}")
    if found.paper_compat:
        drawn = ", ".join(f"{value:+.2f}" for value in found.random_mean(view))
        say(f"mean r with raw counts of {len(found.random_dims)} random dimensions, layer by layer: {drawn}")
    say(_passing(found, view))
    for note in found.notes:
        say(f"note: {note}")


def _cells(one: "Contrast") -> list[Any]:
    span = f"{one.low:+.3f} to {one.high:+.3f}" if math.isfinite(one.low) else None
    return [f"{one.named:.3f}", f"{one.others:.3f}", f"{one.difference:+.3f}", span, _p(one.p)]


def _more(found: "Frequency", layer: str, view: str) -> list[Any]:
    ranked = found.contrast("spearman", layer, view)
    over = found.contrast("types", layer)
    cells: list[Any] = [layer, *_cells(found.contrast("partial", layer, view))]
    for one in (ranked, over):
        cells += [f"{one.named:.3f}", f"{one.others:.3f}", _p(one.p)]
    return cells


def _p(p: float) -> str:
    return f"{p:.4f}" if p < 0.1 else f"{p:.2f}"


def _says(one: "Contrast") -> str:
    words = {"more": "more closely than other dimensions", "less": "less closely than other dimensions"}
    verdict = words.get(one.verdict, "no more clearly than other dimensions")
    return f"{verdict} ({one.difference:+.3f}, 95 % {one.low:+.3f} to {one.high:+.3f}, rank p {_p(one.p)})"


def _line(found: "Frequency", dim: int, view: str) -> str:
    layer = found.strongest(dim, view)
    row = found.row(layer, dim, view)
    where = "the embeddings" if layer == "embeddings" else f"layer {layer}"
    return (
        f"dimension {dim}, {where}: r {row['log']:+.3f} ({row['log_low']:+.3f} to {row['log_high']:+.3f}) of |h| with log "
        f"counts, rank {row['log_rank']} of {found.hidden_size}; of h {row['signed']:+.3f}; raw counts {row['raw']:+.3f}; "
        f"given the position {row['partial']:+.3f}; Spearman {row['spearman']:+.3f}; over types {row['types']:+.3f}"
    )


def _top(found: "Frequency", view: str) -> int:
    import numpy as np

    sizes = np.nan_to_num(np.abs(found.view(view).log.value), nan=-1.0)
    return int(np.unravel_index(int(sizes.argmax()), sizes.shape)[1])


def _passing(found: "Frequency", view: str) -> str:
    from outlierlens.statistics import SIGNIFICANT

    seen = found.view(view)
    total = len(found.layers) * found.hidden_size
    texts, both = int((seen.log.q < SIGNIFICANT).sum()), int(found.passes(view).sum())
    return (
        f"with a false discovery rate of {SIGNIFICANT:.0%}, {texts:,} of {total:,} dimensions × layers correlate with log "
        f"counts in texts like these, {both:,} of them also over types ({found.n_types:,})"
    )
