"""What `pretrain` and `outcomes` are asked."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from outlierlens.options import Flag, check


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """Which recipe is trained, and what of it is changed."""

    recipe: Annotated[str | None, Flag(argument=True)] = None
    """A recipe that is shipped, or a .toml file."""
    shipped: Annotated[bool, Flag("--list")] = False
    """Print the shipped recipes and what they are for."""
    whole: Annotated[bool, Flag("--print")] = False
    """Print the complete recipe and stop."""
    data: tuple[str, ...] = ()
    """Text in place of the recipe's: a file or a hub id owner/name:config:split. Repeatable."""
    text_column: str | None = None
    """Column that holds the text."""
    settings: Annotated[tuple[str, ...], Flag("--set")] = ()
    """Change the recipe: training.steps=2000. Repeatable."""
    steps: Annotated[int | None, Ge(1)] = None
    """Optimizer steps, in place of the recipe's."""
    seed: Annotated[int | None, Ge(0)] = None
    """Seed, in place of the recipe's."""
    no_measure: bool = False
    """Train only: measure neither damage nor INT8 afterwards."""
    report_to: Annotated[tuple[str, ...], Flag(read="options:parse_names")] = ()
    """Where the Trainer logs too: tensorboard, wandb, mlflow, trackio; comma-separated."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def changes(self) -> list[str]:
        """What of the recipe is changed, as `Recipe.changed` takes it."""
        given = {
            "data.source": self.data or None,
            "data.text_column": self.text_column,
            "training.steps": self.steps,
            "training.seed": self.seed,
        }
        return [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None] + [*self.settings]


@dataclass(frozen=True, kw_only=True)
class OutcomesOptions:
    """Which runs are compared."""

    runs: Annotated[tuple[Path, ...], Flag(argument=True)]
    """Run directories of `pretrain`."""
