"""`attention`: which keys attention goes to, whether outlier dimensions go with it, and what switching them off changes."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Progress, Show, print_table, say
from outlierlens.cli.measure import EmbeddingsOption, FactorOption, StackOption
from outlierlens.layer_words import number_of_layers

if TYPE_CHECKING:
    from outlierlens.attended import Attention, KeyCorrelation
    from outlierlens.models import LoadOptions

PLACES = ("condition", "first", "special", "delimiter", "punctuation", "entropy", "of log keys", "sink heads")
OVERALL = ("keys", "dim", "mean |r| over layers", "95 %", "rank", "p", "strongest layer", "r there")
MEANS = {"seen": "queries that see the key", "all": "all queries", "padded": "all queries and padding"}
CORRELATIONS = ("layer", "dim", "r", "95 %", "others 5–95 %", "rank", "p", "off")


@common.loads_a_model
def attention(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    dims: Annotated[
        str | None, typer.Option("--dims", help="308,381. Default: what scan finds, or the two strongest.")
    ] = None,
    stack: StackOption = None,
    mode: Annotated[
        str, typer.Option("--mode", help="How dimensions go off: weights, norms, zero, mean, scale or writes.")
    ] = "weights",
    factor: FactorOption = 0.5,
    embeddings: EmbeddingsOption = False,
    n_random: Annotated[int, typer.Option("--random", min=0, help="Draws of as many random dimensions.")] = 5,
    sink_threshold: Annotated[
        float, typer.Option("--sink-threshold", help="Mean attention on the first token that makes a head a sink.")
    ] = 0.3,
    paper_compat: Annotated[
        bool,
        typer.Option("--paper-compat", help="Correlate as the released code: padding asks too, 10 random controls."),
    ] = False,
    example: Annotated[
        int | None,
        typer.Option(
            "--example", min=-1, help="Text whose maps are kept, -1 for none. Default: the first long enough."
        ),
    ] = None,
    example_layer: Annotated[
        int | None, typer.Option("--example-layer", min=0, help="Layer of the maps. Default: the last but one.")
    ] = None,
    example_tokens: Annotated[int, typer.Option("--example-tokens", min=3, help="Tokens of it at most.")] = 32,
    max_length: common.MaxLength = 128,
    batch_size: common.BatchSize = 32,
    bootstrap: common.Bootstrap = 200,
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
    load: "LoadOptions",
) -> None:
    """Measure attention received by each token, its correlation with every dimension, and attention sinks."""
    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    asked = spelling.plain_dims(dims) if dims else ()
    from outlierlens.attention.run import AttentionOptions
    from outlierlens.attention.run import attention as measure
    from outlierlens.data import read_texts
    from outlierlens.models import load_model

    options = AttentionOptions(
        dims=asked,
        stack=stack,
        mode=mode,  # type: ignore[arg-type]
        factor=factor,
        embeddings=embeddings,
        n_random=n_random,
        threshold=sink_threshold,
        paper_compat=paper_compat,
        example=example,
        example_layer=example_layer,
        example_tokens=example_tokens,
        max_length=max_length,
        batch_size=batch_size,
        n_bootstrap=bootstrap,
        seed=seed,
    )
    texts = read_texts(data, column=text_column, limit=limit, offline=load.offline)
    loaded = load_model(model, replace(load, attention="eager"))
    with Progress(not no_progress and show.format != "quiet") as progress:
        found = measure(loaded, texts, replace(options, progress=progress), command=common.reproduce())
    if chart:
        from outlierlens.charts.attention import attention as draw

        write_chart(chart, draw(found))
    show.result(found, lambda value: print_attention(value, verbose))


def print_attention(found: "Attention", verbose: bool = False) -> None:
    """Where attention goes in each condition, then the correlations of the named dimensions."""
    say(
        f"{found.provenance.model} on {found.data}: {found.n_texts:,} texts, {found.n_tokens:,} tokens ({found.n_special:,} "
        f"special), {number_of_layers(len(found.layers))} × {found.n_heads} heads; off by {found.mode}"
    )
    say(f"dimensions {', '.join(map(str, found.dims))}: {found.named_by}")
    print_table("where attention goes, mean over layers and heads", PLACES, _places(found))
    for metric in ("first", "special", "delimiter", "entropy"):
        p = found.change_p(metric)
        change = float(found.off.change[_at(metric)].mean())
        beside = "" if p is None else f"; of {len(found.randoms)} random draws and it, rank p {p:.3g}"
        say(f"{metric}: {change:+z.4f} with the outliers off{beside}")
    if verbose:
        print_table("by layer", ("layer", *PLACES), _by_layer(found))
    means = f"mean over {MEANS[found.means[0]]}"
    print_table(f"attention received ({means}) and |h|, mean over heads", OVERALL, _overall(found))
    if verbose:
        for one in found.correlations:
            print_table(_title(one), CORRELATIONS, _correlations(found, one))
    if verbose:
        say(f"delimiters: {' '.join(found.delimiters)}")
    for note in found.notes:
        say(f"note: {note}")


def _at(metric: str) -> int:
    from outlierlens.attended import at

    return at(metric)


def _places(found: "Attention") -> list[list[Any]]:
    rows = []
    for condition in (found.intact, found.off, *found.randoms):
        name = condition.kind if condition.kind == "intact" else f"{condition.kind}: {_some(condition.dims)}"
        shares = [f"{condition.of(metric).mean():.1%}" for metric in ("first", "special", "delimiter", "punctuation")]
        entropies = [f"{_mean(condition.of('entropy')):.2f}", f"{_mean(condition.of('relative_entropy')):.2f}"]
        rows.append([name, *shares, *entropies, f"{condition.sink_rate(found.threshold):.1%}"])
    uniform = [f"{share:.1%}" for share in found.uniform.mean(axis=1)]
    return [*rows, ["(all keys alike)", *uniform, None, None, None]]


def _by_layer(found: "Attention") -> list[list[Any]]:
    rows: list[list[Any]] = []
    for row, layer in enumerate(found.layers):
        for condition in (found.intact, found.off):
            shares = [f"{condition.of(m)[row]:.1%}" for m in ("first", "special", "delimiter", "punctuation")]
            entropies = [f"{condition.of(m)[row]:.2f}" for m in ("entropy", "relative_entropy")]
            sinks = f"{condition.sink_layers(found.threshold)[row]:.0%}"
            rows.append([layer, condition.kind, *shares, *entropies, sinks])
    return rows


def _correlations(found: "Attention", one: "KeyCorrelation") -> list[list[Any]]:
    band = one.band(found.dims)
    return [
        [
            layer,
            dim,
            _r(one.every[row, dim]),
            f"{_r(one.low[row, column])} to {_r(one.high[row, column])}",
            f"{_r(band[row, 1])} to {_r(band[row, 3])}",
            int(one.rank[row, column]),
            f"{one.p[row, column]:.3g}",
            _r(one.off[row, column]),
        ]
        for row, layer in enumerate(found.layers)
        for column, dim in enumerate(found.dims)
    ]


def _overall(found: "Attention") -> list[list[Any]]:
    from outlierlens.attended import KEYS

    rows: list[list[Any]] = []
    n_others = found.hidden_size - len(found.dims) + 1
    for one in found.different:
        for column, dim in enumerate(found.dims):
            r = [abs(value) if math.isfinite(value) else -1.0 for value in one.every[:, dim].tolist()]
            best = r.index(max(r))
            rows.append(
                [
                    f"{KEYS[one.keys]}, {one.n_keys:,}",
                    dim,
                    f"{one.overall[column]:z.3f}",
                    f"{one.overall_low[column]:z.3f} to {one.overall_high[column]:z.3f}",
                    f"{one.overall_rank[column]} of {n_others}",
                    f"{one.overall_p[column]:z.3g}",
                    found.layers[best],
                    f"{_r(one.every[best, dim])} ({_r(one.low[best, column])} to {_r(one.high[best, column])})",
                ]
            )
    return rows


def _title(one: "KeyCorrelation") -> str:
    from outlierlens.attended import KEYS

    return f"attention received (mean over {MEANS[one.mean]}) and |h|: {KEYS[one.keys]}, {one.n_keys:,}"


def _some(dims: tuple[int, ...]) -> str:
    return ", ".join(map(str, dims[:6])) + (" …" if len(dims) > 6 else "")


def _r(value: float) -> str:
    return f"{value:+z.2f}" if math.isfinite(value) else "–"


def _mean(values: Any) -> float:
    finite = [value for value in values.tolist() if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
