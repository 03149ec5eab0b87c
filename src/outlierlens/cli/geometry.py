"""`geometry`: anisotropy, self-similarity and isotropy of a model's vectors, before and after each fix."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.vectors import Fitting, Reading, reads_vectors, repairs
from outlierlens.interval_words import interval_text

if TYPE_CHECKING:
    from outlierlens.data import Texts
    from outlierlens.geometrical import Estimate, Geometry, LayerGeometry
    from outlierlens.models import LoadOptions

Sentences = Annotated[
    str,
    typer.Option("--data", help="Sentences, a row each: .txt, .jsonl, .csv, .tsv, .parquet, or a hub id.", show_default=False),
]  # fmt: skip

HEADS = (
    "layer",
    "fix",
    "anisotropy",
    "95 %",
    "self-sim.",
    "95 %",
    "intra-sent.",
    "95 %",
    "IsoScore",
    "eff. rank",
    "top 3",
)
MORE = (
    "layer",
    "fix",
    "Δ anisotropy",
    "95 %",
    "pairs",
    "95 %",
    "IsoScore 95 %",
    "r² −1",
    "r² −3",
    "r² −5",
)


@common.loads_a_model
@reads_vectors
@repairs
def geometry(
    model: common.Model,
    data: Sentences,
    text_column: common.TextColumn = None,
    limit: Annotated[int | None, typer.Option("--limit", min=4, help="Draw from the first N sentences.")] = None,
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Pairs of sentences, one token each.")] = 1000,
    words: Annotated[int, typer.Option("--words", min=0, help="Words whose self-similarity is measured.")] = 1000,
    min_sentences: Annotated[
        int, typer.Option("--min-sentences", min=2, help="Sentences that a word must occur in.")
    ] = 10,
    max_contexts: Annotated[int, typer.Option("--max-contexts", min=2, help="Sentences of a word at most.")] = 20,
    tokens: Annotated[
        int, typer.Option("--tokens", min=2, help="Tokens of whole sentences: intra-sentence similarity, IsoScore.")
    ] = 20_000,
    skip_first: Annotated[
        int, typer.Option("--skip-first", min=0, help="Leave out N tokens at each text's start (attention sinks).")
    ] = 0,
    dims: Annotated[str | None, typer.Option("--dims", help="308,381: say their share of the cosine too.")] = None,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=20, help="Times that sentences are drawn again.")] = 500,
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
    fitting: Fitting,
    load: "LoadOptions",
) -> None:
    """Measure how vectors lie in space: anisotropy, self-similarity, isotropy, by layer, before and after fixes."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    specs = fitting.specs
    from outlierlens.geometry.drawing import Drawing
    from outlierlens.geometry.run import GeometryOptions
    from outlierlens.geometry.run import geometry as measure
    from outlierlens.models import load_model

    asked = spelling.plain_dims(dims) if dims else ()
    texts, rest = _texts(data, text_column, limit, fitting.fit_limit, load.offline)
    fit = fitting.texts(offline=load.offline) or rest
    loaded = load_model(model, load)
    with Progress(not no_progress and show.format != "quiet") as progress:
        options = GeometryOptions(
            fixes=specs,
            clip=fitting.clip,
            fit_limit=fitting.fit_limit,
            drawing=Drawing(pairs, words, min_sentences, max_contexts, tokens, reading.special, skip_first),
            read=reading.options(loaded, progress=progress),
            max_length=reading.max_length,
            dims=asked,
            n_bootstrap=bootstrap,
            seed=seed,
        )
        found = measure(loaded, texts, options, fit=fit, command=common.reproduce())
    if chart:
        from outlierlens.charts.geometry import geometry as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_geometry(value, verbose))


def _texts(data: str, column: str | None, limit: int | None, fit_limit: int, offline: bool) -> "tuple[Texts, Texts]":
    """(sentences to draw from, those and what follows them, to fit on where no other text is named)."""
    from outlierlens.data import read_texts

    read = read_texts(data, column=column, limit=None if limit is None else limit + 2 * fit_limit, offline=offline)
    return (read if limit is None else read.first(limit)), read


def print_geometry(found: "Geometry", verbose: bool = False) -> None:
    """One row a layer and fix, then which dimensions carry the cosine of the raw vectors."""
    special = "special tokens counted" if found.special else "without special tokens"
    say(
        f"{found.provenance.model} on {found.data}: {found.n_pairs:,} pairs of sentences, {len(found.words):,} words in "
        f"{found.n_contexts:,} contexts, {found.n_tokens:,} tokens of {found.n_token_sentences:,} sentences, {special}"
    )
    if found.n_fit_vectors:
        say(
            f"fixes fitted on {found.n_fit_vectors:,} token vectors of {found.n_fit_texts:,} texts of {found.fit_data}; "
            f"{found.n_shared:,} of its texts are measured and were left out"
        )
    print_table("", HEADS, [[row.layer, _fix(row), *_cells(row)] for row in found.rows])
    if verbose:
        print_table(
            "the paper's pairs, IsoScore, informativity",
            MORE,
            [[row.layer, _fix(row), *_more(row)] for row in found.rows],
        )
    say("self-similarity and intra-sentence similarity are less the anisotropy; 95 % intervals over sentences")
    for layer in found.layers:
        row = next((row for row in found.rows if row.layer == layer and row.top), None)
        if row is not None:
            named = [one for one in row.named if one.dim not in {top.dim for top in row.top[:3]}]
            shares = ", ".join(f"{one.dim} {_share(one.share)}" for one in (*row.top[:3], *named))
            say(f"layer {layer}, {row.fix}: of the mean cosine, dimension {shares}")
    for note in found.notes:
        say(f"note: {note}")


def _fix(row: "LayerGeometry") -> str:
    """Its name, and what it clips."""
    if row.fix != "clip":
        return row.fix
    return (
        f"clip {', '.join(map(str, row.clipped[:4]))}{' …' if len(row.clipped) > 4 else ''}"
        if row.clipped
        else "clip –"
    )


def _cells(row: "LayerGeometry") -> list[Any]:
    cells: list[Any] = []
    for one in (row.anisotropy, row.self_similarity_adjusted, row.intra_sentence_adjusted):
        cells += [None, None] if one is None else [f"{one.value:.3f}", _interval(one)]
    return [*cells, f"{row.iso_score.value:.3f}", f"{row.effective_rank:.0f}", _share(row.top_share)]


def _more(row: "LayerGeometry") -> list[Any]:
    change = row.anisotropy
    cells = [f"{change.change:+.3f}", interval_text(change.change_low, change.change_high)]
    cells += [f"{row.pairs_cosine.value:.3f}", _interval(row.pairs_cosine), _interval(row.iso_score)]
    return [*cells, *(f"{row.informativity[k]:.2f}" if k in row.informativity else None for k in (1, 3, 5))]


def _interval(one: "Estimate") -> str:
    return interval_text(one.low, one.high, ".3f")


def _share(share: float) -> str:
    return f"{share:.0%}" if math.isfinite(share) else "–"
