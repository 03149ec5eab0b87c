"""What is said of where dimensions come from, for every surface: `sections(found)`."""

from collections.abc import Iterator

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput
from outlierlens.experiments.origin.charts import has_rows, origin_histograms, origin_ranks, origin_rows
from outlierlens.experiments.origin.charts import origin as panels
from outlierlens.experiments.origin.result import NormOrigin, Origin, StackOrigin, TableDim, TableOrigin
from outlierlens.experiments.origin.verdict import summary
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import Cell, Count, FineShare, Of, Rows, Section

TABLES = (
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
)
OTHERS = ("table", "rows", "smallest of", "by dim", "largest of", "by dim")
WHERE = (
    "layers, first in: where its |z| passes, and where it is the largest. Ranks, and how many others pass: in the layer where "
    "it is strongest."
)
RANKS = ("rank |z|", "from top", "from bottom", "by |value|")


def sections(
    found: Origin, *, verbose: bool = True, name: str = "origins", prefix: str = "origins-"
) -> Iterator[Section]:
    """Where each dimension first stands out; with `verbose`, as on a page, all that is known of it.

    `prefix` stands before the names of the charts.
    """
    charts: list[Chart] = []
    said: list[str] = []
    tables: list[Rows] = []
    for number, stack in enumerate(found.stacks):
        said += _sentences(found, stack, verbose)
        charts += _charts(found, stack, prefix + (f"{number}-" if number else ""))
        tables += _tables(found, stack, f"{stack.stack}: " if len(found.stacks) > 1 else "")
    if verbose:
        said.append(f"Read {found.bytes_read:,} of {found.total_bytes:,} bytes ({found.source}).")
    yield Section(name, "Where they come from", tuple(said), tuple(charts), tuple(tables))


def _sentences(found: Origin, stack: StackOrigin, verbose: bool) -> Iterator[str]:
    dims = ", ".join(map(str, stack.dims)) or "none"
    size = f"{stack.n_layers} × {stack.hidden_size}"
    yield f"{found.provenance.model}, {stack.stack} ({size}); dimensions by {found.named_by}: {dims}."
    for verdict in stack.verdicts:
        facts = (f"{verdict.dim}: {sentence}" for sentence in verdict.sentences if verbose)
        yield from dict.fromkeys((summary(verdict), *facts))


def _charts(found: Origin, stack: StackOrigin, prefix: str) -> Iterator[Chart]:
    if stack.dims:
        if has_rows(stack):
            yield origin_rows(stack, prefix=prefix)
        yield origin_histograms(stack, n_sigma=found.n_sigma, prefix=prefix)
        yield origin_ranks(stack, prefix=prefix)


def _tables(found: Origin, stack: StackOrigin, title: str) -> Iterator[Rows]:
    if rows := tuple(_table_row(table, dim, stack.dims) for table in stack.tables for dim in table.dims):
        yield Rows(
            f"{title}Embedding tables", TABLES, rows, "Smallest of, largest of: share of rows whose extreme it is."
        )
    if rows := tuple(_others_row(table, stack.dims) for table in stack.tables):
        yield Rows(f"{title}Most of any dimension that is not named", OTHERS, rows)
    if rows := tuple(
        _norm_row(norm, column, dim, found.threshold) for norm in stack.norms for column, dim in enumerate(stack.dims)
    ):
        heads = ("norm", "part", "dim", f"layers ≥ {found.n_sigma:g}σ", "first in", "strongest z", "in layer")
        columns = (*heads, *RANKS, f"others ≥ {found.n_sigma:g}σ")
        yield Rows(f"{title}Norms and writes", columns, rows, WHERE)


def _table_row(table: TableOrigin, dim: TableDim, dims: tuple[int, ...]) -> tuple[Cell, ...]:
    entry = dim.extremes[0]
    first = None
    if table.rows is not None and table.first_row < table.n_rows:
        first = float(table.rows.z[table.first_row, dims.index(dim.dim)])
    mean = (dim.mean_z, dim.mean_rank) if table.n_read > 1 else (None, None)
    shares = FineShare(dim.argmin_share), FineShare(dim.argmax_share)
    return (
        table.kind,
        dim.dim,
        Count(table.n_read),
        *shares,
        first,
        entry.z,
        f"{entry.row} {entry.token}".strip(),
        *mean,
    )


def _others_row(table: TableOrigin, dims: tuple[int, ...]) -> tuple[Cell, ...]:
    """What the dimension reaches that is most often the extreme and is not named."""
    most = [table.most_of_others(end, dims) for end in ("smallest", "largest")]
    cells = [cell for one in most for cell in ((FineShare(one.share), one.dim) if one else (None, None))]
    return (table.kind, Count(table.n_read), *cells)


def _norm_row(norm: NormOrigin, column: int, dim: int, rule: Rule) -> tuple[Cell, ...]:
    sizes = np.abs(norm.z[:, column])
    peak = int(sizes.argmax())
    past = rule.passes(norm.z[:, column])
    others = int(norm.n_outside[peak]) - int(past[peak])
    module = norm.role if norm.role in ("embedding norm", "final norm") else norm.module
    counts = [Of(int(flags.sum()), len(norm.layers)) for flags in (past, norm.first(column))]
    ranks = (int(values[peak, column]) for values in (norm.rank_z, norm.rank_top, norm.rank_bottom, norm.rank_absolute))
    return (module, norm.part, dim, *counts, float(norm.z[peak, column]), norm.layers[peak], *ranks, others)


def picture(found: Origin, *, which: str = "all", stream: str | None = None) -> Chart:
    """One stream's rows, histograms or ranks, or all of them; the first stream where none is named.

    Raises:
        BadInput: a stream that the result does not have.
    """
    stacks = {stack.stack: stack for stack in found.stacks}
    if stream is not None and stream not in stacks:
        raise BadInput(f"--stack {stream!r}: no such stream; there are {', '.join(stacks)}")
    stack = stacks[stream] if stream else found.stacks[0]
    if which == "all":
        return panels(stack, n_sigma=found.n_sigma)
    if which == "histograms":
        return origin_histograms(stack, n_sigma=found.n_sigma)
    return (origin_rows if which == "rows" else origin_ranks)(stack)
