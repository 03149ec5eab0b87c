"""`frequency-geometry`: vectors of frequent and of rare tokens, and what outlier dimensions have to do with the difference."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.measure import EmbeddingsOption, FactorOption
from outlierlens.cli.vectors import Reading, reads_vectors
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.frequency_bands import FrequencyBands, LayerBands
    from outlierlens.geometrical import Estimate
    from outlierlens.models import LoadOptions

Counts = Annotated[
    str,
    typer.Option(
        "--counts",
        help="Token counts: of `outlierlens count`, or published; files by commas are added up.",
        show_default=False,
    ),
]
Sentences = Annotated[
    str, typer.Option("--data", help="Text to run the model on: a file or a hub id.", show_default=False)
]
BANDS = ("band", "count", "types", "share", "drawn", "of types", "commonest")
HEADS = (
    "layer",
    "state",
    "norm ×",
    "95 %",
    "rho",
    "95 %",
    "cosine gap",
    "95 %",
    "other types",
    "95 %",
    "rare–freq.",
    "all",
)
CHANGES = (
    "layer",
    "state",
    "Δ norm ×",
    "95 %",
    "p",
    "Δ rho",
    "95 %",
    "p",
    "Δ gap",
    "95 %",
    "p",
    "Δ other types",
    "95 %",
    "p",
)
SHOWN = ("norm_ratio", "spearman", "cosine_gap", "types_gap")


@common.loads_a_model
@reads_vectors
def frequency_geometry(
    model: common.Model,
    counts: Counts,
    data: Sentences,
    text_column: common.TextColumn = None,
    limit: Annotated[int | None, typer.Option("--limit", min=4, help="Use the first N texts.")] = None,
    bands: Annotated[
        int, typer.Option("--bands", min=2, help="Bands of frequency, with as many occurrences each.")
    ] = 5,
    tokens_per_band: Annotated[
        int, typer.Option("--tokens-per-band", min=4, help="Tokens drawn from each band, one a text, at most.")
    ] = 1000,
    skip_first: Annotated[
        int, typer.Option("--skip-first", min=0, help="Leave out N tokens at each text's start (attention sinks).")
    ] = 0,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381. Default: what scan finds, or the two strongest.")
    ] = None,
    off: Annotated[
        bool,
        typer.Option(
            "--off/--no-off", help="Measure with them off inside the network too: a second pass.", show_default="on"
        ),
    ] = True,
    mode: Annotated[
        str, typer.Option("--mode", help="How dimensions go off: weights, norms, zero, mean, scale or writes.")
    ] = "weights",
    factor: FactorOption = 0.5,
    embeddings: EmbeddingsOption = False,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Random sets of as many dimensions to clip.")] = 19,
    bootstrap: common.Bootstrap = 500,
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
    """Measure how vectors of frequent and rare tokens differ: norms and cosines, with outlier dimensions on and off."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    asked = spelling.plain_dims(dims) if dims else None
    if embeddings and not off:
        raise BadInput("--embeddings says how dimensions go off; leave --no-off out")
    from outlierlens.data import read_texts
    from outlierlens.frequency_geometry import FrequencyGeometryOptions
    from outlierlens.frequency_geometry import frequency_geometry as measure
    from outlierlens.models import load_model
    from outlierlens.modes import check_mode
    from outlierlens.token_bands import Banding
    from outlierlens.token_counts import read_counts

    check_mode(mode, factor, embeddings)  # before the model is loaded
    banding = Banding(bands, tokens_per_band, reading.special, skip_first)
    texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
    loaded = load_model(model, load)
    frequencies = read_counts(counts, loaded.tokenizer)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = FrequencyGeometryOptions(
            banding=banding,
            read=reading.options(loaded, progress=progress),
            max_length=reading.max_length,
            dims=asked,
            off=off,
            mode=mode,  # type: ignore[arg-type]
            factor=factor,
            embeddings=embeddings,
            n_random=n_random,
            n_bootstrap=bootstrap,
            seed=seed,
        )
        found = measure(loaded, texts, frequencies, options, command=common.reproduce())
    if chart:
        from outlierlens.charts.frequency_geometry import frequency_geometry as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_frequency_geometry(value, verbose))


def print_frequency_geometry(found: "FrequencyBands", verbose: bool = False) -> None:
    """The bands, then a row a layer and state: how the most frequent differ from the rarest, and what outliers do to it."""
    special = "special tokens counted" if found.special else "without special tokens"
    say(
        f"{found.provenance.model} on {found.data}: {found.n_tokens:,} tokens of {found.n_read:,} texts, {special}; "
        f"frequencies of {found.counts}, {found.unknown:.1%} of the tokens ({found.unknown_types:,} of {found.n_types:,} "
        f"types) without one"
    )
    off = f"; off inside the network by {found.mode}" if found.mode else ""
    say(f"dimension {', '.join(map(str, found.dims))}: {found.dims_source}{off}")
    print_table("bands of frequency, from the rarest", BANDS, _bands(found))
    rows = (*found.rows, *found.blocks)
    print_table("most frequent band and rarest band", HEADS, [_cells(row) for row in rows])
    changed = [row for row in rows if row.state != "raw"]
    print_table(
        "change from raw", CHANGES, [_changes(row) for row in (changed if verbose else found.blocks[1:] or changed)]
    )
    if verbose:
        heads = ("layer", "state", "", *map(str, range(len(found.bands))))
        print_table("by band, from the rarest", heads, [cells for row in rows for cells in _by_band(row)])
    say(
        "norm ×: of mean norms; rho: of count and norm; gap: mean cosine within the most frequent band − within the rarest, of "
        "all pairs and of other types alone"
    )
    if found.random_sets:
        say(f"p: rank of |change| among {len(found.random_sets)} random sets of as many dimensions, clipped alike")
    for note in found.notes:
        say(f"note: {note}")


def _bands(found: "FrequencyBands") -> list[list[Any]]:
    return [
        [number, band.name, f"{band.n_types:,}", f"{band.share:.1%}", f"{band.n_tokens:,}", f"{band.n_drawn_types:,}",
         " ".join(band.examples)]
        for number, band in enumerate(found.bands)
    ]  # fmt: skip


def _cells(row: "LayerBands") -> list[Any]:
    cells: list[Any] = [row.layer, row.state]
    for name in SHOWN:
        one: Estimate = getattr(row, name)
        cells += [_number(one.value, "" if name == "norm_ratio" else "+"), _interval(one.low, one.high)]
    return [*cells, _number(row.between.value, ""), _number(row.anisotropy.value, "")]


def _changes(row: "LayerBands") -> list[Any]:
    cells: list[Any] = [row.layer, row.state]
    for name in SHOWN:
        one: Estimate = getattr(row, name)
        p = f"{row.random[name].p:.2f}" if name in row.random else None
        cells += [_number(one.change, "+"), _interval(one.change_low, one.change_high), p]
    return cells


def _by_band(row: "LayerBands") -> list[list[Any]]:
    return [
        [row.layer, row.state, "norm", *(f"{one.value:.3g}" for one in row.norm)],
        [row.layer, row.state, "cosine", *(_number(one.value, "") for one in row.cosine)],
        [row.layer, row.state, "other types", *(_number(one.value, "") for one in row.cosine_types)],
    ]


def _number(value: float, sign: str) -> str | None:
    return f"{value:{sign}.3f}" if math.isfinite(value) else None


def _interval(low: float, high: float) -> str | None:
    return f"{low:.3f} to {high:.3f}" if math.isfinite(low) and math.isfinite(high) else None
