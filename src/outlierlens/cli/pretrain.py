"""`pretrain`: train a masked language model by recipe; `outcomes`: several trained runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlierlens.cli import common
from outlierlens.cli.common import Show, print_table, resumable, say, warn
from outlierlens.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlierlens.pretrain.loop import Run
    from outlierlens.pretrained import Change, Outcome, Outcomes


def pretrain(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe that is shipped, or a .toml file.", show_default=False)
    ] = None,
    list_recipes: Annotated[
        bool, typer.Option("--list", help="Print the shipped recipes and what they are for.")
    ] = False,
    show_recipe: Annotated[bool, typer.Option("--print", help="Print the complete recipe and stop.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", help="Text in place of the recipe's: a file or a hub id owner/name:config:split. Repeatable."
        ),
    ] = None,
    text_column: common.TextColumn = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: training.steps=2000. Repeatable.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Optimizer steps, in place of the recipe's.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed, in place of the recipe's.")] = None,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Train only: measure neither damage nor INT8 afterwards.")
    ] = False,
    report_to: Annotated[
        str,
        typer.Option("--report-to", help="Where the Trainer logs too: tensorboard, wandb, trackio; comma-separated."),
    ] = "",
    device: common.Device = "auto",
    offline: common.Offline = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory. Default: runs/RECIPE-seed-N.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove the run of another recipe from it.")] = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
    no_progress: common.NoProgress = False,
) -> None:
    """Pre-train a masked language model by recipe, with its outlier dimensions watched; stopped runs go on.

    Several processes: `accelerate launch -m outlierlens pretrain …`.
    """
    from outlierlens.pretrain.recipe import read_recipe, shipped

    if list_recipes:
        for name in shipped():
            print(f"{name}: {read_recipe(name).about}")
        return
    if recipe is None:
        raise BadInput("which recipe? name a .toml file or a shipped one; --list prints them")
    chosen = read_recipe(recipe).changed(_changes(data, text_column, steps, seed, settings))
    if show_recipe:
        print(chosen.to_toml(), end="")
        return
    show = Show.choose(format, json, quiet, None)
    folder = output or Path("runs") / f"{chosen.name}-seed-{chosen.training.seed}"

    from outlierlens.pretrain.loop import WATCH, RunOptions
    from outlierlens.pretrain.loop import pretrain as train

    loud = not no_progress and show.format != "quiet"
    options = RunOptions(
        device=device,
        offline=offline,
        overwrite=overwrite,
        report_to=tuple(name.strip() for name in report_to.split(",") if name.strip()),
        progress=warn if loud else lambda _: None,
        on_log=_log if loud else None,
    )
    with resumable(folder / WATCH):
        run = train(chosen, folder, options)
        if not run.is_main:
            return
        outcome = None if no_measure else _measured(run, options.progress)
    if outcome is not None:
        show.result(outcome, print_outcome)
    if show.format == "human":
        say(f"model: {run.model_folder}; norms over the steps: {folder / WATCH}")
        say(f"look at it: {common.command('track', folder)} and {common.command('report', run.model_folder)}")


def outcomes(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run directories of `pretrain`.", show_default=False)
    ] = None,
    output: common.Output = None,
    overwrite: common.Overwrite = False,
    format: common.Format = "auto",
    json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Pre-training runs side by side, seeds of one recipe together: loss, outlier dimensions, damage, INT8."""
    from outlierlens.pretrained import OUTCOME, Outcome, Outcomes
    from outlierlens.results import load

    if not runs:
        raise BadInput("name at least one run directory of `pretrain`")
    show = Show.choose(format, json, quiet, output, overwrite)
    found = [load(path / OUTCOME if path.is_dir() else path) for path in runs]
    for path, value in zip(runs, found, strict=True):
        if not isinstance(value, Outcome):
            raise BadInput(f"{path} holds a {type(value).__name__}, not the outcome of a pre-training run")
    texts = {value.text_digest for value in found}
    if len(texts) > 1:
        warn("note: these runs were measured on different texts; their losses cannot be compared")
    show.result(Outcomes(tuple(found)), _print_outcomes)


def _changes(
    data: list[str] | None, text_column: str | None, steps: int | None, seed: int | None, settings: list[str] | None
) -> list[str]:
    import json

    given = {"data.source": data, "data.text_column": text_column, "training.steps": steps, "training.seed": seed}
    return [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None] + (settings or [])


def _measured(run: "Run", progress: "Callable[[str], None]") -> "Outcome":
    """The outcome in the run folder, measured if it is not there."""
    from outlierlens.pretrain.outcome import OutcomeOptions, measure
    from outlierlens.pretrained import OUTCOME
    from outlierlens.results import load, save

    path = run.folder / OUTCOME
    if path.is_file():
        return load(path)
    outcome = measure(run, OutcomeOptions(progress=progress), command=common.reproduce())
    save(outcome, path)
    return outcome


def _log(step: int, steps: int, logs: dict[str, float]) -> None:
    """One line on stderr for what was logged."""
    shown = {"loss": "loss", "eval_loss": "held-out loss", "outliers/max_layers_scale": "most layers past 3 sigma"}
    parts = [f"{label} {logs[name]:.4g}" for name, label in shown.items() if name in logs]
    if parts:
        warn(f"step {step:,} of {steps:,}: {', '.join(parts)}")


def print_outcome(outcome: "Outcome") -> None:
    """An outcome in words and numbers."""
    say(f"{outcome.recipe}, seed {outcome.seed}, {outcome.steps:,} steps, {outcome.n_parameters:,} parameters")
    say(f"loss {outcome.text_loss:.3f} nats per masked token on {outcome.text}")
    groups = {"scale and bias": outcome.both, "scale alone": outcome.scale_alone, "bias alone": outcome.bias_alone}
    named = "; ".join(f"{label}: {', '.join(map(str, dims))}" for label, dims in groups.items() if dims)
    say(f"past 3 sigma in half of the layers: {named or 'none'}")
    rows: list[tuple[str | float | None, ...]] = []
    if outcome.off:
        rows.append((f"named by weights: {', '.join(map(str, outcome.off.dims))}", *_interval(outcome.off)))
        rows.append(("random sets of that size, median", outcome.random_median, None, None))
    rows.append((f"worst single: {', '.join(map(str, outcome.worst.dims))}", *_interval(outcome.worst)))
    rows.append(("single dimension, median", outcome.dim_median, None, None))
    rows.append(("INT8 per tensor, weights and inputs", *_interval(outcome.int8)))
    print_table("change of the loss, nats", ["off", "change", "low", "high"], rows)


def _interval(change: "Change") -> tuple[float, float, float]:
    return change.change, change.low, change.high


COLUMNS = {
    "text_loss": ("loss", ".3f"),
    "n_found": ("found", ".3g"),
    "n_one_sided": ("one-sided", ".3g"),
    "largest_z": ("largest z", ".1f"),
    "kurtosis": ("kurtosis", ".1f"),
    "found_off": ("found off", "+.3f"),
    "random_off": ("random off", "+.3f"),
    "worst": ("worst off", "+.3f"),
    "dim_median": ("median off", "+.3f"),
    "int8": ("INT8", "+.3f"),
}


def _print_outcomes(value: "Outcomes") -> None:
    rows = []
    for row in value.records():
        name = f"{row['recipe']} ({row['changed']})" if row["changed"] else row["recipe"]
        rows.append(
            [name, row["steps"], row["seeds"], *(_ranged(row, key, form) for key, (_, form) in COLUMNS.items())]
        )
    print_table(
        "changes in nats per masked token; ranges over seeds, of one seed 95 % intervals over texts",
        ["recipe", "steps", "seeds", *(head for head, _ in COLUMNS.values())],
        rows,
    )


def _ranged(row: dict[str, Any], name: str, form: str) -> str | None:
    """A measure with its range, where there is one."""
    if row[name] is None:
        return None
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:{form}}" + (f" [{low:{form}}, {high:{form}}]" if low < high else "")
