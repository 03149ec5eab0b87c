"""What is said of a paper's tables on fine-tuned models, for every surface: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.replicate.glue.charts import outliers_against_random
from outlierlens.replicate.glue.result import ENOUGH, Replication, Row, TaskTable, where_enough
from outlierlens.statistics.means import no_change
from outlierlens.view.charts.base import Chart
from outlierlens.view.section import Cell, Change, Count, Interval, P, Rows, Section, Span

PUBLISHED = ("published", "off", "lost")
FAMILIES = "Of control sets: the median, and the 5th to 95th percentile over sets in place of an interval."


def sections(found: Replication, *, verbose: bool = False) -> Iterator[Section]:
    """Whether the papers' effect holds, and a table per task; `verbose` says no more."""
    charts: tuple[Chart, ...] = ()
    if any(one.family("random") for one in found.tables):
        charts = (outliers_against_random((found,), name="replications"),)
    tables = [table for one in found.tables for table in _tables(one)]
    said = (verdict(found), *(_measured(found, one) for one in found.tables))
    yield Section("replications", f"Tables of the paper: {found.paper}", said, charts, tuple(tables))


def verdict(found: Replication) -> str:
    """Whether the papers' effect, at least 5 times what random sets cost, holds."""
    tested = [one for one in found.tables if one.tested is not None]
    if not tested:
        return f"{found.base}: nothing to test: no outliers, or no random sets."
    what = (
        "the outliers cost" if all(one.by_rule for one in tested) else "what was switched off (not by the rule) costs"
    )
    where = where_enough([(one.label, one) for one in tested])
    return f"{found.base}: {what} at least {ENOUGH:g} times what random sets cost in {where}."


def _measured(found: Replication, one: TaskTable) -> str:
    return (
        f"{found.base} on {one.task} ({one.label}): {one.metric} × 100 on {one.n_examples:,} examples; outliers: "
        f"{', '.join(map(str, one.dims)) or 'none'} ({one.named_by})."
    )


def _tables(one: TaskTable) -> Iterator[Rows]:
    """What is off in all layers, then in single ones."""
    published = any(row.reference for row in one.rows)
    heads = (
        "off",
        one.metric,
        "lost",
        "95 %",
        "mean lost",
        "× random",
        f"≥ {ENOUGH:g} ×",
        "p",
        "parameters",
        "% of all",
    )
    yield Rows(
        f"{one.label}: off in all layers, not trained again",
        heads + PUBLISHED * published,
        tuple(_row(row) + _reference(row) * published for row in one.rows),
        " ".join(_notes(one)),
    )
    if one.windows:
        rows = tuple(
            (", ".join(map(str, row.dims)), row.window.removeprefix("layer "), *_numbers(row)) for row in one.windows
        )
        yield Rows(f"{one.label}: off in single layers", ("off", "layer", *heads[1:8]), rows)


def _notes(one: TaskTable) -> Iterator[str]:
    rows = (*one.rows, *one.windows)
    if any(row.kind in ("random", "matched") for row in one.rows):
        yield FAMILIES
    if any(row.lost_low == row.lost_high == 0 and row.kind != "intact" for row in rows):
        yield f"“No change” means {no_change(one.n_examples, 'examples')}."
    yield from dict.fromkeys(
        f"Published: {known.paper}, {known.checkpoint}: {known.source} ({known.evidence})."
        for row in one.rows
        if (known := row.reference)
    )


def _row(row: Row) -> tuple[Cell, ...]:
    intact = row.kind == "intact"
    label = row.label + (
        " together" if row.kind == "together" else f", {row.kind}" if row.kind.startswith("at") else ""
    )
    if row.closeness is not None:
        label += f" ({100 * row.closeness:.0f} % as large)"
    return (label, *_numbers(row), *((None, None) if intact else (Count(row.n_parameters), 100 * row.share)))


def _numbers(row: Row) -> tuple[Cell, ...]:
    """Metric, what is lost of it and how that compares with random sets; × 100."""
    value, p = 100 * row.value, None if row.p is None else P(row.p)
    if row.kind == "intact":
        return (value, None, Span(100 * row.low, 100 * row.high), None, None, None, None)
    mean = None if row.mean is None else Change(100 * row.mean)
    times = "random ≤ 0" if row.times_random is None and row.enough is not None else row.times_random
    lost = (Change(100 * row.lost), Interval(100 * row.lost_low, 100 * row.lost_high))
    return (value, *lost, mean, times, row.passes, p)


def _reference(row: Row) -> tuple[Cell, ...]:
    known = row.reference
    if known is None:
        return (None, None, None)
    ends = (None if score is None else 100 * score for score in (known.intact, known.off))
    return (*ends, Change(100 * known.lost))
