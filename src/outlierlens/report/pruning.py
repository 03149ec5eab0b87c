"""What the report says of pruning, by rule from the numbers: `pruning_sections(check, experiments)`."""

from collections.abc import Sequence

from outlierlens.charts.pruning import prune_experiment, pruned_positions
from outlierlens.pruned import PruneCheck, PruneExperiment
from outlierlens.view.section import Rows, Section


def pruning_sections(
    checks: Sequence[PruneCheck] = (), experiments: Sequence[PruneExperiment] = ()
) -> tuple[Section, ...]:
    """A section for each check of a pruning and for each experiment; none without them."""
    made = [_check(found, number) for number, found in enumerate(checks)]
    return (*made, *(_experiment(found, number) for number, found in enumerate(experiments)))


def _check(found: PruneCheck, number: int) -> Section:
    said = [f"{found.verdict[:1].upper()}{found.verdict[1:]}."]
    said += [
        f"{stack.stack}: a position is removed where {stack.definition.replace(' zero', ' are zero')} ({stack.site}); "
        f"{stack.values_removed / max(stack.values, 1):.2%} of those values are gone."
        for stack in found.stacks
    ]
    rows = tuple(
        (row["dim"], row["stack"], "yes" if row["outlier"] else "no", f"{row['layers_removed']} of {row['layers']}",
         None if row["share"] is None else f"{row['share']:.1%}", "yes" if row["breaks"] else "no")
        for row in found.records()
    )  # fmt: skip
    heads = ("position", "stream", "outlier", "removed in layers", "values gone", "breaks the constraint")
    charts = tuple(
        pruned_positions(stack, found, name=f"pruned-{number}-{place}") for place, stack in enumerate(found.stacks)
    )
    tables = (Rows("Outliers, and positions removed in too many layers", heads, rows),) if rows else ()
    return Section(f"pruning-{number}", f"Pruning: {found.after}", tuple(said), charts, tables)


def _experiment(found: PruneExperiment, number: int) -> Section:
    said = [f"{found.verdict[:1].upper()}{found.verdict[1:]}."]
    said += [
        f"{one.kind.capitalize()}: median {one.median:+.3g} {found.unit}"
        + ("." if one.p is None else f", rank p of the chosen positions {one.p:.3g}.")
        for one in found.controls
    ]
    rows = tuple(
        (one.label, family, one.score.value, one.change, one.change_low, one.change_high, found.swaps.get(one.label))
        for family, one in found.conditions()
    )
    heads = ("condition", "family", found.task, "change", "95 % from", "to", "weights not by magnitude")
    table = Rows(f"{found.budget:,} weights of {found.site} pruned", heads, rows, "Intervals draw texts again.")
    chart = prune_experiment(found, name=f"prune-experiment-{number}")
    return Section(f"prune-experiment-{number}", "What pruning one position costs", tuple(said), (chart,), (table,))
