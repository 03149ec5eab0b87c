"""Where the fine-tuned models come from: named, a model or a run of `finetune`; what does not fit is refused before any work.

tuned = find_tuned("glue:rte", "runs/distilbert-rte")       # a run of finetune: one model per seed; or a model's folder
check_models("distilbert-cased", tuned, dev, load)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlierlens.analyses.finetune import MODEL, RESULT, FineTuned, named_by_weights, seed_folder
from outlierlens.checkpoints.samples import is_sample
from outlierlens.data.labelled import TASKS, Examples, find_task, label_order
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions, load_config
from outlierlens.replicate.data import shortened
from outlierlens.results.document import load as read_result


@dataclass(frozen=True)
class Tuned:
    """A fine-tuned model: its name or folder, what it is called in tables, and the model it was made from, where known."""

    task: str
    model: str
    label: str
    base: str | None = None


def find_tuned(task: str, named: Sequence[str]) -> list[Tuned]:
    """The fine-tuned models that names stand for: a run of finetune (each seed), or one model; same labels are numbered.

    Raises:
        BadInput: a run that was made for another task, or is not finished.
    """
    found, short = list[Tuned](), shortened(task)
    for name in named:
        folder = Path(name)
        runs = [above for above in (folder, *list(folder.parents)[:2]) if (above / RESULT).is_file()]
        run = read_result(runs[0] / RESULT) if runs else None
        if isinstance(run, FineTuned) and run.about.task in TASKS and _learned(run.about.task) != _learned(task):
            raise BadInput(
                f"{folder} was fine-tuned on {run.about.task}, not on {task}"
            )  # your own data may be of this one
        base = run.base if isinstance(run, FineTuned) else None
        if isinstance(run, FineTuned) and runs[0] == folder:  # which may have been moved since
            places = {f"seed-{one.seed}": str(seed_folder(folder, one.seed) / MODEL) for one in run.seeds}
        elif not folder.is_dir() or (folder / "config.json").is_file():
            places = {folder.name: name}
        else:
            raise BadInput(
                f"{folder}: neither a model (config.json) nor a finished run of finetune; name one, or a hub id"
            )
        found += [Tuned(task, place, f"{short} {label}", base) for label, place in places.items()]
    if len({one.label for one in found}) < len(found):
        return [replace(one, label=f"{one.label} ({n})") for n, one in enumerate(found, 1)]
    return found


def _learned(task: str) -> str:
    """The task of the training examples: HANS is learned from MNLI."""
    return find_task(task).trained_on or task


def _comparable(*models: str) -> bool:
    """Whether it can be told if names mean one model: of samples by the name, of folders by the weights."""
    samples = [is_sample(name) for name in models]
    return all(samples) or (not any(samples) and all(Path(name).is_dir() for name in models))


def told_base(tuned: Tuned, base: str) -> tuple[str, ...]:
    """A note where the model, which passed `check_models`, was made from one of another name that may be another one."""
    if tuned.base in (None, base) or _comparable(str(tuned.base), base):
        return ()
    return (f"{tuned.model} was fine-tuned from {tuned.base}; whether that is {base} cannot be told",)


def check_models(
    base: str,
    known: Sequence[Tuned],
    dev: Mapping[str, Examples],
    load: LoadOptions,
    labels: Sequence[str] = (),
    dims: Sequence[int] = (),
) -> None:
    """Raise for what does not fit, by the models' configurations alone; `labels` are of the models' outputs.

    Raises:
        BadInput: a model that was made from another one than `base`, without a head for its task, with other labels, or
            without one of the dimensions.
        UnknownModel: there is no such model.
    """
    for one in known:
        other = one.base not in (None, base) and _comparable(str(one.base), base)
        if other and named_by_weights(str(one.base)) != named_by_weights(base):
            raise BadInput(f"{one.model} was fine-tuned from {one.base}, not from {base}; name that model")
        # Revision and folder are of the base model.
        config = load_config(one.model, replace(load, revision=None, subfolder=""))
        task = dev[one.task].task
        named = str((getattr(config, "architectures", None) or [""])[0])
        if named and not named.endswith("ForSequenceClassification"):
            raise BadInput(f"{one.model} is a {named} without a head for {task.name}; name a fine-tuned one")
        label_order(task, config.id2label, labels or None, where=one.model)
        _check_width(one.model, config, dims)
    if dims and set(dev) - {one.task for one in known}:  # which are fine-tuned from it
        _check_width(base, load_config(base, load), dims)


def _check_width(model: str, config: object, dims: Sequence[int]) -> None:
    width = getattr(config.get_text_config(), "hidden_size", None)  # type: ignore[attr-defined]
    if isinstance(width, int) and (wrong := [dim for dim in dims if not 0 <= dim < width]):
        raise BadInput(f"dimension {wrong[0]} does not exist; {model} has dimensions 0 to {width - 1}")
