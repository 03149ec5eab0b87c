"""`--show-completion` and `--install-completion`: commands and options by their row, and values from where each is declared.

An option of a fixed choice names its values itself; those below take other words too, so that their values are only offered.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Literal

from cyclopts import App

from outlierlens.cli import flags
from outlierlens.options import Option

MODELS = ("checkpoints.samples:SAMPLES",)
# By the option's name: words, or the places of what lists them.
OFFERED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("MODEL", "MODELS", "BASE", "OTHER", "TUNED", "BEFORE", "AFTER", "NAMES", "--tokenizer", "--compare"), MODELS
    ),
    "--task": ("tasks.options:OF_TEXTS", "data.labelled.table:TASKS"),
    "--tasks": ("data.labelled.table:TASKS",),
    "--metric": ("data.labelled.table:METRICS",),
    "--data": ("data.texts:SHIPPED",),
    "--dtype": ("models.load:DTYPES",),
    "--device": ("auto", "cpu", "cuda", "mps"),
    "--family": ("architectures.rows:ARCHITECTURES",),
    "--mode": ("ablation.mode_names:MODES",),
    "--modes": ("ablation.mode_names:NAMES",),
    "RECIPE": ("training.pretrain.recipe:shipped",),
    "--fix": ("vectors.fixes:KINDS",),
    "--fixes": ("vectors.fixes:KINDS",),
    "--pooling": ("experiments.similarity.pooling:MODES", "own"),
    "--precision": ("float32", "bfloat16"),
    "--report-to": ("tensorboard", "wandb", "mlflow", "trackio"),
    "--outliers-of": ("tuned", "base"),
}


def offered(option: Option) -> tuple[str, ...]:
    """The values that the shell offers for an option that takes other words too."""
    found: list[str] = []
    for one in OFFERED.get(option.spelt, ()):
        module, colon, name = one.partition(":")
        values = getattr(import_module(f"outlierlens.{module}"), name) if colon else [one]
        found += values() if callable(values) else values
    return tuple(
        dict.fromkeys(value.rpartition(":")[2] for value in found)
    )  # bash breaks words at a colon: rte for glue:rte


def script(make: Callable[[], App], shell: Literal["bash", "zsh", "fish", "powershell"]) -> str:
    """What sets up completion in `shell`; `make` makes the program anew, which then knows the values."""
    with flags.offering(offered):
        text: str = make().generate_completion(shell=shell)
    # Where nothing that is offered fits, bash completes files: a model may be a folder.
    return text.replace("complete -F ", "complete -o default -F ")
