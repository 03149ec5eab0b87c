"""Pre-train masked language models by recipe, with the outlier dimensions watched from the first step.

    from outlierlens.experiments.outcomes.outcome import measure
    from outlierlens.training.pretrain import pretrain, read_recipe

    run = pretrain(read_recipe("mini-bert"), Path("runs/mini-bert"))
    outcome = measure(run)                       # loss, dimensions found, every one switched off, INT8

Importing this package imports neither torch nor transformers; they do.
"""

from typing import TYPE_CHECKING, Any

from outlierlens.errors import need

if TYPE_CHECKING:
    from outlierlens.training.pretrain.loop import Run, RunOptions, pretrain
    from outlierlens.training.pretrain.recipe import Recipe, read_recipe, shipped

_HOMES = {
    "Recipe": "recipe",
    "read_recipe": "recipe",
    "shipped": "recipe",
    "Run": "loop",
    "RunOptions": "loop",
    "pretrain": "loop",
}

__all__ = ["Recipe", "Run", "RunOptions", "pretrain", "read_recipe", "shipped"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name] != "recipe":
        for library in ("torch", "transformers"):
            need(library, "models", "pre-training")
    return getattr(need(f"{__name__}.{_HOMES[name]}", "models", "pre-training"), name)
