"""What is said of a pruning that was checked, and of what forcing it onto one position costs: `sections(found)`."""

from collections.abc import Iterator

from outlierlens.ablation.damage import Condition
from outlierlens.experiments.pruning.charts import prune_experiment, pruned_positions
from outlierlens.experiments.pruning.result import PruneCheck, PruneExperiment, StackCheck
from outlierlens.view.charts.base import begun
from outlierlens.view.section import Cell, Change, Count, FineShare, Interval, P, Rows, Section
from outlierlens.view.words import number_of_layers

LISTED = 40  # positions without `verbose`
POSITIONS = ("position", "stream", "outlier", "removed in", "values gone", "breaks the constraint")
SINGLES = ("weight", "stream", "value", "neuron × median", "gone")
SINGLES_NOTE = (
    "By weights alone: the largest weight of each neuron that can become 10 times its block's median (`scan --stack mlp`). "
    "`detectors` finds such weights by what they do on a text."
)
CONTROLS = ("control", "draws", "median", "95th percentile", "mean", "rank p")


def sections(found: PruneCheck | PruneExperiment, *, verbose: bool = False) -> Iterator[Section]:
    """What pruning removed, with `verbose` every position; or what the budget costs, with `verbose` control by control."""
    yield _check(found, verbose) if isinstance(found, PruneCheck) else _experiment(found, verbose)


def _check(found: PruneCheck, verbose: bool) -> Section:
    source = f"{found.before} → {found.after}" if found.before else found.after
    said = [
        f"{begun(found.verdict)}.",
        f"{source}, from {found.evidence}; {found.bytes_read:,} of {found.total_bytes:,} bytes were read.",
        *map(_stream, found.stacks),
    ]
    records = found.records()
    rows = tuple(
        (
            row["dim"], row["stack"], row["outlier"], f"{row['layers_removed']} of {number_of_layers(row['layers'])}",
            None if row["share"] is None else FineShare(row["share"]), row["breaks"],
        )
        for row in (records if verbose else records[:LISTED])
    )  # fmt: skip
    left = len(records) - len(rows)
    note = f"And {left:,} more; --verbose and the result's file have all." if left else ""
    table = Rows("Outliers, and positions removed in too many layers", POSITIONS, rows, note)
    singles = tuple(
        (one.place, stack.stack, one.weight, Count(round(one.times_median)), one.gone)
        for stack in found.stacks
        for one in stack.weights
    )
    tables = (table, Rows("Single weights that can carry a layer's output", SINGLES, singles, SINGLES_NOTE))
    charts = tuple(
        pruned_positions(stack, found, name=f"prune-check-stream-{place}") for place, stack in enumerate(found.stacks)
    )
    return Section(
        "prune-check", f"Pruning: {found.after}", tuple(said), charts, tuple(one for one in tables if one.rows)
    )


def _stream(stack: StackCheck) -> str:
    by = "as given" if stack.named_by == "given" else f"named by {stack.named_by}"
    return (
        f"{stack.stack}: a position is removed where {stack.definition.replace(' zero', ' are zero')} ({stack.site}); "
        f"{stack.values_removed:,} of {stack.values:,} of those values are gone "
        f"({stack.values_removed / max(stack.values, 1):.2%}); {len(stack.broken):,} of {stack.hidden_size:,} positions are "
        f"removed in {stack.needed} of {number_of_layers(stack.n_layers)} or more; outliers {by}."
    )


def _experiment(found: PruneExperiment, verbose: bool) -> Section:
    said = (
        f"{begun(found.verdict)}.",
        f"{found.provenance.model} on {found.data}: {found.task} of {found.n_texts:,} texts; {found.budget:,} of "
        f"{found.n_candidates:,} weights of {found.site} pruned ({found.sparsity:.2%}), {found.forced:,} of them forced; "
        f"dimensions {', '.join(map(str, found.dims))} ({found.dims_source}).",
        *(
            f"{begun(one.kind)}: median {one.median:+.3g} {found.unit}"
            + ("." if one.p is None else f", rank p = {one.p:.3g}.")
            for one in found.controls
        ),
    )
    heads = ("condition", found.task, "change", "95 %", "weights pruned", "not by magnitude")
    conditions = [one for _, one in found.conditions()]
    note = f"Change in {found.unit}; intervals draw texts again. Not by magnitude: weights that are not among the smallest."
    tables = [Rows("By magnitude, and forced onto the positions", heads, _rows(found, conditions[:3]), note)]
    if found.controls:
        controls = tuple(
            (
                one.kind, len(one.conditions), Change(one.median), Change(one.percentile_95), Change(one.mean),
                None if one.p is None else P(one.p),
            )
            for one in found.controls
        )  # fmt: skip
        tables.append(Rows(f"Forced onto other positions, change in {found.unit}", CONTROLS, controls))
    if verbose and conditions[3:]:
        tables.append(Rows("Every control", heads, _rows(found, conditions[3:])))
    chart = prune_experiment(found)
    return Section("prune-experiment", "What pruning one position costs", said, (chart,), tuple(tables))


def _rows(found: PruneExperiment, conditions: list[Condition]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (
            one.label, one.score.value,
            *((None, None) if one is found.intact else (Change(one.change), Interval(one.change_low, one.change_high))),
            one.n_parameters, found.swaps.get(one.label),
        )
        for one in conditions
    )  # fmt: skip
