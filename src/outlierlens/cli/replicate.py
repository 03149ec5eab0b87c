"""`replicate kovaleva-glue` and `replicate puccetti-glue`: a paper's table of labelled tasks for any model."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Show, print_table, resumable, say, warn
from outlierlens.errors import BadInput
from outlierlens.interval_words import interval_text
from outlierlens.spelling import parse_seeds, plain_dims

if TYPE_CHECKING:
    from outlierlens.cli.sweep_progress import SweepView
    from outlierlens.models import LoadOptions
    from outlierlens.replicated import Replication, Row, TaskTable


@common.loads_a_model
def tables(
    paper: str,
    model: Annotated[str, typer.Argument(help="Pre-trained model: sample, directory or hub id.", show_default=False)],
    tasks: Annotated[str, typer.Option("--tasks", help="Labelled tasks: rte,cola,stsb,sst2, …")] = "rte,cola,stsb,sst2",
    data: Annotated[
        str | None, typer.Option("--data", help="Folder with one folder a task. Default: the hub's copies.")
    ] = None,
    tuned: Annotated[
        list[str] | None,
        typer.Option(
            "--tuned", help="rte=DIR: a fine-tuned model, or a run of finetune. Repeatable; others are trained."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of fine-tuning.")] = 4,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak learning rate.")] = 2e-5,
    train_batch: Annotated[int, typer.Option("--train-batch", min=1, help="Examples of a training step.")] = 32,
    train_limit: Annotated[
        int | None, typer.Option("--train-limit", min=2, help="Train on so many examples, drawn at random.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Of fine-tuning, one model each: 42,43.")] = "42",
    max_length: Annotated[int, typer.Option("--max-length", min=2, help="Tokens of an example at most.")] = 256,
    dims: Annotated[
        str,
        typer.Option(
            "--dims", help="Switch off these (308,381) in place of the rule's; strongest: the two largest |z|."
        ),
    ] = "",
    outliers_of: Annotated[
        str, typer.Option("--outliers-of", help="Whose weights name the outliers: tuned or base.")
    ] = "tuned",
    n_sigma: Annotated[
        float | None, typer.Option("--n-sigma", help="Threshold of the rule. Default: 3 (Kovaleva), 2.5 (Puccetti).")
    ] = None,
    relax_to: Annotated[
        float | None, typer.Option("--relax-to", help="Lower it to this until something is found; said in the result.")
    ] = None,
    n_random: Annotated[
        int | None, typer.Option("--random", min=0, help="Random sets (and dimensions). Default: the paper's 1,000.")
    ] = None,
    n_matched: Annotated[int, typer.Option("--matched", min=0, help="Sets as large, at other positions.")] = 19,
    every: Annotated[bool, typer.Option("--every", help="Every single dimension too: Kovaleva's figure 2.")] = False,
    windows_task: Annotated[
        str | None,
        typer.Option(
            "--windows-task", help="Task measured in each single layer too; none. Default: mnli, or the first."
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            help="rte=NAME,NAME: a model's labels in the order of its outputs, if its config has none. Repeatable.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=2, help="First N examples of the dev split.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="Rows of a forward pass.")] = None,
    beside: Annotated[
        list[Path] | None, typer.Option("--beside", help="Run directory of another model, for the chart. Repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the control sets.")] = 42,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL-PAPER.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: drop what was measured.")] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    load: "LoadOptions",
) -> None:
    """GLUE with outliers off: fine-tune, switch them off without training again, beside random sets.

    Everything is kept in the run directory as it is made: the same command goes on where a run was stopped.
    """
    from outlierlens.finetune.settings import FinetuneSettings
    from outlierlens.replicate.run import Hooks, Replicating
    from outlierlens.replicate.run import replicate as run
    from outlierlens.replicate.views import read_replication, write_views

    show = Show.choose(format, json, quiet, None)
    job = Replicating(
        paper=paper,
        base=model,
        tasks=_words(tasks),
        directory=output or Path("runs") / f"{Path(model).name}-{paper}",
        data=data,
        tuned=_tuned(tuned or []),
        settings=FinetuneSettings(
            epochs=epochs,
            learning_rate=learning_rate,
            batch=train_batch,
            train_limit=train_limit,
            max_length=max_length,
        ),
        seeds=parse_seeds(seeds),
        dims=_dims(dims),
        outliers_of=outliers_of,
        n_sigma=n_sigma,
        relax_to=relax_to,
        n_random=n_random,
        n_matched=n_matched,
        every=every,
        windows_task=windows_task,
        limit=limit,
        labels=_labels(labels or [], _words(tasks)),
        batch_size=batch_size,
        seed=seed,
        overwrite=overwrite,
        command=common.reproduce(),
    )
    others = [read_replication(path) for path in beside or ()]
    loud = not no_progress and show.format != "quiet"
    with resumable(job.directory):
        made = run(job, load, Hooks(warn if loud else lambda _: None, lambda: _view(loud)))
    pages = write_views(job.directory, made, others)
    show.result(made, print_replication)
    if show.format == "human":
        say(f"result: {job.directory / 'replication.json'}; pages: {', '.join(map(str, pages)) or 'none'}")


def tables_of(paper: str) -> Callable[..., None]:
    """The command that makes the tables of `paper`."""

    @functools.wraps(tables)
    def command(**given: Any) -> None:
        tables(paper=paper, **given)

    own = [parameter for name, parameter in inspect.signature(tables).parameters.items() if name != "paper"]
    command.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return command


kovaleva_glue, puccetti_glue = tables_of("kovaleva-glue"), tables_of("puccetti-glue")


@contextmanager
def _view(loud: bool) -> "Iterator[SweepView]":
    from outlierlens.cli.sweep_progress import SweepView

    with SweepView(loud) as view:
        yield view


def _words(text: str) -> tuple[str, ...]:
    """ "rte, cola" as ("rte", "cola")."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _tuned(given: list[str]) -> dict[str, tuple[str, ...]]:
    """`--tuned rte=DIR`: {task: models}."""
    found: dict[str, tuple[str, ...]] = {}
    for one in given:
        task, equals, model = one.partition("=")
        if not (task and equals and model):
            raise BadInput(f"--tuned is {one!r}; write it as rte=DIR")
        found[task] = (*found.get(task, ()), model)
    return found


def _labels(given: list[str], tasks: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """`--labels rte=entailment,not_entailment`: {task: names}; without a task they are of the only one."""
    found: dict[str, tuple[str, ...]] = {}
    for one in given:
        task, equals, names = one.rpartition("=")
        if not equals and len(tasks) > 1:
            raise BadInput(f"--labels is {one!r}, and there are {len(tasks)} tasks; write it as {tasks[0]}={one}")
        if not _words(names) or (equals and not task):
            raise BadInput(f"--labels is {one!r}; write it as rte=NAME,NAME")
        found[task if equals else tasks[0]] = _words(names)
    return found


def _dims(text: str) -> tuple[int, ...] | str:
    if text in ("", "strongest"):
        return text or ()
    return plain_dims(text, remedy="name dimensions, such as 308,381, or strongest")


def print_replication(made: "Replication") -> None:
    """One table a task, and what each says of the papers' claim."""
    for one in made.tables:
        say("")
        say(f"{made.base} on {one.task} ({one.label}): {one.metric} × 100 on {one.n_examples:,} examples")
        say(f"outliers: {', '.join(map(str, one.dims)) or 'none'} ({one.named_by})")
        heads = ["off", one.metric, "lost", "95 % interval", "× random", "≥ 5 ×", "p", "parameters", "share"]
        published = any(row.reference for row in one.rows)
        print_table("switched off in all layers, not trained again", [*heads, *(["published"] if published else [])],
                    [_line(one, row, published) for row in one.rows])  # fmt: skip
        if any(row.kind in ("random", "matched") for row in one.rows):
            say("of control sets: the median, and the 5th to 95th percentile over sets in place of an interval")
        if one.windows:
            print_table(
                "in single layers",
                ["off", "layer", "lost", "95 % interval", "p"],
                [_window(one, row) for row in one.windows],
            )
        for reference in (row.reference for row in one.rows if row.reference):
            say(f"published: {reference.paper}, {reference.checkpoint}: {reference.source} ({reference.evidence})")
        for note in one.notes:
            say(f"note: {note}")
    say("")
    say(verdict(made))


def verdict(made: "Replication") -> str:
    """Whether the papers' effect, at least 5 times what random sets cost, holds."""
    from outlierlens.replicated import where_enough

    tested = [one for one in made.tables if one.tested is not None]
    if not tested:
        return f"{made.base}: nothing to test: no outliers, or no random sets"
    what = (
        "the outliers cost" if all(one.by_rule for one in tested) else "what was switched off (not by the rule) costs"
    )
    where = where_enough([(one.label, one) for one in tested])
    return f"{made.base}: {what} at least 5 times what random sets cost in {where}"


def _line(table: "TaskTable", row: "Row", published: bool) -> list[Any]:
    family = row.kind in ("random", "matched")
    intact = row.kind == "intact"
    if intact:
        interval = interval_text(100 * row.low, 100 * row.high, ".1f")
    else:
        interval = interval_text(100 * row.lost_low, 100 * row.lost_high, "+.1f") if family else table.interval(row)
    mean = f" (mean {100 * row.mean:+.2f})" if row.mean is not None else ""
    said = [
        row.label + (" together" if row.kind == "together" else f", {row.kind}" if row.kind.startswith("at") else ""),
        f"{100 * row.value:.1f}",
        None if intact else f"{100 * row.lost:+.2f}{mean}",
        interval,
        "random ≤ 0" if row.times_random is None and row.enough is not None else row.times_random,
        row.passes,
        row.p,
        None if intact else f"{row.n_parameters:,}",
        None if intact else f"{100 * row.share:.2g} %",
    ]
    if family and row.closeness is not None:
        said[0] = f"{said[0]} ({100 * row.closeness:.0f} % as large)"
    if published:
        said.append(_reference(row))
    return said


def _reference(row: "Row") -> str | None:
    known = row.reference
    if known is None:
        return None
    ends = (
        f"{100 * known.intact:.1f} → {100 * known.off:.1f}, "
        if known.intact is not None and known.off is not None
        else ""
    )
    return f"{ends}{100 * known.lost:+.1f}"


def _window(table: "TaskTable", row: "Row") -> list[Any]:
    layer = row.window.removeprefix("layer ")
    return [", ".join(map(str, row.dims)), layer, f"{100 * row.lost:+.2f}", table.interval(row), row.p]
