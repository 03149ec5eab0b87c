"""Training and dev examples of a task from one place, checked against each other before anything is computed.

train, dev = read_splits(find_task("glue:rte"), "rte/")            # rte/train.parquet and rte/validation.parquet
train, dev = read_splits(find_task("hans"))                        # trained on MNLI; from the hub
"""

from pathlib import Path

from outlierlens.data.labelled import Examples, LabelledTask, find_task, label_order, read_examples
from outlierlens.data.labelled.labels import plain
from outlierlens.errors import BadInput


def read_splits(
    task: LabelledTask, data: str | None = None, dev_data: str | None = None, *, offline: bool = False
) -> tuple[Examples, Examples]:
    """(train, dev) of `task`; `data` is a folder or hub id with both, or holds the training examples beside `dev_data`.

    A task that models of another task are made for (HANS, MNLI's mismatched part) is trained on that one. Labels that a
    task does not name are those of the training examples.

    Raises:
        BadInput: as `read_examples`; one file for both; a label in the dev examples that training does not know.
    """
    if data is not None and dev_data is None:
        _has_both(data, task)
    trained = find_task(task.trained_on) if task.trained_on else task
    train = read_examples(trained, data, split=trained.trained, offline=offline)
    read = () if task.labels or task.regression else train.task.labels
    dev = read_examples(task, data if dev_data is None else dev_data, labels=read, offline=offline)
    check_splits(train, dev)
    return train, dev


def check_splits(train: Examples, dev: Examples) -> None:
    """Raise BadInput where a model trained on `train` cannot be scored on `dev`."""
    one, other = train.task, dev.task
    if (one.level, one.regression) != (other.level, other.regression):
        raise BadInput(f"{one.name} and {other.name} are tasks of different kinds; train and score on one of them")
    if one.regression:
        return
    if len({plain(name) for name in one.labels}) < len(one.labels):
        raise BadInput(
            f"{train.source}: labels differ only in case or punctuation: {', '.join(one.labels[:6])}; rename them"
        )
    labels = set(train.labels) if one.level == "text" else {label for row in train.labels for label in row}
    if len(labels) == 1 and len(one.labels) > 1:
        raise BadInput(
            f"{train.source}: every label is {one.labels[labels.pop()]!r}, and a classifier learns from at least two; was the "
            f"file cut?"
        )
    if len(one.labels) < 2:
        raise BadInput(f"{train.source} has one class, {one.labels[0]!r}; a classifier needs at least two")
    try:
        label_order(other, dict(enumerate(one.labels)), one.labels)
    except BadInput:
        raise BadInput(
            f"{train.source} has {len(one.labels)} classes ({', '.join(one.labels[:6])}), {dev.source} has "
            f"{len(other.labels)} ({', '.join(other.labels[:6])}); both must have the same"
        ) from None


def _has_both(data: str, task: LabelledTask) -> None:
    if Path(data).is_file():
        raise BadInput(
            f"{data} is one file, and fine-tuning needs dev examples too: name theirs with --dev-data, or give --data a folder "
            f"that holds {task.trained} and {task.evaluated} files"
        )
    if not Path(data).exists() and data.count(":") > 1:
        raise BadInput(f"{data} names one split; leave the split out, or name the dev examples with --dev-data")
