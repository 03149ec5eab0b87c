"""What the report says of fine-tuning, pre-training and tasks: a section for each result, by rule from its numbers."""

import numpy as np

from outlierlens.charts import Chart
from outlierlens.charts.downstream import one_dimension, survival
from outlierlens.charts.frozen import frozen
from outlierlens.charts.recovery import recovery
from outlierlens.charts.similarity import sts_layers, wic_layers
from outlierlens.charts.tasks_random import outliers_against_random
from outlierlens.comparison import Comparison
from outlierlens.finetuned import FineTuned
from outlierlens.frozen_scores import FrozenScores
from outlierlens.interval_words import interval_text
from outlierlens.one_dimension import OneDimension
from outlierlens.pretrained import Outcome, Outcomes
from outlierlens.recovered import Recovery
from outlierlens.replicated import Replication, where_enough
from outlierlens.report.luo import frozen_says
from outlierlens.report.phrases import listed
from outlierlens.similar import Similarity, WordInContext
from outlierlens.survived import Survival
from outlierlens.view.section import Section, rows_of


def comparison_section(found: Comparison, name: str) -> Section:
    """What stayed, came and went between two models."""
    said = []
    for fate in ("stayed", "came", "went"):
        dims = [change.dim for change in found.changes if change.fate == fate]
        said.append(f"{listed(dims) if dims else 'none'} {fate}")
    lead = f"From {found.before.model} to {found.after.model}: {'; '.join(said)}."
    moved = [stream for stream, flag in found.moved.items() if flag]
    more = (f"In {listed(moved)} as many came as went: the basis may have turned.",) if moved else ()
    table = rows_of("Outlier by outlier", map(vars, found.changes))
    return Section(name, "Against another model", (lead, *more), (), (table,) if table.rows else ())


def survival_section(found: Survival, name: str) -> Section:
    """What became of outlier dimensions in fine-tuned models."""
    said = []
    for tuned in found.tuned:
        fates = {fate: [one.dim for one in tuned.dims if one.fate == fate] for fate in ("stayed", "came", "went")}
        parts = [f"{listed(dims)} {fate}" for fate, dims in fates.items() if dims] or ["it has none, as before"]
        said.append(f"{tuned.name}: {'; '.join(parts)}.")
    charts = [survival(found, place, name=f"{name}-{place}") for place in range(len(found.tuned))]
    table = rows_of("Before and after", found.records())
    return Section(name, f"Fine-tuned from {found.base.provenance.model}", tuple(said), tuple(charts), (table,))


def recovery_section(found: Recovery, name: str) -> Section:
    """Whether the model recovers from losing its dimensions."""
    lost: dict[tuple[str, str], list[float]] = {}
    for arm in found.arms:
        lost.setdefault((arm.what, arm.state), []).append(arm.lost)
    words = {"off": "off", "again": "trained again, free to regrow", "held": "trained again without them"}
    parts = [
        f"{words[state]} {np.mean(values):+.3f}" for (what, state), values in lost.items()
        if what == "chosen" and state in words
    ]  # fmt: skip
    said = f"{found.metric} on {found.task} lost with {listed(found.dims)} off: {'; '.join(parts)}."
    table = rows_of("Every way of treating it", found.records())
    return Section(name, "Whether it recovers", (said,), (recovery(found, name=name),), (table,))


def one_dimension_section(found: OneDimension, name: str) -> Section:
    """How much of a task single dimensions carry."""
    last = found.layers[-1]
    said = (
        f"Dimension {last.best.dim} alone, after layer {last.layer}, reaches {found.metric} {last.best.value:.3f} "
        f"({interval_text(last.best.low, last.best.high, '.3f')}) on {found.task}; the whole model {found.full:.3f}, always "
        f"the commonest label {found.majority:.3f}."
    )
    table = rows_of("Best and named dimensions", found.shown())
    return Section(name, "What one dimension carries", (said,), (one_dimension(found, name=name),), (table,))


def finetuned_section(found: FineTuned, name: str) -> Section:
    """What fine-tuning reached, seed by seed."""
    mean, low, high = found.spread()
    seeds = f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
    said = f"{found.base} on {found.task}: {found.metric} {mean:.4f} over {seeds} ({low:.4f} to {high:.4f})."
    return Section(
        name, f"Fine-tuned on {found.task}", (said,), (), (rows_of("Seeds", found.records(), without=("folder",)),)
    )


def outcome_section(found: Outcome, name: str) -> Section:
    """What one pre-training run came to."""
    return outcomes_section(Outcomes((found,)), name)


def outcomes_section(found: Outcomes, name: str) -> Section:
    """What pre-training runs came to, a row a recipe."""
    said = []
    for run in found.runs:
        dims = listed(run.both) if run.both else "no dimension"
        said.append(
            f"{run.recipe}, seed {run.seed}, {run.steps:,} steps: {dims} past 3 sigma; loss {run.text_loss:.3f}; the worst "
            f"single dimension costs {run.worst.change:+.3g} nats per token."
        )
    return Section(name, "Pre-training runs", tuple(said), (), (rows_of("Recipes", found.records()),))


def replication_section(found: Replication, name: str) -> Section:
    """A paper's tables on fine-tuned models."""
    where = where_enough([(one.label, one) for one in found.tables])
    said = f"{found.base}: what was switched off costs at least 5 times what random sets cost in {where}."
    charts: tuple[Chart, ...] = ()
    if any(one.family("random") for one in found.tables):
        charts = (outliers_against_random((found,), name=name),)
    table = rows_of("Every table", found.records(), without=("base", "metric", "parameters", "share"))
    return Section(name, f"Tables of the paper: {found.paper}", (said,), charts, (table,))


def frozen_section(found: FrozenScores, name: str) -> Section:
    """Linear classifiers on frozen vectors."""
    table = rows_of("Layer chosen on dev, and the best on test", found.shown())
    return Section(name, "Classifiers on frozen vectors", (frozen_says(found),), (frozen(found, name=name),), (table,))


def similarity_section(found: Similarity, name: str) -> Section:
    """Sentence similarity by layer, raw and repaired."""
    said = []
    for task in found.tasks:
        best = max(task.choices, key=lambda one: one.score, default=None)
        if best is not None:
            said.append(
                f"{task.title}: ρ × 100 is {100 * best.score:.2f} with {best.fix} at layer {best.layer} ({best.how}), "
                f"{100 * best.raw_score:.2f} raw."
            )
    table = rows_of("Layers and repairs", found.shown())
    return Section(name, "Sentence similarity", tuple(said), (sts_layers(found, name=name),), (table,))


def words_section(found: WordInContext, name: str) -> Section:
    """Words in context, raw and repaired."""
    best = max(found.choices, key=lambda one: one.crossed)
    said = (
        f"Words in context: {best.crossed:.1%} of the pairs of train are told right, cross-validated, with {best.fix} at layer "
        f"{best.layer}; always the same answer gets {found.data[0].all_true:.1%}."
    )
    return Section(
        name, "Words in context", (said,), (wic_layers(found, name=name),), (rows_of("Choices", found.shown()),)
    )
