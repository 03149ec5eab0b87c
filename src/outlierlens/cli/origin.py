"""`origin`: where outlier dimensions come from, from the weights alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens import spelling
from outlierlens.cli import common, weights
from outlierlens.cli.chart_file import check_chart, write_chart
from outlierlens.cli.common import Show, print_table, say
from outlierlens.errors import BadInput
from outlierlens.spelling import plain_dims

if TYPE_CHECKING:
    from outlierlens.charts import Chart
    from outlierlens.origins import NormOrigin, Origin, StackOrigin, TableDim, TableOrigin

PICTURES = ("all", "rows", "histograms", "ranks")


def origin(
    model: common.Model,
    dims: Annotated[
        str | None, typer.Option("--dims", help="557,143: follow these. Default: what the rule finds.")
    ] = None,
    observed: Annotated[
        Path | None, typer.Option("--from", help="JSON of observe: follow what its rules found.", show_default=False)
    ] = None,
    rule: weights.RuleOption = "kovaleva",
    n_sigma: weights.SigmaOption = 3.0,
    min_layer_fraction: weights.FractionOption = 0.5,
    same_layer: weights.SameLayerOption = False,
    top_k: weights.TopKOption = 6,
    relax_to: weights.RelaxOption = None,
    view: weights.ViewOption = "last",
    arch: common.Arch = None,
    family: common.Family = None,
    max_read: Annotated[
        str, typer.Option("--max-read", help="Refuse a rule that reads more than this to name dimensions.")
    ] = "500MB",
    revision: common.Revision = None,
    subfolder: common.Subfolder = "",
    token: common.Token = None,
    offline: common.Offline = False,
    chart: common.Chart = None,
    picture: Annotated[str, typer.Option("--picture", help="Of --chart: all, rows, histograms or ranks.")] = "all",
    stack: Annotated[
        str | None, typer.Option("--stack", help="Of --chart: which stream, where there are several.")
    ] = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
) -> None:
    """Say where outlier dimensions come from: embedding tables row by row, and every norm by layer."""
    from outlierlens.origin import OriginOptions
    from outlierlens.origin import origin as measure

    show = Show.choose(format, json, quiet, output, overwrite)
    check_chart(chart, replace=overwrite)
    if picture not in PICTURES:
        raise BadInput(f"--picture is {picture!r}; use {', '.join(PICTURES)}")
    if dims and observed:
        raise BadInput("--dims and --from both name dimensions; give one of them")
    scan = weights.scan_options(
        rule, n_sigma, min_layer_fraction, same_layer, top_k, relax_to,
        view=view,
        row=common.row_of(arch, family),
        max_read=spelling.parse_bytes(max_read), revision=revision, subfolder=subfolder, token=token,
        offline=offline, notice=None if quiet else common.warn,
    )  # fmt: skip
    if observed:
        options = OriginOptions(_found_by(observed), f"{observed.name} (observe)", scan)
    else:
        options = OriginOptions(plain_dims(dims) if dims else None, "--dims", scan)
    found = measure(model, options, command=common.reproduce())
    if chart:
        write_chart(chart, _picture(found, picture, stack))
    show.result(found, lambda value: _print_origin(value, verbose))


def _found_by(path: Path) -> dict[str, tuple[int, ...]]:
    from outlierlens.observation import Observation
    from outlierlens.origin import dims_of_observation
    from outlierlens.results import load

    loaded = load(path)
    if not isinstance(loaded, Observation):
        raise BadInput(
            f"{path} holds a {type(loaded).__name__}, not an Observation; make it with outlierlens observe MODEL -o {path}"
        )
    return dims_of_observation(loaded)


def _picture(found: "Origin", picture: str, name: str | None) -> "Chart":
    from outlierlens import charts

    stacks = {stack.stack: stack for stack in found.stacks}
    if name is not None and name not in stacks:
        raise BadInput(f"--stack {name!r}: no such stream; there are {', '.join(stacks)}")
    stack = stacks[name] if name else found.stacks[0]
    if picture == "all":
        return charts.origin(stack, n_sigma=found.n_sigma)
    if picture == "histograms":
        return charts.origin_histograms(stack, n_sigma=found.n_sigma)
    return (charts.origin_rows if picture == "rows" else charts.origin_ranks)(stack)


def _print_origin(found: "Origin", verbose: bool) -> None:
    from outlierlens.origin_verdict import summary

    for stack in found.stacks:
        dims = ", ".join(map(str, stack.dims)) or "none"
        say(
            f"{found.provenance.model}, {stack.stack} ({stack.n_layers} × {stack.hidden_size}); dimensions by "
            f"{found.named_by}: {dims}"
        )
        for one in stack.verdicts:
            say(f"  {summary(one)}")
            for sentence in one.sentences if verbose else ():
                say(f"    {sentence}")
        _print_tables(stack)
        _print_norms(stack, found.n_sigma)
        for note in stack.notes:
            say(f"  note: {note}")
    for note in found.notes:
        say(f"note: {note}")
    if verbose:
        say(f"read {found.bytes_read:,} of {found.total_bytes:,} bytes ({found.source})")


def _print_tables(stack: "StackOrigin") -> None:
    rows = [_table_row(table, dim, stack.dims) for table in stack.tables for dim in table.dims]
    rows += [_others_row(table, stack.dims) for table in stack.tables]
    order = [table.kind for table in stack.tables]
    rows.sort(key=lambda row: order.index(row[0]))
    heads = [
        "table",
        "dim",
        "rows",
        "smallest of",
        "largest of",
        "z in first row",
        "farthest z",
        "in row",
        "z of mean",
        "rank",
    ]
    if rows:
        print_table("embedding tables", heads, rows)


def _table_row(table: "TableOrigin", dim: "TableDim", dims: tuple[int, ...]) -> list[Any]:
    entry = dim.extremes[0]
    first = None
    if table.rows is not None and table.first_row < table.n_rows:
        first = float(table.rows.z[table.first_row, dims.index(dim.dim)])
    mean = [dim.mean_z, dim.mean_rank] if table.n_read > 1 else [None, None]
    place = f"{entry.row} {entry.token}".strip()
    shares = [f"{dim.argmin_share:.2%}", f"{dim.argmax_share:.2%}"]
    return [table.kind, dim.dim, f"{table.n_read:,}", *shares, first, entry.z, place, *mean]


def _others_row(table: "TableOrigin", dims: tuple[int, ...]) -> list[Any]:
    """What the dimension reaches that is most often the extreme and is not named."""
    most = [table.most_of_others(end, dims) for end in ("smallest", "largest")]
    said = [f"{one.share:.2%} ({one.dim})" if one else None for one in most]
    return [table.kind, "most of others", f"{table.n_read:,}", *said, None, None, None, None, None]


def _print_norms(stack: "StackOrigin", n_sigma: float) -> None:
    rows = [
        _norm_row(norm, column, dim, n_sigma) for norm in stack.norms for column, dim in enumerate(stack.dims)
    ]  # fmt: skip
    heads = ["norm", "part", "dim", f"layers ≥ {n_sigma:g}σ", "strongest z", "in layer", "rank |z|", "from top", "from bottom",
             "by |value|", "others ≥", "first in"]  # fmt: skip
    if rows:
        print_table("norms and writes (ranks in the strongest layer)", heads, rows)


def _norm_row(norm: "NormOrigin", column: int, dim: int, n_sigma: float) -> list[Any]:
    sizes = abs(norm.z[:, column])
    peak = int(sizes.argmax())
    passing = int((sizes >= n_sigma).sum())
    others = int(norm.n_outside[peak]) - int(sizes[peak] >= n_sigma)
    module = norm.role if norm.role in ("embedding norm", "final norm") else norm.module
    first = int((norm.rank_z[:, column] == 1).sum())
    ranks = [int(values[peak, column]) for values in (norm.rank_z, norm.rank_top, norm.rank_bottom, norm.rank_absolute)]
    counts = [f"{passing}/{len(norm.layers)}", float(norm.z[peak, column]), norm.layers[peak]]
    return [module, norm.part, dim, *counts, *ranks, others, f"{first}/{len(norm.layers)}"]
