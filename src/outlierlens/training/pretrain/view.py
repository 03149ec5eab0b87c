"""What is said of pre-training runs, of one or of several side by side: `sections(found)`."""

from collections.abc import Iterator
from typing import Any

from outlierlens.detection.rules import Rule
from outlierlens.training.pretrain.result import LossChange, Outcome, Outcomes
from outlierlens.view.section import Cell, Change, Interval, Rows, Section, Spread

# {measure: (its column, what its numbers are)}
MEASURES: dict[str, tuple[str, type[float]]] = {
    "text_loss": ("loss", float),
    "n_found": ("found", float),
    "n_one_sided": ("one-sided", float),
    "largest_z": ("largest z", float),
    "kurtosis": ("kurtosis", float),
    "inf_norm": ("largest |h|", float),
    "found_off": ("found off", Change),
    "random_off": ("random off", Change),
    "worst": ("worst off", Change),
    "dim_median": ("median off", Change),
    "int8": ("INT8", Change),
}
PAST = f"past {Rule().sigmas} in {Rule().share} of the layers"
NOTE = (
    f"Found, one-sided: dimensions {PAST}, in scale and bias or in one of them. Off and INT8: "
    "changes in nats per masked token. In brackets the range over seeds, of one seed the 95 % interval over texts."
)


def sections(found: Outcome | Outcomes, *, verbose: bool = False) -> Iterator[Section]:
    """A sentence per run, and a row per recipe, its seeds together; of a single run also what each change costs."""
    runs = found.runs if isinstance(found, Outcomes) else (found,)
    heads = ("recipe", "steps", "seeds", *(head for head, _ in MEASURES.values()))
    tables = [Rows("Recipes", heads, tuple(map(_recipe, found.records())), NOTE)]
    if isinstance(found, Outcome):
        tables.insert(0, Rows("Change of the loss, nats per masked token", ("off", "change", "95 %"), _changes(found)))
    said = [_run(run) for run in runs]
    if len({run.text_digest for run in runs}) > 1:
        said.append("These runs were measured on different texts; their losses cannot be compared.")
    name = "outcomes" if isinstance(found, Outcomes) else "outcome"
    yield Section(name, "Pre-training runs", tuple(said), (), tuple(tables))


def _run(run: Outcome) -> str:
    groups = {"scale and bias": run.both, "scale alone": run.scale_alone, "bias alone": run.bias_alone}
    named = ", ".join(f"{' and '.join(map(str, dims))} ({label})" for label, dims in groups.items() if dims)
    return (
        f"{run.recipe}, seed {run.seed}, {run.steps:,} steps, {run.n_parameters:,} parameters: {PAST}: "
        f"{named or 'none'}; loss {run.text_loss:.3f} nats per masked token on {run.text}; the worst single dimension, "
        f"{', '.join(map(str, run.worst.dims))}, costs {run.worst.change:+z.3g}."
    )


def _recipe(row: dict[str, Any]) -> tuple[Cell, ...]:
    name = f"{row['recipe']} ({row['changed']})" if row["changed"] else row["recipe"]
    measures = (
        None if row[key] is None else Spread(kind(row[key]), row[f"{key}_low"], row[f"{key}_high"])
        for key, (_, kind) in MEASURES.items()
    )
    return (name, row["steps"], row["seeds"], *measures)


def _changes(found: Outcome) -> tuple[tuple[Cell, ...], ...]:
    rows: list[tuple[Cell, ...]] = []
    if found.off:
        random = None if found.random_median is None else Change(found.random_median)
        rows += [_change("named by weights", found.off), ("random sets of that size, median", random, None)]
    rows += [_change("worst single", found.worst), ("single dimension, median", Change(found.dim_median), None)]
    return (*rows, _change("INT8 per tensor, weights and inputs", found.int8))


def _change(label: str, one: LossChange) -> tuple[Cell, ...]:
    named = f"{label}: {', '.join(map(str, one.dims))}" if one.dims else label
    return (named, Change(one.change), Interval(one.low, one.high))
