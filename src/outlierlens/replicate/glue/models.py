"""Where the fine-tuned models come from: made by `finetune`, or named.

    tuned = find_tuned("glue:rte", "runs/distilbert-rte")       # a run of finetune: one model per seed; or a model's folder
    tuned = make_tuned(base, train, dev, folder, how)

A run of fine-tuning that was stopped goes on, and a finished one is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outlierlens.checkpoints.samples import is_sample
from outlierlens.data.labelled import TASKS, Examples, LabelledTask, find_task, label_order, read_examples
from outlierlens.errors import BadInput
from outlierlens.models.load import LoadOptions, load_config
from outlierlens.results.document import load as read_result
from outlierlens.training.finetune.folder import MODEL, RESULT, named_by_weights, seed_folder
from outlierlens.training.finetune.options import FinetuneSettings
from outlierlens.training.finetune.result import FineTuned


@dataclass(frozen=True)
class Tuned:
    """A fine-tuned model: its name or folder, what it is called in tables, and the model it was made from, where known."""

    task: str
    model: str
    label: str
    base: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What the models must be able to: have `dims`, and for each task the `labels` of its models' outputs, where named."""

    load: LoadOptions
    dims: tuple[int, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tuning:
    """How models are fine-tuned where none is named."""

    settings: FinetuneSettings
    seeds: tuple[int, ...]
    load: LoadOptions
    say: Callable[[str], None]
    command: str = ""
    overwrite: bool = False


def find_tuned(task: str, named: str) -> list[Tuned]:
    """The fine-tuned models that `named` stands for: a run of finetune (each seed), a seed's folder, or one model.

    Raises:
        BadInput: a run that was made for another task, or is not finished.
    """
    folder = Path(named)
    short = shortened(task)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return [Tuned(task, named, f"{short} {folder.name}", _base_above(folder, task))]
    if (folder / RESULT).is_file():
        run = read_result(folder / RESULT)
        if not isinstance(run, FineTuned):
            raise BadInput(f"{folder / RESULT} holds a {type(run).__name__}, not what finetune writes")
        _same_task(folder, run.task, task)
        # The folder may have been moved since.
        return [
            Tuned(task, str(seed_folder(folder, one.seed) / MODEL), f"{short} seed-{one.seed}", run.base)
            for one in run.seeds
        ]
    if (folder / MODEL / "config.json").is_file():
        return [Tuned(task, str(folder / MODEL), f"{short} {folder.name}", _base_above(folder, task))]
    seeds = sorted(one.parent.parent for one in folder.glob(f"seed-*/{MODEL}/config.json"))
    if seeds:
        return [Tuned(task, str(one / MODEL), f"{short} {one.name}") for one in seeds]
    raise BadInput(
        f"{folder}: neither a model (config.json) nor a run of finetune with a finished seed; name one, or a hub id"
    )


def _base_above(folder: Path, task: str) -> str | None:
    """The model that was fine-tuned on `task`, by the run around a seed's or model's folder."""
    for above in (folder, *list(folder.parents)[:2]):
        if (above / RESULT).is_file():
            run = read_result(above / RESULT)
            if not isinstance(run, FineTuned):
                return None
            _same_task(folder, run.task, task)
            return run.base
    return None


def _same_task(folder: Path, was: str, task: str) -> None:
    """Raise where `folder` was fine-tuned on another task of the table; your own data may be of this one."""
    if was in TASKS and _learned(was) != _learned(task):
        raise BadInput(f"{folder} was fine-tuned on {was}, not on {task}")


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


def check_models(base: str, known: Sequence[Tuned], dev: Mapping[str, Examples], wanted: Wanted) -> None:
    """Raise for what does not fit, by the models' configurations alone.

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
        config = load_config(one.model, replace(wanted.load, revision=None, subfolder=""))
        task = dev[one.task].task
        named = str((getattr(config, "architectures", None) or [""])[0])
        if named and not named.endswith("ForSequenceClassification"):
            raise BadInput(f"{one.model} is a {named} without a head for {task.name}; name a fine-tuned one")
        label_order(task, config.id2label, wanted.labels.get(one.task), where=one.model)
        _check_dims(one.model, config, wanted.dims)
    if wanted.dims and set(dev) - {one.task for one in known}:
        _check_dims(base, load_config(base, wanted.load), wanted.dims)


def _check_dims(model: str, config: Any, dims: Sequence[int]) -> None:
    width = getattr(config.get_text_config(), "hidden_size", None)
    if isinstance(width, int) and (wrong := [dim for dim in dims if not 0 <= dim < width]):
        raise BadInput(f"dimension {wrong[0]} does not exist; {model} has dimensions 0 to {width - 1}")


def make_tuned(base: str, train: Examples, dev: Examples, folder: Path, how: Tuning) -> list[Tuned]:
    """Fine-tune `base` on a task, once a seed, in `folder`."""
    from outlierlens.training.finetune.loop import FinetuneOptions, finetune

    options = FinetuneOptions(load=how.load, command=how.command, overwrite=how.overwrite, progress=how.say)
    run = finetune(base, train, dev, folder, how.settings, seeds=how.seeds, options=options)
    short = shortened(dev.task.name)
    return [Tuned(dev.task.name, one.folder, f"{short} seed-{one.seed}", base) for one in run.seeds]


def shortened(task: str) -> str:
    """ "glue:rte" as "rte"."""
    return task.rpartition(":")[2]


def examples_of(task: LabelledTask, data: str | None, split: str, *, limit: int | None, offline: bool) -> Examples:
    """The examples of a task's split in a folder with one folder per task (`data`/rte), or from the hub.

    Raises:
        BadInput: no folder of that task, and what `read_examples` raises.
    """
    if data is None:
        return read_examples(task, None, split=split, limit=limit, offline=offline)
    names = [shortened(name) for name in (task.name, task.trained_on) if name]
    for name in (*names, *(one.upper() for one in names)):
        if (Path(data) / name).is_dir():
            return read_examples(task, Path(data) / name, split=split, limit=limit, offline=offline)
    if Path(data).is_dir():
        there = sorted(path.name for path in Path(data).iterdir() if path.is_dir())
        raise BadInput(
            f"{data}: no folder {names[0]} with the examples of {task.name}; it has {', '.join(there) or 'none'}"
        )
    raise BadInput(f"{data}: no such folder; --data takes a folder with one folder per task, such as {data}/{names[0]}")
