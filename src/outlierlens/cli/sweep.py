"""`sweep`: every dimension switched off in turn."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlierlens import spelling
from outlierlens.cli import common
from outlierlens.cli.common import Show, resumable, say
from outlierlens.cli.labelled import Labelling, Reading, TaskOption, takes_labels
from outlierlens.cli.measure import EmbeddingsOption, FactorOption, ModeOption, StackOption
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from outlierlens.models import LoadOptions

KOVALEVA_RANDOM = 1000  # random sets of Kovaleva et al. (2021)


@common.loads_a_model
@takes_labels
def sweep(
    model: common.Model,
    data: common.Data = "excerpt",
    text_column: common.TextColumn = None,
    limit: common.Limit = None,
    task: TaskOption = "auto",
    dims: Annotated[
        str, typer.Option("--dims", help="One at a time: all, found (named by the weights), none, or 507,100.")
    ] = "all",
    sets: Annotated[str, typer.Option("--sets", help="Switched off together: 100,247;507,100.")] = "",
    plan: Annotated[
        list[str] | None, typer.Option("--plan", help="A set layer by layer: 0-9:896;10-16:678,896. Repeatable.")
    ] = None,
    no_found_set: Annotated[
        bool, typer.Option("--no-found-set", help="Leave out the set of all that the weights name.")
    ] = False,
    windows: Annotated[
        str, typer.Option("--windows", help="all layers together, each single, from each on, or upto each.")
    ] = "all",
    layers: Annotated[str | None, typer.Option("--layers", help="Restrict to layers 0-3,7. Default: all.")] = None,
    mode: ModeOption = "weights",
    factor: FactorOption = 0.5,
    embeddings: EmbeddingsOption = False,
    stack: StackOption = None,
    exact: Annotated[bool, typer.Option("--exact", help="Measure every effect on every text.")] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Stop at an interval within ± this, in the task's unit …")
    ] = 0.01,
    relative: Annotated[float, typer.Option("--relative", help="… or ± this share of the change.")] = 0.1,
    top: Annotated[int, typer.Option("--top", min=0, help="Tell so many of the strongest apart.")] = 5,
    max_texts: Annotated[int | None, typer.Option("--max-texts", help="No effect is measured on more texts.")] = None,
    level: Annotated[float, typer.Option("--level", help="Confidence of the intervals.")] = 0.95,
    anytime: Annotated[
        bool, typer.Option("--anytime", help="Intervals that hold at any look for any reason to stop; twice the texts.")
    ] = False,
    gradients: Annotated[
        int, typer.Option("--gradients", min=0, help="Texts of the gradient pass, the control variate; 0 does without.")
    ] = 256,
    n_random: Annotated[
        int | None,
        typer.Option("--random", min=0, help="Random sets for each set. Default: 200, or 19 in several windows."),
    ] = None,
    n_matched: Annotated[
        int | None,
        typer.Option(
            "--matched", min=0, help="Sets as large, at other positions. Default: 19, or 0 in several windows."
        ),
    ] = None,
    random_texts: Annotated[
        int, typer.Option("--random-texts", min=1, help="Texts that sets and their controls are compared on.")
    ] = 16,
    full: Annotated[bool, typer.Option("--full", help="1,000 random sets for each set, as Kovaleva et al.")] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Causal: a text is a line, not a block of --max-length tokens.")
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length", min=2, help="Tokens of a block, or of a line at most. Default: 128; labelled: 256."
        ),
    ] = None,
    batch_size: Annotated[str, typer.Option("--batch-size", help="Rows of a forward pass; auto finds it.")] = "auto",
    seed: common.Seed = 0,
    mask_seed: Annotated[
        int | None, typer.Option("--mask-seed", min=0, help="Of masked tokens. Default: --seed.")
    ] = None,
    mark: Annotated[
        str, typer.Option("--mark", help="Stars in the table: rank (p-values) or 5x (Puccetti's 5 × random).")
    ] = "rank",
    engine: Annotated[str, typer.Option("--engine", help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option("--address", help="Ray: address of the cluster.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Ray: number of workers.")] = None,
    cpus_per_worker: Annotated[
        float | None, typer.Option("--cpus-per-worker", min=0, help="Ray: CPUs (and threads) of a worker. Default: 1.")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option("--gpus-per-worker", min=0, help="Ray: GPUs of a worker; 0.25 puts four on one.")
    ] = None,
    chart: common.Chart = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL-sweep.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again: drop what was measured.")] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
    *,
    labelling: Labelling,
    load: "LoadOptions",
) -> None:
    """Switch off every dimension in turn (or sets, or layer by layer) and rank what breaks, with intervals.

    Every measurement is kept in the run directory as it is made: the same command goes on where a run was stopped.
    """
    from outlierlens.cli.sweep_job import Machines, SweepJob, run
    from outlierlens.cli.sweep_progress import SweepView
    from outlierlens.cli.sweep_show import Marks, print_sweep
    from outlierlens.sweeps.options import SweepOptions

    show, marks = Show.choose(format, json, quiet, None), Marks(mark)
    reading = Reading(task, data, text_column, limit, labelling)
    if reading.is_labelled and (lines or mask_seed is not None):
        raise BadInput(f"--lines and --mask-seed belong to texts without labels, not to --task {task}")
    if full and n_random is not None:
        raise BadInput("--full is --random 1000; give one of them")
    size = _batch_size(batch_size)
    options = SweepOptions(
        sets=spelling.parse_sets(sets) if sets else (),
        plans=tuple(_plan(text) for text in plan or ()),
        with_found=not no_found_set,
        windows=windows,  # type: ignore[arg-type]
        layers=spelling.parse_layers(layers) if layers else None,
        mode=mode,  # type: ignore[arg-type]
        factor=factor,
        embeddings=embeddings,
        stack=stack,
        exact=exact,
        tolerance=tolerance,
        relative=relative,
        top=top,
        max_texts=max_texts,
        level=level,
        anytime=anytime,
        gradients=gradients,
        n_random=KOVALEVA_RANDOM if full else n_random,
        n_matched=n_matched,
        random_texts=random_texts,
        batch_size=size,
        seed=seed,
        task=reading.options(max_length=max_length, blocks=not lines, seed=seed if mask_seed is None else mask_seed),
    )
    job = SweepJob(
        model=model, reading=reading, dims=dims, options=options,
        machines=Machines(engine, address, workers, cpus_per_worker, gpus_per_worker),
        directory=output or Path("runs") / f"{Path(model).name}-sweep", chart=chart, overwrite=overwrite,
        command=common.reproduce(),
    )  # fmt: skip
    with resumable(job.rows), SweepView(not no_progress and show.format != "quiet") as view:
        done = run(job, load, view)
    if not view.texts and show.format != "quiet":
        common.warn(f"{job.directory} was finished: nothing was measured, all was made again from {job.rows.name}")
    show.result(done.sweep, lambda value: print_sweep(value, marks))
    if show.format == "human":
        for note in done.notes:
            say(f"note: {note}")
        if chart:
            say(f"chart: {chart}")
        say(f"rows: {job.rows}; result: {job.directory / 'sweep.json'}; report: {done.page}")
        say(f"draw again: {common.command('report', job.directory / 'results.json')}")


def _plan(text: str) -> dict[int, tuple[int, ...]]:
    """`--plan`: {layer: dims}."""
    plan = spelling.parse_dims(text)
    if not isinstance(plan, dict):
        raise BadInput(f"--plan {text!r} names no layers; write 0-9:896;10-16:678,896, or use --sets")
    return plan


def _batch_size(text: str) -> int | None:
    """`--batch-size`: None for "auto"."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--batch-size is {text!r}; use auto or a number of rows, at least 1")
    return int(text)
