"""`finetune`: fine-tune a model on a labelled task, several seeds in one call; stopped runs go on."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Show, print_table, resumable, say, warn
from outlierlens.cli.labelled import Labelling, Reading
from outlierlens.interval_words import interval_text
from outlierlens.spelling import parse_seeds, plain_dims

if TYPE_CHECKING:
    from outlierlens.finetuned import FineTuned
    from outlierlens.models import LoadOptions

RESULT = "finetuned.json"
# Weights are trained in float32; --precision says in what is computed.
LOADING = tuple(option for option in common.LOADING if option[0] != "dtype")


def trains_a_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `LOADING` in front of --overwrite; it gets them as `load`, a LoadOptions."""

    def make(options: dict[str, Any], given: dict[str, Any]) -> Any:
        from outlierlens.models import LoadOptions

        notice = (lambda _: None) if given.get("quiet") else warn
        row = common.row_of(options.pop("arch"), options.pop("family"))
        return LoadOptions(row=row, dtype="float32", notice=notice, **options)

    return common.with_group(command, LOADING, "load", make, before="overwrite")


@trains_a_model
def finetune(
    model: common.Model,
    task: Annotated[
        str, typer.Option("--task", help="sst2, cola, rte, hans, superglue:wic, …; or classify, regress, tokens.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", help="Folder with a file a split, or hub id: both splits. Default: the hub's own copy."),
    ] = None,
    dev_data: Annotated[
        str | None, typer.Option("--dev-data", help="Dev examples; --data may then be a file of training examples.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option("--text-column", help="classify, regress: the text. tokens: the words.")
    ] = None,
    pair_column: Annotated[
        str | None, typer.Option("--pair-column", help="classify, regress: the second text.")
    ] = None,
    label_column: Annotated[
        str, typer.Option("--label-column", help="classify, regress, tokens: the label.")
    ] = "label",
    metric: Annotated[
        str | None, typer.Option("--metric", help="What the best epoch is chosen by. Default: the task's first.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="One run each: 42,43,44.")] = "42",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training examples.")] = 4,
    lr: Annotated[
        float, typer.Option("--lr", help="Learning rate at its peak; from there it falls linearly to 0.")
    ] = 2e-5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Examples of a step.")] = 32,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Of AdamW; not on norms and biases.")] = 0.01,
    warmup: Annotated[float, typer.Option("--warmup", help="Share of the steps in which the rate rises.")] = 0.0,
    max_length: Annotated[int, typer.Option("--max-length", min=2, help="Tokens of an example at most.")] = 256,
    train_limit: Annotated[
        int | None, typer.Option("--train-limit", min=2, help="Train on N examples drawn at random.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="Of a training: float32 or bfloat16.")] = "float32",
    save_steps: Annotated[
        int | None, typer.Option("--save-steps", min=1, help="Steps between checkpoints. Default: an epoch.")
    ] = None,
    off: Annotated[
        str | None, typer.Option("--off", help="Dimensions set to zero in all layers before training: 308,381.")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Keep those of --off at zero throughout.")] = False,
    stack: Annotated[
        str | None, typer.Option("--stack", help="Stream that --off is of, where a model has several.")
    ] = None,
    report_to: Annotated[
        str,
        typer.Option("--report-to", help="Where the Trainer logs too: tensorboard, wandb, trackio; comma-separated."),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/MODEL-TASK.")
    ] = None,
    load: "LoadOptions | None" = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove runs with other settings from the directory.")
    ] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
) -> None:
    """Fine-tune a model on a labelled task, the best epoch of each seed kept; stopped runs go on."""
    show = Show.choose(format, json, quiet, None)
    words = Labelling(metric=metric, pair_column=pair_column, label_column=label_column)
    chosen = Reading(task, "", text_column, labelling=words).labelled_task

    from outlierlens.finetune.settings import FinetuneSettings

    settings = FinetuneSettings(
        epochs=epochs,
        learning_rate=lr,
        batch=batch_size,
        weight_decay=weight_decay,
        warmup=warmup,
        max_length=max_length,
        train_limit=train_limit,
        precision=precision,
        save_steps=save_steps,
        off=()
        if off is None
        else plain_dims(off, "--off", "dimensions are switched off in all layers here: write 308,381"),
        hold=hold,
        stack=stack,
    )
    numbers = parse_seeds(seeds)

    from outlierlens.finetune.splits import read_splits

    assert load is not None
    train, dev = read_splits(chosen, data, dev_data, offline=load.offline)
    # The name alone of a hub id or path, so that the directory lies in runs/.
    name = Path(model).name or "model"
    folder = output or Path("runs") / f"{name}-{chosen.name.split(':')[-1]}"

    from outlierlens.finetune.loop import FinetuneOptions
    from outlierlens.finetune.loop import finetune as run

    loud = not no_progress and show.format != "quiet"
    options = FinetuneOptions(
        load=load,
        command=common.reproduce(),
        overwrite=overwrite,
        report_to=tuple(name.strip() for name in report_to.split(",") if name.strip()),
        progress=warn if loud else lambda _: None,
        on_log=_log if loud else None,
    )
    with resumable(folder):
        tuned = run(model, train, dev, folder, settings, seeds=numbers, options=options)
    show.result(tuned, print_finetuned)
    if show.format == "human":
        best = max(tuned.seeds, key=lambda one: one.best.scores[tuned.metric])
        say(f"result: {folder / RESULT}; look at a model: {common.command('scan', best.folder)}")


def _log(seed: int, step: int, steps: int, logs: dict[str, float]) -> None:
    """One line on stderr for what was logged."""
    warn(f"seed {seed}: step {step:,} of {steps:,}: loss {logs['loss']:.4g}")


def print_finetuned(tuned: "FineTuned") -> None:
    """One row a seed, and what the seeds have in common."""
    names = list(tuned.seeds[0].best.scores)
    rows = [
        [
            run.seed,
            f"{run.best_epoch:g} of {len(run.epochs)}",
            f"{run.best.loss:.4f}",
            *(f"{run.best.scores[name]:.4f}" for name in names),
            interval_text(run.low, run.high, ".4f"),
        ]
        for run in tuned.seeds
    ]
    say(f"{tuned.base} on {tuned.task}: {tuned.n_train:,} examples, scored on {tuned.n_dev:,}")
    print_table("the best epoch of each seed", ["seed", "epoch", "dev loss", *names, f"{tuned.metric}, 95 %"], rows)
    if len(tuned.seeds) > 1:
        mean, low, high = tuned.spread()
        say(f"{tuned.metric} over {len(tuned.seeds)} seeds: mean {mean:.4f}, {low:.4f} to {high:.4f}")
    if off := tuned.settings.get("off"):
        held = "held at zero" if tuned.settings.get("hold") else "free to grow back"
        say(f"dimensions {', '.join(map(str, off))} were set to zero before training, {held}")
    for note in tuned.notes:
        say(f"note: {note}")
