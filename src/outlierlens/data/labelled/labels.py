"""Which label each output of a model means: by the names in its config, never by their order.

label_order(find_task("glue:mnli"), {0: "contradiction", 1: "neutral", 2: "entailment"})       # (2, 1, 0)
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlierlens.data.labelled.table import TASKS, LabelledTask
from outlierlens.errors import BadInput

GENERIC = re.compile(r"(label)?\s*\d+")
ALIASES = {
    "non": "not",
    "contradictory": "contradiction",
    "entailed": "entailment",
    "neg": "negative",
    "pos": "positive",
}
IN_TASK_ORDER = "task"


def plain(name: str) -> str:
    """A label's name without case and punctuation: "Not_Entailment", "non-entailment" are the same, "LABEL_0" is "0"."""
    words = re.findall(r"[^\W_]+", name.casefold())
    if len(words) == 2 and words[0] == "label" and words[1].isdecimal():
        words = words[1:]
    return " ".join(ALIASES.get(word, word) for word in words) or name.strip()


def in_order_of_outputs(id2label: Mapping[Any, str]) -> list[str]:
    """What a config calls the outputs of its model, first to last."""
    return [str(id2label[key]) for key in sorted(id2label, key=int)]


def are_numbers(names: Sequence[str]) -> bool:
    """Whether names of classes are but numbers ("LABEL_0"), which say little of what they mean."""
    return all(GENERIC.fullmatch(plain(name)) for name in names)


def says_task_order(given: Sequence[str] | str | None) -> bool:
    """Whether `given` stands for the task's own order and names no class."""
    return given in (IN_TASK_ORDER, (IN_TASK_ORDER,))


def finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """Finds the place of a label in `names`: by its exact name, else by `plain` where that tells all of them apart."""
    exact = {name: place for place, name in enumerate(names)}
    loose = {plain(name): place for place, name in enumerate(names)}
    if len(loose) < len(exact):
        loose = {}  # "C" and "C++"
    return lambda name: exact.get(name, loose.get(plain(name)))


def places_among(labels: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """Where each of `labels` stands in the more classes `names` of a model; None where these are not more, or lack one."""
    find = finder(names)
    places = [find(label) for label in labels]
    found = tuple(place for place in places if place is not None)
    more = len(names) > len(labels) and len(set(found)) == len(labels)
    return found if more else None


def label_order(
    task: LabelledTask,
    id2label: Mapping[Any, str],
    given: Sequence[str] | str | None = None,
    *,
    where: str = "the model",
) -> tuple[int, ...]:
    """For each output of the model, the place of the label it means in `task.labels`; () for a regression.

    `given` names the model's labels in the order of its outputs (or is "task", for the task's own order), for a model whose
    config does not. Bare numbers ("LABEL_0") say something only where the task's own labels are numbers.

    Raises:
        BadInput: another number of classes, names that are not the task's, or names that say nothing while `given` is
            missing.
    """
    n = len(id2label)
    if task.regression:
        if n != 1:
            raise BadInput(f"{where} has {n} outputs, and {task.name} is a regression, which needs one")
        return ()
    names = in_order_of_outputs(id2label)
    wanted = _in_order(task, n)
    if len(wanted) != n:
        raise BadInput(
            f"{where} has {n} classes ({_some(names)}), {task.name} has {len(task.labels)} ({_some(task.labels)}); use a model "
            f"fine-tuned on {task.trained_on or task.name}{_or_named(task, n)}"
        )
    find, into = finder(task.labels), dict(task.merges)
    merged = finder(tuple(into))

    def place(name: str) -> int | None:
        other = merged(name)
        return find(name) if other is None else find(tuple(into.values())[other])

    if says_task_order(given):
        names = list(wanted)
    elif given is not None:
        names = [given] if isinstance(given, str) else list(given)
    elif are_numbers(names) and None in map(place, names):
        raise BadInput(
            f"{where} calls its classes {_some(names)}, which does not say what they mean, and models disagree; name them in "
            f"the order of its outputs with --labels (for instance --labels {','.join(wanted)})"
        )
    places = [place(name) for name in names]
    found = tuple(number for number in places if number is not None)
    if len(found) != n or len(names) != n or len(set(found)) != len(task.labels):
        raise BadInput(
            f"{where} has the classes {_some(names)}, which are not those of {task.name} ({_some(task.labels)}); use a model "
            f"fine-tuned on {task.trained_on or task.name}, or name its {n} classes as {task.name} does, in the order of its "
            f"outputs, with --labels (for instance --labels {','.join(wanted[:6])})"
        )
    return found


def contradicted(
    task: LabelledTask, id2label: Mapping[Any, str], given: Sequence[str] | str | None, *, where: str = "the model"
) -> tuple[str, ...]:
    """A note where `given` (see `label_order`, which takes its word) means another order than the names in the config."""
    if given is None or task.regression:
        return ()
    names = in_order_of_outputs(id2label)
    try:
        own = label_order(task, id2label, where=where)
    except BadInput:
        return ()  # its own names say nothing of this task
    if are_numbers(names) or own == label_order(task, id2label, given, where=where):
        return ()
    return (f"the config of {where} calls its outputs {_some(names)}, --labels says otherwise, and --labels was taken",)


def _in_order(task: LabelledTask, n: int) -> tuple[str, ...]:
    """The labels of a model with `n` outputs in the task's order: the task's own, or with those that are merged into one."""
    if n == len(task.labels) or not task.merges:
        return task.labels
    merged = {name for _, name in task.merges}
    return (*(name for name in task.labels if name not in merged), *(name for name, _ in task.merges))


def _or_named(task: LabelledTask, n: int) -> str:
    """The other remedy where a task's classes are those that its rows hold: these rows may lack some of the model's."""
    named_here = task.name not in TASKS and len(task.labels) < n
    return f", or, where these rows lack some classes, name all {n} as the rows do with --labels" if named_here else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", … {len(names)} in all" if len(names) > 6 else "")
