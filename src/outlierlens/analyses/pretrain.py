"""`lab pretrain`: a run is kept in its directory, and goes on from there; recipes are listed and printed too."""

import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from outlierlens.detection.rules import Rule
from outlierlens.errors import command, printable
from outlierlens.options import Flag, check
from outlierlens.results.row_store import alone_in
from outlierlens.training.pretrain.recipe import Recipe, read_recipe, shipped
from outlierlens.training.pretrain.result import Outcomes

if TYPE_CHECKING:
    from outlierlens.session import Session

LOGGED = {
    "loss": "loss", "eval_loss": "held-out loss", "outliers/max_layers_scale": f"most layers past {Rule().sigmas}",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """Which recipe is trained, and what of it is changed."""

    recipe: Annotated[str | None, Flag(argument=True)] = None
    """A recipe that is shipped, or a .toml file. None: the shipped ones are listed, with their purposes."""
    whole: Annotated[bool, Flag("--print")] = False
    """Print the complete recipe and stop."""
    data: tuple[str, ...] = ()
    """Text in place of the recipe's: a file or a hub id owner/name:config:split. Repeatable."""
    settings: Annotated[tuple[str, ...], Flag("--set")] = ()
    """Change the recipe: training.steps=2000. Repeatable."""
    seed: Annotated[int | None, Ge(0)] = None
    """Seed, in place of the recipe's."""
    no_measure: bool = False
    """Train only: do not measure damage or INT8 afterwards."""
    report_to: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Where the Trainer logs too: tensorboard, wandb, mlflow, trackio; comma-separated."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def changes(self) -> list[str]:
        """What of the recipe is changed, as `Recipe.changed` takes it."""
        given = {"data.source": self.data or None, "training.seed": self.seed}
        return [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None] + [*self.settings]


def run(session: "Session", options: PretrainOptions) -> Outcomes | None:
    """Train what the recipe says and measure it, or print recipes."""
    if options.recipe is None:
        for name in shipped():
            print(f"{name}: {read_recipe(name).about}")
        return None
    recipe = read_recipe(options.recipe).changed(options.changes)
    if options.whole:
        print(recipe.to_toml(), end="")
        return None
    return _train(session, options, recipe)


def _train(session: "Session", options: PretrainOptions, recipe: Recipe) -> Outcomes | None:
    from outlierlens.analyses.pretrained import OutcomeOptions, kept
    from outlierlens.training.pretrain.loop import WATCH, RunOptions, pretrain
    from outlierlens.training.watch import rank

    def log(step: int, steps: int, logs: dict[str, float]) -> None:
        if parts := [f"{label} {logs[name]:.4g}" for name, label in LOGGED.items() if name in logs]:
            session.notice(f"step {step:,} of {steps:,}: {', '.join(parts)}")

    def last() -> None:
        print(printable(f"model: {trained.model_folder}; norms over the steps: {folder / WATCH}"))
        print(printable(f"look at it: {command('track', folder)} and {command('report', trained.model_folder)}"))

    output, folder = session.output, session.folder(f"seed-{recipe.training.seed}", recipe.name)
    progress = session.notice if output.tells_progress else lambda _: None
    how = RunOptions(
        device=session.load.device, offline=session.load.offline, overwrite=output.overwrite, report_to=options.report_to,
        progress=progress, on_log=log if output.tells_progress else None,
    )  # fmt: skip
    with session.resumable(folder / WATCH), alone_in(folder) if rank() == 0 else nullcontext():
        trained = pretrain(recipe, folder, how)
        if not trained.is_main:
            return None
        found = (
            None if options.no_measure else kept(trained, OutcomeOptions(progress=progress), command=session.command)
        )
    if output.for_people:
        session.then = last
    if found is None and session.then is not None:
        session.then()
    return found
