"""Where outlier dimensions come from, in pictures.

origin(found.stacks[0])                # all three in one picture, for a file
origin_rows(stack)                     # minimum and maximum of every position row (Luo et al. 2021, Fig. 3, 4)
origin_histograms(stack)               # embeddings and the norm after them (Kovaleva et al. 2021, Fig. 4)
origin_ranks(stack)                    # rank of every named dimension in every norm, by layer
"""

from collections.abc import Sequence

import numpy as np

from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput
from outlierlens.experiments.origin.charts_panels import (
    PANEL_WIDTH,
    Panel,
    histogram_panel,
    panels_of,
    percent,
    rank_panel,
    ranked_norms,
)
from outlierlens.experiments.origin.result import StackOrigin, TableOrigin
from outlierlens.view.charts import draw
from outlierlens.view.charts.base import (
    BAND,
    Chart,
    Looks,
    Spec,
    begun,
    chart,
    field,
    label,
    looks,
    round_to,
    strongest_first,
)
from outlierlens.view.charts.draw import above, composed, grid, heading, inner, names_at_ends
from outlierlens.view.section import number

MAX_ROWS_DRAWN = 600
MANY_MARKS = 80  # from here on they would run into one another
ROWS_TITLE = "Smallest and largest entry of every position row"


def origin(
    stack: StackOrigin, named: Sequence[int] | None = None, *, n_sigma: float = Rule.n_sigma, prefix: str = ""
) -> Chart:
    """All pictures of a stack one below the other; the rows only where there is a position table."""
    parts = [] if not has_rows(stack) else [origin_rows(stack, named, prefix=prefix)]
    parts += [origin_histograms(stack, named, n_sigma=n_sigma, prefix=prefix)]
    if ranked_norms(stack):
        parts += [origin_ranks(stack, named, prefix=prefix)]
    panels = [
        inner(part, title=heading(part.title, fontSize=15, offset=14))
        | ({"width": 2 * PANEL_WIDTH + 60} if "layer" in part.spec else {})
        for part in parts
    ]
    return composed(
        name=f"{prefix}origin",
        title=f"Where dimensions {_listed(stack)} come from" if stack.dims else "Embeddings and norms",
        reading=" ".join(part.reading for part in parts),
        body=above(panels, 44),
        **parts[-1].numbers,
    )


def _listed(stack: StackOrigin) -> str:
    return ", ".join(map(str, stack.dims[:6])) + (" and more" if len(stack.dims) > 6 else "")


def _named(stack: StackOrigin) -> tuple[int, ...]:
    """The named dimensions, for `looks`: of more than there are colours those of largest |z| in any norm first."""
    size = {
        dim: max((float(np.abs(n.z[:, c]).max()) for n in stack.norms), default=0.0) for c, dim in enumerate(stack.dims)
    }
    return strongest_first(stack.dims, lambda dim: size[dim])


def has_rows(stack: StackOrigin) -> bool:
    """Whether the stack has a position table whose rows were kept."""
    return any(one.kind == "position" and one.rows is not None for one in stack.tables)


def origin_rows(stack: StackOrigin, named: Sequence[int] | None = None, *, prefix: str = "") -> Chart:
    """Minimum and maximum of every position row, with the named dimensions' values and where they are the extreme.

    Raises:
        BadInput: the stack has no position table, or one too long for its rows to be kept.
    """
    table = stack.table("position")
    if table.rows is None:
        raise BadInput(f"{table.name} has {table.n_rows:,} rows, too many to keep one by one")
    rows, dims = table.rows, list(stack.dims)
    shown = looks(_named(stack) if named is None else named, dims)
    marked = _marked(table, dims, shown)
    drawn = _drawn(table, {mark["row"] for mark in marked})
    band = [{"row": row, "low": round_to(rows.low[row]), "high": round_to(rows.high[row])} for row in drawn]
    lines = [
        {"row": row, "name": label(dim), "value": round_to(rows.value[row, dims.index(dim)])}
        for dim in shown
        for row in drawn
    ]
    last = table.n_rows - 1
    scale = {"domain": [-0.012 * last, last], "nice": False}
    x = field("row", "row of the position table", scale=scale, axis={"grid": False})
    y = field("value", "entry", scale={"zero": False, "nice": True})
    what = draw.columns(
        row="row", position="position", name="dimension:N", end="is the:N", value="entry", z="z within the row"
    )
    layers: list[Spec] = [draw.area(band, x=x, **draw.between(y=y), color=BAND, opacity=0.75)]
    if shown:
        colour, size = draw.dim_colour(shown), 70 if len(marked) <= MANY_MARKS else 14
        layers += [
            draw.line(lines, x=x, y=y, color=colour, strokeWidth=1.1, opacity=0.85),
            draw.points(marked, x=x, y=y, color=colour, shape=draw.dim_shape(shown), tooltip=what, size=size),
            *_row_labels(table, marked, x, y),
            *names_at_ends(lines, shown, x, y, span=(float(rows.low.min()), float(rows.high.max()))),
        ]
    columns = ("row", "position", "smallest entry", "dimension", "largest entry", "dimension", "largest |z|")
    return chart(
        name=f"{prefix}origin-rows",
        title=ROWS_TITLE,
        reading=_rows_reading(table, dims, shown),
        layers=layers,
        height=300,
        columns=(*columns, *(f"{label(dim)}, z" for dim in shown)),
        rows=(
            [row, row - table.first_row if row >= table.first_row else None]
            + [round_to(rows.low[row]), int(rows.argmin[row]), round_to(rows.high[row]), int(rows.argmax[row])]
            + [round_to(rows.top_z[row], 3)]
            + [round_to(rows.z[row, dims.index(dim)], 3) for dim in shown]
            for row in range(table.n_rows)
        ),
    )


def _marked(table: TableOrigin, dims: list[int], shown: Looks) -> list[Spec]:
    """Rows whose extreme a named dimension alone is; and every one of them in the first row that is read."""
    assert table.rows is not None
    rows, marks = table.rows, []
    for dim in shown:
        column = dims.index(dim)
        ends = {
            "smallest entry": (rows.rank_bottom[:, column] == 1) & (rows.n_low == 1),
            "largest entry": (rows.rank_top[:, column] == 1) & (rows.n_high == 1),
        }
        for end, hits in ends.items():
            marks += [
                _mark(table, row, column, dim, end) for row in np.flatnonzero(hits).tolist() if row >= table.first_row
            ]
        first = table.first_row
        if first < table.n_rows and not any(hits[first] for hits in ends.values()):
            marks.append(_mark(table, first, column, dim, "neither"))
    return marks


def _row_labels(table: TableOrigin, marked: list[Spec], x: Spec, y: Spec) -> list[Spec]:
    """What the marks of the first row are, where they are its extremes: on its left end they are easily missed."""
    first = [mark for mark in marked if mark["row"] == table.first_row and mark["end"] != "neither"]
    says = [mark | {"says": f"{mark['name']}: {mark['end']} of row {mark['row']}"} for mark in first]
    return [draw.text(says, "says", x=x, y=y, align="left", dx=10, dy=1, fontSize=12)] if says else []


def _mark(table: TableOrigin, row: int, column: int, dim: int, end: str) -> Spec:
    assert table.rows is not None
    numbers = {"value": round_to(table.rows.value[row, column]), "z": round_to(table.rows.z[row, column], 3)}
    return {"row": row, "position": row - table.first_row, "name": label(dim), "end": end} | numbers


def _drawn(table: TableOrigin, marked: set[int]) -> list[int]:
    """The rows that are drawn: all, or evenly spread ones with the first few and those that carry a mark."""
    read = range(min(table.first_row, table.n_rows), table.n_rows)
    if len(read) <= MAX_ROWS_DRAWN:
        return list(read)
    spread = np.linspace(read.start, read.stop - 1, MAX_ROWS_DRAWN).astype(int).tolist()
    some = sorted(marked)[:MAX_ROWS_DRAWN]
    return sorted({*spread, *read[:16], *some})


def _rows_reading(table: TableOrigin, dims: list[int], shown: Looks) -> str:
    assert table.rows is not None
    text = (
        f"Band: from the smallest to the largest entry of each of the {table.n_read:,} position rows; lines: the named "
        "dimensions; marks: rows whose smallest or largest entry they are, and the first row. "
    )
    for dim in shown:
        found = table.dims[dims.index(dim)]
        ends = []
        for end, alone, listed in (
            ("smallest", found.argmin_alone, found.argmin_rows),
            ("largest", found.argmax_alone, found.argmax_rows),
        ):
            if alone == 1:
                ends.append(f"the {end} entry of row {listed[0]} alone")
            elif alone:
                ends.append(f"the {end} of {alone:,} rows ({alone / table.n_read:.1%})")
        text += f"{dim} is {' and '.join(ends) or 'the extreme of no row'}"
        if table.first_row < table.n_rows:
            z = float(table.rows.z[table.first_row, dims.index(dim)])
            text += f" (z in row {table.first_row}: {number(z).replace('-', '−')})"
        text += ". "
    return text.strip()


def origin_histograms(
    stack: StackOrigin, named: Sequence[int] | None = None, *, n_sigma: float = Rule.n_sigma, prefix: str = ""
) -> Chart:
    """All entries of each embedding table and of the embedding norm, with the named dimensions' own among them.

    Kovaleva et al. (2021), figure 4: each histogram normalised to its own total. Here on a logarithmic scale, on which single
    entries show.

    Raises:
        BadInput: there is neither a table nor an embedding norm.
    """
    rule = Rule(n_sigma=n_sigma)
    panels = panels_of(stack, rule)
    if not panels:
        raise BadInput(f"stack {stack.stack!r} has neither an embedding table of its width nor an embedding norm")
    shown = looks(_named(stack) if named is None else named, stack.dims)
    drawn = [histogram_panel(panel, shown, rule) for panel in panels]
    reading = (
        "How often a value occurs (density, logarithmic), grey: all entries of a table, or scale and bias of the norm. "
        f"Shaded: within {rule.deviations} of their mean. Lines: the entries of a named dimension; marks: its "
        "mean over rows, with the share of its entries beyond, or its value in the norm. "
    )
    reading += " ".join(_panel_sentence(panel, shown, rule) for panel in panels)
    numbers = [
        [one.title, dim, round_to(value), round_to(one.histogram.sigma(value), 3), one.shares.get(dim), one.outside]
        for one in panels
        for dim, value in one.values.items()
    ]
    return composed(
        name=f"{prefix}origin-histograms",
        title="Embeddings and the norm after them: named dimensions among all",
        reading=reading.strip(),
        body=grid(drawn, 2, across=40, down=26),
        columns=("of", "dimension", "value (of a table: mean)", "standard deviations from the mean",
                 "share of its entries beyond", "of all"),
        rows=numbers,
    )  # fmt: skip


def _panel_sentence(panel: Panel, shown: Looks, rule: Rule) -> str:
    if not shown:
        return ""
    if panel.counts:
        said = ", ".join(f"{percent(panel.shares[dim])} of {dim}'s" for dim in shown)
        return f"{begun(panel.title)}: beyond are {percent(panel.outside)} of all entries, {said}."
    sigmas = {dim: panel.histogram.sigma(panel.values[dim]) for dim in shown}
    outside = [f"{dim} ({sigma:+.1f})".replace("-", "−") for dim, sigma in sigmas.items() if rule.passes(sigma)]
    named = f"outside are {', '.join(outside)}" if outside else "none of the named is outside"
    return f"{begun(panel.title)}: {named}; {panel.n_outside} dimension{' is' if panel.n_outside == 1 else 's are'}."


def origin_ranks(stack: StackOrigin, named: Sequence[int] | None = None, *, prefix: str = "") -> Chart:
    """Rank by |z| of every named dimension in scale and bias of every norm of the blocks, by layer.

    Raises:
        BadInput: the stack has no norm in its blocks, and nothing that they write was read.
    """
    norms = ranked_norms(stack)
    if not norms:
        raise BadInput(f"stack {stack.stack!r}: no norm of its blocks is known, and their writes were not read")
    shown = looks(_named(stack) if named is None else named, stack.dims)
    drawn = [rank_panel(stack, norm, shown) for norm in norms]
    first = [
        f"{dim} is first in {sum(int(norm.first(stack.dims.index(dim)).sum()) for norm in norms)}" for dim in shown
    ]
    places = sum(len(norm.layers) for norm in norms)
    reading = (
        "Rank by |z| among all dimensions (1 on top, logarithmic), layer by layer; filled: above the mean, hollow: below. "
        "Line: how many dimensions reach the threshold, so marks on or above it do. emb and final: the norm before and after "
        "the blocks. "
    )
    reading += f"Of {places} vectors, {', '.join(first)}." if first else ""
    numbers = [
        [norm.module, norm.part, layer, dim, round_to(norm.value[i, column]), round_to(norm.z[i, column], 3)]
        + [int(ranks[i, column]) for ranks in (norm.rank_z, norm.rank_top, norm.rank_bottom, norm.rank_absolute)]
        + [int(norm.n_outside[i])]
        for norm in stack.norms
        for i, layer in enumerate(norm.layers)
        for column, dim in enumerate(stack.dims)
    ]
    return composed(
        name=f"{prefix}origin-ranks",
        title="Rank of the named dimensions in every norm, by layer",
        reading=reading.strip(),
        body=grid(drawn, 2, across=40, down=26),
        columns=("norm", "part", "layer", "dimension", "value", "z", "rank by |z|", "from the top", "from the bottom",
                 "by |value|", "dimensions outside"),
        rows=numbers,
    )  # fmt: skip
