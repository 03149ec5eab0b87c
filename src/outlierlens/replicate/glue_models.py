"""Where the fine-tuned models come from: named, a model or a run of `finetune`; what does not fit is refused before any work.

tuned = find_tuned("glue:rte", ["runs/distilbert-rte"])     # a run of finetune: one model per seed; or a model's folder
check_models("distilbert-cased", tuned, dev, load)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlierlens.analyses.finetune import MODEL, RESULT, FineTunedModel, seed_folder
from outlierlens.data.labelled import TASKS, Examples, find_task, label_order
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions, load_config
from outlierlens.replicate.data import shortened
from outlierlens.results.document import load as read_result


@dataclass(frozen=True)
class TunedModel:
    """A fine-tuned model: its name or folder, what it is called in tables, and the model it was made from, where known."""

    task: str
    model: str
    label: str
    base: str | None = None

    def notes(self, base: str) -> tuple[str, ...]:
        """A note where the model was made from one of another name than `base`."""
        other = self.base not in (None, base)
        return (f"{self.model} was fine-tuned from {self.base}; whether that is {base} was not checked",) * other


def find_tuned(task: str, named: Sequence[str]) -> list[TunedModel]:
    """The fine-tuned models that names stand for: a run of finetune (each seed), or one model; same labels are numbered.

    Raises:
        BadInput: a run that was made for another task, or is not finished.
    """
    found = list[TunedModel]()
    for name in named:
        folder = Path(name)
        # Models of the run may have been moved since, with its folder.
        runs = [above for above in (folder, *list(folder.parents)[:2]) if (above / RESULT).is_file()]
        run = read_result(runs[0] / RESULT) if runs else None
        base, places = None, {folder.name: name}
        if isinstance(run, FineTunedModel):
            base, learned = (
                run.base,
                [find_task(one).trained_on or one for one in (run.about.task, task) if one in TASKS],
            )
            if len({*learned}) > 1:  # HANS is learned from MNLI; your own data may be of any task
                raise BadInput(f"{folder} was fine-tuned on {run.about.task}, not on {task}")
            if runs[0] == folder:
                places = {f"seed-{one.seed}": str(seed_folder(folder, one.seed) / MODEL) for one in run.seeds}
        elif folder.is_dir() and not (folder / "config.json").is_file():
            raise BadInput(
                f"{folder}: neither a model (config.json) nor a finished run of finetune; name one, or a hub id"
            )
        found += [TunedModel(task, place, f"{shortened(task)} {label}", base) for label, place in places.items()]
    if len({one.label for one in found}) < len(found):
        return [replace(one, label=f"{one.label} ({n})") for n, one in enumerate(found, 1)]
    return found


def check_models(
    base: str,
    known: Sequence[TunedModel],
    dev: Mapping[str, Examples],
    load: LoadOptions,
    labels: Sequence[str] = (),
    dims: Sequence[int] = (),
) -> None:
    """Raise for what does not fit, by the models' configurations alone; `labels` are of the models' outputs.

    Raises:
        BadInput: a model with other labels than its task, or without one of the dimensions.
        UnknownModel: there is no such model.
    """
    # Revision and folder are of the base model.
    configs = {one.model: load_config(one.model, replace(load, revision=None, subfolder="")) for one in known}
    for one in known:
        label_order(dev[one.task].task, configs[one.model].id2label, labels or None, where=one.model)
    if dims and {*dev} - {one.task for one in known}:  # which are fine-tuned from it
        configs[base] = load_config(base, load)
    for model, config in configs.items():
        width = getattr(config.get_text_config(), "hidden_size", None)
        if isinstance(width, int) and (wrong := [dim for dim in dims if not 0 <= dim < width]):
            raise BadInput(f"dimension {wrong[0]} does not exist; {model} has dimensions 0 to {width - 1}")
