"""THE table of labelled tasks: columns, labels in the order of their numbers, metrics, splits.

task = find_task("glue:sst2")
task.labels                     # ("negative", "positive"): label 1 of the data means "positive"
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from outlierlens.errors import BadInput, near

Level = Literal["text", "token"]
METRICS = ("accuracy", "f1", "macro f1", "mcc", "pearson", "spearman", "token accuracy", "token f1")


@dataclass(frozen=True)
class LabelledTask:
    """One labelled task.

    Attributes:
        name: "glue:sst2".
        text, pair: columns of the first and second text; `text` may be a template over columns, "{word}: {sentence1}".
        labels: names in the order of the data's numbers; () is a regression (or, of a plain task, labels to be read).
        metrics: the first is what counts.
        hub: data set and configuration on the hub, "nyu-mll/glue:sst2".
        evaluated, trained: names of the splits.
        label: column of the label.
        level: "token" where `text` holds words and `label` one label a word.
        regression: whether labels are numbers on a scale. scale: its ends; () where they are not known.
        merges: labels of a model that mean a label of this task: HANS is read with MNLI's three.
        trained_on: the task that models for this one are trained on.
    """

    name: str
    text: str
    pair: str | None
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    hub: str = ""
    evaluated: str = "validation"
    trained: str = "train"
    label: str = "label"
    level: Level = "text"
    regression: bool = False
    scale: tuple[float, ...] = ()
    merges: tuple[tuple[str, str], ...] = ()
    trained_on: str = ""

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return self.metrics[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads."""
        fields = [name for part in (self.text, self.pair or "") for name in _fields(part)]
        return tuple(dict.fromkeys((*fields, self.label)))

    def labelled(self, names: tuple[str, ...]) -> "LabelledTask":
        """With the labels that its data holds; F1 is of two classes (of the second of them), and left out for more.

        Raises:
            BadInput: F1 is what counts, and there are more.
        """
        metrics = self.metrics
        if "f1" in metrics and len(names) > 2:
            if self.metric == "f1":
                raise BadInput(f"{self.name}: F1 is of two classes, and these are {len(names)}; use macro f1")
            metrics = tuple(name for name in metrics if name != "f1")
        return replace(self, labels=names, metrics=metrics)

    def filled(self, part: str, row: dict[str, object]) -> object:
        """The value of column (or template) `part` in `row`; None where a column that a template needs is empty."""
        if "{" not in part:
            return row[part]
        if any(row[name] is None for name in _fields(part)):
            return None
        return re.sub(r"\{(\w+)\}", lambda found: str(row[found[1]]), part)


def _fields(part: str) -> list[str]:
    """Columns of a template; a plain name is one column."""
    return re.findall(r"\{(\w+)\}", part) or ([part] if part else [])


_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")

_ROWS = (
    # GLUE: Wang et al. 2019
    LabelledTask(
        "glue:cola", "sentence", None, ("unacceptable", "acceptable"), ("mcc", "accuracy"), "nyu-mll/glue:cola"
    ),
    LabelledTask("glue:sst2", "sentence", None, ("negative", "positive"), ("accuracy",), "nyu-mll/glue:sst2"),
    LabelledTask(
        "glue:mrpc", "sentence1", "sentence2", ("not_equivalent", "equivalent"), ("accuracy", "f1"), "nyu-mll/glue:mrpc"
    ),
    LabelledTask(
        "glue:stsb", "sentence1", "sentence2", (), ("pearson", "spearman"), "nyu-mll/glue:stsb", regression=True,
        scale=(0, 5),
    ),
    LabelledTask(
        "glue:qqp", "question1", "question2", ("not_duplicate", "duplicate"), ("accuracy", "f1"), "nyu-mll/glue:qqp"
    ),
    LabelledTask("glue:mnli", "premise", "hypothesis", _NLI, ("accuracy",), "nyu-mll/glue:mnli", "validation_matched"),
    LabelledTask(
        "glue:mnli-mm", "premise", "hypothesis", _NLI, ("accuracy",), "nyu-mll/glue:mnli", "validation_mismatched",
        trained_on="glue:mnli",
    ),
    LabelledTask("glue:qnli", "question", "sentence", _ENTAILMENT, ("accuracy",), "nyu-mll/glue:qnli"),
    LabelledTask("glue:rte", "sentence1", "sentence2", _ENTAILMENT, ("accuracy",), "nyu-mll/glue:rte"),
    LabelledTask("glue:wnli", "sentence1", "sentence2", ("not_entailment", "entailment"), ("accuracy",), "nyu-mll/glue:wnli"),
    # McCoy et al. 2019
    LabelledTask(
        "hans", "premise", "hypothesis", ("entailment", "non-entailment"), ("accuracy",), "jhu-cogsci/hans",
        merges=(("neutral", "non-entailment"), ("contradiction", "non-entailment")), trained_on="glue:mnli",
    ),
    # SuperGLUE: Wang et al. 2019
    LabelledTask(
        "superglue:wic", "{word}: {sentence1}", "sentence2", ("False", "True"), ("accuracy",), "aps/super_glue:wic"
    ),
    LabelledTask("superglue:boolq", "question", "passage", ("False", "True"), ("accuracy",), "aps/super_glue:boolq"),
    # Stanford Sentiment Treebank: Socher et al. 2013
    LabelledTask(
        "sst5", "text", None, ("very negative", "negative", "neutral", "positive", "very positive"),
        ("accuracy", "macro f1"), "SetFit/sst5",
    ),
    # Maas et al. 2011
    LabelledTask("imdb", "text", None, ("negative", "positive"), ("accuracy",), "stanfordnlp/imdb", "test"),
)  # fmt: skip
TASKS = {task.name: task for task in _ROWS}


def find_task(name: str) -> LabelledTask:
    """The row called `name`; the part before the colon may be left out where that is clear.

    Raises:
        BadInput: no such task; the message lists them.
    """
    short = {task.split(":")[-1]: task for task in TASKS}
    found = TASKS.get(name) or TASKS.get(short.get(name, ""))
    if found is None:
        similar = near(name, (*TASKS, "classify", "regress", "tokens"))
        raise BadInput(
            f"unknown task {name!r}; tasks are {', '.join(TASKS)}, and for your own data `classify`, `regress` or `tokens` "
            f"with --data FILE:column=TEXT and --task classify:label=LABEL{similar}"
        )
    return found


def plain_task(
    kind: str, text: str, label: str, *, pair: str | None = None, labels: Sequence[str] = (), metric: str | None = None
) -> LabelledTask:
    """A task over your own columns: `kind` is "classify", "regress" or "tokens"; `labels` may be left to be read.

    Raises:
        BadInput: an unknown kind, or a metric that does not belong to it.
    """
    fitting = {
        "classify": ("accuracy", "f1", "macro f1", "mcc"),
        "regress": ("pearson", "spearman"),
        "tokens": ("token accuracy", "token f1"),
    }
    if kind not in fitting:
        raise BadInput(f"unknown kind of task {kind!r}; kinds are {', '.join(fitting)}")
    metrics = fitting[kind]
    task = LabelledTask(
        kind, text, pair, (), metrics, label=label, level="token" if kind == "tokens" else "text",
        regression=kind == "regress",
    )  # fmt: skip
    task = with_metric(task, metric)
    return task.labelled(tuple(labels)) if labels else task


def with_metric(task: LabelledTask, metric: str | None) -> LabelledTask:
    """`task` with `metric` as the one that counts; raises BadInput for one that it does not have."""
    if metric is None or metric == task.metric:
        return task
    if metric not in task.metrics:
        raise BadInput(f"task {task.name} has no metric {metric!r}; its metrics are {', '.join(task.metrics)}")
    return replace(task, metrics=(metric, *(other for other in task.metrics if other != metric)))
