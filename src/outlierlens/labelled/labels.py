"""Which label each output of a model means: by the names in its config, never by their order.

label_order(find_task("glue:mnli"), {0: "contradiction", 1: "neutral", 2: "entailment"})       # (2, 1, 0)
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from outlierlens.errors import BadInput
from outlierlens.labelled.table import LabelledTask

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
    """A label's name without case and punctuation: "Not_Entailment", "non-entailment" are the same."""
    words = re.findall(r"[^\W_]+", name.casefold())
    return " ".join(ALIASES.get(word, word) for word in words) or name.strip()


def label_order(
    task: LabelledTask,
    id2label: Mapping[Any, str],
    given: Sequence[str] | str | None = None,
    *,
    where: str = "the model",
) -> tuple[int, ...]:
    """For each output of the model, the place of the label it means in `task.labels`; () for a regression.

    `given` names the model's labels in the order of its outputs (or is "task", for the task's own order), for a model whose
    config does not.

    Raises:
        BadInput: another number of classes, names that are not the task's, or names that say nothing ("LABEL_0") while
            `given` is missing.
    """
    n = len(id2label)
    if task.regression:
        if n != 1:
            raise BadInput(f"{where} has {n} outputs, and {task.name} is a regression, which needs one")
        return ()
    names = [str(id2label[key]) for key in sorted(id2label, key=int)]
    known = {plain(name): place for place, name in enumerate(task.labels)}
    merged = {plain(name): known[plain(into)] for name, into in task.merges}
    expected = {len(task.labels), len({**merged, **_entailed(task, merged)})} if merged else {len(task.labels)}
    if n not in expected:
        raise BadInput(
            f"{where} has {n} classes ({_some(names)}), {task.name} has {len(task.labels)} ({_some(task.labels)}); use a model "
            f"fine-tuned on {task.trained_on or task.name}"
        )
    if given == IN_TASK_ORDER:
        names = list(task.labels)
    elif given is not None:
        names = [given] if isinstance(given, str) else list(given)
    elif all(GENERIC.fullmatch(plain(name)) for name in names) and not all(plain(name) in known for name in names):
        raise BadInput(
            f"{where} calls its classes {_some(names)}, which does not say what they mean, and models disagree; name them in "
            f"the order of its outputs with --labels (for instance --labels {','.join(task.labels)})"
        )
    places = [known.get(plain(name), merged.get(plain(name))) for name in names]
    if None in places or len(names) != n or set(places) != set(known.values()):
        raise BadInput(
            f"{where} has the classes {_some(names)}, which are not those of {task.name} ({_some(task.labels)}); use a model "
            f"fine-tuned on {task.trained_on or task.name}, or name its {n} classes with --labels"
        )
    return tuple(place for place in places if place is not None)


def _entailed(task: LabelledTask, merged: Mapping[str, int]) -> dict[str, int]:
    """Labels of the task that nothing is merged into: a model has them under their own names."""
    return {plain(name): place for place, name in enumerate(task.labels) if place not in merged.values()}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", … {len(names)} in all" if len(names) > 6 else "")
