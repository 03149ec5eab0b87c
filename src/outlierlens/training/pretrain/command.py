"""`pretrain`: a run is kept in its directory, and goes on from there; recipes are listed and printed too."""

from contextlib import nullcontext

from outlierlens.cli.common import resumable, say, warn
from outlierlens.cli.experiment import tell
from outlierlens.detection.rules import Rule
from outlierlens.errors import BadInput, command
from outlierlens.results.row_store import alone_in
from outlierlens.session import Session
from outlierlens.training.pretrain.options import PretrainOptions
from outlierlens.training.pretrain.recipe import Recipe, read_recipe, shipped


def run(session: Session, options: PretrainOptions) -> None:
    """Train what the recipe says and measure it, or print recipes."""
    if options.shipped:
        for name in shipped():
            print(f"{name}: {read_recipe(name).about}")
        return
    if options.recipe is None:
        raise BadInput("which recipe? name a .toml file or a shipped one; --list prints them")
    recipe = read_recipe(options.recipe).changed(options.changes)
    if options.whole:
        print(recipe.to_toml(), end="")
    else:
        _train(session, options, recipe)


def _train(session: Session, options: PretrainOptions, recipe: Recipe) -> None:
    output, load = session.output, session.load
    folder = session.folder(f"seed-{recipe.training.seed}", recipe.name)

    from outlierlens.experiments.outcomes.outcome import OutcomeOptions, kept
    from outlierlens.training.pretrain.loop import WATCH, RunOptions, pretrain
    from outlierlens.training.watch import rank

    loud = output.tells_progress
    progress = warn if loud else lambda _: None
    how = RunOptions(
        device=load.device, offline=load.offline, overwrite=output.overwrite, report_to=options.report_to,
        progress=progress, on_log=_log if loud else None,
    )  # fmt: skip
    with resumable(folder / WATCH), alone_in(folder) if rank() == 0 else nullcontext():
        trained = pretrain(recipe, folder, how)
        if not trained.is_main:
            return
        measured = OutcomeOptions(progress=progress)
        outcome = None if options.no_measure else kept(trained, measured, command=session.command)
    if outcome is not None:
        tell(session, outcome)
    if output.for_people:
        say(f"model: {trained.model_folder}; norms over the steps: {folder / WATCH}")
        say(f"look at it: {command('track', folder)} and {command('report', trained.model_folder)}")


def _log(step: int, steps: int, logs: dict[str, float]) -> None:
    shown = {
        "loss": "loss",
        "eval_loss": "held-out loss",
        "outliers/max_layers_scale": f"most layers past {Rule().sigmas}",
    }
    parts = [f"{label} {logs[name]:.4g}" for name, label in shown.items() if name in logs]
    if parts:
        warn(f"step {step:,} of {steps:,}: {', '.join(parts)}")
