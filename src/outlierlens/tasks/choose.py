"""Pick the task that fits a model."""

from collections.abc import Sequence

from outlierlens.errors import BadInput
from outlierlens.models import LoadedModel
from outlierlens.tasks.base import Task, TaskOptions

FITTING = {"causal": "causal loss", "masked": "masked loss", "other": "output change", "none": "output change"}


def make_task(loaded: LoadedModel, texts: Sequence[str], options: TaskOptions | None = None) -> Task:
    """The task `options.name`, or the one that fits the model's head.

    Raises:
        BadInput: the head cannot do the task, or no text is long enough.
    """
    options = options or TaskOptions()
    name = FITTING[loaded.head] if options.name == "auto" else options.name
    if name == "output change":
        from outlierlens.tasks.output_change import OutputChange

        return OutputChange(loaded, texts, options)
    if name not in FITTING.values():
        raise BadInput(f"unknown task {name!r}; tasks are auto, {', '.join(dict.fromkeys(FITTING.values()))}")
    if name != FITTING[loaded.head]:
        fitting = FITTING[loaded.head]
        raise BadInput(f"{loaded.name} has no head for {name!r}; the task that fits it is {fitting!r}")
    from outlierlens.tasks.language_model import CausalLoss, MaskedLoss

    return CausalLoss(loaded, texts, options) if name == "causal loss" else MaskedLoss(loaded, texts, options)
